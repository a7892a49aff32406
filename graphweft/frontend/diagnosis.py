"""Why a compiled call failed, in the user's words, at a bounded cost.

Comes in: a call whose program failed. Goes out: the error that its functions raise, with field, sizes and line: found
on tensors without memory, which have shapes and dtypes alone, or else on the in-edges of some destinations at a time,
where values are wrong, like an index out of range. Called by ``nn/user_call.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from graphweft._errors import GraphWeftError
from graphweft._torch_recording import FakeTensorMode
from graphweft.frontend.call import Call
from graphweft.frontend.captured import Captured
from graphweft.frontend.reference import Bucket, Structure, run_reference
from graphweft.frontend.trace import without_log
from graphweft.graph.graph import Graph

_EDGES = 1 << 16  # edges that run at a time
_PARTS = 64  # at most
_DEGREES = 4  # in-degrees that are tried without memory


def diagnose(call: Call, captured: Captured) -> None:
    """Runs ``call`` where that costs little.

    Raises: GraphWeftError naming field, sizes and line, where one is found.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        _try(call, on_shapes=True)
        for part in _parts(call, captured):
            _try(part)


def _try(call: Call, on_shapes: bool = False) -> None:
    try:
        if not on_shapes:
            run_reference(call)
        else:
            degrees = _degrees(call.graph)
            with without_log(), FakeTensorMode(allow_non_fake_inputs=True):
                run_reference(call, _without_memory(call.graph, degrees))
    except GraphWeftError as failure:
        if not on_shapes or type(failure.__cause__).__module__ in ("builtins", "NoneType"):
            raise
    except Exception:  # code that needs values, or errors of the user's own: the first failure is told
        return


def _degrees(graph: Graph) -> list[tuple[int, int]]:
    """Some in-degrees and how many nodes have them."""
    degrees, counts = torch.unique(graph.in_degrees(), return_counts=True)
    pairs = zip(degrees.tolist(), counts.tolist(), strict=True)
    return [(degree, count) for degree, count in pairs if degree][:_DEGREES]


def _without_memory(graph: Graph, degrees: list[tuple[int, int]]) -> Structure:
    """The structure of the graph as sizes."""
    edges = torch.empty(graph.num_edges, dtype=torch.int64)
    buckets = tuple(
        Bucket(torch.empty(count, dtype=torch.int64), torch.empty((count, degree), dtype=torch.int64))
        for degree, count in degrees
    )
    types = torch.empty(graph.num_dst, dtype=torch.int64) if graph.is_square else None
    return Structure(edges, edges, types, edges if graph.is_square else None, buckets)


def _parts(call: Call, captured: Captured) -> Iterator[Call]:
    """The call on the in-edges of some destinations after the other; none where rows are tied to the whole graph."""
    graph = call.graph
    tied = any(t.dim() and t.shape[0] in (graph.num_edges, graph.num_dst) for t in captured.tensors)
    if tied or call.ntype or call.etype:
        return
    indptr = graph.csc.indptr
    ids = torch.arange(graph.num_edges) if graph.csc.edge_ids is None else graph.csc.edge_ids.long()
    start = 0
    for _ in range(_PARTS):
        stop = int(torch.searchsorted(indptr, indptr[start] + _EDGES, right=True)) - 1
        stop = min(max(stop, start + 1), graph.num_dst)
        first, last = int(indptr[start]), int(indptr[stop])
        if last - first <= _EDGES:
            rows = indptr[start : stop + 1] - first
            part = Graph.from_csc(rows, graph.csc.indices[first:last], num_src=graph.num_src)
            dst = {name: tensor[start:stop] for name, tensor in call.dst.items()}
            edata = {name: tensor[ids[first:last]] for name, tensor in call.edata.items()}
            yield replace(call, graph=part, dst=dst, edata=edata)
        start = stop
        if start >= graph.num_dst:
            return


__all__ = ["diagnose"]
