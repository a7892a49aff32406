"""Parts of typed graphs: types, order and ends, against the whole graph's own lists."""

from __future__ import annotations

import itertools

import pytest
import torch
from typed_zoo import TYPED_ZOO

from graphweft.graph.graph import Graph
from graphweft.graph.typed_block import TypedPart, typed_block
from graphweft.sample.neighbor import NeighborSampler
from graphweft.sample.segment import SegmentSampler


def _check(part: TypedPart, n_id: torch.Tensor, e_id: torch.Tensor, graph) -> None:
    """Nodes and edges of ``part`` stand for ``n_id`` and ``e_id``, in stretches by type."""
    mine = part.graph
    assert torch.equal(part.order[part.place], torch.arange(n_id.numel()))
    assert mine.node_types == graph.node_types and mine.relations == graph.relations
    assert torch.equal(mine.node_type(), graph.node_type()[n_id[part.order]])
    assert torch.equal(mine.edge_type(), graph.edge_type()[e_id[part.edge_order]])
    ends = torch.stack(mine.edges())
    assert torch.equal(n_id[part.order][ends], torch.stack(graph.edges())[:, e_id[part.edge_order]])
    for offsets, order in ((mine.layout.node_offsets, part.order), (mine.layout.edge_offsets, part.edge_order)):
        for first, last in itertools.pairwise(offsets):  # the order within a type is kept
            assert bool((order[first:last].diff() > 0).all())


@pytest.mark.parametrize("fanouts", [[2, 1], [-1, -1]])
@pytest.mark.parametrize("name", [name for name in TYPED_ZOO if name != "untyped"])
def test_blocks_and_batches_are_typed_graphs(name: str, fanouts: list[int]) -> None:
    graph = TYPED_ZOO[name]()
    seeds = torch.arange(graph.num_nodes - 1, -1, -2)
    sample = SegmentSampler(graph, fanouts).sample(seeds)
    for block in (*sample.blocks, *NeighborSampler(graph, fanouts).sample(seeds).blocks):
        part = typed_block(block)
        assert typed_block(block) is part
        _check(part, block.src_ids, block.e_id, graph)
        rows = part.graph.csc
        if rows.edge_ids is not None:
            assert all(bool((row.diff() > 0).all()) for row in rows.edge_ids.split(rows.degrees().tolist()))
    _check(TypedPart.of(graph.layout, sample.n_id, sample.e_id, *sample.edge_index), sample.n_id, sample.e_id, graph)


@pytest.mark.parametrize("types", [2, 16, 17, 40])
def test_few_and_many_types_are_sorted_alike(types: int) -> None:
    """Several thousand nodes of types of very different sizes, some of none; relations between neighbours."""
    generator = torch.Generator().manual_seed(types)
    counts = {f"t{at}": (0 if at % 7 == 3 else 3000 // (at + 1) + 1) for at in range(types)}
    edges = {}
    for at in range(types):
        pair = f"t{at}", f"t{(at + 1) % types}"
        number = 4000 // (at + 1) if all(counts[name] for name in pair) else 0
        ends = [torch.randint(0, max(1, counts[name]), (number,), generator=generator) for name in pair]
        edges[pair[0], f"to{at}", pair[1]] = tuple(ends)
    graph = Graph.hetero(edges, counts)
    seeds = torch.randperm(graph.num_nodes, generator=generator)[:2000]
    for block in SegmentSampler(graph, [3, 2]).sample(seeds).blocks:
        _check(typed_block(block), block.src_ids, block.e_id, graph)
