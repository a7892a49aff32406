"""NetworkX graphs both ways."""

from __future__ import annotations

import sys

import networkx as nx
import numpy as np
import pytest
import torch
from zoo import CASES, Case

from graphweft._errors import DtypeError, GraphError, MissingPackageError
from graphweft.graph.graph import Graph
from graphweft.interop.networkx import from_networkx, to_networkx
from graphweft.interop.scipy import to_scipy


@pytest.mark.parametrize("case", CASES, ids=str)
def test_to_networkx_has_every_edge_with_its_number(case: Case) -> None:
    out = to_networkx(case.graph())
    shift = case.num_src if case.bipartite else 0
    assert out.number_of_nodes() == case.graph().num_nodes
    expected = sorted(zip(case.src.tolist(), (case.dst + shift).tolist(), range(case.num_edges), strict=True))
    assert sorted((u, v, d["id"]) for u, v, d in out.edges(data=True)) == expected
    assert out.is_multigraph() == (case.scipy().max() > 1 if case.num_edges else False)


@pytest.mark.parametrize("kind", [nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph])
def test_every_kind_is_read_as_its_adjacency_matrix(kind: type) -> None:
    source = kind()
    source.add_nodes_from("abcd")
    source.add_edges_from([("a", "b"), ("b", "a"), ("c", "c"), ("a", "b"), ("b", "d")])
    assert np.array_equal(to_scipy(from_networkx(source)).toarray(), nx.to_numpy_array(source))


def test_attributes_go_both_ways() -> None:
    graph = Graph([0, 1, 2], [1, 2, 0])
    graph.ndata["h"] = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    graph.edata["w"] = torch.tensor([7, 8, 9])
    back = from_networkx(to_networkx(graph, ndata=["h"], edata=["w"]), ndata=["h"], edata=["w", "id"])
    assert torch.equal(back.ndata["h"], graph.ndata["h"])
    assert torch.equal(back.edata["w"], graph.edata["w"][back.edata["id"]])


def test_undirected_attributes_hold_for_both_ways() -> None:
    source = nx.Graph()
    source.add_edge("x", "y", w=0.5)
    source.add_edge("y", "y", w=1.5)
    graph = from_networkx(source, edata=["w"])
    assert [t.tolist() for t in graph.edges()] == [[0, 1, 1], [1, 1, 0]]
    assert graph.edata["w"].tolist() == [0.5, 1.5, 0.5]


def test_bad_input_gives_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DtypeError, match="expected a NetworkX graph, got int"):
        from_networkx(3)
    with pytest.raises(GraphError, match="expected the attribute 'w' on every edge, got none on"):
        from_networkx(nx.path_graph(2), edata=["w"])
    with pytest.raises(GraphError, match=r"expected one of edata \(none\), got 'w'"):
        to_networkx(Graph([0], [1]), edata=["w"])
    named = nx.Graph()
    named.add_node(0, name="zero")
    with pytest.raises(DtypeError, match="expected numbers in node attribute 'name'"):
        from_networkx(named, ndata=["name"])
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(MissingPackageError, match="expected the package networkx"):
        to_networkx(Graph([0], [1]))
