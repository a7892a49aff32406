"""Attention on a device, and all its gradients together.

Comes in: a graph and rows, or a :class:`KernelCall`. Goes out: rows, or a function of the slots. Statistics are the
largest score and the inverse sum of each softmax, two numbers for a destination and head, in float32 where rows have 16
bits. Registered in ``target.py``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from graphweft.codegen.edge_triton import padded
from graphweft.graph.graph import Graph
from graphweft.runtime.attention import Score
from graphweft.runtime.cuda import attention_kernels as kernels
from graphweft.runtime.cuda.edges import draw_words, edges_at_once
from graphweft.runtime.cuda.hubs import PIECES, SECOND, hubs_of, run_by_pieces
from graphweft.runtime.kernel_call import KernelCall, Slots
from graphweft.runtime.target import Launch

WIDEST = 256  # channels of a head; a wider one is left to others
_TILE = 256  # elements of a block of edges; half as many where a vector and draws take registers, too
_TWO_WARPS = 128  # channels above which a vector of the head as well as a row of either end takes two warps


class Scored(NamedTuple):
    """How edges are scored, and which of them are dropped: ``score``, ``alpha``, ``scale`` and ``p`` of the IR.

    With ``seed`` None none is.
    """

    score: Score
    alpha: float = 0.0
    scale: float = 1.0
    p: float = 0.0
    seed: int | Tensor | None = None
    stream: int = 0

    def ends(self, x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Values, and what scores read: of sources, of destinations, and the vector of all."""
        x, a, b = x.contiguous(), a.contiguous(), b.contiguous()
        return (x, x, a, b) if self.score is Score.ADD2 else (x, a, b, x)

    def launch(
        self,
        kernel: Any,
        graph: Graph,
        read: tuple[Tensor, ...],
        results: tuple[Tensor, ...],
        heads: int,
        passes: tuple[int, ...] = (PIECES,),
        **more: int,
    ) -> None:
        """One program a row of ``graph`` and head, or a piece of a row."""
        csc, x = (graph.csc_structure if self.seed is None else graph.csc), read[0]
        channels = x.shape[-1]
        columns = padded(channels)
        ids = csc.indices if csc.edge_ids is None else csc.edge_ids
        words = draw_words(0 if self.seed is None else self.seed, self.stream)
        fixed = {"SCORE": int(self.score), "SLOPE": float(self.alpha), "SCALE": float(self.scale)}
        fixed |= {"THRESHOLD": round(self.p * 65536.0), "FACTOR": 1.0 / (1.0 - self.p)}
        fixed |= {"H": heads, "C": channels, "SHARED": x.shape[1] != heads, "HAS_IDS": csc.edge_ids is not None}
        fixed |= {"BE": self.edges_of(channels), "BC": columns, **more}
        # Threads hold copies of sums over channels, so products are rounded by themselves.
        fixed |= {"fusion": False, "warps": 2 if columns > _TWO_WARPS and self.score is Score.ADD2 else 1}
        hubs, given = hubs_of(graph, self.seed is not None), (csc.indices, ids, *read)
        run_by_pieces(kernel, csc, hubs, heads, given, results, words, passes, **fixed)

    def edges_of(self, channels: int) -> int:
        """Edges of a block: as many as fit into 64 registers a thread with the sums over channels."""
        columns, few = padded(channels), channels % 4 != 0 and self.seed is not None  # read one by one
        most = _TILE // 2 if self.score is Score.ADD2 and self.seed is not None else _TILE
        return min(4 if few else 32, edges_at_once(columns, 4), max(1, most // columns))


def attend(kind: Scored, graph: Graph, x: Tensor, a: Tensor, b: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """The result, and its statistics."""
    rows, sources, targets, vector = kind.ends(x, a, b)
    made = torch.empty((graph.num_dst, heads, x.shape[-1]), dtype=x.dtype, device=x.device)
    kept = torch.empty((2, *made.shape[:2]), dtype=_sums_of(x), device=x.device)
    kind.launch(kernels.attend, graph, (rows, sources, targets, vector), (made, *kept), heads)
    return made, kept


def gradients(
    kind: Scored,
    graphs: tuple[Graph, Graph],
    given: tuple[Tensor, Tensor, Tensor],
    result: tuple[Tensor, Tensor],
    slope: Tensor,
    vectors: tuple[Tensor | None, Tensor | None] = (None, None),
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients by x, a and b.

    Args:
        kind: As for the result.
        graphs: The graph, and its reverse.
        given: x, a and b.
        result: What :func:`attend` gave.
        slope: The gradient of the result.
        vectors: By head, for a and b: that of x has the gradients by a and b times these added.
    """
    (x, sources, targets, vector), kept = kind.ends(*given), result[1].unbind(0)
    heads, out, slope = result[0].shape[1], result[0].contiguous(), slope.contiguous()
    shared = x.shape[1] != heads
    told, of_targets = torch.empty((*kept[0].shape, 4), dtype=kept[0].dtype, device=x.device), torch.empty_like(targets)
    of_x = torch.empty((x.shape[0], heads, x.shape[-1]), dtype=_sums_of(x) if shared else x.dtype, device=x.device)
    of_sources = of_x if kind.score is Score.ADD2 else torch.empty_like(sources)
    of_vector = torch.empty_like(out, dtype=_sums_of(x)) if kind.score is Score.ADD2 else of_targets
    read, passes = (x, sources, targets, vector), (SECOND,) if out.dtype == kept[0].dtype else (PIECES, SECOND)
    results = (told, of_targets, of_vector)
    kind.launch(kernels.attend_gradient_of_targets, graphs[0], (*read, out, slope, *kept), results, heads, passes)
    by_source, by_target = (x if v is None else v.contiguous() for v in vectors)
    more = (slope, told, of_targets, by_source, by_target)
    scored = sum(bit for bit, v in zip((1, 2), vectors, strict=True) if v is not None)
    kind.launch(kernels.attend_gradient_of_sources, graphs[1], (*read, *more), (of_x, of_sources), heads, SCORED=scored)
    of_x = of_x.sum(1, keepdim=True).to(x.dtype) if shared else of_x
    if kind.score is Score.ADD2:
        return of_x, of_targets, of_vector.sum(0).to(x.dtype)
    return of_x, of_sources, of_targets


def _sums_of(x: Tensor) -> torch.dtype:
    """What sums over rows of ``x`` are kept in."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


class _Call:
    """What is fixed of a call, and its operands by slot."""

    def __init__(self, call: KernelCall) -> None:
        score = Score[str(call.get("score")).upper()]
        self._kind = Scored(score, float(call.get("alpha")), float(call.get("scale")), float(call.get("p") or 0.0))
        self._seed, self._stream = call.reading("seed"), int(call.get("stream"))
        self._at = [call.operand(role) for role in ("x", "a", "b")]

    def kind(self, slots: Slots) -> Scored:
        """With the seed of this step."""
        return self._kind if self._seed is None else self._kind._replace(seed=slots[self._seed], stream=self._stream)

    def given(self, slots: Slots) -> tuple[Tensor, Tensor, Tensor]:
        """x, a and b."""
        x, a, b = (slots[at] for at in self._at)
        return x, a, b


def forward(call: KernelCall) -> Launch | None:
    """An attention."""
    own, graph, out, stats = _Call(call), call.operand("graph"), call.writes[0].at, call.writing("stats")
    heads, channels = call.value.tensor.dims
    if channels > WIDEST:
        return None

    def run(slots: Slots) -> None:
        slots[out], kept = attend(own.kind(slots), slots[graph], *own.given(slots), heads)
        if stats is not None:
            slots[stats] = kept

    return run


def backward(call: KernelCall) -> Launch | None:
    """All gradients of one attention."""
    own = _Call(call)
    graph, turned, out, stats, dout = (call.operand(role) for role in ("graph", "turned", "out", "stats", "dout"))
    wanted = [call.writing(f"d{k}") for k in range(3)]
    vectors = [call.reading(f"vector{k}") for k in (1, 2)]
    if next(slot.value.tensor.dims[-1] for slot in call.reads if slot.role == "out") > WIDEST:
        return None

    def run(slots: Slots) -> None:
        given, result = own.given(slots), (slots[out], slots[stats])
        by_source, by_target = (None if at is None else slots[at] for at in vectors)
        graphs = slots[graph], slots[turned]
        found = gradients(own.kind(slots), graphs, given, result, slots[dout], (by_source, by_target))
        for at, made in zip(wanted, found, strict=True):
            if at is not None:
                slots[at] = made

    return run


__all__ = ["WIDEST", "Scored", "attend", "backward", "forward", "gradients"]
