"""Neighbour sampling on a device: the batches of the CPU, bit for bit.

Comes in: a :class:`NeighborSampler`, which says what is drawn, and a device. Goes out: samples whose arrays were made
there, with copies in host memory, where structure is derived. Where the most that a batch can draw is known and small,
its launches are recorded: a batch is one launch, and waits once, for the numbers of its nodes and edges. Otherwise it
waits for two numbers a hop, see ``draws.py``. Found by ``targets.py`` for ``Loader(device=)``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphweft._errors import ConfigError, FallbackWarning
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.block import Block, FarEdges, FarIds
from graphweft.graph.ids import Ids
from graphweft.graph.select import as_selection
from graphweft.runtime.cuda.draws import ALL, Draws, Structure
from graphweft.runtime.cuda.host_rows import readable
from graphweft.runtime.cuda.recorder import recorder_on
from graphweft.runtime.cuda.streams import Aside
from graphweft.sample.neighbor import NeighborSampler, is_widest
from graphweft.sample.sampler import Sample

_MASK = 2**64 - 1
_BOUNDED = 1 << 28  # bytes of a batch's arrays up to which they have the size of the largest batch
_BEFORE = 2  # batches that are drawn before launches are recorded


def batch_seed(seed: int, epoch: int, stage: int) -> int:
    """The key of a batch's draws, as ``sample_seed`` of the CPU's sampler makes it."""
    return _mix(seed + _mix(epoch + _mix(stage)))


def _mix(word: int) -> int:
    """The finaliser of SplitMix64."""
    word = (word + 0x9E3779B97F4A7C15) & _MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return word ^ (word >> 31)


class _Bench:
    """Arrays of one batch under way.

    Attributes:
        numbers: int32 of all nodes, -1: none.
        draws: Of the largest batch so far, within bounds.
        again: Launches what was recorded.
        drawn: Batches since the arrays were made.
    """

    def __init__(self, nodes: int, hops: int, device: torch.device) -> None:
        self.numbers = torch.full((nodes,), -1, dtype=torch.int32, device=device)
        self.told = _pinned(2 * hops + 3, device)
        self.draws: Draws | None = None
        self.message = self.told
        self.again: Callable[[], None] | None = None
        self.drawn = 0


class DeviceSampler:
    """Draws the batches of ``plan`` on ``device``.

    The structure is sent once, and lies there beside a number for every node (4 bytes each) for each batch under way.

    Args:
        plan: What is drawn, uniformly.
        device: Where.
        memory: Bytes there; where the structure takes more, kernels read the lists of in-edges in host memory, but for
            those that :meth:`keep_lists` sends.

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
        self.nbytes = numbers + (there.indptr.nbytes if self.is_far else csc.nbytes)
        names = None if plan._names is None else plan._names.to(device)
        falls = list(plan.fanouts) == sorted(plan.fanouts, key=lambda k: -(ALL if k < 0 else k))
        longest = int(csc.degrees().max()) if csc.num_rows else 0
        self._structure = Structure(there, names, tuple(plan.fanouts), plan.replace, falls, longest)
        self._benches, self._aside = list[_Bench](), Aside(device)

    def keep_lists(self, nodes: Tensor) -> None:
        """Sends the in-edges of ``nodes``, ascending; the same launches read them there and the others in host memory.

        A list begins so many columns from the first one of host memory on, wherever it lies: one address space has
        both.
        """
        csc = self.graph.csc
        if not self.is_far or not nodes.numel():
            return
        columns = csc.take_rows(nodes)
        hot, kind = columns.indices.to(self.device), csc.indices.element_size()
        first = csc.indptr[:-1].clone()
        first[nodes] = (hot.data_ptr() - csc.indices.data_ptr()) // kind + columns.indptr[:-1]
        former = 0 if self._structure.hot is None else self._structure.hot.nbytes + first.nbytes
        self._structure = self._structure._replace(hot=hot, first=first.to(self.device))
        self.nbytes += hot.nbytes + first.nbytes - former
        self._benches.clear()

    def identity(self) -> dict[str, Any]:
        """As of ``plan``: the batches are the same."""
        return self.plan.identity()

    def sample(self, seeds: Ids, *, seed: int = 0, epoch: int = 0, stage: int = 0) -> Sample:
        """The batch of ``seeds``. Raises: as :meth:`NeighborSampler.sample`."""
        ids, key = self._checked(seeds), batch_seed(seed, epoch, stage)
        rooms = self._structure.rooms(ids.numel()) if ids.numel() else None
        with self._aside.running():
            bench = self._benches.pop() if self._benches else self._bench()
            if rooms is not None and Draws.bytes_of(rooms) <= _BOUNDED:
                made = self._sampled(self._within_bounds(bench, ids, key), bench.told, copy=True)
            else:
                draws = Draws(self._structure, ids.numel(), self.device, None)
                draws.message.copy_(_message(ids, key))
                draws.launch(bench.numbers)
                made = self._sampled(draws, bench.told, copy=False)
        self._benches.append(bench)  # what it launched is over
        return made

    def _bench(self) -> _Bench:
        return _Bench(self.graph.num_nodes, len(self.plan.fanouts), self.device)

    def _within_bounds(self, bench: _Bench, ids: Tensor, key: int) -> Draws:
        """Draws by the launches of the largest batch that was drawn there."""
        count = ids.numel()
        if bench.draws is None or bench.draws.seeds < count:
            bench.draws = Draws(self._structure, count, self.device, self._structure.rooms(count))
            bench.message, bench.again, bench.drawn = _pinned(2 + count, self.device), None, 0
        draws = bench.draws
        bench.message[: 2 + count] = _message(ids, key)
        draws.message.copy_(bench.message, non_blocking=True)  # read before the batch is over
        if bench.again is None and bench.drawn == _BEFORE:
            self._record(bench, draws)
        bench.drawn += 1
        if bench.again is None:
            draws.launch(bench.numbers)
        else:
            bench.again()
        return draws

    def _record(self, bench: _Bench, draws: Draws) -> None:
        """Records the launches of a batch, where the device can."""
        recorder = recorder_on(self.device)
        if recorder is not None:
            try:
                bench.again, _ = recorder.record(lambda: draws.launch(bench.numbers))
            except RuntimeError as failure:
                why = " ".join(str(failure).split())[:200]
                told = f"device='{self.device}': batches are drawn launch by launch, as recording them failed: {why}"
                warnings.warn(told, FallbackWarning, stacklevel=2)

    def _sampled(self, draws: Draws, here: Tensor, copy: bool) -> Sample:
        """The batch; copies of its arrays in host memory are made where somebody reads them.

        ``here``: pinned memory for the numbers of the device. ``copy``: the next batch is drawn into the same arrays.
        """
        fanouts, hops = self.plan.fanouts, len(self.plan.fanouts)
        told = self._told(draws.told, here)
        ends, edges, every = told[: hops + 2], told[hops + 2 : -1], told[-1]

        def own(array: Tensor, count: int) -> Tensor:
            return array[:count].clone() if copy else array[:count]

        nodes, starts = own(draws.nodes, ends[hops + 1]), own(draws.starts, ends[hops] + 1)
        columns, places = own(draws.columns, every), own(draws.places, every)
        far, made = FarIds(nodes), []
        self._aside.hand_over(nodes)
        for hop in range(hops):
            end, count, parts = ends[hop + 1], edges[hop], (starts, columns, places)
            if not is_widest(fanouts, hop):
                offsets, *kept = draws.narrow[hop]
                parts = own(offsets, end + 1), own(kept[0], count), own(kept[1], count)
            block = self._edges(far, (parts[0][: end + 1], parts[1][:count], parts[2][:count]), ends[hop + 2])
            made.append(Block.of(block, ends[hop + 2]))
        whole = self._edges(far, (starts, columns, places), ends[hops + 1])
        return Sample(far, ends[1], tuple(reversed(made)), (whole,))

    def _told(self, told: Tensor, here: Tensor) -> list[int]:
        """Numbers of the device."""
        here.copy_(told, non_blocking=True)
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return [int(number) for number in here.tolist()]

    def _edges(self, nodes: FarIds, parts: tuple[Tensor, Tensor, Tensor], num_src: int) -> FarEdges:
        """Offsets, numbers of sources and places."""
        self._aside.hand_over(*parts)
        return FarEdges(self.graph, nodes, Adjacency(parts[0], parts[1], None, num_src), parts[2])

    def _checked(self, seeds: Ids) -> Tensor:
        ids = as_selection("sample", "seed", seeds, self.graph.num_nodes).contiguous()
        ascending = np.sort(ids.numpy())
        if (ascending[1:] == ascending[:-1]).any():
            order = torch.argsort(ids, stable=True)
            again = (ids[order][1:] == ids[order][:-1]).nonzero()
            second = int(order[1:][again].min())
            first = int((ids == ids[second]).nonzero()[0])
            pair = f"{int(ids[second])} at positions {first} and {second}"
            raise ConfigError(f"sample: expected distinct seeds, got {pair}")
        return ids


def _message(ids: Tensor, key: int) -> Tensor:
    """Key, count and ids."""
    head = torch.from_numpy(np.array([key, ids.numel()], dtype=np.uint64).view(np.int64))
    return torch.cat([head, ids])


def _pinned(count: int, device: torch.device) -> Tensor:
    """int64 numbers in memory of the host that a device copies from and to while the host goes on."""
    return torch.zeros(count, dtype=torch.int64, pin_memory=device.type == "cuda")


__all__ = ["DeviceSampler", "batch_seed"]
