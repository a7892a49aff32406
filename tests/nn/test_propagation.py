"""SGC, APPNP and GCNII against PyTorch Geometric, and through the trainer."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import graphweft as gw
from graphweft._errors import ConfigError, ShapeError
from graphweft.nn import APPNP, GCNII, SGConv

pyg = pytest.importorskip("torch_geometric.nn")


@pytest.fixture(scope="module")
def ds() -> gw.Dataset:
    ds = gw.synthetic("cora", scale=0.1)
    x = torch.randn(ds.num_nodes, 12, generator=torch.Generator().manual_seed(0))
    return gw.Dataset("small", ds.graph, x, ds.y, ds.train_idx, ds.val_idx, ds.test_idx, ds.num_classes)


def _compare(ours: nn.Module, parameters: list[Tensor], theirs: Tensor, wanted: list[Tensor], ds: gw.Dataset) -> None:
    """Results and gradients, in float64."""
    x = ds.x.double().requires_grad_()
    out = ours(ds.graph, x)
    torch.testing.assert_close(out, theirs, rtol=1e-10, atol=1e-10)
    sign = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).reshape(out.shape)
    got = torch.autograd.grad((out * sign).sum(), parameters)
    for mine, other in zip(got, torch.autograd.grad((theirs * sign).sum(), wanted), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-10)


def test_sgc_is_that_of_pyg(ds: gw.Dataset) -> None:
    ours, theirs = SGConv(12, 3, hops=3).double(), pyg.SGConv(12, 3, K=3).double()
    with torch.no_grad():
        ours.weight.copy_(theirs.lin.weight.t())
        ours.bias.copy_(theirs.lin.bias)
    x = ds.x.double()
    wanted = theirs(x, torch.stack(ds.graph.edges()))
    _compare(ours, [ours.bias], wanted, [theirs.lin.bias], ds)
    sign = torch.ones(wanted.shape, dtype=torch.float64)
    (mine,) = torch.autograd.grad(ours(ds.graph, x), ours.weight, sign)
    (other,) = torch.autograd.grad(theirs(x, torch.stack(ds.graph.edges())), theirs.lin.weight, sign)
    torch.testing.assert_close(mine, other.t(), rtol=1e-9, atol=1e-10)


def test_appnp_is_that_of_pyg(ds: gw.Dataset) -> None:
    ours, spread = APPNP(12, 8, 3, hops=4, alpha=0.2).double(), pyg.APPNP(K=4, alpha=0.2).double()
    h = torch.relu(ds.x.double() @ ours.weights[0] + ours.biases[0]) @ ours.weights[1] + ours.biases[1]
    parameters = [*ours.weights, *ours.biases]
    _compare(ours, parameters, spread(h, torch.stack(ds.graph.edges())), parameters, ds)


def test_gcnii_is_that_of_pyg(ds: gw.Dataset) -> None:
    ours = GCNII(12, 8, 3, num_layers=3, alpha=0.2, theta=0.7).double()
    h = first = torch.relu(ds.x.double() @ ours.first + ours.first_bias)
    for layer, weight in enumerate(ours.weights, 1):
        conv = pyg.GCN2Conv(8, alpha=0.2, theta=0.7, layer=layer).double()
        assert conv.beta == math.log(0.7 / layer + 1)
        conv.weight1 = weight
        h = torch.relu(conv(h, first, torch.stack(ds.graph.edges())))
    parameters = [ours.first, ours.last, *ours.weights]
    _compare(ours, parameters, h @ ours.last + ours.last_bias, parameters, ds)


def test_the_trainer_takes_them(ds: gw.Dataset) -> None:
    torch.manual_seed(0)
    for model in (SGConv(12, ds.num_classes), APPNP(12, 8, ds.num_classes), GCNII(12, 8, ds.num_classes, 2)):
        losses = gw.Trainer(model, ds, lr=0.05).fit(8)["loss"]
        assert losses[-1] < losses[0]


def test_smoothed_constant_features_are_computed_once(ds: gw.Dataset) -> None:
    trainer = gw.Trainer(SGConv(12, ds.num_classes, hops=3), ds)
    trainer.prepare()
    assert "spmm" not in [call.kernel for call in trainer._batch.plans()[0].forward]


@pytest.mark.parametrize("kind", [APPNP, GCNII])
def test_sizes_come_from_the_data(kind: type[APPNP | GCNII], ds: gw.Dataset) -> None:
    model = kind.for_data(ds, hidden=8, alpha=0.2)
    assert (model.in_features, model.alpha) == (ds.num_features, 0.2)
    assert model(ds.graph, ds.x).shape == (ds.num_nodes, ds.num_classes)


def test_wrong_use_is_one_line(ds: gw.Dataset) -> None:
    block = gw.sampling.NeighborSampler(ds.graph, [2]).sample([0, 1]).blocks[0]
    with pytest.raises(ConfigError, match="SGConv: expected the whole graph, got a sampled block"):
        SGConv(12, 3)(block, torch.ones(block.num_src, 12))
    with pytest.raises(ConfigError, match=r"APPNP: expected alpha in \[0, 1\], got 2"):
        APPNP(12, 8, 3, alpha=2)
    with pytest.raises(ConfigError, match="GCNII: expected theta > 0, got 0"):
        GCNII(12, 8, 3, theta=0)
    with pytest.raises(ConfigError, match="SGConv: expected hops >= 1, got 0"):
        SGConv(12, 3, hops=0)
    with pytest.raises(ShapeError, match="APPNP: expected features with 12 columns"):
        APPNP(12, 8, 3)(ds.graph, torch.ones(ds.num_nodes, 4))
