"""Transforms against PyTorch Geometric, NetworkX, SciPy and their definitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch

import graphweft as gw

t = gw.transforms


def _graph(nodes: int = 25, edges: int = 90, symmetric: bool = False) -> gw.Graph:
    draw = torch.Generator().manual_seed(nodes + edges)
    graph = gw.Graph(*torch.randint(0, nodes, (2, edges), generator=draw), num_nodes=nodes).to_simple()
    return graph.without_self_loops().to_bidirected() if symmetric else graph


def _data(graph: gw.Graph, **others: Any) -> Any:
    pyg = pytest.importorskip("torch_geometric.data", reason="the peer of this test")
    return pyg.Data(edge_index=torch.stack(graph.edges()), num_nodes=graph.num_nodes, **others)


def _theirs() -> Any:
    return pytest.importorskip("torch_geometric.transforms", reason="the peer of this test")


def test_encodings_are_those_of_pyg() -> None:
    graph = _graph(symmetric=True)
    assert torch.allclose(t.random_walk_encoding(graph, 6), _theirs().AddRandomWalkPE(6)(_data(graph)).random_walk_pe)
    directed = _graph()
    mine, theirs = t.local_degree_profile(directed), _theirs().LocalDegreeProfile()(_data(directed.reverse())).x
    assert torch.allclose(mine, theirs[:, :5], atol=1e-5)
    values, vectors = np.linalg.eigh(nx.normalized_laplacian_matrix(nx.Graph(_pairs(graph)), range(25)).toarray())
    mine = t.laplacian_encoding(graph, 3).double().numpy() / 5
    apart = np.abs(mine.T @ vectors[:, 1:4])  # equal up to signs, the eigenvalues are distinct
    assert np.diff(values[:5]).min() > 1e-3 and np.allclose(apart, np.eye(3), atol=1e-3)


def _pairs(graph: gw.Graph) -> list[tuple[int, int]]:
    return list(zip(*(ends.tolist() for ends in graph.edges()), strict=True))


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")  # of the peer's own product
def test_sign_is_that_of_pyg() -> None:
    graph = _graph(symmetric=True)
    x = torch.randn(25, 4, generator=torch.Generator().manual_seed(1))
    theirs = _theirs().SIGN(3)(_data(graph, x=x))
    mine = t.sign_features(graph, x, 3)
    for hop in range(1, 4):
        assert torch.allclose(mine[hop], theirs[f"x{hop}"], atol=1e-5)


@pytest.mark.parametrize("kind", ["ppr", "heat"])
@pytest.mark.parametrize("way", ["sym", "col", "row"])
def test_gdc_is_that_of_pyg(kind: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphweft.transforms.diffusion._ENTRIES", 25 * 7)  # several blocks of columns
    graph = _graph(symmetric=True)
    options = {"ppr": {"alpha": 0.15}, "heat": {"t": 5.0}}[kind]
    for eps, top_k in [(0.02, None), (None, 6)]:
        how = {"method": "threshold", "eps": eps} if top_k is None else {"method": "topk", "k": top_k, "dim": 0}
        peer = _theirs().GDC(
            self_loop_weight=1, normalization_in=way, normalization_out="col", exact=True,
            diffusion_kwargs={"method": kind, **options}, sparsification_kwargs=how,
        )  # fmt: skip
        theirs = peer(_data(graph))
        made = t.gdc(graph, kind=kind, normalize_in=way, eps=eps, top_k=top_k)
        mine, other = np.zeros((25, 25)), np.zeros((25, 25))
        mine[tuple(ends.numpy() for ends in made.edges())] = made.edata["weight"].numpy()
        other[tuple(theirs.edge_index.numpy())] = theirs.edge_attr.numpy()
        assert np.allclose(mine, other, atol=1e-5)


def test_line_graphs_are_those_of_networkx() -> None:
    graph = _graph(12, 30)
    ends = _pairs(graph)
    made = t.line_graph(graph)
    mine = sorted((ends[a], ends[b]) for a, b in _pairs(made))
    assert mine == sorted(nx.line_graph(nx.DiGraph(ends)).edges())
    fewer = t.line_graph(graph, backtracking=False)
    assert sorted((ends[a], ends[b]) for a, b in _pairs(fewer)) == [(e, f) for e, f in mine if f[1] != e[0]]
    loopless = graph.without_self_loops()
    both = t.line_graph(loopless, undirected=True)
    names = [frozenset(pair) for pair in both.ndata["ends"].tolist()]
    theirs = nx.line_graph(nx.Graph(_pairs(loopless)))
    expected = {frozenset([frozenset(a), frozenset(b)]) for a, b in theirs.edges()}
    assert {frozenset([names[a], names[b]]) for a, b in _pairs(both)} == expected
    assert both.num_edges == 2 * theirs.number_of_edges() and both.num_nodes == theirs.number_of_nodes()


def test_metapath_graphs_are_products_of_matrices() -> None:
    draw = np.random.default_rng(0)
    writes, written = ("author", "writes", "paper"), ("paper", "by", "author")
    ends = draw.integers(0, 6, 20), draw.integers(0, 9, 20)
    graph = gw.Graph.hetero({writes: ends, written: ends[::-1]}, {"author": 6, "paper": 9})
    counts = np.zeros((6, 9))
    np.add.at(counts, ends, 1)
    for path, expected in [
        ([writes, written], counts @ counts.T),
        ([writes, written, writes], counts @ counts.T @ counts),
    ]:
        made = t.metapath_graph(graph, path)
        mine = np.zeros_like(expected)
        mine[tuple(side.numpy() for side in made.edges())] = made.edata["paths"].numpy()
        assert np.array_equal(mine, expected)
        assert made.is_square == (len(path) == 2) and made.num_edges == (expected > 0).sum()


def test_components_are_those_of_networkx() -> None:
    graph = gw.Graph(*np.random.default_rng(3).integers(0, 60, (2, 45)), num_nodes=60)
    peer = nx.MultiDiGraph(_pairs(graph))
    peer.add_nodes_from(range(60))
    for strong, parts in [
        (False, nx.weakly_connected_components(peer)),
        (True, nx.strongly_connected_components(peer)),
    ]:
        sizes = sorted(map(len, parts), reverse=True)
        for count in (1, 2):
            part, nodes = t.largest_component(graph, count, strong=strong)
            assert nodes.numel() == sum(sizes[:count])
            kept = peer.subgraph(nodes.tolist())
            assert sorted((int(nodes[a]), int(nodes[b])) for a, b in _pairs(part)) == sorted(kept.edges())


def test_reordered_graphs_are_the_same_with_communities_together() -> None:
    """SciPy's permutation of the matrix; ends of edges come nearer where communities had been scattered."""
    draw = np.random.default_rng(5)
    groups, size = 12, 40
    place = draw.permutation(groups * size)
    src, other = draw.integers(0, groups * size, (2, 9000))
    dst = np.where(draw.random(9000) < 0.9, src // size * size + other % size, other)
    graph = gw.Graph(place[src], place[dst], num_nodes=groups * size)
    graph.edata["id"], graph.ndata["old"] = torch.arange(9000), torch.arange(groups * size)
    found, nodes = t.reorder(graph)
    assert sorted(nodes.tolist()) == list(range(groups * size))
    order = nodes.numpy()
    assert (gw.interop.to_scipy(found) != gw.interop.to_scipy(graph)[order][:, order]).nnz == 0
    assert torch.equal(found.ndata["old"], nodes) and torch.equal(found.edata["id"], torch.arange(9000))
    apart = [float((a - b).abs().double().mean()) for a, b in (graph.edges(), found.edges())]
    assert apart[1] < 0.4 * apart[0]  # a sixth stay far by construction
    assert torch.equal(t.reorder(graph)[1], nodes)


@pytest.mark.parametrize("cosine", [False, True])
@pytest.mark.parametrize("loops", [False, True])
def test_nearest_points_are_those_of_all_distances(cosine: bool, loops: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=draw, dtype=torch.float64)
    groups = torch.randint(0, 3, (40,), generator=draw)
    unit = x / x.norm(dim=1, keepdim=True)
    apart = 1 - unit @ unit.T if cosine else torch.cdist(x, x)
    apart[groups[:, None] != groups[None]] = torch.inf
    if not loops:
        apart.fill_diagonal_(torch.inf)
    graph = t.knn_graph(x, 4, groups, loops=loops, cosine=cosine)
    values, places = apart.topk(4, largest=False)
    assert torch.equal(graph.edges()[1], torch.arange(40).repeat_interleave(4))
    assert torch.equal(graph.edges()[0], places.reshape(-1))
    assert torch.allclose(graph.edata["distance"], values.reshape(-1).float(), atol=1e-5)
    if not cosine:
        near = t.radius_graph(x, 0.9, groups, loops=loops)
        assert sorted(_pairs(near)) == sorted(map(tuple, (apart <= 0.9).nonzero().tolist()))
        few = t.radius_graph(x, 0.9, groups, loops=loops, max_neighbors=2)
        assert few.in_degrees().tolist() == (apart <= 0.9).sum(1).clamp(max=2).tolist()


def test_equal_points_are_neighbours_but_not_of_themselves() -> None:
    graph = t.knn_graph(torch.zeros(6, 2), 3)
    src, dst = graph.edges()
    assert graph.in_degrees().tolist() == [3] * 6 and not bool((src == dst).any())


def test_dropped_edges_follow_from_their_keys() -> None:
    graph = _graph(60, 2000, symmetric=True)
    kept = t.drop_edges(graph, 0.3, undirected=True, seed=1)
    assert kept.is_symmetric and abs(kept.num_edges / graph.num_edges - 0.7) < 0.05
    again, other = (t.drop_edges(graph, 0.3, seed=1, epoch=epoch) for epoch in (4, 5))
    assert not torch.equal(torch.stack(again.edges())[:, :50], torch.stack(other.edges())[:, :50])
    assert torch.equal(torch.stack(again.edges()), torch.stack(t.drop_edges(graph, 0.3, seed=1, epoch=4).edges()))


def test_virtual_nodes_are_those_of_pyg() -> None:
    graph = _graph()
    graph.ndata["x"], graph.edata["edge_attr"] = torch.randn(25, 3), torch.randn(graph.num_edges, 2)
    graph.edata["edge_weight"] = torch.rand(graph.num_edges)
    theirs = _theirs().VirtualNode()(_data(graph, **graph.ndata, **graph.edata))
    made = t.virtual_nodes(graph)
    assert made.num_nodes == theirs.num_nodes == 26
    assert torch.equal(torch.stack(made.edges()), theirs.edge_index)
    assert torch.equal(made.edata["kind"], theirs.edge_type)
    for name, rows in (*made.ndata.items(), *made.edata.items()):
        assert name == "kind" or torch.equal(rows, theirs[name]), name


def test_a_virtual_node_for_every_graph_of_a_batch() -> None:
    groups = torch.tensor([0] * 10 + [1] * 5 + [2] * 10)
    made = t.virtual_nodes(_graph(), groups)
    assert made.num_nodes == 28
    for ends, kind in ((made.edges(), 1), (made.edges()[::-1], 2)):
        pairs = torch.stack(ends)[:, made.edata["kind"] == kind]
        assert torch.equal(pairs[0], torch.arange(25)) and torch.equal(pairs[1], 25 + groups)


def test_splits_of_nodes_have_the_sizes_of_pyg() -> None:
    y = torch.tensor([0] * 60 + [1] * 30 + [2] * 10 + [-1] * 20)
    ds = gw.Dataset("three", _graph(120, 300), torch.ones(120, 1), y)
    planetoid = t.split_nodes(ds, per_class=5, val=10, test=20, seed=1)
    assert torch.bincount(y[planetoid.train_idx]).tolist() == [5, 5, 5]
    assert (planetoid.val_idx.numel(), planetoid.test_idx.numel()) == (10, 20)
    rest = t.split_nodes(ds, per_class=5, val=10, test=None, seed=1)
    shares = t.split_nodes(ds, val=0.1, test=0.3, seed=2)
    for made, sizes in [(rest, (15, 10, 75)), (shares, (60, 10, 30))]:
        parts = [made.idx(part) for part in ("train", "val", "test")]
        assert tuple(part.numel() for part in parts) == sizes
        assert torch.cat(parts).unique().numel() == sum(sizes) and bool((y[torch.cat(parts)] >= 0).all())
    assert not torch.equal(shares.val_idx, t.split_nodes(ds, val=0.1, test=0.3, seed=3).val_idx)
    assert torch.equal(shares.val_idx, t.split_nodes(ds, val=0.1, test=0.3, seed=2).val_idx)


def test_mistakes_are_one_line() -> None:
    graph, typed = _graph(), gw.Graph.hetero({("a", "to", "b"): ([0], [0])})
    ds = gw.Dataset("two", gw.Graph([0, 1], [1, 0]), torch.ones(2, 1), [0, 1])
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: t.split_nodes(ds, val=1.5), "expected val as a number of rows >= 0 or a share in [0, 1), got 1.5"),
        (lambda: t.split_nodes(ds, val=1, test=1), "expected parts that fit 2 labelled rows, got val=1 and test=1"),
        (lambda: t.split_nodes(ds, per_class=3), "expected per_class <= 1, the rows of class 0, got 3"),
        (lambda: t.split_nodes(ds, test=None), "expected per_class with test=None"),
        (lambda: t.random_walk_encoding(typed, 2), "expected an untyped graph"),
        (lambda: t.random_walk_encoding(graph, 0), "steps as an integer >= 1, got 0"),
        (lambda: t.laplacian_encoding(graph, 99), "an integer from 1 to 24"),
        (lambda: t.sign_features(graph, torch.ones(3, 1), 2), "dense features of 25 nodes, got (3, 1)"),
        (lambda: t.gdc(graph), "expected one of top_k and eps, got top_k=None and eps=None"),
        (lambda: t.gdc(graph, eps=0.1, kind="pr"), "one of ppr, heat, got 'pr'"),
        (lambda: t.gdc(graph, eps=0.1, alpha=2.0), "alpha between 0 and 1, got 2.0"),
        (lambda: t.line_graph(graph, undirected=True, backtracking=False), "cannot be combined"),
        (lambda: t.metapath_graph(graph, []), "expected a typed graph"),
        (lambda: t.metapath_graph(typed, [("a", "to", "b")] * 2), "begins at b, got a-to-b and a-to-b in turn"),
        (lambda: t.largest_component(graph, 0), "count as an integer >= 1, got 0"),
        (lambda: t.reorder(typed), "expected an untyped graph over one set of nodes"),
        (lambda: t.drop_edges(graph, 1.5), "share in [0, 1], got 1.5"),
        (lambda: t.virtual_nodes(typed), "expected an untyped graph"),
        (lambda: t.virtual_nodes(graph, [0, 1]), "groups as integers of shape (25,), got int64 (2,)"),
        (lambda: t.virtual_nodes(graph, [-1] * 25), "groups >= 0, got -1"),
        (lambda: t.knn_graph([[1.0]], 0), "k as an integer >= 1, got 0"),
        (lambda: t.knn_graph("points", 1), "points as numbers of shape (N, D), got str"),
        (lambda: t.knn_graph([1.0], 1), "shape (N, D), got (1,)"),
        (lambda: t.radius_graph([[float("nan")]], 1.0), "finite numbers, got nan"),
        (lambda: t.radius_graph([[0.0]], -1), "r > 0, got -1"),
    ]
    for call, text in wrong:
        with pytest.raises(gw.errors.GraphWeftError) as failure:
            call()
        assert text in str(failure.value) and "\n" not in str(failure.value)
