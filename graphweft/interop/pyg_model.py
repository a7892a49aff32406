"""Models of PyTorch Geometric, called as ``model(x, edge_index)``, where ours are called as ``model(graph, x)``.

Comes in: any module. Goes out: the same, or an adapter around it that shares its parameters. Called by the trainer;
nothing of PyTorch Geometric is imported, the names of the arguments tell.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import torch
from torch import Tensor, nn

from graphweft._errors import ConfigError, GraphError
from graphweft.graph.derived import derived
from graphweft.graph.graph import Graph
from graphweft.nn.compiled import calls_of, is_compiled

_THIRDS = (["ptr"], ["edge_label_index"])  # what models of graphs and of pairs take beside graph and x
_EDGES = ("edge_index", "adj_t", "adj")


class PyGModel(nn.Module):
    """``model`` of PyTorch Geometric, called as ``model(graph, x)``; it may be any module that takes (x, edge_index).

    Example:
        >>> class Sum(nn.Module):
        ...     def forward(self, x, edge_index):
        ...         return torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
        >>> PyGModel(Sum())(Graph([0, 1], [2, 2]), torch.ones(3, 1)).tolist()
        [[0.0], [0.0], [2.0]]
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, graph: Graph, x: Tensor) -> Tensor:
        """What the model makes of the features and the graph's edges.

        Raises: GraphError for a typed graph.
        """
        if graph.is_typed:
            raise GraphError("Trainer: expected an untyped graph for a model of (x, edge_index), got a typed one")
        out: Tensor = self.model(x, derived(graph, edge_index_of))
        return out

    def of_seeds(self, x: Tensor, edge_index: Tensor, num_seeds: int) -> Tensor:
        """Of what the model makes of a drawn batch the rows of the seeds; a compiled one leaves the others out."""
        with calls_of(self.model).of_seeds() if is_compiled(self.model) else contextlib.nullcontext():
            out: Tensor = self.model(x, edge_index)
        return out[:num_seeds]


def edge_index_of(graph: Graph) -> Tensor:
    """The edges as PyTorch Geometric has them, (2, E)."""
    return torch.stack(graph.edges()).long()


def adapted(model: nn.Module) -> nn.Module:
    """``model`` itself where it is called as ``model(graph, x)``, else an adapter.

    Raises: ConfigError for a model that takes neither.
    """
    try:
        signature = inspect.signature(model.forward)
    except (TypeError, ValueError):
        return model
    names = [name for name, one in signature.parameters.items() if one.kind in (one.POSITIONAL_ONLY, _USUAL)]
    if len(names) > 1 and names[0] == "x" and names[1] in _EDGES:
        return PyGModel(model)
    if not _takes_two(signature) and names[2:3] not in _THIRDS and names[:1] not in (["batch"], ["data"]):
        given = ", ".join(str(parameter) for parameter in signature.parameters.values())
        raise ConfigError(
            "Trainer: expected a model called as model(graph, x), or model(x, edge_index) as in PyTorch Geometric, "
            f"got forward({given}); wrap it in a module with one of these"
        )
    return model


_USUAL: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD


def _takes_two(signature: inspect.Signature) -> bool:
    try:
        signature.bind(None, None)
    except TypeError:
        return False
    return True
