"""What features are to a program: their type, whether they lie in memory as bfloat16, and what a plan is kept by.

Comes in: dense or sparse features and the other tensors of a call. Goes out: types and keys. Features may be stored in
bfloat16 beside float32 parameters: the program's type is float32 then, and what reads them widens each number, which
loses nothing. Called by ``compile.py`` and ``staged.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from graphweft._errors import ShapeError
from graphweft._memory import empty
from graphweft.graph.graph import Graph
from graphweft.ir.residency import Residency, TensorType
from graphweft.storage.feature import Features, SparseFeatures, is_dense

_COMPILED = {torch.float32, torch.float64}
_LINE = 32  # bfloat16 numbers of a cache line


def meant_dtype(x: Features) -> torch.dtype:
    """The dtype that a program computes with: that of the numbers, float32 for those that are stored in bfloat16."""
    dtype = x.dtype
    return torch.float32 if dtype == torch.bfloat16 else dtype


def is_half(x: object) -> bool:
    """Whether features are rows stored in bfloat16."""
    return isinstance(x, Tensor) and is_dense(x) and x.dtype == torch.bfloat16


def in_half(x: Tensor, on_lines: bool = False) -> Tensor:
    """The same numbers, rounded to bfloat16, in memory of the pool.

    ``on_lines``: rows of a matrix that are read one by one, in any order: each begins on a cache line, and so touches
    no line more than it fills, where that takes at most a third more memory.

    Example:
        >>> in_half(torch.tensor([[1.0, 1.001]]))
        tensor([[1., 1.]], dtype=torch.bfloat16)
        >>> in_half(torch.ones(2, 100), on_lines=True).stride()
        (128, 1)
    """
    if on_lines and x.dim() == 2:
        width = x.shape[1]
        pitch = -(-width // _LINE) * _LINE
        if 3 * pitch <= 4 * width:
            return empty((x.shape[0], pitch), torch.bfloat16)[:, :width].copy_(x)
    return empty(tuple(x.shape), torch.bfloat16).copy_(x)


def in_full(x: Tensor) -> Tensor:
    """The same numbers in float32."""
    return empty(tuple(x.shape), torch.float32).copy_(x)


def feature_type(graph: Graph, x: Features, src: str) -> TensorType:
    """The type of node features. Raises: ShapeError."""
    if isinstance(x, SparseFeatures):
        width: tuple[int, ...] = (x.width,)
        nodes = x.num_rows
    else:
        if x.dim() < 1:
            raise ShapeError(f"forward: expected one row of features per node, got shape {tuple(x.shape)}")
        nodes, width = x.shape[0], tuple(x.shape[1:])
    if nodes != graph.num_src:
        raise ShapeError(f"forward: expected features for {graph.num_src} nodes, got {nodes} rows")
    return TensorType(Residency.SRC, src, width, meant_dtype(x), isinstance(x, SparseFeatures))


def feature_key(x: Features | None) -> tuple[Any, ...]:
    """What a plan depends on; one serves rows in float32 and in bfloat16."""
    if x is None:
        return ()
    return (
        (x.shape[1], meant_dtype(x), "csr") if isinstance(x, SparseFeatures) else (tuple(x.shape[1:]), meant_dtype(x))
    )


def is_compilable(x: Features | None, others: Iterable[Tensor]) -> bool:
    """Kernels are for float32 and float64; anything else is the oracle's. Other tensors count where there is no ``x``.

    Features stored in bfloat16 are for kernels where every other tensor is float32.
    """
    if is_half(x):
        return all(t.dtype == torch.float32 for t in others if t.dtype.is_floating_point)
    kinds = others if x is None else [x]
    return {t.dtype for t in kinds if t.dtype.is_floating_point or t.dtype.is_complex} <= _COMPILED


def is_single(x: Features | None, others: Iterable[Tensor]) -> bool:
    """Whether all floating numbers are float32, the dtype of the fused epilogues."""
    kinds = [] if x is None else [meant_dtype(x)]
    return all(kind == torch.float32 for kind in (*kinds, *(t.dtype for t in others)) if kind.is_floating_point)


__all__ = ["feature_key", "feature_type", "in_full", "in_half", "is_compilable", "is_half", "is_single", "meant_dtype"]
