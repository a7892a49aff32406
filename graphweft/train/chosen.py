"""What a user chose about loss, learning rate, updates, metrics and code of their own: checked, and put to work.

Comes in: keywords of the trainer. Goes out: the parts that a training run is made of, and what of them has to agree
when a run is resumed. Called by the trainer.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from graphweft._errors import ConfigError
from graphweft.train.callbacks import Callbacks
from graphweft.train.checkpoint import checksum
from graphweft.train.learning_rate import LearningRate
from graphweft.train.loggers import Loggers
from graphweft.train.loop_options import LINK_RULES, METRICS, LoopOptions, check_best
from graphweft.train.named_metrics import metrics_of
from graphweft.train.option_table import check_given
from graphweft.train.options import EMBEDDING_TASKS, STOP_ON, check_choice
from graphweft.train.own_loss import check_loss, named, with_loss
from graphweft.train.target import Target, target_of
from graphweft.train.update import Update

_NUMBERS = ("label_smoothing", "warmup", "clip", "clip_value", "ema")


@dataclass(frozen=True, eq=False, kw_only=True)
class Chosen:
    """The choices, those of the trainer's keywords."""

    loss: Any = None
    class_weight: Any = None
    label_smoothing: float = 0.0
    scheduler: Any = None
    warmup: int = 0
    clip: float | None = None
    clip_value: float | None = None
    ema: float | None = None
    metrics: Any = None
    best: str | None = None
    callbacks: Any = ()
    loggers: Any = ()


class Loop:
    """The parts of a training run that follow from the choices.

    Args:
        chosen: The choices.
        ds: The dataset.
        task: "nodes", "link" or "unsupervised".
        stop_on: What says which epoch is the best where ``best`` does not.
        out: Folder of the run.

    Attributes:
        rule: What says which epoch is the best: a rule of ``stop_on``, or the name of a metric.
        higher: Whether it is better where it is higher.
        metrics: What is measured beside the score.
        target: How labels are trained on; None for links.
        callbacks: Code of the user's between epochs and batches.
        loggers: Where the numbers of an epoch go.

    Raises: ConfigError for choices out of range, or that do not fit together, the labels or the task.
    """

    def __init__(self, chosen: Chosen, ds: Any, task: str, stop_on: str, out: Path | None) -> None:
        self.chosen = chosen
        check_given(LoopOptions, {name: getattr(chosen, name) for name in _NUMBERS})
        self.target: Target | None = None
        if task in EMBEDDING_TASKS:
            _check_link(chosen, task)
        else:
            choices = (chosen.loss, chosen.class_weight, chosen.label_smoothing)
            self.target = with_loss(target_of(ds), *choices, ds.num_classes)
        kind = "link" if task in EMBEDDING_TASKS else _kind(ds)
        self.metrics = metrics_of(chosen.metrics, kind)
        self.rule = stop_on if chosen.best is None else chosen.best
        self.higher = self._take_best(stop_on, kind)
        self.callbacks, self.loggers = Callbacks(chosen.callbacks), Loggers(chosen.loggers, out)

    def _take_best(self, stop_on: str, kind: str) -> bool:
        """Measures what ``best`` names; whether higher is better. Raises: ConfigError."""
        own = {one.name: one for one in self.metrics}
        rule = self.chosen.best
        links = LINK_RULES if kind == "link" else ()
        check_best(rule, stop_on, (*own, *METRICS, *links))
        if rule is None or (rule in STOP_ON and rule not in own):
            return self.rule == "accuracy" and kind != "regression"
        if rule in links:
            return True
        if rule not in own:
            self.metrics = (*self.metrics, *metrics_of(rule, kind))
        return next(one.higher for one in self.metrics if one.name == rule)

    def update(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Update:
        """The update of ``model``."""
        return Update(model, optimizer, self.chosen.clip, self.chosen.clip_value, self.chosen.ema)

    def learning_rate(self, optimizer: torch.optim.Optimizer) -> LearningRate:
        """The rates of ``optimizer``."""
        return LearningRate(optimizer, self.chosen.scheduler, self.chosen.warmup, self.higher, self.rule)

    def needs_validation(self, patience: int, watches: bool) -> str:
        """The option that needs validation labels, as messages name it; empty where none does."""
        if patience:
            return f"patience={patience}"
        return "scheduler=plateau" if watches else f"best={self.chosen.best}" if self.chosen.best else ""

    def identity(self, rate: LearningRate) -> dict[str, Any]:
        """The choices that change the numbers, for checkpoints, where they are not as without the user's doing."""
        chosen = self.chosen
        weight = chosen.class_weight
        found = {
            "loss": None if chosen.loss is None else _identity_of(chosen.loss),
            "class_weight": weight if weight is None or isinstance(weight, str) else torch.as_tensor(weight).tolist(),
            "label_smoothing": chosen.label_smoothing or None,
            "scheduler": rate.identity() or None,
            "warmup": chosen.warmup or None,
            "clip": chosen.clip,
            "clip_value": chosen.clip_value,
            "ema": chosen.ema,
            "metrics": ",".join(one.name for one in self.metrics) or None,
            "best": chosen.best,
            "best_is_lowest": True if chosen.best is not None and not self.higher else None,
        }
        return {name: value for name, value in found.items() if value is not None}


def judged_by(config: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a ``History`` of a run with this configuration."""
    rule = config.get("best") or config.get("stop_on", "accuracy")
    return {"best_by": str(rule), "higher": not config.get("best_is_lowest", False)}


def _kind(ds: Any) -> str:
    """What the labels are, as metrics know it."""
    return str(getattr(ds, "task", "classification" if ds.y.dim() == 1 else "multilabel"))


def _check_link(chosen: Chosen, task: str) -> None:
    """Links have no classes, models of embeddings losses of their own. Raises: ConfigError."""
    for name in ("class_weight", "label_smoothing"):
        if getattr(chosen, name) not in (None, 0, 0.0):
            raise ConfigError(f"{name} cannot be combined with task={task!r}, which has no classes")
    if chosen.loss is not None and task != "link":
        raise ConfigError(f"loss cannot be combined with task={task!r}, whose model has a loss of its own")
    if isinstance(chosen.loss, str):
        check_choice("loss", chosen.loss, ("binary_cross_entropy",))
    elif chosen.loss is not None:
        check_loss(chosen.loss)


def _identity_of(loss: Any) -> str:
    """A loss as far as it can be told from another: its name, and the settings and tensors of a module."""
    name = named(loss)
    if not isinstance(loss, nn.Module):
        return name
    plain = {key: value for key, value in vars(loss).items() if isinstance(value, int | float | str)}
    told = json.dumps({**plain, "training": None}, sort_keys=True, default=str)
    numbers = checksum({key: value for key, value in loss.state_dict().items() if isinstance(value, Tensor)})
    return f"{name} {zlib.crc32(told.encode()):08x} {numbers:08x}"
