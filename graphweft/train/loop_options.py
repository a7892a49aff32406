"""Options of the training loop that a text can say: loss, learning rate, updates, metrics, loggers.

Comes in: keyword arguments. Goes out: a frozen :class:`LoopOptions`, a part of every ``TrainSpec``; its fields carry
what their flags say. The trainer takes functions and objects in their places. Imports no torch, so that
``graphweft --help`` is quick.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from graphweft._errors import ConfigError
from graphweft.train.option_table import option, split_names
from graphweft.train.options import EMBEDDING_TASKS, STOP_ON, check_choice

LOSSES = ("cross_entropy", "binary_cross_entropy", "mse", "l1", "huber")
METRICS = ("accuracy", "f1_micro", "f1_macro", "roc_auc", "average_precision", "mae", "rmse", "r2")
LINK_RULES = ("mrr", "hits")  # what the task link measures in any case
SCHEDULES = ("cosine", "linear", "step", "exponential", "plateau")
LOGGERS = ("csv", "tensorboard")
given = partial(option, resume="given")


def check_class_weight(text: str) -> str | tuple[float, ...]:
    """The word "balanced", or numbers with commas between them.

    Raises: ConfigError.

    Example:
        >>> check_class_weight("balanced"), check_class_weight("1,2.5")
        ('balanced', (1.0, 2.5))
    """
    if text == "balanced":
        return text
    try:
        return tuple(float(part) for part in text.split(","))
    except (ValueError, AttributeError):
        raise ConfigError(f"class_weight: expected balanced, or a number per class as 1,2.5, got {text!r}") from None


def check_schedule(text: str) -> tuple[str, tuple[float, ...]]:
    """A name of :data:`SCHEDULES` and the numbers after it.

    Raises: ConfigError.

    Example:
        >>> check_schedule("step:30:0.5"), check_schedule("cosine")
        (('step', (30.0, 0.5)), ('cosine', ()))
    """
    name, *rest = text.split(":") if isinstance(text, str) else (text,)
    check_choice("scheduler", name, SCHEDULES)
    try:
        numbers = tuple(float(part) for part in rest)
    except ValueError:
        numbers = (-1.0,)
    most = {"cosine": 1, "linear": 1, "step": 2, "exponential": 1, "plateau": 2}[name]
    counts = numbers[:1] if name != "exponential" else ()
    wrong = any(not 0 < number < math.inf for number in numbers) or any(number % 1 for number in counts)
    wrong = wrong or (name == "plateau" and any(factor >= 1 for factor in numbers[1:]))  # torch wants it below
    if len(numbers) > most or wrong:
        forms = "cosine:EPOCHS, linear:EPOCHS, step:EPOCHS:FACTOR, exponential:FACTOR or plateau:PATIENCE:FACTOR"
        raise ConfigError(f"scheduler: expected {forms} with a factor below 1, got {text!r}")
    return name, numbers


def check_names(name: str, known: tuple[str, ...], text: Any) -> None:
    """All names in ``text`` are known. Raises: ConfigError."""
    for one in split_names(text) if isinstance(text, str) else (text,):
        if name != "metrics" or not ranks_of(one):
            check_choice(name, one, known)


def check_best(best: Any, stop_on: str, metrics: tuple[str, ...]) -> None:
    """``best`` is a metric, or a rule of ``stop_on``, which then is not given. Raises: ConfigError."""
    if best is None:
        return
    if stop_on != "accuracy":
        raise ConfigError(f"stop_on={stop_on} cannot be combined with best={best}, which says the same; leave one out")
    if not (ranks_of(best) and "mrr" in metrics):
        check_choice("best", best, tuple(dict.fromkeys((*STOP_ON, *metrics))))


def ranks_of(name: Any) -> int:
    """K of a metric that is called hits@K, 0 for another name.

    Example:
        >>> ranks_of("hits@20"), ranks_of("mrr")
        (20, 0)
    """
    head, _, count = name.partition("@") if isinstance(name, str) else ("", "", "")
    return int(count) if head == "hits" and count.isdecimal() else 0


@dataclass(frozen=True)
class LoopOptions:
    """How a model is updated and what is recorded; see :class:`gw.Trainer`, whose keywords these are."""

    # fmt: off
    loss: str | None = given(None, "", "The loss.", "that of the labels", choices=LOSSES)
    class_weight: str | None = given(None, "balanced|W,W,...", "Weights of classes in the loss.", "none",
        check=check_class_weight)
    label_smoothing: float = given(0.0, "X", "Share of the target spread over all classes.", least=0.0, below=1.0)
    scheduler: str | None = given(None, "|".join(SCHEDULES),
        "Learning rate by epoch; numbers follow colons: step:30:0.5, plateau:20.", "constant", check=check_schedule)
    warmup: int = given(0, "N", "Epochs in which the learning rate rises.", least=0, most=10**9)
    clip: float | None = given(None, "X", "Largest norm of the gradients.", "none", above=0.0)
    clip_value: float | None = given(None, "X", "Largest entry of a gradient.", "none", above=0.0)
    ema: float | None = given(None, "X", "Decay of averaged weights, which evaluations use.", "none", least=0.0,
        below=1.0)
    metrics: str | None = given(None, "NAME,...", f"Further metrics: {', '.join(METRICS)}; link: hits@20.", "",
        check=partial(check_names, "metrics", METRICS))
    best: str | None = given(None, "NAME", "The metric of the best epoch and of --patience.", "as --stop-on",
        check=lambda text: None)
    logger: str | None = option(None, "NAME,...", f"Also write {' or '.join(LOGGERS)} files.", "", resume="kept",
        check=partial(check_names, "logger", LOGGERS))
    # fmt: on

    def check_loop(self, task: str, stop_on: str) -> None:
        """``best`` names a metric of the task. Raises: ConfigError."""
        check_best(self.best, stop_on, (*METRICS, *(LINK_RULES if task in EMBEDDING_TASKS else ())))

    def loop_arguments(self) -> dict[str, Any]:
        """The keywords of :class:`gw.Trainer`."""
        found = {f.name: getattr(self, f.name) for f in fields(LoopOptions)}
        found["loggers"] = split_names(found.pop("logger"))
        return found | {"metrics": split_names(self.metrics)}
