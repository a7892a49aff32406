"""What tests of a run's memory share: a pool that is watched, and models over a dataset."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import graphweft as gw
from graphweft._memory import Pool
from graphweft.data.dataset import Dataset

MB = 10**6


class Watched(Pool):
    """A pool that knows the most that it had mapped."""

    most = 0

    def _map(self, size: int) -> int:
        found = super()._map(size)
        self.most = max(self.most, self._mapped)
        return found


def make_model(kind: str, ds: Dataset, hidden: int = 64) -> Any:
    """Two layers from the same first weights."""
    torch.manual_seed(0)
    made: nn.Module = getattr(gw.nn, kind)(ds.num_features, hidden, ds.num_classes, num_layers=2)
    return made
