"""NGCF against its formula in dense float64 matrices and the peer's normalised sum; blocks, options."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor
from zoo import SQUARE, Case, random_edges

from graphweft._config import config
from graphweft._errors import ConfigError, DenseFeaturesWarning
from graphweft.graph.graph import Graph
from graphweft.nn import NGCF, NGCFConv
from graphweft.nn.napa import pull
from graphweft.sample.neighbor import NeighborSampler
from graphweft.storage.feature import SparseFeatures

IN, OUT = 5, 4
F64 = torch.float64


def adjacency(case: Case) -> Tensor:
    """Dense, destinations as rows, self-loops left out."""
    a = torch.zeros(case.num_dst, case.num_src, dtype=F64)
    a.index_put_((case.dst, case.src), torch.ones(case.num_edges, dtype=F64), accumulate=True)
    return a - torch.diag(a.diagonal())


def laplacian(a: Tensor, reduce: str) -> Tensor:
    degree = a.sum(1)
    if reduce == "mean":
        return a / degree.clamp(min=1)[:, None]
    root = torch.where(degree > 0, degree.clamp(min=1) ** -0.5, 0.0)
    return root[:, None] * a * root


def plain(layer: NGCFConv, a: Tensor, x: Tensor) -> Tensor:
    """The matrix form of the paper, equation 7."""
    near = laplacian(a, layer.reduce) @ x
    out = (near + x) @ layer.weight + (near * x) @ layer.affinity_weight
    return out if layer.bias is None else out + layer.bias


@pytest.mark.parametrize("level", [0, 1, 2, 3])
@pytest.mark.parametrize(("reduce", "bias"), [("sum", True), ("mean", True), ("sum", False)])
@pytest.mark.parametrize("case", [c for c in SQUARE if c.num_src], ids=str)
def test_layer_is_the_formula(case: Case, reduce: str, bias: bool, level: int) -> None:
    torch.manual_seed(0)
    layer = NGCFConv(IN, OUT, reduce=reduce, bias=bias).to(F64)
    x = torch.randn(case.num_src, IN, dtype=F64, requires_grad=True)
    slope = torch.randn(case.num_src, OUT, dtype=F64)
    leaves = [x, *layer.parameters()]
    expected = plain(layer, adjacency(case), x)
    wanted = torch.autograd.grad(expected, leaves, slope)
    with config(opt_level=level):
        for _ in range(2):
            got = layer(case.graph(), x)
            found = torch.autograd.grad(got, leaves, slope)
            torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
            for mine, theirs in zip(found, wanted, strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


def test_the_normalised_sum_is_the_peers() -> None:
    pyg = pytest.importorskip("torch_geometric.nn", reason="torch_geometric is the peer of this test")
    edges = random_edges(80, 500, seed=2)
    keep = edges.src != edges.dst
    graph, x = Graph(edges.src[keep], edges.dst[keep], num_nodes=80), torch.randn(80, IN)
    layer = NGCFConv(IN, IN, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(IN)), layer.affinity_weight.zero_()
        near = pyg.LGConv()(x, torch.stack(graph.edges()))
        torch.testing.assert_close(layer(graph, x), near + x, rtol=1e-5, atol=1e-5)
        layer.weight.zero_(), layer.affinity_weight.copy_(torch.eye(IN))
        torch.testing.assert_close(layer(graph, x), near * x, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", [c for c in SQUARE if 0 < c.num_src <= 60], ids=str)
def test_gradcheck(case: Case) -> None:
    layer, graph = NGCFConv(2, 3).to(F64), case.graph()
    x = torch.randn(case.num_src, 2, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, *_: layer(graph, x), (x, *layer.parameters()))


@pytest.mark.parametrize("norm", [None, "batch", "layer"])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_model_equals_the_oracle_with_rows_and_on_repeated_calls(reduce: str, residual: bool, norm: str | None) -> None:
    torch.manual_seed(1)
    model = NGCF(6, 6, 3, num_layers=3, reduce=reduce, residual=residual, norm=norm)
    edges = random_edges(120, 700, seed=5)
    graph, x, rows = Graph(edges.src, edges.dst, num_nodes=120), torch.randn(120, 6), torch.randperm(120)[:40]
    oracle = copy.deepcopy(model).double()
    for asked in (None, rows):
        with config(opt_level=0):
            oracle.zero_grad()
            expected = oracle(graph, x.double(), asked)
            expected.square().mean().backward()
        for _ in range(3):
            model.zero_grad()
            got = model(graph, x, asked)
            got.square().mean().backward()
            torch.testing.assert_close(got.double(), expected, rtol=1e-3, atol=1e-4)
            for (name, p), q in zip(model.named_parameters(), oracle.parameters(), strict=True):
                size = max(1.0, float(q.grad.abs().max()))
                torch.testing.assert_close(p.grad.double(), q.grad, rtol=1e-2, atol=1e-3 * size, msg=name)


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_a_batch_of_all_neighbours_gives_the_rows_of_the_whole(reduce: str) -> None:
    edges = random_edges(60, 300, seed=3)
    graph, x = Graph(edges.src, edges.dst, num_nodes=60), torch.randn(60, 6)
    model = NGCF(6, 8, 3, reduce=reduce).eval()
    seeds = torch.tensor([5, 17, 3, 40])
    sample = NeighborSampler(graph, (-1, -1)).sample(seeds)
    torch.testing.assert_close(model(sample.blocks, x[sample.n_id]), model(graph, x)[seeds], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_a_sampled_layer_has_the_whole_graphs_output_in_expectation(reduce: str) -> None:
    edges = random_edges(30, 300, seed=4)
    keep = edges.src != edges.dst
    graph, x = Graph(edges.src[keep], edges.dst[keep], num_nodes=30), torch.randn(30, 6)
    layer, sampler = NGCFConv(6, 4, reduce=reduce), NeighborSampler(graph, [3])
    with torch.no_grad():
        samples = [sampler.sample(torch.arange(30), epoch=epoch) for epoch in range(2000)]
        draws = torch.stack([layer(sample.blocks, x[sample.n_id]) for sample in samples])
        assert ((draws.mean(0) - layer(graph, x)).abs() <= 5 * draws.std(0) / 2000**0.5 + 1e-5).all()


def test_sparse_features_are_made_dense_once() -> None:
    edges = random_edges(40, 200, seed=1)
    graph, x = Graph(edges.src, edges.dst, num_nodes=40), torch.randn(40, 30) * (torch.rand(40, 30) < 0.1)
    model, sparse = NGCF(30, 8, 4), SparseFeatures.from_dense(x)
    with pytest.warns(DenseFeaturesWarning, match=r"NGCF: SparseFeatures 40 x 30 \(0.0 MB\) were made dense"):
        torch.testing.assert_close(model(graph, sparse), model(graph, x))
    with pytest.warns(DenseFeaturesWarning):
        assert model.arguments(graph, sparse).x is model.arguments(graph, sparse).x
    sample = NeighborSampler(graph, (-1, -1)).sample(torch.arange(5))
    with pytest.warns(DenseFeaturesWarning):
        torch.testing.assert_close(model(sample.blocks, sparse.take_rows(sample.n_id)), model(graph, x)[:5])


def test_the_layer_is_primitives_by_modes() -> None:
    """GraphTensor's figure 10: NeighborApply by product, Pull of source rows with those weights, Apply."""
    edges = random_edges(40, 200, seed=1)
    keep = edges.src != edges.dst
    graph, x = Graph(edges.src[keep], edges.dst[keep], num_nodes=40), torch.randn(40, IN)
    layer = NGCFConv(IN, OUT, reduce="mean")
    near = pull(graph, x, weight="copy", reduce="mean")
    expected = (near + x) @ layer.weight + (near * x) @ layer.affinity_weight + layer.bias
    torch.testing.assert_close(layer(graph, x), expected, rtol=1e-4, atol=1e-5)


def test_a_maximum_is_refused() -> None:
    with pytest.raises(ConfigError, match="NGCFConv: expected reduce 'sum' or 'mean', got 'max'"):
        NGCF(4, 8, 2, reduce="max")
