"""GCN, GraphSAGE and GIN layers against PyTorch Geometric's, with its weights: values and all gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from zoo import ZOO, Edges

from graphweft._config import config
from graphweft.graph.graph import Graph
from graphweft.nn import GCNConv, GINConv, SAGEConv
from graphweft.nn.module import CompiledModule

pyg = pytest.importorskip("torch_geometric.nn", reason="torch_geometric is the peer of this test")

IN, OUT = 5, 4


def _gcn(peer: torch.nn.Module) -> CompiledModule:
    mine = GCNConv(IN, OUT)
    mine.load_state_dict({"weight": peer.lin.weight.T, "bias": peer.bias})
    return mine


def _sage(reduce: str) -> Callable[[torch.nn.Module], CompiledModule]:
    def build(peer: torch.nn.Module) -> CompiledModule:
        mine = SAGEConv(IN, OUT, reduce=reduce)
        mine.load_state_dict(
            {"neighbor_weight": peer.lin_l.weight.T, "bias": peer.lin_l.bias, "self_weight": peer.lin_r.weight.T}
        )
        return mine

    return build


def _gin(peer: torch.nn.Module) -> CompiledModule:
    mine = GINConv(IN, OUT, eps=0.3, train_eps=True)
    first, second = peer.nn[0], peer.nn[2]
    mine.load_state_dict(
        {"weight1": first.weight.T, "bias1": first.bias, "weight2": second.weight.T, "bias2": second.bias}
        | {"eps": peer.eps.detach().reshape(())}
    )
    return mine


def _mlp() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(IN, OUT), torch.nn.ReLU(), torch.nn.Linear(OUT, OUT))


LAYERS: dict[str, tuple[Callable[[], torch.nn.Module], Callable[[torch.nn.Module], CompiledModule]]] = {
    "gcn": (lambda: pyg.GCNConv(IN, OUT), _gcn),
    "sage_mean": (lambda: pyg.SAGEConv(IN, OUT, aggr="mean"), _sage("mean")),
    "sage_sum": (lambda: pyg.SAGEConv(IN, OUT, aggr="sum"), _sage("sum")),
    "sage_max": (lambda: pyg.SAGEConv(IN, OUT, aggr="max"), _sage("max")),
    "gin": (lambda: pyg.GINConv(_mlp(), eps=0.3, train_eps=True), _gin),
}


def _flat(gradients: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """PyG's linear weights are (out, in)."""
    renamed = {
        "lin.weight": "weight", "lin_l.weight": "neighbor_weight", "lin_l.bias": "bias", "lin_r.weight": "self_weight",
        "nn.0.weight": "weight1", "nn.0.bias": "bias1", "nn.2.weight": "weight2", "nn.2.bias": "bias2",
    }  # fmt: skip
    return {
        renamed.get(name, name): g.T if name.endswith("weight") else g.reshape(()) if name == "eps" else g
        for name, g in gradients.items()
    }


def _gradients(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("level", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("graph", [n for n in ZOO if n not in ("empty",)])
def test_layer_equals_the_peers(layer: str, graph: str, dtype: torch.dtype, level: int) -> None:
    torch.manual_seed(0)
    make, build = LAYERS[layer]
    peer = make().to(dtype)
    with torch.no_grad():
        for p in peer.parameters():
            p.copy_(torch.randn(p.shape))  # float32 values, exact in both dtypes
    mine = build(peer).to(dtype)
    edges: Edges = ZOO[graph]
    x = torch.randn(edges.num_nodes, IN, dtype=dtype)
    mine_x, peer_x = x.clone().requires_grad_(), x.clone().requires_grad_()
    seed = torch.randn(edges.num_nodes, OUT, dtype=dtype)
    tolerance = 2e-4 if dtype is torch.float32 else 1e-9

    expected = peer(peer_x, torch.stack([torch.from_numpy(edges.src), torch.from_numpy(edges.dst)]))
    expected.backward(seed)
    with config(opt_level=level):
        got = mine(Graph(edges.src, edges.dst, num_nodes=edges.num_nodes), mine_x)
        got.backward(seed)
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(mine_x.grad, peer_x.grad, rtol=tolerance, atol=tolerance)
    for name, gradient in _flat(_gradients(peer)).items():
        torch.testing.assert_close(_gradients(mine)[name], gradient, rtol=tolerance, atol=tolerance * 10)
