"""Saving in the ``.npz`` form and reading it back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from layouts import LAYOUTS
from zoo import ZOO

from graphweft._errors import DataError
from graphweft.data import prepare
from graphweft.data.dataset import Dataset
from graphweft.data.load import load
from graphweft.data.prepare import save_npz
from graphweft.graph.graph import Graph
from graphweft.storage.feature import SparseFeatures


def _equal(a: Dataset, b: Dataset) -> None:
    for mine, theirs in zip(a.graph.edges(), b.graph.edges(), strict=True):
        assert torch.equal(mine, theirs)
    assert (a.num_nodes, a.num_classes, a.task, a.class_names) == (b.num_nodes, b.num_classes, b.task, b.class_names)
    assert torch.equal(torch.nan_to_num(a.y, 7.0), torch.nan_to_num(b.y, 7.0)) and a.y.dtype == b.y.dtype
    for part in ("train", "val", "test"):
        assert torch.equal(a.idx(part), b.idx(part))
    assert type(a.x) is type(b.x)
    if isinstance(a.x, SparseFeatures) and isinstance(b.x, SparseFeatures):
        assert (a.x.to_scipy() != b.x.to_scipy()).nnz == 0
    elif isinstance(a.x, torch.Tensor) and isinstance(b.x, torch.Tensor):
        assert torch.equal(a.x, b.x)
    for name in ("edge_weight", "edge_features", "graph_ptr", "node_ids"):
        mine, theirs = getattr(a, name), getattr(b, name)
        assert (mine is None) == (theirs is None) and (mine is None or torch.equal(mine, theirs))
    assert a.arrays.keys() == b.arrays.keys()


TYPED = ("npz_relations", "npz_node_types", "npz_triples", "rdf", "rdf_plain", "ntriples")
UNTYPED = [name for name in LAYOUTS if name not in TYPED]


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("name", UNTYPED)
def test_round_trip_of_every_layout(name: str, compress: bool, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    for file_name, content in layout.files.items():
        (tmp_path / "in" / file_name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / file_name).write_bytes(content)
    ds = load(tmp_path / "in" / layout.target)
    _equal(ds, load(save_npz(ds, tmp_path / "out.npz", compress=compress)))


@pytest.mark.parametrize("name", [name for name in ZOO if ZOO[name].num_nodes])
def test_round_trip_keeps_the_order_of_edges(name: str, tmp_path: Path) -> None:
    src, dst, num_nodes = ZOO[name]
    weight = torch.arange(len(src), dtype=torch.float32)
    nothing = torch.empty(0, dtype=torch.int64)
    y = torch.full((num_nodes,), -1)
    ds = Dataset(name, Graph(src, dst, num_nodes=num_nodes), None, y, nothing, nothing, nothing, 0, edge_weight=weight)
    _equal(ds, load(save_npz(ds, tmp_path / "g.npz")))


def test_typed_sets_are_refused(tmp_path: Path) -> None:
    (tmp_path / "in.npz").write_bytes(LAYOUTS["npz_relations"].files["g.npz"])
    with pytest.raises(DataError, match="expected an untyped dataset"):
        save_npz(load(tmp_path / "in.npz"), tmp_path / "out.npz")


def test_failure_half_way_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in.npz").write_bytes(LAYOUTS["npz_dense"].files["g.npz"])
    ds = load(tmp_path / "in.npz")
    target = save_npz(ds, tmp_path / "out.npz")
    before = target.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(prepare.np, "savez_compressed", full)
    with pytest.raises(DataError, match=r"expected a place to write to, got: .*No space left"):
        save_npz(replace(ds, name="other"), target)
    assert target.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.npz", "out.npz"]


def test_place_must_exist_and_be_an_npz(tmp_path: Path) -> None:
    (tmp_path / "in.npz").write_bytes(LAYOUTS["npz_dense"].files["g.npz"])
    ds = load(tmp_path / "in.npz")
    with pytest.raises(DataError, match="expected a place to write to"):
        save_npz(ds, tmp_path / "no" / "out.npz")
    with pytest.raises(DataError, match=r"ending in \.npz"):
        save_npz(ds, tmp_path / "out.txt")


def test_file_is_plain_numpy(tmp_path: Path) -> None:
    (tmp_path / "in.npz").write_bytes(LAYOUTS["npz_sparse"].files["g.npz"])
    ds = load(tmp_path / "in.npz")
    with np.load(save_npz(ds, tmp_path / "out.npz"), allow_pickle=False) as file:
        assert {"indptr", "indices", "x_indptr", "y", "train_mask"} <= set(file.files)
        assert file["train_mask"].nonzero()[0].tolist() == ds.train_idx.tolist()
