"""What is predicted of runs over small stores is what they take."""

from __future__ import annotations

from pathlib import Path

import pytest

import graphweft as gw
from graphweft._memory import POOL
from graphweft.train.needs_by_running import grown_while


def _trainer(mode: str, folder: Path) -> gw.Trainer:
    ds = gw.synthetic("default", scale=0.8, seed=0)
    store = gw.macro.prepare_store(ds, folder / "store", parts=4, method="hash")
    model = gw.nn.SAGE(store.num_features, 32, store.num_classes, num_layers=2)
    return gw.Trainer(model, store, mode=mode, memory="200MB", seed=0, fanouts=(5, 5), batch_size=128)


@pytest.mark.own_process
@pytest.mark.parametrize("mode", ["macro", "mini"])
def test_an_evaluation_takes_what_it_took_when_it_was_tried(mode: str, tmp_path: Path) -> None:
    trainer = _trainer(mode, tmp_path)
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
