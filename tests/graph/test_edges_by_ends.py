"""Edges by their ends and edits by ids, against PyTorch Geometric's functions and NetworkX."""

from __future__ import annotations

from collections.abc import Callable

import networkx as nx
import pytest
import torch

import graphweft as gw
from graphweft.graph import edit


@pytest.fixture
def graph() -> gw.Graph:
    draw = torch.Generator().manual_seed(0)
    src, dst = torch.randint(0, 30, (2, 200), generator=draw)
    made = gw.Graph(src, dst, num_nodes=30)
    made.ndata["x"] = torch.randn(30, 3, generator=draw)
    made.edata["w"] = torch.rand(200, generator=draw)
    return made


def test_edge_ids_are_those_of_networkx(graph: gw.Graph) -> None:
    src, dst = graph.edges()
    peer = nx.MultiDiGraph()
    peer.add_nodes_from(range(30))
    for number, (u, v) in enumerate(zip(src.tolist(), dst.tolist(), strict=True)):
        peer.add_edge(u, v, key=number)
    u, v = torch.meshgrid(torch.arange(30), torch.arange(30), indexing="ij")
    u, v = u.reshape(-1), v.reshape(-1)
    theirs = [sorted(peer[a][b]) if peer.has_edge(a, b) else [] for a, b in zip(u.tolist(), v.tolist(), strict=True)]
    assert graph.has_edges(u, v).tolist() == [bool(ids) for ids in theirs]
    assert graph.edge_ids(u, v, missing=-1).tolist() == [ids[0] if ids else -1 for ids in theirs]
    places, ids = graph.all_edge_ids(u, v)
    flat = [(place, number) for place, found in enumerate(theirs) for number in found]
    assert list(zip(places.tolist(), ids.tolist(), strict=True)) == flat
    assert torch.equal(torch.stack(graph.find_edges(ids)), torch.stack([u[places], v[places]]))


def test_subgraph_is_that_of_pyg(graph: gw.Graph) -> None:
    utils = pytest.importorskip("torch_geometric.utils", reason="the peer of this test")
    nodes = torch.tensor([3, 4, 9, 11, 17, 20, 21, 29])
    mine = graph.subgraph(nodes)
    ends, weight = utils.subgraph(nodes, torch.stack(graph.edges()), graph.edata["w"], relabel_nodes=True, num_nodes=30)
    assert torch.equal(torch.stack(mine.edges()), ends)
    assert torch.equal(mine.edata["w"], weight)
    assert torch.equal(mine.ndata["x"], graph.ndata["x"][nodes])
    turned = graph.subgraph(nodes.flip(0))
    assert torch.equal(nodes.flip(0)[torch.stack(turned.edges())], nodes[ends])


def test_a_graph_under_other_numbers_is_the_permuted_matrix_of_scipy(graph: gw.Graph) -> None:
    nodes = torch.randperm(30, generator=torch.Generator().manual_seed(2))
    _ = graph.is_symmetric, graph.has_self_loops
    found, order = graph.subgraph(nodes), nodes.numpy()
    expected = gw.interop.to_scipy(graph)[order][:, order]
    assert (gw.interop.to_scipy(found) != expected).nnz == 0
    assert torch.equal(nodes[torch.stack(found.edges())], torch.stack(graph.edges()))  # edges keep their numbers
    assert torch.equal(found.edata["w"], graph.edata["w"]) and torch.equal(found.ndata["x"], graph.ndata["x"][nodes])
    assert (found.is_symmetric, found.has_self_loops) == (graph.is_symmetric, graph.has_self_loops)
    assert found.csc.edge_ids_ascend()
    bare = graph.renumbered(nodes, edge_ids=False)
    assert bare.csc.edge_ids is None and torch.equal(bare.csc.indices, found.csc.indices)
    wide = gw.Graph.from_adjacency(graph.csc.widened()).renumbered(nodes)
    assert wide.csc.is_wide and torch.equal(torch.stack(wide.edges()), torch.stack(found.edges()))


def test_a_thinned_structure_has_evenly_spaced_entries(graph: gw.Graph) -> None:
    csc = graph.csc
    thin = edit.thinned(csc, 4)
    rows = csc.indices.split(csc.degrees().tolist())
    spaced = [row[[k * len(row) // min(len(row), 4) for k in range(min(len(row), 4))]] for row in rows]
    assert [row.tolist() for row in thin.indices.split(thin.degrees().tolist())] == [row.tolist() for row in spaced]
    assert thin.num_edges < csc.num_edges and edit.thinned(csc, 200) is csc


def test_removals_are_those_of_networkx(graph: gw.Graph) -> None:
    gone = [0, 7, 8, 22]
    peer = nx.MultiDiGraph(list(zip(*(ends.tolist() for ends in graph.edges()), strict=True)))
    peer.add_nodes_from(range(30))
    peer.remove_nodes_from(gone)
    left = graph.remove_nodes(gone)
    kept = [node for node in range(30) if node not in gone]
    mine = sorted((kept[a], kept[b]) for a, b in zip(*(ends.tolist() for ends in left.edges()), strict=True))
    assert mine == sorted(peer.edges())
    fewer = graph.remove_edges([0, 5])
    stay = torch.ones(200, dtype=torch.bool)
    stay[[0, 5]] = False
    assert torch.equal(torch.stack(fewer.edges()), torch.stack(graph.edges())[:, stay])
    assert torch.equal(fewer.edata["w"], graph.edata["w"][stay])


def test_added_edges_and_nodes_come_last(graph: gw.Graph) -> None:
    more = graph.add_nodes(2, ndata={"x": torch.ones(2, 3)}).add_edges([30, 31], [31, 0], edata={"w": [1.0, 2.0]})
    assert (more.num_nodes, more.num_edges) == (32, 202)
    assert torch.equal(torch.stack(more.edges())[:, :200], torch.stack(graph.edges()))
    assert more.edges()[0][200:].tolist() == [30, 31] and more.edata["w"][200:].tolist() == [1.0, 2.0]
    assert torch.equal(more.ndata["x"][:30], graph.ndata["x"])


def test_mistakes_are_one_line(graph: gw.Graph) -> None:
    lone = gw.Graph([0], [1])
    typed = gw.Graph.hetero({("a", "to", "b"): ([0], [0])})
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: lone.edge_ids([1], [0]), "expected an edge 1 -> 0, got none at position 0; missing=-1"),
        (lambda: lone.edge_ids([5], [0]), "got 5 at position 0"),
        (lambda: lone.has_edges([0, 1], [0]), "one length, got 2 and 1"),
        (lambda: lone.subgraph([1, 1]), "expected distinct nodes, got 1 twice"),
        (lambda: typed.subgraph([0]), "expected an untyped graph, got 1 relations"),
        (lambda: graph.add_edges([0], [1]), "expected rows of edata 'w' for the new ones, got none"),
        (lambda: graph.add_edges([0], [1], {"w": [1.0], "v": [1]}), "got 'v'; set it on the result"),
        (lambda: graph.add_nodes(1, {"x": torch.ones(2, 3)}), "shape (1, 3), got (2, 3)"),
        (lambda: lone.add_nodes(-1), "an integer >= 0, got -1"),
    ]
    for call, text in wrong:
        with pytest.raises(gw.errors.GraphWeftError) as failure:
            call()
        assert text in str(failure.value) and "\n" not in str(failure.value)
