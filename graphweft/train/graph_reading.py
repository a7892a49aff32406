"""What the head of a model of graphs reads, and its gradient, with torch's engine left out where readouts are compiled.

Comes in: a :class:`GraphModel`, a batch of graphs, rows that its node model made. Goes out: rows of graphs and the
function from their gradient to that of the rows. Called by the steps of tasks whose samples are graphs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Self

from torch import Tensor

from graphweft import _config
from graphweft._backward import backward_from
from graphweft._memory import empty
from graphweft.graph.graph import Graph
from graphweft.nn.graph_model import GraphModel
from graphweft.nn.readout import Readout
from graphweft.runtime.dense import rows_apply
from graphweft.runtime.epilogue import Epilogue
from graphweft.runtime.function import Pullback
from graphweft.runtime.repeated import Repeated

Back = Callable[[Tensor], Tensor | None]


class Reader:
    """The readouts of one model, as they stand: compiled calls that are looked up by their class of sizes.

    ``rows`` and ``features``: calls of the readouts of the layers, and of those of the features, which have no
    gradient; empty where the model reads out in another way, which torch's engine differentiates.
    """

    def __init__(self, key: tuple[Any, ...], rows: Sequence[Repeated], features: Sequence[Repeated]) -> None:
        self._key, self._rows, self._features = key, rows, features

    @classmethod
    def of(cls, model: GraphModel) -> Self:
        """For a model as it stands."""
        parts = [part for part in (model.readout, model.inputs) if part is not None]
        if any(type(part) is not Readout for part in parts):
            return cls(_key_of(model), (), ())
        calls = [part.repeated(wants_gradient=part is model.readout) for part in parts if isinstance(part, Readout)]
        return cls(_key_of(model), calls[0], calls[1] if len(calls) > 1 else ())

    def serves(self, model: GraphModel) -> bool:
        """Whether the model still reads out as it did, and the configuration is the same."""
        return self._key == _key_of(model)

    @property
    def by_calls(self) -> bool:
        """Whether readouts are compiled calls at all."""
        return bool(self._rows)

    def is_compiled(self, of_graphs: Graph, x: Tensor, made: Tensor) -> bool:
        """Whether plans serve these, and not the interpreter."""
        return bool(self._rows) and all(
            call.is_compiled(of_graphs, rows)
            for calls, rows in ((self._rows, made), (self._features, x))
            for call in calls
        )

    def linearize(self, model: GraphModel, batch: Any, made: Tensor) -> tuple[Tensor, Back]:
        """Rows of graphs outside torch's graph, and their pullback to the rows ``made``, which works once.

        It gives None where the readout does not depend on the rows.
        """
        leaf = made.detach().requires_grad_()
        if not isinstance(batch.x, Tensor) or not self.is_compiled(batch.of_graphs, batch.x, leaf):
            return _by_engine(model, batch, leaf)
        return self.run(batch.of_graphs, batch.x, leaf)

    def run(self, of_graphs: Graph, x: Tensor, made: Tensor) -> tuple[Tensor, Back]:
        """The same where everything is compiled, call by call, without an operation of torch that computes."""
        parts = [call.forward(of_graphs, x)["out"] for call in self._features]
        found = [call.run(of_graphs, made) for call in self._rows]
        widths = [part.shape[1] for part in (*parts, *(outputs["out"] for outputs, _ in found))]
        if len(widths) == 1:
            read = found[0][0]["out"]
        else:
            read = empty((of_graphs.num_dst, sum(widths)), made.dtype)
            begin = 0
            for part, width in zip((*parts, *(outputs["out"] for outputs, _ in found)), widths, strict=True):
                read[:, begin : begin + width].copy_(part)
                begin += width
        ends = [sum(widths[: at + 1]) for at in range(len(widths))]
        pullbacks = list(zip([back for _, back in found], ends[len(parts) :], widths[len(parts) :], strict=True))
        return read, functools.partial(_pulled_by_parts, pullbacks)

    def reading(self, of_graphs: Graph, x: Tensor, layers: Sequence[str], hidden: int) -> LayerReading:
        """What is read of layers that come one by one; everything is compiled."""
        return LayerReading(self._features, self._rows, of_graphs, x, layers, hidden)


class LayerReading:
    """Readouts of the layers of a model one by one, in the columns where those of all layers side by side have them.

    Args:
        features: Calls of the readouts of the features.
        rows: Those of the layers.
        of_graphs: From every node to its graph.
        x: The features.
        layers: Names of the layers in order.
        hidden: Columns of each.
    """

    def __init__(
        self,
        features: Sequence[Repeated],
        rows: Sequence[Repeated],
        of_graphs: Graph,
        x: Tensor,
        layers: Sequence[str],
        hidden: int,
    ) -> None:
        self._of_graphs, self._kinds, self._hidden = of_graphs, rows, hidden
        self._begin = {name: len(features) * x.shape[1] + hidden * at for at, name in enumerate(layers)}
        self._apart = hidden * len(layers)  # columns from one kind of readout to the next
        self._backs: dict[str, list[Pullback]] = {}
        self.read = empty((of_graphs.num_dst, len(features) * x.shape[1] + len(rows) * self._apart), x.dtype)
        for at, call in enumerate(features):
            part = call.forward(of_graphs, x)["out"]
            rows_apply(part, Epilogue(), out=self.read[:, at * x.shape[1] : (at + 1) * x.shape[1]])

    def take(self, name: str, rows: Tensor) -> None:
        """The rows of a layer, which is read out at once."""
        if name not in self._begin:
            return
        self._backs[name] = []
        for at, call in enumerate(self._kinds):
            outputs, back = call.run(self._of_graphs, rows)
            rows_apply(outputs["out"], Epilogue(), out=self._columns(self.read, name, at))
            self._backs[name].append(back)

    def gradient(self, name: str, of_read: Tensor) -> Tensor:
        """By the rows of a layer: kind after kind, the last one first, as torch's engine adds them up."""
        total: Tensor | None = None
        for at, back in reversed(list(enumerate(self._backs.pop(name)))):
            found = back(rows_apply(self._columns(of_read, name, at), Epilogue()))["x"]
            assert found is not None  # it was asked for
            total = found if total is None else total.add_(found)
        assert total is not None  # there is some readout
        return total

    def _columns(self, matrix: Tensor, name: str, kind: int) -> Tensor:
        begin = self._begin[name] + kind * self._apart
        return matrix[:, begin : begin + self._hidden]


def _pulled_by_parts(pullbacks: Sequence[tuple[Pullback, int, int]], gradient: Tensor) -> Tensor | None:
    """The gradient of the rows: readout after readout, the last one first, as torch's engine adds them up."""
    total: Tensor | None = None
    for pullback, end, width in reversed(pullbacks):
        part = gradient
        if width != gradient.shape[1]:
            part = empty((gradient.shape[0], width), gradient.dtype)
            part.copy_(gradient[:, end - width : end])
        found = pullback(part)["x"]
        assert found is not None  # it was asked for
        total = found if total is None else total.add_(found)
    return total


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


__all__ = ["Back", "LayerReading", "Reader"]
