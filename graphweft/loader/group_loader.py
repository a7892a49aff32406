"""The loader of groups: macro-batches of some parts, read ahead, and neighbourhoods sampled inside of them.

Comes in: a :class:`PartSource` and seeds. Goes out: :class:`Batch` after batch. Called by training out of core. The
parts come in a new order every epoch, ``count`` at a time; every seed is in ``reuse`` batches an epoch, one for each
time that its group is gone through. Groups and draws follow from (seed, epoch, group) alone, so they are the same for
any number of threads, for any source of the same parts, and after any interruption. At most two groups are in memory:
the one in use, and the next; and ``keep`` parts that the epoch before has used, or that the next one will.
"""

from __future__ import annotations

import bisect
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphweft._checks import checksum
from graphweft._errors import ConfigError
from graphweft._torch_private import hosted
from graphweft._trace import span
from graphweft.loader.batch import Batch, make_batch
from graphweft.loader.epochs import EpochLoader
from graphweft.loader.group_layout import GroupLayout
from graphweft.loader.groups import Group, part_bytes, read_group
from graphweft.loader.hubs import Hubs
from graphweft.loader.neighbours import Neighbours
from graphweft.loader.part_order import SharedOrder, most_held, shared_order
from graphweft.loader.parts import PartSource
from graphweft.sample.sampler import Sample, check_fanouts
from graphweft.sample.stages import Key, permutation
from graphweft.storage.store import Store

_STAGES = 1 << 8  # of a group of a typed graph
_LOOK, _LOOKS = 5e-4, 2000  # seconds between two looks whether a batch is gone, and how many


@dataclass
class ReadTimes:
    """What reading groups took since the loader was made.

    Attributes:
        read_seconds: Seconds in which a group was read, beside training or not.
        wait_seconds: Seconds in which nothing was done but to wait for one.
        edges: :attr:`Group.edges` of all groups that were read; None before the first.
    """

    read_seconds: float = 0.0
    wait_seconds: float = 0.0
    edges: NDArray[np.int64] | None = None

    def add(self, edges: NDArray[np.int64] | None) -> None:
        """The edges of one more group."""
        if edges is not None:
            self.edges = edges if self.edges is None else self.edges + edges


@dataclass(frozen=True)
class PlannedGroup:
    """One group of an epoch.

    Attributes:
        parts: Numbers of its parts, ascending.
        places: int64 places of its seeds among all seeds, in the order of the batches.
        nodes: int64 numbers of these seeds inside of the group, without what it has besides its parts.
        key: Of its draws, which go by the node's number in the source: those of every group, apart from later turns.
        first: Position of its first batch in the epoch.
        number: Which group of the epoch it is; a group that is gone through again has the same.
        kept: Parts that stay in memory beside groups, once it is read.
    """

    parts: tuple[int, ...]
    places: Tensor
    nodes: Tensor
    key: Key
    first: int
    number: int
    kept: frozenset[int] = frozenset()


class GroupLoader(EpochLoader[Batch]):
    """Batches drawn inside of groups of parts.

    Args:
        source: The parts.
        seeds: int64 distinct nodes in the numbers of the source, ascending.
        fanouts: In-edges that a node draws in each hop, from the seeds outwards.
        batch_size: Most seeds of a batch; those of a group are alike in size.
        shuffle: A new order of parts and seeds every epoch.
        seed: Keys order and draws.
        count: Parts of a group.
        prefetch: As for :class:`Loader`.
        workers: As for :class:`Loader`.
        hubs: Nodes of the source that are in every group.
        reuse: How often a group is gone through while it is in memory, each time in another order with other draws.
        keep: Parts that stay in memory from an epoch to the next, and are not read again there; orders of epochs follow
            (:func:`graphweft.loader.part_order.shared_order`).
        neighbours: What each part brings into its groups; not with hubs.

    Raises: ConfigError for arguments out of range.

    Example:
        >>> from graphweft.graph.graph import Graph
        >>> from graphweft.loader.parts import MemoryParts
        >>> graph, part = Graph([0, 1, 2, 3], [1, 2, 3, 0]), torch.tensor([0, 0, 1, 1])
        >>> source = MemoryParts(graph, torch.eye(4), torch.arange(4), part, 2)
        >>> loader = GroupLoader(source, torch.arange(4), [1], batch_size=2, count=1)
        >>> [(batch.y.tolist(), batch.edge_index.tolist()) for batch in loader]
        [([0, 1], [[0], [1]]), ([2, 3], [[0], [1]])]
    """

    who = "GroupLoader"

    @hosted
    def __init__(
        self,
        source: PartSource,
        seeds: Tensor,
        fanouts: Any,
        batch_size: int = 1024,
        shuffle: bool = False,
        seed: int = 0,
        *,
        count: int,
        prefetch: int | None = None,
        workers: int | None = None,
        hubs: Hubs | None = None,
        reuse: int = 1,
        keep: int = 0,
        neighbours: Neighbours | None = None,
    ) -> None:
        if hubs is not None and neighbours is not None:
            raise ConfigError("GroupLoader: hubs cannot be combined with neighbours")
        self.extra = hubs if neighbours is None else neighbours
        self.reuse, self.times = self._as_count("reuse", reuse, 1), ReadTimes()
        self.source = source.holding() if keep and isinstance(source, Store) else source
        self.seeds, self.fanouts = seeds, check_fanouts("GroupLoader", fanouts)
        parts = len(source.bounds) - 1
        self.count = min(self._as_count("count", count, 1), parts)
        self.keep = check_kept(keep, parts, self.count)
        self._cuts = np.searchsorted(seeds.numpy(), source.bounds)
        self._checksum = checksum(seeds)
        self._plans: dict[int, list[PlannedGroup]] = {}
        self._turned = threading.Lock()
        self._ahead: ReadAhead | None = None
        super().__init__(seeds.numel(), batch_size, shuffle, seed, False, prefetch, workers)

    def make(self, places: Tensor, epoch: int) -> Batch:
        """Batches follow from groups here. Raises: ConfigError."""
        raise ConfigError("GroupLoader: expected iteration over its batches, got places")

    def plan(self, epoch: int) -> list[PlannedGroup]:
        """The groups of an epoch that have seeds."""
        with self._turned:
            if epoch not in self._plans:
                self._plans = {e: p for e, p in self._plans.items() if e >= epoch - 1}
                self._plans[epoch] = self._planned(Key(self.seed, epoch, shuffle=self.shuffle))
            return self._plans[epoch]

    def _planned(self, key: Key) -> list[PlannedGroup]:
        cuts, shared = self._cuts, self._order(key)
        turn = shared.order.numpy()
        found: list[PlannedGroup] = []
        first = 0
        for group, begin in enumerate(range(0, len(turn), self.count)):
            chosen = np.sort(turn[begin : begin + self.count])
            counts = cuts[chosen + 1] - cuts[chosen]
            if counts.sum() == 0:
                continue
            places = np.concatenate([np.arange(cuts[part], cuts[part + 1]) for part in chosen])
            inside = GroupLayout(self.source, chosen, None).numbers(self.seeds[torch.from_numpy(places)].numpy())
            number = found[-1].number + 1 if found else 0
            for again in range(self.reuse):
                inner = key.within(group) if again == 0 else key.within(group).within(again - 1)
                order = permutation(len(places), replace(inner, shuffle=self.shuffle))
                # draws of typed graphs go by the number inside of the group, so groups have keys of their own
                drawn = replace(key, stage=again if self.source.types is None else again + _STAGES * (group + 1))
                nodes = torch.from_numpy(inside)[order]
                parts, kept = tuple(chosen.tolist()), shared.held_after(begin + self.count)
                found.append(PlannedGroup(parts, torch.from_numpy(places)[order], nodes, drawn, first, number, kept))
                first += -(-len(places) // self.batch_size)
        return found

    def _order(self, key: Key) -> SharedOrder:
        """The order of parts of an epoch."""
        return shared_order(len(self.source.bounds) - 1, self.keep, key.seed, key.epoch, self.count, key.shuffle)

    def _length(self, epoch: int) -> int:
        plan = self.plan(epoch)
        return plan[-1].first + -(-plan[-1].places.numel() // self.batch_size) if plan else 0

    def most_batches(self) -> int:
        """Batches of a group at the most."""
        seeds = int(np.sort(np.diff(self._cuts))[-self.count :].sum())
        return -(-seeds // self.batch_size) * self.reuse

    def _reach(self, epoch: int, first: int) -> int:
        """Batches are not prepared beyond their group, so that no third one is in memory."""
        plan = self.plan(epoch)
        place = bisect.bisect_right([group.first for group in plan], first) - 1
        if place < 0:
            return self._length(epoch)
        return next((group.first for group in plan if group.number > plan[place].number), self._length(epoch))

    def _identity(self) -> dict[str, Any]:
        pinned: dict[str, Any] = {}
        if isinstance(self.extra, Hubs):
            pinned["hubs"] = checksum(torch.from_numpy(self.extra.ids))
        elif self.extra is not None:
            pinned["neighbours"] = self.extra.checksum
        if self.reuse > 1:
            pinned["reuse"] = self.reuse
        if self.keep:
            pinned["keep"] = self.keep
        return {
            **super()._identity(),
            **pinned,
            "fanouts": list(self.fanouts),
            "parts": len(self.source.bounds) - 1,
            "group": self.count,
            "num_seeds": self.seeds.numel(),
            "seeds_checksum": self._checksum,
            "num_nodes": int(self.source.bounds[-1]),
            "num_edges": int(self.source.edge_counts.sum()),
        }

    def _preparer(self, epoch: int) -> Callable[[int], Batch]:
        plan = self.plan(epoch)
        firsts = [group.first for group in plan]
        ahead = self._ahead = ReadAhead(self.source, plan, self.extra, self.times)

        def prepare(position: int) -> Batch:
            planned = plan[bisect.bisect_right(firsts, position) - 1]
            found: Batch = self.batch_of(planned, ahead.get(planned.number), position - planned.first)
            return found

        return prepare

    def part_sizes(self) -> NDArray[np.int64]:
        """(parts,) bytes of each part inside of a group, with what it brings."""
        brought = self.extra.sizes.group_bytes(8) if isinstance(self.extra, Neighbours) else 0
        return part_bytes(self.source) + brought

    @property
    def _hops(self) -> tuple[int, ...]:
        """Fan-outs of the hops that are drawn."""
        return self.fanouts

    def ready(self, planned: PlannedGroup, group: Group) -> object:
        """What draws the batches of a group, made before them."""
        return group.sampler(self._hops)

    def forget(self) -> None:
        """Lets go of what :meth:`ready` made; a group keeps its own sampler."""

    def batch_of(self, planned: PlannedGroup, group: Group, number: int) -> Any:
        """A batch of a group, by its number in it; its batches are alike in size."""
        seeds = planned.places.numel()
        count = -(-seeds // self.batch_size)
        some = slice(seeds * number // count, seeds * (number + 1) // count)
        sample = planned.key.sample(group.sampler(self._hops), group.numbers(planned.nodes[some]))
        return self._made(sample, group, planned.places[some])

    def _made(self, sample: Sample, group: Group, places: Tensor) -> Batch:
        """The batch of a sample, with the rows that its first layer reads."""
        return make_batch(sample, group, places, group.rows(sample.n_id))

    def _batches(self, turn: object, epoch: int, first: int) -> Iterator[Batch]:
        mine: ReadAhead | None = None
        try:
            for batch in super()._batches(turn, epoch, first):
                mine = mine or self._ahead
                if mine is not None:
                    mine.read_next()
                yield batch
                del batch
        finally:
            mine = mine or self._ahead
            if mine is not None:
                mine.close()
            if mine is self._ahead:
                self._ahead = None


def check_kept(keep: Any, parts: int, count: int) -> int:
    """Parts that stay in memory, at most those of half of the groups. Raises: ConfigError."""
    most = most_held(parts, count)
    if type(keep) is not int or not 0 <= keep <= most:
        raise ConfigError(f"keep: expected 0 to {most} of {parts} parts in groups of {count}, got {keep!r:.60}")
    return keep


class ReadAhead:
    """The group in use and the next one, read by one thread, which begins once batches of the group before are gone."""

    def __init__(
        self, source: PartSource, plan: list[PlannedGroup], extra: Hubs | Neighbours | None, times: ReadTimes
    ) -> None:
        self._source, self._extra, self._times = source, extra, times
        self._plan = list({group.number: group for group in plan}.values())
        self._current = -1
        self._lock = threading.Lock()
        self._groups: dict[int, Future[Group]] = {}
        self._left: list[weakref.ref[Group]] = []  # groups that were let go, as long as a caller's batch has them
        self._closed = False
        self._thread = ThreadPoolExecutor(1, "graphweft-groups")

    def get(self, number: int) -> Group:
        """A group; those before it are let go."""
        with self._lock:
            self._current = number
            for earlier in [n for n in self._groups if n < number]:
                former = self._groups.pop(earlier)
                if former.done() and not former.cancelled() and former.exception() is None:
                    self._left.append(weakref.ref(former.result()))
                del former
            wanted = self._begun(number)
        if wanted.done():
            return wanted.result()
        with span("wait for group", "wait"):
            begun = time.perf_counter()
            try:
                return wanted.result()
            finally:
                self._times.wait_seconds += time.perf_counter() - begun

    def read_next(self) -> None:
        """Begins to read the group after the one in use."""
        with self._lock:
            if 0 <= self._current < len(self._plan) - 1:
                self._begun(self._current + 1)

    def close(self) -> None:
        """Lets go of everything."""
        self._closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._groups.clear()

    def _begun(self, number: int) -> Future[Group]:
        if number not in self._groups:
            self._groups[number] = self._thread.submit(self._read, number)
        return self._groups[number]

    def _wait_for_room(self, number: int) -> None:
        """Waits for the last batch of the group before the one in use, unless the group is wanted at once.

        Not forever: a caller who keeps batches has more than two groups.
        """
        for _ in range(_LOOKS):
            with self._lock:
                self._left = [one for one in self._left if one() is not None]
            if not self._left or self._closed or number <= self._current:
                return
            time.sleep(_LOOK)

    def _read(self, number: int) -> Group:
        self._wait_for_room(number)
        parts, kept, source = self._plan[number].parts, self._plan[number].kept, self._source
        counts = getattr(source, "counts", None)
        if isinstance(source, Store):
            source.held.hold(kept, parts)
        before = 0 if counts is None else counts.nbytes
        begun = time.perf_counter()
        with span("read group", "read", parts=len(parts)) as details:
            group = read_group(source, parts, self._extra)
            if details is not None and counts is not None:
                details["bytes"] = counts.nbytes - before
        self._times.read_seconds += time.perf_counter() - begun
        self._times.add(group.edges)
        return group
