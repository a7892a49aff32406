"""A device of this process as a place: the model lies there, and it prepares batches and trains all of them.

Comes in: work in this process. Goes out: a place with operators for preparing, sending and training. Called by the
trainer for the device of its model. Batches of the CPU are sent by the work itself, which knows what they hold. Imports
no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from graphweft.schedule.operators import Operators
from graphweft.schedule.places import Work


class WorkHere(Work, Protocol):
    """Work in this process, whose batches are not packed."""

    def receive(self, batch: int, prepared: Any) -> Any:
        """A batch that the CPU prepared, on the device; nothing of it is under way any more."""


class DevicePlace:
    """The device where the model lies.

    Attributes:
        name: Of its operators.
        holds_model: The trainer's model is trained, not a copy.

    Example:
        >>> DevicePlace().name
        'cuda'
    """

    name = "cuda"
    holds_model = True

    def open(self, work: Callable[..., Work], given: Any, known: Mapping[str, Any]) -> OpenDevicePlace:
        """Makes ``work(given)``, a :class:`WorkHere`, in this process."""
        return OpenDevicePlace(self.name, cast(WorkHere, work(given)))


class OpenDevicePlace:
    """The device at work."""

    def __init__(self, name: str, work: WorkHere) -> None:
        self._name, self._work = name, work

    def register(self, operators: Operators) -> None:
        """Adds ``batch_``, ``send_`` and ``model_`` operators under the device's name."""
        work, name = self._work, self._name
        operators.register(f"batch_{name}_sample")(lambda batch, _: work.prepare(batch))
        operators.register(f"send_{name}_pinned")(work.receive)
        operators.register(f"model_{name}_train")(work.train)

    def call(self, name: str, *given: Any) -> Any:
        """A method of the work."""
        return getattr(self._work, name)(*given)

    def close(self) -> None:
        """Nothing is held that the trainer does not hold."""


__all__ = ["DevicePlace", "OpenDevicePlace", "WorkHere"]
