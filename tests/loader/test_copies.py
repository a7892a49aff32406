"""Copies and pickles of loaders give the batches that the loader itself gives, in the middle of an epoch too."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from loader.test_leaks import LOADERS
from loader.test_loader import dataset
from torch import Tensor

from graphweft.loader.loader import Loader
from graphweft.runtime.tier import Tier
from graphweft.schedule.subtasks import Subtasks

MADE: dict[str, Callable[[Any], Any]] = {
    **LOADERS,
    "subtasks": lambda ds: Loader(ds, fanouts=(5, 3), batch_size=4, prepare=Subtasks(2, tier=Tier()), shuffle=True),
}
COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda loader: pickle.loads(pickle.dumps(loader)),
}


def epoch(loader: Any) -> list[list[Tensor]]:
    labels = ("edge_label_index", "node_norm")
    return [
        [b.n_id, b.edge_index, b.e_id, b.x, *(t for name in labels if (t := getattr(b, name, None)) is not None)]
        for b in loader
    ]


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("kind", MADE)
def test_a_copy_gives_the_epochs_that_follow(kind: str, way: str) -> None:
    loader = MADE[kind](dataset())
    under_way = iter(loader)
    next(under_way)
    twin = COPIES[way](loader)
    under_way.close()  # type: ignore[attr-defined]
    assert twin.state_dict() == loader.state_dict()
    mine, its = epoch(loader), epoch(twin)
    assert len(mine) == len(its) > 0
    assert all(torch.equal(s, t) for one, other in zip(mine, its, strict=True) for s, t in zip(one, other, strict=True))
