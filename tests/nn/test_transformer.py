"""The graph transformer against PyTorch Geometric, on graphs and on sampled blocks."""

from __future__ import annotations

import pytest
import torch

import graphweft as gw
from graphweft.nn import Transformer, TransformerConv

pyg = pytest.importorskip("torch_geometric.nn")


@pytest.mark.parametrize("concat", [True, False])
@pytest.mark.parametrize("edge_dim", [None, 3])
@pytest.mark.parametrize("root_weight", [True, False])
def test_results_and_gradients_are_those_of_pyg(concat: bool, edge_dim: int | None, root_weight: bool) -> None:
    graph = gw.synthetic("cora", scale=0.05).graph
    torch.manual_seed(0)
    options = {"heads": 2, "concat": concat, "edge_dim": edge_dim, "root_weight": root_weight}
    ours = TransformerConv(5, 8, **options).double()
    theirs = pyg.TransformerConv(5, 4 if concat else 8, **options).double()
    pairs = [(ours.query, theirs.lin_query.weight), (ours.key, theirs.lin_key.weight)]
    pairs += [(ours.value, theirs.lin_value.weight)]
    pairs += [(ours.query_bias, theirs.lin_query.bias), (ours.key_bias, theirs.lin_key.bias)]
    pairs += [(ours.value_bias, theirs.lin_value.bias)]
    if root_weight:
        pairs += [(ours.skip, theirs.lin_skip.weight), (ours.bias, theirs.lin_skip.bias)]
    if edge_dim:
        pairs += [(ours.edge_projection, theirs.lin_edge.weight)]
    with torch.no_grad():
        for mine, other in pairs:
            mine.normal_()
            other.copy_(mine.t() if mine.ndim == 2 else mine)
    x = torch.randn(graph.num_nodes, 5, dtype=torch.float64, requires_grad=True)
    attr = torch.randn(graph.num_edges, edge_dim, dtype=torch.float64) if edge_dim else None
    out = ours(graph, x, edge_attr=attr)
    wanted = theirs(x, torch.stack(graph.edges()), attr)
    torch.testing.assert_close(out, wanted, rtol=1e-9, atol=1e-9)
    sign = torch.randn_like(out)
    got = torch.autograd.grad((out * sign).sum(), [x, *(mine for mine, _ in pairs)])
    known = torch.autograd.grad((wanted * sign).sum(), [x, *(other for _, other in pairs)])
    for (mine, _), grad, other in zip([(x, x), *pairs], got, known, strict=True):
        torch.testing.assert_close(grad, other if mine is x or mine.ndim == 1 else other.t(), rtol=1e-8, atol=1e-8)


def test_full_and_mini_batches_train() -> None:
    ds = gw.synthetic("cora", scale=0.1)
    x = torch.randn(ds.num_nodes, 12, generator=torch.Generator().manual_seed(0))
    ds = gw.Dataset("small", ds.graph, x, ds.y, ds.train_idx, ds.val_idx, ds.test_idx, ds.num_classes)
    for options in ({}, {"mode": "mini", "fanouts": (4, 4), "batch_size": 16}):
        torch.manual_seed(0)
        losses = gw.Trainer(Transformer.for_data(ds, hidden=8, heads=2), ds, **options).fit(8)["loss"]
        assert losses[-1] < losses[0]


def test_a_block_of_all_edges_gives_the_rows_of_the_graph() -> None:
    graph = gw.synthetic("cora", scale=0.05).graph
    torch.manual_seed(0)
    layer, x = TransformerConv(5, 8, heads=2), torch.randn(graph.num_nodes, 5)
    batch = gw.sampling.NeighborSampler(graph, [-1]).sample([3, 0, 9])
    rows = layer(batch.blocks[0], x[batch.blocks[0].src_ids])
    torch.testing.assert_close(rows, layer(graph, x)[[3, 0, 9]], rtol=1e-5, atol=1e-6)
