"""``return_attention_weights`` and ``embed``: PyTorch Geometric's numbers, forward and backward, and torch's hooks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from zoo import ZOO

import graphweft as gw
from graphweft._errors import ConfigError, ShapeError
from graphweft.nn import GAT, GCN, HGT, SAGE, CGATConv, GATConv, GATv2Conv, Transformer, TransformerConv

pyg = pytest.importorskip("torch_geometric.nn", reason="torch_geometric is the peer of this test")

IN, OUT, HEADS, EDGE = 5, 6, 3, 2
PARTS = {
    "gat": {"weight": "lin.weight", "att_src": "att_src", "att_dst": "att_dst", "bias": "bias"},
    "gatv2": {
        "weight": "lin_l.weight", "src_bias": "lin_l.bias", "dst_weight": "lin_r.weight", "dst_bias": "lin_r.bias",
        "att": "att", "bias": "bias",
    },
    "transformer": {
        "query": "lin_query.weight", "query_bias": "lin_query.bias", "key": "lin_key.weight",
        "key_bias": "lin_key.bias", "value": "lin_value.weight", "value_bias": "lin_value.bias",
        "skip": "lin_skip.weight", "bias": "lin_skip.bias",
    },
}  # fmt: skip
KINDS = {
    "gat": (GATConv, pyg.GATConv),
    "gatv2": (GATv2Conv, pyg.GATv2Conv),
    "transformer": (TransformerConv, pyg.TransformerConv),
}


def _pair(kind: str, edge_dim: int | None) -> tuple[torch.nn.Module, torch.nn.Module, dict[str, str]]:
    """A layer of ours in float64, PyTorch Geometric's with the same weights, and the names of those."""
    mine, other = KINDS[kind]
    ours = mine(IN, OUT, HEADS, edge_dim=edge_dim).double()
    theirs = other(IN, OUT // HEADS, HEADS, edge_dim=edge_dim).double()
    names = dict(PARTS[kind])
    if edge_dim:
        names["edge_projection"] = "lin_edge.weight"
    if edge_dim and kind == "gat":
        names["att_edge"] = "att_edge"
    with torch.no_grad():
        for name, known in names.items():
            ours.get_parameter(name).normal_()
            theirs.get_parameter(known).copy_(_as_theirs(ours.get_parameter(name), known))
    return ours, theirs, names


def _as_theirs(tensor: torch.Tensor, name: str) -> torch.Tensor:
    return tensor.t() if name.endswith("weight") else tensor[None] if name.startswith("att") else tensor


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("edge_dim", [None, EDGE])
@pytest.mark.parametrize("graph", ["no_edges", "self_loops", "multi_edges"])
def test_weights_and_gradients_are_those_of_pyg(graph: str, edge_dim: int | None, kind: str) -> None:
    torch.manual_seed(0)
    edges = ZOO[graph]
    ours, theirs, names = _pair(kind, edge_dim)
    made = gw.Graph(edges.src, edges.dst, num_nodes=edges.num_nodes)
    index = torch.stack([torch.from_numpy(edges.src), torch.from_numpy(edges.dst)])
    x = torch.randn(edges.num_nodes, IN, dtype=torch.float64, requires_grad=True)
    attr = torch.randn(index.shape[1], edge_dim, dtype=torch.float64) if edge_dim else None
    out, (edge_index, alpha) = ours(made, x, edge_attr=attr, return_attention_weights=True)
    wanted, (their_index, their_alpha) = theirs(x, index, attr, return_attention_weights=True)
    assert torch.equal(edge_index, their_index) and alpha.shape == (edge_index.shape[1], HEADS)
    torch.testing.assert_close(out, wanted, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(alpha, their_alpha, rtol=1e-8, atol=1e-8)
    signs = torch.randn_like(out), torch.randn_like(alpha)
    mine, known = zip(*((ours.get_parameter(a), theirs.get_parameter(b)) for a, b in names.items()), strict=True)
    got = torch.autograd.grad((out * signs[0]).sum() + (alpha * signs[1]).sum(), [x, *mine])
    expected = torch.autograd.grad((wanted * signs[0]).sum() + (their_alpha * signs[1]).sum(), [x, *known])
    for name, grad, other in zip(["", *names.values()], got, expected, strict=True):
        torch.testing.assert_close(_as_theirs(grad, name), other, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("kind", ["gat", "transformer"])
def test_a_model_has_a_pair_for_every_layer_on_graphs_and_on_blocks(kind: str) -> None:
    torch.manual_seed(0)
    whole = gw.synthetic("cora", scale=0.1)
    x = torch.randn(whole.num_nodes, 8)
    ds = gw.Dataset("small", whole.graph, x, whole.y, whole.train_idx, whole.val_idx, whole.test_idx, whole.num_classes)
    options: dict[str, Any] = {"heads": 2, "norm": "batch", "residual": True}
    model = (Transformer if kind == "transformer" else GAT)(8, 8, 3, 2, **options).eval()
    out, pairs = model(ds.graph, x, return_attention_weights=True)
    torch.testing.assert_close(out, model(ds.graph, x), rtol=1e-5, atol=1e-5)
    assert [alpha.shape[1] for _, alpha in pairs] == [2, 1]
    batch = next(iter(gw.Loader(ds, fanouts=[-1, -1], batch_size=8)))
    seeds, pairs = model(batch.blocks, batch.x, return_attention_weights=True)
    torch.testing.assert_close(seeds, out[batch.n_id[: batch.batch_size]], rtol=1e-5, atol=1e-5)
    for block, (edge_index, alpha) in zip(batch.blocks, pairs, strict=True):
        sums = torch.zeros(block.num_dst, alpha.shape[1]).index_add(0, edge_index[1], alpha)
        full = torch.bincount(edge_index[1], minlength=block.num_dst) > 0
        torch.testing.assert_close(sums[full], torch.ones_like(sums[full]))
        assert int(edge_index[0].max()) < block.num_src


def test_margins_of_cgat_sum_the_rows_and_rows_are_picked_last() -> None:
    torch.manual_seed(0)
    graph = gw.Graph([0, 1, 3, 2, 4], [2, 2, 2, 1, 1])
    layer, x = CGATConv(4, 3).double(), torch.randn(5, 4, dtype=torch.float64)
    out, (edge_index, alpha) = layer(graph, x, return_attention_weights=True)
    rows = torch.zeros(5, 3, dtype=torch.float64).index_add(0, edge_index[1], alpha * (x @ layer.weight)[edge_index[0]])
    torch.testing.assert_close(out, rows + layer.bias)
    picked, _ = layer(graph, x, torch.tensor([2, 0]), return_attention_weights=True)
    torch.testing.assert_close(picked, out[[2, 0]])


def test_without_attention_and_with_foreign_layers_one_line() -> None:
    graph, x = gw.Graph([0, 1], [1, 2]), torch.randn(3, 4)
    with pytest.raises(ConfigError, match="SAGE: return_attention_weights is not supported, it has none; GAT"):
        SAGE(4, 8, 2)(graph, x, return_attention_weights=True)
    model = GAT(4, 8, 2)
    model.layers[1] = GCN(8, 8, 2).layers[1]
    with pytest.raises(ConfigError, match="GAT: expected layers with attention, got a layer of class GCNConv"):
        model(graph, x, return_attention_weights=True)
    with pytest.raises(ShapeError, match="GAT: expected 2 blocks"):
        GAT(4, 8, 2)([], x, return_attention_weights=True)


def _seen(model: torch.nn.Module, place: str, call: Any) -> torch.Tensor:
    """The rows that the module called ``place`` was given, by torch's own hook."""
    found: list[torch.Tensor] = []
    handle = model.get_submodule(place).register_forward_pre_hook(lambda _, given: found.append(given[1]))
    call()
    handle.remove()
    return found[0]


@pytest.mark.parametrize("kind", ["gcn", "gat", "hgt"])
def test_embeddings_are_what_the_next_layer_reads(kind: str) -> None:
    torch.manual_seed(0)
    if kind == "hgt":
        ends = torch.randint(0, 20, (60,)), torch.randint(0, 30, (60,))
        graph = gw.Graph.hetero({("paper", "by", "author"): ends}, {"author": 30, "paper": 20})
        model: Any = HGT(6, 8, 3, num_layers=3, heads=2, num_node_types=2, num_relations=1).eval()
    else:
        graph = gw.synthetic("cora", scale=0.05).graph
        model = {"gcn": GCN, "gat": GAT}[kind](6, 8, 3, 3, norm="batch").eval()
    x = torch.randn(graph.num_nodes, 6)
    for layer in (0, 1):
        seen = _seen(model, f"layers.{layer + 1}", lambda: model(graph, x))
        torch.testing.assert_close(model.embed(graph, x, layer), seen, rtol=1e-4, atol=1e-4)
    assert torch.equal(model.embed(graph, x), model.embed(graph, x, -2))
    torch.testing.assert_close(model.embed(graph, x, -1), model(graph, x), rtol=1e-5, atol=1e-5)


def test_embeddings_of_blocks_gradients_and_bad_layers() -> None:
    torch.manual_seed(0)
    ds = gw.synthetic("cora", scale=0.1)
    x = torch.randn(ds.num_nodes, 6)
    ds = gw.Dataset("small", ds.graph, x, ds.y, ds.train_idx, ds.val_idx, ds.test_idx, ds.num_classes)
    model = SAGE(6, 8, 3)
    batch = next(iter(gw.Loader(ds, fanouts=[-1, -1], batch_size=8)))
    whole = model.embed(ds.graph, x, 0)
    reached = batch.n_id[: batch.blocks[0].num_dst]
    torch.testing.assert_close(model.embed(batch.blocks, batch.x, 0), whole[reached], rtol=1e-5, atol=1e-5)
    whole.sum().backward()
    assert model.layers[0].self_weight.grad is not None and float(model.layers[0].self_weight.grad.abs().sum()) > 0
    assert model.layers[1].self_weight.grad is None or not model.layers[1].self_weight.grad.any()
    for wrong in (2, -3, True, 0.5):
        with pytest.raises(ConfigError, match=r"SAGE.embed: expected layer in \[-2, 2\), got"):
            model.embed(ds.graph, x, wrong)  # type: ignore[arg-type]
