"""The loader of nested stages: macro-batches staged on an upper tier, batches made of them.

Comes in: a dataset and the stages. Goes out: :class:`NestedBatch` after batch, the same for any number of threads and
after any interruption. Called by users' loops and the mini-batch trainer. The lower tier is the whole graph and its
features; a macro-batch's rows are copied out of it once, and its batches gather from the copy. Counters stand for the
bus between the two. Source: Joestar, section 5.2.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from graphweft._errors import ConfigError
from graphweft._torch_private import hosted
from graphweft.graph.graph import Graph
from graphweft.graph.ids import Ids
from graphweft.loader.batch import Batch, Data
from graphweft.loader.loader import Loader
from graphweft.sample.multistage import EpochPlan, Nest, NestedSample, Path, Planned
from graphweft.sample.neighbor import NeighborSampler
from graphweft.sample.sampler import Sample, check_fanouts
from graphweft.sample.stages import Key, LargeBatch, Level, Parts, Stage, Whole
from graphweft.sample.working_set import structure_bytes
from graphweft.storage.feature import Features, SparseFeatures
from graphweft.storage.gather import gather_rows

KEPT = 4  # macro-batches in memory: the one in use, the next, and those of threads that lag behind


@dataclass
class Traffic:
    """Bytes read from one tier.

    Attributes:
        features: Of feature rows.
        structure: Of offsets and indices.
        reads: Macro-batches or batches that were read.
    """

    features: int = 0
    structure: int = 0
    reads: int = 0

    @property
    def total(self) -> int:
        """All bytes."""
        return self.features + self.structure


@dataclass(frozen=True)
class Cost:
    """What one macro-batch or batch reads from a tier."""

    tier: int
    features: int
    structure: int


@dataclass
class MacroBatch:
    """A macro-batch on its tier.

    Attributes:
        level: Its structure.
        x: Its rows of features.
        rows: int64 (nodes,) row of each node in ``x``, -1 where it was filtered out; None: row i is node i.
        tier: Counts from 0, the whole graph's.
        cost: What it read from the tier below.
        kept: (nodes,) bool, nodes that a batch touches; None: unknown.
        inner: (nodes,) bool, nodes that a batch reaches before its last hop; None: unknown.
        samples: Its batches by position, where they were drawn ahead of time.
    """

    level: Level
    x: Features | None
    rows: Tensor | None = None
    tier: int = 0
    cost: Cost | None = None
    kept: Tensor | None = None
    inner: Tensor | None = None
    samples: dict[int, NestedSample] = field(default_factory=dict)


class NestedBatch(Batch):
    """A batch of a macro-batch.

    Attributes:
        path: The macro-batch: the group of every stage before the last.
        halo: (num_nodes,) bool: nodes whose in-edges are missing by design; None: no node.
        macro: The macro-batch itself.
        costs: What was read for it, the macro-batches' shares by path.
    """

    path: Path
    halo: Tensor | None
    macro: MacroBatch | None
    costs: list[tuple[Path, Cost]]

    def __init__(self, sample: Sample, data: Data | Graph, x: Features | None, input_id: Tensor) -> None:
        super().__init__(sample, data, x, input_id)
        self.path, self.halo, self.macro, self.costs = (), None, None, []


@dataclass(frozen=True)
class Probe:
    """Some seeds of a batch, drawn in three ways.

    Attributes:
        drawn: As training draws them.
        inside: With all in-edges that the macro-batch has.
        exact: With all in-edges of the whole graph.
    """

    drawn: NestedBatch
    inside: NestedBatch
    exact: NestedBatch


class MultistageLoader(Loader):
    """Batches drawn from macro-batches: ``macro`` describes these; other arguments as for :class:`Loader`.

    With :class:`LargeBatch`, a macro-batch is the neighbourhood of many seeds, drawn with ``fanouts``. A batch is its
    exact slice around some of these seeds. With :class:`Parts`, a macro-batch consists of some parts of a partition and
    their halo. A batch is drawn inside with ``fanouts``, and sampling stops at the halo. :class:`Whole` takes the whole
    graph. Stages can be nested.

    Args:
        ds: A dataset, or a graph alone.
        seeds: Distinct nodes: ids or a mask; None: the training nodes of ``ds``.
        fanouts: In-edges that a node draws in the first stage that samples neighbours, from the seeds outwards.
        batch_size: Most seeds of a batch; a macro-batch's last one may have fewer.
        shuffle: A new order of the seeds and parts every epoch.
        seed: Keys order and draws.
        macro: The stages before the last, one or a sequence. Sizes of a LargeBatch are rounded up to whole batches.
        ahead: Whether to draw all batches of a macro-batch before its features are read, and to read only the rows that
            they need.
        options: ``prefetch`` and ``workers`` as for :class:`Loader`.

    Raises: ConfigError, GraphError, IndexRangeError, ShapeError for arguments that do not fit.

    Example:
        >>> graph = Graph([1, 2, 3, 0], [0, 1, 2, 3])
        >>> loader = MultistageLoader(graph, [0, 1, 2, 3], [2], batch_size=1, macro=LargeBatch(2))
        >>> [batch.n_id.tolist() for batch in loader]
        [[0, 1], [1, 2], [2, 3], [3, 0]]
    """

    @hosted
    def __init__(
        self,
        ds: Data | Graph,
        seeds: Ids | None = None,
        fanouts: Any = (15, 10, 5),
        batch_size: int = 1024,
        shuffle: bool = False,
        seed: int = 0,
        *,
        macro: Stage | Sequence[Stage],
        ahead: bool = False,
        **options: Any,
    ) -> None:
        if set(options) - {"prefetch", "workers"}:
            raise ConfigError(f"MultistageLoader: expected prefetch and workers, got {sorted(options)[0]}")
        super().__init__(ds, seeds, fanouts, batch_size, shuffle, seed, **options)
        self.ahead = bool(ahead)
        self._turned = threading.Lock()
        tiers = [macro] if not isinstance(macro, Sequence) else list(macro)
        self.traffic = [Traffic() for _ in range(1 + sum(not isinstance(stage, Whole) for stage in tiers))]
        assert isinstance(self.sampler, NeighborSampler)  # without a sampler of its own, Loader makes one
        self._arrange(tiers, self.sampler.fanouts)

    def _arrange(self, macro: list[Stage], fanouts: tuple[int, ...]) -> None:
        """Takes the stages up; nothing of earlier ones stays."""
        self._macro, self._fanouts = macro, fanouts
        stages = [*macro, LargeBatch(self.batch_size)]
        self._nest = Nest(self.graph, self.seeds, _bound(stages, self.seeds.numel(), self.batch_size, fanouts))
        self._plans: dict[int, EpochPlan] = {}
        self._staged: OrderedDict[tuple[int, Path], _Cell] = OrderedDict()
        self._counted: dict[int, tuple[int, Path]] = {}

    def __getstate__(self) -> dict[str, Any]:
        made = ("_turned", "_plans", "_staged")  # follows from the rest
        return {name: value for name, value in self.__dict__.items() if name not in made}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _turned=threading.Lock(), _plans={}, _staged=OrderedDict())

    @property
    def stages(self) -> tuple[Stage, ...]:
        """All stages, the one that makes the batches last."""
        return self._nest.stages

    @property
    def macro(self) -> tuple[Stage, ...]:
        """The stages before the last, as they were given."""
        return tuple(self._macro)

    @property
    def fanouts(self) -> tuple[int, ...]:
        """In-edges that a node draws in the first stage that samples neighbours."""
        return self._fanouts

    def retune(self, macro: Sequence[Stage], fanouts: tuple[int, ...]) -> None:
        """Sets other stages and fan-outs from the next epoch on. Raises: ConfigError inside an epoch."""
        if self._position:
            raise ConfigError(f"MultistageLoader: expected new stages between epochs, got them at {self._position}")
        if len(macro) != len(self._macro) or len(fanouts) != len(self._fanouts):
            raise ConfigError(f"MultistageLoader: expected {len(self._macro)} stages and as many fan-outs as before")
        self._arrange(list(macro), check_fanouts("MultistageLoader", fanouts))

    @property
    def has_halo(self) -> bool:
        """Whether batches have halo nodes, at which sampling stops."""
        return any(isinstance(stage, Parts) for stage in self._macro)

    def __call__(self, index: Any) -> Batch:
        """Batches follow from macro-batches here. Raises: ConfigError."""
        raise ConfigError("MultistageLoader: expected iteration over its batches, got a call; gw.Loader takes places")

    def plan(self, epoch: int) -> EpochPlan:
        """The seeds of every batch of an epoch."""
        with self._turned:
            if epoch not in self._plans:
                self._plans = {e: p for e, p in self._plans.items() if e >= epoch - 1}
                self._plans[epoch] = self._nest.plan(Key(self.seed, epoch, shuffle=self.shuffle))
            return self._plans[epoch]

    def made(self, position: int) -> tuple[MacroBatch, Batch]:
        """A batch of the current epoch and its macro-batch."""
        plan = self.plan(self.epoch)
        return self._stage(self.epoch, plan, plan.batches[position].path), self._preparer(self.epoch)(position)

    def at_once(self) -> int:
        """The most macro-batches that are in memory at a time."""
        return min(KEPT, 2 * len({planned.path for planned in self.plan(self.epoch).batches}))

    def forget(self) -> None:
        """Frees all macro-batches. They are made again when they are needed."""
        with self._turned:
            self._staged.clear()

    def _length(self, epoch: int) -> int:
        return len(self.plan(epoch).batches)

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "stages": [stage.identity() for stage in self.stages]}

    def _preparer(self, epoch: int) -> Callable[[int], Batch]:
        plan = self.plan(epoch)

        def prepare(position: int) -> Batch:
            planned = plan.batches[position]
            macro = self._stage(epoch, plan, planned.path)
            nested = macro.samples.get(position) or self._nest.sample(plan, planned, macro.level)
            batch = self._filled(macro, nested, planned)
            structure = structure_bytes(nested.sample.num_nodes, nested.sample.num_edges)
            batch.costs = [*self._costs_around(epoch, plan, planned.path)]
            batch.costs.append(((*planned.path, planned.group), Cost(macro.tier, _bytes(batch.x), structure)))
            return batch

        return prepare

    def probe(self, epoch: int, position: int, seeds: int) -> Probe:
        """The first ``seeds`` seeds of a planned batch, drawn as in training and with all in-edges.

        The counters of traffic do not change.
        """
        plan = self.plan(epoch)
        planned = plan.batches[position]
        planned = replace(planned, places=planned.places[:seeds], within=planned.within[:seeds])
        macro = self._stage(epoch, plan, planned.path)
        data = None if isinstance(self._ds, Graph) else self._ds.x
        rows = data if data is None or macro.level.n_id is None else gather_rows(data, macro.level.n_id)
        whole, root = MacroBatch(macro.level, rows), MacroBatch(self._nest.root, data)
        every = LargeBatch(1, (-1,) * len(self._fanouts))

        def wide(around: MacroBatch, numbers: Tensor) -> NestedBatch:
            level = around.level
            local = every.sample(level, numbers, plan.keys[()])
            halo = None if level.halo is None else level.halo[local.n_id]
            return self._filled(around, NestedSample(level.in_whole(local), local.n_id, halo), planned)

        drawn = self._filled(whole, self._nest.sample(plan, planned, macro.level), planned)
        return Probe(drawn, wide(whole, macro.level.seeds[planned.within]), wide(root, self.seeds[planned.places]))

    def _filled(self, macro: MacroBatch, nested: NestedSample, planned: Planned) -> NestedBatch:
        """A batch with its rows of features."""
        rows = nested.nodes if macro.rows is None else macro.rows[nested.nodes]
        x = None if macro.x is None else gather_rows(macro.x, rows)
        batch = NestedBatch(nested.sample, self._ds, x, self._inputs(planned.places))
        batch.path, batch.halo, batch.macro = planned.path, nested.halo, macro
        return batch

    def _batches(self, turn: object, epoch: int, first: int) -> Iterator[Batch]:
        for batch in super()._batches(turn, epoch, first):
            if isinstance(batch, NestedBatch):
                self._count(epoch, batch)
            yield batch
            del batch

    def _count(self, epoch: int, batch: NestedBatch) -> None:
        """Adds what the batch read, its macro-batches where it is the first of theirs."""
        for path, cost in batch.costs:
            if self._counted.get(len(path)) == (epoch, path):
                continue
            self._counted[len(path)] = (epoch, path)
            tier = self.traffic[cost.tier]
            tier.features += cost.features
            tier.structure += cost.structure
            tier.reads += 1

    def _costs_around(self, epoch: int, plan: EpochPlan, path: Path) -> Iterator[tuple[Path, Cost]]:
        for depth in range(1, len(path) + 1):
            cost = self._stage(epoch, plan, path[:depth]).cost
            if cost is not None and not isinstance(self.stages[depth - 1], Whole):
                yield path[:depth], cost

    def _stage(self, epoch: int, plan: EpochPlan, path: Path) -> MacroBatch:
        """The macro-batch of a path, made once by whoever asks first."""
        if not path:
            return MacroBatch(self._nest.root, None if isinstance(self._ds, Graph) else self._ds.x)
        with self._turned:
            cell = self._staged.setdefault((epoch, path), _Cell())
            self._staged.move_to_end((epoch, path))
            while len(self._staged) > KEPT * max(len(self._macro), 1):
                self._staged.popitem(last=False)
        with cell.lock:
            if cell.value is None:
                cell.value = self._made(epoch, plan, path)
            return cell.value

    def _made(self, epoch: int, plan: EpochPlan, path: Path) -> MacroBatch:
        around = self._stage(epoch, plan, path[:-1])
        level = self._nest.level(plan, path, around.level)
        if level is around.level:
            return around
        staged = MacroBatch(level, None, tier=around.tier + 1)
        assert level.above is not None
        nodes, edges = level.graph.num_nodes, level.graph.num_edges
        above = level.above
        if self.ahead and len(path) == len(self.stages) - 1:
            kept, edges = self._drawn_ahead(plan, path, staged)
            staged.kept, above = kept, above[kept]
            staged.rows = torch.cumsum(kept, 0) - 1
            staged.rows[~kept] = -1
            nodes = above.numel()
        rows = above if around.rows is None else around.rows[above]
        staged.x = None if around.x is None else gather_rows(around.x, rows)
        staged.cost = Cost(around.tier, _bytes(staged.x), structure_bytes(nodes, edges))
        return staged

    def _drawn_ahead(self, plan: EpochPlan, path: Path, staged: MacroBatch) -> tuple[Tensor, int]:
        """Draws the macro-batch's batches from its structure alone; nodes they touch, and how many edges."""
        graph = staged.level.graph
        touched = torch.zeros(graph.num_edges, dtype=torch.uint8)
        kept, inner = torch.zeros(2, graph.num_nodes, dtype=torch.bool)
        for position, planned in enumerate(plan.batches):
            if planned.path == path:
                nested = self._nest.sample(plan, planned, staged.level, touched)
                staged.samples[position] = nested
                kept[nested.nodes] = True
                inner[nested.nodes[: nested.sample.blocks[0].num_dst]] = True
        staged.inner = inner
        return kept, int(touched.sum(dtype=torch.int64))


class _Cell:
    """A macro-batch, or the promise of one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.value: MacroBatch | None = None


def _bound(stages: list[Stage], seeds: int, batch_size: int, fanouts: tuple[int, ...]) -> list[Stage]:
    """Stages with sizes as numbers of whole batches and fan-outs filled in."""
    bound: list[Stage] = []
    sampled = False
    for place, stage in enumerate(stages):
        if isinstance(stage, LargeBatch):
            size = stage.size if isinstance(stage.size, int) else max(1, round(stage.size * seeds))
            if place < len(stages) - 1:
                size = -(-size // batch_size) * batch_size
            drawn = stage.fanouts or ((-1,) * len(fanouts) if sampled else fanouts)
            stage, sampled = replace(stage, size=size, fanouts=drawn), True
        bound.append(stage)
    return bound


def _bytes(x: Features | None) -> int:
    """Bytes of rows of features."""
    if x is None:
        return 0
    if isinstance(x, SparseFeatures):
        return x.adjacency.nbytes + x.values.numel() * x.values.element_size()
    return x.numel() * x.element_size()
