"""The loader: mini-batches of a dataset, epoch after epoch, prepared while the model runs.

Comes in: a dataset and what to sample. Goes out: :class:`Batch` after batch. Called by users' loops and the mini-batch
trainer. Epochs, resume and preparation are those of :class:`EpochLoader`.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from graphweft._checks import check_device, checksum
from graphweft._errors import ConfigError, GraphError
from graphweft._torch_private import hosted
from graphweft.graph.graph import Graph
from graphweft.graph.ids import Ids
from graphweft.graph.select import as_selection
from graphweft.loader.batch import Batch, Data, Preparer, check_tables, graph_of, make_batch
from graphweft.loader.device_draws import AHEAD, drawn_on, hot_rows
from graphweft.loader.device_rows import FAR_ROWS, DeviceRows
from graphweft.loader.disk import DiskTables, FedLoader, feed_of, on_disk
from graphweft.loader.epoch_order import as_item_weight, as_share
from graphweft.loader.fetching import as_fetch, fetched, labels_of
from graphweft.loader.other_keywords import refuse
from graphweft.sample.neighbor import NeighborSampler
from graphweft.sample.sampler import GroupSampler, Sampler
from graphweft.sample.segment import SegmentSampler
from graphweft.storage.feature import is_dense
from graphweft.storage.memory_size import memory_bytes
from graphweft.storage.store import Store

_USUAL_FANOUTS = (15, 10, 5)


class Loader(FedLoader[Batch]):
    """Mini-batches: sampled neighbourhoods of ``batch_size`` seeds each. Every ``iter(loader)`` starts the next epoch.

    Batches do not depend on the number of threads. :meth:`state_dict`, taken between batches, is small. A loader that
    loads it, in another process too, resumes with the next batch of the epoch, bit for bit.

    Args:
        ds: A dataset, or a graph alone. Or a :class:`gw.macro.Store`: its structure is read into memory, its features
            stay on disk, and rows of coming batches are read ahead.
        seeds: Distinct nodes as ids or a mask; None: the training nodes of ``ds``. On a typed graph also a type, or
            (type, ids or mask) with ids local to it. ``batch.input_id`` has node ids, also for a mask.
        fanouts: Most in-edges that a node draws, one number per hop from the seeds outwards; -1: all. None: 15, 10, 5.
            On a typed graph the numbers apply to every relation. A dict from relation to such a list sets them
            separately; relations that are not in it have 0.
        batch_size: Seeds of a batch; the last batch may have fewer. For a sampler with other items (parts, draws),
            items of a batch.
        shuffle: Whether every epoch has a new order of the seeds, or items.
        seed: Keys order and draws.
        replace: Draw edges with replacement.
        weight: (E,) weights >= 0 of the edges, or a mask, by edge id; on a typed graph also a dict by relation; None:
            uniform.
        sampler: Draws the batches; None: a :class:`NeighborSampler` with ``fanouts``, ``replace`` and ``weight``, or on
            a typed graph a :class:`SegmentSampler`.
        time: Times of the seeds, for a :class:`SegmentSampler` with times; seeds may then repeat.
        drop_last: Leave out a last batch that is not full.
        prefetch: Batches that threads prepare ahead; 0: each batch is prepared when it is needed; None: the faster way
            is measured during the first batches.
        workers: Threads that prepare batches ahead; 0: none, as ``prefetch=0``; None: as many as ``prefetch``, at most
            one per processor.
        item_weight: (num_seeds,) weights by which the seeds of a batch are drawn, in place of a pass over all seeds;
            "balanced" gives all classes the same weight. A seed occurs at most once in a batch. The number of batches
            of an epoch stays the same.
        share: (rank, number of ranks) or ``gw.dist.Ranks``: the part of every epoch for this process. Together, the
            ranks take every seed, and each takes the same number.
        fetch: A function from node ids, int64 (n,), to their rows, which become ``batch.x``, for features in a store of
            your own. It is called from any thread. On a typed graph, a dict by type of such functions of local ids.
        prepare: How the batches of a neighbour sampler are made; None: each by one thread.
            :class:`gw.schedule.Subtasks` divides them into subtasks for several threads.
        memory: For a store, bytes or a text such as "8GB" for structure, labels and rows of features together; None: a
            quarter of the machine's memory.
        device: Device that draws the batches, such as "cuda"; the batches are the same.
        device_memory: Bytes or a text for structure and rows of features on the device; None: only the structure.
        far_rows: How rows of features in host memory reach the device: "read" by the device from pinned memory; "sent"
            with their batch; "auto" for the faster way for a typical batch.

    Raises: ConfigError, GraphError, IndexRangeError, ShapeError for arguments that do not fit; DataError for a damaged
        store.

    Example:
        >>> graph = Graph([1, 2, 3, 0], [0, 0, 1, 2])
        >>> loader = Loader(graph, seeds=[0, 1, 2], fanouts=[2], batch_size=2)
        >>> [(batch.n_id.tolist(), batch.edge_index.tolist()) for batch in loader]
        [([0, 1, 2, 3], [[1, 2, 3], [0, 0, 1]]), ([2, 0], [[1], [0]])]
    """

    who = "Loader"

    @hosted
    def __init__(
        self,
        ds: Data | Graph | Store,
        seeds: Ids | None = None,
        fanouts: Any = None,
        batch_size: int = 1024,
        shuffle: bool = False,
        seed: int = 0,
        *,
        replace: bool = False,
        weight: Any = None,
        sampler: Sampler | GroupSampler | None = None,
        time: Any = None,
        drop_last: bool = False,
        prefetch: int | None = None,
        workers: int | None = None,
        prepare: Preparer | None = None,
        memory: int | str | None = None,
        item_weight: Any = None,
        share: Any = None,
        fetch: Any = None,
        device: Any = None,
        device_memory: int | str | None = None,
        far_rows: str = "auto",
        **others: NoReturn,
    ) -> None:
        refuse("Loader", others, Loader)
        stored, data, prefetch = on_disk(ds, memory, prefetch, workers)
        graph = graph_of("Loader", data)
        check_tables("Loader", data)
        sampler = _sampler_of(graph, sampler, fanouts, replace, weight)
        _check_preparer(prepare, sampler)
        self.sampler: Sampler | GroupSampler = sampler
        self.preparer = prepare
        self._mask_ids = _mask_ids(seeds)
        self.seeds = _as_seeds(data, graph, seeds, isinstance(sampler, SegmentSampler) and sampler.disjoint)
        self.seed_time: Tensor | None = None
        if isinstance(sampler, SegmentSampler):
            self.seed_time = sampler.seed_times(time, self.seeds.numel())
        elif time is not None:
            raise ConfigError("Loader: expected a SegmentSampler of edges with times for time, got another sampler")
        self._place = _places(self.seeds, graph.num_nodes) if isinstance(sampler, GroupSampler) else None
        self._wanted = None if self._place is None else self._place >= 0
        self._ds, self._checksum, self._times_checksum = data, checksum(self.seeds), checksum(self.seed_time)
        count = sampler.num_items if isinstance(sampler, GroupSampler) else self.seeds.numel()
        self._fetch = as_fetch("Loader", graph, fetch)
        size = self._as_count("batch_size", batch_size, 1)
        labels = None if isinstance(sampler, GroupSampler) else labels_of(data, self.seeds)
        drawn = as_item_weight("Loader", item_weight, labels, count, size)
        part = as_share("Loader", share, count)
        if device is not None and str(device) != "cpu" and prefetch is None and workers is None:
            prefetch, workers = AHEAD["prefetch"], AHEAD["workers"]
        super().__init__(count, batch_size, shuffle, seed, drop_last, prefetch, workers, drawn, part)
        self._feed = None if stored is None else feed_of(self, stored)
        on_cpu = {"prepare": prepare, "time": time, "a store": stored, "fetch": fetch}
        self._take_device(device, device_memory, far_rows, on_cpu)

    @property
    def graph(self) -> Graph:
        """The graph that is sampled."""
        return self.sampler.graph

    def _take_device(self, device: Any, memory: int | str | None, far: str, others: dict[str, Any]) -> None:
        """Who draws, and which rows lie on the device."""
        self.device = None if device is None else check_device("Loader", device)
        room = None if memory is None else memory_bytes(memory, "device_memory")
        self._draws = drawn_on(self.device, self.sampler, others, room)
        self.device_rows: DeviceRows | None = None
        if far not in FAR_ROWS:
            raise ConfigError(f"far_rows: expected one of {', '.join(FAR_ROWS)}, got {far!r}")
        if room is not None:
            if self.device is None or self._draws is self.sampler or isinstance(self._ds, Graph):
                raise ConfigError("Loader: expected device_memory with device='cuda' and a dataset with features")
            self.device_rows = hot_rows(self, self._ds.x, room, far)
        elif far != "auto":
            raise ConfigError(f"Loader: expected device_memory with far_rows={far!r}, got none")

    @property
    def data(self) -> Data | Graph:
        """The dataset or graph that was given."""
        return self._ds

    @property
    def fanouts(self) -> tuple[Any, ...]:
        """Most in-edges that a node draws per hop, from the seeds outwards (of every relation); empty for a sampler
        without.
        """
        return tuple(getattr(self.sampler, "fanouts", ()))

    def _identity(self) -> dict[str, Any]:
        timed = {} if self.seed_time is None else {"seed_times_checksum": self._times_checksum}
        return {
            **super()._identity(),
            **timed,
            "sampler": type(self.sampler).__name__,
            **self.sampler.identity(),
            "num_seeds": self.seeds.numel(),
            "seeds_checksum": self._checksum,
            "num_nodes": self.graph.num_nodes,
            "num_edges": self.graph.num_edges,
        }

    def make(self, places: Tensor, epoch: int) -> Batch:
        """The batch for the seeds, or the sampler's items, at ``places``; called from any thread."""
        return fetched(self._unfetched(places, epoch), self._fetch)

    def _unfetched(self, places: Tensor, epoch: int) -> Batch:
        if isinstance(self.sampler, GroupSampler):
            assert self._place is not None and self._wanted is not None  # a group sampler has both
            drawn = self.sampler.draw(places, self._wanted, seed=self.seed, epoch=epoch)
            return make_batch(drawn, self._ds, self._inputs(self._place[drawn.n_id[: drawn.batch_size]]))
        if self.preparer is not None:
            x = None if isinstance(self._ds, Graph) else self._ds.x
            table = x if is_dense(x) else None
            made = self.preparer.prepare(self.sampler, self.seeds[places], (self.seed, epoch, 0), table)
            return make_batch(made.sample, self._ds, self._inputs(places), made.x)
        if self.seed_time is None:
            sample = self._draws.sample(self.seeds[places], seed=self.seed, epoch=epoch)
            if self.device is None:
                return make_batch(sample, self._ds, self._inputs(places))
            rows = None if self.device_rows is None else self.device_rows(sample.ids)
            return make_batch(sample, self._ds, self._inputs(places), rows).to(self.device)
        assert isinstance(self.sampler, SegmentSampler)  # it alone has times
        times = self.seed_time[places]
        sample = self.sampler.sample(self.seeds[places], time=times, keys=places, seed=self.seed, epoch=epoch)
        batch = make_batch(sample, self._ds, self._inputs(places))
        batch.seed_time = times
        return batch

    def nodes_read(self, made: Any) -> Tensor:
        """int64 nodes whose rows of features a batch of :meth:`make` reads; of a store."""
        return self._tables().nodes_read(made.n_id)

    def with_rows(self, made: Any, table: Tensor, place: Tensor) -> Batch:
        """A batch of :meth:`make` with its features: the row of node i is ``table[place[i]]``; of a store."""
        made.x = self._tables().rows(made.n_id, table, place)
        batch: Batch = made
        return batch

    def _tables(self) -> DiskTables:
        assert isinstance(self._ds, DiskTables)  # of a store
        return self._ds

    def _inputs(self, places: Tensor) -> Tensor:
        """What ``input_id`` says of the seeds at these places."""
        return places if self._mask_ids is None else self._mask_ids[places]


def _sampler_of(
    graph: Graph, sampler: Sampler | GroupSampler | None, fanouts: Any, replace: bool, weight: Any
) -> Sampler | GroupSampler:
    """The sampler given, or the usual one. Raises: ConfigError for what is no sampler of this graph."""
    if hasattr(fanouts, "sample") or hasattr(fanouts, "draw"):
        raise ConfigError(f"Loader: expected fanouts as numbers, got {type(fanouts).__name__}; write sampler=...")
    if sampler is None:
        fanouts = _USUAL_FANOUTS if fanouts is None else fanouts
        if graph.is_typed:
            return SegmentSampler(graph, fanouts, replace, weight=weight)
        return NeighborSampler(graph, fanouts, replace, weight)
    if fanouts is not None or replace or weight is not None:
        raise ConfigError("Loader: sampler cannot be combined with fanouts, replace or weight")
    if not isinstance(getattr(sampler, "graph", None), Graph):
        name = type(sampler).__name__
        hint = "; item_weight= draws seeds by weight" if name in ("ImbalancedSampler", "WeightedRandomSampler") else ""
        got = name if hint else repr(sampler)
        raise ConfigError(
            f"Loader: expected a sampler, such as gw.sampling.NeighborSampler(graph, [9]), got {got}{hint}"
        )
    if sampler.graph is not graph:
        raise ConfigError(f"Loader: expected a sampler over {graph!r}, got one over another {sampler.graph!r}")
    return sampler


def _check_preparer(prepare: Any, sampler: Any) -> None:
    """Raises: ConfigError."""
    if prepare is not None and not isinstance(sampler, NeighborSampler):
        raise ConfigError(f"prepare: expected a neighbour sampler with it, got {type(sampler).__name__}")
    if prepare is not None and not hasattr(prepare, "prepare"):
        raise ConfigError(f"prepare: expected gw.schedule.Subtasks, got {prepare!r}")


def _as_seeds(ds: Data | Graph, graph: Graph, seeds: Ids | None, repeats: bool) -> Tensor:
    """int64 ids, each once unless ``repeats``.

    Raises: ConfigError for an id that comes twice, or when there are none to take; IndexRangeError.
    """
    if seeds is None:
        if isinstance(ds, Graph):
            raise ConfigError("Loader: expected seeds for a graph without a dataset, got None")
        seeds = ds.train_idx
        if seeds is None:
            raise ConfigError("Loader: expected seeds where the data has no split, got None")
    ids = (
        _of_type(graph, seeds) if _names_type(seeds) else as_selection("Loader", "seed", seeds, graph.num_nodes).clone()
    )
    if not repeats and ids.numel() and int(torch.bincount(ids).max()) > 1:
        ordered, places = torch.sort(ids, stable=True)
        at = int((ordered[1:] == ordered[:-1]).nonzero()[0])
        pair = f"positions {int(places[at])} and {int(places[at + 1])}"
        raise ConfigError(f"Loader: expected distinct seeds, got {int(ordered[at])} at {pair}")
    return ids


def _mask_ids(seeds: Any) -> Tensor | None:
    """The ids that a mask stands for, local to its type where it came with one; None for ids."""
    mask = seeds[1] if _names_type(seeds) and not isinstance(seeds, str) else seeds
    if isinstance(mask, Tensor | np.ndarray):
        mask = torch.as_tensor(mask)
    elif isinstance(mask, list) and mask and all(isinstance(item, bool) for item in mask):
        mask = torch.tensor(mask)
    return mask.nonzero().reshape(-1).cpu() if isinstance(mask, Tensor) and mask.dtype == torch.bool else None


def _names_type(seeds: Any) -> bool:
    return isinstance(seeds, str) or (isinstance(seeds, tuple) and len(seeds) == 2 and isinstance(seeds[0], str))


def _of_type(graph: Graph, seeds: Any) -> Tensor:
    """All nodes of a type, or some of them, in the numbering of all. Raises: GraphError without that type."""
    kind, chosen = (seeds, None) if isinstance(seeds, str) else seeds
    if not graph.is_typed:
        raise GraphError(f"Loader: expected a typed graph for seeds of type {kind!r}, got one without types")
    nodes = graph.layout.node_range(kind)
    return as_selection("Loader", "seed", slice(None) if chosen is None else chosen, len(nodes)) + nodes.start


def _places(seeds: Tensor, num_nodes: int) -> Tensor:
    """int64 (num_nodes,): where each node is among the seeds, or -1."""
    places = torch.full((num_nodes,), -1)
    places[seeds] = torch.arange(seeds.numel())
    return places
