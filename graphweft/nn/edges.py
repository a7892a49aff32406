"""Weights and features of edges, brought to the edges that a layer reads.

Comes in: tensors with one row per edge of the whole graph, and the graph or sampled block of a call. Goes out: that
graph with the self-loops that the layer wants, and its edges' rows as fields of the program. Called by the modules of
this room; the trainer makes one :class:`EdgeInputs` for a whole run, so that what follows from it is computed once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from graphweft._errors import DtypeError, ShapeError
from graphweft.graph import edit
from graphweft.graph.block import Block, insert_last
from graphweft.graph.derived import derived
from graphweft.graph.graph import Graph
from graphweft.ir.residency import Residency
from graphweft.runtime.compile import Field
from graphweft.runtime.constants import Watch

WEIGHT, ATTR = "edge:weight", "edge:attr"  # names of fields; no parameter can be called so
LOOP, DEGREE = "edge:loop", "edge:degree"
SCALE, OWN_SCALE = "edge:scale", "edge:own scale"  # of the rows of sources and of destinations

Carried = tuple[Graph, dict[str, Field]]


class EdgeInputs:
    """Weights and features of a graph's edges.

    A model takes one in the place of ``edge_weight``. What follows from the tensors alone, such as weighted degrees, is
    computed in every call, or, with ``fixed``, once: the tensors must not change then.

    Shape: weight (E,), attr (E, K), rows in the order of the edges given to the graph's constructor.

    Args:
        weight: Weights, or None.
        attr: Features, or None.
        fixed: The tensors never change.
    """

    def __init__(self, weight: Tensor | None = None, attr: Tensor | None = None, fixed: bool = False) -> None:
        self.weight, self.attr, self.fixed = weight, attr, fixed
        self._kept: dict[tuple[str, int], tuple[Graph, Carried]] = {}  # by what, and the graph, which is held here
        self._columns: Tensor | None = None
        self._normaliser: tuple[Tensor, Tensor] | None = None
        self._watches = [Watch(rows) for rows in (weight, attr) if rows is not None and fixed]
        self._seen = self.versions()

    def versions(self) -> tuple[int, ...]:
        """Numbers that change with the content of fixed tensors, once :meth:`look` was called."""
        return tuple(watch.item._version for watch in self._watches)

    def look(self) -> None:
        """Lets go of what was computed from fixed tensors if somebody changed them nonetheless."""
        for watch in self._watches:
            watch.look()
        if self._seen != self.versions():
            self._seen = self.versions()
            self._kept, self._columns, self._normaliser = {}, None, None

    def check(self, who: str, graph: Graph, dtype: torch.dtype) -> None:
        """The tensors have a row for every edge of the whole graph and the dtype of the parameters.

        Raises: ShapeError, DtypeError.
        """
        count = graph.source.num_edges if isinstance(graph, Block) else graph.num_edges
        for name, rows, dim, kind in (("edge_weight", self.weight, 1, "number"), ("edge_attr", self.attr, 2, "row")):
            if rows is None:
                continue
            if not isinstance(rows, Tensor):
                raise DtypeError(f"{who} {name}: expected a tensor, got {type(rows).__name__}")
            if rows.dim() != dim or rows.shape[0] != count:
                whole = " of the whole graph" if isinstance(graph, Block) else ""
                shape = f"({count},)" if dim == 1 else f"({count}, columns)"
                raise ShapeError(
                    f"{who} {name}: expected shape {shape}, one {kind} per edge{whole}, got {tuple(rows.shape)}"
                )
            if rows.dtype != dtype:
                remedy = "double" if dtype == torch.float64 else "float"
                raise DtypeError(
                    f"{who} {name}: expected {dtype} as the parameters, got {rows.dtype}; use {name}.{remedy}()"
                )

    def columns(self) -> Tensor:
        """(E, columns): the weight as a column, then the features."""
        if self._columns is not None:
            return self._columns
        parts = [] if self.weight is None else [self.weight[:, None]]
        made = torch.cat([*parts, *([] if self.attr is None else [self.attr])], dim=1)
        self._columns = made if self.fixed else None
        return made

    def normalised_by(self, degree: Tensor, loop: Tensor) -> None:
        """Blocks of a graph that is a piece of a larger one have the weighted degrees of the whole.

        Shape: degree and loop (num_nodes,): weights of all in-edges with that of the own row, and that alone.
        """
        self._normaliser = degree, loop

    def as_given(self, graph: Graph) -> Carried:
        """The graph as it is, with the weights of its edges."""
        weight = self.weight
        assert weight is not None  # checked by the caller
        return self._once("given", graph, lambda: (graph, {WEIGHT: (_of_edges(graph, weight), Residency.EDGE)}))

    def features(self, graph: Graph) -> Carried:
        """The graph as it is, with :meth:`columns` of its edges."""
        return self._once(
            "features", graph, lambda: (graph, {ATTR: (_of_edges(graph, self.columns()), Residency.EDGE)})
        )

    def _once(self, what: str, graph: Graph, make: Callable[[], Carried]) -> Carried:
        """What ``make`` makes, once a graph where nothing changes: what is computed from it is kept as well then."""
        if not self.fixed or (isinstance(graph, Block) and not graph.is_whole):
            return make()
        key = what, id(graph)
        if key not in self._kept:
            self._kept[key] = graph, make()
        return self._kept[key][1]

    def without_loops(self, graph: Graph, fill: float = 1.0) -> Carried:
        """The graph less its self-loops, the weights of the other edges, and what a node's own row weighs.

        That is the weight of the node's self-loop, the last one given, or ``fill``. On a block, where it is 1, also the
        weighted degrees of its sources in the whole graph, their own weight among them.
        """
        return self._once(f"plain {fill}", graph, lambda: self._without_loops(graph, fill))

    def _without_loops(self, graph: Graph, fill: float) -> Carried:
        """As :meth:`without_loops`, computed now."""
        assert self.weight is not None  # checked by the caller
        if isinstance(graph, Block):
            block = graph.without_self_loops()
            degree, loop = self._degrees(block.source, block.src_ids)
            fields = {
                WEIGHT: (self.weight[block.e_id], Residency.EDGE),
                LOOP: (loop, Residency.SRC),
                DEGREE: (degree, Residency.SRC),
            }
            return block, fields
        if not graph.has_self_loops:
            return graph, {WEIGHT: (self.weight, Residency.EDGE)}
        split = derived(graph, _split)
        own = _or_fill(self.weight, split.loop, fill)
        fields = {WEIGHT: (self.weight[split.kept], Residency.EDGE), LOOP: (own, Residency.SRC)}
        return graph.without_self_loops(), fields

    def with_one_loop(self, graph: Graph, fill: float | str) -> Carried:
        """The graph with one self-loop at every node, and features of its edges.

        Those of a self-loop are ``fill``, or with "mean" the mean over the other edges into the node, 0 without any.
        """
        return self._once(f"looped {fill}", graph, lambda: self._with_one_loop(graph, fill))

    def _with_one_loop(self, graph: Graph, fill: float | str) -> Carried:
        """As :meth:`with_one_loop`, computed now."""
        rows = self.columns()
        if isinstance(graph, Block):
            block = graph.without_self_loops()
            rows = rows[block.e_id]
            own = _filled(block, rows, fill)
            return graph.with_one_loop(), {ATTR: (insert_last(block.csc, rows, own), Residency.EDGE)}
        plain = graph.without_self_loops()
        rows = rows[derived(graph, _split).kept] if graph.has_self_loops else rows
        return looped(graph), {ATTR: (torch.cat([rows, _filled(plain, rows, fill)]), Residency.EDGE)}

    def of_subgraph(self, e_id: Tensor) -> EdgeInputs:
        """Those of the edges ``e_id``."""
        weight, attr = (None if rows is None else rows[e_id] for rows in (self.weight, self.attr))
        return EdgeInputs(weight, attr)

    def _degrees(self, whole: Graph, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Weighted in-degrees of ``nodes``, and the weight of their own row, which is part of the degree."""
        assert self.weight is not None  # checked by the caller
        if not self.fixed:
            return weighted_degrees(whole, nodes, self.weight)
        if self._normaliser is None:
            self._normaliser = weighted_degrees(whole, torch.arange(whole.num_dst), self.weight)
        degree, loop = self._normaliser
        return degree[nodes], loop[nodes]


@dataclass(frozen=True)
class _Split:
    """Ids of the edges that are no self-loops, in order; and of every node's last self-loop, -1 without."""

    kept: Tensor
    loop: Tensor


def _split(graph: Graph) -> _Split:
    plain = edit.no_loops_mask(graph.csc).bool()
    loops = (~plain).nonzero().reshape(-1)
    return _Split(plain.nonzero().reshape(-1), _last(graph.edges()[1][loops], loops, graph.num_dst))


def looped(graph: Graph) -> Graph:
    """The graph with exactly one self-loop at every node, numbered after the other edges; made once."""
    return derived(graph, _looped)


def _looped(graph: Graph) -> Graph:
    return graph.without_self_loops().add_self_loops()


def _last(rows: Tensor, ids: Tensor, count: int) -> Tensor:
    """The largest of ``ids`` in each of ``count`` rows, -1 without any."""
    return torch.full((count,), -1, dtype=torch.int64).scatter_reduce(0, rows, ids, "amax")


def _or_fill(weight: Tensor, places: Tensor, fill: float) -> Tensor:
    """``weight[places]``, and ``fill`` where a place is -1."""
    if weight.numel() == 0:
        return weight.new_full(places.shape, fill)
    return torch.where(places >= 0, weight[places.clamp(min=0)], weight.new_full((), fill))


def _of_edges(graph: Graph, rows: Tensor) -> Tensor:
    return rows[graph.e_id] if isinstance(graph, Block) else rows


def weighted_degrees(whole: Graph, nodes: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Of ``nodes``: sums of the weights of their in-edges with what their own row weighs, and that alone."""
    taken, edges = whole.csc.take_rows_with_ids(nodes)
    edges, columns = edges.long(), taken.indices.long()
    rows = torch.repeat_interleave(torch.arange(nodes.numel()), taken.degrees())
    own = columns == nodes[rows]
    loop = _or_fill(weight, _last(rows[own], edges[own], nodes.numel()), 1.0)
    others = weight[edges].masked_fill(own, 0.0)
    return weight.new_zeros(nodes.numel()).index_add(0, rows, others) + loop, loop


def _filled(graph: Graph, rows: Tensor, fill: float | str) -> Tensor:
    """(num_dst, columns) features of self-loops."""
    shape = (graph.num_dst, rows.shape[1])
    if fill != "mean":
        return rows.new_full(shape, float(fill))
    sums = rows.new_zeros(shape).index_add(0, graph.edges()[1], rows)
    return sums / graph.in_degrees().clamp(min=1)[:, None].to(rows.dtype)
