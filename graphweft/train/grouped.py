"""Mode "macro": training on groups of parts, from a store on disk or from a dataset in memory.

Comes in: a model, a dataset, how many parts make a group or how much memory there is. Goes out: epochs and evaluations
for the trainer. Batches are those of :class:`GroupLoader`; everything about a step is that of mini-batches. Source:
Hanoi, section 4.3.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from graphweft._errors import ConfigError, DataError, MemoryBudgetError
from graphweft.data.dataset import Dataset, training_labels
from graphweft.data.stored import StoredDataset
from graphweft.loader.batch import Batch
from graphweft.loader.group_loader import GroupLoader
from graphweft.loader.groups import NOTHING, group_bytes, kept_bytes, parts_within
from graphweft.loader.hubs import Hubs, pin_hubs
from graphweft.loader.neighbours import BroughtSizes, Neighbours
from graphweft.loader.parts import MemoryParts, PartSource
from graphweft.loader.whole_first import WholeFirstLoader, WithJoint
from graphweft.nn.edges import EdgeInputs
from graphweft.nn.typed_stack import TypedStack
from graphweft.partitioning.partition import check_filled, partition
from graphweft.runtime.staged import PreparedBatch
from graphweft.sample.stages import Parts
from graphweft.storage.feature import Features
from graphweft.storage.memory_size import memory_bytes, shown_bytes
from graphweft.train.disk_batches import check_typed_model
from graphweft.train.edge_data import EdgeData
from graphweft.train.full_batch import evaluation
from graphweft.train.joint_rows import check_first, with_joint_rows
from graphweft.train.macro import Macro
from graphweft.train.metrics import Evaluation
from graphweft.train.mini_batch import MiniBatch
from graphweft.train.needs import RunBudget, trimmed
from graphweft.train.neighbour_choice import ENOUGH, Way, taken_of, ways_of
from graphweft.train.options import AUTO, FIRST, check_macro
from graphweft.train.part_inference import PartInference
from graphweft.train.samplers import fitting_fanouts
from graphweft.train.scratch import NoRoomError, Scratch
from graphweft.train.setup import Setup
from graphweft.train.stored_needs import fit_groups, predicted_bytes
from graphweft.train.stored_sizes import least_beside, least_told

_PAGES = 16  # one in so many bytes of the budget is for pages of neighbours that wait for the disk
_NO_EDGES = ("edge_weight", "edge_features")


def check_macro_run(ds: Dataset, task: str, sampler: Any, prepare: object, reads_edges: bool) -> None:
    """Options of mode "macro" are those it can train with; values of edges are not read. Raises: ConfigError."""
    for name, value, wanted in (
        ("task", task, "nodes"),
        ("sampler", sampler, "neighbor"),
        ("prepare", prepare, "whole"),
    ):
        if value != wanted:
            given = value if isinstance(value, str) else type(value).__name__
            raise ConfigError(f"{name}={given} cannot be combined with mode=macro; use {name}={wanted}")
    left = [name for name in _NO_EDGES if getattr(ds, name, None) is not None]
    left = [] if isinstance(ds, StoredDataset) else left
    if left and reads_edges:
        raise ConfigError(
            f"mode=macro cannot be combined with {left[0]}, which groups of parts do not have; use mode='mini', or "
            "edge_data='ignore'"
        )


class OnGroups(MiniBatch):
    """Steps on groups of parts, whose features are read with them."""

    _x: Features
    _source: PartSource
    group: int
    is_asked: bool

    @property
    def x(self) -> Features:
        """Features of all nodes of a dataset in memory; of a store their width alone."""
        return self._x

    @x.setter
    def x(self, x: Features) -> None:
        self._x = x

    def prepare(self) -> None:
        """Nothing is compiled ahead: every group is another graph."""

    @contextmanager
    def rehearsal(self) -> Iterator[Callable[[], object]]:
        """As for all mini-batches; no group is held afterwards."""
        with super().rehearsal() as run:
            try:
                yield run
            finally:
                self.let_go()

    @abstractmethod
    def let_go(self) -> None:
        """Holds no group."""

    def made_of(self) -> str:
        """As for all mini-batches, with the groups that they are drawn in."""
        return f"{super().made_of()}, drawn in groups of {self.group} of {len(self._source.bounds) - 1} parts"

    def lean(self) -> bool:
        """Makes groups that need less, where they have more than was asked for; whether they had."""
        return False

    @abstractmethod
    def regroup(self, count: int) -> None:
        """Groups of so many parts from now on; before the first epoch."""

    def fit_into(self, budget: RunBudget) -> None:
        """Chooses how many parts make a group, how batches are prepared and what an evaluation has in memory."""
        fit_groups(self, budget)

    def evaluated_as(self) -> Any:
        """What tells the memory of an evaluation: model, data, rows and inference."""
        return self

    def go_on_as(self, saved: dict[str, Any]) -> dict[str, Any]:
        """Takes over the parts of a group, where they were not asked for. Raises: MemoryBudgetError."""
        count, _, parts = str(saved.get("group", "")).partition("/")
        chosen = not self.is_asked and count.isdigit() and parts == str(len(self._source.bounds) - 1)
        if chosen and int(count) != self.group:
            self.is_asked = True
            self.regroup(int(count))
            if self.budget is not None:
                self.fit_into(self.budget)
        return self.identity()


class Grouped(OnGroups):
    """Trains a model on batches drawn inside of groups of parts.

    Args:
        setup: With "parts:B/P" or ``Parts`` for a dataset in memory as ``macro``; None: as many parts of a store as
            fit. Without ``memory`` the groups of a store have a quarter of the machine's.

    Attributes:
        group: Parts of a group.
        is_asked: Whether these are as many as the user said.
        neighbours: What each part brings into its groups, or None.
        ways: Those to make groups that neighbours were chosen from; none where they were not chosen.
        inference: What evaluates.

    Raises: ConfigError for options that do not fit, MemoryBudgetError for too little memory.
    """

    loader: GroupLoader
    _joint: WithJoint | None = None  # the parts, where the first layer reads all in-edges

    def _set_up(self, setup: Setup) -> None:
        model, ds, macro, memory = setup.model, setup.ds, setup.drawn.macro, setup.memory
        if isinstance(ds, StoredDataset):
            check_typed_model(model, ds.store)
        elif isinstance(model, TypedStack):
            raise ConfigError(
                f"mode: expected full or mini for {type(model).__name__} and data in memory, got 'macro'; "
                "graphweft prepare makes a store"
            )
        self._x = setup.x
        self._take_labels(setup)
        self.fanouts = fitting_fanouts(model, setup.drawn.fanouts)
        hubs = 0 if macro is None or macro.hubs is None else memory_bytes(macro.hubs, "hubs")
        self.is_asked = _asked(macro) is not None
        beside = _beside(model, ds, self.fanouts, setup.drawn.batch_size, memory)
        self._plain, self._row_ids = _source_of(ds, setup.x, macro)
        self._source = self._plain
        if macro is not None and macro.first != FIRST[0]:
            stack = check_first(model, self._plain)
            _count_of(self._plain, ds, macro, memory, hubs, beside, None)  # refuses before anything is found
            self._joint = with_joint_rows(stack, self._plain, memory_bytes(memory), setup.scratch)
            self._source = self._joint
        count_of = partial(_count_of, self._source, ds, macro, memory, hubs, beside)
        self._bring = partial(self._brought, setup)
        self._is_auto = macro is not None and macro.neighbours == AUTO
        self.ways: tuple[Way, ...] = ()
        self.group, self.neighbours = self._chosen(0.0 if macro is None else macro.neighbours, count_of)
        self._inputs: tuple[Any, EdgeInputs | None] = (None, None)
        self.hubs = self._pinned(hubs) if hubs else None
        self._reuse, self._keep = (1, 0) if macro is None else (macro.reuse, macro.keep)
        self._seen = (0, 0, 0.0, 0.0)
        self.loader, self.macro = self._load()
        self._labels = ds.y[:0]
        budget = memory_bytes(memory) if memory is not None or isinstance(ds, StoredDataset) else 1 << 30
        source = self.loader.source if self._joint is None else self._plain  # that of the loader keeps parts in memory
        room = budget - kept_bytes(source, self._keep)
        self.inference = PartInference(model, source, room, self.group, setup.scratch)

    def _load(self) -> tuple[GroupLoader, None]:
        """The loader over the training rows."""
        kind = GroupLoader if self._joint is None else WholeFirstLoader
        loader = kind(
            *(self._source, self._seeds(), self.fanouts, self.drawn.batch_size, True, self.seed),
            count=self.group,
            hubs=self.hubs,
            reuse=self._reuse,
            keep=self._keep,
            neighbours=self.neighbours,
        )
        return loader, None

    def regroup(self, count: int) -> None:
        """Groups of so many parts from now on; before the first epoch."""
        self.group = self.inference.count = count
        self.loader, self.macro = self._load()

    def lean(self) -> bool:
        """Makes groups without neighbours, where these were chosen here; whether there were some."""
        if self.neighbours is None or not self._is_auto:
            return False
        self.neighbours = None
        self.regroup(self.ways[0].group)
        return True

    def go_on_as(self, saved: dict[str, Any]) -> dict[str, Any]:
        """As for all groups; takes over the share of neighbours as well, where it was chosen."""
        share = saved.get("neighbours", 0.0)
        if self._is_auto and share != (0.0 if self.neighbours is None else self.neighbours.share):
            self.neighbours, self._is_auto = self._bring(share) if share else None, False
            self.group = 0  # none was made with these
        return super().go_on_as(saved)

    def rehearse(self, batch: Batch) -> None:
        """The gradients of a batch, without an update."""
        y = batch.y
        assert y is not None  # groups have labels
        self._labels = y[: batch.batch_size]
        self.gradients(batch)

    def let_go(self) -> None:
        """Holds no group."""
        self._inputs, self._labels = (None, None), self.ds.y[:0]

    def _seeds(self) -> Tensor:
        """The training rows in the numbers of the source, ascending."""
        found: Tensor = torch.unique(self._row_ids[self.rows["train"]], sorted=True)
        return found

    def _pinned(self, budget: int) -> Hubs:
        """The most influential nodes for the training rows, as many steps away as there are layers."""
        return pin_hubs(self._source, self._seeds(), len(self.fanouts), budget, label_bytes(self.ds))

    def _chosen(
        self, asked: float | str, count_of: Callable[[BroughtSizes | None], int]
    ) -> tuple[int, Neighbours | None]:
        """Parts of a group, and what each brings. Raises: MemoryBudgetError."""
        if not asked:
            return count_of(None), None
        if isinstance(asked, str):
            self.ways = tuple(ways_of(self._source, self._seeds(), len(self.fanouts), count_of))
            share = taken_of(self.ways).share
        else:
            share = asked
            try:
                count_of(None)
            except MemoryBudgetError:  # finding neighbours takes less than groups without any
                count_of(BroughtSizes.estimated(self._source, share))
                raise
        found = self._bring(share) if share else None
        try:
            return count_of(None if found is None else found.sizes), found
        except MemoryBudgetError:
            if not self.ways:
                raise
            return self.ways[0].group, None  # what parts bring had been estimated

    def _brought(self, setup: Setup, share: float) -> Neighbours:
        """What each part brings; of a store it lies in a temporary file. Raises: DataError for a full disk."""
        steps = len(self.fanouts)
        if not isinstance(self.ds, StoredDataset):
            return Neighbours(self._source, self._seeds(), steps, share)
        room = partial(Scratch, setup.scratch, memory_bytes(setup.memory) // _PAGES)
        try:
            return Neighbours(self._source, self._seeds(), steps, share, room)
        except NoRoomError as failure:
            raise DataError(
                f"neighbours: expected room on the disk for what parts bring, got: {failure.__cause__}"
            ) from None

    def step(self) -> Tensor:
        """One epoch, or the rest of one; the mean of its losses before their updates, shape ()."""
        self._seen = self._counts()
        return super().step()

    def measured(self) -> dict[str, float]:
        """What the last epoch took of the disk beside the bytes that its groups have; of data in memory times; and
        the share of edges that all groups so far have.
        """
        now, loader = self._counts(), self.loader
        nbytes, requests, reading, waiting = (after - before for after, before in zip(now, self._seen, strict=True))
        times = {"read_seconds": reading, "wait_seconds": waiting}
        edges = loader.times.edges
        if edges is not None and edges[0].any():
            times["edges_kept"] = float(edges[1].sum() / edges[0].sum())
        if not isinstance(self.ds, StoredDataset):
            return times
        groups = {group.number: group.parts for group in loader.plan(loader.epoch - 1)}
        more = np.zeros(len(self._source.bounds) - 1, np.int64)
        more += 0 if self.neighbours is None else self.neighbours.sizes.nbytes
        more += 0 if self._joint is None else self._joint.joint_bytes
        needed = sum(_read_bytes(self.ds, part) + int(more[part]) for parts in groups.values() for part in parts)
        counts = {"bytes_needed": needed, "bytes_read": nbytes, "read_requests": requests}
        return {**{name: float(count) for name, count in counts.items()}, **times}

    def notes(self) -> tuple[str, ...]:
        """Which edges the groups leave out, where they are many."""
        edges = self.loader.times.edges
        if edges is None or not edges[0].any():
            return ()
        there = np.flatnonzero(edges[0])
        shares, names = edges[1, there] / edges[0, there], self._source.types
        if shares.min() >= ENOUGH:
            return ()
        few = "" if names is None else f", of {' '.join(names.relations[there[shares.argmin()]])} {shares.min():.0%}"
        kept, parts = edges[1].sum() / edges[0].sum(), len(self._source.bounds) - 1
        text = f"groups of {self.group} of {parts} parts keep {kept:.0%} of the edges{few}: accuracy may be lower"
        return (
            f"{text} than in memory; mode mini keeps all edges, macro neighbours:auto, hubs:SIZE or larger groups more",
        )

    def _counts(self) -> tuple[int, int, float, float]:
        """Bytes, requests, seconds of reading and of waiting so far."""
        times = self.loader.times
        counts = self.ds.store.counts if isinstance(self.ds, StoredDataset) else None
        read = (0, 0) if counts is None else (counts.nbytes, counts.requests)
        return (*read, times.read_seconds, times.wait_seconds)

    def evaluate(self) -> Evaluation:
        """Score of every split and the validation loss, from all in-edges where the model is a stack of layers."""
        self.let_go()
        self.let_gradients_go()
        with trimmed(self.budget):
            outputs = self.outputs()
        if not isinstance(self.ds, StoredDataset):
            order = torch.argsort(self._row_ids)
            outputs = torch.empty_like(outputs).index_copy_(0, order, outputs)
        return evaluation(self.target, outputs, self.ds.y, self.rows, self.metrics)

    def outputs(self) -> Tensor:
        """Outputs of the nodes of the splits, by their number in the source of parts."""
        ids, _ = torch.sort(self._row_ids)
        return self.inference.outputs(ids.numpy())

    def logits(self) -> Tensor:
        """Outputs of all nodes in the order of the source, shape (N, C)."""
        self.let_go()
        self.let_gradients_go()
        if self.budget is not None and isinstance(self.ds, StoredDataset):
            self.budget.check_room(predicted_bytes(self.ds))
        outputs = self.inference.outputs(np.arange(self._source.bounds[-1]))
        order = self._plain.order if isinstance(self._plain, MemoryParts) else None
        if order is None:
            assert isinstance(self.ds, StoredDataset)  # the other source of parts
            order = self.ds.source_order()
        return torch.empty_like(outputs).index_copy_(0, order, outputs)

    def identity(self) -> dict[str, Any]:
        """What decides the batches, for checkpoints."""
        parts = len(self._source.bounds) - 1
        stored = {"store": self.ds.store.manifest.crc32} if isinstance(self.ds, StoredDataset) else {}
        accumulated = {"accumulate": self._accumulate} if self._accumulate > 1 else {}
        drawn = {"drawn": list(self.fanouts), "batch_size": self.loader.batch_size}
        if self.hubs is not None:
            drawn["hubs"] = len(self.hubs.ids)
        if self.neighbours is not None:
            drawn["neighbours"] = self.neighbours.share
        if self._joint is not None:
            drawn["first"] = "whole"
        if self._reuse > 1:
            drawn["reuse"] = self._reuse
        if self._keep:
            drawn["keep"] = self._keep
        return {**drawn, **accumulated, "group": f"{self.group}/{parts}", **stored}

    def _train_on(self, batch: Batch | PreparedBatch) -> Tensor:
        assert isinstance(batch, Batch)  # nothing is prepared ahead
        y = batch.y
        assert y is not None  # groups have labels
        self._labels = y[: batch.batch_size]
        return super()._train_on(batch)

    def use(self, edge_data: EdgeData) -> None:
        """Groups of a store have the weights of their edges. Raises: ConfigError for a model that is none of gw.nn."""
        if edge_data.inputs is not None and not edge_data.compiled:
            kind = type(self.model).__name__
            raise ConfigError(f"mode=macro cannot be combined with edge_weight and {kind}; use edge_data='ignore'")
        if edge_data.inputs is not None and self._joint is not None:
            raise ConfigError("macro: first=whole cannot be combined with edge_weight; use edge_data='ignore'")
        super().use(edge_data)
        self.inference.weighted = edge_data.inputs is not None

    def _on_batch(self, batch: Batch) -> Tensor:
        if self.edge_data.inputs is None:
            return super()._on_batch(batch)
        group = batch.data
        if self._inputs[0] is not group:
            self._inputs = (group, EdgeInputs(group.edge_weight, fixed=True))
        logits: Tensor = self.model(batch.blocks, batch.x, edge_weight=self._inputs[1])
        return logits

    def _loss(self, logits: Tensor, seeds: Tensor, norm: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The mean loss of the seeds, and its gradient by their logits."""
        return self.target.loss(logits, self._labels)


def _source_of(ds: Dataset, x: Features, macro: Macro | None) -> tuple[PartSource, Tensor]:
    """The parts, and the ids in them of the rows of labels. Raises: ConfigError."""
    asked = _asked(macro)
    if isinstance(ds, StoredDataset):
        parts = len(ds.store)
        if isinstance(asked, Parts) or (asked is not None and asked[1] != parts):
            raise ConfigError(f"macro: expected parts:B/{parts} for a store of {parts} parts, got {_shown(asked)}")
        return ds.store, ds.row_ids
    if asked is None:
        raise ConfigError("macro: expected parts:B/P with mode macro on a dataset in memory, got None")
    if isinstance(asked, Parts):
        part, parts = asked.part, asked.k
    else:
        check_filled("macro: parts", asked[1], ds.num_nodes)
        parts, part = asked[1], partition(ds.graph, asked[1], labels=training_labels(ds)).part
    source = MemoryParts(ds.graph, x, ds.y, part, parts)
    return source, torch.from_numpy(source.new_id)


def _count_of(
    source: PartSource,
    ds: Dataset,
    macro: Macro | None,
    memory: int | str | None,
    hubs: int,
    beside: Callable[..., int],
    brought: BroughtSizes | None,
) -> int:
    """How many parts make a group. Raises: MemoryBudgetError."""
    asked, keep, labels = _asked(macro), 0 if macro is None else macro.keep, label_bytes(ds)
    beside = beside if beside is NOTHING or brought is None else partial(beside, brought=brought)
    if asked is None:
        told = (lambda least: least) if memory is None else least_told
        return parts_within(source, memory_bytes(memory), labels, hubs, keep, beside, told, brought)
    count = asked.count if isinstance(asked, Parts) else asked[0]
    if memory is None:
        return count
    budget, more = memory_bytes(memory), beside(count)
    held = 0 if brought is None or isinstance(ds, StoredDataset) else int(brought.nbytes.sum())
    groups = group_bytes(source, count, labels, hubs, keep, brought) + held
    needed = groups + more
    if needed > budget:
        needed = groups + beside(count, is_drawn=True)
    if needed > budget:
        needed = least_told(needed) if more else needed
        text = (
            f"memory: expected at least {shown_bytes(needed)} for groups of {count} parts, got {shown_bytes(budget)}; "
            "without macro as many parts are taken as fit"
        )
        raise MemoryBudgetError(text, needed)
    return count


def _beside(
    model: nn.Module, ds: Dataset, fanouts: Sequence[int], batch_size: int, memory: int | str | None
) -> Callable[..., int]:
    """Bytes of a run beside its groups, by the parts of a group; none where the budget is that of the groups."""
    if memory is None or not isinstance(ds, StoredDataset):
        return NOTHING
    return partial(least_beside, model, ds, fanouts, batch_size)


def _asked(macro: Macro | None) -> tuple[int, int] | Parts | None:
    """B and P, or the stage that was given. Raises: ConfigError for other stages, or what groups do not have."""
    if macro is None or macro.stages is None:
        return None
    if macro.quality is not None or macro.refresh:
        raise ConfigError("macro: expected neither quality nor refresh with mode macro, whose groups have no halo")
    stages = macro.stages
    if isinstance(stages, str):
        kind, one, of = check_macro(stages)
        if kind == "parts":
            return one, of
    only = list(stages) if isinstance(stages, Sequence) else [stages]
    if len(only) == 1 and isinstance(only[0], Parts):
        return only[0]
    raise ConfigError(f"macro: expected parts:B/P with mode macro, got {stages!r:.60}; large:A/B goes with mode mini")


def _shown(asked: tuple[int, int] | Parts) -> str:
    return "Parts" if isinstance(asked, Parts) else f"parts:{asked[0]}/{asked[1]}"


def _read_bytes(ds: StoredDataset, part: int) -> int:
    """Bytes of a part that a group has: structure, features and labels."""
    entry = ds.store.manifest.parts[part]
    return sum(block.nbytes for block in entry.blocks if block.name not in ("split", "node_ids"))


def label_bytes(ds: Dataset) -> int:
    """Bytes of the label of a node, or of its values."""
    return ds.y.element_size() * (ds.y.shape[1] if ds.y.dim() == 2 else 1)
