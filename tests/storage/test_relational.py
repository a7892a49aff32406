"""Rows of a typed graph's structure, against loops over its edges."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from typed_zoo import TYPED_ZOO

from graphweft.storage.relational import relational_rows


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize("name", TYPED_ZOO)
def test_rows_are_the_shares_of_neighbours_by_relation(name: str, mean: bool, own: bool) -> None:
    graph = TYPED_ZOO[name]()
    nodes, relations = graph.num_nodes, len(graph.relations)
    expected = torch.zeros(nodes, (relations + own) * nodes)
    edges = list(zip(*(part.tolist() for part in (*graph.edges(), graph.edge_type())), strict=True))
    entering = Counter((dst, kind) for _, dst, kind in edges)
    for src, dst, kind in edges:
        expected[dst, kind * nodes + src] += 1 / entering[dst, kind] if mean else 1
    if own:
        expected[torch.arange(nodes), relations * nodes + torch.arange(nodes)] = 1
    torch.testing.assert_close(relational_rows(graph, mean, own).to_dense(), expected)
