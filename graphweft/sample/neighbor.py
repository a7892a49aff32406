"""Neighbour sampling: every node of a hop draws some of its in-edges.

Comes in: seeds. Goes out: a :class:`Sample` with one block per hop. Called by the loader, from several threads at once
if it likes. Sources: Hamilton et al., NeurIPS 2017 (sampling); GraphTensor, section IV (drawing apart from numbering).
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from graphweft._errors import ConfigError, GraphError, IndexRangeError, ShapeError
from graphweft._memory import empty
from graphweft._native import declare
from graphweft._trace import Recorder, active, span
from graphweft.graph.block import Block, OpenBlock
from graphweft.graph.graph import Graph
from graphweft.graph.ids import Ids
from graphweft.graph.select import as_selection
from graphweft.sample.drawn_buffers import DrawnBuffers
from graphweft.sample.sampler import DENSE_MOST as _DENSE_MOST
from graphweft.sample.sampler import OpenSample, Sample, ShownBySettings, check_fanouts
from graphweft.sample.weights import by_position, weights_identity

_P = ctypes.c_void_p
Ends = tuple[torch.Tensor, torch.Tensor]  # sources and destinations of edges

_new = declare("gw_sampler_new")
_free = declare("gw_sampler_free", recorded=False)
_exclude = declare("gw_sampler_exclude")
_reach = declare("gw_sampler_reach")
_name = declare("gw_sampler_name")
_begin = declare("gw_sample_begin")
_times = declare("gw_sample_times")
_finish = declare("gw_sample_finish")


class NeighborSampler(ShownBySettings):
    """Draws in-edges hop by hop, uniformly or by weight.

    ``fanouts[0]`` applies to the seeds, ``fanouts[h]`` to the nodes that hop h reached. Without replacement, a node
    gets exactly min(in-degree, k) edges. With replacement it gets k, or none if it has no in-edge. -1 takes all. A node
    draws once per batch, when it is first reached. A later hop with a smaller fan-out uses the beginning of the same
    sample, which is uniform too. Edges of weight 0 are never drawn.

    The nodes of a batch are numbered hop by hop: the seeds in their order, then what each hop reaches for the first
    time, in ascending order of the ids. Tables are therefore read in ascending order of rows.

    Draws are keyed by (seed, epoch, stage, node, hop) and do not depend on the number of threads or the order of
    batches.

    Args:
        graph: A square graph.
        fanouts: Most in-edges of a node in each hop.
        replace: Whether to draw with replacement; -1 is then not allowed.
        weight: (E,) weights >= 0 by edge id.
        names: int64 (N,) ids that key the draws, such as the ids in a larger graph; None: the node numbers.

    Raises: ConfigError, GraphError, ShapeError.

    Example:
        >>> g = Graph([1, 2, 3, 3], [0, 0, 0, 1])
        >>> sample = NeighborSampler(g, [-1, 1]).sample([0])
        >>> sample.n_id.tolist(), sample.edge_index.tolist(), sample.e_id.tolist()
        ([0, 1, 2, 3], [[1, 2, 3, 3], [0, 0, 0, 1]], [0, 1, 2, 3])
    """

    def __init__(
        self,
        graph: Graph,
        fanouts: Any,
        replace: bool = False,
        weight: torch.Tensor | None = None,
        names: torch.Tensor | None = None,
    ) -> None:
        who = type(self).__name__
        if not isinstance(graph, Graph) or not graph.is_square:
            raise GraphError(f"{who}: expected a graph over one set of nodes, got {graph!r}")
        self.graph, self.fanouts, self.replace = graph, check_fanouts(who, fanouts), bool(replace)
        if self.replace and -1 in self.fanouts:
            raise ConfigError(f"{who}: expected fanouts >= 1 when drawing with replacement, got {self.fanouts}")
        self._weight = None if weight is None else by_position(who, graph.csc, weight)
        self._weights_identity = weights_identity(self._weight)
        self._names = None if names is None else names.contiguous()
        self.widths = (ctypes.c_int64 * len(self.fanouts))(*self.fanouts)
        self._idle: list[Native] = []
        _ = graph.csc  # made here, once, before threads ask for it

    @property
    def is_weighted(self) -> bool:
        """Whether draws follow weights."""
        return self._weight is not None

    def identity(self) -> dict[str, Any]:
        """Settings that decide the draws, in addition to graph and random keys."""
        return {"fanouts": list(self.fanouts), "replace": self.replace, **self._weights_identity}

    def sample(
        self,
        seeds: Ids,
        *,
        seed: int = 0,
        epoch: int = 0,
        stage: int = 0,
        exclude: Ends | None = None,
    ) -> Sample:
        """The batch of ``seeds``: distinct node ids, a mask or a slice.

        ``exclude``: int64 (src, dst). Edges src[i] -> dst[i] into seeds, and parallel ones, are treated as absent. A
            node draws once per batch, so edges into seeds are drawn only for the seeds.

        Raises: IndexRangeError for an id that is no node, ConfigError for one that comes twice.
        """
        drawn = self.draw_batch(seeds, (seed, epoch, stage), is_open=False, exclude=exclude)
        assert isinstance(drawn, Sample)
        return drawn

    def sample_open(self, seeds: Ids, *, seed: int = 0, epoch: int = 0, stage: int = 0) -> OpenSample:
        """The same draws with the last hop left open: its sources keep their ids in the whole graph.

        Numbering what the last hop reaches is most of a batch's preparation, and needless where a layer aggregates
        straight from a table over all nodes. Source: Joestar, section 5.3 (sample-gather-aggregation fusion).

        Raises: as :meth:`sample`.

        Example:
            >>> g = Graph([1, 2, 3, 3], [0, 0, 0, 1])
            >>> sample = NeighborSampler(g, [-1, 1]).sample_open([0])
            >>> sample.n_id.tolist(), sample.blocks[0].csc.indices.tolist()
            ([0, 1, 2, 3], [1, 3])
        """
        drawn = self.draw_batch(seeds, (seed, epoch, stage), is_open=True)
        assert isinstance(drawn, OpenSample)
        return drawn

    def draw_batch(
        self,
        seeds: Ids,
        key: tuple[int, int, int],
        is_open: bool,
        exclude: Ends | None = None,
        reached: Sequence[torch.Tensor] = (),
    ) -> Sample | OpenSample:
        """A batch. ``reached``: of a part of a larger one, ids that the larger one adds in all hops but the last two.

        Raises: as :meth:`sample`.
        """
        ids = as_selection("sample", "seed", seeds, self.graph.num_nodes).contiguous()
        native = self.borrow()
        try:
            with refusals(), span("draw batch", "sample", seeds=ids.numel()):
                native.exclude(exclude)
                native.reach(reached)
                return native.draw(self, ids, key, is_open)
        finally:
            self.give_back(native)

    def borrow(self) -> Native:
        """Working memory for one batch at a time; return it with :meth:`give_back`."""
        try:
            return self._idle.pop()
        except IndexError:
            return Native(self.graph, self._weight, self._names)

    def give_back(self, native: Native) -> None:
        """Returns working memory from :meth:`borrow`."""
        self._idle.append(native)

    def __getstate__(self) -> dict[str, Any]:
        own = {name: value for name, value in self.__dict__.items() if name not in ("widths", "_idle")}
        return own  # the rest points into this process

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.widths, self._idle = (ctypes.c_int64 * len(self.fanouts))(*self.fanouts), []


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """What the native sampler refuses, in the words of :meth:`NeighborSampler.sample`."""
    try:
        yield
    except IndexRangeError as failure:
        raise IndexRangeError(f"sample: {failure}") from None
    except ShapeError as failure:
        raise ConfigError(f"sample: {failure}") from None


class Native:
    """Working memory of one thread that samples."""

    def __init__(self, graph: Graph, weight: torch.Tensor | None, names: torch.Tensor | None) -> None:
        self.handle = _P()
        self._kept = (graph, graph.csc, weight, names)
        dense = graph.num_nodes <= _DENSE_MOST
        _new(graph.csc.native, None if weight is None else weight.data_ptr(), dense, ctypes.byref(self.handle))
        if names is not None:
            _name(self.handle, names.data_ptr())

    def __del__(self) -> None:
        _free(self.handle)

    def exclude(self, ends: Ends | None) -> None:
        """The next batch does without these edges into its seeds."""
        if ends is not None:
            src, dst = (side.contiguous() for side in ends)
            _exclude(self.handle, src.numel(), src.data_ptr(), dst.data_ptr())

    def reach(self, hops: Sequence[torch.Tensor]) -> None:
        """The next batch is a part of one that reaches these nodes in its hops."""
        if hops:
            nodes, counts = torch.cat(list(hops)), [ids.numel() for ids in hops]
            ends = (ctypes.c_int64 * len(hops))(*itertools.accumulate(counts))
            _reach(self.handle, len(hops), ends, nodes.data_ptr())

    def draw(
        self, plan: NeighborSampler, seeds: torch.Tensor, key: tuple[int, int, int], is_open: bool
    ) -> Sample | OpenSample:
        """Draws all hops but the last, makes room, draws the last."""
        hops = len(plan.fanouts)
        rows, edges, totals = (ctypes.c_int64 * hops)(), (ctypes.c_int64 * hops)(), (ctypes.c_int64 * 2)()
        asked = (seeds.numel(), seeds.data_ptr(), hops, plan.widths, plan.replace, *key)
        _begin(self.handle, *asked, rows, edges, totals)
        inner_rows = rows[hops - 2] if hops > 1 else 0
        inner = DrawnBuffers(inner_rows, totals[0])
        closed = hops - is_open
        blocks = [
            None if h + 1 < hops and is_widest(plan.fanouts, h) else DrawnBuffers(rows[h], edges[h])
            for h in range(closed)
        ]
        columns = empty((edges[hops - 1],), plan.graph.csc.indices.dtype) if is_open else None
        offsets = empty((rows[hops - 1] + 1,), torch.int64) if is_open else None
        n_id, count = empty((rows[hops - 1] if is_open else totals[1],), torch.int64), ctypes.c_int64()
        pointers: list[tuple[int | None, ...]] = [
            (None, None, None) if room is None else room.pointers for room in blocks
        ]
        if columns is not None and offsets is not None:
            pointers.append((offsets.data_ptr(), None, None))
        tables = [(_P * hops)(*(pointer[i] for pointer in pointers)) for i in range(3)]
        opened = None if columns is None else columns.data_ptr()
        _finish(self.handle, n_id.data_ptr(), *inner.pointers, *tables, opened, ctypes.byref(count))
        recorder = active()
        if recorder is not None and recorder.is_native:
            self._tell(recorder, hops)
        if columns is not None and offsets is not None:
            made = [OpenBlock.over(plan.graph, n_id, offsets, columns)]
            inner_blocks = blocks_over(plan.graph, n_id, inner, blocks, list(rows))
            return OpenSample(n_id, rows[0], (*made, *reversed(inner_blocks)))
        n_id = n_id[: count.value]
        return assemble(plan.graph, n_id, inner, blocks, [*rows, count.value])

    def _tell(self, recorder: Recorder, hops: int) -> None:
        """The hops of the last batch as spans."""
        times = (ctypes.c_int64 * (2 * hops))()
        _times(self.handle, hops, times)
        for hop in range(hops):
            recorder.add(f"hop {hop + 1}", "sample", 1e-9 * times[2 * hop], 1e-9 * times[2 * hop + 1], {})


def blocks_over(
    graph: Graph, n_id: torch.Tensor, inner: DrawnBuffers, rooms: list[DrawnBuffers | None], ends: list[int]
) -> list[Block]:
    """Blocks over the drawn edges; a hop with the widest fan-out is the beginning of the inner rows as it is."""
    parts = [inner.head(ends[hop]) if room is None else room for hop, room in enumerate(rooms)]
    return [Block.of(part.edges(graph, n_id), ends[hop + 1]) for hop, part in enumerate(parts)]


def assemble(
    graph: Graph, n_id: torch.Tensor, inner: DrawnBuffers, blocks: list[DrawnBuffers | None], ends: list[int]
) -> Sample:
    """The sample over the drawn edges."""
    made = blocks_over(graph, n_id, inner, blocks, ends)
    outer = blocks[-1]
    assert outer is not None  # the last hop always has its own room
    drawn = (inner.edges(graph, n_id), outer.edges(graph, n_id, inner.indptr.numel() - 1))
    return Sample(n_id, ends[0], tuple(reversed(made)), drawn)


def is_widest(fanouts: tuple[int, ...], hop: int) -> bool:
    """Whether the block of ``hop`` holds every edge that its rows drew."""
    return fanouts[hop] == -1 or (-1 not in fanouts and fanouts[hop] == max(fanouts))
