"""The primitives that samplers are written in: draws per row, draws for a whole layer, compaction.

Comes in: a graph, usually a slice such as ``g[:, seeds]``. Goes out: a :class:`Drawn`, the drawn part with the edges it
came from. Called by users who write samplers of their own. Source: Joestar, section 5.3.1, tables 5.2 and 5.3.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch

from graphweft._errors import ConfigError
from graphweft._memory import empty
from graphweft._native import declare, pointer
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.graph import Graph
from graphweft.graph.ids import Ids
from graphweft.graph.select import as_selection
from graphweft.sample.weights import as_weights, by_position

_row_sizes = declare("gw_row_sample_sizes")
_row_sample = declare("gw_row_sample")
_draw_nodes = declare("gw_draw_nodes")


@dataclass(frozen=True, eq=False)
class Drawn:
    """A sampled part of a graph.

    Attributes:
        graph: The drawn edges; bipartite, over the given graph's nodes until :func:`compact` leaves some out.
        e_id: int64 (num_edges,) the edges' positions in the given graph's ``edges()``.
        edge_norm: float32 (num_edges,) factors with which sums over in-edges are unbiased estimates of the sums over
            all in-edges of the given graph.
        src_ids: int64 (num_src,) the sources' numbers in the given graph.
        dst_ids: int64 (num_dst,) the destinations'.
    """

    graph: Graph
    e_id: torch.Tensor
    edge_norm: torch.Tensor
    src_ids: torch.Tensor
    dst_ids: torch.Tensor


def individual_sample(
    graph: Graph,
    k: int,
    probs: Any = None,
    *,
    replace: bool = False,
    nodes: Ids | None = None,
    seed: int = 0,
    epoch: int = 0,
    stage: int = 0,
    hop: int = 0,
) -> Drawn:
    """Every destination draws ``k`` of its in-edges.

    Without replacement, a destination draws min(k, in-edges of positive weight) edges one after the other, each with
    probability proportional to the remaining weights. With replacement it draws k, or none if it has no such edge.
    Draws are keyed by (seed, epoch, stage, node, hop) and do not depend on the number of threads.

    Args:
        graph: A graph; often a slice ``g[:, seeds]``.
        k: Number of draws of a destination; 0: none, -1: all in-edges.
        probs: (num_edges,) weights >= 0 by edge id; they need not sum to 1. None: uniform.
        replace: Draw with replacement.
        nodes: (num_dst,) ids that key the draws of the destinations, such as their ids in a larger graph; None: their
            numbers.
        seed: Part of the key of the draws: equal seed, epoch, stage and hop give equal draws.
        epoch: Part of the key of the draws.
        stage: Part of the key of the draws.
        hop: Part of the key of the draws.

    Raises: ConfigError, ShapeError.

    Example:
        >>> g = Graph([1, 2, 3, 3], [0, 0, 0, 1])
        >>> drawn = individual_sample(g[:, [0]], 2, probs=[1.0, 0.0, 1.0])
        >>> drawn.e_id.tolist(), drawn.graph.edges()[0].tolist(), drawn.edge_norm.tolist()
        ([0, 2], [1, 3], [1.0, 1.0])
    """
    who = "individual_sample"
    _check_k(who, k, replace)
    csc = graph.csc
    weight = None if probs is None else by_position(who, csc, probs)
    keys = None if nodes is None else as_selection(who, "node", nodes, 2**63 - 1)
    if keys is not None and keys.numel() != graph.num_dst:
        raise ConfigError(f"{who}: expected {graph.num_dst} nodes, one per destination, got {keys.numel()}")
    indptr = empty((graph.num_dst + 1,), torch.int64)
    given = (ctypes.byref(csc.native), pointer(weight), k, replace)
    _row_sizes(*given, indptr.data_ptr())
    count = int(indptr[-1])
    positions, norm = empty((count,), torch.int64), empty((count,), torch.float32)
    key = (pointer(keys), seed, epoch, stage, hop)
    _row_sample(*given, *key, indptr.data_ptr(), positions.data_ptr(), norm.data_ptr())
    return _drawn(graph, indptr, positions, norm)


def collective_sample(
    graph: Graph,
    k: int,
    probs: Any = None,
    *,
    replace: bool = False,
    nodes: Ids | None = None,
    seed: int = 0,
    epoch: int = 0,
    stage: int = 0,
    hop: int = 0,
) -> Drawn:
    """Draws ``k`` sources for all destinations together and keeps the edges from these sources.

    Only sources with an edge can be drawn. With replacement, a source may be drawn several times. Its edges are kept
    once, and ``edge_norm`` counts the draws.

    Args:
        graph: A graph; often a slice ``g[:, seeds]``.
        k: Number of draws; 0 draws none, -1 takes all.
        probs: (num_src,) weights >= 0 of the sources; they need not sum to 1. None: uniform.
        replace: Draw with replacement.
        nodes: (num_src,) ids that key the draws of the sources; None: their numbers.
        seed: Part of the key of the draws: equal seed, epoch, stage and hop give equal draws.
        epoch: Part of the key of the draws.
        stage: Part of the key of the draws.
        hop: Part of the key of the draws.

    Raises: ConfigError, ShapeError.

    Example:
        >>> g = Graph([1, 2, 3, 3], [0, 0, 0, 1])
        >>> drawn = collective_sample(g[:, [0, 1]], 1, probs=[0.0, 0.0, 0.0, 1.0])
        >>> [ends.tolist() for ends in drawn.graph.edges()], drawn.e_id.tolist()
        ([[3, 3], [0, 1]], [2, 3])
    """
    who = "collective_sample"
    _check_k(who, k, replace)
    csc = graph.csc
    able = csc.column_counts().nonzero().reshape(-1)
    weight = None if probs is None else as_weights(who, probs, graph.num_src, "source")[able]
    keys = able if nodes is None else as_selection(who, "node", nodes, 2**63 - 1)
    if nodes is not None:
        if keys.numel() != graph.num_src:
            raise ConfigError(f"{who}: expected {graph.num_src} nodes, one per source, got {keys.numel()}")
        keys = keys[able]
    places, norm = draw_nodes(keys, weight, k, replace, (seed, epoch, stage), hop)
    of_source = torch.zeros(graph.num_src, dtype=torch.float32)
    of_source[able[places]] = norm.float()
    kept = torch.zeros(graph.num_src, dtype=torch.bool)
    kept[able[places]] = True
    columns = csc.indices.long()
    positions = kept[columns].nonzero().reshape(-1)
    indptr = torch.zeros(graph.num_dst + 1, dtype=torch.int64)
    torch.cumsum(torch.diff(torch.searchsorted(positions, csc.indptr)), 0, out=indptr[1:])
    return _drawn(graph, indptr, positions, of_source[columns[positions]])


def compact(drawn: Drawn, *, keep_dst: bool = True) -> Drawn:
    """Removes sources without an edge, and without ``keep_dst`` also destinations without one. The others keep their
    order.

    Example:
        >>> g = Graph([1, 2, 3, 3], [0, 0, 0, 1])
        >>> small = compact(individual_sample(g, -1), keep_dst=False)
        >>> small.src_ids.tolist(), small.dst_ids.tolist(), [ends.tolist() for ends in small.graph.edges()]
        ([1, 2, 3], [0, 1], [[0, 1, 2, 2], [0, 0, 0, 1]])
    """
    csc = drawn.graph.csc
    used = csc.column_counts() > 0
    number = torch.cumsum(used, 0) - 1
    rows = torch.arange(csc.num_rows) if keep_dst else (csc.degrees() > 0).nonzero().reshape(-1)
    indptr = torch.cat([csc.indptr[:1], csc.indptr[1:][rows]])
    indices = number[csc.indices.long()].to(csc.indices.dtype)
    made = Adjacency(indptr, indices, None, int(used.sum()))
    graph = Graph.from_adjacency(made, bipartite=True)
    return Drawn(graph, drawn.e_id, drawn.edge_norm, drawn.src_ids[used], drawn.dst_ids[rows])


def draw_nodes(
    ids: torch.Tensor, weight: torch.Tensor | None, k: int, replace: bool, key: tuple[int, int, int], hop: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """``k`` of the nodes ``ids``: their places, ascending, each once, and float64 factors of unbiased sums.

    Shape: ids (n,) int64, weight (n,) >= 0 or None -> (m,), (m,) with m <= k.
    """
    ids, n = ids.contiguous(), ids.numel()
    given = None if weight is None else weight.double().contiguous()
    room = max(n, k)
    places, factors, count = empty((room,), torch.int64), empty((room,), torch.float64), ctypes.c_int64()
    drawn = (places.data_ptr(), factors.data_ptr(), ctypes.byref(count))
    _draw_nodes(n, ids.data_ptr(), pointer(given), k, replace, *key, hop, *drawn)
    return places[: count.value], factors[: count.value]


def _drawn(graph: Graph, indptr: torch.Tensor, positions: torch.Tensor, norm: torch.Tensor) -> Drawn:
    """The entries at ``positions`` of the graph's structure."""
    csc = graph.csc
    ids = positions if csc.edge_ids is None else csc.edge_ids[positions].long()
    made = Graph.from_adjacency(Adjacency(indptr, csc.indices[positions], None, csc.num_cols), bipartite=True)
    return Drawn(made, ids, norm, graph.srcs(), graph.dsts())


def _check_k(who: str, k: Any, replace: bool) -> None:
    """Raises: ConfigError."""
    if not isinstance(k, int) or isinstance(k, bool) or not -1 <= k < 2**31:
        raise ConfigError(f"{who}: expected k >= 0, or -1 for all, got {k!r}")
    if replace and k == -1:
        raise ConfigError(f"{who}: expected k >= 0 when drawing with replacement, got -1")
