"""Shapes in public signatures: every tensor of a public layer or function has one, and calls keep to them."""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jaxtyping
import pytest
import torch
from jaxtyping import jaxtyped
from torch import Tensor, nn

import graphweft as gw

SPACES = (gw.nn, gw.transforms)
FUNCTIONS = (gw.apply, gw.pull, gw.push, gw.neighbor_apply, gw.sampling.random_walk, gw.sampling.metapath_walk)


def _public() -> list[tuple[str, Callable[..., Any]]]:
    """Functions, and what modules are called by."""
    found = [(f.__name__, f) for f in FUNCTIONS]
    for space in SPACES:
        for name in space.__all__:
            thing = getattr(space, name)
            if inspect.isfunction(thing):
                found.append((name, thing))
            elif inspect.isclass(thing) and issubclass(thing, nn.Module):
                found.append((name, thing.forward))
    return found


def _written(function: Callable[..., Any]) -> dict[str, str]:
    return dict(inspect.unwrap(function).__annotations__)


def _hint(function: Callable[..., Any], text: str) -> Any:
    scope = vars(sys.modules[inspect.unwrap(function).__module__])
    return eval(text, {**vars(typing), "Mapping": Mapping, "Sequence": Sequence, **scope})


@pytest.mark.parametrize("name, function", _public(), ids=lambda value: value if isinstance(value, str) else "")
def test_every_tensor_has_a_shape(name: str, function: Callable[..., Any]) -> None:
    for argument, text in _written(function).items():
        bare = text
        for opening in ("Float[", "Float32[", "Int64["):
            while opening in bare:
                begin = bare.index(opening)
                bare = bare[:begin] + bare[bare.index("]", begin) + 1 :]
        # functions of tensors, and values whose shape the user's own functions decide
        of_functions = "Callable[" in bare or argument in ("edata", "state_dict") or name == "multi_update_all"
        assert of_functions or "Tensor" not in bare, f"{name}: {argument}: {text}"


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type, shapes included; within ``jaxtyped`` equal names are equal sizes."""
    origin = typing.get_origin(hint)
    if hint is Any or hint is inspect.Parameter.empty:
        return True
    if hint is None or hint is type(None):
        return value is None
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, one) for one in typing.get_args(hint))
    if origin is tuple:
        of = typing.get_args(hint)
        return isinstance(value, tuple) and len(value) == len(of) and all(map(_fits, value, of))
    if origin in (list, Sequence):
        return isinstance(value, (list, tuple)) and all(_fits(one, typing.get_args(hint)[0]) for one in value)
    if origin in (dict, Mapping):
        return isinstance(value, Mapping) and all(_fits(one, typing.get_args(hint)[1]) for one in value.values())
    return isinstance(value, hint if inspect.isclass(hint) else object)


def _call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result of a call whose arguments and result have the shapes of its signature."""
    written = _written(function)
    shown = {name: text for name, text in written.items() if "[Tensor" in text or "[torch.Tensor" in text}
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    result = function(*args, **kwargs)
    with jaxtyped("context"):
        for name, text in shown.items():
            if "{" in text:  # a size that is an argument
                text = text.format(**bound.arguments)
            value = result if name == "return" else bound.arguments[name]
            assert _fits(value, _hint(function, text)), f"{name}: {text}"
    return result


GRAPH = gw.Graph([0, 1, 2, 3, 3, 1], [1, 2, 0, 0, 1, 3])
X, PTR = torch.randn(4, 5), torch.tensor([0, 3, 4])
PAIRS = torch.tensor([[0, 1, 3], [1, 2, 0]])


def _forward(layer: nn.Module) -> Callable[..., Any]:
    return layer.forward


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "GCN": lambda: gw.nn.GCN(5, 8, 3),
    "SAGE": lambda: gw.nn.SAGE(5, 8, 3),
    "GIN": lambda: gw.nn.GIN(5, 8, 3),
    "GAT": lambda: gw.nn.GAT(5, 8, 3),
    "GATv2Conv": lambda: gw.nn.GATv2Conv(5, 8),
    "CGATConv": lambda: gw.nn.CGATConv(5, 8),
    "TransformerConv": lambda: gw.nn.TransformerConv(5, 8),
    "APPNP": lambda: gw.nn.APPNP(5, 8, 3),
    "GCNII": lambda: gw.nn.GCNII(5, 8, 3),
    "ChebConv": lambda: gw.nn.ChebConv(5, 8, 2),
    "SGConv": lambda: gw.nn.SGConv(5, 8),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_keep_to_their_shapes(name: str) -> None:
    layer = LAYERS[name]()
    assert _call(_forward(layer), GRAPH, X).shape[0] == 4
    if isinstance(layer, (gw.nn.GCN, gw.nn.SAGE, gw.nn.GIN)):
        assert _call(_forward(layer), GRAPH, X, torch.tensor([2, 0])).shape == (2, 3)
        assert _call(_forward(layer), GRAPH, X, edge_weight=torch.rand(6)).shape == (4, 3)


def test_readouts_keep_to_their_shapes() -> None:
    assert _call(gw.nn.readout, X, PTR, "mean").shape == (2, 5)
    assert _call(gw.nn.readout, torch.randn(4, 2, 3), PTR).shape == (2, 2, 3)
    assert _call(gw.nn.graph_softmax, X, PTR).shape == (4, 5)
    assert _call(gw.nn.Readout("sum+max").forward, X, PTR).shape == (2, 10)
    assert _call(gw.nn.Set2Set(5, 2).forward, X, PTR).shape == (2, 10)
    assert _call(gw.nn.AttentionPool(nn.Linear(5, 1)).forward, X, PTR).shape == (2, 5)
    pooled = _call(gw.nn.TopKPool(5, 0.5).forward, GRAPH, X, PTR)
    with jaxtyped("context"):
        for name, reference in type(pooled).__annotations__.items():
            text = reference.__forward_arg__
            assert _fits(getattr(pooled, name), _hint(gw.nn.TopKPool.forward, text)), f"{name}: {text}"
    assert _call(gw.nn.GraphModel(5, 8, 2, 2).forward, GRAPH, X, PTR).shape == (2, 2)
    assert _call(gw.nn.JumpingKnowledge("cat").forward, [X, X]).shape == (4, 10)


def test_models_of_pairs_and_embeddings_keep_to_their_shapes() -> None:
    assert _call(gw.nn.EdgeModel(5, 8, 2).forward, GRAPH, X, PAIRS).shape == (3, 2)
    decoder = gw.nn.EdgeDecoder(5, 8, 2, pair_dim=4)
    assert _call(decoder.forward, X, PAIRS, torch.randn(3, 4)).shape == (3, 2)
    gae = gw.nn.VGAE(gw.nn.GCN(5, 8, 6))
    z = _call(gae.forward, GRAPH, X)
    assert _call(gae.decode, z, PAIRS).shape == (3,)
    assert _call(gae.loss, GRAPH, X).shape == ()
    dgi = gw.nn.DGI(gw.nn.GCN(5, 8, 6), 6)
    assert _call(dgi.loss, GRAPH, X).shape == ()
    walks = gw.nn.Node2Vec(GRAPH, 4, walk_length=4, context_size=3)
    assert _call(walks.forward).shape == (4, 4)
    positive, negative = _call(walks.walks, torch.arange(4))
    assert _call(walks.contrast, positive, negative).shape == ()


def test_functions_keep_to_their_shapes() -> None:
    edges = _call(gw.neighbor_apply, GRAPH, X, "dot")
    assert _call(gw.pull, GRAPH, X, edges).shape == (4, 5)
    assert _call(gw.push, GRAPH, X, torch.randn(6, 5)).shape == (4, 5)
    assert _call(gw.apply, X, torch.randn(5, 3), torch.randn(3)).shape == (4, 3)
    assert _call(gw.nn.edge_softmax, GRAPH, torch.randn(6, 2)).shape == (6, 2)
    assert _call(gw.sampling.random_walk, GRAPH, [0, 1], 3).shape == (2, 4)
    assert _call(gw.transforms.random_walk_encoding, GRAPH, 3).shape == (4, 3)
    assert _call(gw.transforms.local_degree_profile, GRAPH).shape == (4, 5)
    assert len(_call(gw.transforms.sign_features, GRAPH, X, 2)) == 3


def test_another_shape_is_seen() -> None:
    """The check itself: names that stand for two sizes do not fit."""
    with jaxtyped("context"):
        assert _fits(X, jaxtyping.Float[Tensor, "nodes c"])
        assert not _fits(torch.randn(3, 5), jaxtyping.Float[Tensor, "nodes c"])
        assert not _fits(PTR, jaxtyping.Float[Tensor, "offsets"])
