"""Negative sampling: pairs of nodes that are no edge.

Comes in: a graph that holds all known edges. Goes out: pairs drawn uniformly and exactly, in native code. Called by the
link loader and by evaluation. A draw that hits an edge is rejected by a search in the sorted in-edges of its
destination; where that does not end soon, what is left is counted and drawn from by rank, so that nearly complete
graphs work and complete ones fail with one line.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from graphweft._errors import ConfigError, GraphError, IndexRangeError, ShapeError
from graphweft._native import declare
from graphweft.graph import edit
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.graph import Graph
from graphweft.graph.ids import Ids, as_ids, require_ids
from graphweft.graph.typed import Relation
from graphweft.sample.negative_draws import WeightedPairs

_U64 = ctypes.c_uint64

_KEY = (_U64, _U64, _U64)

_pairs = declare("gw_negative_pairs")
_tails = declare("gw_negative_tails")
_mask = declare("gw_negative_mask")
_has = declare("gw_has_edges")


class NegativeSampler:
    """Draws pairs (u, v) without an edge u -> v. All such pairs are equally likely, and draws are independent.

    With ``weight``, chances are proportional to the weights of the nodes. With ``distinct``, no pair occurs twice. A
    draw is keyed by (seed, epoch, stage, its key) and does not depend on the number of threads or the order.

    Args:
        graph: A square graph of all known edges, including edges that are held out for evaluation.
        relation: For a typed graph, draws pairs from its source type to its destination type that are no edge of this
            relation. Ids are flat.
        loops: Whether a node and itself are a pair too.
        weight: (destinations,) weights >= 0 of the nodes as destinations, such as ``graph.in_degrees() ** 0.75``. Or a
            pair of weights of sources and destinations, where None means uniform. For ``relation``, weights of the
            nodes of its types.
        distinct: Whether all pairs of one call of :meth:`pairs` differ, and the destinations of each source in
            :meth:`tails`. A draw then depends on the other keys of the call.

    Raises: GraphError for a graph that is not square, or an unknown relation; ConfigError, ShapeError for weights.

    Example:
        >>> sampler = NegativeSampler(Graph([0, 0, 1], [1, 2, 0], 3))
        >>> sorted(set(zip(*sampler.pairs(torch.arange(50)).tolist())))
        [(1, 2), (2, 0), (2, 1)]
        >>> sampler.tails([1, 2]).shape, sampler.mask([0, 1], [1, 2]).tolist()
        (torch.Size([2, 1]), [[False, False], [False, True]])
    """

    def __init__(
        self,
        graph: Graph,
        relation: Relation | None = None,
        *,
        loops: bool = False,
        weight: Any = None,
        distinct: bool = False,
    ) -> None:
        if not isinstance(graph, Graph) or not graph.is_square:
            raise GraphError(f"NegativeSampler: expected a graph over one set of nodes, got {graph!r}")
        nodes, self._loops = graph.num_nodes, bool(loops)
        limits = (0, nodes, 0, nodes)
        if relation is not None:
            layout = graph.layout
            edges, src, dst = (
                layout.edge_range(relation),
                layout.node_range(relation[0]),
                layout.node_range(relation[2]),
            )
            limits = (src.start, src.stop, dst.start, dst.stop)
            graph = graph.edge_subgraph(slice(edges.start, edges.stop))
        self._draws = WeightedPairs(limits, self._loops, weight, distinct) if distinct or weight is not None else None
        self._limits = (ctypes.c_int64 * 4)(*limits)
        self._sorted = graph.csc.with_sorted_columns()
        self._native = ctypes.byref(self._sorted.native)

    def with_edges(self, src: Tensor, dst: Tensor) -> NegativeSampler:
        """A sampler with further known edges."""
        more = NegativeSampler.__new__(NegativeSampler)
        more._loops, more._limits, more._draws = self._loops, self._limits, self._draws
        nodes = self._sorted.num_rows
        further = Adjacency.from_coo(dst, src, nodes, nodes)
        more._sorted = edit.concat(self._sorted, further).with_sorted_columns()
        more._native = ctypes.byref(more._sorted.native)
        return more

    def identity(self) -> dict[str, Any]:
        """Settings that decide the draws, in addition to the edges; empty for uniform and independent draws."""
        return {} if self._draws is None else self._draws.identity()

    def __getstate__(self) -> dict[str, Any]:
        return {"loops": self._loops, "limits": list(self._limits), "sorted": self._sorted, "draws": self._draws}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._loops, self._sorted, self._draws = state["loops"], state["sorted"], state["draws"]
        self._limits = (ctypes.c_int64 * 4)(*state["limits"])
        self._native = ctypes.byref(self._sorted.native)

    def __repr__(self) -> str:
        told = "".join(f", {name}={value!r}" for name, value in self.identity().items() if "checksum" not in name)
        return f"NegativeSampler({self._sorted.num_rows:,} nodes, {self._sorted.num_edges:,} known edges{told})"

    def pairs(self, keys: Ids, per: int = 1, *, seed: int = 0, epoch: int = 0, stage: int = 0) -> Tensor:
        """Pairs, int64 (2, len(keys) * per): ``per`` pairs for every key >= 0, key by key, with sources in row 0.

        Raises: GraphError if every pair is an edge.
        """
        keys, per = _keys(keys), _per(per)
        if self._draws is not None:
            dst, src = self._sorted.to_coo()
            return self._draws.pairs(self.has_edges, (src.long(), dst.long()), keys, per, (seed, epoch, stage))
        out = torch.empty((2, keys.numel() * per), dtype=torch.int64)
        space = (self._native, self._limits, self._loops)
        self._call(_pairs, *space, keys.numel(), keys.data_ptr(), per, seed, epoch, stage, *_rows(out))
        return out

    def tails(
        self, src: Ids, per: int = 1, *, keys: Ids | None = None, seed: int = 0, epoch: int = 0, stage: int = 0
    ) -> Tensor:
        """Destinations without an edge from ``src[i]``, int64 (len(src), per). ``keys``: None for 0, 1, ...

        Raises: GraphError for a source that has an edge to every node; IndexRangeError.
        """
        src, per = as_ids("NegativeSampler", "src", src).long(), _per(per)
        keys = torch.arange(src.numel()) if keys is None else _keys(keys)
        if keys.numel() != src.numel():
            raise ShapeError(f"NegativeSampler: expected one key per source, {src.numel()}, got {keys.numel()}")
        if self._draws is not None:
            require_ids("NegativeSampler", "source", src, self._sorted.num_rows)
            return self._draws.tails(self.has_edges, src, keys, per, (seed, epoch, stage))
        out = torch.empty((src.numel(), per), dtype=torch.int64)
        space = (self._native, self._limits, self._loops)
        ends = (src.data_ptr(), out.data_ptr())
        self._call(_tails, *space, src.numel(), keys.data_ptr(), per, seed, epoch, stage, *ends)
        return out

    def mask(self, src: Ids, dst: Ids) -> Tensor:
        """Mask of in-batch negatives, bool (len(src), len(dst)): whether there is no edge from ``src[i]`` to
        ``dst[j]``.

        Raises: IndexRangeError.
        """
        src, dst = (as_ids("NegativeSampler", name, ids).long() for name, ids in (("src", src), ("dst", dst)))
        out = torch.empty((src.numel(), dst.numel()), dtype=torch.uint8)
        ends = (src.numel(), src.data_ptr(), dst.numel(), dst.data_ptr())
        self._call(_mask, self._native, self._limits, self._loops, *ends, out.data_ptr())
        return out.bool()

    def has_edges(self, src: Ids, dst: Ids) -> Tensor:
        """Whether ``src[i] -> dst[i]`` is a known edge, bool (len(src),).

        Raises: IndexRangeError, ShapeError.
        """
        src, dst = (as_ids("NegativeSampler", name, ids).long() for name, ids in (("src", src), ("dst", dst)))
        if src.numel() != dst.numel():
            raise ShapeError(
                f"NegativeSampler: expected src and dst of one length, got {src.numel()} and {dst.numel()}"
            )
        out = torch.empty(src.numel(), dtype=torch.uint8)
        self._call(_has, self._native, src.numel(), src.data_ptr(), dst.data_ptr(), out.data_ptr())
        return out.bool()

    def _call(self, entry: Any, *args: Any) -> None:
        try:
            entry(*args)
        except IndexRangeError as failure:
            raise IndexRangeError(f"NegativeSampler: {failure}") from None
        except ShapeError as failure:
            raise GraphError(f"NegativeSampler: {failure}") from None


def _rows(pairs: Tensor) -> tuple[int, int]:
    return pairs[0].data_ptr(), pairs[1].data_ptr()


def _keys(keys: Any) -> Tensor:
    return as_ids("NegativeSampler", "keys", keys).long()


def _per(per: Any) -> int:
    if not isinstance(per, int) or isinstance(per, bool) or not 0 < per < 2**31:
        raise ConfigError(f"NegativeSampler: expected negatives per edge as an integer >= 1, got {per!r}")
    return per
