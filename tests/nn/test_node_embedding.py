"""Learned rows in front of a model: as a plain table of parameters in torch, in full, mini and link training."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import graphweft as gw


def data(nodes: int = 40, seed: int = 0) -> gw.Dataset:
    rng = np.random.default_rng(seed)
    graph = gw.Graph(rng.integers(0, nodes, 160), rng.integers(0, nodes, 160), num_nodes=nodes).without_self_loops()
    return gw.Dataset("d", graph, y=np.arange(nodes) % 3).with_features("embedding")


def test_values_and_gradients_are_those_of_a_table() -> None:
    ds = data()
    model = gw.nn.NodeEmbedding(ds.num_nodes, gw.nn.GCN(8, 16, 3))
    weight = torch.randn(ds.num_nodes, 3)
    out = model(ds.graph, ds.x)
    (out * weight).sum().backward()

    # the GCN layer in float64: D^-1/2 (A + I) D^-1/2 X W + b
    a = torch.zeros(ds.num_nodes, ds.num_nodes, dtype=torch.float64)
    src, dst = ds.graph.edges()
    a.index_put_((dst, src), torch.ones(src.numel(), dtype=torch.float64), accumulate=True)
    a += torch.eye(ds.num_nodes, dtype=torch.float64)
    scale = a.sum(1).rsqrt()
    a = scale[:, None] * a * scale[None]
    table = model.rows.weight.detach().double().requires_grad_()
    tensors = {name: p.detach().double() for name, p in model.model.named_parameters()}
    h = table
    for layer in range(2):
        names = {n.split(".")[-1]: t for n, t in tensors.items() if n.startswith(f"layers.{layer}.")}
        h = a @ h @ names["weight"] + names["bias"]
        h = h.relu() if layer == 0 else h
    (h * weight.double()).sum().backward()
    torch.testing.assert_close(out.double(), h, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.rows.weight.grad.double(), table.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer", ["SAGE", "GAT"])
def test_a_batch_reads_the_rows_of_its_nodes(layer: str) -> None:
    ds = data()
    model = gw.nn.NodeEmbedding(ds.num_nodes, getattr(gw.nn, layer)(8, 16, 3)).eval()
    whole = model(ds.graph, ds.x)
    batch = next(iter(gw.Loader(ds, torch.tensor([7, 31, 2]), fanouts=[-1, -1], batch_size=3)))
    found = model(batch.blocks, batch.x)
    torch.testing.assert_close(found, whole[batch.n_id[:3]], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["full", "mini"])
def test_the_rows_learn_labels_that_no_feature_tells(mode: str) -> None:
    ds = data()
    model = gw.nn.NodeEmbedding(ds.num_nodes, gw.nn.SAGE(16, 32, 3))
    before = model.rows.weight.detach().clone()
    options = {"fanouts": (-1, -1), "batch_size": 8} if mode == "mini" else {}
    trainer = gw.Trainer(model, ds, lr=0.02, mode=mode, restore_best=False, **options)
    trainer.fit(40)
    assert trainer.evaluate("train") == 1.0
    assert not torch.equal(model.rows.weight[ds.train_idx], before[ds.train_idx])


def test_links_between_nodes_without_features() -> None:
    """Two halves without an edge between them: rows alone must come to tell them apart."""
    rng = np.random.default_rng(1)
    side = rng.integers(0, 2, 400) * 30
    src, dst = rng.integers(0, 30, 400) + side, rng.integers(0, 30, 400) + side
    ds = gw.Dataset("halves", gw.Graph(src, dst, num_nodes=60).to_bidirected()).with_features("embedding")
    model = gw.nn.NodeEmbedding(60, gw.nn.SAGE(16, 16, 16))
    trainer = gw.Trainer(model, ds, lr=0.01, mode="mini", task="link", batch_size=128)
    trainer.fit(30)
    assert trainer.evaluate("test") > 0.65


def test_other_features_are_refused() -> None:
    ds = data()
    model = gw.nn.NodeEmbedding(ds.num_nodes, gw.nn.SAGE(8, 4, 3))
    for x in (
        torch.ones(40, 40),
        gw.data.SparseFeatures.from_dense(torch.ones(40, 40)),
        ds.x.take_rows([0]).to_dense(),
    ):
        with pytest.raises(gw.errors.ShapeError, match=r"one-hot rows of 40 columns.*ds\.with_features\('embedding'\)"):
            model(ds.graph, x)
    with pytest.raises(gw.errors.ConfigError, match="num_nodes >= 1, got 0"):
        gw.nn.NodeEmbedding(0, gw.nn.SAGE(8, 4, 3))
    with pytest.raises(gw.errors.ConfigError, match="width >= 1, got None"):
        gw.nn.NodeEmbedding(5, torch.nn.ReLU())
