"""GAT and GATv2 layers against PyTorch Geometric's, with its weights: values and all gradients."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from zoo import ZOO, random_edges

from graphweft._config import config
from graphweft._errors import ConfigError
from graphweft.graph.graph import Graph
from graphweft.nn import GAT, GATConv, GATv2Conv
from graphweft.sample.neighbor import NeighborSampler

pyg = pytest.importorskip("torch_geometric.nn", reason="torch_geometric is the peer of this test")

IN, OUT, HEADS = 5, 6, 3


def _gat(peer, **options):
    mine = GATConv(IN, OUT, HEADS, **options)
    mine.load_state_dict(
        {
            "weight": peer.lin.weight.T,
            "att_src": peer.att_src[0],
            "att_dst": peer.att_dst[0],
            "bias": peer.bias,
        }
    )
    return mine


def _gatv2(peer, **options):
    mine = GATv2Conv(IN, OUT, HEADS, **options)
    mine.load_state_dict(
        {
            "weight": peer.lin_l.weight.T,
            "src_bias": peer.lin_l.bias,
            "dst_weight": peer.lin_r.weight.T,
            "dst_bias": peer.lin_r.bias,
            "att": peer.att[0],
            "bias": peer.bias,
        }
    )
    return mine


MAKE = {"gat": (pyg.GATConv, _gat), "gatv2": (pyg.GATv2Conv, _gatv2)}
NAMES = {
    "gat": {"lin.weight": "weight", "att_src": "att_src", "att_dst": "att_dst", "bias": "bias"},
    "gatv2": {
        "lin_l.weight": "weight", "lin_l.bias": "src_bias", "lin_r.weight": "dst_weight", "lin_r.bias": "dst_bias",
        "att": "att", "bias": "bias",
    },
}  # fmt: skip


def _as_mine(name, gradient):
    return gradient.T if name.endswith("weight") else gradient[0] if name.startswith("att") else gradient


@pytest.mark.parametrize(
    ("level", "concat", "loops"),
    [(0, True, False), (1, True, True), (2, False, True), (3, True, True), (3, False, False)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("graph", [n for n in ZOO if n != "empty"])
def test_layer_equals_the_peers(graph, kind, concat, loops, dtype, level):
    make, build = MAKE[kind]
    peer = make(IN, OUT // HEADS if concat else OUT, HEADS, concat=concat, add_self_loops=loops).to(dtype)
    with torch.no_grad():
        for p in peer.parameters():
            p.copy_(torch.randn(p.shape))  # float32 values, exact in both dtypes
    mine = build(peer, concat=concat, add_self_loops=loops).to(dtype)
    edges = ZOO[graph]
    x = torch.randn(edges.num_nodes, IN, dtype=dtype)
    mine_x, peer_x = x.clone().requires_grad_(), x.clone().requires_grad_()
    seed = torch.randn(edges.num_nodes, OUT, dtype=dtype)
    tolerance = 3e-4 if dtype is torch.float32 else 1e-9
    expected = peer(peer_x, torch.stack([torch.from_numpy(edges.src), torch.from_numpy(edges.dst)]))
    expected.backward(seed)
    with config(opt_level=level):
        got = mine(Graph(edges.src, edges.dst, num_nodes=edges.num_nodes), mine_x)
        got.backward(seed)
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(mine_x.grad, peer_x.grad, rtol=tolerance, atol=10 * tolerance)
    for name, parameter in peer.named_parameters():
        gradient = mine.get_parameter(NAMES[kind][name]).grad
        torch.testing.assert_close(gradient, _as_mine(name, parameter.grad), rtol=10 * tolerance, atol=30 * tolerance)


@pytest.mark.parametrize("v2", [False, True], ids=["gat", "gatv2"])
@pytest.mark.parametrize("options", [{}, {"residual": True, "norm": "layer"}, {"activation": "relu", "out_heads": 2}])
def test_model_equals_the_oracle_with_rows_and_on_repeated_calls(v2, options):
    model = GAT(6, 8, 3, num_layers=3, heads=4, v2=v2, **options)
    edges = ZOO["power_law"]
    graph, x = Graph(edges.src, edges.dst, num_nodes=edges.num_nodes), torch.randn(200, 6)
    rows = torch.randperm(200)[:70]
    oracle = copy.deepcopy(model).double()
    for asked in (None, rows):
        with config(opt_level=0):
            oracle.zero_grad()
            expected = oracle(graph, x.double(), asked)
            expected.square().sum().backward()
        for _ in range(3):
            model.zero_grad()
            got = model(graph, x, asked)
            got.square().sum().backward()
            torch.testing.assert_close(got.double(), expected, rtol=5e-4, atol=5e-4)
            for (name, p), q in zip(model.named_parameters(), oracle.parameters(), strict=True):
                scale = max(1.0, float(q.grad.abs().max()))
                torch.testing.assert_close(p.grad.double(), q.grad, rtol=5e-4, atol=5e-4 * scale, msg=name)


def test_dropout_acts_in_training_alone_and_draws_anew():
    edges = random_edges(50, 400, seed=1)
    graph, x = Graph(edges.src, edges.dst, num_nodes=50), torch.randn(50, 6)
    model = GAT(6, 8, 3, heads=2, attention_dropout=0.5)
    draws = [model(graph, x) for _ in range(40)]
    assert not torch.equal(draws[0], draws[1])
    model.eval()
    still = model(graph, x)
    assert torch.equal(still, model(graph, x))
    first = GATConv(6, 8, 2, dropout=0.5)  # linear in the weights: its mean over draws is the layer without dropout
    mean = torch.stack([first(graph, x) for _ in range(400)]).mean(0)
    torch.testing.assert_close(mean, first.eval()(graph, x), rtol=0.1, atol=0.15)


def test_value_dropout_leaves_scores_alone_and_keeps_the_mean():
    edges = random_edges(50, 400, seed=1)
    graph, x = Graph(edges.src, edges.dst, num_nodes=50), torch.randn(50, 6)
    layer = GATConv(6, 8, 2, value_dropout=0.5)
    still = copy.deepcopy(layer).eval()(graph, x)
    mean = torch.stack([layer(graph, x) for _ in range(400)]).mean(0)  # linear in the rows that are dropped
    torch.testing.assert_close(mean, still, rtol=0.1, atol=0.15)
    torch.manual_seed(3)
    first = layer(graph, x)
    torch.manual_seed(3)
    assert torch.equal(first, layer(graph, x)) and not torch.equal(first, layer(graph, x))
    torch.testing.assert_close(layer.eval()(graph, x), still)
    with config(opt_level=0):
        torch.testing.assert_close(layer(graph, x), still, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [GATConv, GATv2Conv])
def test_every_head_has_the_glorot_bounds_of_its_own_map(kind):
    layer = kind(30, 64, 8)
    bound = (6 / (30 + 8)) ** 0.5
    assert 0.95 * bound < float(layer.weight.detach().abs().max()) <= bound


@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize("v2", [False, True], ids=["gat", "gatv2"])
def test_a_batch_of_all_neighbours_gives_the_rows_of_the_whole(v2, loops):
    edges = random_edges(60, 300, seed=3)
    graph, x = Graph(edges.src, edges.dst, num_nodes=60), torch.randn(60, 6)
    model = GAT(6, 8, 3, heads=2, v2=v2, add_self_loops=loops).eval()
    seeds = torch.tensor([5, 17, 3, 40])
    sample = NeighborSampler(graph, (-1, -1)).sample(seeds)
    torch.testing.assert_close(model(sample.blocks, x[sample.n_id]), model(graph, x)[seeds], rtol=1e-4, atol=1e-4)


def test_copies_and_pickles_compute_the_same():
    edges = ZOO["random"]
    graph, x = Graph(edges.src, edges.dst, num_nodes=40), torch.randn(40, 6)
    model = GAT(6, 8, 3, heads=4, v2=True).eval()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(graph, x), model(graph, x))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GAT(4, 6, 2, heads=4), "GATConv: expected out_features that 4 heads divide, got 6"),
        (lambda: GAT(4, 8, 2, heads=0), "GATConv: expected heads >= 1, got 0"),
        (lambda: GAT(4, 8, 2, activation="swish"), "GAT: expected activation among relu, elu, .*none, got 'swish'"),
        (lambda: GAT(4, 8, 2, reduce="max"), "GATConv: expected reduce 'sum', weighted by attention, got 'max'"),
        (lambda: GAT(4, 8, 2, value_dropout=0.5, v2=True), "GATv2Conv: expected value_dropout 0, got 0.5"),
        (lambda: GATConv(4, 8, 2, value_dropout=1.0), r"GATConv: expected value_dropout in \[0, 1\), got 1.0"),
        (lambda: GATConv(4, 8, 2, negative_slope=2.0), r"GATConv: expected negative_slope in \[0, 1\], got 2.0"),
    ],
)
def test_wrong_options_are_named(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
