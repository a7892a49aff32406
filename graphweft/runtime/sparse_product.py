"""Products of sparse features by dense matrices in torch's graph.

Comes in: features and a dense matrix. Goes out: the product, differentiable by the dense matrix any number of times,
also by forward-mode differentiation and under ``vmap``. Called by torch's functions on sparse features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphweft._errors import DtypeError, ShapeError
from graphweft._torch_private import transforms_are_on
from graphweft.runtime import typed_products
from graphweft.runtime.sparse import spmm
from graphweft.storage.feature import SparseFeatures


class _Held:
    """Features, or the transposed ones, as an argument that torch does not take for a tensor."""

    def __init__(self, x: SparseFeatures, turned: bool = False) -> None:
        self.x, self._turned = x, turned

    def times(self, b: Tensor) -> Tensor:
        """The product by a dense matrix; of rows that lie dense where they are."""
        if typed_products.multiplies(self.x, b) and not transforms_are_on():
            return (typed_products.contract if self._turned else typed_products.matmul)(self.x, b)
        adjacency, values = self.x.transposed if self._turned else (self.x.adjacency, self.x.values)
        return spmm(adjacency, b.detach(), weight=values)

    def turned(self) -> _Held:
        """The transposed matrix."""
        return _Held(self.x, not self._turned)


class _Product(torch.autograd.Function):
    """``x @ b``; linear in b, so that its derivatives are products again."""

    @staticmethod
    def forward(held: _Held, b: Tensor) -> Tensor:
        """Shape: x (n, f), b (f, k) -> (n, k)."""
        if transforms_are_on():
            _ = held.x.transposed  # a backward pass under transforms could not make it: its new tensors have no memory
        return held.times(b)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keeps the features."""
        ctx.held = inputs[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        """``x.t() @ g``."""
        return None, _apply(ctx.held.turned(), gradients[0])

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        """``x @ db``."""
        return _apply(ctx.held, tangents[1])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], held: _Held, b: Tensor) -> tuple[Tensor, int]:
        """All matrices of a batch side by side."""
        b = b.movedim(in_dims[1], -1)
        out = _apply(held, b.reshape(b.shape[0], -1))
        return out.reshape(out.shape[0], *b.shape[1:]), b.dim() - 1


def _apply(held: _Held, b: Tensor) -> Tensor:
    made: Tensor = _Product.apply(held, b)  # type: ignore[no-untyped-call]
    return made


def product(who: str, x: SparseFeatures, b: Tensor) -> Tensor:
    """``x @ b`` by the sparse kernels; under autocast computed in x's dtype and cast, as torch casts its products.

    Shape: x (n, f), b (f, k) or (f,) -> (n, k) or (n,).

    Raises: ShapeError; DtypeError where b is of another dtype or not in this machine's memory.

    Example:
        >>> product("mm", SparseFeatures.from_dense(torch.tensor([[1.0, 2.0]])), torch.eye(2)).tolist()
        [[1.0, 2.0]]
    """
    if b.device.type != "cpu":
        raise DtypeError(f"{who}: expected a matrix on the CPU, where SparseFeatures are, got one on {b.device}")
    if b.dim() not in (1, 2) or b.shape[0] != x.width:
        raise ShapeError(f"{who}: expected a matrix of {x.width} rows for {x!r}, got shape {tuple(b.shape)}")
    cast = torch.is_autocast_enabled("cpu") and x.dtype == torch.float32
    if cast and b.is_floating_point():
        b = b.float()
    if b.dtype != x.dtype:
        raise DtypeError(
            f"{who}: expected {x.dtype} as the SparseFeatures, got {b.dtype}; x.float(), x.double() or x.to_dense()"
        )
    out = _apply(_Held(x), b if b.dim() == 2 else b.unsqueeze(1))
    out = out if b.dim() == 2 else out.squeeze(1)
    return out.to(torch.get_autocast_dtype("cpu")) if cast else out
