"""A dataset is checked when it is made; what is wrong is said in one line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from graphweft._errors import DataError
from graphweft.data.dataset import Dataset
from graphweft.graph.graph import Graph
from graphweft.storage.feature import SparseFeatures


def _parts() -> dict[str, Any]:
    return {
        "name": "toy",
        "graph": Graph([0, 1, 2, 3], [1, 2, 3, 0], num_nodes=4),
        "x": torch.tensor([[1.0, 3.0], [0.0, 0.0], [2.0, -1.0], [0.0, 5.0]]),
        "y": torch.tensor([0, 1, -1, 1]),
        "train_idx": torch.tensor([0, 2]),
        "val_idx": torch.tensor([1]),
        "test_idx": torch.tensor([3]),
        "num_classes": 2,
    }


def test_properties() -> None:
    ds = Dataset(**_parts())
    assert (ds.num_nodes, ds.num_edges, ds.num_features, ds.feature_sparsity) == (4, 4, 2, 3 / 8)
    assert ds.train_mask.tolist() == [True, False, True, False]
    assert ds.labelled("train").tolist() == [0] and ds.idx("val").tolist() == [1]
    assert repr(ds) == "Dataset('toy', 4 nodes, 4 edges, 2 dense features, 2 classes, split 2/1/1)"
    ds.check_trainable()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.ones(3, 2)}, "x: expected 4 rows, one per node, got 3"),
        ({"x": torch.ones(4)}, "x: expected a matrix with at least one column"),
        ({"x": torch.ones(4, 0)}, "x: expected a matrix with at least one column"),
        ({"x": torch.ones(4, 2, dtype=torch.complex64)}, "x: expected real numbers, got torch.complex64"),
        ({"x": torch.tensor([[0.0, 1], [0, 1], [0, float("nan")], [0, 1]])}, "got nan at row 2, column 1"),
        ({"x": torch.tensor([[0.0, 1], [float("-inf"), 1], [0, 1], [0, 1]])}, "got -inf at row 1, column 0"),
        ({"y": torch.tensor([0, 1, 0])}, "y: expected 4 rows"),
        ({"y": torch.tensor([0, 1, 2, 0])}, r"y: expected labels in \[-1, 2\), got 2 at position 2"),
        ({"y": torch.tensor([0, -2, 1, 0])}, r"y: expected labels in \[-1, 2\), got -2 at position 1"),
        ({"y": torch.zeros(4)}, "y: expected int64 class ids"),
        ({"y": torch.zeros(4, 3), "task": "multilabel"}, r"y: expected float32 of shape \(4, 2\)"),
        ({"task": "guess"}, "task: expected classification"),
        ({"train_idx": torch.tensor([0, 4])}, r"train_idx: expected ids in \[0, 4\), got 4 at position 1"),
        ({"train_idx": [3, 0, 2, 0]}, "train_idx: expected each id once, got 0 again at position 3"),
        ({"val_idx": torch.tensor([-1])}, r"val_idx: expected ids in \[0, 4\), got -1 at position 0"),
        ({"test_idx": torch.tensor([1.0])}, "test_idx: expected a vector of ids or a boolean mask"),
        ({"edge_weight": torch.ones(3)}, "edge_weight: expected float32 with 4 rows"),
        (
            {"edge_weight": torch.tensor([1, 1, float("inf"), 1])},
            "edge_weight: expected finite values, got inf at position 2",
        ),
        ({"edge_features": torch.ones(4)}, "edge_features: expected float32 with 4 rows"),
        (
            {"graph_ptr": torch.tensor([0, 2, 1, 4]), "y": torch.tensor([0, 1, 0])},
            "graph_ptr: expected offsets that rise",
        ),
        ({"graph_ptr": torch.tensor([0, 2])}, "graph_ptr: expected offsets that rise from 0 to 4"),
        ({"node_ids": torch.tensor([1])}, "node_ids: expected 4 ids"),
        ({"features": {"a": torch.full((2, 2), float("nan"))}}, "features of 'a': expected finite values"),
        ({"graph": Graph([], [], num_nodes=0)}, "graph: expected at least one node"),
    ],
)
def test_faults_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        Dataset(**{**_parts(), **change})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": None}, "expected node features x, got none"),
        ({"x": None, "features": {"a": torch.ones(2, 2)}}, "got features of a only"),
        ({"num_classes": 0, "y": torch.full((4,), -1)}, "expected labels to train on, got none"),
        ({"train_idx": torch.tensor([2])}, "expected at least one training node with a label, got none"),
        ({"train_idx": torch.empty(0, dtype=torch.int64)}, "expected at least one training node with a label"),
        ({"graph_ptr": torch.tensor([0, 1, 2, 3, 4])}, "got a set of 4 graphs"),
    ],
)
def test_what_training_needs_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=rf"^toy: .*{message}"):
        Dataset(**{**_parts(), **change}).check_trainable()


def test_row_normalized_divides_by_the_sum_dense_and_sparse() -> None:
    parts = _parts()
    want = np.array([[0.25, 0.75], [0, 0], [2 / 3, -1 / 3], [0, 1]], dtype=np.float32)
    dense = Dataset(**parts).row_normalized()
    sparse = Dataset(**{**parts, "x": SparseFeatures.from_dense(parts["x"])}).row_normalized()
    assert isinstance(dense.x, torch.Tensor) and isinstance(sparse.x, SparseFeatures)
    np.testing.assert_array_equal(dense.x.numpy(), want)
    np.testing.assert_array_equal(sparse.x.to_dense().numpy(), want)
    assert torch.equal(parts["x"], _parts()["x"])


def test_replace_checks_again() -> None:
    with pytest.raises(DataError, match=r"y: expected labels in"):
        replace(Dataset(**_parts()), num_classes=1)


def test_labels_of_several_columns() -> None:
    y = torch.tensor([[1.0, 0.0], [0.0, 0.0], [float("nan"), float("nan")], [1.0, 1.0]])
    ds = Dataset(**{**_parts(), "y": y, "task": "multilabel"})
    assert ds.labelled("train").tolist() == [0]
