"""Sparse features in layers of one's own and in the primitives, against the same calls on the dense matrix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from zoo import random_edges

from graphweft._errors import DenseFeaturesWarning, DtypeError, FallbackWarning
from graphweft.graph.graph import Graph
from graphweft.nn.message_passing import MessagePassing, update_all
from graphweft.nn.napa import apply, neighbor_apply, pull, push
from graphweft.storage.feature import SparseFeatures

N, WIDTH = 50, 12


def _graph() -> Graph:
    edges = random_edges(N, 300, seed=3)
    return Graph(edges.src, edges.dst, num_nodes=N)


def _features(dtype: torch.dtype = torch.float32) -> tuple[SparseFeatures, Tensor]:
    generator = torch.Generator().manual_seed(0)
    dense = torch.randn(N, WIDTH, generator=generator, dtype=dtype)
    dense = torch.where(torch.rand(N, WIDTH, generator=generator) < 0.2, dense, 0.0)
    return SparseFeatures.from_dense(dense), dense


class Linear(MessagePassing):
    """As a GCN's author writes it: the product first, on the nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, 4)

    def message(self, edges: Any) -> Mapping[str, Tensor]:
        return {"m": edges.src["h"]}

    def reduce(self, nodes: Any) -> Mapping[str, Tensor]:
        return {"h": nodes.mailbox["m"].mean(1)}

    def forward(self, graph: Graph, x: Any) -> Tensor:
        h = self.lin(F.dropout(x, 0.5, self.training))
        return self.propagate(graph, ndata={"h": h})["h"]


class InMessage(Linear):
    """The product inside the message."""

    def message(self, edges: Any) -> Mapping[str, Tensor]:
        return {"m": torch.relu(self.lin(edges.src["h"]))}

    def forward(self, graph: Graph, x: Any) -> Tensor:
        return self.propagate(graph, ndata={"h": x})["h"]


def _run(layer: nn.Module, graph: Graph, x: Any) -> list[Tensor]:
    layer.zero_grad()
    out = layer(graph, x)
    (out * torch.arange(out.numel()).reshape(out.shape)).sum().backward()
    return [out.detach(), *(p.grad.clone() for p in layer.parameters() if p.grad is not None)]


def _close(made: list[Tensor], expected: list[Tensor]) -> None:
    for mine, theirs in zip(made, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-3)


def test_a_layer_of_ones_own_makes_nothing_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    sparse, dense = _features()
    layer = Linear().eval()
    expected = _run(layer, _graph(), dense)
    monkeypatch.delattr(SparseFeatures, "to_dense")
    monkeypatch.delattr(SparseFeatures, "dense")
    _close(_run(layer, _graph(), sparse), expected)
    _close(_run(layer, _graph(), sparse), expected)
    assert _run(layer.train(), _graph(), sparse)[0].shape == (N, 4)


def test_fields_of_a_message_are_dense_rows() -> None:
    sparse, dense = _features()
    graph, layer = _graph(), InMessage()
    for _ in range(3):
        with pytest.warns(DenseFeaturesWarning, match=r"ndata\['h'\]: SparseFeatures 50 x 12"):
            made = _run(layer, graph, sparse)
        _close(made, _run(layer, graph, dense))


def test_update_all_on_two_sets_of_nodes() -> None:
    sparse, dense = _features()
    graph = Graph([0, 1, 2, 49], [0, 0, 1, 2], num_nodes=(N, 3))

    def message(edges: Any) -> dict[str, Tensor]:
        return {"m": edges.src["h"] * 2}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        return {"h": nodes.mailbox["m"].sum(1)}

    with pytest.warns(DenseFeaturesWarning):
        made = update_all(graph, message, reduce, ndata={"h": (sparse, None)})["h"]
    torch.testing.assert_close(made, update_all(graph, message, reduce, ndata={"h": (dense, None)})["h"])


@pytest.mark.parametrize("act", [None, "relu", "tanh"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_apply(act: str | None, dtype: torch.dtype, with_bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    sparse, dense = _features(dtype)
    monkeypatch.delattr(SparseFeatures, "to_dense")
    weight = torch.randn(WIDTH, 3, dtype=dtype, requires_grad=True)
    bias = torch.randn(3, dtype=dtype, requires_grad=True) if with_bias else None
    given = [weight] if bias is None else [weight, bias]
    plain = dense @ weight if bias is None else dense @ weight + bias
    plain = plain if act is None else getattr(torch, act)(plain)
    expected = torch.autograd.grad(plain.square().sum(), given)
    for _ in range(3):
        made = apply(sparse, weight, bias, act)
        torch.testing.assert_close(made, plain, rtol=1e-4, atol=1e-5)
        _close(list(torch.autograd.grad(made.square().sum(), given)), list(expected))


def test_captured_features_run_as_written() -> None:
    sparse, dense = _features()
    graph, z = _graph(), torch.randn(N, WIDTH)

    def call(x: Any) -> Tensor:
        def message(edges: Any) -> dict[str, Tensor]:
            return {"m": edges.src["z"] * x.sum(0) + edges.dst["z"] @ x.t() @ x}

        return update_all(graph, message, lambda nodes: {"h": nodes.mailbox["m"].sum(1)}, ndata={"z": z})["h"]

    with pytest.warns(FallbackWarning, match="it captures SparseFeatures; capture x.to_dense"):
        made = call(sparse)
    torch.testing.assert_close(made, call(dense), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(call(sparse * 2), call(dense * 2), rtol=1e-4, atol=1e-3)  # other ones, the same code


def test_apply_names_the_dtypes() -> None:
    with pytest.raises(DtypeError, match=r"apply: expected a weight of torch.float32, as x, got torch.float64"):
        apply(_features()[0], torch.ones(WIDTH, 2, dtype=torch.float64))


def test_the_primitives() -> None:
    sparse, dense = _features()
    graph = _graph()
    for call in (
        lambda x: pull(graph, x, weight="copy", reduce="mean"),
        lambda x: push(graph, x, weight="copy"),
        lambda x: neighbor_apply(graph, x, "dot"),
        lambda x: neighbor_apply(graph, x, "sub") * 1,
        lambda x: pull(graph, x, neighbor_apply(graph, x, "mul"), weight="mul"),
    ):
        with pytest.warns(DenseFeaturesWarning, match="SparseFeatures 50 x 12"):
            made = call(sparse)
        torch.testing.assert_close(made, call(dense))
