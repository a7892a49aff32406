"""The learning rate from epoch to epoch: schedulers of torch, by name or made by the user, after a warm-up.

Comes in: an optimiser and what the user asked for. Goes out: other rates in its groups after every epoch, and a state
for checkpoints. Called by the trainer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from graphweft._errors import ConfigError, UserCodeError
from graphweft.train.loop_options import SCHEDULES, check_schedule


class LearningRate:
    """Steps a scheduler once an epoch, after its evaluation.

    With ``warmup`` the rate rises evenly from 1 / (warmup + 1) of its value, as by
    ``LinearLR(start_factor=1 / (warmup + 1), total_iters=warmup)``, and the scheduler begins after it. A
    ``ReduceLROnPlateau`` is stepped after epochs that were evaluated: with the metric where that is better in its
    direction, else, for mode "min", with the validation loss.

    Args:
        optimizer: The optimiser.
        given: A name of ``SCHEDULES``, a callable that makes a scheduler of the optimiser, or one over it; None: none.
        warmup: Epochs of the warm-up.
        higher: Whether the metric is better where it is higher.
        metric: Name of the validation metric that a ``ReduceLROnPlateau`` is given.

    Raises: ConfigError.
    """

    def __init__(
        self, optimizer: Optimizer, given: Any, warmup: int = 0, higher: bool = True, metric: str = "accuracy"
    ) -> None:
        self._optimizer, self._given, self._warmup = optimizer, given, warmup
        self._higher, self._metric = higher, metric
        self._length = 0  # epochs that a schedule by name takes, once known
        self._schedule: LRScheduler | None = None
        self._plateau: ReduceLROnPlateau | None = None
        self._identity = _check(given)
        if given is None and warmup:
            self._schedule = self._rising()
        elif isinstance(given, str) and not self._waits:
            self._place(_named(given, 1, higher))
        elif given is not None and not isinstance(given, str):
            self._place(given if callable(given) else lambda _: given)

    @property
    def is_set(self) -> bool:
        """Whether rates change at all."""
        return self._given is not None or self._warmup > 0

    @property
    def watches(self) -> bool:
        """Whether it needs validation."""
        return self._plateau is not None

    @property
    def _waits(self) -> bool:
        """Whether it follows from the number of epochs."""
        return self._given in _BY_LENGTH

    @property
    def now(self) -> float:
        """The rate of the first group."""
        return float(self._optimizer.param_groups[0]["lr"])

    def check(self, epoch: int) -> None:
        """Before the epoch after ``epoch``. Raises: ConfigError for a rate that would make the parameters infinite."""
        who = "scheduler" if self._given is not None else "lr"
        check_rates(self._optimizer, who, f" after epoch {epoch}" if epoch else "")

    def begin(self, epochs: int) -> None:
        """Makes a schedule by name, which may follow from the number of epochs of the first fit."""
        if self._waits and not self._length and epochs:
            self._length = epochs
            self._place(_named(self._given, max(1, epochs - self._warmup), self._higher))

    def end_epoch(self, epoch: int, loss: float | None, value: float | None) -> None:
        """Sets the rate of the epoch after ``epoch``.

        Args:
            epoch: Epochs done.
            loss: Validation loss; None where there was no evaluation.
            value: The validation metric; likewise.
        """
        if self._plateau is not None and epoch > self._warmup:
            seen = value if (self._plateau.mode == "max") == self._higher else loss
            if seen is not None:
                self._plateau.step(seen)
        elif self._schedule is not None:
            try:
                self._schedule.step()
            except Exception as failure:  # a scheduler of a fixed length that is over, or code of the user's own
                text = " ".join(str(failure).split())
                raise UserCodeError(f"scheduler: {type(failure).__name__} after epoch {epoch}: {text}") from failure

    def identity(self) -> str:
        """What decides the rates, for checkpoints: the name, or the class and its numbers as it was made."""
        return self._identity

    def state_dict(self) -> dict[str, Any]:
        """Where the schedule stands."""
        made = {"schedule": self._schedule, "plateau": self._plateau}
        return {"length": self._length, **{name: one.state_dict() for name, one in made.items() if one is not None}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of :meth:`state_dict`; before the optimiser's own, which holds the rates."""
        self.begin(int(state["length"]))
        for name, one in (("schedule", self._schedule), ("plateau", self._plateau)):
            if one is not None:
                one.load_state_dict(state[name])

    def _rising(self) -> LRScheduler:
        return lr_scheduler.LinearLR(self._optimizer, 1 / (self._warmup + 1), total_iters=self._warmup)

    def _place(self, make: Callable[[Optimizer], Any]) -> None:
        """Makes the scheduler, behind the warm-up where there is one."""
        rising = self._rising() if self._warmup else None
        try:
            made = make(self._optimizer)
        except TypeError as failure:
            raise ConfigError(f"scheduler: {_WANTED}, got a TypeError: {failure}") from None
        if not isinstance(made, LRScheduler | ReduceLROnPlateau):
            raise ConfigError(f"scheduler: {_WANTED}, got {type(made).__name__}")
        if made.optimizer is not self._optimizer:
            raise ConfigError("scheduler: expected one over the trainer's optimizer (optimizer=), got one over another")
        if not self._identity:
            self._identity = f"{type(made).__name__} {_numbers(made)}"
        if isinstance(made, ReduceLROnPlateau):
            if made.mode == "max" and not self._higher:
                raise ConfigError(
                    f"scheduler: expected mode='min' for {self._metric}, where lower is better, got 'max'"
                )
            self._plateau, self._schedule = made, rising
        elif rising is not None:
            self._schedule = lr_scheduler.SequentialLR(self._optimizer, [rising, made], milestones=[self._warmup])
        else:
            self._schedule = made


def check_rates(optimizer: Optimizer, who: str, when: str = "") -> None:
    """Learning rates are finite; those that lie on a device are not looked at. Raises: ConfigError."""
    for group in optimizer.param_groups:
        rate = group.get("lr", 0.0)
        if isinstance(rate, Tensor) and not rate.is_cpu:
            continue
        if not math.isfinite(rate):
            raise ConfigError(f"{who}: expected a finite learning rate, got {float(rate)}{when}")


_BY_LENGTH = ("cosine", "linear", "step")
_WANTED = "expected a callable that makes a scheduler, as lambda opt: torch.optim.lr_scheduler.StepLR(opt, 30)"


def _check(given: Any) -> str:
    """What was given by name; empty for the rest. Raises: ConfigError."""
    if isinstance(given, str):
        check_schedule(given)
        return given
    if given is not None and not callable(given) and not isinstance(given, LRScheduler | ReduceLROnPlateau):
        raise ConfigError(
            f"scheduler: expected one of {', '.join(SCHEDULES)}, or a callable that makes one of the optimizer, "
            f"got {type(given).__name__}"
        )
    return ""


def _named(text: str, epochs: int, higher: bool) -> Callable[[Optimizer], LRScheduler | ReduceLROnPlateau]:
    """A scheduler of torch by its name; ``epochs`` is the length where none is given."""
    name, numbers = check_schedule(text)
    first = numbers[0] if numbers else None
    length = epochs if first is None else int(first)
    factor = numbers[1] if len(numbers) > 1 else 0.1
    kinds: dict[str, Callable[[Optimizer], LRScheduler | ReduceLROnPlateau]] = {
        "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, length),
        "linear": lambda optimizer: lr_scheduler.LinearLR(optimizer, 1.0, 0.0, length),
        "step": lambda optimizer: lr_scheduler.StepLR(
            optimizer, math.ceil(epochs / 3) if first is None else length, factor
        ),
        "exponential": lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.99 if first is None else first),
        "plateau": lambda optimizer: ReduceLROnPlateau(
            optimizer, "max" if higher else "min", factor, 10 if first is None else length
        ),
    }
    return kinds[name]


def _numbers(scheduler: LRScheduler | ReduceLROnPlateau) -> str:
    """The numbers of a scheduler as it was made."""
    state = scheduler.state_dict()
    kept = {name: value for name, value in state.items() if not name.startswith("_")}
    return json.dumps(kept, default=lambda value: type(value).__name__, sort_keys=True)
