"""Users' code between epochs and batches: who is called when, with what, and what of it lies in checkpoints.

Comes in: objects with some of the methods ``on_fit_start``, ``on_epoch_start``, ``on_batch_end``, ``on_epoch_end`` and
``on_fit_end``. Goes out: their calls in order. Called by the trainer.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from graphweft._errors import CheckpointError, ConfigError
from graphweft.train.checkpoint import plain_state
from graphweft.train.record import EpochRecord

EVENTS = {
    "on_fit_start": ("trainer",),
    "on_epoch_start": ("trainer", "epoch"),
    "on_batch_end": ("trainer", "batch", "loss"),
    "on_epoch_end": ("trainer", "record"),
    "on_fit_end": ("trainer",),
}  # methods and what they are called with


class Callbacks:
    """Calls every callback in the order in which they were given.

    Raises: ConfigError for an object with none of the methods, or with one that takes other arguments.
    """

    def __init__(self, given: Any = ()) -> None:
        self._all: list[Any] = list(given) if isinstance(given, Sequence) else [given]
        for one in self._all:
            if isinstance(one, type) or not any(callable(getattr(one, event, None)) for event in EVENTS):
                got = f"the class {one.__name__}" if isinstance(one, type) else type(one).__name__
                raise ConfigError(f"callbacks: expected objects with a method {', '.join(EVENTS)}, got {got}")
            for event, names in EVENTS.items():
                _check_takes(getattr(one, event, None), f"{type(one).__name__}.{event}", names)

    def fit_start(self, trainer: Any) -> None:
        """Before the first epoch of a fit."""
        self._call("on_fit_start", trainer)

    def epoch_start(self, trainer: Any, epoch: int) -> None:
        """Before epoch ``epoch``, counted from 1."""
        self._call("on_epoch_start", trainer, epoch)

    def batch_end(self, trainer: Any, batch: int, loss: float) -> None:
        """After batch ``batch`` of an epoch, counted from 1, with the mean loss of the epoch so far."""
        self._call("on_batch_end", trainer, batch, loss)

    def epoch_end(self, trainer: Any, record: EpochRecord) -> bool:
        """After an epoch; whether a callback wants training to end, which all are called before."""
        return False in [found is not False for found in self._call("on_epoch_end", trainer, record)]

    def fit_end(self, trainer: Any) -> None:
        """After the last epoch of a fit."""
        self._call("on_fit_end", trainer)

    def _call(self, event: str, *arguments: Any) -> list[Any]:
        methods = [getattr(one, event, None) for one in self._all]
        return [method(*arguments) for method in methods if method is not None]

    def _stateful(self) -> list[Any]:
        return [one for one in self._all if hasattr(one, "state_dict") and hasattr(one, "load_state_dict")]

    def state_dict(self) -> list[dict[str, Any]]:
        """The states of those that have one. Raises: ConfigError for what a checkpoint cannot hold."""
        kinds = ((type(one).__name__, one.state_dict()) for one in self._stateful())
        return [
            {"class": kind, "state": plain_state(f"callbacks: expected a state_dict of {kind}", state)}
            for kind, state in kinds
        ]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """The inverse of :meth:`state_dict`. Raises: CheckpointError for the states of other callbacks."""
        stateful = self._stateful()
        saved, mine = [state["class"] for state in states], [type(one).__name__ for one in stateful]
        if saved != mine:
            raise CheckpointError(
                f"callbacks: expected those with a state that the run was trained with, "
                f"{', '.join(saved) or 'none'}, got {', '.join(mine) or 'none'}"
            )
        for one, state in zip(stateful, states, strict=True):
            one.load_state_dict(state["state"])


def _check_takes(method: Any, who: str, names: Sequence[str]) -> None:
    """A method can be called with so many arguments. Raises: ConfigError."""
    if not callable(method):
        return
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):  # of some that are not written in Python
        return
    try:
        signature.bind(*names)
    except TypeError:
        raise ConfigError(f"callbacks: expected {who}({', '.join(names)}), got {who}{signature}") from None
