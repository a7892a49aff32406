"""Neighbour sampling on a device: the batches of the CPU, bit for bit.

Comes in: a :class:`NeighborSampler`, which says what is drawn, and a device. Goes out: samples whose arrays were made
there, with copies in host memory, where structure is derived. A batch waits for two numbers a hop, how many edges it
drew and how many nodes are new, and for nothing else. Found by ``targets.py`` for ``Loader(device=)``.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graphweft._errors import ConfigError
from graphweft.codegen.edge_triton import padded
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.block import Block, FarEdges, FarIds
from graphweft.graph.ids import Ids
from graphweft.graph.select import as_selection
from graphweft.runtime.cuda import sampling_kernels as kernels
from graphweft.runtime.cuda.edges import draw_words
from graphweft.runtime.cuda.host_rows import readable
from graphweft.runtime.cuda.streams import Aside
from graphweft.sample.neighbor import NeighborSampler, is_widest
from graphweft.sample.sampler import Sample

_FEW, _NARROW = 64, 1 << 16  # draws and edges of a row whose draws have 32 bits, as on the CPU
_ALL = 1 << 62
_BLOCK, _TILE, _WIDE_STREAM = 256, 256, 1 << 31
_MASK = 2**64 - 1


class Hop(NamedTuple):
    """What the hops drew: how many edges a node of each draws, and the least that it or a later hop reads of them."""

    width: int
    least: int


def hops_of(fanouts: tuple[int, ...]) -> list[Hop]:
    """What each hop draws for itself and for all later ones.

    Example:
        >>> hops_of((5, 10))
        [Hop(width=10, least=5), Hop(width=10, least=10)]
    """
    limits = [_ALL if fanout < 0 else fanout for fanout in fanouts]
    return [Hop(max(limits[h:]), min(limits[h:])) for h in range(len(limits))]


def batch_seed(seed: int, epoch: int, stage: int) -> int:
    """The key of a batch's draws, as ``sample_seed`` of the CPU's sampler makes it."""
    return _mix(seed + _mix(epoch + _mix(stage)))


def _mix(word: int) -> int:
    """The finaliser of SplitMix64."""
    word = (word + 0x9E3779B97F4A7C15) & _MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return word ^ (word >> 31)


class Drawn:
    """A batch under way: nodes by number, and the drawn edges of all rows so far.

    Attributes:
        nodes: int64 ids by number.
        ends: Rows [ends[h], ends[h + 1]) are first reached before hop h.
        begins: int64 (rows,): first position in the graph.
        starts: int64 (rows + 1,): first drawn edge.
        places: int32 (edges,) places in the rows of the whole graph.
        ids: int64 (edges,) ids of the sources.
    """

    def __init__(self, seeds: Tensor) -> None:
        none = seeds[:0]
        self.nodes, self.ends = seeds, [0]
        self.begins, self.starts, self.ids = none, seeds.new_zeros(1), none
        self.places = none.int()


class DeviceSampler:
    """Draws the batches of ``plan`` on ``device``.

    The structure is sent once, and lies there beside a number for every node (4 bytes each) for each batch under way.

    Args:
        plan: What is drawn, uniformly.
        device: Where.
        memory: Bytes there; where the structure takes more, kernels read the lists of in-edges in host memory.

    Attributes:
        nbytes: Bytes there, of one batch under way.

    Raises: ConfigError for draws by weight, or for host memory that the device does not read.
    """

    def __init__(self, plan: NeighborSampler, device: torch.device, memory: int | None = None) -> None:
        if plan.is_weighted:
            raise ConfigError(
                f"device='{device}' cannot be combined with weight; without device= draws by weight are made on the CPU"
            )
        self.plan, self.graph, self.device = plan, plan.graph, device
        csc, numbers = plan.graph.csc, 4 * plan.graph.num_nodes
        self.is_far = memory is not None and csc.num_edges > 0 and csc.nbytes + numbers > memory
        self._held = readable(csc.indices, device) if self.is_far else None
        there = Adjacency(csc.indptr.to(device), csc.indices, None, csc.num_cols) if self.is_far else csc.to(device)
        self._csc, self.nbytes = there, numbers + (there.indptr.nbytes if self.is_far else csc.nbytes)
        self._names = None if plan._names is None else plan._names.to(device)
        self._numbers = threading.local()  # of the batch that a thread, on a stream of its own, has under way
        self._aside = Aside(device)
        self._hops = hops_of(plan.fanouts)
        self._falls = list(plan.fanouts) == sorted(plan.fanouts, key=lambda k: -(_ALL if k < 0 else k))

    def identity(self) -> dict[str, Any]:
        """As of ``plan``: the batches are the same."""
        return self.plan.identity()

    def sample(self, seeds: Ids, *, seed: int = 0, epoch: int = 0, stage: int = 0) -> Sample:
        """The batch of ``seeds``. Raises: as :meth:`NeighborSampler.sample`."""
        with self._aside.running():
            return self._sampled(*self.draw(seeds, batch_seed(seed, epoch, stage)))

    def _sampled(self, drawn: Drawn, columns: Tensor) -> Sample:
        """The batch; copies of its arrays in host memory are made where somebody reads them."""
        made, nodes = [], FarIds(drawn.nodes)
        self._aside.hand_over(drawn.nodes)
        for hop, ends in enumerate(drawn.ends[1:]):
            num_src = drawn.ends[hop + 2] if hop + 2 < len(drawn.ends) else drawn.nodes.numel()
            made.append(Block.of(self._edges(nodes, self._block(drawn, columns, hop, ends), num_src), num_src))
        every = self._edges(nodes, (drawn.starts, columns, drawn.places), drawn.nodes.numel())
        return Sample(nodes, drawn.ends[1], tuple(reversed(made)), (every,))

    def _edges(self, nodes: FarIds, parts: tuple[Tensor, Tensor, Tensor], num_src: int) -> FarEdges:
        """Offsets, numbers of sources and places."""
        self._aside.hand_over(*parts)
        return FarEdges(self.graph, nodes, Adjacency(parts[0], parts[1], None, num_src), parts[2])

    def draw(self, seeds: Ids, key: int) -> tuple[Drawn, Tensor]:
        """All hops, and the numbers of the sources of the drawn edges, int32."""
        ids = self._checked(seeds).to(self.device)
        numbers = self._borrow()
        drawn = Drawn(ids)
        try:
            numbers[ids] = torch.arange(ids.numel(), dtype=torch.int32, device=self.device)
            for hop in range(len(self._hops)):
                self._draw_hop(drawn, hop, key)
                self._number(drawn, hop, numbers)
            columns = drawn.places.new_empty(drawn.ids.numel())
            count = drawn.ids.numel()
            kernels.look_up((-(-count // _BLOCK),), drawn.ids, numbers, columns, count, BLOCK=_BLOCK)
            return drawn, columns
        finally:
            numbers[drawn.nodes] = -1

    def _checked(self, seeds: Ids) -> Tensor:
        ids = as_selection("sample", "seed", seeds, self.graph.num_nodes).contiguous()
        order = torch.argsort(ids, stable=True)
        again = (ids[order][1:] == ids[order][:-1]).nonzero()
        if again.numel():
            second = int(order[1:][again].min())
            first = int((ids == ids[second]).nonzero()[0])
            pair = f"{int(ids[second])} at positions {first} and {second}"
            raise ConfigError(f"sample: expected distinct seeds, got {pair}")
        return ids

    def _borrow(self) -> Tensor:
        """A number for every node, -1: none."""
        found: Tensor | None = getattr(self._numbers, "of_nodes", None)
        if found is None:
            found = torch.full((self.graph.num_nodes,), -1, dtype=torch.int32, device=self.device)
            self._numbers.of_nodes = found
        return found

    def _draw_hop(self, drawn: Drawn, hop: int, key: int) -> None:
        """The rows that no earlier hop has reached draw."""
        nodes, (width, least), replace = drawn.nodes[drawn.ends[-1] :].contiguous(), self._hops[hop], self.plan.replace
        rows = nodes.numel()
        drawn.ends.append(drawn.nodes.numel())
        begins, degrees, counts = (torch.empty_like(nodes) for _ in range(3))
        grid = (-(-rows // _BLOCK),)
        kernels.count_draws(
            grid, self._csc.indptr, nodes, begins, degrees, counts, rows, width, REPLACE=replace, BLOCK=_BLOCK
        )
        starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        alone = (degrees > _NARROW) | (counts > _FEW)
        edges, long_rows = torch.stack([starts[-1], alone.sum()]).tolist()
        places = torch.empty(edges, dtype=torch.int32, device=self.device)
        ids = torch.empty(edges, dtype=torch.int64, device=self.device)
        names = nodes if self._names is None else self._names
        words = draw_words(key, 0)[:2]
        row_arrays = (nodes, names, begins, degrees, starts)
        fixed = {"HAS_NAMES": self._names is not None}
        if edges:
            k = padded(min(width, _FEW))
            at_once = max(1, _TILE // k)
            kind = 0 if replace else 2 if least < width else 1
            fixed_few = {"KIND": kind, "NARROW": _NARROW, "FEW": _FEW, "K": k, "BR": at_once}
            arrays = (*row_arrays, self._csc.indices, places, ids, rows, least, *words, hop)
            kernels.draw_few((-(-rows // at_once),), *arrays, **fixed, **fixed_few)
        if long_rows:
            which = alone.nonzero().reshape(-1)
            needed = degrees[which] if not replace else degrees.new_zeros(long_rows)
            rooms = torch.cat([needed.new_zeros(1), needed.cumsum(0)])
            order = torch.empty(int(rooms[-1]), dtype=torch.int32, device=self.device)
            order = order if order.numel() else places
            arrays = (which, *row_arrays, rooms, self._csc.indices, order, places, ids, least, *words)
            kernels.draw_many((long_rows,), *arrays, _WIDE_STREAM | hop, REPLACE=replace, **fixed, BLOCK=_BLOCK)
        drawn.starts = torch.cat([drawn.starts, starts[1:] + drawn.starts[-1]])
        drawn.begins = torch.cat([drawn.begins, begins])
        drawn.places, drawn.ids = torch.cat([drawn.places, places]), torch.cat([drawn.ids, ids])

    def _number(self, drawn: Drawn, hop: int, numbers: Tensor) -> None:
        """Numbers what a hop reaches, in ascending order of the ids."""
        rows, first = drawn.ends[-1], drawn.nodes.numel()
        if self._falls:  # older rows lead to nothing that has no number
            reached = drawn.ids[int(drawn.starts[drawn.ends[-2]]) :]
        else:
            kept = self._kept(drawn, hop, rows)
            reached = _first_of(drawn.starts, kept, drawn.ids)
        count = reached.numel()
        if not count:
            return
        ids = reached.sort()[0]
        flags = torch.empty(count, dtype=torch.int32, device=self.device)
        grid = (-(-count // _BLOCK),)
        kernels.first_new(grid, ids, numbers, flags, count, BLOCK=_BLOCK)
        upto = flags.cumsum(0)
        new = torch.empty(int(upto[-1]), dtype=torch.int64, device=self.device)
        if new.numel():
            kernels.number_new(grid, ids, flags, upto, new, numbers, first, count, BLOCK=_BLOCK)
            drawn.nodes = torch.cat([drawn.nodes, new])

    def _kept(self, drawn: Drawn, hop: int, rows: int) -> Tensor:
        """Offsets of the block of a hop over its first ``rows`` rows."""
        counts, limit = drawn.starts[: rows + 1].diff(), self.plan.fanouts[hop]
        wanted = counts if limit < 0 else counts.clamp(max=limit)
        return torch.cat([wanted.new_zeros(1), wanted.cumsum(0)])

    def _block(self, drawn: Drawn, columns: Tensor, hop: int, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """Offsets, numbers of sources and places of a hop's block."""
        if is_widest(self.plan.fanouts, hop):
            starts = drawn.starts[: rows + 1]
            edges = int(starts[-1])
            return starts, columns[:edges], drawn.places[:edges]
        kept = self._kept(drawn, hop, rows)
        return kept, _first_of(drawn.starts, kept, columns), _first_of(drawn.starts, kept, drawn.places)


def _first_of(starts: Tensor, kept: Tensor, values: Tensor) -> Tensor:
    """The first values of each row, as many as ``kept``, offsets, has room for."""
    out = torch.empty(int(kept[-1]), dtype=values.dtype, device=values.device)
    if out.numel():
        kernels.keep_first((kept.numel() - 1,), starts, kept, values, out, BLOCK=32)
    return out


__all__ = ["DeviceSampler", "batch_seed", "hops_of"]
