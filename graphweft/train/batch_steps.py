"""Batches that are compiled together with their sampler: the plan of one, its sizes, and what an epoch of them does.

Comes in: a model, what draws batches, a loader. Goes out: the base of :class:`MiniBatch`, which trains on them. What
accounts for memory and time asks no other names of mini-batches than those here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from graphweft import _config
from graphweft.cost import Works, epoch_work
from graphweft.loader.fastest_choice import CoreSplit
from graphweft.loader.group_loader import GroupLoader
from graphweft.loader.link import LinkLoader
from graphweft.loader.loader import Loader
from graphweft.nn.stack import Stack
from graphweft.passes.work import Sizes
from graphweft.runtime.prediction import plan_works
from graphweft.runtime.staged import Choice, PreparedBatch, StagedPlan, batch_sizes
from graphweft.sample.neighbor import NeighborSampler
from graphweft.schedule.subtasks import Subtasks
from graphweft.storage.feature import Features, SparseFeatures, stored
from graphweft.train.edge_data import EdgeData
from graphweft.train.epoch_steps import Steps
from graphweft.train.format_trial import MOST_CHOICES, FormatTrial
from graphweft.train.full_batch import is_plain
from graphweft.train.half_features import HalfFeatures, stores_half
from graphweft.train.macro import MacroRun
from graphweft.train.macro_works import macro_works
from graphweft.train.needs import RunBudget
from graphweft.train.node_batches import NodeBatches, Tables
from graphweft.train.samplers import AnySampler
from graphweft.train.setup import Drawn

AnyLoader = Loader | LinkLoader | GroupLoader

_REFERENCE = 1 << 62  # stage of the draws from which sizes are known before a run


class BatchSteps(Steps):
    """An epoch of several batches.

    Attributes:
        drawn: What the user gave about batches.
        loader: Makes them.
        sampler: Draws them; None where none does.
        fanouts: In-edges that a node draws, from the seeds outwards; none where others draw.
        macro: What surrounds macro-batches, where there are some.
        half: The features that batches read, in bfloat16.
        budget: The memory of the run.
    """

    is_single = False
    stores_half = True  # whether batches may read features in bfloat16; else those of the dataset
    edge_data = EdgeData()
    drawn: Drawn
    loader: AnyLoader
    sampler: AnySampler | None = None
    fanouts: tuple[int, ...]
    macro: MacroRun | None = None
    half: HalfFeatures | None = None
    budget: RunBudget | None = None
    device = torch.device("cpu")  # where the model is, as far as batches are compiled
    _tables: Tables
    _compiled_for: tuple[object, ...] = ()
    _choice: Choice | None = None  # of what is open in a batch's program; None: as usual

    @abstractmethod
    def gradients(self, batch: Any) -> Tensor:
        """The gradients of a batch, without an update; its mean loss, shape ()."""

    @property
    def x(self) -> Features:
        """Features of all nodes, in the layout that batches have."""
        return self._tables.x

    @x.setter
    def x(self, x: Features) -> None:
        self._tables.x = x

    def _compile(self, loader: NodeBatches) -> None:
        """The plan of a batch; none where stages are not compiled together."""
        if not self._is_staged():
            loader.plan = None
            return
        assert isinstance(self.model, Stack) and isinstance(self.sampler, NeighborSampler)  # what is staged
        tensors = self._tensors()
        kinds = tuple((name, t.shape, t.dtype, t.requires_grad) for name, t in tensors.items())
        self.model.train()  # as in every step: layers drop and normalise by their own mode
        wanted = (_config.current(), id(self.x), kinds, self.model.settings())
        if loader.plan is not None and self._compiled_for == wanted:
            return
        reference = self.sampler.sample(loader.seeds[: loader.batch_size], stage=_REFERENCE)
        tier = loader.preparer.tier if isinstance(loader.preparer, Subtasks) else None
        function = self.model.staged(self.sampler, self._table(), tier, self.device)
        loader.plan = function.compile(tensors, True, reference, self._choice)
        x = self.x if tier is None and self.stores_half and self._table() is self.x else None
        if isinstance(x, Tensor) and stores_half(x, [loader.plan.plan]):
            self.half = self.half or HalfFeatures(x, on_lines=self.budget is None)
            function = self.model.staged(self.sampler, self.half.rows, tier, self.device)
            loader.plan = function.compile(tensors, True, reference, self._choice)
        self._compiled_for = wanted
        loader.trial = None
        if _config.current().tune:
            choices = function.choices(loader.plan, MOST_CHOICES)
            loader.trial = FormatTrial(choices, lambda choice: function.compile(tensors, True, reference, choice))

    def _table(self) -> Features:
        """Features of all nodes, by whose shape a batch is compiled."""
        return self.x

    def staged_plan(self) -> tuple[StagedPlan, Sizes] | None:
        """The compiled batch, after :meth:`prepare`, and the sizes that decided it; None where nothing is staged."""
        loader = self.loader
        if not isinstance(loader, NodeBatches) or loader.plan is None:
            return None
        assert isinstance(self.sampler, NeighborSampler)  # what is staged
        plan = loader.plan if loader.trial is None else loader.trial.plan()
        reference = self.sampler.sample(loader.seeds[: loader.batch_size], stage=_REFERENCE)
        return plan, batch_sizes(plan.plan.compiled.program, self.ds.graph, self.x, reference)

    def sizes_of(self, plan: StagedPlan, draw: int, count: int) -> Sizes:
        """The sizes in ``plan`` of a batch of ``count`` seeds that no run draws; ``draw``: its number among them."""
        loader = self.loader
        assert isinstance(loader, NodeBatches) and isinstance(self.sampler, NeighborSampler)  # what is staged
        places = torch.randperm(loader.num_items, generator=torch.Generator().manual_seed(draw))[:count]
        drawn = self.sampler.sample(loader.seeds[places], stage=_REFERENCE + draw)
        return batch_sizes(plan.plan.compiled.program, self.ds.graph, self.x, drawn)

    @property
    def formats(self) -> FormatTrial | None:
        """The choice of formats by measurement; None where nothing is measured."""
        return self.loader.trial if isinstance(self.loader, NodeBatches) else None

    def _measured(self, batch: Any, seconds: float) -> None:
        """A batch was trained on in so many seconds."""
        loader = self.loader
        if not isinstance(loader, NodeBatches) or loader.trial is None or loader.trial.settled:
            return
        if isinstance(batch, PreparedBatch):
            loader.trial.record(batch.plan.choice, batch.seconds + seconds)
        if loader.trial.settled:
            loader.plan = loader.trial.plan()

    def _tensors(self) -> dict[str, Tensor]:
        """Parameters and buffers of numbers by name."""
        model = self.model
        buffers = {name: buffer for name, buffer in model.named_buffers() if buffer.is_floating_point()}
        return {**dict(model.named_parameters()), **buffers}

    def _is_staged(self) -> bool:
        """Whether sampler and model are compiled as one program."""
        model, x = self.model, self.x
        return (
            is_plain(model)
            and self.edge_data.inputs is None  # whose rows follow from the edges that were drawn
            and isinstance(self.sampler, NeighborSampler)
            and isinstance(model, Stack)
            and model.is_staged()
            and _config.current().opt_level >= 1
            and x.dtype in (torch.float32, torch.float64)
            and not x.requires_grad
            and (model.takes_sparse or not isinstance(x, SparseFeatures))
            and stored(x).device.type in ("cpu", self.device.type)
            and all(t.device == self.device for t in self._tensors().values())
        )

    def works(self) -> tuple[Works, float] | None:
        """As for all steps, with the ways of preparing that the loader tries; None where no seconds are predicted."""
        return self.works_in(self.loader.tried)

    def works_in(self, ways: Sequence[CoreSplit]) -> tuple[Works, float] | None:
        """Of all batches of an epoch, prepared in ``ways``; they are as large as the first, but for the last.

        Neighbourhoods of fewer seeds overlap less, so a batch of few is much work for its seeds.
        """
        in_turn = all(way.workers == 0 for way in ways)
        if self.macro is not None:
            return macro_works(self.macro, self.model, self.edge_data.inputs, self._around, in_turn)
        found = self.staged_plan()
        if found is None:
            return None
        staged, sizes = found
        count = max(len(self.loader), 1)
        last = self.loader.num_items - (count - 1) * self.loader.batch_size
        if count == 1 or last == self.loader.batch_size:
            works, walks = self._batch_works(staged, sizes, in_turn, count)
            return [*works, (epoch_work(), 1.0)], walks
        works, walks = self._batch_works(staged, sizes, in_turn, count - 1)
        more, others = self._batch_works(staged, self.sizes_of(staged, count, last), in_turn, 1)
        return [*works, *more, (epoch_work(), 1.0)], walks + others

    def _batch_works(self, staged: StagedPlan, sizes: Sizes, in_turn: bool, batches: int) -> tuple[Works, float]:
        """What so many batches of these sizes do."""
        step, walks = plan_works(staged.plan, sizes)
        batch = [staged.draw_work(sizes, in_turn), *staged.preparation_works(sizes)]
        works = [*((work, 1.0) for work in batch), *step, *self._around(int(sizes.rows["B"]))]
        return [(work, batches * count) for work, count in works], batches * walks

    def keep_ways(self, ways: Sequence[CoreSplit]) -> None:
        """Batches are prepared in one of these."""
        self.loader.keep_ways(ways)

    def epochs_until(self, batches: int) -> int:
        """So many that ``batches`` are timed, where more than one way of preparing them is tried."""
        tries = batches if len(self.loader.tried) > 1 else 1
        return -(-tries // max(1, len(self.loader) - 2))

    def where(self) -> str:
        """One place does everything."""
        return "cpu: prepares and trains all batches"
