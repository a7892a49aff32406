"""Launchers of what attention reads and gives beside its walks, by head: scores of rows, and sums over rows.

Comes in: calls that ``passes/by_head.py`` joined. Goes out: a function of the slots. Registered in ``target.py``.
"""

from __future__ import annotations

import torch

from graphweft.codegen.edge_triton import padded
from graphweft.ir.ops import Op
from graphweft.runtime.cuda import attention_kernels as kernels
from graphweft.runtime.cuda.attention import WIDEST
from graphweft.runtime.cuda.jit import warps_for
from graphweft.runtime.kernel_call import KernelCall, Slots
from graphweft.runtime.target import Launch

_TILE = 512  # elements of a block of rows
_SUMS = 256  # of one of several blocks of sums
_PROGRAMS = 256  # that share the rows of a sum


def head_scores(call: KernelCall) -> Launch | None:
    """Two scores of the same rows."""
    at = {slot.value: slot.at for slot in call.reads}
    values, outs = [slot.value for slot in call.writes], [slot.at for slot in call.writes]
    x, first, second = (at[v] for v in (values[0].inputs[0], *(value.inputs[1] for value in values)))
    heads, channels = values[0].inputs[0].tensor.dims
    columns = padded(channels)
    block = max(1, _TILE // columns)
    if channels > WIDEST:
        return None

    def run(slots: Slots) -> None:
        rows, vectors = slots[x].contiguous(), (slots[first].contiguous(), slots[second].contiguous())
        made = [torch.empty(rows.shape[:2], dtype=rows.dtype, device=rows.device) for _ in outs]
        count = made[0].numel()
        fixed = {"H": heads, "C": channels, "BR": block, "BC": columns}
        # Threads hold copies of sums over channels, so products are rounded by themselves.
        kernels.score_rows((-(-count // block),), rows, *vectors, *made, count, fusion=False, **fixed)
        for out, result in zip(outs, made, strict=True):
            slots[out] = result

    return run


def head_sums(call: KernelCall) -> Launch | None:
    """Two sums over the same rows by head, and perhaps the column sums of others."""
    at = {slot.value: slot.at for slot in call.reads}
    values, outs = [slot.value for slot in call.writes], [slot.at for slot in call.writes]
    x, first, second = (at[v] for v in (values[0].inputs[1], *(value.inputs[0] for value in values[:2])))
    plain = at[values[2].inputs[0]] if len(values) > 2 and values[2].op is Op.COL_SUM else None
    heads, channels = values[0].tensor.dims
    columns = padded(channels)
    alone = channels % 4 != 0  # numbers that are read one by one take the most registers
    block = max(1, (_SUMS // 2 if alone else _SUMS) // columns)
    if channels > WIDEST:
        return None

    def run(slots: Slots) -> None:
        rows = slots[x].contiguous()
        given = [slots[k].contiguous() for k in (first, second)]
        count = rows.shape[0]
        share = max(block, -(-count // _PROGRAMS))
        programs = -(-count // share)
        made = torch.empty((programs, len(outs), heads, channels), dtype=rows.dtype, device=rows.device)
        others = rows if plain is None else slots[plain].contiguous()
        fixed = {"H": heads, "C": channels, "PLAIN": plain is not None, "BR": block, "BC": columns}
        warps = warps_for(block * columns)
        kernels.sum_rows_by_head((programs, heads), rows, *given, others, made, count, share, warps=warps, **fixed)
        for out, value, total in zip(outs, values, made.sum(0).unbind(0), strict=True):
            slots[out] = total.view(value.tensor.dims)

    return run


LAUNCHERS = {"head_scores": head_scores, "head_sums": head_sums}

__all__ = ["LAUNCHERS"]
