"""Metrics that are recorded beside the score: by name, as a function, or as an object that collects batches.

Comes in: outputs and labels of one split. Goes out: numbers by column, such as ``val_f1_macro``. Called by evaluations.
Definitions are those of scikit-learn; what is not defined on a split (no row, one class alone) is None.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graphweft._errors import ConfigError, UserCodeError
from graphweft._pieces import mean, total
from graphweft.train import link_metrics
from graphweft.train.loop_options import LINK_RULES, METRICS, ranks_of
from graphweft.train.metrics import accuracy, f1
from graphweft.train.metrics import micro_f1 as f1_of_entries
from graphweft.train.option_table import split_names
from graphweft.train.options import check_choice
from graphweft.train.record import COLUMNS

Measure = Callable[[Tensor, Tensor], float | None]
KINDS = ("classification", "multilabel", "regression", "link")
_LOWER = ("mae", "rmse")


class Metric(NamedTuple):
    """One metric.

    Attributes:
        name: Its columns are ``train_<name>``, ``val_<name>`` and ``test_<name>``.
        measure: A number from outputs and labels of some rows, outputs in the form of the labels (classes: logits).
        higher: Whether higher is better.
    """

    name: str
    measure: Measure
    higher: bool


def metrics_of(given: Any, kind: str) -> tuple[Metric, ...]:
    """What the user asked for, for labels of one of :data:`KINDS`.

    ``given``: names, functions ``(outputs, labels) -> number``, objects with ``update``, ``compute`` and ``reset`` as
    those of ``torchmetrics``, one or several, or a dict of them by name. A function or object whose attribute
    ``higher_is_better`` is False is better where it is lower.

    Raises: ConfigError.
    """
    if isinstance(given, str):
        given = split_names(given)
    if isinstance(given, Mapping):
        pairs = [(str(name), one) for name, one in given.items()]
    else:
        several = given if isinstance(given, Sequence) else () if given is None else (given,)
        pairs = [(_name_of(one), one) for one in several]
    found = tuple(_metric(name, one, kind) for name, one in pairs)
    names = [one.name for one in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"metrics: expected different names, got {name} twice; a dict gives them names")
    return found


def measured(metrics: Sequence[Metric], part: str, outputs: Tensor, labels: Tensor) -> dict[str, float | None]:
    """The metrics of one split by column; None on a split without rows."""
    if labels.shape[0] == 0:
        return {f"{part}_{one.name}": None for one in metrics}
    with torch.no_grad():
        return {f"{part}_{one.name}": one.measure(outputs, labels) for one in metrics}


def _name_of(given: Any) -> str:
    """What the columns of a metric without a name of its own are called. Raises: ConfigError."""
    if isinstance(given, str):
        return given
    name = str(getattr(given, "__name__", type(given).__name__))
    if not name.isidentifier():
        raise ConfigError(f"metrics: expected a name for {name}, as in metrics={{'mine': function}}")
    return name


def _metric(name: str, given: Any, kind: str) -> Metric:
    if f"val_{name}" in COLUMNS and given != name:
        raise ConfigError(f"metrics: expected another name than {name}, which the history has; a dict gives it one")
    if isinstance(given, str):
        if kind == "link" and ranks_of(given):
            return Metric(name, _of_pairs(functools.partial(link_metrics.hits_at, ranks_of(given))), True)
        more = ("hits@K",) if kind == "link" else ()
        if given not in (*LINK_RULES, given if ranks_of(given) else None):
            check_choice("metrics", given, (*METRICS, *more))
        if given not in _BY_KIND[kind]:
            known = ", ".join((*_BY_KIND[kind], *more))
            raise ConfigError(f"metrics: expected one of {known} for {_SAID[kind]}, got {given!r}")
        return Metric(name, _BY_KIND[kind][given], given not in _LOWER)
    if isinstance(given, type) or not (callable(given) or _collects(given)):
        raise ConfigError(
            f"metrics: expected names, functions (outputs, labels) -> number, or objects with update, compute and "
            f"reset, got {'the class ' + given.__name__ if isinstance(given, type) else type(given).__name__}"
        )
    return Metric(name, _users(name, given), getattr(given, "higher_is_better", True) is not False)


def _collects(given: Any) -> bool:
    """Whether it has the methods of a metric of ``torchmetrics``."""
    return all(callable(getattr(given, method, None)) for method in ("update", "compute", "reset"))


def _users(name: str, given: Any) -> Measure:
    """A metric of the user's. It may fail, which is said with its name."""

    def measure(outputs: Tensor, labels: Tensor) -> float | None:
        try:
            if _collects(given):
                given.reset()
                given.update(outputs, labels)
                value = given.compute()
            else:
                value = given(outputs, labels)
        except Exception as failure:
            text = " ".join(str(failure).split())
            raise UserCodeError(f"metrics: {name}: {type(failure).__name__}: {text}") from failure
        try:
            return None if value is None else float(value)
        except (TypeError, ValueError, RuntimeError):
            raise ConfigError(f"metrics: expected a number from {name}, got {type(value).__name__}") from None

    return measure


def f1_macro(outputs: Tensor, labels: Tensor) -> float | None:
    """Mean F1 of the classes that are there or predicted.

    Shape: outputs (n, C), labels (n,) int64.

    Example:
        >>> f1_macro(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1, 1]))
        0.6666666666666666
    """
    classes = outputs.shape[1]
    predicted = outputs.argmax(1)
    hits = torch.bincount(labels[predicted == labels], minlength=classes)
    there, said = torch.bincount(labels, minlength=classes), torch.bincount(predicted, minlength=classes)
    counted = (there + said > 0).nonzero().flatten().tolist()
    return _mean([f1(int(hits[c]), int(said[c]), int(there[c])) for c in counted])


def _f1_macro_of_labels(outputs: Tensor, labels: Tensor) -> float | None:
    """Mean F1 of the columns, over known entries; 0 where a label neither is there nor predicted."""
    found = []
    for column in range(labels.shape[1]):
        known = ~labels[:, column].isnan()
        there, said = labels[known, column] > 0.5, outputs[known, column] > 0
        counts = int(said.sum()), int(there.sum())
        found.append(f1(int((there & said).sum()), *counts) if sum(counts) else 0.0)
    return _mean(found)


_Curve = Callable[[Tensor, Tensor], float | None]


def _of_classes(curve: _Curve) -> Measure:
    """Of two classes: of the second. Of more: the mean over classes of one against the rest, by probability."""

    def measure(outputs: Tensor, labels: Tensor) -> float | None:
        if bool(outputs.isnan().any()):
            return None
        if outputs.shape[1] == 2:
            return _defined(curve, outputs[:, 1] - outputs[:, 0], labels == 1)
        chances = torch.softmax(outputs.double(), 1)
        return _mean([_defined(curve, chances[:, c], labels == c) for c in range(outputs.shape[1])])

    return measure


def _of_labels(curve: _Curve) -> Measure:
    """The mean over columns, of their known entries."""

    def measure(outputs: Tensor, labels: Tensor) -> float | None:
        if bool(outputs.isnan().any()):
            return None
        known = ~labels.isnan()
        columns = range(labels.shape[1])
        return _mean([_defined(curve, outputs[known[:, c], c], labels[known[:, c], c] > 0.5) for c in columns])

    return measure


def _of_pairs(curve: _Curve) -> Measure:
    return lambda outputs, labels: _defined(curve, outputs, labels > 0.5)


def _defined(curve: _Curve, scores: Tensor, positive: Tensor) -> float | None:
    """The curve's area where both kinds are there."""
    if bool(positive.all()) or not bool(positive.any()):
        return None
    return curve(scores[positive], scores[~positive])


def _errors(outputs: Tensor, labels: Tensor) -> Tensor:
    """Differences of known entries, float64, (k,)."""
    known = ~labels.isnan()
    return outputs[known].double() - labels[known].double()


def _mae(outputs: Tensor, labels: Tensor) -> float | None:
    errors = _errors(outputs, labels)
    return float(mean(errors.abs())) if errors.numel() else None


def _rmse(outputs: Tensor, labels: Tensor) -> float | None:
    errors = _errors(outputs, labels)
    return math.sqrt(float(mean(errors * errors))) if errors.numel() else None


def _r2(outputs: Tensor, labels: Tensor) -> float | None:
    """Mean over the columns whose labels differ."""
    two = (outputs.unsqueeze(1), labels.unsqueeze(1)) if labels.dim() == 1 else (outputs, labels)
    found = []
    for out, wanted in zip(two[0].double().T, two[1].double().T, strict=True):
        known = ~wanted.isnan()
        around = wanted[known] - mean(wanted[known])
        spread = float(total(around * around))
        if spread > 0:
            found.append(1 - float(total((out[known] - wanted[known]) ** 2)) / spread)
    return _mean(found)


def _mean(values: Sequence[float | None]) -> float | None:
    """Of those that are defined."""
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None


_AUC, _AP = link_metrics.roc_auc, link_metrics.average_precision
_BY_KIND: dict[str, dict[str, Measure]] = {
    "classification": {
        "accuracy": accuracy,
        "f1_micro": accuracy,  # the same, as every row has one class
        "f1_macro": f1_macro,
        "roc_auc": _of_classes(_AUC),
        "average_precision": _of_classes(_AP),
    },
    "multilabel": {
        "f1_micro": f1_of_entries,
        "f1_macro": _f1_macro_of_labels,
        "roc_auc": _of_labels(_AUC),
        "average_precision": _of_labels(_AP),
    },
    "regression": {"mae": _mae, "rmse": _rmse, "r2": _r2},
    "link": {"roc_auc": _of_pairs(_AUC), "average_precision": _of_pairs(_AP)},
}
_SAID = {
    "classification": "classes",
    "multilabel": "several labels a node",
    "regression": "values",
    "link": "the task link",
}
