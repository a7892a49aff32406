"""Modules made again from the arguments of their constructors, and shown by them."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable

import pytest
import torch

from graphweft._errors import ConfigError
from graphweft.nn import CGAT, GAT, GCN, GIN, HGT, NGCF, RGCN, SAGE, GATConv, GATv2Conv, GCNConv, GINConv, SAGEConv
from graphweft.nn.module import CompiledModule

MADE: dict[str, Callable[[], CompiledModule]] = {
    "GCNConv(16, 32)": lambda: GCNConv(16, 32),
    "GCNConv(16, 32, bias=False, reduce='mean')": lambda: GCNConv(16, 32, bias=False, reduce="mean"),
    "SAGEConv(3, 4)": lambda: SAGEConv(3, out_features=4),
    "GINConv(3, 4, train_eps=True)": lambda: GINConv(3, 4, train_eps=True),
    "GATConv(16, 32, heads=8, edge_dim=3)": lambda: GATConv(16, 32, 8, edge_dim=3),
    "GATv2Conv(16, 32, heads=2, concat=False)": lambda: GATv2Conv(16, 32, heads=2, concat=False),
    "GCN(4, 8, 2, num_layers=3, dropout=0.5, norm='batch')": lambda: GCN(4, 8, 2, 3, dropout=0.5, norm="batch"),
    "SAGE(4, 8, 2)": lambda: SAGE(4, 8, 2),
    "GIN(4, 8, 2, train_eps=True)": lambda: GIN(4, 8, 2, train_eps=True),
    "GAT(64, 32, 8, heads=4, v2=True)": lambda: GAT(64, 32, 8, heads=4, v2=True),
    "CGAT(4, 8, 2, heads=2)": lambda: CGAT(4, 8, 2, heads=2),
    "NGCF(4, 8, 2)": lambda: NGCF(4, 8, 2),
    "HGT(10, 16, 4, num_node_types=2, num_relations=3)": lambda: HGT(10, 16, 4, num_node_types=2, num_relations=3),
    "RGCN(10, 16, 4, num_relations=3, num_bases=2)": lambda: RGCN(10, 16, 4, num_relations=3, num_bases=2),
}


@pytest.mark.parametrize("text", MADE)
def test_a_module_shows_its_sizes_and_what_is_not_usual(text: str) -> None:
    shown = " ".join(repr(MADE[text]()).split())
    inner = text.removesuffix(")").partition("(")
    assert shown.startswith(text) or shown.startswith(f"{inner[0]}( {inner[2]} (layers)")


@pytest.mark.parametrize("text", MADE)
def test_parameters_are_drawn_as_by_the_constructor(text: str) -> None:
    make = MADE[text]
    torch.manual_seed(7)
    expected = make().state_dict()
    torch.manual_seed(1)
    first = make()
    with torch.no_grad():
        for tensor in first.state_dict().values():
            tensor.fill_(3)
    for module in (first, copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        kept = [id(p) for p in module.parameters()]
        torch.manual_seed(7)
        module.reset_parameters()
        assert [id(p) for p in module.parameters()] == kept  # optimisers hold them
        assert all(torch.equal(tensor, expected[name]) for name, tensor in module.state_dict().items())


def test_what_was_set_later_is_shown() -> None:
    model = GCN(4, 8, 2, dropout=0.5)
    model.dropout = 0.25
    assert "dropout=0.25" in repr(model)


def test_a_layer_of_other_sizes_in_a_model_cannot_be_drawn_anew() -> None:
    model = GCN(4, 8, 2)
    model.layers[1] = GCNConv(8, 5)
    with pytest.raises(ConfigError, match=r"GCN\.reset_parameters: expected the parameters of the constructor, got a"):
        model.reset_parameters()


def test_arguments_that_are_no_plain_values_are_not_kept() -> None:
    class Own(SAGE):
        def __init__(self, sizes: list[int]) -> None:
            super().__init__(*sizes)

    own = Own([4, 8, 2])
    assert repr(own).startswith("Own(\n  (layers)")
    with pytest.raises(ConfigError, match="Own: expected a class that writes reset_parameters"):
        own.reset_parameters()
    own.layers[0].reset_parameters()


@pytest.mark.parametrize("text", MADE)
def test_help_shows_the_arguments_of_the_constructor(text: str) -> None:
    model = MADE[text]()
    shown = inspect.signature(type(model))
    assert "in_features" in shown.parameters and "args" not in shown.parameters
    assert "in_features" not in inspect.signature(model.forward).parameters
    with pytest.raises(AttributeError, match="__signature__"):
        _ = model.__signature__
