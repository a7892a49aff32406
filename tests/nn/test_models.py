"""Whole models: every kind, reducer and option against the oracle in float64, row demand, sparse features, reuse."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from zoo import ZOO, random_edges

from graphweft._config import config
from graphweft._errors import ConfigError, IndexRangeError, ShapeError
from graphweft.graph.graph import Graph
from graphweft.nn import GCN, GIN, SAGE
from graphweft.nn.module import CompiledModule
from graphweft.storage.feature import SparseFeatures

MODELS = {"gcn": GCN, "sage": SAGE, "gin": GIN}


def _graph(name: str) -> Graph:
    edges = ZOO[name]
    return Graph(edges.src, edges.dst, num_nodes=edges.num_nodes)


def _step(model: CompiledModule, graph: Graph, x: object, rows: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
    model.zero_grad()
    out = model(graph, x, rows)
    weight = torch.linspace(-1, 1, out.shape[1], dtype=out.dtype)
    (out * weight).sum().backward()
    return {"out": out.detach()} | {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def _agree(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], tolerance: float) -> None:
    assert a.keys() == b.keys()
    for name in a:
        scale = max(1.0, float(b[name].abs().max())) if b[name].numel() else 1.0
        torch.testing.assert_close(a[name].double(), b[name].double(), rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("norm", [None, "batch", "layer"])
@pytest.mark.parametrize("residual", [False, True], ids=["plain", "residual"])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize("kind", MODELS)
def test_model_equals_the_oracle(kind: str, reduce: str, residual: bool, norm: str | None) -> None:
    torch.manual_seed(1)
    model = MODELS[kind](6, 6, 3, num_layers=3, reduce=reduce, residual=residual, norm=norm)
    graph, x = _graph("power_law"), torch.randn(200, 6)
    oracle = copy.deepcopy(model).double()
    with config(opt_level=0):
        expected = _step(oracle, graph, x.double())
    for _ in range(3):  # first call, call with constants, call with the fitted cost model
        got = _step(model, graph, x)
    _agree(got, expected, 5e-4)


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("kind", MODELS)
def test_rows_are_the_rows_of_the_whole(kind: str, name: str) -> None:
    torch.manual_seed(2)
    graph = _graph(name)
    model = MODELS[kind](5, 8, 3, num_layers=2).double()
    x = torch.randn(graph.num_nodes, 5, dtype=torch.float64)
    rows = torch.randperm(graph.num_nodes)[: graph.num_nodes // 2 + 1]
    whole = model(graph, x)
    for _ in range(2):
        torch.testing.assert_close(model(graph, x, rows), whole[rows], rtol=1e-9, atol=1e-10)
    expected = copy.deepcopy(model)
    out = expected(graph, x)[rows]
    (out * torch.linspace(-1, 1, 3, dtype=out.dtype)).sum().backward()
    got = _step(model, graph, x, rows)
    for parameter, p in expected.named_parameters():
        torch.testing.assert_close(got[parameter], p.grad, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rows", [False, True], ids=["all", "rows"])
@pytest.mark.parametrize("kind", MODELS)
def test_sparse_features_give_what_dense_ones_give(kind: str, rows: bool) -> None:
    """SPEC M07."""
    torch.manual_seed(3)
    graph = _graph("random")
    x = torch.randn(40, 30) * (torch.rand(40, 30) < 0.1)
    picked = torch.tensor([3, 1, 20]) if rows else None
    model = MODELS[kind](30, 8, 4)
    twin = copy.deepcopy(model)
    _agree(_step(model, graph, SparseFeatures.from_dense(x), picked), _step(twin, graph, x, picked), 1e-5)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_dropout_keeps_the_mean_and_repeats_with_the_seed(sparse: bool) -> None:
    edges = random_edges(50, 300, seed=4)
    graph = Graph(edges.src, edges.dst, num_nodes=50)
    model = GCN(40, 16, 3, dropout=0.5)
    x = torch.rand(50, 40)
    features = SparseFeatures.from_dense(x) if sparse else x
    torch.manual_seed(5)
    first = [_step(model, graph, features)["out"] for _ in range(3)]
    torch.manual_seed(5)
    again = [_step(model, graph, features)["out"] for _ in range(3)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], first[1])
    model.eval()
    assert torch.equal(model(graph, features), model(graph, features))


def test_dropout_gradient_is_that_of_the_mask_drawn() -> None:
    """With the seed fixed the compiled step is a smooth function: compare with finite differences."""
    edges = random_edges(20, 60, seed=6)
    graph = Graph(edges.src, edges.dst, num_nodes=20)
    model = GCN(6, 5, 2, dropout=0.4).double()
    x = torch.randn(20, 6, dtype=torch.float64)

    def loss() -> torch.Tensor:
        torch.manual_seed(9)
        return model(graph, x).square().sum()

    loss().backward()
    weight = model.layers[0].weight
    gradient = weight.grad.clone()
    for index in [(0, 0), (3, 2), (5, 4)]:
        with torch.no_grad():
            weight[index] += 1e-6
            up = loss()
            weight[index] -= 2e-6
            down = loss()
            weight[index] += 1e-6
        assert gradient[index] == pytest.approx(float((up - down) / 2e-6), rel=1e-4, abs=1e-6)


def test_batch_norm_keeps_torchs_running_statistics() -> None:
    torch.manual_seed(7)
    graph, x = _graph("random"), torch.randn(40, 6)
    model = GCN(6, 5, 2, norm="batch")
    peer = torch.nn.BatchNorm1d(5)
    with torch.no_grad():
        hidden = model.layers[0](graph, x)
    for _ in range(3):
        peer(hidden)
        model(graph, x)
    torch.testing.assert_close(model.norms[0].running_mean, peer.running_mean)
    torch.testing.assert_close(model.norms[0].running_var, peer.running_var)
    assert int(model.norms[0].num_batches_tracked) == 3


def test_one_model_serves_several_graphs_without_compiling_again() -> None:
    model = SAGE(6, 8, 3)
    sizes = [random_edges(40, 200, seed=s) for s in range(6)]
    for edges in sizes:
        model(Graph(edges.src, edges.dst, num_nodes=40), torch.randn(40, 6)).sum().backward()
    compiled = len(model.function.plans())
    for edges in sizes:
        model(Graph(edges.src, edges.dst, num_nodes=40), torch.randn(40, 6)).sum().backward()
    assert len(model.function.plans()) == compiled <= 2


def test_a_layer_used_twice_adds_its_gradients() -> None:
    graph, x = _graph("random"), torch.randn(40, 6)
    layer = SAGE(6, 6, 6, num_layers=1)
    layer(graph, layer(graph, x)).sum().backward()
    twin = copy.deepcopy(layer)
    twin.zero_grad()
    with config(opt_level=0):
        twin(graph, twin(graph, x)).sum().backward()
    for a, b in zip(layer.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-3)


def test_features_changed_in_place_are_seen() -> None:
    graph, x = _graph("random"), torch.randn(40, 6)
    model = GCN(6, 8, 3)
    for _ in range(3):
        model(graph, x).sum().backward()
    x.mul_(2.0)
    fresh = copy.deepcopy(model)
    torch.testing.assert_close(model(graph, x), fresh(graph, x))


def test_copies_and_pickles_compute_the_same() -> None:
    graph, x = _graph("random"), torch.randn(40, 6)
    model = GIN(6, 8, 3)
    out = model(graph, x)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(twin(graph, x), out)
        assert twin.function is not model.function


def test_frozen_parameters_get_no_gradient_and_no_work() -> None:
    graph, x = _graph("random"), torch.randn(40, 6)
    model = GCN(6, 8, 3)
    model.layers[0].weight.requires_grad_(False)
    model(graph, x).sum().backward()
    assert model.layers[0].weight.grad is None
    assert model.layers[1].weight.grad is not None


def test_steady_state_maps_no_memory() -> None:
    """SPEC M04 in kind: after the first steps the pool serves every buffer."""
    from graphweft._memory import POOL

    edges = random_edges(30_000, 60_000, seed=8)
    graph, x = Graph(edges.src, edges.dst, num_nodes=30_000), torch.randn(30_000, 32)
    model = GCN(32, 32, 16, num_layers=3)
    for _ in range(3):
        _step(model, graph, x)
    before = POOL.stats().maps
    for _ in range(5):
        _step(model, graph, x)
    assert POOL.stats().maps == before


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GCN(0, 4, 2), "GCN: expected in_features >= 1, got 0"),
        (lambda: GCN(4, 4, 2, dropout=1.0), r"expected dropout in \[0, 1\), got 1.0"),
        (lambda: SAGE(4, 4, 2, reduce="median"), "expected reduce among sum, mean, max, pool, lstm, got 'median'"),
        (lambda: GIN(4, 4, 2, norm="group"), "norm: expected 'batch', 'layer' or None, got 'group'"),
        (lambda: GCN(4, 4, 2, num_layers=0), "expected num_layers >= 1, got 0"),
    ],
)
def test_bad_options_are_refused(make: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()  # type: ignore[operator]


def test_bad_calls_say_what_was_expected() -> None:
    graph, model = _graph("random"), GCN(6, 8, 3)
    with pytest.raises(ShapeError, match=r"GCN: expected features with 6 columns, got shape \(40, 5\)"):
        model(graph, torch.ones(40, 5))
    with pytest.raises(ShapeError, match="expected features for 40 nodes, got 39 rows"):
        model(graph, torch.ones(39, 6))
    with pytest.raises(ShapeError, match="expected a graphweft Graph first, or the blocks of a batch, got Tensor"):
        model(torch.ones(2, 3), torch.ones(40, 6))
    with pytest.raises(IndexRangeError, match=r"expected ids in \[0, 40\), got 40 at position 1"):
        model(graph, torch.ones(40, 6), torch.tensor([0, 40]))
