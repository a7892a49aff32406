"""A stack of message-passing layers with what commonly stands between them.

Comes in: a class of layers. Goes out: the shared ``define`` of GCN, SAGE and GIN: dropout on the input of every
layer, then the layer, then, but for the last, residual, norm and ReLU.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, ClassVar

from torch import nn

from graphweft.ir.ops import Op
from graphweft.ir.program import Value
from graphweft.nn.frame import Frame
from graphweft.nn.module import CompiledModule, check_model, make_norm


class Stack(CompiledModule):
    """``num_layers`` layers of the class that ``layer`` names.

    Args:
        in_features: Width of the node features.
        hidden: Width between layers.
        out_features: Width of the result, the number of classes for a classifier.
        num_layers: How many layers.
        dropout: Probability to drop an element of a layer's input in training.
        bias: Whether layers add a learned vector.
        norm: ``"batch"``, ``"layer"`` or None; after every layer but the last.
        residual: Adds a layer's input to its output where the widths agree.
        reduce: How neighbours are combined: ``"sum"``, ``"mean"`` or ``"max"``; None for the model's usual way.
        options: More arguments of every layer.

    Raises: ConfigError for a value out of range.
    """

    layer: ClassVar[Callable[..., CompiledModule]]
    usual_reduce: ClassVar[str] = "sum"

    def __init__(
        self,
        in_features: int,
        hidden: int,
        out_features: int,
        num_layers: int = 2,
        dropout: float = 0.0,
        bias: bool = True,
        norm: str | None = None,
        residual: bool = False,
        reduce: str | None = None,
        **options: Any,
    ) -> None:
        reduce = self.usual_reduce if reduce is None else reduce
        sizes = {"in_features": in_features, "hidden": hidden, "out_features": out_features, "num_layers": num_layers}
        check_model(type(self).__name__, sizes, dropout, reduce)
        super().__init__(in_features)
        self.dropout, self.residual, self.out_features = dropout, residual, out_features
        widths = [in_features, *[hidden] * (num_layers - 1), out_features]
        make = type(self).layer
        self.layers = nn.ModuleList(
            make(a, b, bias=bias, reduce=reduce, **options) for a, b in itertools.pairwise(widths)
        )
        self.norms = nn.ModuleList(n for n in (make_norm(norm, hidden) for _ in range(num_layers - 1)) if n is not None)

    def define(self, frame: Frame, x: Value) -> Value:
        """Layer after layer."""
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, CompiledModule)
            given = x
            x = layer.define(frame, frame.dropout(given, self.dropout))
            if index == last:
                break
            if self.residual and given.tensor.dims == x.tensor.dims and not given.tensor.sparse:
                x = frame.add(Op.ADD, x, given)
            if len(self.norms):
                norm = self.norms[index]
                is_batch = isinstance(norm, nn.BatchNorm1d)
                x = frame.batch_norm(x, norm) if is_batch else frame.layer_norm(x, norm)  # type: ignore[arg-type]
            x = frame.relu(x)
        return x
