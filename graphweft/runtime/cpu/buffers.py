"""Bytes of the buffers that products keep between calls (``kept_buffers.h``).

Comes in: a call and sizes. Goes out: bytes; cuts are those of the kernels' headers. Called by ``target.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from graphweft.ir.residency import StructType, TensorType
from graphweft.passes.work import Sizes
from graphweft.runtime.cpu import products
from graphweft.runtime.dense import rounds_operands, splits_operands
from graphweft.runtime.kernel_call import KernelCall

_LANES, _SLABS, _FEWEST = 16, 64, 8
_CACHE_FLOATS, _SLABS_FLOATS, _TERMS_FLOATS = 49152, 1 << 20, 1 << 21
_BLOCK, _HALF_BLOCK = 128, 256  # rows that several contractions take at a time; in bfloat16
_SPLIT_WIDTH = 32  # of columns and rows of operands that are split, in whole tiles
_SPLIT_ROWS, _PART_BYTES = 288, 6  # that a thread splits at a time; bytes of a number's parts


def buffers(call: KernelCall, sizes: Sizes) -> int:
    """Products that sum over rows keep partial sums of slabs of rows; others pack their matrices."""
    if call.kernel == "contract_terms":
        made = _contracted(call)
        graph = next(slot.value.type for slot in call.reads if slot.role == "graph")
        rows = sizes.rows.get(graph.dst, 0) if isinstance(graph, StructType) else 0
        ks, m, rounds = [dims[0] for dims in made], made[0][-1], rounds_contractions(call)
        if not rounds and splits_operands(sum(ks), m):
            return split_slabs(rows, ks, m)
        return terms_slabs(rows, ks, m, rounds)
    weights = {slot.role: slot.value.type for slot in call.reads if slot.role.startswith("weight")}
    if call.kernel == "contract":
        shared, (k, m) = weights.get("weight"), call.value.tensor.dims
        rows = sizes.rows.get(str(shared.rows), 0) if isinstance(shared, TensorType) else 0
        if rounds_contractions(call):
            return terms_slabs(rows, [k], m, True)
        return split_slabs(rows, [k], m) if splits_operands(k, m) else slabs(rows, k, m)
    if not call.kernel.startswith("matmul"):
        return 0
    found = [weight.dims for weight in weights.values() if isinstance(weight, TensorType)]
    packed = 4 * sum(prod(_padded(dims)) for dims in found)
    if found and not products.rounds(call):
        ks, m = _joined(call, found)
        if splits_operands(sum(ks), m):
            return _split_bytes(ks, m)
    return packed


def slabs(n: int, k: int, m: int) -> int:
    """Partial sums of a product that sums over ``n`` rows, as gemm_tn.h cuts them."""
    floats = max(1, min(prod(_padded((k, m))), prod(_padded((m, k)))))
    block = min(max(_CACHE_FLOATS // min(max(k, 1), 512) // 8 * 8, 48), 256)
    return 4 * floats * max(1, min(-(-n // block), _SLABS_FLOATS // floats, _SLABS))


def terms_slabs(n: int, ks: Sequence[int], m: int, rounds: bool) -> int:
    """As :func:`slabs`, of several products or of rounded operands: gemm_tn_terms.h, gemm_tn_half.h."""
    whole = [-(-k // _LANES) * _LANES if rounds else k for k in ks]
    floats = max(1, sum(prod(_padded((k, m))) for k in whole))
    blocks = -(-n // (_HALF_BLOCK if rounds else _BLOCK))
    most = min(max(blocks // 4, _FEWEST), _SLABS) if rounds else _SLABS
    return _of_blocks(blocks, floats, _TERMS_FLOATS, most)


def split_slabs(n: int, ks: Sequence[int], m: int) -> int:
    """As :func:`terms_slabs`, of operands that are split: gemm_tn_split.h."""
    floats = max(1, sum(-(-k // _LANES) * _LANES for k in ks) * _whole(m))
    return _of_blocks(-(-n // _BLOCK), floats, _SLABS_FLOATS, _SLABS)


def _of_blocks(blocks: int, floats: int, room: int, most: int) -> int:
    """Bytes of the slabs, of so many ``floats`` each, that blocks of rows are cut into; ``most`` slabs."""
    each = max(1, -(-blocks // min(max(room // floats, _FEWEST), most)))
    return 4 * floats * max(1, -(-blocks // each))


def _joined(call: KernelCall, weights: Sequence[tuple[int, ...]]) -> tuple[list[int], int]:
    """Rows of the weights of a product, which lie one below the other, and their columns."""
    turned = [bool(call.get(name)) for name in ("transposed", *(f"transposed{i}" for i in range(len(weights))))]
    flags = turned[:1] if "weight" in {slot.role for slot in call.reads} else turned[1:]
    dims = [w[::-1] if flag else w for w, flag in zip(weights, flags, strict=True)]
    return [k for k, _ in dims], dims[0][1]


def _split_bytes(ks: Sequence[int], m: int) -> int:
    """Of a product by gemm_split.h: weights, their parts, and the block of rows of every thread."""
    k = _whole(sum(-(-k // _LANES) * _LANES for k in ks))
    block = k * _PART_BYTES + 4 * (_whole(m) + sum(ks))  # of a row: parts, sums, and sums over edges
    return k * (4 * m + _PART_BYTES * _whole(m)) + torch.get_num_threads() * _SPLIT_ROWS * block


def _whole(columns: int) -> int:
    return -(-columns // _SPLIT_WIDTH) * _SPLIT_WIDTH


def _contracted(call: KernelCall) -> list[tuple[int, ...]]:
    """Columns of both operands of a call's contractions."""
    return [slot.value.tensor.dims for slot in call.writes[: call.get("count", 1)]]


def rounds_contractions(call: KernelCall) -> bool:
    """Whether all of a call's contractions round their operands on this processor."""
    return products.rounds(call) and all(rounds_operands(*dims) for dims in _contracted(call))


def _padded(dims: Sequence[int]) -> tuple[int, ...]:
    """The last dimension as whole vectors."""
    return (*dims[:-1], -(-dims[-1] // _LANES) * _LANES)


__all__ = ["buffers", "rounds_contractions", "slabs", "split_slabs", "terms_slabs"]
