"""The loader: mini-batches of a dataset, epoch after epoch, prepared while the model runs.

Comes in: a dataset and what to sample. Goes out: :class:`Batch` after batch. Called by users' loops and the mini-batch
trainer. What a batch holds follows from (seed, epoch, its place in the epoch) alone, never from threads or from what
was prepared ahead, so that two numbers are enough to go on in the middle of an epoch.
"""

from __future__ import annotations

import ctypes
import os
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from graphweft._errors import CheckpointError, ConfigError
from graphweft._native import declare
from graphweft.graph.graph import Graph
from graphweft.graph.ids import Ids
from graphweft.graph.select import as_selection
from graphweft.loader.batch import Batch, Data, make_batch
from graphweft.loader.pipeline import Pipeline
from graphweft.loader.tempo import Tempo, Way
from graphweft.sample.neighbor import NeighborSampler
from graphweft.sample.sampler import GroupSampler, Sampler

_permutation = declare("gw_permutation", ctypes.c_int64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p)

_SEGMENT = 10  # batches under one way while ways are tried
_UNCOUNTED = 2  # of these, the first fill the queue
_USUAL_FANOUTS = (15, 10, 5)


class Loader:
    """Neighbourhoods of the seeds, ``batch_size`` at a time. Every ``iter(loader)`` starts the next epoch.

    Batches are the same for any number of threads. :meth:`state_dict`, taken between batches, is a few numbers from
    which another process yields the rest of the epoch, and all later ones, bit for bit.

    Args:
        ds: A dataset, or a graph alone.
        seeds: Distinct nodes: ids or a mask; None: the training nodes of ``ds``.
        fanouts: In-edges that a node draws, from the seeds outwards: at most k, or -1 for all; None: 15, 10, 5.
        batch_size: Seeds of a batch; the last one may have fewer. With a sampler that goes over items of its own
            (parts, draws) so many of those.
        shuffle: A new order of the seeds, or items, every epoch.
        seed: Keys order and draws.
        replace: Draw edges with replacement.
        weight: (E,) weights >= 0 of the edges, by edge id; None: uniform.
        sampler: Draws the batches; None: a :class:`NeighborSampler` of ``fanouts``, ``replace`` and ``weight``, which
            are for that one only.
        drop_last: Leave out a last batch that is not full.
        prefetch: Batches prepared ahead by threads beside the model; 0: none, each is prepared when asked for; None:
            tried out during the first batches.
        workers: Threads that prepare ahead; None: as many as ``prefetch``, at most one per processor.

    Raises: ConfigError, GraphError, IndexRangeError, ShapeError for arguments that do not fit.

    Example:
        >>> graph = Graph([1, 2, 3, 0], [0, 0, 1, 2])
        >>> loader = Loader(graph, seeds=[0, 1, 2], fanouts=[2], batch_size=2)
        >>> [(batch.n_id.tolist(), batch.edge_index.tolist()) for batch in loader]
        [([0, 1, 2, 3], [[1, 2, 3], [0, 0, 1]]), ([2, 0], [[1], [0]])]
    """

    def __init__(
        self,
        ds: Data | Graph,
        seeds: Ids | None = None,
        fanouts: Any = None,
        batch_size: int = 1024,
        shuffle: bool = False,
        seed: int = 0,
        *,
        replace: bool = False,
        weight: Tensor | None = None,
        sampler: Sampler | GroupSampler | None = None,
        drop_last: bool = False,
        prefetch: int | None = None,
        workers: int | None = None,
    ) -> None:
        graph = ds if isinstance(ds, Graph) else ds.graph
        if sampler is None:
            sampler = NeighborSampler(graph, _USUAL_FANOUTS if fanouts is None else fanouts, replace, weight)
        elif fanouts is not None or replace or weight is not None:
            raise ConfigError("Loader: expected a sampler, or fanouts, replace and weight, got both")
        elif sampler.graph is not graph:
            raise ConfigError(f"Loader: expected a sampler over {graph!r}, got one over another {sampler.graph!r}")
        self.sampler: Sampler | GroupSampler = sampler
        self.seeds = _as_seeds(ds, graph, seeds)
        self._place = _places(self.seeds, graph.num_nodes) if isinstance(sampler, GroupSampler) else None
        self._wanted = None if self._place is None else self._place >= 0
        _check_count("batch_size", batch_size, 1)
        _check_count("seed", seed, 0, 2**63 - 1)
        self.batch_size, self.shuffle, self.seed = batch_size, bool(shuffle), seed
        self._ds, self._drop_last = ds, bool(drop_last)
        self._checksum = zlib.crc32(self.seeds.numpy().tobytes())
        self._tempo = Tempo(_ways(prefetch, workers))
        self._epoch = self._position = 0
        self._begun = False
        self._turn: object = None
        self.stall_seconds = 0.0

    @property
    def graph(self) -> Graph:
        """The graph that is sampled."""
        return self.sampler.graph

    @property
    def fanouts(self) -> tuple[int, ...]:
        """In-edges that a node draws, from the seeds outwards; none for a sampler without."""
        return tuple(getattr(self.sampler, "fanouts", ()))

    @property
    def num_items(self) -> int:
        """What an epoch goes over: seeds, or the sampler's own items."""
        return self.sampler.num_items if isinstance(self.sampler, GroupSampler) else self.seeds.numel()

    @property
    def epoch(self) -> int:
        """The epoch under way, or about to begin; counts from 0."""
        return self._epoch

    @property
    def way(self) -> Way:
        """How batches are prepared now."""
        return self._tempo.way

    def __len__(self) -> int:
        """Batches of the epoch under way, or about to begin."""
        return self._length(self._epoch)

    def __iter__(self) -> Iterator[Batch]:
        if self._begun:
            self._epoch, self._position = self._epoch + 1, 0
        self._begun = True
        self._turn = turn = object()
        return self._batches(turn, self._epoch, self._position)

    def order(self, epoch: int) -> Tensor:
        """int64 places of the seeds, or the sampler's items, in the order of ``epoch``."""
        count = self.num_items
        if not self.shuffle:
            return torch.arange(count)
        places = torch.empty(count, dtype=torch.int64)
        _permutation(count, self.seed, epoch, places.data_ptr())
        return places

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands: the epoch and how many of its batches were yielded, and what they were made from."""
        return {"epoch": self._epoch, "position": self._position, **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on after the last batch that was yielded before :meth:`state_dict`.

        Raises: CheckpointError when the state belongs to other seeds or options.
        """
        for name, mine in self._identity().items():
            if name not in state or state[name] != mine:
                raise CheckpointError(f"Loader: expected a state with {name} {mine}, got {state.get(name)}")
        epoch, position = state.get("epoch"), state.get("position")
        numbers = epoch if isinstance(epoch, int) else -1, position if isinstance(position, int) else -1
        if numbers[0] < 0 or not 0 <= numbers[1] <= self._length(numbers[0]):
            raise CheckpointError(f"Loader: expected epoch and position of a loader, got {epoch!r} and {position!r}")
        epoch, position = numbers
        self._epoch, self._position = epoch, position
        self._begun, self._turn = False, None

    def _identity(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "shuffle": self.shuffle,
            "batch_size": self.batch_size,
            "drop_last": self._drop_last,
            "sampler": type(self.sampler).__name__,
            **self.sampler.identity(),
            "num_seeds": self.seeds.numel(),
            "seeds_checksum": self._checksum,
            "num_nodes": self.graph.num_nodes,
            "num_edges": self.graph.num_edges,
        }

    def make(self, places: Tensor, epoch: int) -> Any:
        """What is yielded for the seeds, or the sampler's items, at ``places``; called from any thread."""
        if isinstance(self.sampler, GroupSampler):
            assert self._place is not None and self._wanted is not None  # a group sampler has both
            drawn = self.sampler.draw(places, self._wanted, seed=self.seed, epoch=epoch)
            return make_batch(drawn, self._ds, self._place[drawn.n_id[: drawn.batch_size]])
        sample = self.sampler.sample(self.seeds[places], seed=self.seed, epoch=epoch)
        return make_batch(sample, self._ds, places)

    def _length(self, epoch: int) -> int:
        """Batches of an epoch."""
        full, rest = divmod(self.num_items, self.batch_size)
        return full + (rest > 0 and not self._drop_last)

    def _preparer(self, epoch: int) -> Callable[[int], Batch]:
        """What makes the batch at a position of an epoch; called from any thread."""
        order = self.order(epoch)

        def prepare(position: int) -> Batch:
            made: Batch = self.make(order[position * self.batch_size : (position + 1) * self.batch_size], epoch)
            return made

        return prepare

    def _batches(self, turn: object, epoch: int, first: int) -> Iterator[Batch]:
        """The batches of ``epoch`` from ``first`` on, each counted before it is handed over."""
        prepare, last = self._preparer(epoch), self._length(epoch)
        while first < last:
            way = self._tempo.way
            end = last if self._tempo.settled else min(last, first + _SEGMENT)
            asked = time.perf_counter()
            for count, batch in enumerate(_prepared(prepare, first, end, way)):
                self.stall_seconds += time.perf_counter() - asked
                first += 1
                if self._turn is turn:
                    self._position = first
                yield batch
                del batch
                now = time.perf_counter()
                if count >= _UNCOUNTED:
                    self._tempo.record(way, now - asked)
                asked = now
        if self._turn is turn:
            self._epoch, self._position, self._begun, self._turn = epoch + 1, 0, False, None


def _prepared(prepare: Any, first: int, last: int, way: Way) -> Iterator[Batch]:
    """Batches ``first`` to ``last``, prepared the given way; threads end with the iteration."""
    if way.workers == 0:
        for position in range(first, last):
            yield prepare(position)
        return
    pipeline: Pipeline[Batch] = Pipeline(prepare, first, last, way.workers, way.ahead)
    try:
        yield from pipeline
    finally:
        pipeline.close()


def _ways(prefetch: int | None, workers: int | None) -> list[Way]:
    """What may be tried. Raises: ConfigError."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    if workers is not None:
        _check_count("workers", workers, 1, 1024)
    if prefetch is None:
        if workers is not None:
            return [Way(workers, 2 * workers)]
        return [Way(0, 0), *(Way(count, 2 * count) for count in sorted({1, cores // 2, cores}) if count > 0)]
    _check_count("prefetch", prefetch, 0, 2**20)
    if prefetch == 0:
        return [Way(0, 0)]
    return [Way(workers or min(prefetch, cores), prefetch)]


def _as_seeds(ds: Data | Graph, graph: Graph, seeds: Ids | None) -> Tensor:
    """int64 ids, each once.

    Raises: ConfigError for an id that comes twice, or when there are none to take; IndexRangeError.
    """
    if seeds is None:
        if isinstance(ds, Graph):
            raise ConfigError("Loader: expected seeds for a graph without a dataset, got None")
        seeds = ds.train_idx
    ids = as_selection("Loader", "seed", seeds, graph.num_nodes).clone()
    if ids.numel() and int(torch.bincount(ids).max()) > 1:
        ordered, places = torch.sort(ids, stable=True)
        at = int((ordered[1:] == ordered[:-1]).nonzero()[0])
        pair = f"positions {int(places[at])} and {int(places[at + 1])}"
        raise ConfigError(f"Loader: expected distinct seeds, got {int(ordered[at])} at {pair}")
    return ids


def _places(seeds: Tensor, num_nodes: int) -> Tensor:
    """int64 (num_nodes,): where each node is among the seeds, or -1."""
    places = torch.full((num_nodes,), -1)
    places[seeds] = torch.arange(seeds.numel())
    return places


def _check_count(name: str, value: Any, least: int, most: int | None = None) -> None:
    if isinstance(value, int) and not isinstance(value, bool) and value >= least and (most is None or value <= most):
        return
    bounds = f">= {least}" if most is None else f"from {least} to {most}"
    raise ConfigError(f"Loader: expected {name} as an integer {bounds}, got {value!r}")
