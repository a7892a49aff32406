"""Parts of a batch: together they have its edges, and each computes its seeds' rows."""

from __future__ import annotations

import pytest
import torch

from graphweft.graph.graph import Graph
from graphweft.nn.gcn import GCN
from graphweft.nn.sage import SAGE
from graphweft.sample.neighbor import NeighborSampler
from graphweft.sample.sampler import OpenSample, Sample
from graphweft.sample.share import share_of, subgraph_part

FANOUTS = [(4,), (2, 3), (3, 2), (2, 2, 2), (1, 4, 2), (-1, 2), (2, -1)]


def graph_of(seed: int = 0) -> Graph:
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randint(0, 60, (2, 500), generator=generator)
    return Graph(ends[0] * ends[0] // 60, ends[1], num_nodes=60)  # a few nodes lead to many, with self-loops


def edges_of(sample: Sample, hop: int) -> list[tuple[int, int, int]]:
    """Edges of a block by ids of the whole graph."""
    block = sample.blocks[-1 - hop]
    src, dst = block.edges()
    return list(zip(block.src_ids[src].tolist(), block.dst_ids[dst].tolist(), block.e_id.tolist(), strict=True))


@pytest.mark.parametrize("fanouts", FANOUTS)
def test_parts_have_the_edges_that_the_batch_drew(fanouts: tuple[int, ...]) -> None:
    graph, seeds = graph_of(), torch.randperm(60)[:20]
    whole = NeighborSampler(graph, fanouts).sample(seeds, seed=1, epoch=2)
    parts = [share_of(whole, a, b) for a, b in ((0, 7), (7, 8), (8, 20))]
    for hop in range(len(fanouts)):
        drawn = edges_of(whole, hop)
        by_node = {node: sorted(e for e in drawn if e[1] == node) for node in {e[1] for e in drawn}}
        seen = set()
        for part in parts:
            assert isinstance(part, Sample)
            mine = edges_of(part, hop)
            assert len(set(mine)) == len(mine)
            for node in part.blocks[-1 - hop].dst_ids.tolist():  # all of a node's edges, or the node is not there
                assert sorted(e for e in mine if e[1] == node) == by_node.get(node, [])
            seen |= set(mine)
        assert seen == set(drawn) or hop > 0
    assert torch.cat([part.n_id[: part.batch_size] for part in parts]).equal(seeds)


@pytest.mark.parametrize("fanouts", FANOUTS)
@pytest.mark.parametrize("kind", [SAGE, GCN])
def test_a_part_computes_the_rows_of_its_seeds(fanouts: tuple[int, ...], kind: type[SAGE] | type[GCN]) -> None:
    graph, x = graph_of(1), torch.randn(60, 5)
    model = kind(5, 6, 3, num_layers=len(fanouts)).eval()
    whole = NeighborSampler(graph, fanouts).sample(torch.arange(12), seed=4)
    wanted = model(whole.blocks, x[whole.n_id])
    for first, last in ((0, 5), (5, 12)):
        part = share_of(whole, first, last)
        assert isinstance(part, Sample)
        torch.testing.assert_close(model(part.blocks, x[part.n_id]), wanted[first:last], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fanouts", FANOUTS)
def test_an_open_part_has_the_sources_of_a_closed_one(fanouts: tuple[int, ...]) -> None:
    sampler, seeds = NeighborSampler(graph_of(2), fanouts), torch.arange(10, 30)
    closed, opened = share_of(sampler.sample(seeds), 3, 9), share_of(sampler.sample_open(seeds), 3, 9)
    assert isinstance(opened, OpenSample) and isinstance(closed, Sample)
    assert torch.equal(opened.n_id, closed.n_id[: opened.n_id.numel()])
    last = closed.blocks[0]
    assert torch.equal(opened.blocks[0].csc.indptr, last.csc.indptr)
    assert torch.equal(opened.blocks[0].csc.indices.long(), last.src_ids[last.csc.indices.long()])
    for one, other in zip(opened.blocks[1:], closed.blocks[1:], strict=True):
        assert torch.equal(one.csc.indices, other.csc.indices) and torch.equal(one.csc.indptr, other.csc.indptr)


@pytest.mark.parametrize("fanouts", FANOUTS)
def test_a_part_as_one_graph_computes_the_rows_of_its_seeds(fanouts: tuple[int, ...]) -> None:
    graph, x = graph_of(3), torch.randn(60, 4, dtype=torch.float64)
    whole = NeighborSampler(graph, fanouts).sample(torch.arange(15), seed=7)

    def rows(sample: Sample) -> torch.Tensor:
        h, (src, dst) = x[sample.n_id], sample.edge_index
        count = torch.bincount(dst, minlength=h.shape[0]).double() + 1
        scale = count.rsqrt().unsqueeze(1)  # of both ends of an edge
        for _ in range(len(fanouts) + 2):  # more rounds than hops were drawn
            h = torch.tanh(h + scale * torch.zeros_like(h).index_add_(0, dst, (scale * h)[src]))
        return h[: sample.batch_size]

    for first, last in ((0, 6), (6, 15)):
        part = subgraph_part(whole, torch.arange(first, last))
        torch.testing.assert_close(rows(part), rows(whole)[first:last])
        assert part.num_edges == part.e_id.numel() == len(set(part.e_id.tolist()))
        src, dst = (ends[part.e_id] for ends in graph.edges())
        assert torch.equal(part.n_id[part.edge_index[0]], src) and torch.equal(part.n_id[part.edge_index[1]], dst)
