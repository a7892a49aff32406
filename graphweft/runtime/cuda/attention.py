"""Launchers of attention on a device, and of all its gradients together.

Comes in: a :class:`KernelCall`. Goes out: a function of the slots. Statistics are the largest score and the
inverse sum of each softmax, two numbers for a destination and head. Registered in ``target.py``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphweft.codegen.edge_triton import padded
from graphweft.graph.graph import Graph
from graphweft.runtime.attention import Score
from graphweft.runtime.cuda import attention_kernels as kernels
from graphweft.runtime.cuda.edges import draw_words, edges_at_once
from graphweft.runtime.kernel_call import KernelCall, Slots
from graphweft.runtime.target import Launch

_WIDEST = 256  # channels of a head; a wider one is left to others


class _Attention:
    """What is fixed of a call, and its operands by slot."""

    def __init__(self, call: KernelCall) -> None:
        self.score = Score[str(call.get("score")).upper()]
        self._p, self._seed, self._stream = float(call.get("p") or 0.0), call.reading("seed"), call.get("stream")
        self._fixed = {"SCORE": int(self.score), "SLOPE": float(call.get("alpha")), "SCALE": float(call.get("scale"))}
        self._fixed |= {"THRESHOLD": round(self._p * 65536.0), "FACTOR": 1.0 / (1.0 - self._p)}
        self._at = [call.operand(role) for role in ("x", "a", "b")]

    def operands(self, slots: Slots) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Values, and what scores read: of sources, of destinations, and the vector of all."""
        x, a, b = (slots[at].contiguous() for at in self._at)
        return (x, x, a, b) if self.score is Score.ADD2 else (x, a, b, x)

    def launch(self, kernel: Any, graph: Graph, arrays: tuple[Tensor, ...], slots: Slots, heads: int) -> None:
        """One program a row of ``graph`` and head."""
        csc, x = (graph.csc_structure if self._seed is None else graph.csc), arrays[0]
        channels = x.shape[-1]
        columns = padded(channels)
        ids = csc.indices if csc.edge_ids is None else csc.edge_ids
        words = draw_words(0 if self._seed is None else int(slots[self._seed]), int(self._stream))
        fixed = {"H": heads, "C": channels, "SHARED": x.shape[1] != heads, "HAS_IDS": csc.edge_ids is not None}
        fixed |= {"BE": edges_at_once(columns, 4), "BC": columns}
        # Threads hold copies of sums over channels, so products are rounded by themselves.
        kernel(
            (csc.num_rows, heads), csc.indptr, csc.indices, ids, *arrays, *words, fusion=False, **self._fixed, **fixed
        )


def forward(call: KernelCall) -> Launch | None:
    """An attention."""
    kind, graph, out, stats = _Attention(call), call.operand("graph"), call.writes[0].at, call.writing("stats")
    heads, channels = call.value.tensor.dims
    if channels > _WIDEST:
        return None

    def run(slots: Slots) -> None:
        x, sources, targets, vector = kind.operands(slots)
        made = torch.empty((slots[graph].num_dst, heads, channels), dtype=x.dtype, device=x.device)
        kept = torch.empty((2, *made.shape[:2]), dtype=x.dtype, device=x.device)
        kind.launch(kernels.attend, slots[graph], (x, sources, targets, vector, made, *kept), slots, heads)
        slots[out] = made
        if stats is not None:
            slots[stats] = kept

    return run


def backward(call: KernelCall) -> Launch | None:
    """All gradients of one attention."""
    kind, heads = _Attention(call), int(call.get("heads"))
    graph, turned, out, stats, dout = (call.operand(role) for role in ("graph", "turned", "out", "stats", "dout"))
    wanted = [call.writing(f"d{k}") for k in range(3)]
    if call.value.inputs[-3].tensor.dims[-1] > _WIDEST:  # of the result, as forward
        return None

    def run(slots: Slots) -> None:
        x, sources, targets, vector = kind.operands(slots)
        result, kept, slope = slots[out].contiguous(), slots[stats].unbind(0), slots[dout].contiguous()
        shares, of_targets, of_x = torch.empty_like(kept[0]), torch.empty_like(targets), _like(x, heads)
        of_sources = of_x if kind.score is Score.ADD2 else torch.empty_like(sources)
        of_vector = torch.empty_like(result) if kind.score is Score.ADD2 else of_targets
        arrays = (x, sources, targets, vector, result, slope, *kept, shares, of_targets, of_vector)
        kind.launch(kernels.attend_gradient_of_targets, slots[graph], arrays, slots, heads)
        arrays = (x, sources, targets, vector, slope, *kept, shares, of_x, of_sources)
        kind.launch(kernels.attend_gradient_of_sources, slots[turned], arrays, slots, heads)
        of_x = of_x if x.shape[1] == heads else of_x.sum(1, keepdim=True)
        rest = (of_targets, of_vector.sum(0)) if kind.score is Score.ADD2 else (of_sources, of_targets)
        for at, made in zip(wanted, (of_x, *rest), strict=True):
            if at is not None:
                slots[at] = made

    return run


def _like(x: Tensor, heads: int) -> Tensor:
    """Rows for a gradient by values, of every head."""
    return torch.empty((x.shape[0], heads, x.shape[-1]), dtype=x.dtype, device=x.device)


__all__ = ["backward", "forward"]
