"""Embeddings learned without labels: models that bring their own loss, such as GAE, VGAE, DGI and Node2Vec.

Comes in: such a model, an optimiser, the data. Goes out: the mean loss of an epoch, and scores of the embeddings.
Called by the trainer in the place of :class:`MiniBatch`, whose epochs, states and resumes it has. Auto-encoders, and
all models where there are no classes, hold edges out and are scored by them; the others by a linear classifier.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from graphweft._errors import ConfigError, DataError
from graphweft.data.dataset import Dataset, Part
from graphweft.data.link_split import LinkSplit, split_links
from graphweft.nn.dgi import DGI
from graphweft.nn.gae import GAE, VGAE
from graphweft.nn.node2vec import Node2Vec
from graphweft.sample.negative import NegativeSampler
from graphweft.train.batch_gradients import PlaceLoader
from graphweft.train.edge_data import EdgeData
from graphweft.train.link_task import LinkTask
from graphweft.train.metrics import Evaluation
from graphweft.train.model_input import opened
from graphweft.train.node_batches import Tables
from graphweft.train.options import UNSUPERVISED
from graphweft.train.probe import probe
from graphweft.train.setup import Setup

OWN_LOSS = (GAE, DGI, Node2Vec)
_NAMED: dict[str, type[nn.Module]] = {"gae": GAE, "vgae": VGAE, "dgi": DGI, "node2vec": Node2Vec}


def for_loss(model: Any, task: Any, mode: Any, ds: Any) -> tuple[Any, Any, Any]:
    """Task, mode and opened dataset, those of embeddings where the model brings the loss that it learns by.

    Raises: ConfigError for a model without a loss of its own, or another mode.
    """
    mode, ds = opened(mode, ds)
    if task not in UNSUPERVISED and not (task == "nodes" and isinstance(model, OWN_LOSS)):
        return task, mode, ds
    if not callable(getattr(model, "loss", None)):
        known = "gw.nn.GAE, VGAE, DGI, Node2Vec, or a module with loss(graph, x)"
        raise ConfigError(f"Trainer: expected {known} for task {task}, got {type(model).__name__}")
    if task in _NAMED and type(model) is not _NAMED[task]:
        raise ConfigError(f"Trainer: expected {_NAMED[task].__name__} for task {task}, got {type(model).__name__}")
    if mode == "macro":
        raise ConfigError("mode=macro cannot be combined with a model that learns without labels; use mode='full'")
    if isinstance(model, Node2Vec) and isinstance(ds, Dataset):
        if model.graph.num_nodes != ds.num_nodes:
            raise DataError(
                f"{ds.name}: expected the {model.graph.num_nodes} nodes of the model's graph, got {ds.num_nodes}"
            )
        if ds.x is None:
            ds = replace(ds, x=torch.zeros(ds.num_nodes, 1))  # which nothing reads
    return "unsupervised", "mini", ds


class EmbeddingTask(LinkTask):
    """Trains ``model`` by its own loss, on the whole graph in every step, Node2Vec on ``batch_size`` nodes.

    Where edges are held out a Node2Vec walks on the others. Scores are then those of :class:`LinkTask`, with classes
    besides the accuracy of a linear classifier, ``val_probe`` and ``test_probe``; else that accuracy is the score.

    Raises: ConfigError for metrics where nothing is held out; DataError for a graph without edges to hold out.
    """

    seeds_are = "nodes"

    def _set_up(self, setup: Setup) -> None:
        model, ds, seed = setup.model, setup.ds, setup.seed
        self._rows = _classes_of(ds)
        self.holds_out = isinstance(model, GAE) or self._rows is None
        graph = ds.graph
        self.split: LinkSplit = split_links(ds.graph, seed=seed)
        if self.holds_out:
            if self.split.val.shape[1] == 0 or self.split.test.shape[1] == 0:
                raise DataError(f"{ds.name}: expected enough edges to hold some out, got {ds.num_edges}")
            graph = self.split.graph
        elif setup.metrics:
            raise ConfigError(
                f"metrics={setup.metrics[0].name} cannot be combined with {type(model).__name__}, scored by its "
                "embeddings"
            )
        if isinstance(model, Node2Vec):
            model.graph = graph  # walks take no edge that is held out
        self._tables = Tables(graph, setup.x, ds.y, ds.train_idx)
        self.fanouts = ()
        whole = not isinstance(model, Node2Vec)
        # steps of an epoch: one, or so many as it takes to pass all nodes
        self.loader: Any = PlaceLoader(*((1, 1) if whole else (ds.num_nodes, self.drawn.batch_size)), True, seed)
        self._takes_seed = "seed" in inspect.signature(model.loss).parameters  # type: ignore[arg-type]
        self._score_pairs(setup)
        self._negative = NegativeSampler(self.split.known)

    def made_of(self) -> str:
        """The whole graph, of walks some nodes."""
        return super().made_of() if isinstance(self.model, Node2Vec) else "a step reads the whole graph"

    @property
    def metric(self) -> str:
        """What the scores are."""
        return "ROC AUC" if self.holds_out else "accuracy"

    def use(self, edge_data: EdgeData) -> None:
        """Losses of embeddings read no values of edges."""
        self.edge_data = EdgeData()

    def logits(self) -> Tensor:
        """The embeddings, (N, C), in evaluation mode."""
        self.model.eval()
        with torch.no_grad():
            out: Tensor = self.model() if isinstance(self.model, Node2Vec) else self.model(self._tables.graph, self.x)
        return out.detach()

    def evaluate(self) -> Evaluation:
        """Scores of held-out edges, or of a linear classifier."""
        if self.holds_out:
            found = super().evaluate()
            return replace(found, metrics={**found.metrics, **self._probed()}) if self._rows is not None else found
        scores = self._probed()
        parts: dict[Part, float | None] = {"train": None, "val": scores["val_probe"], "test": scores["test_probe"]}
        return Evaluation(parts, None, {}, {})

    def identity(self) -> dict[str, Any]:
        """What decides the steps, for checkpoints."""
        return {"drawn": "all", "batch_size": self.loader.batch_size, "task": "unsupervised"}

    def _probed(self) -> dict[str, float | None]:
        """The accuracy of a linear classifier, by split."""
        assert self._rows is not None  # as was asked for
        found = probe(self.logits(), self.ds.y, self._rows["train"], {p: self._rows[p] for p in ("val", "test")})
        return {f"{part}_probe": found.get(part) for part in ("val", "test")}

    def _gradients(self, batch: Any, weight: int = 1) -> Tensor:
        """Adds the gradients of the model's own loss to those that are there; that loss, shape ()."""
        own: Any = self.model
        drawn = int(torch.randint(2**62, ()))  # which the trainer keys by epoch and step
        if isinstance(own, Node2Vec):
            loss: Tensor = own.loss(batch.input_id, seed=drawn)
        else:
            loss = own.loss(self._tables.graph, self.x, **({"seed": drawn} if self._takes_seed else {}))
        (loss if weight == 1 else loss * weight).backward()  # type: ignore[no-untyped-call]
        return loss.detach()


def _classes_of(ds: Dataset) -> dict[Part, Tensor] | None:
    """Labelled rows by part; None without classes of nodes to fit a classifier to and to score it by."""
    if ds.num_classes < 2 or ds.task != "classification" or not ds.has_node_rows:
        return None
    parts: tuple[Part, ...] = ("train", "val", "test")
    rows = {part: ds.labelled(part) for part in parts}
    return rows if rows["train"].numel() and (rows["val"].numel() or rows["test"].numel()) else None
