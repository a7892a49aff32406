"""Models of ours with the weights of PyTorch Geometric's compute what the peers compute."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import nn
from zoo import ZOO

from graphweft._errors import ConfigError
from graphweft.graph.graph import Graph
from graphweft.nn import (
    GAT,
    GCN,
    GIN,
    HGT,
    NGCF,
    RGCN,
    SAGE,
    CompiledModule,
    GATConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    NGCFConv,
    SAGEConv,
    load_pyg_state_dict,
)

pyg = pytest.importorskip("torch_geometric.nn", reason="torch_geometric is the peer of this test")

IN, HIDDEN, OUT, LAYERS = 5, 8, 4, 3
SIZES = (IN, HIDDEN, OUT)


def _sequential() -> nn.Module:
    return nn.Sequential(nn.Linear(IN, OUT), nn.ReLU(), nn.Linear(OUT, OUT))


Pair = tuple[Callable[[], nn.Module], Callable[[], CompiledModule]]
MODELS: dict[str, Pair] = {
    "gcn": (lambda: pyg.GCN(IN, HIDDEN, LAYERS, OUT), lambda: GCN(*SIZES, LAYERS)),
    "gcn batch norm": (
        lambda: pyg.GCN(IN, HIDDEN, LAYERS, OUT, norm="BatchNorm"),
        lambda: GCN(*SIZES, LAYERS, norm="batch"),
    ),
    "gcn without bias": (lambda: pyg.GCN(IN, HIDDEN, LAYERS, OUT, bias=False), lambda: GCN(*SIZES, LAYERS, bias=False)),
    "sage": (lambda: pyg.GraphSAGE(IN, HIDDEN, LAYERS, OUT), lambda: SAGE(*SIZES, LAYERS)),
    "sage max": (lambda: pyg.GraphSAGE(IN, HIDDEN, LAYERS, OUT, aggr="max"), lambda: SAGE(*SIZES, LAYERS, aggr="max")),
    "gin": (lambda: pyg.GIN(IN, HIDDEN, LAYERS, OUT, train_eps=True), lambda: GIN(*SIZES, LAYERS, train_eps=True)),
    "gat": (
        lambda: pyg.GAT(IN, HIDDEN, LAYERS, OUT, heads=2),
        lambda: GAT(*SIZES, LAYERS, heads=2, out_heads=2, activation="relu"),
    ),
    "gatv2": (
        lambda: pyg.GAT(IN, HIDDEN, LAYERS, OUT, heads=2, v2=True),
        lambda: GAT(*SIZES, LAYERS, heads=2, out_heads=2, activation="relu", v2=True),
    ),
    "gcn layer": (lambda: pyg.GCNConv(IN, OUT), lambda: GCNConv(IN, OUT)),
    "sage layer": (lambda: pyg.SAGEConv(IN, OUT), lambda: SAGEConv(IN, OUT)),
    "gin layer": (lambda: pyg.GINConv(_sequential(), eps=0.3), lambda: GINConv(IN, OUT)),
    "gat layer": (lambda: pyg.GATConv(IN, OUT, heads=2), lambda: GATConv(IN, 2 * OUT, heads=2)),
    "gatv2 layer": (lambda: pyg.GATv2Conv(IN, OUT, heads=2), lambda: GATv2Conv(IN, 2 * OUT, heads=2)),
    "gatv2 shared": (
        lambda: pyg.GATv2Conv(IN, OUT, heads=2, share_weights=True),
        lambda: GATv2Conv(IN, 2 * OUT, heads=2),
    ),
}


def _randomised(peer: nn.Module) -> nn.Module:
    with torch.no_grad():
        for name, tensor in peer.state_dict().items():
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape) + 0.5 if name.endswith("var") else torch.randn(tensor.shape))
    return peer.eval()


@pytest.mark.parametrize("graph", ["multi_edges", "star", "symmetric"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_with_the_peers_weights_gives_the_peers_rows(name: str, graph: str) -> None:
    make_peer, make = MODELS[name]
    peer, mine = _randomised(make_peer()), make().eval()
    load_pyg_state_dict(mine, peer.state_dict())
    edges = ZOO[graph]
    x = torch.randn(edges.num_nodes, IN)
    expected = peer(x, torch.stack([torch.from_numpy(edges.src), torch.from_numpy(edges.dst)]))
    got = mine(Graph(edges.src, edges.dst, num_nodes=edges.num_nodes), x)
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3 * float(expected.detach().abs().max() + 1))


@pytest.mark.parametrize("v2", [False, True])
def test_weights_for_edge_features_are_taken(v2: bool) -> None:
    kinds = (pyg.GATv2Conv, GATv2Conv) if v2 else (pyg.GATConv, GATConv)
    peer, mine = _randomised(kinds[0](IN, OUT, heads=2, edge_dim=3)), kinds[1](IN, 2 * OUT, heads=2, edge_dim=3)
    load_pyg_state_dict(mine, peer.state_dict())
    src, dst, x, attr = torch.tensor([0, 1, 2, 0]), torch.tensor([1, 2, 3, 3]), torch.randn(4, IN), torch.randn(4, 3)
    expected = peer(x, torch.stack([src, dst]), attr)
    torch.testing.assert_close(mine(Graph(src, dst), x, edge_attr=attr), expected, rtol=1e-4, atol=1e-4)


def test_layers_of_a_module_written_by_hand_are_taken_in_their_order() -> None:
    class Peer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = pyg.GCNConv(IN, HIDDEN), pyg.GCNConv(HIDDEN, OUT)

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.second(self.first(x, edge_index).relu(), edge_index)
            return out

    peer, mine = Peer(), GCN(*SIZES)
    load_pyg_state_dict(mine, peer.state_dict())
    src, dst, x = torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0]), torch.randn(3, IN)
    torch.testing.assert_close(mine(Graph(src, dst), x), peer(x, torch.stack([src, dst])), rtol=1e-4, atol=1e-5)


WRONG: dict[str, tuple[Callable[[], nn.Module], dict[str, tuple[int, ...]], str]] = {
    "another model": (lambda: nn.Linear(2, 2), {}, "expected a GCN, SAGE, GIN or GAT, or a layer of one, got Linear"),
    "a typed model": (lambda: HGT(3, 4, 2, num_node_types=1, num_relations=1), {}, "got HGT"),
    "a layer too many": (
        lambda: GCN(3, 4, 2),
        {"convs.0.lin.weight": (4, 3), "convs.0.bias": (4,)},
        "expected weights of 2 GCNConv layers, got 1 ('convs.0')",
    ),
    "an unknown name": (lambda: GCNConv(3, 4), {"res.kernel": (4, 3)}, "got 'res.kernel'"),
    "no bias": (
        lambda: GCNConv(3, 4),
        {"lin.weight": (4, 3)},
        "expected bias, weight, got weight; set bias or edge_dim",
    ),
    "another width": (
        lambda: GCNConv(3, 4),
        {"lin.weight": (3, 4), "bias": (4,)},
        "expected weight of shape (3, 4), got (4, 3)",
    ),
    "a norm too many": (
        lambda: GCNConv(3, 4),
        {"lin.weight": (4, 3), "bias": (4,), "norms.0.module.weight": (4,)},
        "expected 0 batch norms between layers, got 1",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_refused_and_changes_nothing(case: str) -> None:
    make, shapes, message = WRONG[case]
    model = make()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_pyg_state_dict(model, {name: torch.ones(shape) for name, shape in shapes.items()})
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


TAKES_AGGR: dict[str, Callable[..., CompiledModule]] = {
    "GCNConv": lambda **o: GCNConv(3, 4, **o),
    "SAGEConv": lambda **o: SAGEConv(3, 4, **o),
    "GINConv": lambda **o: GINConv(3, 4, **o),
    "NGCFConv": lambda **o: NGCFConv(3, 4, **o),
    "GATConv": lambda **o: GATConv(3, 4, **o),
    "GCN": lambda **o: GCN(3, 4, 2, **o),
    "SAGE": lambda **o: SAGE(3, 4, 2, **o),
    "NGCF": lambda **o: NGCF(3, 4, 2, **o),
    "GAT": lambda **o: GAT(3, 4, 2, heads=2, **o),
    "RGCN": lambda **o: RGCN(3, 4, 2, num_relations=2, **o),
    "HGT": lambda **o: HGT(3, 4, 2, num_node_types=2, num_relations=2, **o),
}


@pytest.mark.parametrize("name", TAKES_AGGR)
def test_aggr_means_reduce(name: str) -> None:
    model = TAKES_AGGR[name](aggr="add")
    layer = model.layers[0] if hasattr(model, "layers") else model
    assert getattr(layer, "reduce", "sum") == "sum"
    with pytest.raises(ConfigError, match="reduce='sum' cannot be combined with aggr='mean', which means the same"):
        TAKES_AGGR[name](reduce="sum", aggr="mean")
    with pytest.raises(ConfigError, match="reduce"):
        TAKES_AGGR[name](aggr="median")
    model.reset_parameters()


def test_aggr_gives_the_rows_of_reduce() -> None:
    graph, x = Graph([0, 1, 2, 3], [3, 3, 3, 0]), torch.randn(4, 3)
    for reduce in ("sum", "mean", "max"):
        one, other = SAGEConv(3, 2, reduce=reduce), SAGEConv(3, 2, aggr=reduce)
        other.load_state_dict(one.state_dict())
        assert torch.equal(one(graph, x), other(graph, x))
