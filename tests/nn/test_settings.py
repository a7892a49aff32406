"""What a user changes on a built-in model counts in the next call, as in torch: settings, layers, modes, hooks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from nn.models import HIDDEN, IN, OUT, features, random_graph
from torch import Tensor, nn

import graphweft as gw
from graphweft.ir.ops import Op
from graphweft.ir.program import Value
from graphweft.nn.frame import Frame
from graphweft.nn.module import CompiledModule

GRAPH, X = random_graph(), features()


def stack(kind: Any = gw.nn.GCN, **options: Any) -> Any:
    torch.manual_seed(0)
    return kind(IN, HIDDEN, OUT, num_layers=3, **options)


def oracle(model: nn.Module) -> Tensor:
    with gw.config(opt_level=0):
        return model(GRAPH, X)


def alike(got: Tensor, expected: Tensor) -> bool:
    return torch.allclose(got, expected, rtol=1e-4, atol=1e-4)


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "activation": (stack, lambda m: setattr(m, "activation", "elu")),
    "residual": (lambda: stack(residual=True), lambda m: setattr(m, "residual", False)),
    "reduce": (stack, lambda m: setattr(m.layers[1], "reduce", "mean")),
    "slope": (lambda: stack(gw.nn.GAT, heads=2), lambda m: setattr(m.layers[0], "slope", 0.9)),
    "eps": (lambda: stack(norm="layer"), lambda m: setattr(m.norms[0], "eps", 2.0)),
    "norms": (lambda: stack(norm="layer"), lambda m: setattr(m, "norms", nn.ModuleList())),
    "another norm": (lambda: stack(norm="layer"), lambda m: m.norms.__setitem__(0, nn.GroupNorm(2, HIDDEN))),
    "no bias": (lambda: _biased(stack()), lambda m: setattr(m.layers[2], "bias", None)),
    "another layer": (stack, lambda m: m.layers.__setitem__(2, gw.nn.SAGEConv(HIDDEN, OUT))),
    "a frozen norm": (lambda: stack(norm="batch"), lambda m: m.norms[0].eval()),
    "weight norm": (stack, lambda m: (nn.utils.parametrizations.weight_norm(m.layers[0]), _scaled(m))),
}


def _biased(model: Any) -> Any:
    nn.init.ones_(model.layers[2].bias)
    return model


def _scaled(model: Any) -> None:
    with torch.no_grad():
        model.layers[0].parametrizations.weight.original0.mul_(3)


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_counts_in_the_next_call(name: str) -> None:
    make, change = CHANGES[name]
    model = make()
    for _ in range(3):
        before = model(GRAPH, X)
    change(model)
    after = model(GRAPH, X)
    assert alike(after, oracle(model))
    assert not alike(after, before), "the change has an effect to be seen"


def test_dropout_is_read_in_every_call() -> None:
    model, plain = stack(dropout=0.8).train(), stack()
    first = model(GRAPH, X)
    assert not torch.equal(first, model(GRAPH, X)), "each call draws anew"
    model.dropout = 0.0
    assert alike(model(GRAPH, X), plain(GRAPH, X))
    model.dropout = 0.8
    assert not alike(model(GRAPH, X), plain(GRAPH, X))


def test_a_frozen_norm_keeps_its_statistics_and_momentum_none_is_the_mean_of_all_batches() -> None:
    model = stack(gw.nn.SAGE, norm="batch").train()
    model.norms[0].momentum = None
    model.norms[1].eval()
    kept = model.norms[1].running_mean.clone()
    twin = nn.BatchNorm1d(HIDDEN, momentum=None)
    for factor in (1.0, 2.0, 3.0):
        model(GRAPH, factor * X)
        twin(model.layers[0](GRAPH, factor * X))
    torch.testing.assert_close(model.norms[0].running_mean, twin.running_mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.norms[0].running_var, twin.running_var, rtol=1e-4, atol=1e-5)
    assert torch.equal(model.norms[1].running_mean, kept)


@pytest.mark.parametrize("kind", [gw.nn.GCN, gw.nn.SAGE, gw.nn.GIN, gw.nn.NGCF])
def test_hooks_on_inner_modules_run_and_may_change_the_result(kind: Any) -> None:
    model, plain, seen = stack(kind, norm="layer", residual=True), stack(kind, norm="layer", residual=True), []
    assert alike(model(GRAPH, X), plain(GRAPH, X))
    handle = model.layers[0].register_forward_hook(lambda module, given, out: seen.append(out.shape))
    other = model.norms[1].register_forward_pre_hook(lambda module, given: seen.append(given[0].shape))
    out, expected = model(GRAPH, X), plain(GRAPH, X)
    assert seen == [(40, HIDDEN), (40, HIDDEN)] and alike(out, expected)
    out.square().sum().backward()
    expected.square().sum().backward()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-3)
    handle.remove()
    other.remove()
    model.layers[1].register_forward_hook(lambda module, given, out: out * 0)
    assert not alike(model(GRAPH, X), expected)


def test_hooks_run_on_blocks_and_in_the_trainer() -> None:
    ds = gw.synthetic("default", scale=0.05)
    model, seen = gw.nn.SAGE(ds.num_features, 8, ds.num_classes), []
    model.layers[0].register_forward_hook(lambda *_: seen.append(1))
    batch = next(iter(gw.Loader(ds, fanouts=(3, 2), batch_size=8)))
    assert model(batch.blocks, batch.x).shape == (8, ds.num_classes) and seen == [1]
    for mode in ("full", "mini"):
        seen.clear()
        gw.Trainer(model, ds, mode=mode, **({"fanouts": (3, 2)} if mode == "mini" else {})).fit(1)
        assert seen


def test_weight_norm_of_the_older_kind() -> None:
    model = stack()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch.nn.utils.weight_norm has a successor
        nn.utils.weight_norm(model.layers[1])
    before = model(GRAPH, X)
    assert alike(before, stack()(GRAPH, X))
    with torch.no_grad():
        model.layers[1].weight_g.mul_(2)
    out = model(GRAPH, X)
    assert not alike(out, before)
    out.sum().backward()
    assert model.layers[1].weight_g.grad is not None and model.layers[1].weight_v.grad is not None


class Scaled(CompiledModule):
    """A compiled layer of a user's own, with a setting in a namespace."""

    def __init__(self) -> None:
        super().__init__(IN)
        self.options = SimpleNamespace(factor=2.0)

    def define(self, frame: Frame, x: Value) -> Value:
        return frame.add(Op.SCALE, x, factor=self.options.factor)


def test_contents_of_namespaces_count() -> None:
    layer = Scaled()
    assert torch.equal(layer(GRAPH, X), 2 * X)
    layer.options.factor = 3.0
    assert torch.equal(layer(GRAPH, X), 3 * X)


class Own(nn.Module):
    """A layer that is not compiled with others."""

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        return x[:, :OUT]


def test_a_model_with_a_layer_of_ones_own_checks_what_it_is_given() -> None:
    model = stack()
    model.layers[2] = Own()
    assert model(GRAPH, X, torch.tensor([3, 1])).shape == (2, OUT)
    with pytest.raises(gw.errors.IndexRangeError, match=r"GCN rows: expected ids in \[0, 40\), got -1"):
        model(GRAPH, X, torch.tensor([-1]))
    with pytest.raises(
        gw.errors.ConfigError, match="edge_weight and edge_attr are not supported with a layer of class Own"
    ):
        model(GRAPH, X, edge_weight=torch.ones(GRAPH.num_edges))


def test_hooks_inside_a_single_layer_are_refused() -> None:
    layer = Scaled()
    layer.inner = nn.Linear(2, 2)
    layer.inner.register_forward_hook(lambda *_: None)
    with pytest.raises(gw.errors.ConfigError, match="Scaled: hooks on the modules inside are not supported"):
        layer(GRAPH, X)
