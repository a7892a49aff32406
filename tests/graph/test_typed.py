"""Typed graphs laid out flat: offsets, types, relations, bad input."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from graphweft._errors import DtypeError, GraphError, IndexRangeError, ShapeError
from graphweft.graph.graph import Graph

WRITES, CITES, NONE = ("author", "writes", "paper"), ("paper", "cites", "paper"), ("paper", "has", "topic")


def library() -> Graph:
    edges = {WRITES: ([0, 1, 1], [2, 0, 2]), CITES: (torch.tensor([0, 2, 1]), torch.tensor([1, 2, 0])), NONE: ([], [])}
    return Graph.hetero(edges, num_nodes={"author": 2, "paper": 3, "topic": 4})


def test_nodes_type_after_type_and_edges_relation_after_relation() -> None:
    g = library()
    assert g.num_nodes == 9
    assert [t.tolist() for t in g.edges()] == [[0, 1, 1, 2, 4, 3], [4, 2, 4, 3, 4, 2]]
    assert g.node_types == ("author", "paper", "topic")
    assert g.layout.node_offsets == (0, 2, 5, 9)
    assert g.relations == (WRITES, CITES, NONE)
    assert g.layout.edge_offsets == (0, 3, 6, 6)
    assert g.edge_type().tolist() == [0, 0, 0, 1, 1, 1]
    assert g.node_type().tolist() == [0, 0, 1, 1, 1, 2, 2, 2, 2]
    assert "'author': 2" in repr(g)


def test_relation_graphs_have_local_ids() -> None:
    g = library()
    one = g.relation_graph(WRITES)
    assert (one.num_src, one.num_dst, one.is_square) == (2, 3, False)
    assert [t.tolist() for t in one.edges()] == [[0, 1, 1], [2, 0, 2]]
    assert g.relation_graph(NONE).num_edges == 0


def test_reverse_and_loop_removal_keep_types() -> None:
    g = library()
    assert g.reverse().relations[0] == ("paper", "writes", "author")
    assert g.reverse().edge_type().tolist() == g.edge_type().tolist()
    plain = g.without_self_loops()
    assert plain.layout.edge_offsets == (0, 3, 5, 5)
    assert [t.tolist() for t in plain.relation_graph(CITES).edges()] == [[0, 1], [1, 0]]


def test_copies_keep_types() -> None:
    for twin in (pickle.loads(pickle.dumps(library())), copy.deepcopy(library())):
        assert twin.relations == library().relations
        assert twin.is_typed


def test_counts_are_inferred_where_not_declared() -> None:
    g = Graph.hetero({WRITES: ([0, 4], [1, 0])})
    assert g.layout.node_offsets == (0, 5, 7)
    assert not Graph([0], [1]).is_typed
    assert Graph([0], [1]).relations == (("_N", "_E", "_N"),)
    assert Graph([0, 1], [1, 0]).edge_type().tolist() == [0, 0]


BAD = {
    "no_dict": (lambda: Graph.hetero([1]), GraphError, "expected a dict from relation"),
    "key": (lambda: Graph.hetero({"writes": ([0], [0])}), GraphError, "expected relations .* got 'writes'"),
    "pair": (lambda: Graph.hetero({WRITES: 3}), ShapeError, "author-writes-paper: expected a pair"),
    "float": (
        lambda: Graph.hetero({WRITES: ([0.5], [0])}),
        DtypeError,
        "author-writes-paper: expected src of integers",
    ),
    "lengths": (lambda: Graph.hetero({WRITES: ([0], [])}), ShapeError, "one length, got 1 and 0"),
    "missing": (lambda: Graph.hetero({WRITES: ([0], [0])}, {"author": 1}), GraphError, "got none for paper"),
    "range": (
        lambda: Graph.hetero({WRITES: ([0], [3])}, {"author": 1, "paper": 3}),
        IndexRangeError,
        r"author-writes-paper: expected dst ids in \[0, 3\), got 3 at position 0",
    ),
    "negative": (lambda: Graph.hetero({WRITES: ([0, -7], [3, 3])}), IndexRangeError, "got -7 at position 1"),
    "huge": (
        lambda: Graph.hetero({}, {"a": 2**40}),
        GraphError,
        "fits this machine's memory|fit this machine's memory",
    ),
    "relation": (lambda: library().relation_graph(("a", "b", "c")), GraphError, "expected one of the relations"),
    "add": (lambda: library() + library(), GraphError, "expected an untyped graph, got 3 relations"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gives_one_clear_line(name: str) -> None:
    make, error, words = BAD[name]
    with pytest.raises(error, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)
