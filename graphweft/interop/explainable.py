"""Models for the explainers of PyTorch Geometric and for Captum: masks of edges become edge weights.

Comes in: a model called as ``model(graph, x)``. Goes out: one called as ``model(x, edge_index)`` that
``torch_geometric.explain.Explainer`` takes. PyTorch Geometric is imported only here, when it is asked for.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn

from graphweft._errors import ConfigError, MissingPackageError
from graphweft.graph.graph import Graph
from graphweft.nn.module import CompiledModule


class Explainable(nn.Module):
    """``model`` called as ``model(x, edge_index, edge_weight=None)``; see :func:`explainable`."""

    def __init__(self, model: nn.Module, masked: nn.Module) -> None:
        super().__init__()
        self.model, self.masked = model, masked
        self._known: tuple[Tensor, int, Graph] | None = None

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """What the model makes of the graph, whose edges count by their weights times the mask.

        Raises: ConfigError for a mask of edges where the model takes no weights.
        """
        mask: Tensor | None = self.masked._edge_mask if self.masked.explain else None  # type: ignore[assignment]
        if mask is not None:
            mask = mask.sigmoid() if self.masked._apply_sigmoid else mask
            edge_weight = mask if edge_weight is None else mask * edge_weight
        graph = self._graph(edge_index, x.shape[0])
        if edge_weight is None:
            plain: Tensor = self.model(graph, x)
            return plain
        if not _takes_weights(self.model):
            remedy = "masks of nodes and features work with every model"
            raise ConfigError(
                f"explainable: expected a model that takes edge_weight, such as gw.nn.GCN, SAGE or GIN, for masks of "
                f"edges, got {type(self.model).__name__}; {remedy}"
            )
        out: Tensor = self.model(graph, x, edge_weight=edge_weight)
        return out

    def _graph(self, edge_index: Tensor, num_nodes: int) -> Graph:
        """The graph of the edges, made once while they stay the same."""
        if self._known is not None:
            known, version, graph = self._known
            if known is edge_index and version == edge_index._version and graph.num_nodes == num_nodes:
                return graph
        source, target = edge_index.detach()
        graph = Graph(source, target, num_nodes=num_nodes)
        self._known = edge_index, edge_index._version, graph
        return graph


def explainable(model: nn.Module) -> Explainable:
    """Wraps ``model`` for ``torch_geometric.explain.Explainer`` and for Captum. Parameters are shared.

    Masks of nodes and features work with every model. A mask of edges multiplies the edge weights, so it needs a model
    that takes them. With SAGE and GIN, the mask multiplies the messages, as in PyTorch Geometric. GCN normalises after
    the mask.

    Args:
        model: A model called as ``model(graph, x)``, or ``model(graph, x, edge_weight=...)``.

    Raises: MissingPackageError without PyTorch Geometric; ConfigError for an object that is no module.

    Example:
        >>> from graphweft.nn.sage import SAGE
        >>> import torch
        >>> model = explainable(SAGE(4, 8, 2))
        >>> model(torch.ones(3, 4), torch.tensor([[0, 1], [1, 2]])).shape
        torch.Size([3, 2])
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"explainable: expected model as a torch.nn.Module, got {type(model).__name__}")
    return Explainable(model, _masked())


def _masked() -> Any:
    """A layer on which explainers leave the mask of the edges; it passes no messages.

    It is of a class of its own: the constructor writes methods to the class, which other layers inherit.
    """
    try:
        from torch_geometric.nn import MessagePassing
    except ImportError:
        raise MissingPackageError("explainable: needs torch_geometric (pip install graphweft[pyg])") from None

    class Masked(MessagePassing):  # type: ignore[misc]
        pass

    return Masked()


def _takes_weights(model: nn.Module) -> bool:
    if isinstance(model, CompiledModule):
        return model.takes_edge_weight
    parameters: Any = inspect.signature(model.forward).parameters
    return "edge_weight" in parameters


__all__ = ["Explainable", "explainable"]
