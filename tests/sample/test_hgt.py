"""HGSampling: chances by enumeration, what a batch holds, the loader's views by type, training, mistakes."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from sample.test_chances import check_counts, successive
from typed_zoo import TYPED_ZOO, academic

import graphweft as gw

EDGES = {
    ("a", "to", "p"): ([0, 1, 2, 2, 3, 3, 1, 0], [0, 0, 0, 1, 1, 1, 2, 3]),
    ("p", "by", "a"): ([0, 1, 2, 3, 3], [0, 1, 1, 2, 3]),
    ("p", "cites", "p"): ([1, 2, 3, 3, 0], [0, 0, 0, 2, 3]),
}
SMALL = gw.Graph.hetero(EDGES, {"a": 4, "p": 4})


def in_edges(graph: gw.Graph, node: int) -> Iterator[list[int]]:
    """Sources of the in-edges of a node, relation by relation."""
    src, dst = graph.edges()
    for relation in graph.relations:
        edges = graph.layout.edge_range(relation)
        here = slice(edges.start, edges.stop)
        yield src[here][dst[here] == node].tolist()


def chances_of(graph: gw.Graph, seeds: list[int], samples: dict[str, list[int]]) -> dict[tuple[int, ...], float]:
    """The chance of every set of nodes, from the description of the algorithm: all outcomes of all hops."""
    states: dict[tuple[frozenset[int], tuple[tuple[int, float], ...], frozenset[int]], float]
    states = {(frozenset(seeds), (), frozenset(seeds)): 1.0}
    for hop in range(max(map(len, samples.values()))):
        after: dict[tuple[frozenset[int], tuple[tuple[int, float], ...], frozenset[int]], float] = defaultdict(float)
        for (held, kept, new), chance in states.items():
            budget = defaultdict(float, kept)
            for node in sorted(new):
                for sources in in_edges(graph, node):
                    for source in sources:
                        budget[source] += 1 / len(sources)
            left = {node: b for node, b in budget.items() if node not in held}
            choices = []
            for kind in graph.node_types:
                nodes = [n for n in sorted(left) if n in graph.layout.node_range(kind)]
                count = samples[kind][hop] if kind in samples else 0
                sets = successive([left[n] ** 2 for n in nodes], count)
                choices.append([(tuple(nodes[i] for i in chosen), p) for chosen, p in sets.items()])
            for outcome in itertools.product(*choices):
                drawn = frozenset(itertools.chain(*(nodes for nodes, _ in outcome)))
                rest = tuple(sorted((n, round(b, 12)) for n, b in left.items() if n not in drawn))
                after[held | drawn, rest, drawn] += chance * float(np.prod([p for _, p in outcome]))
        states = after
    chances: dict[tuple[int, ...], float] = defaultdict(float)
    for (held, _, _), chance in states.items():
        chances[tuple(sorted(held))] += chance
    return dict(chances)


@pytest.mark.parametrize(
    ("seeds", "samples"),
    [
        ([4], {"a": [1], "p": [1]}),
        ([4], {"a": [2], "p": [1]}),
        ([4, 7], {"a": [1, 1], "p": [1, 1]}),
        ([4], {"p": [1, 1]}),
        ([5, 0], {"a": [1, 1], "p": [0 + 1, 2]}),
    ],
    ids=str,
)
def test_sets_of_nodes_come_as_often_as_the_algorithm_says(seeds: list[int], samples: dict[str, list[int]]) -> None:
    exact = chances_of(SMALL, seeds, samples)
    assert abs(sum(exact.values()) - 1) < 1e-9
    sampler = gw.sampling.HGTSampler(SMALL, samples)
    seen = (sampler.sample(seeds, epoch=epoch).n_id.tolist() for epoch in range(4000))
    check_counts((tuple(sorted(nodes)) for nodes in seen), exact)


@pytest.mark.parametrize("name", TYPED_ZOO)
def test_batches_are_subgraphs_between_the_nodes_drawn(name: str) -> None:
    graph = TYPED_ZOO[name]()
    seeds = torch.arange(0, graph.num_nodes, 3)[:5]
    src, dst = graph.edges()
    sample = gw.sampling.HGTSampler(graph, [2, 3]).sample(seeds, seed=4)
    assert torch.equal(sample.n_id[: seeds.numel()], seeds) and sample.n_id.unique().numel() == sample.num_nodes
    inside = torch.isin(src, sample.n_id) & torch.isin(dst, sample.n_id)
    assert torch.equal(sample.e_id.sort().values, inside.nonzero().reshape(-1))
    assert torch.equal(sample.n_id[sample.edge_index], torch.stack([src[sample.e_id], dst[sample.e_id]]))
    for kind in graph.node_types if graph.is_typed else ():
        nodes = graph.layout.node_range(kind)
        more = sample.n_id[seeds.numel() :]
        assert int(((more >= nodes.start) & (more < nodes.stop)).sum()) <= 5
    every = gw.sampling.HGTSampler(graph, [-1]).sample(seeds)
    reached = torch.cat([seeds, src[torch.isin(dst, seeds)]]).unique()
    assert torch.equal(every.n_id.sort().values, reached)


def test_loaders_have_the_types_and_the_same_batches_with_workers() -> None:
    graph = academic()
    sampler = gw.sampling.HGTSampler(graph, {"author": [2, 2], "paper": [1, 2]})
    alone, beside = (gw.Loader(graph, "paper", sampler=sampler, batch_size=4, workers=n) for n in (0, 2))
    src, dst = graph.edges()
    papers = graph.layout.node_range("paper")
    for one, other in zip(alone, beside, strict=True):
        assert torch.equal(one.n_id, other.n_id) and torch.equal(one.e_id, other.e_id)
        assert one["paper"].batch_size == one.batch_size and one.input_type == "paper"
        assert torch.equal(one["paper"].n_id[: one.batch_size] + papers.start, one.n_id[: one.batch_size])
        edges = one["author", "writes", "paper"]
        relation = graph.layout.edge_range(("author", "writes", "paper"))
        known = edges.e_id + relation.start
        authors = graph.layout.node_range("author")
        ends = one["author"].n_id[edges.edge_index[0]] + authors.start, one["paper"].n_id[edges.edge_index[1]]
        assert torch.equal(ends[0], src[known]) and torch.equal(ends[1] + papers.start, dst[known])


@pytest.mark.parametrize("kind", ["rgcn", "hgt"])
def test_typed_models_train_on_such_batches(kind: str) -> None:
    draw = torch.Generator().manual_seed(0)
    ends = torch.randint(0, 200, (900,), generator=draw), torch.randint(0, 60, (900,), generator=draw)
    graph = gw.Graph.hetero({("a", "to", "p"): ends, ("p", "by", "a"): ends[::-1]}, {"a": 200, "p": 60})
    x = torch.randn(260, 8, generator=draw)
    sums = torch.zeros(60, 8).index_add(0, ends[1], x[ends[0]])
    labels = torch.cat([torch.full((200,), -1), (sums[:, 0] > sums[:, 1]).long()])
    papers = torch.arange(200, 260)
    ds = gw.Dataset("made", graph, x, labels, papers[:40], papers[40:50], papers[50:], 2)
    torch.manual_seed(0)
    model = {"rgcn": gw.nn.RGCN, "hgt": gw.nn.HGT}[kind].for_data(ds, hidden=16)
    everything = gw.sampling.HGTSampler(graph, [-1, -1])
    trainer = gw.Trainer(model, ds, mode="mini", sampler=everything, batch_size=40, lr=0.01)
    with torch.no_grad():
        batch = next(iter(gw.Loader(ds, sampler=everything, batch_size=40)))
        expected = model(graph, x, rows=ds.train_idx)
        torch.testing.assert_close(trainer._batch._on_batch(batch), expected, rtol=1e-4, atol=1e-5)
    history = trainer.fit(epochs=15)
    assert history[-1].loss < 0.7 * history[0].loss


def test_mistakes_are_one_line() -> None:
    with pytest.raises(gw.errors.ConfigError, match=r"num_samples by node type \(a, p\), got 'papers'"):
        gw.sampling.HGTSampler(SMALL, {"papers": [3]})
    with pytest.raises(gw.errors.ConfigError, match="a list for a graph without types, got a dict"):
        gw.sampling.HGTSampler(gw.Graph([0], [1]), {"node": [1]})
    with pytest.raises(gw.errors.ConfigError, match="HGTSampler a: expected fanouts >= 1, or -1 for all, got 0"):
        gw.sampling.HGTSampler(SMALL, {"a": [0]})
    with pytest.raises(gw.errors.ConfigError, match="expected distinct seeds"):
        gw.sampling.HGTSampler(SMALL, [1]).sample([2, 2])
