"""Features made of the graph, against NumPy and SciPy on dense matrices."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse.csgraph
import torch

import graphweft as gw
from graphweft.data.structure_features import structure_features


def directed(nodes: int, edges: int, seed: int) -> gw.Graph:
    rng = np.random.default_rng(seed)
    ring = np.arange(nodes)  # connected
    src = np.concatenate([ring, rng.integers(0, nodes, edges)])
    dst = np.concatenate([(ring + 1) % nodes, rng.integers(0, nodes, edges)])
    return gw.Graph(src, dst, num_nodes=nodes)


def dense(graph: gw.Graph) -> np.ndarray:
    out = np.zeros((graph.num_nodes, graph.num_nodes))
    src, dst = graph.edges()
    np.add.at(out, (src.numpy(), dst.numpy()), 1)
    return out


@pytest.mark.parametrize("nodes", [60, 400])
def test_laplacian_is_the_smallest_eigenvectors(nodes: int) -> None:
    graph, k = directed(nodes, 3 * nodes, seed=1), 6
    a = dense(graph)
    a = ((a + a.T) > 0).astype(float)
    np.fill_diagonal(a, 0)
    laplacian = scipy.sparse.csgraph.laplacian(a, normed=True)
    values, vectors = scipy.linalg.eigh(laplacian)
    found = structure_features(graph, "laplacian", k).numpy().astype(np.float64)
    assert found.shape == (nodes, k)
    np.testing.assert_allclose((found**2).mean(0), 1, rtol=1e-4)
    for at in range(k):
        wanted = vectors[:, at + 1] * np.sqrt(nodes)
        cosine = abs(found[:, at] @ wanted) / nodes
        assert cosine == pytest.approx(1, abs=1e-3), at
        np.testing.assert_allclose(laplacian @ found[:, at], values[at + 1] * found[:, at], atol=2e-3)
        assert found[np.argmax(np.abs(found[:, at])), at] > 0
    assert torch.equal(structure_features(graph, "laplacian", k), structure_features(graph, "laplacian", k))
    renumbered = gw.Graph(*graph.edges(), num_nodes=nodes)
    assert torch.equal(structure_features(renumbered, "laplacian", k), torch.from_numpy(found).float())


def test_degrees() -> None:
    graph = directed(50, 200, seed=2)
    a = dense(graph)
    found = structure_features(graph, "degree").numpy()
    for column, degrees in enumerate((a.sum(0), a.sum(1))):
        logs = np.log1p(degrees)
        np.testing.assert_allclose(found[:, column], (logs - logs.mean()) / logs.std(), rtol=1e-4, atol=1e-5)
    assert (found[:, 2] == 1).all()
    assert structure_features(graph.to_bidirected(), "degree").shape == (50, 2)
    ring = structure_features(gw.Graph([0, 1, 2], [1, 2, 0]), "degree")
    assert ring.tolist() == [[0, 0, 1]] * 3


def test_one_hot_and_random() -> None:
    graph = directed(20, 40, seed=3)
    for kind in ("onehot", "embedding"):
        np.testing.assert_array_equal(structure_features(graph, kind).to_dense().numpy(), np.eye(20))
    first, again, other = (structure_features(graph, "random", 500, seed) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert abs(float(first.mean())) < 0.05 and abs(float(first.std()) - 1) < 0.05


@pytest.mark.parametrize(
    ("kind", "width", "words"),
    [
        (
            "degrees",
            None,
            "features: expected one of degree, degree_onehot, onehot, random, laplacian, embedding, got 'degrees'",
        ),
        ("degree", 4, "width: expected none"),
        ("laplacian", 20, "width: expected an integer from 1 to 19"),
        ("random", 0, "width: expected an integer from 1"),
    ],
)
def test_what_cannot_be_made_is_refused(kind: str, width: int | None, words: str) -> None:
    with pytest.raises(gw.errors.ConfigError, match=words):
        structure_features(directed(20, 40, seed=3), kind, width)


def test_a_dataset_with_features_says_so_and_a_bare_one_names_the_way() -> None:
    graph = directed(20, 40, seed=4)
    bare = gw.Dataset("bare", graph, y=torch.arange(20) % 2)
    with pytest.raises(
        gw.errors.DataError, match=r"ds\.with_features\('degree'\) .*--features degree\|degree_onehot\|onehot\|"
    ):
        gw.Trainer(gw.nn.GCN(2, 4, 2), bare)
    ds = bare.with_features("degree")
    assert ds.num_features == 3 and "features are made of the graph: degree" in ds.notes[-1]
    assert "in the place of those of the source" in ds.with_features("random", 4).notes[-1]
    with pytest.raises(gw.errors.DataError, match="a graph of 20 nodes, got 5"):
        bare.with_features("degree", graph=directed(5, 5, seed=0))
    fewer = directed(20, 0, seed=4)
    assert torch.equal(bare.with_features("degree", graph=fewer).x, structure_features(fewer, "degree"))
    assert len(gw.Trainer(gw.nn.GCN(3, 4, 2), ds).fit(2)) == 2


def test_a_typed_graph_has_features_of_its_flat_form() -> None:
    graph = directed(20, 40, seed=5)
    src, dst = graph.edges()
    typed = gw.Graph.hetero({("n", "r", "n"): (src[:30], dst[:30]), ("n", "s", "n"): (src[30:], dst[30:])}, {"n": 20})
    for kind in ("degree", "laplacian"):
        assert torch.equal(structure_features(typed, kind), structure_features(graph, kind))
