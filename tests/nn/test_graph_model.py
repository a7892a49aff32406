"""Models of graphs against PyTorch Geometric's with its weights, and against the oracle."""

from __future__ import annotations

import copy

import pytest
import torch
from graphs import learnable
from torch import nn

import graphweft as gw
from graphweft.loader.graphs import GraphBatch
from graphweft.nn import GIN, GraphModel, Set2Set


def _batch(dtype: torch.dtype = torch.float64) -> GraphBatch:
    ds = learnable(40)
    batch = next(iter(gw.GraphLoader(ds, batch_size=24)))
    object.__setattr__(batch, "x", batch.x.to(dtype))
    return batch


def _weights_of(mine: GraphModel, theirs: nn.Module) -> None:
    """The weights of PyTorch Geometric's GIN in ours."""
    stack = mine.encoder
    for layer, conv, norm, other in zip(stack.layers, theirs.convs, stack.norms, theirs.norms, strict=True):
        first, second = conv.nn.lins
        layer.weight1.data, layer.bias1.data = first.weight.data.T.clone(), first.bias.data.clone()
        layer.weight2.data, layer.bias2.data = second.weight.data.T.clone(), second.bias.data.clone()
        layer.norm.load_state_dict(conv.nn.norms[0].module.state_dict())
        norm.load_state_dict(other.module.state_dict())


def test_gin_equals_pyg_s_with_its_weights() -> None:
    """Values, gradients and running statistics, in training and in evaluation."""
    peer = pytest.importorskip("torch_geometric.nn", reason="the peer of this test")
    torch.manual_seed(1)
    theirs = peer.GIN(4, 8, 3, norm="batch_norm", jk="cat").double()
    theirs.lin = nn.Identity()
    for norm in (*theirs.norms, *(conv.nn.norms[0] for conv in theirs.convs)):
        norm.module.weight.data.uniform_(0.5, 1.5)
        norm.module.bias.data.uniform_(-1, 1)
    head = nn.Linear(4 + 3 * 8, 2).double()
    mine = GraphModel(4, 8, 2, num_layers=3).double()
    _weights_of(mine, theirs)
    mine.head.load_state_dict(head.state_dict())
    batch = _batch()
    weight = torch.randn(24, 2).double()
    for mode in (True, True, False):
        for module in (mine, theirs, head):
            module.train(mode).zero_grad()
        rows = theirs(batch.x, batch.edge_index)
        pooled = [peer.global_add_pool(part, batch.batch, 24) for part in (batch.x, rows)]
        want = head(torch.cat(pooled, dim=1))
        out = mine(batch.graph, batch.x, batch.ptr)
        torch.testing.assert_close(out, want, rtol=1e-8, atol=1e-9)
        (out * weight).sum().backward()
        (want * weight).sum().backward()
        torch.testing.assert_close(mine.head.weight.grad, head.weight.grad, rtol=1e-8, atol=1e-9)
        for layer, conv in zip(mine.encoder.layers, theirs.convs, strict=True):
            first, second = conv.nn.lins
            inner = conv.nn.norms[0].module
            torch.testing.assert_close(layer.weight1.grad.T, first.weight.grad, rtol=1e-7, atol=1e-8)
            torch.testing.assert_close(layer.weight2.grad.T, second.weight.grad, rtol=1e-7, atol=1e-8)
            torch.testing.assert_close(layer.norm.weight.grad, inner.weight.grad, rtol=1e-7, atol=1e-8)
            torch.testing.assert_close(layer.norm.running_var, inner.running_var, rtol=1e-8, atol=1e-9)
    assert torch.equal(mine(batch), out)  # called with the batch itself


@pytest.mark.parametrize("conv", ["gin", "gcn", "sage", "gat", "gatv2"])
@pytest.mark.parametrize("jumping", ["cat", "last"])
def test_compiled_models_equal_the_oracle(conv: str, jumping: str) -> None:
    more = {"heads": 2} if conv.startswith("gat") else {}
    model = GraphModel(4, 8, 3, num_layers=3, conv=conv, jumping=jumping, readout="mean+max", **more)
    oracle, batch = copy.deepcopy(model).double(), _batch(torch.float32)
    weight = torch.randn(24, 3)
    (model(batch) * weight).sum().backward()
    with gw.config(opt_level=0):
        object.__setattr__(batch, "x", batch.x.double())
        want = oracle(batch)
        (want * weight).sum().backward()
    object.__setattr__(batch, "x", batch.x.float())
    twin = copy.deepcopy(model)
    torch.testing.assert_close(twin(batch).double(), want, rtol=2e-3, atol=2e-3)
    for p, q in zip(model.parameters(), oracle.parameters(), strict=True):
        torch.testing.assert_close(p.grad.double(), q.grad, rtol=5e-3, atol=5e-3 * max(1.0, float(q.grad.abs().max())))


def test_jumping_knowledge_of_a_stack() -> None:
    """The last columns are those of the last layer; layers apart give the same; blocks are refused."""
    ds = learnable(30)
    model = GIN(4, 8, 8, num_layers=3, norm="layer", mlp_norm="layer", jumping="cat")
    last = copy.deepcopy(model)
    last.jumping = "last"
    out = model(ds.graph, ds.x)
    assert out.shape == (ds.num_nodes, 24)
    torch.testing.assert_close(last(ds.graph, ds.x), out[:, 16:])
    seen: list[int] = []
    handle = model.layers[1].register_forward_hook(lambda *_: seen.append(1))
    torch.testing.assert_close(model(ds.graph, ds.x), out, rtol=1e-4, atol=1e-4)
    assert seen == [1]
    handle.remove()
    batch = next(iter(gw.Loader(ds.graph, seeds=[0, 1], fanouts=[2, 2, 2])))
    with pytest.raises(gw.errors.ConfigError, match="jumping='cat' cannot be combined with sampled blocks"):
        model(batch.blocks, torch.randn(batch.blocks[0].num_src, 4))


def test_norms_within_the_perceptron_train_on_sampled_batches() -> None:
    ds = gw.synthetic("default", scale=0.02)
    model = GIN(ds.num_features, 8, ds.num_classes, norm="batch", mlp_norm="batch")
    trainer = gw.Trainer(model, ds, mode="mini", fanouts=(4, 4), batch_size=64)
    trainer.fit(2)
    assert model.layers[0].norm.running_mean.abs().sum() > 0 and model.layers[1].norm.num_batches_tracked > 0


def test_own_modules_take_any_part() -> None:
    batch = _batch(torch.float32)

    class Encoder(nn.Module):
        def forward(self, graph: gw.Graph, x: torch.Tensor) -> torch.Tensor:
            return x @ torch.ones(4, 5)

    model = GraphModel(4, 5, 2, conv=Encoder(), readout=Set2Set(5))
    assert model(batch).shape == (24, 2) and model.embed(batch).shape == (24, 10)
    assert GraphModel(4, 8, 2, num_layers=1)(batch.graph, batch.x).shape == (1, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: GraphModel(4, 8, 2, conv="gi"), "GraphModel: expected conv among gcn, sage, gin, gat, gatv2"),
        (lambda: GraphModel(4, 8, 2, jumping="lstm"), "GraphModel: expected jumping among cat, last, got 'lstm'"),
        (lambda: GraphModel(4, 8, 2, dropout=1.0), r"GraphModel: expected dropout in \[0, 1\), got 1.0"),
        (lambda: GraphModel(4, 8, 2, readout="add"), "Readout: expected kinds among sum, mean, max"),
        (lambda: GraphModel(4, 8, 2, readout=nn.Linear(2, 2)), "expected a readout with a method width"),
        (lambda: GraphModel(4, 8, 2, conv=nn.Identity(), heads=2), "heads cannot be combined with a module as conv"),
        (lambda: GIN(4, 8, 2, jumping="max"), "GIN: expected jumping 'cat', 'last' or None, got 'max'"),
        (lambda: GIN(4, 8, 2, mlp_norm="group"), "norm: expected 'batch', 'layer' or None, got 'group'"),
        (lambda: GraphModel(4, 8, 2)(torch.ones(2, 2)), "GraphModel: expected a graphweft Graph first, got Tensor"),
        (lambda: GraphModel(4, 8, 2)(gw.Graph([0], [1])), "GraphModel: expected features of the nodes, got None"),
    ],
)
def test_wrong_use_is_told_in_one_line(call: object, message: str) -> None:
    with pytest.raises(gw.errors.GraphWeftError, match=message) as found:
        call()  # type: ignore[operator]
    assert "\n" not in str(found.value)
