"""Epochs of batches over a list of items: order, position, resume, and how batches are prepared.

Comes in: how many items there are, and a subclass that makes the batch of some of them. Goes out: batch after batch.
The base of the loaders. What a batch holds follows from (seed, epoch, its place in the epoch) alone, never from threads
or from what was prepared ahead, so that two numbers are enough to go on in the middle of an epoch.
"""

from __future__ import annotations

import abc
import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from graphweft._checks import as_integer, checksum
from graphweft._errors import CheckpointError, ConfigError
from graphweft._machine import processors
from graphweft._torch_private import hosted, on_host
from graphweft._trace import span
from graphweft._workers import set_width
from graphweft.loader.epoch_order import drawn_order, share_of_order
from graphweft.loader.fastest_choice import ENOUGH, CoreSplit, FastestChoice
from graphweft.loader.pipeline import Pipeline
from graphweft.sample.permutation import permutation

B = TypeVar("B")

_MOST = 2**63 - 1
_UNCOUNTED = 2  # the first batches under a way fill the queue
_IDLE = 0.96  # the part of a batch's time for which a caller waits that does nothing else


class EpochLoader(abc.ABC, Generic[B]):
    """Batches of ``batch_size`` items; every ``iter(loader)`` starts the next epoch.

    Args:
        num_items: Items of an epoch.
        batch_size: Items of a batch; the last one may have fewer.
        shuffle: A new order of the items every epoch.
        seed: Keys order and draws.
        drop_last: Leave out a last batch that is not full.
        prefetch: Batches prepared ahead by threads beside the model; 0: none, each is prepared when asked for; None:
            tried out during the first batches.
        workers: Threads that prepare ahead; 0: none, as ``prefetch=0``; None: as many as ``prefetch``, at most one per
            processor.
        item_weight: float64 (num_items,): every batch is drawn by these weights, an item at most once a batch.
        share: (rank, number of ranks): of every epoch only the items of this rank.

    Raises: ConfigError for a number out of range.
    """

    who: ClassVar[str]  # what messages call the loader

    @hosted
    def __init__(
        self,
        num_items: int,
        batch_size: int,
        shuffle: bool,
        seed: int,
        drop_last: bool,
        prefetch: int | None,
        workers: int | None,
        item_weight: Tensor | None = None,
        share: tuple[int, int] | None = None,
    ) -> None:
        self._item_weight, self._share = item_weight, share
        self.num_items, self.shuffle, self._drop_last = num_items, bool(shuffle), bool(drop_last)
        self.batch_size = self._as_count("batch_size", batch_size, 1)
        self.seed, self._cores = self._as_count("seed", seed, 0, _MOST), processors()
        self._fastest: FastestChoice[CoreSplit] = FastestChoice(self._ways(prefetch, workers), prefers=_waits_least)
        self._epoch = self._position = 0
        self._begun = False
        self._turn: object = None
        self.stall_seconds = 0.0

    @abc.abstractmethod
    def make(self, places: Tensor, epoch: int) -> B:
        """What is yielded for the items at ``places``; called from any thread."""

    def __repr__(self) -> str:
        order = ", shuffle=True" if self.shuffle else ""
        return f"{self.who}({self.num_items} items, batch_size={self.batch_size}{order}, {len(self)} batches an epoch)"

    def _identity(self) -> dict[str, Any]:
        """What decides the batches: numbers, texts and lists of them. Subclasses add theirs."""
        return {
            "seed": self.seed,
            "shuffle": self.shuffle,
            "batch_size": self.batch_size,
            "drop_last": self._drop_last,
            **({} if self._item_weight is None else {"item_weight_checksum": checksum(self._item_weight)}),
            **({} if self._share is None else {"share": list(self._share)}),
        }

    @property
    def epoch(self) -> int:
        """The epoch under way, or about to begin; counts from 0."""
        return self._epoch

    @property
    def way(self) -> CoreSplit:
        """How batches are prepared now."""
        return self._fastest.way

    def split_cores(self) -> None:
        """Also tries giving the model fewer threads, so that preparation has cores of its own.

        For consumers whose results do not depend on the number of threads. Without ``prefetch=None`` nothing is tried.
        """
        cores, ways = self._cores, self._fastest.ways
        if len(ways) > 1:
            counts = sorted({1, cores // 4, cores // 2})
            self._fastest.add([CoreSplit(count, 2 * count, cores - count) for count in counts if 0 < count < cores])

    def share_cores(self, processes: int) -> None:
        """So many processes like this one take the cores that it may run on, in equal parts; before other choices.

        With a single core threads that prepare are taken where they are faster alone, as while others are waited for.
        """
        self._cores = max(1, processors() // processes)
        if len(self._fastest.ways) > 1:
            prefers = _waits_least if self._cores > 1 else None
            self._fastest = FastestChoice(self._ways_on(self._cores), prefers=prefers)

    @property
    def ways(self) -> list[CoreSplit]:
        """All ways of preparing that are tried."""
        return self._fastest.ways

    @property
    def tried(self) -> list[CoreSplit]:
        """Those that are ever taken: batches are timed once two of an epoch are done."""
        return self.ways[: None if len(self) > _UNCOUNTED else 1]

    def keep_ways(self, ways: Sequence[CoreSplit]) -> None:
        """Tries no others from now on."""
        self._fastest = FastestChoice(ways, prefers=_waits_least)

    @property
    def seconds_by_way(self) -> dict[CoreSplit, float]:
        """Median seconds of a batch, model included, under every way that was tried."""
        return self._fastest.seconds()

    def __len__(self) -> int:
        """Batches of the epoch under way, or about to begin."""
        return self._length(self._epoch)

    def __iter__(self) -> Iterator[B]:
        if self._begun:
            self._epoch, self._position = self._epoch + 1, 0
        self._begun = True
        self._turn = turn = object()
        return in_host_memory(self._batches(turn, self._epoch, self._position))

    @contextlib.contextmanager
    def first_batch(self) -> Iterator[B | None]:
        """The first batch of the epoch under way, or about to begin, for the block; None where there is none.

        Where the loader stands, and what it knows of ways to prepare batches, stays the same.
        """
        batches = self._batches(object(), self._epoch, 0)
        try:
            yield next(batches, None)
        finally:
            batches.close()  # type: ignore[attr-defined]

    def begin_elsewhere(self) -> tuple[Callable[[int], B], int]:
        """Begins the next epoch, or goes on in one, for a caller that prepares its batches by itself.

        Returns what makes the batch at a position, from any thread, and the position of the first that is left; the
        caller says by :meth:`trained_to` which were trained on.
        """
        if self._begun:
            self._epoch, self._position = self._epoch + 1, 0
        self._begun, self._turn = True, object()
        return self._preparer(self._epoch), self._position

    def trained_to(self, position: int) -> None:
        """So many batches of the epoch under way are done."""
        self._position = position

    def leave(self, position: int) -> None:
        """The epoch under way was left at ``position``; the next iteration goes on with that batch."""
        self._position, self._begun, self._turn = position, False, None

    def end_epoch(self) -> None:
        """The epoch under way is over."""
        self._epoch, self._position, self._begun, self._turn = self._epoch + 1, 0, False, None

    def order(self, epoch: int) -> Tensor:
        """int64 places of the items in the order of ``epoch``, with ``share`` those of this rank."""
        share = self._share or (0, 1)
        if self._item_weight is not None:
            return drawn_order(self._item_weight, self.batch_size, self._epoch_items(), self.seed, epoch, share)
        order = permutation(self.num_items, self.seed, epoch) if self.shuffle else torch.arange(self.num_items)
        return order if self._share is None else share_of_order(order, share)

    def _epoch_items(self) -> int:
        """Items that an epoch takes here."""
        return -(-self.num_items // (1 if self._share is None else self._share[1]))

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands: the epoch and how many of its batches were yielded, and what they were made from."""
        return {"epoch": self._epoch, "position": self._position, **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on after the last batch that was yielded before :meth:`state_dict`.

        Raises: CheckpointError when the state belongs to other items or options.
        """
        if not isinstance(state, Mapping):
            raise CheckpointError(f"{self.who}: expected a state as a dict, got {type(state).__name__}")
        identity = self._identity()
        more = [name for name in state if name not in identity and name not in ("epoch", "position")]
        if more:
            raise CheckpointError(f"{self.who}: expected a state without {more[0]}, got one of another kind or version")
        for name, mine in identity.items():
            if name not in state:
                raise CheckpointError(f"{self.who}: expected a state with {name}, got one of another kind or version")
            if state[name] != mine:
                raise CheckpointError(f"{self.who}: expected a state with {name} {mine}, got {state[name]}")
        epoch, position = state.get("epoch"), state.get("position")
        numbers = [-1 if type(number) is not int else number for number in (epoch, position)]
        if not 0 <= numbers[0] <= _MOST or not 0 <= numbers[1] <= self._length(numbers[0]):
            given = f"{epoch!r} and {position!r}"
            raise CheckpointError(f"{self.who}: expected epoch and position of a loader, got {given}")
        self._epoch, self._position = numbers
        self._begun, self._turn = False, None

    def _length(self, epoch: int) -> int:
        """Batches of an epoch."""
        full, rest = divmod(self._epoch_items(), self.batch_size)
        return full + (rest > 0 and not self._drop_last)

    def _reach(self, epoch: int, first: int) -> int:
        """The position up to which batches may be prepared ahead while that at ``first`` is wanted."""
        return self._length(epoch)

    def _preparer(self, epoch: int) -> Callable[[int], B]:
        """What makes the batch at a position of an epoch; called from any thread."""
        order = self.order(epoch)
        return lambda position: self.make(order[position * self.batch_size : (position + 1) * self.batch_size], epoch)

    def _batches(self, turn: object, epoch: int, first: int) -> Iterator[B]:
        """The batches of ``epoch`` from ``first`` on, each counted before it is handed over."""
        prepare, total = self._preparer(epoch), self._length(epoch)
        while first < total:
            last = self._reach(epoch, first)
            stay = _Stay(self._fastest)
            asked = time.perf_counter()
            count = 0  # not by enumerate, which holds the batch before while the next one is made
            with _model_threads(stay.way):
                for batch in _prepared(prepare, first, last, stay):
                    waited = time.perf_counter() - asked
                    self.stall_seconds += waited
                    first += 1
                    if self._turn is turn:
                        self._position = first
                    yield batch
                    del batch
                    now = time.perf_counter()
                    if count >= _UNCOUNTED:
                        stay.record(now - asked, waited)
                    count, asked = count + 1, now
        if self._turn is turn:
            self.end_epoch()

    def _ways(self, prefetch: int | None, workers: int | None) -> list[CoreSplit]:
        """What may be tried. Raises: ConfigError."""
        cores = processors()
        if workers is not None:
            workers = self._as_count("workers", workers, 0, 1024)
            if workers == 0:
                if prefetch:
                    raise ConfigError(f"{self.who}: prefetch={prefetch!r} cannot be combined with workers=0")
                return [CoreSplit(0, 0)]
        if prefetch is None:
            if workers is not None:
                return [CoreSplit(workers, 2 * workers)]
            return self._ways_on(cores)
        prefetch = self._as_count("prefetch", prefetch, 0, 2**20)
        if prefetch == 0:
            return [CoreSplit(0, 0)]
        return [CoreSplit(workers or min(prefetch, cores), prefetch)]

    @staticmethod
    def _ways_on(cores: int) -> list[CoreSplit]:
        """What is tried on so many cores where nothing was asked for."""
        return [CoreSplit(0, 0), *(CoreSplit(n, 2 * n) for n in sorted({1, cores // 2, cores}) if n > 0)]

    def _as_count(self, name: str, value: Any, least: int, most: int | None = None) -> int:
        """``value``, an integer of any kind, as one of Python's. Raises: ConfigError."""
        number = as_integer(value)
        if number is not None and number >= least and (most is None or number <= most):
            return number
        bounds = f">= {least}" if most is None else f"from {least} to {most}"
        raise ConfigError(f"{self.who}: expected {name} as an integer {bounds}, got {value!r}")


def in_host_memory(batches: Iterator[B]) -> Iterator[B]:
    """The same batches, each made as without a default device of torch, which the caller has again with every one."""
    try:
        while True:
            with on_host():
                batch = next(batches, None)
            if batch is None:
                return
            yield batch
            del batch
    finally:
        batches.close()  # type: ignore[attr-defined]


class _Stay:
    """Batches one after the other under one way, until another is to be tried."""

    def __init__(self, fastest: FastestChoice[CoreSplit]) -> None:
        self.way, self._fastest = fastest.way, fastest
        self._settled, self._ended = fastest.settled, False
        self._idle = 0.0  # batches for which the caller did nothing but wait; none once it did something

    def goes_on(self) -> bool:
        """Whether the next batch is to be prepared under this way."""
        return not self._ended

    def record(self, seconds: float, waited: float) -> None:
        """A batch took so long, of which the caller waited so long.

        What was begun when the way ended tells nothing: nothing is prepared beside it.
        """
        if self._settled or self._ended:
            return
        self._idle = self._idle + 1 if waited > _IDLE * seconds else -math.inf
        if self.way.workers == 0 and self._idle == ENOUGH:  # one thread beside an idle caller is not faster than all
            self._fastest.leave_out(lambda way: way.workers == 1 and way.model == 0)
        self._fastest.record(self.way, seconds)
        self._ended, self._settled = self._fastest.way != self.way, self._fastest.settled


def _waits_least(way: CoreSplit) -> bool:
    """Whether batches are made beside the model: as fast as in place, the caller waits less for them."""
    return way.workers > 0


@contextlib.contextmanager
def _model_threads(way: CoreSplit) -> Iterator[None]:
    """The caller's parallel loops run on as many threads as a way leaves to the model."""
    if way.model == 0:
        yield
        return
    before = torch.get_num_threads()
    set_width(way.model)
    try:
        yield
    finally:
        set_width(before)


def _prepared(prepare: Callable[[int], B], first: int, last: int, stay: _Stay) -> Iterator[B]:
    """Batches from ``first`` to ``last`` or the end of the stay, prepared its way; threads end with the iteration."""
    way = stay.way
    if way.workers == 0:
        for position in range(first, last):
            if not stay.goes_on():
                return
            with span("prepare batch", "prepare", position=position):
                batch = prepare(position)
            yield batch
            del batch
        return
    pipeline: Pipeline[B] = Pipeline(prepare, first, last, way.workers, way.ahead, stay.goes_on)
    try:
        yield from pipeline
    finally:
        pipeline.close()
