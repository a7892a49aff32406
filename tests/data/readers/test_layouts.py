"""Each layout against what its files were made from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
import torch
from layouts import CLASSES, LAYOUTS, NODES, npz_bytes, sample

from graphweft._errors import DataError, DataWarning
from graphweft.data.dataset import Dataset
from graphweft.data.readers.assemble import ReadOptions
from graphweft.data.readers.registry import read_dataset
from graphweft.storage.feature import SparseFeatures


def _write(name: str, folder: Path) -> Path:
    layout = LAYOUTS[name]
    for file_name, content in layout.files.items():
        path = folder / file_name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder / layout.target if layout.target else folder


def _read(name: str, folder: Path, **options: object) -> Dataset:
    return read_dataset(_write(name, folder), ReadOptions(**options))


def _dense(ds: Dataset) -> np.ndarray:
    assert ds.x is not None
    return (ds.x.to_dense() if isinstance(ds.x, SparseFeatures) else ds.x).numpy()


def _adjacency(ds: Dataset) -> np.ndarray:
    out = np.zeros((ds.num_nodes, ds.num_nodes))
    src, dst = ds.graph.edges()
    np.add.at(out, (src.numpy(), dst.numpy()), 1)
    return out


WHOLE = ["npz_sparse", "npz_dense", "gnn_benchmark", "heterophilous", "graphsaint", "ogb_nodes"]


@pytest.mark.parametrize("name", WHOLE)
def test_graph_features_and_labels_are_those_of_the_source(name: str, tmp_path: Path) -> None:
    ds, s = _read(name, tmp_path), sample()
    np.testing.assert_array_equal(_adjacency(ds), s.adjacency.toarray())
    np.testing.assert_array_equal(_dense(ds), s.x)
    assert ds.y.tolist() == s.y.tolist() and ds.num_classes == CLASSES


@pytest.mark.parametrize("name", [name for name in WHOLE if name != "gnn_benchmark"])
def test_split_is_the_source_s(name: str, tmp_path: Path) -> None:
    ds = _read(name, tmp_path)
    assert [ds.idx(part).tolist() for part in ("train", "val", "test")] == [[*range(i, i + 4)] for i in (0, 4, 8)]
    assert ds.train_mask.nonzero().reshape(-1).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["npz_sparse", "gnn_benchmark"])
def test_sparse_input_stays_sparse(name: str, tmp_path: Path) -> None:
    ds = _read(name, tmp_path)
    assert isinstance(ds.x, SparseFeatures)
    assert ds.feature_sparsity == pytest.approx(1 - np.count_nonzero(sample().x) / sample().x.size, abs=0)


def test_split_option_picks_a_mask_row(tmp_path: Path) -> None:
    path = _write("npz_dense", tmp_path)
    with pytest.warns(DataWarning, match="rows in common: 4 in train and val, 4 in train and test"):
        ds = read_dataset(path, ReadOptions(split=1))
    assert ds.train_idx.tolist() == [*range(4, 12)] and "rows in common" in ds.notes[-1]
    with pytest.raises(DataError, match=r"split: expected a number in \[0, 2\), got 2"):
        read_dataset(path, ReadOptions(split=2))


def test_random_split_is_60_20_20_by_seed(tmp_path: Path) -> None:
    path = _write("gnn_benchmark", tmp_path)
    first, again, other = (read_dataset(path, ReadOptions(seed=seed)) for seed in (1, 1, 2))
    assert [first.idx(part).numel() for part in ("train", "val", "test")] == [8, 2, 2]
    assert torch.equal(first.train_idx, again.train_idx) and not torch.equal(first.train_idx, other.train_idx)
    parts = torch.cat([first.train_idx, first.val_idx, first.test_idx])
    assert sorted(parts.tolist()) == [*range(NODES)]


def test_planetoid_puts_test_rows_in_their_place(tmp_path: Path) -> None:
    ds, s = _read("planetoid", tmp_path), sample()
    x, y = s.x.copy(), s.y.copy()
    x[9], y[9] = 0, -1  # in no list
    np.testing.assert_array_equal(_dense(ds), x)
    assert ds.y.tolist() == y.tolist() and ds.name == "toy"
    np.testing.assert_array_equal(_adjacency(ds), s.adjacency.toarray())
    assert ds.train_idx.tolist() == [0, 1, 2, 3]
    assert ds.val_idx.tolist() == [4, 5, 6, 7]
    assert ds.test_idx.tolist() == [8, 10, 11]


def test_planetoid_is_found_by_one_of_its_files(tmp_path: Path) -> None:
    folder = _write("planetoid", tmp_path)
    assert read_dataset(folder / "ind.toy.ally").num_nodes == NODES


def test_class_map_of_lists_gives_a_label_matrix(tmp_path: Path) -> None:
    ds = _read("graphsaint_multilabel", tmp_path)
    assert ds.task == "multilabel" and ds.y.dtype == torch.float32
    assert ds.y.argmax(dim=1).tolist() == sample().y.tolist()


@pytest.mark.parametrize(("missing", "note"), [("feats.npy", "no features"), ("class_map.json", "no labels")])
def test_graphsaint_says_what_is_missing(missing: str, note: str, tmp_path: Path) -> None:
    folder = _write("graphsaint", tmp_path)
    (folder / missing).unlink()
    ds = read_dataset(folder)
    assert any(note in text for text in ds.notes)
    with pytest.raises(DataError, match="features" if missing == "feats.npy" else "labels"):
        ds.check_trainable()


def test_set_of_graphs_is_one_block_diagonal_graph(tmp_path: Path) -> None:
    ds = _read("ogb_graphs", tmp_path)
    assert ds.graph_ptr is not None and ds.graph_ptr.tolist() == [0, 3, 7, 12]
    src, dst = ds.graph.edges()
    starts = np.repeat([0, 3, 7], [2, 3, 4])
    np.testing.assert_array_equal(src.numpy() - starts, [0, 1, 0, 1, 2, 0, 1, 2, 3])
    np.testing.assert_array_equal(dst.numpy() - starts, [1, 2, 1, 2, 3, 1, 2, 3, 4])
    assert ds.task == "regression" and ds.y.reshape(-1).tolist() == [-0.5, 1.25, 3.0]
    assert ds.edge_features is not None and ds.edge_features.shape == (9, 2)
    assert (ds.train_idx.tolist(), ds.val_idx.tolist(), ds.test_idx.tolist()) == ([0], [1], [2])
    with pytest.raises(DataError, match="a set of 3 graphs"):
        ds.check_trainable()


def test_ogb_links_that_go_both_ways_are_doubled(tmp_path: Path) -> None:
    folder = tmp_path / "ogbg_molx"
    _write("ogb_graphs", folder)
    for ds in (read_dataset(folder), read_dataset(_write("ogb_graphs", tmp_path / "x"), ReadOptions(name="ogbg-molx"))):
        assert ds.num_edges == 18 and ds.graph.is_symmetric
    assert ds.edge_features is not None and ds.edge_features.shape == (18, 2)


def test_tu_ids_start_at_one_and_classes_keep_their_names(tmp_path: Path) -> None:
    ds = _read("tu", tmp_path)
    assert ds.graph_ptr is not None and ds.graph_ptr.tolist() == [0, 3, 6, 8, 10]
    assert ds.y.tolist() == [1, 0, 1, 0] and ds.class_names == ("-1", "1")
    assert ds.graph.in_degrees().tolist() == [2] * 6 + [1] * 4
    assert ds.arrays["node_tag"].tolist() == [i % 3 for i in range(10)]
    assert _dense(ds)[3].tolist() == [3.5, 9.25]


def test_folds_split_a_set_of_graphs(tmp_path: Path) -> None:
    path = _write("npz_graphs", tmp_path)
    ds = read_dataset(path)
    assert (ds.train_idx.tolist(), ds.val_idx.tolist(), ds.test_idx.tolist()) == ([2, 3], [1], [0])
    assert read_dataset(path, ReadOptions(split=2)).test_idx.tolist() == [2]
    assert _dense(ds).shape == (NODES, 3)


def test_gaps_in_ids_are_closed_and_remembered(tmp_path: Path) -> None:
    ds = _read("snap", tmp_path)
    upper = np.triu(sample().adjacency.toarray())
    assert ds.node_ids is not None
    old = ds.node_ids.numpy()
    back = {(3 * u + 5, 3 * v + 5) for u, v in zip(*np.nonzero(upper), strict=True)}
    src, dst = ds.graph.edges()
    assert set(zip(old[src.numpy()].tolist(), old[dst.numpy()].tolist(), strict=True)) == back
    assert len(old) == len({node for pair in back for node in pair})


def test_header_with_fewer_edges_below_it_is_a_truncated_file(tmp_path: Path) -> None:
    path = _write("snap", tmp_path)
    path.write_bytes(path.read_bytes().rsplit(b"\n", 3)[0])
    with pytest.raises(DataError, match=r"expected \d+ edges, as its header says, got \d+"):
        read_dataset(path)


def test_header_that_counts_isolated_nodes_keeps_ids(tmp_path: Path) -> None:
    path = tmp_path / "g.txt"
    path.write_text("# Nodes: 6 Edges: 2\n0 4\n4 1\n")
    ds = read_dataset(path)
    assert ds.num_nodes == 6 and ds.node_ids is None
    assert [ids.tolist() for ids in ds.graph.edges()] == [[0, 4], [4, 1]]


def test_third_column_is_a_weight(tmp_path: Path) -> None:
    ds = _read("csv", tmp_path)
    assert ds.edge_weight is not None
    src, _ = ds.graph.edges()
    old = ds.node_ids if ds.node_ids is not None else torch.arange(ds.num_nodes)
    assert ds.edge_weight.tolist() == [0.5 * (u + 1) for u in old[src].tolist()]


def test_matrix_market_counts_from_one(tmp_path: Path) -> None:
    ds = _read("matrix_market", tmp_path)
    np.testing.assert_array_equal(_adjacency(ds), sample().adjacency.toarray())
    assert ds.edge_weight is None


@pytest.mark.parametrize("symmetry", ["general", "symmetric"])
@pytest.mark.parametrize("field", ["real", "integer", "pattern"])
def test_matrix_market_is_what_scipy_reads(field: str, symmetry: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    matrix = (
        sp.coo_array(np.tril(rng.integers(0, 4, (20, 20)))) if symmetry == "symmetric" else sp.random_array((20, 20))
    )
    path = tmp_path / "g.mtx"
    whole = (
        sp.coo_array(sp.csr_array(matrix) + sp.csr_array(sp.tril(matrix, -1)).T) if symmetry == "symmetric" else matrix
    )
    scipy.io.mmwrite(path, whole.astype(np.int64) if field == "integer" else whole, field=field, symmetry=symmetry)
    ds, want = read_dataset(path), scipy.io.mmread(path).toarray()
    got = np.zeros((20, 20))
    src, dst = ds.graph.edges()
    np.add.at(got, (src.numpy(), dst.numpy()), 1.0 if ds.edge_weight is None else ds.edge_weight.numpy())
    np.testing.assert_array_equal(got, want.astype(np.float32))


@pytest.mark.parametrize("tail", [b"\x8a", b"1 1\0 1\n", b"1 1 1\n", b"\xff\xff"])
def test_stray_bytes_in_a_matrix_are_one_line(tail: bytes, tmp_path: Path) -> None:
    path = _write("matrix_market", tmp_path)
    path.write_bytes(path.read_bytes() + tail)
    with pytest.raises(DataError, match="expected"):
        read_dataset(path)


def test_symmetric_matrix_gives_both_directions(tmp_path: Path) -> None:
    path = tmp_path / "g.mtx"
    path.write_text("%%MatrixMarket matrix coordinate pattern symmetric\n3 3 2\n2 1\n3 3\n")
    np.testing.assert_array_equal(_adjacency(read_dataset(path)), [[0, 1, 0], [1, 0, 0], [0, 0, 1]])


def test_one_node_type_with_relations(tmp_path: Path) -> None:
    ds = _read("npz_relations", tmp_path)
    assert ds.graph.relations == tuple(("node", name, "node") for name in "abc")
    coo = sample().adjacency.tocoo()
    kinds = np.arange(coo.nnz) % 3
    order = np.argsort(kinds, kind="stable")
    src, dst = ds.graph.edges()
    np.testing.assert_array_equal(src.numpy(), coo.row[order])
    np.testing.assert_array_equal(dst.numpy(), coo.col[order])
    assert ds.val_idx.numel() == 0 and ds.labelled("train").tolist() == [0, 1, 3]


def test_node_types_lie_type_after_type(tmp_path: Path) -> None:
    ds = _read("npz_node_types", tmp_path)
    assert ds.graph.node_types == ("paper", "author", "subject") and ds.target_type == "paper"
    assert ds.graph.relations == (("paper", "paper-author", "author"), ("paper", "paper-subject", "subject"))
    assert [ids.tolist() for ids in ds.graph.edges()] == [[0, 1, 2, 7, 3], [8, 9, 9, 10, 11]]
    assert isinstance(ds.features["paper"], SparseFeatures) and isinstance(ds.features["author"], torch.Tensor)
    assert ds.y.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, -1, -1, -1, -1]
    assert (ds.train_idx.tolist(), ds.val_idx.tolist(), ds.test_idx.tolist()) == ([0, 1], [2, 3], [4, 5])


def test_triples_are_held_out(tmp_path: Path) -> None:
    ds = _read("npz_triples", tmp_path)
    assert ds.num_edges == 20 and {part: pair[0].shape[1] for part, pair in ds.held_out.items()} == {
        "val": 4,
        "test": 4,
    }


@pytest.mark.parametrize("name", LAYOUTS)
def test_gzip_or_not_and_folder_or_raw(name: str, tmp_path: Path) -> None:
    """Every layout is recognised, and its name comes from the path."""
    ds = _read(name, tmp_path)
    assert ds.num_nodes > 0 and ds.name


FORM: dict[str, object] = {
    "edge_index": np.array([[0, 1, 2], [1, 2, 0]]),
    "x": np.eye(3, dtype=np.float32),
    "y": np.array([0, 1, 1]),
    "train_mask": np.array([True, True, False]),
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": np.array([0, 1])}, "y: expected 3 labels, one per row, got shape (2,)"),
        ({"x": np.eye(2)}, "x: expected shape (3, any), got (2, 2)"),
        ({"train_mask": np.ones(4, bool)}, "train_mask: expected 3 entries, one per row, got shape (4,)"),
        ({"train_mask": np.array([0, 1, 2])}, "train_mask: expected true and false"),
        ({"edge_index": np.array([[0, 1, 9], [1, 2, 0]])}, "edge sources: expected ids in [0, 3), got 9 at position 2"),
        (
            {"edge_index": np.array([[0, 1, 2], [1, -1, 0]])},
            "edge targets: expected ids in [0, 3), got -1 at position 1",
        ),
        ({"edge_index": np.array([[0, 1, 2], [1, 2, 0.0]])}, "edge_index: expected integers, got float64"),
        ({"edge_index": np.array([[0, 1], [1, 2], [2, 0]])}, "edge_index: expected shape (2, any), got (3, 2)"),
        ({"x": np.array([[1, 2], [np.nan, 1], [1, 1]])}, "x: expected finite values, got nan at row 1, column 0"),
        ({"x": np.array([[1.0], [1e300], [1]])}, "x: expected finite values, got inf at row 1, column 0"),
        ({"x": np.zeros((3, 0))}, "x: expected a matrix with at least one column"),
        ({"x": np.array([None, 1, 2], dtype=object)}, "x: expected plain numbers, got Python objects"),
        ({"y": np.array([0.5, 1, 1])}, "y: expected whole class ids, got 0.5 at position 0"),
        ({"y": np.array([0, -2, 1])}, "y: expected class ids from 0, or -1 for none, got -2"),
        ({"y": np.array([0, 1, 2**31])}, "y: expected class ids below 10000, got 2147483648 at position 2"),
        ({"y": np.array(["a", "b", "c"])}, "y: expected numbers, got <U1"),
        ({"num_nodes": np.int64(10**15)}, "num_nodes: expected a number that a file of"),
        ({"num_classes": np.int64(1)}, "num_classes: expected between 2 and"),
        ({"edge_weight": np.ones(2)}, "edge_weight: expected shape (3), got (2,)"),
        ({"graph_ptr": np.array([0, 2])}, "y: expected 1 labels, one per row"),
        ({"edge_index": None}, "expected members indptr and indices, or edge_index, got train_mask, x, y"),
        ({"train_mask": None, "test_mask": np.ones(3, bool)}, "train_mask: expected it beside test_mask, got none"),
    ],
)
def test_wrong_members_are_named(change: dict[str, object], message: str, tmp_path: Path) -> None:
    arrays = {key: value for key, value in {**FORM, **change}.items() if value is not None}
    (tmp_path / "g.npz").write_bytes(npz_bytes(arrays))
    with pytest.raises(DataError) as caught:
        read_dataset(tmp_path / "g.npz")
    assert str(caught.value).startswith(f"{tmp_path / 'g.npz'}: {message}")
