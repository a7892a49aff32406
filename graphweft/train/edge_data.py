"""Which weights and features of edges a model is trained with, and the one line about those it cannot use.

Comes in: a model, a dataset and the user's choice. Goes out: :class:`EdgeData`, the keywords of every call of the
model. Called by the trainer.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from graphweft._errors import DataWarning
from graphweft.data.dataset import Dataset
from graphweft.nn.edge_model import EdgeModel
from graphweft.nn.edges import EdgeInputs
from graphweft.nn.graph_model import GraphModel
from graphweft.nn.module import CompiledModule
from graphweft.train.options import EDGE_DATA, check_choice

_TAKE = "GCN, SAGE and GIN use edge_weight, GAT with edge_dim uses both"


@dataclass(frozen=True)
class EdgeData:
    """What a model is given of the edges.

    Attributes:
        inputs: The tensors, rows by edge of the graph that is trained on; None for none.
        compiled: Whether the model is one of ``gw.nn``, which takes ``inputs`` as they are.
    """

    inputs: EdgeInputs | None = None
    compiled: bool = True

    @property
    def weight(self) -> Tensor | None:
        """Weights that are used."""
        return None if self.inputs is None else self.inputs.weight

    @property
    def attr(self) -> Tensor | None:
        """Features that are used."""
        return None if self.inputs is None else self.inputs.attr

    def identity(self) -> dict[str, Any]:
        """What is used, for checkpoints."""
        if self.inputs is None:
            return {}
        given = {"edge_weight": self.inputs.weight, "edge_features": self.inputs.attr}
        return {"edge_inputs": [name for name, rows in given.items() if rows is not None]}

    def keywords(self) -> dict[str, Any]:
        """Of a call on the whole graph, or on blocks of it."""
        return self._of(self.inputs)

    def of_subgraph(self, e_id: Tensor) -> dict[str, Any]:
        """Of a call on a graph of the edges ``e_id``."""
        return self._of(None if self.inputs is None else self.inputs.of_subgraph(e_id))

    def of_edges(self, kept: Tensor) -> EdgeData:
        """For training on a graph of the edges ``kept``."""
        if self.inputs is None:
            return self
        found = self.inputs.of_subgraph(kept)
        return EdgeData(EdgeInputs(found.weight, found.attr, fixed=True), self.compiled)

    def with_weight(self, weight: Tensor | None) -> EdgeData:
        """The same choice over weights that were read meanwhile."""
        if self.inputs is None or self.inputs.weight is None:
            return self
        return EdgeData(EdgeInputs(weight, self.inputs.attr, fixed=True), self.compiled)

    def _of(self, inputs: EdgeInputs | None) -> dict[str, Any]:
        if inputs is None:
            return {}
        if self.compiled:
            return {"edge_weight": inputs}
        given = {"edge_weight": inputs.weight, "edge_attr": inputs.attr}
        return {name: rows for name, rows in given.items() if rows is not None}


def edge_data_of(model: nn.Module, ds: Dataset, choice: str = "use") -> EdgeData:
    """What ``model`` can use of the edges of ``ds``; warns of the rest.

    A model of one's own is given the arguments ``edge_weight`` and ``edge_attr`` that its ``forward`` has.

    Raises: ConfigError for another choice than "use" and "ignore".
    """
    check_choice("edge_data", choice, EDGE_DATA)
    if choice == "use" and getattr(ds, "edge_time", None) is not None:
        hint = "; gw.sampling.SegmentSampler(time=ds.edge_time) draws by times in a loop of your own"
        _tell(ds.name, ["edge_time"], "the trainer", hint)
    of_data = {name: getattr(ds, name, None) for name in ("edge_weight", "edge_features")}
    if choice == "ignore" or not any(isinstance(rows, Tensor) for rows in of_data.values()):
        return EdgeData()
    weight, attr = (None if rows is None else rows.detach() for rows in of_data.values())
    compiled = isinstance(model, CompiledModule) and type(model).forward is CompiledModule.forward
    if (isinstance(model, CompiledModule) and compiled) or isinstance(model, GraphModel | EdgeModel):
        weight, attr, width = _fitting(model, weight, attr)
    else:
        known = inspect.signature(model.forward).parameters
        weight, attr = (weight if "edge_weight" in known else None), (attr if "edge_attr" in known else None)
        width = ""
    used = {"edge_weight": weight, "edge_features": attr}
    left = [name for name, rows in of_data.items() if rows is not None and used[name] is None]
    if getattr(model, "pair_dim", 0) and "edge_features" in left:
        left.remove("edge_features")  # the decoder reads them
    if left:
        _tell(ds.name, left, type(model).__name__, width or f"; {_TAKE}")
    if weight is None and attr is None:
        return EdgeData()
    return EdgeData(EdgeInputs(weight, attr, fixed=True), compiled)


def _fitting(
    model: CompiledModule | GraphModel | EdgeModel, weight: Tensor | None, attr: Tensor | None
) -> tuple[Tensor | None, Tensor | None, str]:
    """What a compiled model takes, and a word on the width of features where that is the reason for less."""
    columns = model.edge_columns()
    if not columns:
        return (weight if model.takes_edge_weight else None), None, ""
    first, more = (0 if weight is None else 1), (0 if attr is None else attr.shape[1])
    if columns == first + more:
        return weight, attr, ""
    if columns == more:
        return None, attr, f", whose edge_dim is {columns}; edge_dim={first + more} uses both"
    if columns == first:
        return weight, None, f", whose edge_dim is {columns}; edge_dim={first + more} uses both"
    return None, None, f", whose edge_dim is {columns}; expected {first + more}"


def _tell(dataset: str, left: Sequence[str], model: str, hint: str) -> None:
    text = f"{dataset}: {' and '.join(left)} not used by {model}{hint} (edge_data='ignore' for no warning)"
    warnings.warn(text, DataWarning, stacklevel=4)
