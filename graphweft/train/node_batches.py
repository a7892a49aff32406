"""Batches of nodes as the mini-batch trainer reads them.

Comes in: what batches are made from. Goes out: a loader of batches, or, with a plan, of what the first stage of a
compiled batch makes. Called by :class:`MiniBatch`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from graphweft.graph.graph import Graph
from graphweft.loader.loader import Loader
from graphweft.runtime.staged import StagedPlan
from graphweft.sample.neighbor import NeighborSampler
from graphweft.sample.sampler import Sample
from graphweft.storage.feature import Features
from graphweft.train.format_trial import FormatTrial


@dataclass
class Tables:
    """What batches are made from."""

    graph: Graph
    x: Features
    y: Tensor
    train_idx: Tensor


class NodeBatches(Loader):
    """Batches of nodes, or, with a plan, what the first stage of a compiled batch makes."""

    plan: StagedPlan | None = None
    trial: FormatTrial | None = None

    def make(self, places: Tensor, epoch: int) -> Any:
        """As asked for by the plan, or by the trial of several."""
        plan = self.plan if self.trial is None or self.trial.settled else self.trial.plan()
        if plan is None:
            return super().make(places, epoch)
        draw = self._drawn_there if self.device is not None else None
        draw = draw if self.preparer is None else self.preparer.sample
        return plan.prepare(self.seeds[places], (self.seed, epoch), draw)

    def _drawn_there(self, sampler: NeighborSampler, seeds: Tensor, key: tuple[int, int, int], is_open: bool) -> Sample:
        """The draw of a batch on the device, with all nodes numbered: plans there leave no hop open."""
        found: Sample = self._draws.sample(seeds, seed=key[0], epoch=key[1], stage=key[2])
        return found


__all__ = ["NodeBatches", "Tables"]
