"""Evaluation by the structure in memory and rows on disk: hidden rows in a file, tile by tile."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import graphweft as gw
from graphweft.data.stored_graph import StoredGraph
from graphweft.train.stored_inference import StoredInference
from graphweft.train.tiles import HiddenRows, Tiles


def test_hidden_rows_wait_for_the_disk_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles are small where memory is; a wait for each would take most of the time."""
    ds = gw.synthetic("default", scale=0.2, seed=0)
    stored = StoredGraph(gw.macro.prepare_store(ds, tmp_path / "store", parts=4))
    model, waits, let_go = gw.nn.SAGE(ds.num_features, 8, ds.num_classes, num_layers=3), list[int](), HiddenRows.let_go

    def noted(rows: HiddenRows) -> None:
        waits.append(rows._waiting)
        let_go(rows)

    monkeypatch.setattr(HiddenRows, "let_go", noted)
    stored.store.piece = 1 << 13
    tiles = Tiles(1 << 12, 0)
    found = StoredInference(model, stored.graph, stored.store, stored.row_ids, tiles).outputs()
    assert torch.allclose(found, model.eval()(ds.graph, ds.x), atol=1e-5)
    written = 4 * ds.num_nodes * (8 + 8 + ds.num_classes)
    assert 0 < sum(map(bool, waits)) <= written // stored.store.piece + 3 < len(waits) // 4  # of all tiles
