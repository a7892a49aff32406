"""Models whose rows are not those that several processes would compute: found on a few rows, and only those."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from dist.rank_cases import dataset
from dist.rank_models import OWN
from torch import Tensor, nn

import graphweft as gw
from graphweft._errors import ConfigError
from graphweft.dist.ranks import Ranks
from graphweft.train.edge_data import edge_data_of
from graphweft.train.row_probe import check_rows_apart

pyg = pytest.importorskip("torch_geometric.nn")


class Through(nn.Module):
    """A function of rows between two layers."""

    def __init__(self, between: Callable[..., Tensor]) -> None:
        super().__init__()
        self.first, self.second = gw.nn.GCNConv(12, 8), gw.nn.GCNConv(8, 7)
        self.between = between

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        out: Tensor = self.second(graph, self.between(self, graph, torch.tanh(self.first(graph, x))))
        return out


class Numbered(nn.Module):
    """A learned row for every number of a node."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.layer = nn.Embedding(1000, 12), gw.nn.GCNConv(12, 7)

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        out: Tensor = self.layer(graph, x + self.rows(torch.arange(graph.num_nodes)))
        return out


MIXING: dict[str, Callable[[Any, Any, Tensor], Tensor]] = {
    "mean": lambda m, g, h: h - h.mean(0),
    "largest": lambda m, g, h: h / h.abs().amax(),
    "order": lambda m, g, h: h + h.argsort(0).argsort(0),
    "standardised": lambda m, g, h: nn.functional.batch_norm(h, None, None, training=True),
    "in training alone": lambda m, g, h: h - h.mean(0) if m.training else h,
    "shared softmax": lambda m, g, h: torch.softmax(h, 0),
}
APART: dict[str, Callable[[Any, Any, Tensor], Tensor]] = {
    "row": lambda m, g, h: h / h.norm(dim=1, keepdim=True),
    "dropout": lambda m, g, h: nn.functional.dropout(h, 0.5, m.training),
    "degree": lambda m, g, h: h / (g.in_degrees().float() + 1).unsqueeze(1),
    "draws": lambda m, g, h: h + torch.randn_like(h),
}


def check(model: nn.Module) -> None:
    ds = dataset()
    check_rows_apart(Ranks(), model, ds.x, edge_data_of(model, ds))


@pytest.mark.parametrize("name", MIXING)
def test_values_over_all_rows_are_found(name: str) -> None:
    model = Through(MIXING[name])
    with pytest.raises(
        ConfigError, match="Through: a value over the rows of all nodes cannot be combined with ranks=1"
    ):
        check(model)
    assert model.training


def test_numbers_of_nodes_are_found() -> None:
    with pytest.raises(ConfigError, match="Numbered: a row that depends on the number of its node"):
        check(Numbered())


def test_the_number_of_nodes_is_found() -> None:
    with pytest.raises(ConfigError, match="Through: a row that depends on how many nodes there are"):
        check(Through(lambda m, g, h: h / g.num_nodes))


@pytest.mark.parametrize("name", APART)
def test_other_functions_of_rows_are_not(name: str) -> None:
    check(Through(APART[name]))


@pytest.mark.parametrize("name", OWN)
def test_user_functions_are_not(name: str) -> None:
    model = OWN[name](12, 7)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    check(model.eval())
    assert not any(module.training for module in model.modules())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_a_model_that_keeps_what_it_first_computes_is_left_as_it_was() -> None:
    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = gw.nn.GCNConv(12, 7)
            self.degrees: Tensor | None = None

        def forward(self, graph: Any, x: Tensor) -> Tensor:
            self.degrees = graph.in_degrees() if self.degrees is None else self.degrees
            out: Tensor = self.layer(graph, x / (self.degrees + 1).unsqueeze(1))
            return out

    model = Keeping()
    check(model)
    assert model.degrees is None


def test_norms_of_others_in_a_stack_are_found() -> None:
    model = gw.nn.SAGE(12, 8, 7, norm="layer")
    model.norms[0] = pyg.PairNorm()
    with pytest.raises(ConfigError, match="SAGE: a value over the rows of all nodes"):
        gw.Trainer(model, dataset(), mode="mini", ranks=Ranks(reduce="ordered"))
