"""Models on sampled blocks, against the whole graph, plain torch in float64, and the oracle."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor
from zoo import random_edges

from graphweft._config import config
from graphweft._errors import ConfigError, ShapeError
from graphweft.graph.block import Block
from graphweft.graph.graph import Graph
from graphweft.nn.gat import GAT
from graphweft.nn.gcn import GCN, GCNConv
from graphweft.nn.gin import GIN
from graphweft.nn.sage import SAGE
from graphweft.sample.neighbor import NeighborSampler
from graphweft.storage.feature import SparseFeatures

MODELS = [GCN, SAGE, GIN]
CASES = [(m, r) for m in MODELS for r in ("sum", "mean", "max") if (m, r) != (GCN, "max")]


def whole(nodes: int = 120, edges: int = 700, loops: bool = True) -> Graph:
    ends = random_edges(nodes, edges, seed=2)
    keep = slice(None) if loops else ends.src != ends.dst
    return Graph(ends.src[keep], ends.dst[keep], nodes)


def model_of(kind: Any, reduce: str = "sum", **options: Any) -> Any:
    torch.manual_seed(3)
    return kind(6, 8, 4, num_layers=3, reduce=reduce, **options)


def features(nodes: int = 120, sparse: bool = False) -> Tensor:
    x = torch.randn(nodes, 6, generator=torch.Generator().manual_seed(4))
    return torch.where(x > 0.3, x, 0.0) if sparse else x


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(("kind", "reduce"), CASES, ids=str)
def test_all_neighbours_give_the_rows_and_gradients_of_the_whole_graph(kind: Any, reduce: str, sparse: bool) -> None:
    if sparse and reduce == "max":
        pytest.skip("an extremum over sparse features is refused on the whole graph too")
    graph, model = whole(), model_of(kind, reduce, residual=True, norm="layer")
    x = features(sparse=sparse)
    seeds = torch.tensor([7, 3, 110, 64])
    sample = NeighborSampler(graph, [-1, -1, -1]).sample(seeds)
    other = copy.deepcopy(model)
    give = SparseFeatures.from_dense if sparse else (lambda t: t)
    expected = other(graph, give(x))[seeds]
    got = model(sample.blocks, give(x[sample.n_id]))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    slope = torch.randn(4, 4)
    (expected * slope).sum().backward()
    (got * slope).sum().backward()
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("kind", "reduce"), CASES, ids=str)
def test_a_sampled_batch_gives_what_the_oracle_gives(kind: Any, reduce: str) -> None:
    model = model_of(kind, reduce).double()
    x, slope = features().double(), torch.randn(9, 4, dtype=torch.float64)
    sample = NeighborSampler(whole(), [4, 3, 2]).sample(torch.arange(9), seed=5)
    results = []
    for level in (0, 3):
        model.zero_grad()
        with config(opt_level=level):
            out = model(sample.blocks, x[sample.n_id])
            (out * slope).sum().backward()
        results.append([out.detach(), *(p.grad.clone() for p in model.parameters())])
    for oracle, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, oracle, rtol=1e-9, atol=1e-9)


def _dense(block: Block, weight: Tensor | None = None) -> Tensor:
    src, dst = block.edges()
    matrix = torch.zeros(block.num_dst, block.num_src, dtype=torch.float64)
    return matrix.index_put_((dst, src), torch.ones(src.numel(), dtype=torch.float64), accumulate=True)


def test_sage_on_a_block_is_the_published_formula() -> None:
    model = model_of(SAGE, "mean").double().eval()
    x = features().double()
    sample = NeighborSampler(whole(), [4, 3, 2]).sample(torch.arange(9))
    h = x[sample.n_id]
    for index, (block, layer) in enumerate(zip(sample.blocks, model.layers, strict=True)):
        a = _dense(block)
        mean = a @ h / a.sum(1, keepdim=True).clamp(min=1)
        h = mean @ layer.neighbor_weight + h[: block.num_dst] @ layer.self_weight + layer.bias
        h = h if index == 2 else h.relu()
    torch.testing.assert_close(model(sample.blocks, x[sample.n_id]), h, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_gcn_on_blocks_has_the_whole_graphs_output_in_expectation(reduce: str) -> None:
    graph, layer = whole(30, 300), GCNConv(6, 4, reduce=reduce)
    x = features(30)
    sampler = NeighborSampler(graph, [3])
    with torch.no_grad():
        expected = layer(graph.without_self_loops(), x)
        draws = []
        clean = NeighborSampler(graph.without_self_loops(), [3])
        for epoch in range(4000):
            sample = clean.sample(torch.arange(30), epoch=epoch)
            draws.append(layer(sample.blocks, x[sample.n_id]))
        mean, spread = torch.stack(draws).mean(0), torch.stack(draws).std(0) / 4000**0.5
        assert ((mean - expected).abs() <= 5 * spread + 1e-5).all()
        everything = NeighborSampler(graph, [-1]).sample(torch.arange(30))
        torch.testing.assert_close(layer(everything.blocks, x[everything.n_id]), layer(graph, x))
        assert sampler.sample([0]).blocks[0].without_self_loops().num_edges <= 3


def test_few_plans_serve_many_batches_and_draws_differ() -> None:
    graph, model = whole(2000, 20_000), model_of(SAGE, dropout=0.5).train()
    sampler, x = NeighborSampler(graph, [5, 5, 5]), features(2000)
    outputs = []
    for start in range(0, 1500, 50):
        sample = sampler.sample(torch.arange(start, start + 50))
        outputs.append(model(sample.blocks, x[sample.n_id]))
    assert all(len(function.plans()) <= 6 for function in model._pieces.values())
    first = sampler.sample(torch.arange(50))
    assert not torch.equal(model(first.blocks, x[first.n_id]), model(first.blocks, x[first.n_id]))


def test_batch_norm_sees_the_rows_of_the_block() -> None:
    graph, model = whole(), model_of(SAGE, norm="batch").train()
    sample = NeighborSampler(graph, [4, 3, 2]).sample(torch.arange(9))
    model(sample.blocks, features()[sample.n_id])
    assert int(model.norms[0].num_batches_tracked) == int(model.norms[1].num_batches_tracked) == 1
    assert not torch.equal(model.norms[0].running_mean, torch.zeros(8))


def test_what_does_not_fit_is_refused() -> None:
    graph, model = whole(), model_of(SAGE)
    blocks = NeighborSampler(graph, [2, 2, 2]).sample([0, 1]).blocks
    x = features()[: blocks[0].num_src]
    with pytest.raises(ShapeError, match="SAGE: expected 3 blocks, one per layer, got 2"):
        model(blocks[:2], x)
    with pytest.raises(ShapeError, match="expected blocks that follow each other"):
        model(blocks[::-1], x)
    with pytest.raises(ShapeError, match="expected a graphweft Graph first, or the blocks of a batch, got str"):
        model("blocks", x)
    with pytest.raises(ShapeError, match="expected features for"):
        model(blocks, x[:-1])
    with pytest.raises(ShapeError, match="expected a graph over one set of nodes or a sampled Block"):
        model(graph.take_dst([0, 1]), x)
    with pytest.raises(ConfigError, match="expected reduce sum or mean on sampled blocks"):
        model_of(GCN, "max")(blocks, x)


@pytest.mark.parametrize("model", [GAT, GCN, SAGE])
def test_blocks_that_are_gone_are_not_kept_with_what_was_computed_from_them(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those with loops, too, which GAT makes of drawn ones."""
    graph, made = whole(), list[weakref.ref[Graph]]()
    looped, sampler, layers = Block.with_one_loop, NeighborSampler(graph, [4, 3]), model(8, 16, 8, num_layers=2)

    def noted(block: Block) -> Graph:
        found = looped(block)
        made.append(weakref.ref(found))
        return found

    monkeypatch.setattr(Block, "with_one_loop", noted)
    for number in range(3):
        sample = sampler.sample(torch.arange(30), epoch=number)
        made += map(weakref.ref, sample.blocks)
        layers(sample.blocks, torch.randn(len(sample.n_id), 8)).sum().backward()
        del sample
    gc.collect()
    assert len(made) == (12 if model is GAT else 6)
    assert all(one() is None for one in made)
