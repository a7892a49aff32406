"""What is predicted of runs over small stores is what they take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import graphweft as gw
from graphweft._memory import POOL
from graphweft.train.needs_by_running import grown_while


def _trainer(kind: str, folder: Path) -> gw.Trainer:
    ds = gw.synthetic("default", scale=0.8, seed=0)
    if kind == "weighted":
        ds = replace(ds, edge_weight=torch.rand(ds.num_edges, generator=torch.Generator().manual_seed(0)))
    store = gw.macro.prepare_store(ds, folder / "store", parts=4, method="hash")
    more: dict[str, Any] = {"task": "link"} if kind == "links" else {}
    more |= {"mode": "mini" if kind in ("mini", "weighted") else "macro", "fanouts": (5, 5), "batch_size": 128}
    model = gw.nn.SAGE(store.num_features, 32, 32 if kind == "links" else store.num_classes, num_layers=2)
    return gw.Trainer(model, store, memory="200MB", seed=0, **more)


@pytest.mark.own_process
@pytest.mark.parametrize("kind", ["macro", "mini", "weighted", "links"])
def test_an_evaluation_takes_what_it_took_when_it_was_tried(kind: str, tmp_path: Path) -> None:
    trainer = _trainer(kind, tmp_path)
    needs = trainer.needs
    assert needs is not None
    trainer.fit(1)
    POOL.trim()
    taken, _ = grown_while(trainer._batch.evaluate)
    assert taken > 4 << 20  # otherwise nothing was measured
    assert 0.9 * taken < needs.evaluation < 1.25 * taken + (1 << 20)


@pytest.mark.own_process
def test_a_table_that_holds_all_rows_counts_no_more(tmp_path: Path) -> None:
    trainer = _trainer("mini", tmp_path)
    store, needs = trainer.ds.store, trainer.needs  # type: ignore[attr-defined]
    assert needs is not None
    rows = 4 * store.num_nodes * store.num_features
    assert rows < needs.kept < 1.5 * rows + (3 << 20)  # of 200 MB
