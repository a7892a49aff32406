"""What the head of a model of graphs reads, and its gradient, with torch's engine left out where readouts are sums.

Comes in: a :class:`GraphModel`, a batch of graphs, rows that its node model made. Goes out: rows of graphs and the
function from their gradient to that of the rows. Called by the steps of tasks whose samples are graphs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from graphweft import _config
from graphweft._backward import backward_from
from graphweft.graph.side_by_side import members
from graphweft.nn.graph_model import GraphModel
from graphweft.nn.readout import Readout
from graphweft.runtime.repeated import Repeated

Back = Callable[[Tensor], Tensor | None]


class Reader:
    """The readouts of one model, as they stand: compiled calls that are looked up by their class of sizes.

    ``rows`` and ``features``: calls of the readout of the layers, and of that of the features, which has no gradient;
    None where the model reads out in another way, which torch's engine differentiates.
    """

    def __init__(self, key: tuple[Any, ...], rows: Repeated | None, features: Repeated | None) -> None:
        self._key, self._rows, self._features = key, rows, features

    @classmethod
    def of(cls, model: GraphModel) -> Self:
        """For a model as it stands."""
        parts = [model.readout] if model.inputs is None else [model.readout, model.inputs]
        if any(type(part) is not Readout or len(part.kinds) > 1 for part in parts):
            return cls(_key_of(model), None, None)
        calls = [part.repeated(wants_gradient=part is model.readout) for part in parts if isinstance(part, Readout)]
        return cls(_key_of(model), calls[0], calls[1] if len(calls) > 1 else None)

    def serves(self, model: GraphModel) -> bool:
        """Whether the model still reads out as it did, and the configuration is the same."""
        return self._key == _key_of(model)

    def linearize(self, model: GraphModel, batch: Any, made: Tensor) -> tuple[Tensor, Back]:
        """Rows of graphs outside torch's graph, and their pullback to the rows ``made``, which works once.

        It gives None where the readout does not depend on the rows.
        """
        of_graphs, leaf = members(batch.ptr), made.detach().requires_grad_()
        if self._rows is None or not self._rows.is_compiled(of_graphs, leaf):
            return _by_engine(model, batch, leaf)
        outputs, pullback = self._rows.linearize(of_graphs, leaf)
        read, begin = outputs["out"], 0
        if self._features is not None:
            first = self._features.forward(of_graphs, batch.x)["out"]
            read, begin = torch.cat([first, read], dim=1), first.shape[1]
        return read, lambda gradient: pullback(gradient[:, begin:].contiguous())["x"]


def _key_of(model: GraphModel) -> tuple[Any, ...]:
    """What decides how a model reads out."""
    return _config.current(), *((type(one), getattr(one, "kinds", None)) for one in (model.readout, model.inputs))


def _by_engine(model: GraphModel, batch: Any, leaf: Tensor) -> tuple[Tensor, Back]:
    """By torch's graph."""
    read = model.read_out(batch.x, leaf, batch.ptr)
    return read.detach(), functools.partial(_pulled, read, leaf)


def _pulled(read: Tensor, leaf: Tensor, gradient: Tensor) -> Tensor | None:
    if read.requires_grad:  # a readout may read the features alone
        backward_from(read, gradient)
    return leaf.grad


__all__ = ["Reader"]
