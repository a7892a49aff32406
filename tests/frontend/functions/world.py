"""The world of a user function: fields, parameters and types that it asks for, and the list of all.

``CASES`` maps a name to a function of a :class:`World`; it returns (message, reduce) or (message, reduce, update).
``FALLS_BACK`` names those that are no segment operation, with the operation that says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import graphweft as gw

F64 = torch.float64
Functions = tuple[Any, ...]
CASES: dict[str, Callable[[World], Functions]] = {}
FALLS_BACK: dict[str, str] = {}
TYPED: set[str] = set()


class World:
    """Fields and parameters of one case on one graph; all floating ones are leaves."""

    def __init__(self, graph: gw.Graph, seed: int = 0, dtype: torch.dtype = F64) -> None:
        self.dtype = dtype
        self.graph, self._generator = graph, torch.Generator().manual_seed(seed)
        self.fields: dict[str, dict[str, Tensor]] = {"ndata": {}, "edata": {}, "ntype_data": {}, "etype_data": {}}
        self.leaves: dict[str, Tensor] = {}
        self.params: tuple[Any, ...] = ()

    def _leaf(self, name: str, *shape: int) -> Tensor:
        self.leaves[name] = torch.randn(shape, generator=self._generator, dtype=F64).to(self.dtype).requires_grad_()
        return self.leaves[name]

    def node(self, name: str, *dims: int) -> None:
        self.fields["ndata"][name] = self._leaf(f"node {name}", self.graph.num_nodes, *dims)

    def edge(self, name: str, *dims: int) -> None:
        self.fields["edata"][name] = self._leaf(f"edge {name}", self.graph.num_edges, *dims)

    def kinds(self, name: str, count: int) -> None:
        """An integer below ``count`` per edge."""
        drawn = torch.randint(0, count, (self.graph.num_edges,), generator=self._generator)
        self.fields["edata"][name] = drawn

    def degrees(self, name: str = "deg") -> None:
        self.fields["ndata"][name] = self.graph.in_degrees()

    def ntable(self, name: str, *dims: int) -> None:
        self.fields["ntype_data"][name] = self._leaf(f"ntype {name}", len(self.graph.node_types), *dims)

    def etable(self, name: str, *dims: int) -> None:
        self.fields["etype_data"][name] = self._leaf(f"etype {name}", len(self.graph.relations), *dims)

    def param(self, name: str, *shape: int) -> Tensor:
        return self._leaf(name, *shape)

    def module(self, module: nn.Module) -> nn.Module:
        """A module whose parameters are leaves."""
        module = module.to(self.dtype)
        for name, parameter in module.named_parameters():
            with torch.no_grad():
                parameter.copy_(torch.randn(parameter.shape, generator=self._generator, dtype=F64) * 0.5)
            self.leaves[f"{type(module).__name__}.{name}"] = parameter
        return module


def case(function: Callable[[World], Functions]) -> Callable[[World], Functions]:
    CASES[function.__name__] = function
    return function


def typed(function: Callable[[World], Functions]) -> Callable[[World], Functions]:
    TYPED.add(function.__name__)
    return case(function)


def falls_back(operation: str) -> Callable[[Any], Any]:
    def keep(function: Callable[[World], Functions]) -> Callable[[World], Functions]:
        FALLS_BACK[function.__name__] = operation
        return case(function)

    return keep


def copy(edges: Any) -> dict[str, Tensor]:
    return {"m": edges.src["h"]}


def total(nodes: Any) -> dict[str, Tensor]:
    return {"h": nodes.mailbox["m"].sum(1)}
