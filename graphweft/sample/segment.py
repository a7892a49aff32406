"""Sampling by relation and by time: every segment of a node's in-edges draws for itself.

Comes in: seeds, on a typed graph with fan-outs per relation, with times where edges have them. Goes out: a
:class:`Sample`. Called by the loaders, from several threads at once if it likes.

Edges of a typed graph are numbered relation after relation and lie in each row in that order, so a relation is a
stretch of the row. With times, rows are put in order of (relation, time) once; what a seed may see of a row is then a
stretch that two binary searches find.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graphweft._checks import checksum
from graphweft._errors import ConfigError, GraphError, IndexRangeError, ShapeError
from graphweft._memory import empty
from graphweft._native import declare, pointer
from graphweft.graph.block import Block, Runs
from graphweft.graph.derived import derived
from graphweft.graph.graph import Graph
from graphweft.graph.ids import Ids
from graphweft.graph.select import as_selection
from graphweft.sample.drawn_buffers import DrawnBuffers
from graphweft.sample.sampler import Sample, ShownBySettings, check_fanouts
from graphweft.sample.times import as_kind_of, as_times, flat_times, keys_of, window_start
from graphweft.sample.weighted_segments import Asked, WeightedSegments
from graphweft.sample.weights import by_position, flat_weights, weights_identity

_P = ctypes.c_void_p


_order = declare("gw_order_by_time")
_new = declare("gw_segment_sampler_new")
_free = declare("gw_segment_sampler_free", recorded=False)
_begin = declare("gw_segment_begin")
_finish = declare("gw_segment_finish")
_count_runs = declare("gw_relation_runs_count")
_write_runs = declare("gw_relation_runs")

STRATEGIES = ("uniform", "recent")
_DENSE_MOST = 1 << 24  # nodes: up to here numbers lie in an array over all of them, beyond in a table of a batch's size


class LeftOut(NamedTuple):
    """Edges that a batch does without: ``src[i] -> dst[i]`` of relation ``relation[i]``, in seed ``tree[i]``'s tree.

    Without trees ``tree`` is 0 throughout, and edges into seeds alone are sure to be drawn by their seeds alone, so
    destinations must be seeds. With times an edge is left out only if it is not earlier than the seed.
    """

    tree: Tensor
    relation: Tensor
    src: Tensor
    dst: Tensor


class SegmentSampler(ShownBySettings):
    """Draws in-edges hop by hop, relation by relation, never later than the seed's time.

    With ``time``, every seed has a tree of its own. All edges of the tree, at any hop, have times in [seed's time -
    window, seed's time]. A node that two seeds reach occurs twice in the batch, and seeds may repeat. Without ``time``,
    seeds share nodes as in :class:`NeighborSampler`.

    Draws are keyed by (seed, epoch, stage, relation, node, hop), and for trees also by the seed's key.

    Args:
        graph: A square graph; typed or not.
        fanouts: Most in-edges of a node in each hop, from the seeds outwards; -1: all. One list for every relation, or
            a dict from relation to a list. 0 leaves a relation out of a hop. Relations that are not in the dict are
            left out of every hop.
        replace: Whether to draw with replacement; -1 is then not allowed.
        time: (E,) times of the edges by edge id, integers or floats; for a typed graph also a dict by relation.
        window: Largest difference between the seed's time and an edge's time; None: no limit.
        strategy: "uniform" draws; "recent" takes the latest edges, and of equal times those with larger ids.
        disjoint: Whether every seed has a tree of its own also without times. Implied by ``time``.
        weight: (E,) weights >= 0 of the edges, or a mask, by edge id; for a typed graph also a dict by relation, where
            other relations are drawn uniformly. Edges of weight 0 are never drawn. Weighted draws are slower: their
            time grows with the in-degrees of all nodes that draw.

    Raises: ConfigError, DtypeError, GraphError, ShapeError.

    Example:
        >>> g = Graph([1, 2, 3, 3], [0, 0, 0, 1])
        >>> sampler = SegmentSampler(g, [2, 2], time=[1, 2, 3, 9], strategy="recent")
        >>> sample = sampler.sample([0, 0], time=[2, 3])
        >>> sample.n_id.tolist(), sample.owner.tolist(), sample.e_id.tolist()
        ([0, 0, 1, 2, 2, 3], [0, 1, 0, 0, 1, 1], [1, 0, 2, 1])
    """

    def __init__(
        self,
        graph: Graph,
        fanouts: Any,
        replace: bool = False,
        *,
        time: Any = None,
        window: float | None = None,
        strategy: str = "uniform",
        disjoint: bool = False,
        weight: Any = None,
    ) -> None:
        who = type(self).__name__
        if not isinstance(graph, Graph) or not graph.is_square:
            raise GraphError(f"{who}: expected a graph over one set of nodes, got {graph!r}")
        if strategy not in STRATEGIES:
            raise ConfigError(f"{who}: expected strategy as one of {', '.join(STRATEGIES)}, got {strategy!r}")
        if time is None and (window is not None or strategy != "uniform"):
            raise ConfigError(f"{who}: expected time, one per edge, for a window or strategy {strategy!r}, got None")
        self.graph, self.replace, self.strategy = graph, bool(replace), strategy
        self.disjoint = bool(disjoint) or time is not None
        self.fanouts = relation_fanouts(who, graph, fanouts)
        if self.replace and (strategy == "recent" or any(-1 in hop for hop in self.fanouts)):
            raise ConfigError(f"{who}: expected fanouts >= 0 and strategy 'uniform' when drawing with replacement")
        self._bounds = torch.tensor(graph.layout.edge_offsets if graph.relations else (0, 0))
        time = flat_times(who, graph, time)
        self._time = None if time is None else as_times(who, "time", time, graph.num_edges, "edge")
        self._times_checksum = checksum(self._time)
        self.window = None if self._time is None else _as_window(who, window, self._time)
        self._places, self._sorted = self._in_order()
        self._widths = torch.tensor(self.fanouts, dtype=torch.int64).reshape(len(self.fanouts), -1)
        self._idle: list[_Native] = []
        self._weight = None if weight is None else by_position(who, graph.csc, flat_weights(who, graph, weight))
        self._by_weight = None if self._weight is None else self._weighted(self._weight)

    @property
    def is_weighted(self) -> bool:
        """Whether draws follow weights."""
        return self._weight is not None

    def _weighted(self, weight: Tensor) -> WeightedSegments:
        times = None if self._time is None else keys_of(self._time)
        how = (self.replace, self.strategy == "recent", self.disjoint)
        bounds = self._bounds if self.graph.relations else torch.tensor([0, self.graph.num_edges])
        return WeightedSegments(self.graph, self.fanouts, weight, bounds, times, *how)

    def identity(self) -> dict[str, Any]:
        """Settings that decide the draws, in addition to graph and random keys."""
        return {
            "fanouts": [list(hop) for hop in self.fanouts],
            "replace": self.replace,
            "strategy": self.strategy,
            "window": self.window,
            "disjoint": self.disjoint,
            "times_checksum": self._times_checksum,
            **({} if self._weight is None else weights_identity(self._weight)),
        }

    def seed_times(self, time: Any, count: int) -> Tensor | None:
        """Checks the times of ``count`` seeds and converts them to the dtype of the edges' times.

        Raises: ConfigError for missing times, or for times of seeds without times of edges; DtypeError, ShapeError.
        """
        who = type(self).__name__
        if self._time is None:
            if time is not None:
                raise ConfigError(f"{who}: times of seeds cannot be used, since the edges have no times")
            return None
        if time is None:
            raise ConfigError(f"{who}: expected times of the seeds, one per seed, where edges have times, got None")
        return as_kind_of(who, as_times(who, "time of seeds", time, count, "seed"), self._time)

    def sample(
        self,
        seeds: Ids,
        *,
        time: Any = None,
        keys: Tensor | None = None,
        seed: int = 0,
        epoch: int = 0,
        stage: int = 0,
        exclude: LeftOut | None = None,
    ) -> Sample:
        """The batch of ``seeds``: ids, a mask or a slice. Without trees they must be distinct.

        ``time``: times of the seeds, if edges have times. ``keys``: int64 keys of the draws of each seed's tree; None:
            its position.

        Raises: IndexRangeError for an id that is no node; ConfigError for a repeated id or missing times.
        """
        ids = as_selection("sample", "seed", seeds, self.graph.num_nodes).contiguous()
        times = self.seed_times(time, ids.numel())
        keys = torch.arange(ids.numel()) if keys is None else keys.contiguous()
        if keys.numel() != ids.numel():
            raise ShapeError(f"sample: expected one key per seed, {ids.numel()}, got {keys.numel()}")
        if self._by_weight is not None:
            low = None if times is None else window_start(times, self.window)
            high = None if times is None else keys_of(times)
            left = None if exclude is None else tuple(part.long() for part in exclude)
            return self._by_weight.draw(Asked(ids, keys, (seed, epoch, stage), low, high, left))  # type: ignore[arg-type]
        try:
            native = self._idle.pop()
        except IndexError:
            native = _Native(self)
        try:
            return native.draw(self, ids, times, keys, (seed, epoch, stage), exclude)
        except IndexRangeError as failure:
            raise IndexRangeError(f"sample: {failure}") from None
        except ShapeError as failure:
            raise ConfigError(f"sample: {failure}") from None
        finally:
            self._idle.append(native)

    def _in_order(self) -> tuple[Tensor | None, Tensor | None]:
        """Rows in order of relation and time: places in the row, and times."""
        csc = self.graph.csc
        if self._time is None:
            return None, None
        keys = keys_of(self._time)
        places, ordered = empty((csc.num_edges,), torch.int32), empty((csc.num_edges,), torch.int64)
        bounds = (self._bounds.numel() - 1, self._bounds.data_ptr())
        _order(ctypes.byref(csc.native), *bounds, keys.data_ptr(), places.data_ptr(), ordered.data_ptr())
        return places, ordered

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_idle": []}


class _Native:
    """Working memory of one thread that samples."""

    def __init__(self, plan: SegmentSampler) -> None:
        self._handle = _P()
        runs = derived(plan.graph, _relation_runs) if plan._bounds.numel() > 2 else (None, None)
        self._kept = (plan.graph, plan._bounds, plan._places, plan._sorted, runs)
        bounds = (plan._bounds.numel() - 1, plan._bounds.data_ptr())
        dense = plan.graph.num_nodes <= _DENSE_MOST
        order = (pointer(plan._places), pointer(plan._sorted))
        _new(
            ctypes.byref(plan.graph.csc.native),
            *bounds,
            *order,
            *map(pointer, runs),
            plan.disjoint,
            dense,
            ctypes.byref(self._handle),
        )

    def __del__(self) -> None:
        _free(self._handle)

    def draw(
        self,
        plan: SegmentSampler,
        seeds: Tensor,
        times: Tensor | None,
        keys: Tensor,
        key: tuple[int, int, int],
        exclude: LeftOut | None,
    ) -> Sample:
        """Draws, makes room, writes."""
        hops = len(plan.fanouts)
        rows, edges, totals = (ctypes.c_int64 * hops)(), (ctypes.c_int64 * hops)(), (ctypes.c_int64 * 3)()
        low = None if times is None else window_start(times, plan.window)
        high = None if times is None else keys_of(times)
        left = () if exclude is None else tuple(part.long().contiguous() for part in exclude)
        asked = (seeds.numel(), seeds.data_ptr(), keys.data_ptr() if plan.disjoint else None, pointer(low))
        shape = (hops, plan._widths.data_ptr(), plan.replace, plan.strategy == "recent")
        without = (left[0].numel(), *(part.data_ptr() for part in left)) if left else (0, None, None, None, None)
        _begin(self._handle, *asked, pointer(high), *shape, *key, *without, rows, edges, totals)
        whole = DrawnBuffers(rows[hops - 1], totals[1])
        blocks = [None if _is_whole(plan.fanouts, h) else DrawnBuffers(rows[h], edges[h]) for h in range(hops)]
        n_id = empty((totals[0],), torch.int64)
        owner = empty((totals[0],), torch.int64) if plan.disjoint else None
        runs = _room_for_runs(plan, rows[hops - 1], totals[2])
        tables = [(_P * hops)(*(None if room is None else room.pointers[i] for room in blocks)) for i in range(3)]
        kinds = (None, None) if runs is None else (runs.begin.data_ptr(), runs.runs.data_ptr())
        _finish(self._handle, n_id.data_ptr(), pointer(owner), *whole.pointers, *tables, *kinds)
        ends = [*rows, totals[0]]
        made = []
        for hop, room in enumerate(blocks):
            part = whole.head(ends[hop]) if room is None else room
            of_hop = runs if room is None or runs is None else runs._replace(limits=plan._widths[hop])
            made.append(Block.of(part.edges(plan.graph, n_id, runs=of_hop), ends[hop + 1]))
        sample = Sample(n_id, ends[0], tuple(reversed(made)), (whole.edges(plan.graph, n_id, runs=runs),))
        sample.owner = owner
        return sample


def _relation_runs(graph: Graph) -> tuple[Tensor, Tensor]:
    """Where every row has how many edges of which relation: first run of every row; relation and number of each."""
    bounds = torch.tensor(graph.layout.edge_offsets)
    begin = empty((graph.num_nodes + 1,), torch.int64)
    given = (ctypes.byref(graph.csc.native), bounds.numel() - 1, bounds.data_ptr(), begin.data_ptr())
    _count_runs(*given)
    runs = empty((int(begin[-1]), 2), torch.int32)
    _write_runs(*given, runs.data_ptr())
    return begin, runs


def _room_for_runs(plan: SegmentSampler, rows: int, runs: int) -> Runs | None:
    """Memory for the runs of a batch; None for a graph of one relation."""
    if plan._bounds.numel() <= 2:
        return None
    return Runs(empty((rows + 1,), torch.int64), empty((runs, 2), torch.int32))


def _is_whole(fanouts: tuple[tuple[int, ...], ...], hop: int) -> bool:
    """Whether the block of ``hop`` holds every edge that its rows drew: no hop asks for more of any relation."""
    most = [math.inf if -1 in of else max(of) for of in zip(*fanouts, strict=True)]
    return all(mine == -1 or mine == all_of for mine, all_of in zip(fanouts[hop], most, strict=True))


def relation_fanouts(who: str, graph: Graph, fanouts: Any) -> tuple[tuple[int, ...], ...]:
    """Fan-outs by hop, then by relation.

    Raises: ConfigError for bad numbers or unequal lengths; GraphError for an unknown relation.

    Example:
        >>> g = Graph.hetero({("a", "to", "b"): ([0], [0]), ("b", "to", "a"): ([0], [0])})
        >>> relation_fanouts("Loader", g, {("a", "to", "b"): [3, 2], ("b", "to", "a"): [-1, 0]})
        ((3, -1), (2, 0))
    """
    relations = graph.relations
    if not isinstance(fanouts, Mapping):
        return tuple((fanout,) * max(len(relations), 1) for fanout in check_fanouts(who, fanouts))
    for relation in fanouts:
        graph.layout.edge_range(relation)
    if relations and not fanouts:
        raise ConfigError(f"{who}: expected fanouts for one relation at least, got none")
    given = {}
    for relation, of_hops in fanouts.items():
        name = f"{who} {'-'.join(relation)}"
        if isinstance(of_hops, list | tuple) and of_hops:  # 0 leaves the relation out of a hop
            check_fanouts(name, [k if isinstance(k, bool) or k != 0 else -1 for k in of_hops])
        else:
            check_fanouts(name, of_hops)
        given[relation] = tuple(int(k) for k in of_hops)
    if len({len(column) for column in given.values()}) > 1:
        lengths = ", ".join(f"{len(given[r])} for {'-'.join(r)}" for r in relations if r in given)
        raise ConfigError(f"{who}: expected as many fanouts for every relation, got {lengths}")
    none = (0,) * max(map(len, given.values()), default=0)
    columns = [given.get(relation, none) for relation in relations]
    if not columns:
        raise ConfigError(f"{who}: expected a graph with relations for fanouts by relation, got none")
    return tuple(zip(*columns, strict=True))


def _as_window(who: str, window: Any, times: Tensor) -> float | None:
    if window is None:
        return None
    number = isinstance(window, int | float) and not isinstance(window, bool)
    if not number or not (math.isfinite(window) and window >= 0):
        raise ConfigError(f"{who}: expected window as a finite number >= 0, got {window!r}")
    if not times.is_floating_point() and (window != int(window) or window >= 2**63):
        raise ConfigError(f"{who}: expected window as an integer, as the times are, got {window!r}")
    return window if times.is_floating_point() else int(window)
