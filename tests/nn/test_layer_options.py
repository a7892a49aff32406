"""Options of layers, features of two sets of nodes, and several graphs' features at once, against PyTorch Geometric."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zoo import ZOO, Edges

import graphweft as gw
from graphweft.errors import ConfigError, DtypeError, ShapeError
from graphweft.graph.graph import Graph
from graphweft.sample.neighbor import NeighborSampler

pyg = pytest.importorskip("torch_geometric.nn", reason="torch_geometric is the peer of this test")

IN, OWN, OUT = 5, 3, 4
Pair = tuple[nn.Module, nn.Module]


def _weights(mine: nn.Module, **given: Tensor | None) -> nn.Module:
    mine.double().load_state_dict(
        {name: tensor.detach().clone() for name, tensor in given.items() if tensor is not None}
    )
    return mine


def _gcn(**options: Any) -> Pair:
    peer = pyg.GCNConv(IN, OUT, **options).double()
    nn.init.normal_(peer.bias)
    return _weights(gw.nn.GCNConv(IN, OUT, **options), weight=peer.lin.weight.T, bias=peer.bias), peer


def _sage(sizes: int | tuple[int, int] = IN, **options: Any) -> Pair:
    peer = pyg.SAGEConv(sizes, OUT, **options).double()
    lin_r = getattr(peer, "lin_r", None)
    given = {"neighbor_weight": peer.lin_l.weight.T, "bias": peer.lin_l.bias}
    given["self_weight"] = None if lin_r is None else lin_r.weight.T
    if options.get("project"):
        given |= {"pool_weight": peer.lin.weight.T, "pool_bias": peer.lin.bias}
    return _weights(gw.nn.SAGEConv(sizes, OUT, **options), **given), peer


def _gin(sizes: int | tuple[int, int] = IN) -> Pair:
    mlp = nn.Sequential(nn.Linear(IN, OUT), nn.ReLU(), nn.Linear(OUT, OUT))
    peer = pyg.GINConv(mlp, eps=0.3, train_eps=True).double()
    given = {"weight1": mlp[0].weight.T, "bias1": mlp[0].bias, "weight2": mlp[2].weight.T, "bias2": mlp[2].bias}
    return _weights(gw.nn.GINConv(sizes, OUT, eps=0.3, train_eps=True), **given, eps=peer.eps.reshape(())), peer


def _gin_of_module() -> Pair:
    mlp = nn.Sequential(nn.Linear(IN, 7), nn.Tanh(), nn.Linear(7, OUT)).double()
    peer = pyg.GINConv(copy.deepcopy(mlp), eps=0.3, train_eps=True).double()
    mlp.load_state_dict(peer.nn.state_dict())  # it draws them anew
    return gw.nn.GINConv(mlp, eps=0.3, train_eps=True).double(), peer


def _gat(sizes: int | tuple[int, int] = IN, **options: Any) -> Pair:
    heads, channels = 2, OUT // 2
    peer = pyg.GATConv(sizes, channels, heads=heads, **options).double()
    given = {"att_src": peer.att_src[0], "att_dst": peer.att_dst[0], "bias": peer.bias}
    if isinstance(sizes, tuple):
        given |= {"weight": peer.lin_src.weight.T, "dst_weight": peer.lin_dst.weight.T}
    else:
        given |= {"weight": peer.lin.weight.T}
    given["residual_weight"] = peer.res.weight.T if options.get("residual") else None
    return _weights(gw.nn.GATConv(sizes, OUT, heads=heads, **options), **given), peer


def _gatv2(sizes: int | tuple[int, int] = IN, **options: Any) -> Pair:
    heads, channels = 2, OUT // 2
    peer = pyg.GATv2Conv(sizes, channels, heads=heads, **options).double()
    given = {"att": peer.att[0], "bias": peer.bias, "weight": peer.lin_l.weight.T, "dst_weight": peer.lin_r.weight.T}
    given |= {"src_bias": peer.lin_l.bias, "dst_bias": peer.lin_r.bias}
    given["residual_weight"] = peer.res.weight.T if options.get("residual") else None
    return _weights(gw.nn.GATv2Conv(sizes, OUT, heads=heads, **options), **given), peer


def _transformer(sizes: tuple[int, int]) -> Pair:
    peer = pyg.TransformerConv(sizes, OUT // 2, heads=2).double()
    given = {"query": peer.lin_query, "key": peer.lin_key, "value": peer.lin_value}
    found = {name: lin.weight.T for name, lin in given.items()}
    found |= {f"{name}_bias": lin.bias for name, lin in given.items()}
    found |= {"skip": peer.lin_skip.weight.T, "bias": peer.lin_skip.bias}
    return _weights(gw.nn.TransformerConv(sizes, OUT, heads=2), **found), peer


SQUARE: dict[str, Callable[[], Pair]] = {
    "gcn without factors": lambda: _gcn(normalize=False),
    "gcn without loops": lambda: _gcn(add_self_loops=False),
    "gcn improved": lambda: _gcn(improved=True),
    "sage without root": lambda: _sage(root_weight=False),
    "sage normalised": lambda: _sage(normalize=True),
    "sage projected": lambda: _sage(project=True),
    "sage pool": lambda: _sage(project=True, aggr="max"),
    "gin of a module": _gin_of_module,
    "gat residual": lambda: _gat(residual=True),
    "gatv2 residual": lambda: _gatv2(residual=True),
}
BIPARTITE: dict[str, Callable[[], tuple[Pair, tuple[int, int]]]] = {
    "sage": lambda: (_sage((IN, OWN)), (IN, OWN)),
    "sage max": lambda: (_sage((IN, OWN), aggr="max"), (IN, OWN)),
    "sage projected": lambda: (_sage((IN, OWN), project=True), (IN, OWN)),
    "gin": lambda: (_gin((IN, IN)), (IN, IN)),
    "gin of a module": lambda: (_gin_of_module(), (IN, IN)),
    "gat": lambda: (_gat((IN, OWN), add_self_loops=False), (IN, OWN)),
    "gat residual": lambda: (_gat((IN, OWN), add_self_loops=False, residual=True), (IN, OWN)),
    "gat of one weight": lambda: (_gat(IN, add_self_loops=False), (IN, IN)),
    "gatv2": lambda: (_gatv2((IN, OWN), add_self_loops=False), (IN, OWN)),
    "transformer": lambda: (_transformer((IN, OWN)), (IN, OWN)),
}


def _same(
    mine: nn.Module, peer: nn.Module, graph: Graph, x: Any, edges: Tensor, near: float = 1e-9, **more: Any
) -> None:
    """Results, and gradients of the features and of every parameter."""
    single = isinstance(x, Tensor)
    ours = [one.clone().requires_grad_() for one in ((x,) if single else x)]
    theirs = [one.clone().requires_grad_() for one in ((x,) if single else x)]
    out = mine(graph, ours[0] if single else tuple(ours))
    wanted = peer(theirs[0] if single else tuple(theirs), edges, **more)
    torch.testing.assert_close(out, wanted, rtol=near, atol=near)
    seed = torch.randn_like(wanted)
    (out * seed).sum().backward()
    (wanted * seed).sum().backward()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=near, atol=near)
    grads = sorted(float(p.grad.abs().sum()) for p in mine.parameters() if p.grad is not None)
    found = sorted(float(p.grad.abs().sum()) for p in peer.parameters() if p.grad is not None)
    torch.testing.assert_close(torch.tensor(grads), torch.tensor(found), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("edges", ZOO.values(), ids=ZOO.keys())
@pytest.mark.parametrize("name", SQUARE)
def test_options_are_those_of_pyg(name: str, edges: Edges) -> None:
    torch.manual_seed(1)
    graph = Graph(edges.src, edges.dst, num_nodes=edges.num_nodes)
    src, dst = graph.edges()
    if name == "gcn improved" and (src == dst).any():
        pytest.skip("PyTorch Geometric keeps the weight 1 of self-loops that are there")
    mine, peer = SQUARE[name]()
    x = torch.randn(graph.num_nodes, IN, dtype=torch.float64)
    # PyTorch Geometric forgets the weight of its self-loops where edges have none
    more = {"edge_weight": torch.ones(graph.num_edges, dtype=x.dtype)} if name == "gcn improved" else {}
    _same(mine, peer, graph, x, torch.stack((src, dst)).long(), **more)


@pytest.mark.parametrize("name", BIPARTITE)
def test_features_of_two_sets_of_nodes(name: str) -> None:
    torch.manual_seed(2)
    (mine, peer), (width, own) = BIPARTITE[name]()
    src, dst = torch.randint(0, 9, (40,)), torch.randint(0, 6, (40,))
    graph = Graph(src, dst, num_nodes=(9, 7))  # the last destination receives nothing
    x = torch.randn(9, width, dtype=torch.float64), torch.randn(7, own, dtype=torch.float64)
    _same(mine, peer, graph, x, torch.stack((src, dst)))


@pytest.mark.parametrize("name", ["sage", "gatv2"])
def test_pairs_on_one_set_of_nodes(name: str) -> None:
    torch.manual_seed(3)
    (mine, peer), (width, own) = BIPARTITE[name]()
    src, dst = torch.randint(0, 9, (2, 40)).unbind()
    x = torch.randn(9, width, dtype=torch.float64), torch.randn(9, own, dtype=torch.float64)
    _same(mine, peer, Graph(src, dst, num_nodes=9), x, torch.stack((src, dst)))


@pytest.mark.parametrize("edges", ZOO.values(), ids=ZOO.keys())
def test_lstm_reads_the_neighbours_in_order(edges: Edges) -> None:
    torch.manual_seed(4)
    graph = Graph(edges.src, edges.dst, num_nodes=edges.num_nodes)
    layer = gw.nn.SAGEConv(IN, OUT, reduce="lstm").double()
    x = torch.randn(graph.num_nodes, IN, dtype=torch.float64, requires_grad=True)
    src, dst = graph.edges()
    rows = []
    for node in range(graph.num_nodes):
        sources = src[dst == node].long()
        state = layer.lstm(x[sources][None])[1][0][0, 0] if sources.numel() else x.new_zeros(IN)
        rows.append(state @ layer.neighbor_weight + x[node] @ layer.self_weight + layer.bias)
    wanted = torch.stack(rows) if rows else x.new_zeros(0, OUT)
    out = layer(graph, x)
    torch.testing.assert_close(out, wanted, rtol=1e-9, atol=1e-9)
    if rows:
        mine, theirs = (torch.autograd.grad(y.square().sum(), x)[0] for y in (out, wanted))
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("options", [{"normalize": False}, {"add_self_loops": False}, {"improved": True}])
@pytest.mark.parametrize("mode", ["blocks", "staged"])
def test_gcn_on_blocks_with_all_edges_is_gcn_on_the_graph(options: dict[str, Any], mode: str) -> None:
    ds = gw.synthetic("default", scale=0.03, seed=3)
    model = gw.nn.GCN(ds.num_features, 16, ds.num_classes, **options)
    whole = model(ds.graph, ds.x)
    seeds = torch.arange(0, ds.num_nodes, 3)
    if mode == "blocks":
        batch = next(iter(gw.Loader(ds, seeds=seeds, fanouts=(-1, -1), batch_size=seeds.numel())))
        found = model(batch.blocks, batch.x)
    else:
        trainer = gw.Trainer(model, ds, mode="mini", fanouts=(-1, -1), batch_size=ds.num_nodes, lr=1e-6)
        loss = trainer.fit(1)["loss"][0]
        train = ds.train_idx
        wanted = nn.functional.cross_entropy(whole[train], ds.y[train]).item()
        assert loss == pytest.approx(wanted, rel=1e-5)
        return
    torch.testing.assert_close(found, whole[batch.n_id[: batch.batch_size]], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [gw.nn.GCN, gw.nn.SAGE, gw.nn.GIN, gw.nn.GAT])
def test_features_of_several_times_on_one_graph(kind: Any) -> None:
    ds = gw.synthetic("default", scale=0.02)
    model = kind(8, 16, 3).double()
    x = torch.randn(4, ds.num_nodes, 8, dtype=torch.float64, requires_grad=True)
    found = model(ds.graph, x)
    wanted = torch.stack([model(ds.graph, one) for one in x.unbind()])
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    (mine,), (theirs,) = (torch.autograd.grad(y.square().sum(), x) for y in (found, wanted))
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def test_static_graphs_are_those_of_pyg() -> None:
    torch.manual_seed(5)
    mine, peer = _gcn()
    src, dst = torch.randint(0, 12, (2, 50)).unbind()
    x = torch.randn(3, 12, IN, dtype=torch.float64)
    found = mine(Graph(src, dst, num_nodes=12), x)
    torch.testing.assert_close(found, peer(x, torch.stack((src, dst))), rtol=1e-9, atol=1e-9)


def test_a_module_in_the_place_of_the_perceptron_is_reset() -> None:
    torch.manual_seed(6)
    layer = gw.nn.GINConv(nn.Sequential(nn.Linear(IN, OUT), nn.BatchNorm1d(OUT)), eps=0.5, train_eps=True)
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    layer(gw.Graph([0, 1], [1, 0]), torch.randn(2, IN))
    with torch.no_grad():
        layer.eps.fill_(3.0)
    torch.manual_seed(6)
    layer.reset_parameters()
    for name, tensor in layer.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
@pytest.mark.filterwarnings("ignore:Sparse CS. tensor support is in beta state")
def test_sparse_matrices_of_torch_are_sparse_features(layout: torch.layout) -> None:
    ds = gw.synthetic("cora", scale=0.1)
    dense = torch.randn(ds.num_nodes, 40).relu() * (torch.rand(ds.num_nodes, 40) < 0.2)
    model = gw.nn.GCN(40, 16, 3)
    found = model(ds.graph, dense.to_sparse(layout=layout))
    torch.testing.assert_close(found, model(ds.graph, dense), rtol=1e-5, atol=1e-6)
    with pytest.raises(DtypeError, match="without gradient, got one that requires a gradient"):
        model(ds.graph, dense.to_sparse(layout=layout).requires_grad_())


@pytest.mark.filterwarnings("ignore::graphweft.errors.DenseFeaturesWarning")
@pytest.mark.parametrize("kind", [gw.nn.GCN, gw.nn.SAGE, gw.nn.GIN])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_every_reducer_takes_sparse_features(kind: Any, reduce: str) -> None:
    ds = gw.synthetic("cora", scale=0.1)
    assert isinstance(ds.x, gw.data.SparseFeatures)
    model = kind(ds.num_features, 16, ds.num_classes, reduce=reduce)
    torch.testing.assert_close(model(ds.graph, ds.x), model(ds.graph, ds.x.to_dense()), rtol=1e-4, atol=1e-5)
    assert gw.Trainer(model, ds).fit(1)["loss"][0] > 0.0


ACTIVATIONS = {"gelu": nn.functional.gelu, "silu": nn.functional.silu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}


@pytest.mark.parametrize("name", [*ACTIVATIONS, "none"])
def test_activations(name: str) -> None:
    ds = gw.synthetic("default", scale=0.02)
    model = gw.nn.SAGE(ds.num_features, 16, 3, activation=name).double()
    x = ds.x.double()
    given = ACTIVATIONS.get(name, lambda rows: rows)(model.layers[0](ds.graph, x))
    torch.testing.assert_close(model(ds.graph, x), model.layers[1](ds.graph, given), rtol=1e-9, atol=1e-9)


BAD: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: gw.nn.GCN(4, 8, 2, jk="cat"), ConfigError, "expected jumping in place of jk"),
    (
        lambda: gw.nn.SAGE(4, 8, 2, dropot=0.1),
        TypeError,
        "unexpected keyword argument 'dropot'; did you mean 'dropout'?",
    ),
    (
        lambda: gw.nn.GCNConv(4, 2, normalize=False, add_self_loops=True),
        ConfigError,
        "cannot be combined with normalize",
    ),
    (lambda: gw.nn.GCNConv(4, 2, reduce="max", improved=True), ConfigError, "improved=True is for reduce='sum'"),
    (lambda: gw.nn.SAGEConv((4, 5, 6), 2), ConfigError, "expected an integer, or a pair of them"),
    (lambda: gw.nn.SAGEConv((4, 0), 2), ConfigError, r"expected in_features\[1\] >= 1, got 0"),
    (lambda: gw.nn.GINConv((4, 5), 2), ConfigError, "of one width for both sets"),
    (lambda: gw.nn.GINConv(nn.ReLU()), ConfigError, "a layer that has in_features"),
    (lambda: gw.nn.GINConv(nn.Linear(4, 2), 3), ConfigError, "out_features and mlp_norm cannot be combined"),
    (lambda: gw.nn.SAGEConv(4, 2, reduce="lstm", project=True), ConfigError, "cannot be combined with reduce='lstm'"),
    (lambda: gw.nn.SAGEConv((4, 5), 2)(_two(), torch.ones(2, 4)), ShapeError, r"give features as \(x_src, x_dst\)"),
    (lambda: gw.nn.SAGEConv((4, 5), 2)(_two(), (torch.ones(2, 4), torch.ones(3, 4))), ShapeError, r"shape \(3, 5\)"),
    (lambda: gw.nn.SAGEConv((4, 5), 2)(_two(), (torch.ones(2, 4), None)), ShapeError, "got .Tensor, NoneType."),
    (lambda: gw.nn.GCNConv(4, 2)(_two(), (torch.ones(2, 4), torch.ones(3, 4))), ConfigError, "SAGE, GIN and GAT"),
    (lambda: gw.nn.GATConv(4, 2)(_two(), (torch.ones(2, 4), torch.ones(3, 4))), ConfigError, "add_self_loops=True"),
]


def _two() -> Graph:
    return Graph([0, 1, 1], [0, 0, 2], num_nodes=(2, 3))


@pytest.mark.parametrize(("call", "kind", "text"), BAD)
def test_wrong_use_is_one_line(call: Callable[[], Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_block_with_all_edges_knows_the_degrees_with_self_loops(dtype: torch.dtype) -> None:
    """A GCN that adds no self-loops divides by degrees that count those of the graph, sources outside included."""
    draw = torch.Generator().manual_seed(3)
    src, dst = torch.randint(0, 40, (2, 200), generator=draw)
    own = torch.arange(0, 40, 2)
    graph = Graph(torch.cat([src, own]), torch.cat([dst, own]), num_nodes=40)
    layer, x = gw.nn.GCNConv(IN, OUT, add_self_loops=False).to(dtype), torch.randn(40, IN, dtype=dtype, generator=draw)
    peer = pyg.GCNConv(IN, OUT, add_self_loops=False).to(dtype)
    with torch.no_grad():
        peer.lin.weight.copy_(layer.weight.T)
    wanted = peer(x, torch.stack(graph.edges()))
    seeds = torch.tensor([3, 8, 31, 6])
    sample = NeighborSampler(graph, [-1]).sample(seeds)
    torch.testing.assert_close(layer(sample.blocks, x[sample.n_id]), wanted[seeds], rtol=1e-4, atol=1e-5)
