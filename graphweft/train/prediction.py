"""Predictions as people take them on: probabilities, and a table of ids, classes and probabilities as a file.

Comes in: a model's outputs and the dataset. Goes out: tensors, columns by name, a CSV or Parquet file that is whole or
not there. Called by the trainer and by loaded runs.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from graphweft import _html
from graphweft._errors import ConfigError, DataError, MissingPackageError
from graphweft.data.dataset import Dataset
from graphweft.data.given import Task
from graphweft.data.readers.files import show
from graphweft.train.atomic import write_atomic
from graphweft.train.target import Target

SUFFIXES = (".csv", ".tsv", ".parquet", ".pq")
_ENDS = ("source", "target")
_USUAL_ID = "node"
_MOST_SHOWN = 10  # rows in a notebook


def probabilities(outputs: Tensor, label_task: str) -> Tensor:
    """Probabilities of the classes, or of each label, from a model's outputs.

    Shape: outputs (n, c) -> (n, c) float32; rows of classes sum to 1.

    Raises: ConfigError for outputs that are values.

    Example:
        >>> import torch
        >>> probabilities(torch.tensor([[0.0, 0.0]]), "classification").tolist()
        [[0.5, 0.5]]
    """
    if label_task == "classification":
        return outputs.softmax(dim=1)
    if label_task == "multilabel":
        return outputs.sigmoid()
    raise ConfigError(f"probabilities: expected classes or labels, got the task {label_task}, which predicts values")


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions of a model for the rows of a dataset.

    Attributes:
        ds: The dataset.
        outputs: (N, C) output of the model: logits, values, or embeddings of links.
        labels: Predicted class ids (N,), bools (N, C) for several labels per node, or values.
        label_task: "classification", "multilabel", "regression", or "link" for embeddings.
        class_names: Names of the classes; empty without names.
    """

    ds: Dataset
    outputs: Tensor
    labels: Tensor
    label_task: str
    class_names: tuple[str, ...] = ()

    @property
    def probabilities(self) -> Tensor:
        """(N, C) probabilities. Raises: ConfigError for values."""
        return probabilities(self.outputs, self.label_task)

    def chosen(self, probabilities: bool) -> Tensor:
        """Probabilities, or else labels. Raises: ConfigError for other than True or False."""
        if not isinstance(probabilities, bool):
            got = type(probabilities).__name__
            remedy = "gw.load_run(folder).predict(ds) takes other data"
            raise ConfigError(f"predict: expected probabilities=True or False, got {got}; {remedy}")
        return self.probabilities if probabilities else self.labels

    @property
    def id_name(self) -> str:
        """The name of the column of ids: as in the table they came from."""
        encoding = self.ds.encoding
        if self.ds.graph_ptr is not None:
            return "graph"
        return _USUAL_ID if encoding is None or encoding.roles.id is None else encoding.roles.id

    def ids(self) -> NDArray[Any]:
        """Ids of the rows of :attr:`outputs`, of a run on pairs those of all nodes."""
        return self._ids()[0]

    def columns(self) -> dict[str, NDArray[Any]]:
        """Columns of the table of predictions: ids, ``prediction``, and ``p_<class>`` for every class or label.

        Where a column of ids has such a name, the other one gets an underscore behind it: ``prediction_``.
        Of a typed graph with one labelled type it has the nodes of that type, with their numbers within it.
        """
        ids, rows = self._ids()
        names = self.class_names or tuple(map(str, range(self.outputs.shape[1])))
        found: dict[str, NDArray[Any]] = {self.id_name: ids}
        if self.ds.edge_label_index is not None:
            roles = None if self.ds.encoding is None else self.ds.encoding.roles
            ends = _ENDS if roles is None else (roles.source or _ENDS[0], roles.target or _ENDS[1])
            found = {name: ids[rows] for name, rows in zip(ends, self.ds.edge_label_index.numpy(), strict=True)}
        return beside(found, self._told(rows, names))

    def _told(self, rows: slice, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        """The columns that the model gives."""
        outputs, labels = self.outputs[rows], self.labels[rows]
        if self.label_task == "link":
            return {f"e_{i}": outputs[:, i].numpy() for i in range(outputs.shape[1])}
        if self.label_task == "regression":
            if labels.dim() == 1 or labels.shape[1] == 1:
                return {"prediction": labels.reshape(-1).numpy()}
            return {f"prediction_{name}": labels[:, i].numpy() for i, name in enumerate(names)}
        chances = probabilities(outputs, self.label_task)
        by_class = {f"p_{name}": chances[:, i].numpy() for i, name in enumerate(names)}
        return {"prediction": self._named(labels, names), **by_class}

    def save(self, path: str | Path) -> Path:
        """Writes :meth:`columns` as ``.csv``, ``.tsv`` or ``.parquet``; an old file is replaced in one step.

        Raises: DataError for another suffix; MissingPackageError for Parquet without pyarrow; OSError.
        """
        return write_columns(Path(path), self.columns())

    def __repr__(self) -> str:
        return f"Predictions({self.ds.name!r}, {self.outputs.shape[0]} rows, {', '.join(self.columns())})"

    def _repr_html_(self) -> str:
        """The first rows of the table, for notebooks."""
        found = self.columns()
        count = len(next(iter(found.values())))
        rows = [[_shown(values[i]) for values in found.values()] for i in range(min(count, _MOST_SHOWN))]
        more = "" if count <= _MOST_SHOWN else f", the first {_MOST_SHOWN}"
        return _html.columns(f"Predictions for {self.ds.name}, {count:,} rows{more}", list(found), rows)

    def _ids(self) -> tuple[NDArray[Any], slice]:
        """Ids of the rows that are told, of pairs those of all nodes, and which rows they are."""
        ds = self.ds
        if ds.graph_ptr is None and ds.target_type is not None and ds.graph.is_typed:
            nodes = ds.graph.layout.node_range(ds.target_type)
            if len(nodes) < ds.num_nodes:
                return np.arange(len(nodes)), slice(nodes.start, nodes.stop)
        every = slice(0, ds.num_rows)
        if ds.graph_ptr is None and ds.node_names:
            return np.array(ds.node_names, dtype=object), every
        if ds.graph_ptr is None and ds.node_ids is not None:
            return ds.node_ids.numpy(), every
        return np.arange(ds.num_rows if ds.edge_label_index is None else ds.num_nodes), every

    def _named(self, labels: Tensor, names: Sequence[str]) -> NDArray[Any]:
        """The predicted class of every row by its name; several labels joined by semicolons."""
        if self.label_task == "multilabel":
            words = np.empty(len(labels), dtype=object)
            words[:] = [";".join(n for n, held in zip(names, row, strict=True) if held) for row in labels.tolist()]
            return words
        encoding = self.ds.encoding
        kind = "integer" if not self.class_names else "text" if encoding is None else encoding.class_kind
        values: NDArray[Any] = np.array(names, dtype=object)
        if kind == "integer":
            values = np.array([int(name) for name in names], dtype=np.int64)
        elif kind == "boolean":
            values = np.array([name == "True" for name in names])
        chosen: NDArray[Any] = values[labels.numpy()]
        return chosen


def beside(ids: dict[str, NDArray[Any]], told: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Both, where no column of one takes the name of a column of the other."""
    found = dict(ids)
    for name, column in told.items():
        while name in ids:
            name += "_"
        found[name] = column
    return found


def _shown(value: Any) -> str:
    """A cell for people to read."""
    return f"{value:.4g}" if isinstance(value, float | np.floating) else str(value)


def label_task(ds: Any) -> Task:
    """What the labels of ``ds`` are, which may be less than a :class:`Dataset`."""
    found: Task = getattr(ds, "task", "classification" if ds.y.dim() == 1 else "multilabel")
    return found


def predictions_of(ds: Dataset, outputs: Tensor, target: Target | None) -> Predictions:
    """What ``outputs`` (N, C) say of the rows of ``ds``; ``target`` None: they are embeddings of links.

    Example:
        >>> import torch
        >>> from graphweft.graph.graph import Graph
        >>> from graphweft.train.target import Classes
        >>> ds = Dataset("pair", Graph([0], [1]), y=[0, 1], node_ids=["ann", "bob"])
        >>> made = predictions_of(ds, torch.tensor([[1.0, 1.0], [0.0, 9.0]]), Classes())
        >>> {name: column.tolist() for name, column in made.columns().items() if name != "p_1"}
        {'node': ['ann', 'bob'], 'prediction': [0, 1], 'p_0': [0.5, 0.00012339458044152707]}
    """
    if target is None:
        return Predictions(ds, outputs, outputs, "link")
    return Predictions(ds, outputs, target.predict(outputs), label_task(ds), getattr(ds, "class_names", ()))


def check_output(path: Path) -> None:
    """``path`` can be a table. Raises: DataError for another suffix."""
    if not path.name.lower().endswith(SUFFIXES):
        raise DataError(f"{show(path)}: expected a file name ending in .csv, .tsv or .parquet, got another")
    if not path.absolute().parent.is_dir():
        folder = show(path.parent)
        raise DataError(f"{show(path)}: expected a folder to write into, got {folder}, which is not a folder")


def write_columns(path: Path, columns: Mapping[str, NDArray[Any]]) -> Path:
    """A table of columns of one length as a file, by its suffix.

    Raises: DataError for another suffix; MissingPackageError for Parquet without pyarrow; OSError.
    """
    check_output(path)
    write = _parquet if path.name.lower().endswith((".parquet", ".pq")) else _text
    write_atomic(path, lambda file: write(file, path, columns))
    return path


def _text(file: BinaryIO, path: Path, columns: Mapping[str, NDArray[Any]]) -> None:
    """CSV: a title line, then a line a row; a float32 is written with the fewest digits that give it back."""
    stream = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.writer(stream, delimiter="\t" if path.suffix == ".tsv" else ",", lineterminator="\n")
    writer.writerow(columns)
    rows = (values.astype(str).tolist() if values.dtype.kind == "f" else values.tolist() for values in columns.values())
    writer.writerows(zip(*rows, strict=True))
    stream.flush()
    stream.detach()  # the file is the caller's to close


def _parquet(file: BinaryIO, path: Path, columns: Mapping[str, NDArray[Any]]) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingPackageError(
            f"{show(path)}: writing Parquet needs pyarrow (pip install graphweft[tables]); .csv needs nothing"
        ) from None
    arrays = {name: values.tolist() if values.dtype.kind == "O" else values for name, values in columns.items()}
    parquet.write_table(pyarrow.table(arrays), file)
