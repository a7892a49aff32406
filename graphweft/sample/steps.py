"""One batch of a neighbour sampler, drawn in steps that may overlap.

Comes in: a sampler, seeds and keys. Goes out: the same :class:`Sample` as from the sampler itself, bit for bit. Called
by the preparation of batches as subtasks. For every hop: ``draw`` each part (the sampling algorithm), ``number`` (the
only step that writes the table of numbers; it opens the next hop), ``settle`` (the arrays of the hop's block). Parts of
a draw may run at once, and a settle beside the draw of the next hop; a number and a settle may not. Source:
GraphTensor, section IV-D.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from graphweft._memory import empty
from graphweft._native import declare
from graphweft.graph.block import OpenBlock
from graphweft.graph.select import as_selection
from graphweft.sample.drawn_buffers import DrawnBuffers
from graphweft.sample.neighbor import Ends, NeighborSampler, assemble, blocks_over, is_widest, refusals
from graphweft.sample.sampler import OpenSample, Sample

_first = declare("gw_steps_first")
_place = declare("gw_steps_place")
_draw = declare("gw_steps_draw")
_number = declare("gw_steps_number")
_ids = declare("gw_steps_ids")
_settle = declare("gw_steps_settle")
_inner = declare("gw_steps_inner")


class SteppedDraw:
    """The steps of one batch; ``with`` lends it the sampler's working memory.

    Args:
        sampler: Whose draws.
        seeds: Distinct node ids, int64.
        key: (seed, epoch, stage) of the draws.
        parts: Into how many parts a hop is cut.
        is_open: Leave the last hop open, as :meth:`NeighborSampler.sample_open`.
        exclude: Edges that are left out, as :meth:`NeighborSampler.sample`.

    Attributes:
        seeds: int64 ids.
        most_nodes: A bound on the batch's nodes, once its last hop was opened.

    Raises: IndexRangeError, ConfigError when entered, as :meth:`NeighborSampler.sample`.

    Example:
        >>> from graphweft.graph.graph import Graph
        >>> sampler = NeighborSampler(Graph([1, 2, 3, 3], [0, 0, 0, 1]), [-1, 1])
        >>> with SteppedDraw(sampler, torch.tensor([0]), (0, 0, 0)) as steps:
        ...     for hop in range(2):
        ...         done = steps.draw(hop, 0), steps.number(hop), steps.settle(hop)
        ...     steps.finish().n_id.tolist()
        [0, 1, 2, 3]
    """

    def __init__(
        self,
        sampler: NeighborSampler,
        seeds: Tensor,
        key: tuple[int, int, int],
        parts: int = 1,
        is_open: bool = False,
        exclude: Ends | None = None,
    ) -> None:
        self.seeds = as_selection("sample", "seed", seeds, sampler.graph.num_nodes).contiguous()
        self._sampler, self._key, self.parts, self.is_open, self._exclude = sampler, key, parts, is_open, exclude
        self.most_nodes: int | None = None
        self.hops = len(sampler.fanouts)
        self._rooms: list[DrawnBuffers | None] = []
        self._ends: list[int] = []  # nodes before every hop, and after the last
        self._ids: list[Tensor] = []
        self._inner: DrawnBuffers | None = None
        self._columns: Tensor | None = None
        self._offsets: Tensor | None = None

    def __enter__(self) -> SteppedDraw:
        with refusals():
            self._lent = self._sampler.borrow()
            sizes, seeds = (ctypes.c_int64 * 3)(), self.seeds
            asked = (seeds.numel(), seeds.data_ptr(), self.hops, self._sampler.widths, self._sampler.replace)
            try:
                self._lent.exclude(self._exclude)
                _first(self._lent.handle, *asked, *self._key, self.parts, sizes)
            except BaseException:
                self._sampler.give_back(self._lent)
                raise
        self._ends, self._ids = [seeds.numel()], [seeds]
        self._open_hop(0, sizes)
        return self

    def __exit__(self, *_: object) -> None:
        self._sampler.give_back(self._lent)

    def draw(self, hop: int, part: int) -> None:
        """Draws one part of a hop's rows."""
        _draw(self._lent.handle, hop, part)

    def number(self, hop: int) -> Tensor:
        """Numbers what the hop drew and opens the next; int64 ids of the nodes that are new. Not for an open hop."""
        sizes, known = (ctypes.c_int64 * 3)(), self._ends[-1]
        _number(self._lent.handle, hop, sizes)
        fresh = empty((sizes[0] - known,), torch.int64)
        _ids(self._lent.handle, known, sizes[0], fresh.data_ptr())
        self._ends.append(sizes[0])
        self._ids.append(fresh)
        if hop + 1 < self.hops:
            self._open_hop(hop + 1, sizes)
        return fresh

    def settle(self, hop: int) -> int:
        """Writes the block of a numbered hop; how many bytes it wrote."""
        room = self._rooms[hop]
        _settle(self._lent.handle, hop, *((None,) * 3 if room is None else room.pointers))
        written = 0 if room is None else room.nbytes
        if hop == self.hops - (2 if self.is_open else 1) and self._inner is not None:
            _inner(self._lent.handle, *self._inner.pointers)
            written += self._inner.nbytes
        return written

    def finish(self) -> Sample | OpenSample:
        """The batch, once all steps are done."""
        graph, n_id, inner = self._sampler.graph, torch.cat(self._ids), self._inner
        assert inner is not None  # made when the last hop was opened
        if self._columns is not None and self._offsets is not None:
            made = OpenBlock.over(graph, n_id, self._offsets, self._columns)
            closed = blocks_over(graph, n_id, inner, self._rooms[: self.hops - 1], self._ends)
            return OpenSample(n_id, self._ends[0], (made, *reversed(closed)))
        return assemble(graph, n_id, inner, self._rooms, self._ends)

    def _open_hop(self, hop: int, sizes: ctypes.Array[ctypes.c_int64]) -> None:
        """Makes room for a hop: its block, and before the last one the edges of all others."""
        nodes, edges, drawn = sizes
        is_last = hop + 1 == self.hops
        opened = None
        if is_last:
            self.most_nodes = min(self._sampler.graph.num_nodes, nodes + edges)
            self._inner = DrawnBuffers(self._ends[-2] if hop else 0, drawn)
            self._inner.indptr[0] = 0
        if is_last and self.is_open:
            self._columns = empty((edges,), self._sampler.graph.csc.indices.dtype)
            self._offsets = empty((nodes + 1,), torch.int64)
            opened = self._columns.data_ptr()
            pointers: tuple[int | None, ...] = (self._offsets.data_ptr(), None, None)
            self._rooms.append(None)
        else:
            room = None if not is_last and is_widest(self._sampler.fanouts, hop) else DrawnBuffers(nodes, edges)
            self._rooms.append(room)
            pointers = room.pointers if room is not None and is_last else (None, None, None)
        _place(self._lent.handle, hop, *pointers, opened)
