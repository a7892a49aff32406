"""Graphs taken out of a block-diagonal one, against the same made from their edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from graphs import many

import graphweft as gw
from graphweft.graph.side_by_side import SideBySide, edge_order


@pytest.mark.parametrize("kind", ["directed", "symmetric", "loops", "wide"])
def test_taken_graphs_are_those_of_their_edges(kind: str) -> None:
    graphs, ptr, src, dst = many(40, kind if kind != "wide" else "directed", seed=1)
    whole = gw.Graph(src, dst, num_nodes=int(ptr[-1]))
    if kind == "wide":
        whole = gw.Graph.from_adjacency(whole.csc.widened())
    held = SideBySide(whole, ptr)
    ids = torch.from_numpy(np.random.Generator(np.random.PCG64(0)).permutation(40)[:17])
    ids = torch.cat([ids, ids[:2]])  # a graph may come twice
    taken = held.take(ids)
    at, want = 0, []
    for g in ids.tolist():
        s, d = graphs[g].edges()
        want.append(torch.stack([s, d]) + at)
        at += graphs[g].num_nodes
    assert torch.equal(torch.stack(taken.graph.edges()), torch.cat(want, dim=1))
    sizes = torch.tensor([graphs[g].num_nodes for g in ids.tolist()])
    assert taken.ptr.tolist() == [0, *sizes.cumsum(0).tolist()]
    assert torch.equal(taken.owners, torch.arange(len(ids)).repeat_interleave(sizes))
    assert torch.equal(taken.nodes, torch.cat([torch.arange(ptr[g], ptr[g + 1]) for g in ids.tolist()]))
    assert torch.equal(
        src[taken.edges] - ptr[ids.repeat_interleave(taken.edge_ptr.diff())],
        torch.cat([graphs[g].edges()[0] for g in ids.tolist()]),
    )
    fresh = gw.Graph(*taken.graph.edges(), num_nodes=taken.graph.num_nodes)
    assert taken.graph.is_symmetric == fresh.is_symmetric and taken.graph.has_self_loops == fresh.has_self_loops
    assert torch.equal(taken.graph.csc.indptr, fresh.csc.indptr) and torch.equal(
        taken.graph.csc.indices, fresh.csc.indices
    )
    assert torch.equal(taken.graph.reverse().in_degrees(), fresh.out_degrees())


def test_no_graphs_and_graphs_without_nodes_or_edges() -> None:
    held = SideBySide(gw.Graph([1], [2], num_nodes=3), torch.tensor([0, 0, 1, 3]))
    taken = held.take(torch.tensor([1, 0, 2]))
    assert taken.ptr.tolist() == [0, 1, 1, 3] and [t.tolist() for t in taken.graph.edges()] == [[1], [2]]
    assert held.take(torch.tensor([], dtype=torch.int64)).graph.num_nodes == 0


def test_edges_in_another_order_or_between_graphs() -> None:
    ptr = torch.tensor([0, 2, 4])
    mixed = gw.Graph([2, 0, 3, 1], [3, 1, 2, 0])
    order = edge_order(mixed, ptr)
    assert order is not None and order.tolist() == [1, 3, 0, 2]
    with pytest.raises(gw.errors.GraphError, match="expected edges numbered graph after graph"):
        SideBySide(mixed, ptr)
    with pytest.raises(gw.errors.GraphError, match="expected edges within graphs, got edge 1 from graph 1 to graph 0"):
        SideBySide(gw.Graph([0, 2], [1, 0], num_nodes=4), ptr)


def test_the_same_for_any_number_of_threads() -> None:
    _, ptr, src, dst = many(200, "directed", seed=3)
    held = SideBySide(gw.Graph(src, dst, num_nodes=int(ptr[-1])), ptr)
    before, ids, found = torch.get_num_threads(), torch.arange(199, -1, -1), []
    try:
        for count in (1, 4):
            torch.set_num_threads(count)
            found.append(held.take(ids).graph.csc)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0].indices, found[1].indices) and torch.equal(found[0].indptr, found[1].indptr)
