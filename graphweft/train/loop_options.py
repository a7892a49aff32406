"""Options of the training loop that a text can say: loss, learning rate, updates, metrics, loggers.

Comes in: keyword arguments. Goes out: a frozen :class:`LoopOptions`, a part of every ``TrainSpec``; its fields carry
what their flags say. The trainer takes functions and objects in their places. Imports no torch, so that
``graphweft --help`` is quick.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from graphweft._errors import ConfigError
from graphweft.train.options import EMBEDDING_TASKS, STOP_ON, check_choice, check_integer, check_number
from graphweft.train.table_options import split_names

LOSSES = ("cross_entropy", "binary_cross_entropy", "mse", "l1", "huber")
METRICS = ("accuracy", "f1_micro", "f1_macro", "roc_auc", "average_precision", "mae", "rmse", "r2")
LINK_RULES = ("mrr", "hits")  # what the task link measures in any case
SCHEDULES = ("cosine", "linear", "step", "exponential", "plateau")
LOGGERS = ("csv", "tensorboard")


def _option(default: Any, metavar: str, help_text: str, shown: str | None = None) -> Any:
    """A field with what its flag says; ``shown`` is the default in words."""
    return field(default=default, metadata={"metavar": metavar, "help": help_text, "shown": shown})


@dataclass(frozen=True)
class LoopOptions:
    """How a model is updated and what is recorded; see :class:`gw.Trainer`, whose keywords these are.

    Attributes:
        loss: A name of :data:`LOSSES`; None: the one of the labels.
        class_weight: "balanced", or a number per class with commas between them.
        label_smoothing: Share of the target that is spread over all classes.
        scheduler: A name of :data:`SCHEDULES`, with numbers after colons, as "step:30:0.5".
        warmup: Epochs in which the learning rate rises to its full value.
        clip: Largest norm of all gradients together.
        clip_value: Largest absolute value of an entry of a gradient.
        ema: Decay of averages of the parameters, which evaluations and predictions use.
        metrics: Names of :data:`METRICS`, for links also hits@K, with commas between them.
        best: What says which epoch is the best: a metric, "loss", or a rule of ``stop_on``.
        logger: Names of :data:`LOGGERS` with commas between them.
    """

    loss: str | None = _option(None, "|".join(LOSSES), "The loss.", "that of the labels")
    class_weight: str | None = _option(None, "balanced|W,W,...", "Weights of classes in the loss.", "none")
    label_smoothing: float = _option(0.0, "X", "Share of the target spread over all classes.")
    scheduler: str | None = _option(
        None, "|".join(SCHEDULES), "Learning rate by epoch; numbers follow colons: step:30:0.5, plateau:20.", "constant"
    )
    warmup: int = _option(0, "N", "Epochs in which the learning rate rises.")
    clip: float | None = _option(None, "X", "Largest norm of the gradients.", "none")
    clip_value: float | None = _option(None, "X", "Largest entry of a gradient.", "none")
    ema: float | None = _option(None, "X", "Decay of averaged weights, with which is evaluated.", "none")
    metrics: str | None = _option(None, "NAME,...", f"Also measured: {', '.join(METRICS)}; link: hits@20.", "")
    best: str | None = _option(None, "NAME", "The metric of the best epoch and of --patience.", "as --stop-on")
    logger: str | None = _option(None, "NAME,...", f"Also write {' or '.join(LOGGERS)} files.", "")

    def check_loop(self, task: str, stop_on: str) -> None:
        """The options are in range and fit together.

        Raises: ConfigError.
        """
        if self.loss is not None:
            check_choice("loss", self.loss, LOSSES)
        if self.class_weight is not None:
            check_class_weight(self.class_weight)
        if self.scheduler is not None:
            check_schedule(self.scheduler)
        for name, known in (("metrics", METRICS), ("logger", LOGGERS)):
            given = getattr(self, name)
            for one in split_names(given) if given is None or isinstance(given, str) else (given,):
                if name != "metrics" or not ranks_of(one):
                    check_choice(name, one, known)
        check_updates(self.label_smoothing, self.warmup, self.clip, self.clip_value, self.ema)
        check_best(self.best, stop_on, (*METRICS, *(LINK_RULES if task in EMBEDDING_TASKS else ())))

    def loop_arguments(self) -> dict[str, Any]:
        """The keywords of :class:`gw.Trainer`."""
        found = {f.name: getattr(self, f.name) for f in fields(LoopOptions)}
        found["loggers"] = split_names(found.pop("logger"))
        return found | {"metrics": split_names(self.metrics)}

    def loop_identity(self) -> dict[str, Any]:
        """The options that change the numbers and are not as they are without the user's doing."""
        own = [f for f in fields(LoopOptions) if f.name != "logger"]
        return {f.name: getattr(self, f.name) for f in own if getattr(self, f.name) != f.default}


def check_updates(label_smoothing: Any, warmup: Any, clip: Any, clip_value: Any, ema: Any) -> None:
    """Numbers of a training loop are in range. Raises: ConfigError."""
    check_number("label_smoothing", label_smoothing, least=0.0, below=1.0)
    check_integer("warmup", warmup, 0, 10**9)
    for name, value in (("clip", clip), ("clip_value", clip_value)):
        if value is not None:
            check_number(name, value, above=0.0)
    if ema is not None:
        check_number("ema", ema, least=0.0, below=1.0)


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
    if len(numbers) > most or any(number <= 0 for number in numbers) or any(number % 1 for number in counts):
        forms = "cosine:EPOCHS, linear:EPOCHS, step:EPOCHS:FACTOR, exponential:FACTOR or plateau:PATIENCE:FACTOR"
        raise ConfigError(f"scheduler: expected {forms}, got {text!r}")
    return name, numbers
