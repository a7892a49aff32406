"""Features of several node types in one sparse matrix, and inverse relations."""

from __future__ import annotations

import pytest
import torch
from typed_zoo import academic, no_node_of_a_type

from graphweft._errors import DataError, GraphError
from graphweft.data.dataset import Dataset
from graphweft.data.flat_features import with_flat_features
from graphweft.graph.graph import Graph
from graphweft.storage.feature import SparseFeatures


def _dataset(graph: Graph, **features: torch.Tensor | SparseFeatures) -> Dataset:
    nothing = torch.empty(0, dtype=torch.int64)
    y = torch.zeros(graph.num_nodes, dtype=torch.int64)
    return Dataset("typed", graph, None, y, torch.arange(2), nothing, nothing, 1, features=features)


def test_every_type_has_columns_of_its_own() -> None:
    generator = torch.Generator().manual_seed(0)
    dense, other = torch.rand(6, 3, generator=generator), torch.rand(9, 2, generator=generator)
    ds = with_flat_features(_dataset(academic(), author=dense, paper=SparseFeatures.from_dense(other)))
    assert isinstance(ds.x, SparseFeatures)
    expected = torch.block_diag(dense, other, torch.eye(4))
    assert torch.equal(ds.x.to_dense(), expected)
    assert ds.x.nnz == 18 + 18 + 4
    assert with_flat_features(ds) is ds


def test_without_any_features_every_node_has_a_column() -> None:
    ds = with_flat_features(_dataset(no_node_of_a_type()))
    assert isinstance(ds.x, SparseFeatures)
    assert torch.equal(ds.x.to_dense(), torch.eye(5))
    plain = _dataset(Graph([0], [1]))
    assert with_flat_features(plain) is plain


def test_features_of_another_number_of_rows_are_refused() -> None:
    with pytest.raises(DataError, match="features of 'paper': expected 9 rows, one per node, got 8"):
        with_flat_features(_dataset(academic(), paper=torch.ones(8, 2)))


def test_inverse_relations_come_after_the_others() -> None:
    graph = academic()
    both = graph.add_inverse_relations()
    assert both.num_edges == 2 * graph.num_edges
    assert both.relations[:4] == graph.relations
    assert both.relations[4] == ("paper", "inverse writes", "author")
    src, dst = graph.edges()
    assert [t.tolist() for t in both.edges()] == [torch.cat([src, dst]).tolist(), torch.cat([dst, src]).tolist()]
    with pytest.raises(GraphError, match="expected no inverse yet, got"):
        Graph.hetero({("a", "r", "a"): ([0], [0]), ("a", "inverse r", "a"): ([0], [0])}).add_inverse_relations()
