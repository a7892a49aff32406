"""A step over a batch of graphs without torch's engine: layers, readouts, head and loss, forward and backward.

Comes in: a :class:`GraphModel` with a linear head, calls of its node model and its readouts, a loss. Goes out: loss,
gradients and statistics of a batch. Layers are read out one by one, while caches hold their rows; the sum of a graph of
more than 32 nodes may be cut elsewhere than that of all layers side by side, in a call of the model. A class of sizes
that has come often enough is written down whole (``runtime/graph_tape.py``) and replayed. Called by
:class:`GraphTask`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from graphweft._memory import empty
from graphweft._trace import active
from graphweft.nn.graph_model import GraphModel
from graphweft.nn.stack import Stack
from graphweft.runtime import repeated
from graphweft.runtime.graph_tape import GraphTape, Inputs, class_of, corners_of
from graphweft.runtime.profile import PROFILE
from graphweft.runtime.repeated import Repeated
from graphweft.train.full_batch import is_hooked
from graphweft.train.graph_reading import Reader
from graphweft.train.target import Cells, Recorded


@dataclass(frozen=True, eq=False)
class Found:
    """What a step gives, in memory that the next one may write.

    Attributes:
        cells: Where the loss is.
        gradients: Of the node model's parameters, by name.
        head: Of the head's, by name.
        stored: Statistics of batch norms, by name.
    """

    cells: Cells
    gradients: dict[str, Tensor | None]
    head: dict[str, Tensor | None]
    stored: dict[str, Tensor]


class GraphStep:
    """Steps of one model as it stands.

    Args:
        model: The model.
        calls: Of its node model.
        reader: Of its readouts.
        loss: Makes the loss of labels.
    """

    def __init__(self, model: GraphModel, calls: Repeated, reader: Reader, loss: Callable[[Tensor], Recorded]) -> None:
        self._model, self._reader, self._loss = model, reader, loss
        self._layers = _layers_of(model, reader)
        self._calls = calls
        if self._layers:
            assert isinstance(model.encoder, Stack)  # which has layers
            self._calls = calls.of(model.encoder.function_by_layer())
        self._seen: Counter[tuple[Any, ...]] = Counter()
        self._served: dict[tuple[Any, ...], bool] = {}
        self._tapes: dict[tuple[Any, ...], GraphTape | None] = {}

    @property
    def tapes(self) -> list[GraphTape]:
        """Those that were recorded."""
        return [tape for tape in self._tapes.values() if tape is not None]

    def serves(self, batch: Any) -> bool:
        """Whether everything of a batch is compiled."""
        model, graph, x = self._model, batch.graph, batch.x
        if not self._reader.serves(model) or not graph.is_drawn:
            return False
        counts = graph.num_nodes.bit_length(), graph.num_edges.bit_length(), batch.num_graphs.bit_length()
        key = (*counts, x.dtype, x.shape[1])
        if key not in self._served:
            self._served[key] = self._is_compiled(batch)
        return self._served[key]

    def _is_compiled(self, batch: Any) -> bool:
        """Whether plans serve the class of sizes of a batch."""
        model, graph, x = self._model, batch.graph, batch.x
        width = model.read_width // max(len(self._layers), 1)
        made = x.new_empty((1, 1)).expand(graph.num_nodes, width).requires_grad_()
        return self._calls.is_compiled(graph, x) and self._reader.is_compiled(batch.of_graphs, x, made)

    def __call__(self, batch: Any, labels: Tensor, seed: int) -> Found:
        """The step for a batch that is served."""
        given = self.inputs(batch, labels, seed)
        tape = self._tape(given)
        found: Found = self._run(self._loss(labels), given) if tape is None else tape.replay(given)
        return found

    def inputs(self, batch: Any, labels: Tensor, seed: int) -> Inputs:
        """What a step reads."""
        hoisted = self._calls.hoisted(batch.graph, batch.x)
        return Inputs(batch.graph, {"x": batch.x}, batch.ptr, {"labels": labels}, seed, batch.of_graphs, hoisted)

    def key(self, given: Inputs) -> tuple[Any, ...]:
        """What a tape serves: a class of sizes, and all that stays."""
        x, labels, drop = given.rows["x"], given.fixed["labels"], self._model.drop
        counts = given.graph.num_nodes.bit_length(), given.graph.num_edges.bit_length()
        return (*counts, given.is_unsteady, x.dtype, x.shape[1], labels.shape, labels.dtype, drop.p, drop.training)

    def _tape(self, given: Inputs) -> GraphTape | None:
        x, labels = given.rows["x"], given.fixed["labels"]
        if PROFILE.active or active() is not None or not x.is_contiguous() or not labels.is_contiguous():
            return None
        key = self.key(given)
        self._seen[key] += 1
        if self._seen[key] <= repeated.RECORDED_AFTER:
            return None
        known = self._tapes.get(key)
        if key not in self._tapes or (known is not None and not known.serves()):
            known = self._tapes[key] = self._record(given)
        return known

    def _record(self, given: Inputs) -> GraphTape | None:
        if not self._calls.may_record(given):
            return None
        head = [t for t in (self._model.head.weight, self._model.head.bias) if t is not None]
        sizes = class_of(given.graph.num_nodes), class_of(given.graph.num_edges)
        corners = corners_of(given, *sizes, self._calls.hoisted)
        body = partial(self._run, self._loss(given.fixed["labels"]))
        return GraphTape.record(body, corners, [*self._calls.parameters.values(), *head])

    def _run(self, loss: Recorded, given: Inputs) -> Found:
        """Call by call."""
        assert given.of_graphs is not None  # it was given
        if not self._layers:
            return self._run_whole(loss, given)
        x, stored = given.rows["x"], dict[str, Tensor]()
        with torch.no_grad():
            reading = self._reader.reading(
                given.of_graphs, x, self._layers, self._model.read_width // len(self._layers)
            )

            def seen(name: str, rows: Tensor) -> None:
                if name in self._layers:
                    reading.take(name, rows)
                else:
                    stored[name] = rows

            pullback = self._calls.run_seen(given.graph, x, given.key, given.hoisted, seen)
            cells, head, by_read = self._headed(loss, reading.read)
            return Found(cells, pullback(lambda name: reading.gradient(name, by_read)), head, stored)

    def _run_whole(self, loss: Recorded, given: Inputs) -> Found:
        """The same with the rows of all layers side by side."""
        assert given.of_graphs is not None  # it was given
        with torch.no_grad():
            outputs, pullback = self._calls.run(given.graph, given.rows["x"], given.key, given.hoisted)
            stored = {name: tensor for name, tensor in outputs.items() if name != "out"}
            read, back = self._reader.run(given.of_graphs, given.rows["x"], outputs["out"])
            del outputs
            cells, head, by_read = self._headed(loss, read)
            found = back(by_read)
            gradients = {} if found is None else pullback(found)
        return Found(cells, gradients, head, stored)

    def _headed(self, loss: Recorded, read: Tensor) -> tuple[Cells, dict[str, Tensor | None], Tensor]:
        """The loss of what was read out, and gradients by the head and by what it reads."""
        kept, noise = _dropped(self._model.drop, read)
        head = self._model.head
        weight = head.weight.detach()
        logits = _linear(kept, weight, head.bias)
        cells, gradient = loss(logits, False)
        by_bias = None if head.bias is None else torch.sum(gradient, 0)
        made: dict[str, Tensor | None] = {"weight": torch.mm(gradient.t(), kept), "bias": by_bias}
        by_read = torch.mm(gradient, weight)
        return cells, made, by_read if noise is None else by_read.mul_(noise)


def _layers_of(model: GraphModel, reader: Reader) -> tuple[str, ...]:
    """Names of the layers where each is read out by itself, the last one "out"; none where they are read otherwise."""
    encoder = model.encoder
    if not isinstance(encoder, Stack) or encoder.jumping != "cat" or not reader.by_calls:
        return ()
    if type(encoder).define is not Stack.define or type(encoder)._describe is not Stack._describe:
        return ()
    return (*(f"layer{index}" for index in range(len(encoder.layers) - 1)), "out")


def has_linear_head(model: GraphModel) -> bool:
    """Whether dropout and head are torch's own, and nothing watches them."""
    head, drop = model.head, model.drop
    return (
        type(head) is nn.Linear
        and head.weight.dtype == torch.float32
        and type(drop) is nn.Dropout
        and not is_hooked(head)
        and not is_hooked(drop)
        and "forward" not in head.__dict__
        and "forward" not in drop.__dict__
        and "weight" in head._parameters
        and all(p is None or p.requires_grad for p in (head.weight, head.bias))
    )


def _dropped(drop: nn.Dropout, read: Tensor) -> tuple[Tensor, Tensor | None]:
    """What dropout leaves, and what it multiplied by, with the draws of torch's own."""
    if not drop.training or not drop.p:
        return read, None
    noise = empty(tuple(read.shape), read.dtype)
    noise.bernoulli_(1 - drop.p)
    noise.div_(1 - drop.p)
    return torch.mul(read, noise), noise


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """As torch's own."""
    return torch.mm(x, weight.t()) if bias is None else torch.addmm(bias.detach(), x, weight.t())


__all__ = ["Found", "GraphStep", "has_linear_head"]
