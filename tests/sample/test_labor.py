"""LABOR: chances and sums in expectation, shared draws, fewer nodes, the loader."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import graphweft as gw


def _graph() -> gw.Graph:
    draw = torch.Generator().manual_seed(0)
    return gw.Graph(torch.randint(0, 60, (900,), generator=draw), torch.randint(0, 200, (900,), generator=draw), 200)


@pytest.mark.parametrize("iterations", [0, 2])
def test_rows_get_the_fan_out_on_average_and_sums_are_unbiased(iterations: int) -> None:
    graph, seeds, trials = _graph(), torch.arange(60, 160), 400
    value = torch.rand(200, generator=torch.Generator().manual_seed(1))
    sampler = gw.sampling.LaborSampler(graph, [3], iterations=iterations)
    degrees = graph.in_degrees()[seeds]
    src, dst = graph.edges()
    exact = torch.zeros(200).index_add_(0, dst, value[src])[seeds]
    drawn, sums, squares = torch.zeros(100), torch.zeros(100), torch.zeros(100)
    for epoch in range(trials):
        block = sampler.sample(seeds, epoch=epoch).blocks[0]
        source, row = block.edges()
        drawn += block.in_degrees()
        got = torch.zeros(100).index_add_(0, row, value[block.src_ids[source]] * block.edge_norm)
        sums, squares = sums + got, squares + got**2
    wanted = degrees.clamp(max=3)
    assert ((drawn / trials - wanted).abs() <= 5 * (wanted / trials) ** 0.5).all()
    deviation = (squares / trials - (sums / trials) ** 2).clamp(min=0).sqrt()
    assert ((sums / trials - exact).abs() <= 5 * deviation / trials**0.5 + 1e-4).all()


def test_equal_rows_draw_equal_sources_and_batches_have_fewer_nodes() -> None:
    graph, seeds = _graph(), torch.arange(60, 160)
    nodes = {name: 0 for name in ("neighbor", "labor", "more")}
    for epoch in range(20):
        nodes["neighbor"] += gw.sampling.NeighborSampler(graph, [2]).sample(seeds, epoch=epoch).num_nodes
        nodes["labor"] += gw.sampling.LaborSampler(graph, [2]).sample(seeds, epoch=epoch).num_nodes
        nodes["more"] += gw.sampling.LaborSampler(graph, [2], iterations=3).sample(seeds, epoch=epoch).num_nodes
    assert nodes["more"] < nodes["labor"] < nodes["neighbor"]
    twins = gw.Graph([2, 3, 4, 5, 2, 3, 4, 5], [0, 0, 0, 0, 1, 1, 1, 1])
    for epoch in range(20):
        first, second = (gw.sampling.LaborSampler(twins, [2]).sample([node], epoch=epoch).n_id[1:] for node in (0, 1))
        assert torch.equal(first, second)


def test_layer_dependent_hops_draw_the_same_sources() -> None:
    graph = gw.Graph(*np.random.default_rng(0).integers(0, 40, (2, 800)), num_nodes=40)
    sample = gw.sampling.LaborSampler(graph, [4, 4], layer_dependent=True).sample(torch.arange(20))
    outer, inner = sample.blocks
    kept = outer.edges()[1] < 20
    assert torch.equal(outer.e_id[kept].sort().values, inner.e_id.sort().values)
    apart = gw.sampling.LaborSampler(graph, [4, 4]).sample(torch.arange(20))
    assert apart.num_nodes > sample.num_nodes


def test_batches_hold_edges_of_the_graph_and_train() -> None:
    ds = gw.synthetic("default", scale=0.02, seed=0)
    sampler = gw.sampling.LaborSampler(ds.graph, [5, 5])
    alone = gw.Loader(ds, sampler=sampler, batch_size=64, shuffle=True, workers=0)
    beside = gw.Loader(ds, sampler=sampler, batch_size=64, shuffle=True, workers=2)
    src, dst = ds.graph.edges()
    for one, other in zip(alone, beside, strict=True):
        assert torch.equal(one.n_id, other.n_id) and torch.equal(one.edge_index, other.edge_index)
        assert torch.equal(one.n_id[one.edge_index], torch.stack([src[one.e_id], dst[one.e_id]]))
        for block in one.blocks:
            ends = torch.stack([block.src_ids[block.edges()[0]], block.dst_ids[block.edges()[1]]])
            assert torch.equal(ends, torch.stack([src[block.e_id], dst[block.e_id]]))
    model = gw.nn.SAGE(ds.num_features, 16, ds.num_classes)
    history = gw.Trainer(model, ds, mode="mini", sampler=sampler, batch_size=64).fit(epochs=3)
    assert history[-1].loss < history[0].loss
    assert gw.sampling.LaborSampler(ds.graph, [-1]).sample([0, 1]).num_edges == int(ds.graph.in_degrees()[:2].sum())


def test_mistakes_are_one_line() -> None:
    graph = _graph()
    with pytest.raises(gw.errors.ConfigError, match="iterations as an integer from 0 to 100, got -1"):
        gw.sampling.LaborSampler(graph, [2], iterations=-1)
    with pytest.raises(gw.errors.ConfigError, match="expected distinct seeds"):
        gw.sampling.LaborSampler(graph, [2]).sample([1, 1])
