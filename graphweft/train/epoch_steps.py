"""What a trainer asks of the way in which an epoch is trained: of full batches and of every kind of mini-batches.

Comes in: nothing. Goes out: the base of :class:`FullBatch` and :class:`MiniBatch`, with the answers of one that takes a
single step an epoch and leaves nothing half done. The trainer knows no other names of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from graphweft._errors import GraphWeftError
from graphweft.cost import Works, loss_work, update_work
from graphweft.data.dataset import Dataset, Part
from graphweft.loader.fastest_choice import CoreSplit
from graphweft.passes.work import Sizes
from graphweft.runtime.staged import StagedPlan
from graphweft.storage.feature import Features
from graphweft.train.edge_data import EdgeData
from graphweft.train.format_trial import FormatTrial
from graphweft.train.metrics import Evaluation
from graphweft.train.needs import RunBudget
from graphweft.train.needs_by_running import kept_buffers
from graphweft.train.node_order import NodeOrder
from graphweft.train.replayed import Replays
from graphweft.train.target import Target
from graphweft.train.update import Update


class Steps(ABC):
    """An epoch of training, and an evaluation.

    Attributes:
        model: What is trained.
        ds: The data.
        optimizer: Makes an update.
        device: Where the model is.
        edge_data: What the model reads of the edges.
        target: How labels are trained on.
        rows, labels: The rows of each split that count, and their labels when they were taken.
        x: Features in the layout that was chosen.
        after_batch: Called with batches done, batches of the epoch and the mean loss so far, where there are several.
        is_single: An epoch is one step.
        takes_order: Nodes can be computed in another order than the given one.
        order: In which steps see the nodes; None: as given.
        keeps_given: The features that were given stay beside those in another order.
        order_told: What a plan says of an order of the nodes that steps have by themselves.
        replays: Of steps that were written down; None: every batch runs as it comes.
    """

    model: nn.Module
    ds: Dataset
    optimizer: torch.optim.Optimizer | Update
    device: torch.device
    edge_data: EdgeData
    target: Target
    rows: dict[Part, Tensor]
    labels: dict[Part, Tensor]
    x: Features
    after_batch: Callable[[int, int, float], None] = staticmethod(lambda done, total, loss: None)
    is_single = True
    takes_order = False
    keeps_given = True
    order: NodeOrder | None = None
    order_told = ""
    replays: Replays | None = None

    @property
    def batches_done(self) -> int:
        """Batches of the epoch under way that were trained on."""
        return 0

    @property
    def formats(self) -> FormatTrial | None:
        """The choice of formats by measurement, where there was one."""
        return None

    @property
    def metric(self) -> str:
        """What the scores are."""
        return self.target.metric

    def features(self) -> Features:
        """Those of :attr:`x`, by node as in the data."""
        return self.x

    @contextmanager
    def _undone(self) -> Iterator[None]:
        """The model, its gradients and torch's random numbers are after the block what they were before."""
        parameters, training = list(self.model.parameters()), self.model.training
        gradients = [parameter.grad for parameter in parameters]
        try:
            with torch.random.fork_rng(devices=[]), kept_buffers(self.model):
                for parameter in parameters:
                    parameter.grad = None
                yield
        finally:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            self.model.train(training)

    def pause(self) -> None:
        """Gives up memory that steps alone need; the next step takes it again."""
        return

    @abstractmethod
    def fit_into(self, budget: RunBudget) -> None:
        """Chooses how much is computed once, prepared ahead or in memory at a time, so that training keeps to it.

        Raises: MemoryBudgetError naming the least that would do; ConfigError for steps that keep to none.
        """

    @abstractmethod
    def works(self) -> tuple[Works, float] | None:
        """What an epoch does, and the seconds on one thread of what walks compute for every edge; None: unknown."""

    def _take(self, rows: dict[Part, Tensor]) -> None:
        """Keeps the rows that count, and their labels as they are now."""
        self.rows, self.labels = rows, {name: self.ds.y[ids] for name, ids in rows.items()}
        self.target.take(self.ds.y, rows["train"])

    def _around(self, rows: int) -> Works:
        """The loss and the update of a step that computes so many rows of outputs."""
        weights = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        return [(loss_work(rows, self.ds.num_classes), 1.0), (update_work(weights), 1.0)]

    def renumber(self, order: NodeOrder | None) -> None:
        """Steps see the nodes in ``order`` from now on, where :attr:`takes_order`; None: as given."""
        raise GraphWeftError(f"order cannot be combined with {type(self).__name__}, whose nodes are as given")

    def keep_ways(self, ways: Sequence[CoreSplit]) -> None:  # noqa: B027 one step prepares no batches
        """Batches are prepared in one of these ways."""

    def epochs_until(self, batches: int) -> int:
        """Epochs after which the way of preparing batches is settled, if that takes ``batches``; 0 where none is."""
        return 0

    @abstractmethod
    def prepare(self) -> None:
        """Compiles, and computes what stays the same."""

    @abstractmethod
    def step(self) -> Tensor:
        """One epoch, or the rest of one; its loss, shape ()."""

    @abstractmethod
    def rehearsal(self) -> AbstractContextManager[Callable[[], object]]:
        """What runs a step without an update, in the block; whatever it changes is afterwards as it was before."""

    @abstractmethod
    def logits(self) -> Tensor:
        """The outputs for all rows, in evaluation mode."""

    @abstractmethod
    def evaluate(self) -> Evaluation:
        """Score of every split and the validation loss."""

    @abstractmethod
    def refresh(self) -> bool:
        """Takes up data that were changed in place; whether labels or splits are others."""

    def guarded(self) -> dict[str, Any]:
        """What the quality guard measured in the epoch that is done, by column."""
        return {}

    def measured(self) -> dict[str, float]:
        """Further numbers of the epoch that is done, by column."""
        return {}

    def notes(self) -> tuple[str, ...]:
        """What a user should hear of after the first epoch."""
        return ()

    def replay_report(self) -> dict[str, Any]:
        """Bounds of batches and launches of a replayed step; empty where none is replayed."""
        return {}

    def made_of(self) -> str:
        """What a step takes: how many rows, of which nodes."""
        return ""

    def where(self) -> str:
        """Where batches are prepared and trained, and why, before an epoch; empty where there are none."""
        return ""

    def scheduled(self) -> str:
        """Where batches are prepared and trained, and why; empty where the CPU does everything."""
        return ""

    def staged_plan(self) -> tuple[StagedPlan, Sizes] | None:
        """The compiled batch and its sizes; None where sampler and model are not one program."""
        return None

    def identity(self) -> dict[str, Any]:
        """What decides the batches, for checkpoints."""
        return {}

    def go_on_as(self, saved: dict[str, Any]) -> dict[str, Any]:
        """Takes over what a run with the configuration ``saved`` chose by itself; what decides the batches now."""
        return self.identity()

    def within_epoch(self) -> dict[str, Any]:
        """Where the epoch under way stands, for checkpoints."""
        return {}

    def continue_epoch(self, state: dict[str, Any]) -> None:  # noqa: B027 nothing to do where nothing is half done
        """Goes on where a checkpoint stood."""
