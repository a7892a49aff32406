"""A step of a typed model on rows from a store: the bits of memory, without compressed rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from stored_kinds import academic

import graphweft as gw
from graphweft.storage.feature import SparseFeatures
from graphweft.storage.typed_rows import UncompressedRows


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("kind", ["RGCN", "HGT"])
def test_steps_make_no_compressed_rows(
    kind: str, dropout: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gw.macro.prepare_store(academic(), tmp_path / "s", parts=4, memory="64MB", method="hash")

    def fitted(data: Any, **more: Any) -> gw.Trainer:
        torch.manual_seed(0)
        types = {"num_node_types": 4, "heads": 2} if kind == "HGT" else {}
        model = getattr(gw.nn, kind)(features, 16, 3, num_relations=6, num_layers=2, dropout=dropout, **types)
        trainer = gw.Trainer(model, data, mode="mini", fanouts=(3, 3), batch_size=16, restore_best=False, **more)
        trainer.fit(2)
        return trainer

    store, made = gw.macro.Store(tmp_path / "s"), list[UncompressedRows]()
    features = store.num_features
    memory = fitted(gw.load(tmp_path / "s"))
    whole, taken = UncompressedRows._whole.func, UncompressedRows.take_rows

    def compressed(x: UncompressedRows) -> SparseFeatures:
        made.append(x)
        return whole(x)

    seen = []
    monkeypatch.setattr(UncompressedRows._whole, "func", compressed)
    monkeypatch.setattr(UncompressedRows, "take_rows", lambda x, rows: seen.append(rows) or taken(x, rows))
    disk = fitted(store, memory="64MB")
    assert seen
    assert not made
    assert [r.loss for r in disk.history] == [r.loss for r in memory.history]
    assert all(torch.equal(a, b) for a, b in zip(disk.model.parameters(), memory.model.parameters(), strict=True))
