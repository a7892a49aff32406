"""What the steps of a run over batches are made of, whatever their kind.

Comes in: what a trainer was given. Goes out: one value, of which every kind of :class:`MiniBatch` reads what concerns
it. Made by ``steps.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from graphweft.data.dataset import Dataset
from graphweft.dist.ranks import Ranks
from graphweft.schedule.places import Schedule
from graphweft.schedule.subtasks import Subtasks
from graphweft.storage.feature import Features
from graphweft.train.chosen import Loop
from graphweft.train.edge_data import EdgeData
from graphweft.train.macro import Macro
from graphweft.train.named_metrics import Metric
from graphweft.train.samplers import AnySampler
from graphweft.train.target import Target
from graphweft.train.update import Update


class Drawn(NamedTuple):
    """How batches are made.

    Attributes:
        fanouts: In-edges a node draws, from the seeds outwards, one number a layer; None: 15, 10, 5, then 5.
        batch_size: Training nodes of a batch; for links and labels of edges their pairs; draws of a GraphSAINT sampler,
            parts of a cluster sampler, graphs of a set.
        macro: How macro-batches, or groups of parts, are made; None: as is usual for the kind.
        accumulate: Batches whose gradients make one update, each weighing as much as it has seeds.
        sampler: A name of :data:`SAMPLERS`, or a sampler over the dataset's graph.
        prepare: "whole": a batch is one thread's work; "subtasks": see :class:`gw.schedule.Subtasks`, of which one may
            be given; with a tier, rows of batches move there and layers run there.
        schedule: Where batches are trained and who prepares them.
        cuda_graphs: Whether a device replays steps.
    """

    fanouts: Sequence[int] | None
    batch_size: int
    macro: Macro | None = None
    accumulate: int = 1
    sampler: str | AnySampler = "neighbor"
    prepare: str | Subtasks = "whole"
    schedule: str | Schedule = "auto"
    cuda_graphs: str = "auto"


class Given(NamedTuple):
    """What a trainer was given, of which steps of one kind or another are made.

    Attributes:
        model: The model.
        ds: The data.
        update: Steps in the place of the optimiser.
        loop: What the user chose about the loop.
        edges: Weights and features of edges that the model reads.
        task: The task of the trainer.
        mode: "full", "mini", "macro" or "auto".
        ranks: The processes that train together.
        drawn: How batches are made.
        order: Which order of the nodes was asked for.
        epochs: How many are to come; None: not known.
        keep_features: As for :class:`FullBatch`.
        seed: Keys order and draws.
        key: (epoch, place of the batch) -> seed of torch's draws in that step.
        memory: For groups of parts.
        scratch: A folder for their files.
    """

    model: nn.Module
    ds: Dataset
    update: Update
    loop: Loop
    edges: EdgeData
    task: str
    mode: str
    ranks: Ranks
    drawn: Drawn
    order: str = "auto"
    epochs: int | None = None
    keep_features: bool = True
    seed: int = 0
    key: Callable[[int, int], int] = lambda epoch, place: 0
    memory: int | str | None = None
    scratch: Path | None = None


@dataclass(frozen=True)
class Setup:
    """Model, data and options of a run over batches.

    Attributes:
        model: The model.
        ds: The dataset, or a store.
        x: Its features in the layout that was chosen.
        optimizer: Steps once a batch.
        drawn: How batches are made.
        seed: Keys order and draws.
        key: (epoch, place of the batch) -> seed of torch's draws in that step.
        target: How labels are trained on; None: by the usual loss of ``ds``.
        loss: Of pairs of nodes: a callable; anything else: binary cross-entropy.
        metrics: What is measured beside the score.
        memory: Of a store, bytes of the whole run; of groups of data in memory, bytes of those that are there at once.
        scratch: Folder of temporary files.
        ranks: The processes that train together; None: only this one.
    """

    model: nn.Module
    ds: Dataset
    x: Features
    optimizer: torch.optim.Optimizer | Update
    drawn: Drawn
    seed: int
    key: Callable[[int, int], int]
    target: Target | None = None
    loss: Any = None
    metrics: Sequence[Metric] = ()
    memory: int | str | None = None
    scratch: Path | None = None
    ranks: Ranks | None = None


__all__ = ["Drawn", "Given", "Setup"]
