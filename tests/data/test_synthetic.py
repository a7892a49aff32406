"""Twins of the named sets: published counts, densities and splits; accuracy that means something; errors."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import scipy.sparse as sp
import torch

from graphweft._errors import ConfigError
from graphweft.data.dataset import Dataset
from graphweft.data.statistics import STATISTICS, find_statistics
from graphweft.data.synthetic import synthetic
from graphweft.storage.feature import SparseFeatures

# Scales at which a twin has a few thousand nodes.
SCALES = {
    "default": 0.3,
    "cora": 1.0,
    "citeseer": 1.0,
    "pubmed": 0.2,
    "corafull": 0.2,
    "physics": 0.1,
    "ppi": 0.1,
    "nell": 0.1,
    "flickr": 0.05,
    "reddit": 0.02,
    "yelp": 0.005,
    "amazonproducts": 0.003,
    "ogbn-arxiv": 0.03,
    "ogbn-products": 0.002,
    "amazon-computers": 0.3,
    "ogbn-papers100m": 3e-05,
}


def in_edges(ds: Dataset) -> sp.csr_array:
    csc = ds.graph.csc
    shape = (ds.num_nodes, ds.num_nodes)
    return sp.csr_array((np.ones(ds.num_edges), csc.indices.numpy(), csc.indptr.numpy()), shape=shape)


@pytest.mark.parametrize("name", STATISTICS)
def test_a_twin_has_the_published_statistics(name: str) -> None:
    entry, scale = STATISTICS[name], SCALES[name]
    ds = synthetic(name, scale=scale, seed=1, multilabel=entry.multi_label)
    assert ds.num_nodes == round(entry.num_nodes * scale)
    assert ds.num_edges == pytest.approx(entry.num_edges * scale, rel=0.01)
    assert (ds.num_features, ds.num_classes) == (entry.num_features, entry.num_classes)
    assert 1 - ds.feature_sparsity == pytest.approx(entry.feature_density, rel=0.05)
    graph = in_edges(ds)
    assert graph.has_canonical_format
    assert graph.diagonal().sum() == 0
    assert ((graph != graph.T).nnz == 0) == entry.symmetric == ds.graph.is_symmetric
    degree = np.diff(graph.indptr)
    assert degree.max() > 4 * degree.mean()
    shares = [part / entry.num_nodes if isinstance(part, int) else part for part in entry.split]
    sizes = [part.numel() for part in (ds.train_idx, ds.val_idx, ds.test_idx)]
    assert sizes == pytest.approx([share * ds.num_nodes for share in shares], abs=1)
    assert torch.cat((ds.train_idx, ds.val_idx, ds.test_idx)).unique().numel() == sum(sizes)
    if entry.multi_label:
        assert ds.y.shape == (ds.num_nodes, entry.num_classes)
        assert float(ds.y.mean()) == pytest.approx(entry.labels_per_node, rel=0.25)
    else:
        assert ds.y.unique().numel() == entry.num_classes


def test_whole_counts_of_the_small_sets() -> None:
    ds = synthetic("corafull")
    assert (ds.num_nodes, ds.num_edges, ds.num_features, ds.num_classes) == (19_793, 126_842, 8_710, 70)
    assert isinstance(ds.x, SparseFeatures)
    both = synthetic("ogbn_arxiv", bidirected=True)
    assert (both.num_nodes, both.num_edges, both.graph.is_symmetric) == (169_343, 2_315_598, True)
    assert [i.numel() for i in (both.train_idx, both.val_idx, both.test_idx)] == [90_941, 29_799, 48_603]
    one = synthetic("arxiv")
    assert (one.num_edges, one.graph.is_symmetric) == (1_166_243, False)
    merged = in_edges(one).maximum(in_edges(one).T)
    assert abs(merged - in_edges(both)).nnz == 0


@pytest.mark.parametrize("name", ["cora", "flickr", "ogbn-arxiv", "ogbn-products", "amazon-computers"])
def test_the_share_of_equal_labels_on_edges_is_the_published_one(name: str) -> None:
    ds = synthetic(name, scale=5 * SCALES[name] if name != "cora" else 1.0, seed=2)
    src, dst = ds.graph.edges()
    assert float((ds.y[src] == ds.y[dst]).double().mean()) == pytest.approx(STATISTICS[name].homophily, abs=0.04)


def smoothed(ds: Dataset, x: np.ndarray) -> np.ndarray:
    """The features after two steps of a graph convolution, without weights."""
    graph = in_edges(ds)
    graph = graph + graph.T + sp.eye_array(ds.num_nodes)
    scale = sp.diags_array(1 / np.sqrt(graph.sum(1)))
    step = (scale @ graph @ scale).tocsr()
    return step @ (step @ x)


def ridge_accuracy(ds: Dataset, x: np.ndarray) -> float:
    """Test accuracy of a linear classifier in closed form, the best of three strengths."""
    y, train, test = ds.y.numpy(), ds.train_idx.numpy()[:4000], ds.test_idx.numpy()
    x = (x - x[train].mean(0)) / max(x[train].std(), 1e-12)
    gram, target = x[train].T @ x[train], x[train].T @ (np.eye(ds.num_classes)[y[train]] - 1 / ds.num_classes)
    best = 0.0
    for strength in (1.0, 10.0, 100.0):
        weights = np.linalg.solve(gram + strength * np.eye(x.shape[1]), target)
        best = max(best, float((np.argmax(x[test] @ weights, 1) == y[test]).mean()))
    return best


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        ("default", 1.0),
        ("cora", 1.0),
        ("amazon-computers", 0.4),
        ("ogbn-arxiv", 0.05),
        ("ogbn-products", 0.003),
        ("flickr", 0.1),
    ],
)
def test_neighbours_tell_the_class_better_than_features(name: str, scale: float) -> None:
    ds = synthetic(name, scale=scale, seed=0)
    x = (ds.x.to_dense() if isinstance(ds.x, SparseFeatures) else ds.x).double().numpy()
    alone, together = ridge_accuracy(ds, x), ridge_accuracy(ds, smoothed(ds, x))
    most_common = float(ds.y.bincount().max()) / ds.num_nodes
    assert together < 0.99
    assert together > alone + 0.05
    assert together > 1.5 * most_common
    assert alone > most_common / 2
    if name == "default":
        assert 0.3 < alone < 0.75
        assert 0.85 < together < 0.97


def test_the_same_seed_gives_the_same_set_for_any_number_of_threads() -> None:
    def parts(seed: int) -> list[torch.Tensor]:
        out = []
        for name, scale in (("reddit", 0.005), ("nell", 0.02), ("ppi", 0.03)):
            ds = synthetic(name, scale=scale, seed=seed)
            x = (ds.x.indptr, ds.x.indices, ds.x.values) if isinstance(ds.x, SparseFeatures) else (ds.x,)
            out += [ds.graph.csc.indptr, ds.graph.csc.indices, *x, ds.y, ds.train_idx, ds.val_idx, ds.test_idx]
        return [part.clone() for part in out]

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = parts(7)
        torch.set_num_threads(2)
        two = parts(7)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    other = parts(8)
    assert not any(a.shape == b.shape and torch.equal(a, b) for a, b in zip(one[1:3], other[1:3], strict=True))


def test_options_change_what_they_say() -> None:
    nell = synthetic("nell", scale=0.02, nonzeros_per_row=48)
    assert isinstance(nell.x, SparseFeatures)
    assert bool((nell.x.indptr.diff() == 48).all())
    few, many = (synthetic(num_nodes=2000, num_edges=2000 * degree, num_features=16) for degree in (10, 200))
    assert (few.num_edges, many.num_edges, few.num_nodes, many.num_features) == (20_000, 400_000, 2000, 16)
    loose, tight = (synthetic(homophily=h, scale=0.2) for h in (0.3, 0.9))
    for ds, wanted in ((loose, 0.3), (tight, 0.9)):
        src, dst = ds.graph.edges()
        assert float((ds.y[src] == ds.y[dst]).double().mean()) == pytest.approx(wanted, abs=0.04)
    ordered = synthetic(order="community", scale=0.2, homophily=0.8)
    src, dst = ordered.graph.edges()
    shuffled_src, shuffled_dst = synthetic(scale=0.2, homophily=0.8).graph.edges()
    assert float((src - dst).abs().double().mean()) < 0.5 * float((shuffled_src - shuffled_dst).abs().double().mean())
    once = synthetic("cora", bidirected=False)
    assert once.num_edges == 5278


def test_degrees_are_capped_where_few_nodes_are_left() -> None:
    entry = find_statistics("reddit")
    ds = synthetic("reddit", scale=20 / entry.num_nodes)
    assert ds.num_nodes == 20
    assert 0 < ds.num_edges <= 20 * 19
    assert in_edges(ds).has_canonical_format


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "redit"}, r"known set \(did you mean reddit\?\), got 'redit'"),
        ({"scale": 0}, r"scale in \[0.001, 2.147e\+05\] for default, got 0"),
        ({"scale": float("nan")}, "got nan"),
        ({"scale": 1e9}, "scale in .* got 1000000000.0"),
        ({"scale": "big"}, "got 'big'"),
        ({"seed": -1}, r"seed in \[0, 2\^64\), got -1"),
        ({"seed": 0.5}, "got 0.5"),
        ({"nonzeros_per_row": 65}, r"nonzeros_per_row in \[1, 64\], got 65"),
        ({"nonzeros_per_row": 0}, "got 0"),
        ({"homophily": 1.5}, r"homophily in \[0, 1\], got 1.5"),
        ({"order": "sorted"}, "order 'random' or 'community', got 'sorted'"),
        ({"num_nodes": 3}, "num_nodes to be an integer >= 10, got 3"),
        ({"num_classes": 2.5}, "num_classes to be an integer >= 2, got 2.5"),
    ],
)
def test_bad_options_are_refused_in_one_line(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        synthetic(**options)
    assert "\n" not in str(caught.value)


def test_a_graph_beyond_the_memory_is_refused_before_it_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=2**33))
    with pytest.raises(ConfigError, match=r"fits in 8.0 GiB of free memory, got papers100M at scale 1 with \d+.\d GiB"):
        synthetic("papers100M")


@pytest.mark.parametrize("name", ["ppi", "yelp", "amazonproducts"])
def test_every_node_has_one_class_unless_labels_are_asked_for(name: str) -> None:
    ds = synthetic(name, scale=SCALES[name], seed=1)
    assert (ds.task, ds.y.dtype, ds.y.dim()) == ("classification", torch.int64, 1)
    assert synthetic(name, scale=SCALES[name], seed=1, multilabel=True).task == "multilabel"


def test_a_keyword_that_a_set_does_not_use_is_refused_with_the_sets_that_do() -> None:
    with pytest.raises(ConfigError, match="multilabel=True with one of ppi, yelp, amazonproducts, got default"):
        synthetic("default", scale=0.02, multilabel=True)
    assert synthetic("ppi", scale=0.002, multilabel=True).task == "multilabel"
