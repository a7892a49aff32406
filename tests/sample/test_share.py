"""Parts of a batch: each is drawn alone and has of the batch what its seeds reach."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from sample import slow
from sample.test_against_slow import check_blocks

from graphweft._errors import ConfigError
from graphweft.graph.graph import Graph
from graphweft.nn.gcn import GCN
from graphweft.nn.sage import SAGE
from graphweft.sample import neighbor, sampler
from graphweft.sample.neighbor import NeighborSampler
from graphweft.sample.sampler import Sample
from graphweft.sample.share import BatchParts, subgraph_part

FANOUTS = [(4,), (2, 3), (3, 2), (2, 2, 2), (1, 4, 2), (4, 3, 2, 3), (-1, 2), (2, -1), (70, 3, 66)]
CUTS = [(0, 7), (7, 8), (8, 20)]


def graph_of(seed: int = 0) -> Graph:
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randint(0, 60, (2, 500), generator=generator)
    return Graph(ends[0] * ends[0] // 60, ends[1], num_nodes=60)  # a few nodes lead to many, with self-loops


def part_by_hand(
    nodes: Sequence[int], layers: Sequence[slow.Layer], seeds: Sequence[int]
) -> tuple[list[int], list[slow.Layer]]:
    """What some seeds reach in a batch, in the same form: of every block the rows of the nodes that are there."""
    kept, made = list(seeds), []
    for layer in layers:
        rows = [[(nodes[source], edge) for source, edge in layer.rows[nodes.index(node)]] for node in kept]
        kept += sorted({source for row in rows for source, _ in row} - set(kept))
        made.append(slow.Layer([[(kept.index(source), edge) for source, edge in row] for row in rows], len(kept)))
    return kept, made


@pytest.mark.parametrize("hashed", [False, True])
@pytest.mark.parametrize("fanouts", FANOUTS)
def test_a_part_has_of_the_slow_batch_what_its_seeds_reach(
    fanouts: tuple[int, ...], hashed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with replacement, and by weight: rows that are long and seeds of other parts among them."""
    monkeypatch.setattr(neighbor, "_DENSE_MOST", 0 if hashed else sampler.DENSE_MOST)
    for trial in range(4):
        graph, generator = graph_of(trial), torch.Generator().manual_seed(trial)
        seeds, replace = torch.randperm(60, generator=generator)[:20], trial % 2 == 1 and -1 not in fanouts
        weight = torch.rand(500, generator=generator) if trial > 1 else None
        key, given = (trial, 2, 1), None if weight is None else weight.tolist()
        nodes, layers = slow.neighbor(graph, seeds.tolist(), fanouts, replace, given, key)
        parts = BatchParts(NeighborSampler(graph, fanouts, replace, weight), seeds, key)
        for first, last in CUTS:
            mine = seeds[first:last]
            check_blocks(parts.sample(mine), *part_by_hand(nodes, layers, mine.tolist()))


@pytest.mark.parametrize("fanouts", FANOUTS)
def test_a_part_does_without_the_edges_that_the_batch_excludes(fanouts: tuple[int, ...]) -> None:
    """Those into seeds of other parts too, where a row draws as of fewer edges."""
    graph, seeds = graph_of(5), torch.randperm(60, generator=torch.Generator().manual_seed(5))[:20]
    src, dst = graph.edges()
    left = torch.isin(dst, seeds).nonzero().view(-1)[::3]
    given = NeighborSampler(graph, fanouts)
    whole = given.sample(seeds, seed=3, exclude=(src[left], dst[left]))
    layers = []
    for block in reversed(whole.blocks):
        rows: list[list[tuple[int, int]]] = [[] for _ in range(block.num_dst)]
        ends = (*block.edges(), block.e_id)
        for source, row, edge in zip(*(numbers.tolist() for numbers in ends), strict=True):
            rows[row].append((source, edge))
        layers.append(slow.Layer(rows, block.num_src))
    parts = BatchParts(given, seeds, (3, 0, 0), (src[left], dst[left]))
    for first, last in CUTS:
        mine = seeds[first:last]
        check_blocks(parts.sample(mine), *part_by_hand(whole.n_id.tolist(), layers, mine.tolist()))


def test_what_was_meant_for_a_refused_batch_is_forgotten() -> None:
    graph = Graph([1, 2, 3, 3], [0, 0, 0, 1])
    given = NeighborSampler(graph, [-1, -1])
    wanted = given.sample([0]).e_id.tolist()
    with pytest.raises(ConfigError, match="expected distinct seeds"):
        given.sample(torch.tensor([0, 0]), exclude=(torch.tensor([1]), torch.tensor([0])))
    assert given.sample([0]).e_id.tolist() == wanted


@pytest.mark.parametrize("fanouts", FANOUTS)
@pytest.mark.parametrize("kind", [SAGE, GCN])
def test_a_part_computes_the_rows_of_its_seeds(fanouts: tuple[int, ...], kind: type[SAGE] | type[GCN]) -> None:
    graph, x, seeds = graph_of(1), torch.randn(60, 5), torch.arange(12)
    model = kind(5, 6, 3, num_layers=len(fanouts)).eval()
    whole = NeighborSampler(graph, fanouts).sample(seeds, seed=4)
    wanted, parts = model(whole.blocks, x[whole.n_id]), BatchParts(NeighborSampler(graph, fanouts), seeds, (4, 0, 0))
    for first, last in ((0, 5), (5, 12)):
        part = parts.sample(seeds[first:last])
        torch.testing.assert_close(model(part.blocks, x[part.n_id]), wanted[first:last], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fanouts", FANOUTS)
def test_an_open_part_has_the_sources_of_a_closed_one(fanouts: tuple[int, ...]) -> None:
    parts = BatchParts(NeighborSampler(graph_of(2), fanouts), torch.arange(10, 30))
    closed, opened = parts.sample(torch.arange(13, 19)), parts.sample_open(torch.arange(13, 19))
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
