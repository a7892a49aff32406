"""Typed models are evaluated over a store by tiles of embedded rows, however small, as over the whole graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graphweft as gw
from graphweft.storage.flat_rows import FlatRows
from graphweft.train import part_inference
from graphweft.train.part_inference import PartInference
from graphweft.train.tiles import Tiles

SIZES = {"a": 130, "b": 170, "c": 40}


def typed(widths: dict[str, int]) -> gw.Dataset:
    """Three types, the last one without features."""
    rng = np.random.default_rng(0)
    edges = {
        ("a", "first", "b"): (rng.integers(0, 130, 900), rng.integers(0, 170, 900)),
        ("b", "second", "a"): (rng.integers(0, 170, 700), rng.integers(0, 130, 700)),
        ("b", "third", "b"): (rng.integers(0, 170, 500), rng.integers(0, 170, 500)),
        ("c", "of", "b"): (rng.integers(0, 40, 200), rng.integers(0, 170, 200)),
    }
    x = {
        name: torch.randn(SIZES[name], width, generator=torch.Generator().manual_seed(1))
        for name, width in widths.items()
    }
    y = torch.cat([torch.full((130,), -1), torch.arange(170) % 3, torch.full((40,), -1)])
    return gw.Dataset("typed", gw.Graph.hetero(edges, SIZES), y=y, features=x, target_type="b", seed=0)


def flat(ds: gw.Dataset) -> torch.Tensor:
    """float64 rows with the columns of all types side by side, and one for each node without features."""
    found = torch.zeros(340, 52, dtype=torch.float64)
    found[:130, :5], found[130:300, 5:12] = ds.features["a"].double(), ds.features["b"].double()
    found[300:, 12:] = torch.eye(40, dtype=torch.float64)
    return found


def model_of(kind: str, store: gw.macro.Store) -> Any:
    torch.manual_seed(0)
    types = store.types
    assert types is not None
    given: dict[str, Any] = {"num_relations": 4} if kind == "RGCN" else {"num_node_types": 3, "num_relations": 4}
    return getattr(gw.nn, kind)(store.num_features, 8, 3, num_layers=2, **given)


@pytest.mark.parametrize("kind", ["RGCN", "HGT"])
def test_tiles_give_the_outputs_of_the_whole_graph(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphweft.train.row_spill.FEW", 1)  # rows far apart are put in the order of the tiles
    ds = typed({"a": 5, "b": 7})
    store = gw.macro.prepare_store(ds, tmp_path / "store", parts=4, memory="64MB", method="hash")
    model = model_of(kind, store).eval()
    order = torch.cat([store.node_ids(number) for number in range(4)])
    with torch.no_grad():
        wanted = model.double()(ds.graph, flat(ds))[order]
    model.float()
    inference = PartInference(model, store, 1 << 20, 1, tmp_path)
    seen = []
    whole = part_inference.PartInference._of_tile

    def counted(self: PartInference, *given: Any) -> torch.Tensor:
        seen.append((type(given[3]).__name__, given[4] is not None))
        return whole(self, *given)

    monkeypatch.setattr(PartInference, "_of_tile", counted)
    monkeypatch.setattr("graphweft.train.tiles.LEAST_WITHIN", 16)
    inference.tiles = Tiles(1 << 12, kept=0)
    for ids in (np.arange(340), np.arange(3, 340, 17)):
        found = inference.outputs(ids)
        torch.testing.assert_close(found.double(), wanted[torch.from_numpy(ids)], rtol=1e-4, atol=1e-5)
    assert {name for name, _ in seen} == {"HiddenTable"}  # no tile reads features
    assert len(seen) > 16


def test_an_evaluation_reads_features_once(tmp_path: Path) -> None:
    ds = typed({"a": 64, "b": 96})
    store = gw.macro.prepare_store(ds, tmp_path / "store", parts=4, memory="64MB", method="hash")
    model = model_of("RGCN", store)
    opened = gw.macro.Store(store.path)
    inference = PartInference(model, opened, 1 << 20, 1, tmp_path)
    inference.tiles = Tiles(1 << 14, kept=0)
    inference.outputs(np.arange(340))
    features = 4 * (130 * 64 + 170 * 96)
    structure = 9 * 2300 + 8 * 344
    before = opened.counts.nbytes
    inference.outputs(np.arange(340))  # checksums were compared before
    assert opened.counts.nbytes - before < 1.5 * features + 8 * (structure + 4096 * 12)


def test_sparse_rows_are_those_of_the_whole_matrix() -> None:
    flat = FlatRows((0, 300, 310, 700), (400, 0, 250))
    x = torch.randn(690, 400, generator=torch.Generator().manual_seed(0))
    x[torch.rand(x.shape, generator=torch.Generator().manual_seed(1)) < 0.5] = 0
    x[300:, 250:] = 0
    ids = torch.cat([torch.arange(700), torch.tensor([5, 305, 699])])
    stored = flat.is_stored(ids)
    own = torch.cat([x[:300], x[300:], x[5:6], x[-1:]])
    wanted = torch.zeros(703, 660)
    wanted[:300, :400], wanted[310:700, 410:] = x[:300], x[300:, :250]
    wanted[300:310, 400:410] = torch.eye(10)
    wanted[700, :400], wanted[701, 405], wanted[702, 410:] = x[5], 1, x[-1, :250]
    assert int(stored.sum()) == len(own)
    found = flat.rows(ids, own)
    assert torch.equal(found.to_dense(), wanted)
    assert found.nnz == int((wanted != 0).sum())
