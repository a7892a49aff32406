"""Members of ``.npz`` files: names of relations, labels as compressed rows, and what no reader uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import graphweft as gw

EDGES = {"edge_index": np.array([[0, 1, 2, 3], [1, 2, 3, 0]])}
TYPES = {
    **EDGES,
    "edge_type": np.array([0, 1, 1, 0]),
    "node_type": np.array([0, 0, 1, 1]),
    "node_type_names": np.array(["a", "b"]),
}


def load(tmp_path: Path, **members: Any) -> gw.Dataset:
    np.savez(tmp_path / "g.npz", **members)
    return gw.load(tmp_path / "g.npz")


@pytest.mark.parametrize("key", ["relation_names", "edge_type_names"])
@pytest.mark.parametrize("typed", [True, False], ids=["node types", "one node type"])
def test_names_of_relations_in_either_member(tmp_path: Path, key: str, typed: bool) -> None:
    members = TYPES if typed else {**EDGES, "edge_type": TYPES["edge_type"]}
    ds = load(tmp_path, **members, **{key: np.array(["likes", "knows"])})
    assert {name for _, name, _ in ds.graph.relations} == {"likes", "knows"}
    src, dst = ds.graph.edges()
    of = {(s, d): kind for s, d, kind in zip(*EDGES["edge_index"].tolist(), TYPES["edge_type"].tolist(), strict=True)}
    for relation in ds.graph.relations:
        ids = ds.graph.layout.edge_range(relation)
        for s, d in zip(src[ids.start : ids.stop].tolist(), dst[ids.start : ids.stop].tolist(), strict=True):
            assert ["likes", "knows"][of[s, d]] == relation[1]


def test_types_without_edges_or_nodes_are_in_the_notes(tmp_path: Path) -> None:
    gaps = {**EDGES, "edge_type": np.array([0, 5, 5, 0])}
    ds = load(tmp_path, **gaps)
    assert len(ds.graph.relations) == 6 and "types without edges: 1, 2, 3, 4" in ds.notes
    triples = {f"train_{key}": values for key, values in gaps.items()}
    assert "types without edges: 1, 2, 3, 4" in load(tmp_path, **triples).notes
    named = {"node_type_names": np.array(["a", "b", "c"]), "relation_names": np.array(["likes", "knows", "owns"])}
    ds = load(tmp_path, **{**TYPES, **named})
    assert ds.notes == ("types without nodes: c", "types without edges: owns")
    assert not any("types without" in note for note in load(tmp_path, **TYPES).notes)


def test_members_that_are_not_used_are_in_the_notes_and_in_the_error(tmp_path: Path) -> None:
    ds = load(tmp_path, **EDGES, num_nodes=4, labels=np.array([0, 1, 0, 1]), weights=np.ones(4))
    assert "members of the source that are not used: labels, weights" in ds.notes
    with pytest.raises(
        gw.errors.DataError, match=r"labels to train on, got none \(members of .* not used: labels, weights\)"
    ):
        ds.check_trainable()
    typed = load(tmp_path, **TYPES, edge_weight=np.ones(4))
    assert "members of the source that are not used: edge_weight" in typed.notes
    assert not any("not used" in note for note in load(tmp_path, **EDGES, y=np.array([0, 1, 0, 1])).notes)


@pytest.mark.parametrize("given", ["y_shape", "num_classes", "neither"])
@pytest.mark.parametrize("values", [True, False])
def test_labels_as_compressed_rows(tmp_path: Path, given: str, values: bool) -> None:
    rng = np.random.default_rng(0)
    dense = (rng.random((4, 6)) < 0.5).astype(np.int8)
    dense[2, 5] = 1
    matrix = sp.csr_array(dense)
    members: dict[str, Any] = {"y_indptr": matrix.indptr, "y_indices": matrix.indices}
    members |= {"y_data": matrix.data} if values else {}
    members |= {"y_shape": np.array(dense.shape)} if given == "y_shape" else {}
    members |= {"num_classes": 6} if given == "num_classes" else {}
    ds = load(tmp_path, **EDGES, num_nodes=4, **members)
    assert ds.task == "multilabel" and ds.num_classes == 6
    np.testing.assert_array_equal(ds.y.numpy(), dense)
    assert [ds.idx(part).numel() for part in ("train", "val", "test")] == [3, 0, 1]
    assert not any("not used" in note for note in ds.notes)


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"y_indptr": [0, 1, 2, 3, 4]}, "y_indices beside it"),
        ({"y_indptr": [0, 1, 2], "y_indices": [0, 1]}, "y_indptr: expected 5 offsets"),
        ({"y_indptr": [0, 1, 2, 3, 4], "y_indices": [0, 1, 0, 2], "y_shape": [4, 2]}, r"ids in \[0, 2\), got 2"),
        ({"y_indptr": [0, 1, 2, 3, 4], "y_indices": [0, 1, 0, 2], "y_shape": [3, 3]}, "y_shape: expected 4 rows"),
        ({"y_indptr": [0, 1, 2, 3, 4], "y_indices": [0, 1, 0, 10**6]}, "from 1 to 10000 classes"),
        ({"y_indptr": [0, 1, 1, 1, 1], "y_indices": [0], "y_data": [0.5]}, "y_data: expected 0 or 1"),
    ],
)
def test_damaged_compressed_labels(tmp_path: Path, members: dict[str, Any], words: str) -> None:
    with pytest.raises(gw.errors.DataError, match=words):
        load(tmp_path, **EDGES, num_nodes=4, **{key: np.array(value) for key, value in members.items()})


def test_parts_of_a_split_with_common_rows(tmp_path: Path) -> None:
    masks = {
        f"{part}_mask": np.array(mask, bool) for part, mask in {"train": [1, 1, 0, 0], "test": [0, 1, 1, 1]}.items()
    }
    with pytest.warns(gw.errors.DataWarning, match="rows in common: 1 in train and test"):
        ds = load(tmp_path, **EDGES, y=np.array([0, 1, 0, 1]), **masks)
    assert any("1 in train and test" in note for note in ds.notes)
