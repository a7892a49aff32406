"""Bytes of the buffers that products keep between calls (``kept_buffers.h``).

Comes in: a call and sizes. Goes out: bytes; cuts are those of the kernels' headers. Called by ``target.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from graphweft.ir.residency import StructType, TensorType
from graphweft.passes.work import Sizes
from graphweft.runtime.cpu import products
from graphweft.runtime.dense import rounds_operands
from graphweft.runtime.kernel_call import KernelCall

_LANES, _SLABS, _FEWEST = 16, 64, 8
_CACHE_FLOATS, _SLABS_FLOATS, _TERMS_FLOATS = 49152, 1 << 20, 1 << 21
_BLOCK, _HALF_BLOCK = 128, 512  # rows that several contractions take at a time; in bfloat16


def buffers(call: KernelCall, sizes: Sizes) -> int:
    """Products that sum over rows keep partial sums of slabs of rows; others pack their matrices."""
    if call.kernel == "contract_terms":
        made = _contracted(call)
        graph = next(slot.value.type for slot in call.reads if slot.role == "graph")
        rows = sizes.rows.get(graph.dst, 0) if isinstance(graph, StructType) else 0
        return terms_slabs(rows, [dims[0] for dims in made], made[0][-1], rounds_contractions(call))
    weights = {slot.role: slot.value.type for slot in call.reads if slot.role.startswith("weight")}
    if call.kernel == "contract":
        shared, (k, m) = weights.get("weight"), call.value.tensor.dims
        rows = sizes.rows.get(str(shared.rows), 0) if isinstance(shared, TensorType) else 0
        return terms_slabs(rows, [k], m, True) if rounds_contractions(call) else slabs(rows, k, m)
    if not call.kernel.startswith("matmul"):
        return 0
    return 4 * sum(prod(_padded(weight.dims)) for weight in weights.values() if isinstance(weight, TensorType))


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
    wanted = min(max(_TERMS_FLOATS // floats, _FEWEST), _SLABS)
    each = max(1, -(-blocks // (min(max(blocks // 2, _FEWEST), wanted) if rounds else wanted)))
    return 4 * floats * max(1, -(-blocks // each))


def _contracted(call: KernelCall) -> list[tuple[int, ...]]:
    """Columns of both operands of a call's contractions."""
    return [slot.value.tensor.dims for slot in call.writes[: call.get("count", 1)]]


def rounds_contractions(call: KernelCall) -> bool:
    """Whether all of a call's contractions round their operands on this processor."""
    return products.rounds(call) and all(rounds_operands(*dims) for dims in _contracted(call))


def _padded(dims: Sequence[int]) -> tuple[int, ...]:
    """The last dimension as whole vectors."""
    return (*dims[:-1], -(-dims[-1] // _LANES) * _LANES)


__all__ = ["buffers", "rounds_contractions", "slabs", "terms_slabs"]
