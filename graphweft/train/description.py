"""What a run is, beside its numbers: how its model was made, what its predictions mean, how its tables were encoded.

Comes in: a model and a dataset. Goes out: one JSON text that lies in every checkpoint, and the way back to a model.
Called by the trainer when it saves and by ``load_run``.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from graphweft import nn as models
from graphweft._errors import CheckpointError
from graphweft.data.given import Task
from graphweft.data.table_encoding import TableEncoding
from graphweft.graph.derived import derived
from graphweft.graph.graph import Graph
from graphweft.nn.dgi import mean_summary
from graphweft.nn.made_with import KeepsArguments
from graphweft.nn.node_embedding import NodeEmbedding
from graphweft.nn.settings import settings_of
from graphweft.train.prediction import label_task

_WALKS = ("walk_length", "context_size", "walks_per_node", "negatives", "p", "q")
_AROUND = (models.GAE, models.VGAE, models.DGI)  # whose encoder says the rest


@dataclass(frozen=True)
class Description:
    """What a checkpoint says of its run.

    Attributes:
        model: How the model is constructed; None for one that only its own code can make.
        model_class: Name of its class.
        dataset: Name of the dataset.
        task: "nodes", "link", "unsupervised" or another one.
        label_task: What the labels are: "classification", "multilabel" or "regression".
        num_features: Columns of the features.
        num_classes: Width of the output.
        class_names: Names of the classes, where the source has them.
        metric: The score.
        encoding: How tables became the data; None for other data.
    """

    model: dict[str, Any] | None
    model_class: str
    dataset: str
    task: str
    label_task: Task
    num_features: int
    num_classes: int
    class_names: tuple[str, ...]
    metric: str
    encoding: TableEncoding | None

    def to_json(self) -> str:
        """One line."""
        encoding = None if self.encoding is None else self.encoding.to_dict()
        return json.dumps({**self.__dict__, "encoding": encoding})

    @classmethod
    def from_json(cls, text: str) -> Description:
        """The inverse of :meth:`to_json`. Raises: CheckpointError for another text."""
        try:
            state = json.loads(text)
            encoding = None if state["encoding"] is None else TableEncoding.from_dict(state["encoding"])
            return cls(**{**state, "class_names": tuple(state["class_names"]), "encoding": encoding})
        except (TypeError, KeyError, ValueError) as failure:
            raise CheckpointError(f"checkpoint: expected a description of the run, got {failure}") from None


def describe(model: nn.Module, ds: Any, task: str, metric: str) -> Description:
    """The description of a run that trains ``model`` on ``ds``, a :class:`Dataset` or what has the parts that train."""
    return Description(
        model=how_made(model),
        model_class=type(model).__name__,
        dataset=str(ds.name),
        task=task,
        label_task=label_task(ds),
        num_features=int(getattr(ds, "num_features", 0)),
        num_classes=ds.num_classes,
        class_names=tuple(getattr(ds, "class_names", ())),
        metric=metric,
        encoding=getattr(ds, "encoding", None),
    )


def how_made(model: nn.Module) -> dict[str, Any] | None:
    """The constructor's arguments of a model of ``gw.nn``.

    None for other models, and for one whose attributes or layers are no longer those that its constructor gives.

    Example:
        >>> how_made(models.SAGE(4, 8, 2, dropout=0.5))
        {'class': 'SAGE', 'args': [4, 8, 2], 'kwargs': {'dropout': 0.5}}
    """
    return derived(model, _how_made, settings_of(model))


def _how_made(model: nn.Module, settings: Hashable) -> dict[str, Any] | None:
    if type(model) is NodeEmbedding:
        inner = how_made(model.model)
        sizes = {"num_nodes": model.rows.num_embeddings, "width": model.rows.embedding_dim}
        return None if inner is None else {"class": "NodeEmbedding", "model": inner, **sizes}
    if type(model) is models.Node2Vec:
        sizes = {name: getattr(model, name) for name in _WALKS}
        given = {"width": model.rows.embedding_dim, "sparse": model.rows.sparse, **sizes}
        return {"class": "Node2Vec", "num_nodes": model.rows.num_embeddings, "kwargs": given}
    if isinstance(model, _AROUND) and type(model) in _AROUND:
        inner = how_made(model.encoder)
        own: dict[str, Any] = {"class": type(model).__name__, "encoder": inner}
        if isinstance(model, models.DGI):
            own["width"] = model.weight.shape[0]
            inner = inner if model.summary is mean_summary else None
        return None if inner is None else own
    name = type(model).__name__
    made = model.made_with if isinstance(model, KeepsArguments) else None
    if made is None or getattr(models, name, None) is not type(model):
        return None
    found = {"class": name, "args": list(made[0]), "kwargs": dict(made[1])}
    return found if _bare(make_model(found)) == _bare(model) else None


def make_model(made: dict[str, Any], device: str = "meta") -> nn.Module:
    """A model with the arguments that :func:`how_made` gave; its weights are to be loaded."""
    if made["class"] == "NodeEmbedding":
        inner = make_model(made["model"], device)
        with torch.device(device), torch.random.fork_rng(devices=[]):
            return NodeEmbedding(made["num_nodes"], inner, made["width"])
    kind = getattr(models, made["class"])
    if made["class"] == "Node2Vec":
        with torch.device(device), torch.random.fork_rng(devices=[]):
            without = Graph.from_csc(torch.zeros(made["num_nodes"] + 1, dtype=torch.int64, device="cpu"), [])
            walked: nn.Module = kind(without, **made["kwargs"])  # a trainer gives it the graph
            return walked
    if "encoder" in made:
        encoder = make_model(made["encoder"], device)
        with torch.device(device), torch.random.fork_rng(devices=[]):
            around: nn.Module = kind(encoder, **({"width": made["width"]} if "width" in made else {}))
            return around
    with torch.device(device), torch.random.fork_rng(devices=[]):
        model: nn.Module = kind(*made["args"], **made["kwargs"])
        return model


def _bare(model: nn.Module) -> list[Hashable]:
    """The settings of a model, whatever its modes and the values of its tensors."""
    return [
        tuple(part for part in parts if not (isinstance(part, tuple) and part and part[0] in ("training", "numbers")))
        for parts in settings_of(model)  # type: ignore[attr-defined]
    ]
