"""A run from its folder: the trained model, its predictions and scores, on its own data or on others.

Comes in: the folder that ``graphweft train`` or a trainer wrote. Goes out: a :class:`Run`. Called by users as
``gw.load_run`` and by the commands ``predict`` and ``evaluate``.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from graphweft import _html
from graphweft._errors import ConfigError, DataError, DataWarning
from graphweft.cost import CostModel
from graphweft.data.dataset import Dataset
from graphweft.data.graph_dataset import GraphDataset
from graphweft.data.load import load
from graphweft.data.stored import StoredDataset
from graphweft.graph.graph import Graph
from graphweft.nn.module import CompiledModule
from graphweft.run import complete, load_dataset, make_trainer, ready
from graphweft.storage.store import Store
from graphweft.train.chosen import judged_by
from graphweft.train.description import Description, make_model
from graphweft.train.edge_data import edge_data_of
from graphweft.train.edge_task import edge_outputs
from graphweft.train.finished import history_of, of_state
from graphweft.train.full_batch import SPLITS, features_of
from graphweft.train.graph_task import graph_outputs
from graphweft.train.history import History
from graphweft.train.link_task import HITS_AT
from graphweft.train.loop_options import LINK_RULES, LOSSES, METRICS, SCHEDULES
from graphweft.train.named_metrics import measured, metrics_of
from graphweft.train.options import EMBEDDING_TASKS, OPTIMIZERS, STOP_ON, USUAL_GRAPHS, check_choice
from graphweft.train.prediction import Predictions, predictions_of
from graphweft.train.same_run import INPUTS, data_checksum
from graphweft.train.scores import shown
from graphweft.train.spec import TrainSpec
from graphweft.train.target import Scored, target_of
from graphweft.train.trainer import Trainer

_PARTS = (*SPLITS, "all")
_KEPT = (
    *("label_smoothing", "class_weight", "warmup", "clip", "clip_value", "ema", "eval_every", "precision"),
    "accumulate",
)
_RULES = (*STOP_ON, *LINK_RULES)
_DECIDING = ("optimizer", "loss", "scheduler", "best")  # which may be objects of the program's


class Run:
    """A finished or interrupted run.

    Attributes:
        folder: Folder of the run.
        model: The model in evaluation mode, with the weights of the best validation epoch (of the last epoch without
            validation nodes).
        history: The history of its epochs.
        options: The options of the run, by name.
        metric: Name of the score.
        class_names: Names of the classes, if the data have them.
        encoding: The encoding of tables as features; None for other data.
        spec: The spec of a run of the command; None for a run of a :class:`Trainer`.
    """

    def __init__(
        self, folder: Path, state: dict[str, Any], description: Description, model: nn.Module, spec: TrainSpec | None
    ) -> None:
        self.folder, self.model, self.spec = folder, model, spec
        self.options: dict[str, Any] = state["config"]
        self.history = history_of(state, description)
        self.metric, self.class_names, self.encoding = description.metric, description.class_names, description.encoding
        self._state, self._description = state, description
        self._given: Dataset | None = None

    @cached_property
    def _own(self) -> Dataset:
        return self.dataset()

    def dataset(self) -> Dataset:
        """Reads the data that the run was trained on.

        Raises: DataError for a run of a :class:`Trainer`, whose data only its program has, and for data that no longer
        exist.
        """
        if self._given is not None:
            return self._given
        if self.spec is None:
            raise DataError(
                f"{self.folder}: expected the dataset, since the run was trained by a program: "
                f"gw.load_run(folder, ds=ds), got none"
            )
        return load_dataset(self._found())

    def _found(self) -> TrainSpec:
        """The spec with files that are named from the folder in which the run was started."""
        assert self.spec is not None
        base = self._state["options"].get("started_in")
        if base is None:
            return self.spec
        moved: dict[str, Any] = {}
        for name in ("data", "nodes", "edges", "root"):
            file = getattr(self.spec, name)
            if file is not None and not Path(file).exists() and (Path(base) / file).exists():
                moved[name] = str(Path(base) / file)
        return replace(self.spec, **moved)

    @cached_property
    def trainer(self) -> Trainer:
        """A trainer with :attr:`model` and the run's data, in the state of the last epoch. It writes no files.

        Raises: DataError if the data no longer exist, or differ from the data that the run was trained on.
        """
        ds = self._own
        state = self._state
        with _told_already():
            if self.spec is not None:
                still: dict[str, Any] = {"out": None, "progress": False, "trace": None, "loggers": ()}
                config = {**self.spec.identity(), INPUTS: None}  # asks for their mark
                trainer = make_trainer(self.spec, ds, self.model, **still, config=config)
            else:
                trainer, state = _plain_trainer(self.model, ds, state, self._description.task)
        others = len({self.options.get(INPUTS), trainer.state_dict()["config"].get(INPUTS)} - {None}) > 1
        # tables were encoded by their own means and categories just now, not by those of the run
        if data_checksum(trainer.ds) != self.options["data_checksum"] or (others and self.encoding is not None):
            raise DataError(
                f"{ds.name}: expected the data that the run in {self.folder} was trained on, got others; "
                "predict(ds) and evaluate(split, ds) take a dataset (--data, or --nodes and --edges)"
            )
        if others:
            warnings.warn(
                f"{ds.name}: features or edges are others than those that the run in {self.folder} was trained on",
                DataWarning,
                stacklevel=3,
            )
        trainer.load_state_dict(state)
        trainer.prepare()
        return trainer

    def tables(self, nodes: Any = None, edges: Any = None) -> Dataset:
        """A dataset of other tables with the same columns, encoded as the tables of the run.

        Raises: DataError for a run that was not trained on tables, or for other columns.
        """
        if self.encoding is None:
            raise DataError(f"nodes: expected a run that was trained on tables, got one on {self._description.dataset}")
        return self._ready(Dataset.from_tables(nodes, edges, encoding=self.encoding))

    def load(self, name_or_path: str | os.PathLike[str], root: str | os.PathLike[str] | None = None) -> Dataset:
        """Loads another dataset by name or path and prepares it as the data of the run. Raises: DataError,
        DownloadError.
        """
        return self._ready(load(name_or_path, root=root, seed=0 if self.spec is None else self.spec.seed))

    def _ready(self, ds: Dataset) -> Dataset:
        return ds if self.spec is None else ready(self.spec, ds)

    def predict(self, ds: Dataset | None = None, probabilities: bool = False) -> Tensor:
        """Predicts classes, labels, values or probabilities of the nodes of ``ds``, as :meth:`Trainer.predict`.

        Args:
            ds: Data with the same features; None: the data of the run.
            probabilities: Whether to return probabilities of the classes or labels.

        Raises: DataError for other features.
        """
        found = self.predictions(ds)
        return found.chosen(probabilities)

    def predictions(self, ds: Dataset | None = None) -> Predictions:
        """The result of :meth:`predict` with ids, probabilities and ``save("predictions.csv")``."""
        if ds is None:
            found = self.trainer.predictions()
            return replace(found, class_names=found.class_names or self.class_names)
        if not hasattr(ds, "num_classes"):
            remedy = "predict()[ids] are those of some nodes"
            if isinstance(ds, Graph):
                remedy = "gw.Dataset(name, graph, x) makes one of it"
            raise ConfigError(
                f"predict: expected a dataset, or none for the run's own, got {type(ds).__name__}; {remedy}"
            )
        target = None if self._description.task in EMBEDDING_TASKS else target_of(self._alike(ds))
        return predictions_of(self._alike(ds), self.outputs(ds), target)

    def outputs(self, ds: Dataset) -> Tensor:
        """The output of the model for ``ds``, (N, C). Raises: DataError for other features."""
        made = self.model.features(ds.graph, ds.x) if isinstance(self.model, CompiledModule) else ds.x
        x = features_of(ds) if made is None else made
        width = self._description.num_features
        if ds.num_features != width and width:
            more = ""
            if self.model_class == "NodeEmbedding":
                more = "; the run has learned a row for every node, so it cannot be used on another graph"
            raise DataError(f"{ds.name}: expected {width} features as the run has, got {ds.num_features}{more}")
        with _told_already():
            edges = edge_data_of(self.model, ds, "use" if self.spec is None else self.spec.edge_data)
        if isinstance(ds, GraphDataset) and self._description.task not in EMBEDDING_TASKS:
            given = replace(ds, x=x, edge_weight=edges.weight, edge_features=edges.attr)
            return graph_outputs(self.model, given, USUAL_GRAPHS, self._description.num_classes)
        if ds.edge_label_index is not None and self._description.task not in EMBEDDING_TASKS:
            return edge_outputs(self.model, ds, x, edges.keywords())
        self.model.eval()
        with torch.no_grad():
            out: Tensor = self.model(ds.graph, x, **edges.keywords())
        return out

    @property
    def model_class(self) -> str:
        """Name of the model's class."""
        return self._description.model_class

    def _alike(self, ds: Dataset) -> Dataset:
        """``ds`` with the task and the classes of the run, where it has no labels that say otherwise."""
        told = self._description
        if ds.num_classes == 0 and told.task not in EMBEDDING_TASKS:
            shape = (ds.num_rows,) if told.num_classes == 1 else (ds.num_rows, told.num_classes)
            y = ds.y if told.label_task == "classification" else torch.full(shape, torch.nan)
            ds = replace(ds, y=y, num_classes=told.num_classes, task=told.label_task)
        if told.task not in EMBEDDING_TASKS and (ds.num_classes > told.num_classes or ds.task != told.label_task):
            raise DataError(
                f"{ds.name}: expected {told.label_task} with {told.num_classes} classes as the run has, "
                f"got {ds.task} with {ds.num_classes}"
            )
        return replace(ds, num_classes=told.num_classes, class_names=ds.class_names or told.class_names)

    def evaluate(self, split: str = "test", ds: Dataset | None = None) -> float:
        """The score (:attr:`metric`) on one part of the data of the run, or of ``ds``.

        Args:
            split: "train", "val", "test", or "all" for every labelled row.
            ds: Other data with labels.

        Raises: ConfigError for another split; DataError for a split without labels.
        """
        return float(self.scores(split, ds)[self.metric])

    def scores(self, split: str = "test", ds: Dataset | None = None) -> dict[str, float]:
        """The score under its name, the loss and all further scores on one part; see :meth:`evaluate`."""
        check_choice("split", split, _PARTS)
        if self._description.task in EMBEDDING_TASKS:
            if split == "all" or ds is not None:
                raise ConfigError("split: expected train, val or test of the run's own edges for the task link")
            named = self.trainer.scores(split)
            return {f"hits@{HITS_AT}" if name == "hits" else name: value for name, value in named.items()}
        data = self._own if ds is None else self._alike(ds)
        rows = _rows(data, split)
        if rows.numel() == 0:
            held = ", ".join(f"{part} {_rows(data, part).numel()}" for part in _PARTS)
            raise DataError(f"{data.name}: expected nodes with a label in the {split} split, got none ({held})")
        outputs = self.trainer.predictions().outputs if ds is None else self.outputs(ds)
        if isinstance(data, StoredDataset):  # whose labels are those of the splits
            outputs = outputs[data.source_order()[data.row_ids]]
        target = target_of(data)
        found: Scored = target.score(outputs, data.y, rows)
        numbers = {self.metric: found.score, "loss": found.loss, **found.details}
        asked = metrics_of(self._asked(), data.task)
        for name, value in measured(asked, split, target.aligned(outputs[rows]), data.y[rows]).items():
            numbers.setdefault(name.removeprefix(f"{split}_"), value)
        return {name: value for name, value in numbers.items() if value is not None}

    def _asked(self) -> list[str]:
        """Known metrics that the run measured beside its score, and that are not shown anyway."""
        last = self.history.last
        measured_then = () if last is None else (name.removeprefix("test_") for name in last.metrics)
        anyway = {"accuracy", "mae", "rmse", "r2"} | ({"roc_auc"} if self._description.num_classes == 2 else set())
        return [name for name in measured_then if name in METRICS and name not in anyway]

    def __repr__(self) -> str:
        best = self.history.best or self.history.last
        score = None if best is None else best.score("val") if self.history.best is not None else None
        told = "" if best is None or score is None else f", best epoch {best.epoch}: val {shown(score, self.metric)}"
        test = None if best is None else best.score("test")
        told += "" if test is None else f", test {shown(test, self.metric)}"
        data = self._description.dataset
        return f"Run({str(self.folder)!r}, {self.model_class} on {data}, {len(self.history)} epochs{told})"

    def _repr_html_(self) -> str:
        """For notebooks."""
        facts = [("folder", self.folder), ("model", self.model_class), ("data", self._description.dataset)]
        facts += [("task", self._description.task), ("epochs", len(self.history))]
        best = self.history.best
        if best is not None:
            facts.append(("best epoch", best.epoch))
            scores = ((part, best.score(part)) for part in SPLITS)
            facts += [(f"{part} {self.metric}", shown(v, self.metric)) for part, v in scores if v is not None]
        return _html.facts("Run", facts)


def load_run(folder: str | os.PathLike[str], model: nn.Module | None = None, ds: Dataset | Store | None = None) -> Run:
    """Loads the run in ``folder``, with the weights of its best epoch.

    Args:
        folder: The folder of ``--out`` of ``graphweft train``, or of ``out`` of a :class:`Trainer`.
        model: A module like the trained one, if it is not a model of ``gw.nn``.
        ds: The data that it was trained on, for a run of a :class:`Trainer`.

    Raises: CheckpointError for a folder without a run, or with a damaged one; ConfigError for a missing model, or one
    that does not fit.

    Example:
        >>> import tempfile
        >>> from graphweft.data.synthetic import synthetic
        >>> from graphweft.nn.gcn import GCN
        >>> ds, folder = synthetic("cora", scale=0.1), tempfile.mkdtemp()
        >>> trainer = Trainer(GCN(ds.num_features, 8, ds.num_classes), ds, out=folder)
        >>> _ = trainer.fit(epochs=3)
        >>> bool((load_run(folder, ds=ds).predict() == trainer.predict()).all())
        True
    """
    path = Path(folder)
    state, description = of_state(path)
    if model is None:
        if description.model is None:
            raise ConfigError(
                f"model: expected the {description.model_class} that {path} holds weights of, as in "
                "gw.load_run(folder, model=...), got none"
            )
        model = make_model(description.model, "cpu")
    try:
        model.load_state_dict(state["best_model"])
    except RuntimeError as failure:
        text = " ".join(str(failure).split())[:200]
        raise ConfigError(f"model: expected one with the parameters that {path} holds, got {text}") from None
    if state["cost_seconds"] and isinstance(model, CompiledModule):
        model.function.settle(CostModel.from_json(state["cost_seconds"]))
    spec = complete({"out": str(path), "resume": True}) if "data" in state["config"] else None
    run = Run(path, state, description, model.eval(), spec)
    run._given = StoredDataset(ds) if isinstance(ds, Store) else ds
    return run


@contextmanager
def _told_already() -> Iterator[None]:
    """Without the warnings that training gave."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        yield


def _plain_trainer(model: nn.Module, ds: Dataset, state: dict[str, Any], task: str) -> tuple[Trainer, dict[str, Any]]:
    """A trainer as the one of a program, and the state that it can take up.

    An optimizer object, a loss, a scheduler or a sampler of the program's own is not made again: predictions do
    without, and ``fit`` names what is missing.
    """
    options = state["config"]
    given = {name: options[name] for name in ("lr", "mode", "weight_decay", "weight_decay_on", "seed", "stop_on")}
    if options.get("drawn") == "graphs":
        given |= {"batch_size": options["batch_size"]}
    elif isinstance(options.get("drawn"), list):
        given |= {"fanouts": options["drawn"], "batch_size": options["batch_size"]}
        given |= {"macro": f"parts:{options['group']}"} if "group" in options else {}
    elif str(options.get("drawn")).startswith("ShadowSampler"):
        raise ConfigError("run: expected predictions of a whole graph, predict(ds), for a run with a ShadowSampler")
    if options["optimizer"] in OPTIMIZERS:
        given["optimizer"] = options["optimizer"]
    trainer = Trainer(model, ds, task=task, **given, **_choices(options))
    trainer.history = History(**judged_by(options))
    made = trainer.state_dict()["config"]
    trainer.lacks = tuple(name for name in _DECIDING if options.get(name) != made.get(name))
    mine = trainer.state_dict()
    keep = () if options["optimizer"] in OPTIMIZERS else ("optimizer",)
    drawn_alike = options.get("drawn") == "graphs" or isinstance(options.get("drawn"), list)
    keep = keep if drawn_alike and "group" not in options else (*keep, "mini_batch")
    return trainer, {**state, "callbacks": [], **{name: mine[name] for name in keep if name in mine}}


def _choices(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a program's run that a checkpoint has as they were given."""
    given = {name: options[name] for name in _KEPT if name in options}
    if options.get("loss") in LOSSES:
        given["loss"] = options["loss"]
    if str(options.get("scheduler")).partition(":")[0] in SCHEDULES:
        given["scheduler"] = options["scheduler"]
    named = [name for name in str(options.get("metrics", "")).split(",") if _is_known(name)]
    rule = options.get("best")
    return {**given, "metrics": named, **({"best": rule} if _is_known(rule) or rule in _RULES else {})}


def _is_known(metric: Any) -> bool:
    """Whether a metric is one of ours by its name."""
    return metric in METRICS or str(metric).startswith("hits@")


def _rows(ds: Dataset, split: str) -> Tensor:
    """Rows with a label of one part, or of all."""
    if split != "all":
        return ds.labelled(split)  # type: ignore[arg-type]
    if isinstance(ds, StoredDataset):
        known: Tensor = torch.unique(torch.cat([ds.labelled(part) for part in SPLITS]), sorted=True)
        return known
    every = replace(ds, train_idx=torch.arange(ds.num_rows), val_idx=ds.val_idx[:0], test_idx=ds.test_idx[:0])
    return every.labelled("train")


__all__ = ["Run", "load_run"]
