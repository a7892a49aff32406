"""Saving in the ``.npz`` form and reading it back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fraud import fraud_tables
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


def read(name: str, folder: Path) -> Dataset:
    """A small dataset of one layout."""
    layout = LAYOUTS[name]
    for file_name, content in layout.files.items():
        (folder / "in" / file_name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "in" / file_name).write_bytes(content)
    return load(folder / "in" / layout.target)


@pytest.mark.parametrize("name", TYPED)
def test_typed_sets_come_back(name: str, tmp_path: Path) -> None:
    ds = read(name, tmp_path)
    count = ds.num_edges
    more = {"edge_weight": torch.rand(count), "edge_features": torch.rand(count, 2), "edge_time": torch.arange(count)}
    ds = replace(ds, **more)
    back = load(ds.save(tmp_path / "out.npz"))
    _equal(ds, back)
    assert back.graph.node_types == ds.graph.node_types and back.graph.relations == ds.graph.relations
    assert back.graph.layout == ds.graph.layout and back.target_type == ds.target_type
    assert back.features.keys() == ds.features.keys() and back.held_out.keys() == ds.held_out.keys()
    for kind, x in ds.features.items():
        mine, theirs = (m.to_scipy() if isinstance(m, SparseFeatures) else m.numpy() for m in (x, back.features[kind]))
        assert (mine != theirs).sum() == 0
    for part, (ends, kinds) in ds.held_out.items():
        assert torch.equal(ends, back.held_out[part][0]) and torch.equal(kinds, back.held_out[part][1])
    assert not any(note.startswith("members of the source that are not used") for note in back.notes)


def test_relations_of_one_name_and_without_edges_come_back(tmp_path: Path) -> None:
    edges = {("a", "to", "b"): ([0, 1], [1, 0]), ("b", "to", "a"): ([1, 0], [0, 0]), ("b", "never", "b"): ([], [])}
    graph = Graph.hetero(edges, num_nodes={"a": 2, "b": 3, "c": 1})
    ds = Dataset("t", graph, torch.rand(6, 2), [0, 1, -1, -1, 1, -1], train_idx=[0, 4], val_idx=[1], target_type=None)
    back = load(ds.save(tmp_path / "t.npz", compress=False))
    _equal(ds, back)
    assert back.graph.layout == graph.layout


@pytest.mark.parametrize("y", [[0.5, 1.5, float("nan")], [[0.5, 1.0], [1.0, 2.0], [0.0, 0.5]]])
def test_values_come_back(y: list, tmp_path: Path) -> None:
    ds = Dataset("v", Graph([0, 1], [1, 2]), torch.rand(3, 2), y, task="regression")
    _equal(ds, load(ds.save(tmp_path / "v.npz")))


def test_an_empty_split_stays_empty(tmp_path: Path) -> None:
    ds = Dataset("v", Graph([0, 1], [1, 2]), torch.rand(3, 2), [0, 1, 1], train_idx=[], val_idx=[], test_idx=[])
    _equal(ds, load(ds.save(tmp_path / "v.npz")))


def test_tables_come_back_with_their_encoding(tmp_path: Path) -> None:
    users, transfers = fraud_tables()
    roles = {"id": "user", "source": "sender", "target": "receiver", "label": "fraud"}
    ds = Dataset.from_tables(users, transfers, **roles, time="time")
    back = load(ds.save(tmp_path / "fraud.npz"))
    _equal(ds, back)
    assert back.encoding == ds.encoding and back.node_names == ds.node_names and back.edge_time is not None
    assert torch.equal(back.edge_time, ds.edge_time) and back.edge_time.dtype == ds.edge_time.dtype
    later = Dataset.from_tables(users, transfers, encoding=back.encoding)
    assert torch.equal(later.x, ds.x)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"edge_offsets": [0, 1]}, "edge_offsets: expected"),
        ({"edge_offsets": [0, 3, 2]}, "edge_offsets: expected offsets that rise from 0"),
        ({"node_offsets": [1, 2, 5]}, "node_offsets: expected offsets that rise from 0"),
        ({"node_offsets": [0, 2**40, 2**41]}, "node_offsets: expected a number that a file of"),
        ({"node_offsets": [0, 1, 2]}, "edge_index: expected ids in"),
        ({"relations": [["a", "to", "x"], ["b", "to", "a"]]}, "relations: expected types among a, b, got 'x'"),
        ({"relations": [["a", "to", "b"], ["a", "to", "b"]]}, "relations: expected distinct types and relations"),
        ({"target_type": "x"}, "target_type: expected one of a, b, got 'x'"),
        ({"encoding": "{"}, "encoding: expected the encoding of tables"),
    ],
)
def test_files_that_lie_are_refused(change: dict, line: str, tmp_path: Path) -> None:
    graph = Graph.hetero({("a", "to", "b"): ([0], [1]), ("b", "to", "a"): ([1], [0])}, num_nodes={"a": 2, "b": 3})
    path = Dataset("t", graph, y=[0, 1, 0, 1, 0], target_type="a").save(tmp_path / "t.npz")
    with np.load(path) as file:
        members = {key: file[key] for key in file.files}
    np.savez(path, **{**members, **{key: np.array(value) for key, value in change.items()}})
    with pytest.raises(DataError, match=line):
        load(path)


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
