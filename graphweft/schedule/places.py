"""Places beside the CPU that prepare and train batches: what they take and what they offer.

Comes in: work, as an object with ``prepare`` and ``train`` for batches by number. Goes out: an open place, whose
operators are registered under its name. Called by the trainer; nothing asks what kind of place it is. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from graphweft._errors import ConfigError
from graphweft.schedule.operators import Operators
from graphweft.schedule.split import Plan

SCHEDULES = ("auto", "cpu", "device")


class Work(Protocol):
    """What a place does; made there, by a function that was sent to it."""

    known: Mapping[str, Any]  # things by name that both sides have, which batches refer to

    def prepare(self, batch: int) -> Any:
        """What the place makes of a batch by itself."""

    def train(self, batch: int, prepared: Any) -> Any:
        """Trains a batch that either side prepared."""


class Opened(Protocol):
    """A place at work."""

    def register(self, operators: Operators) -> None:
        """Adds its operators for preparing, sending and training."""

    def call(self, name: str, *given: Any) -> Any:
        """Another method of its work, while nothing is trained."""

    def close(self) -> None:
        """Ends it; what it holds is lost."""


class Place(Protocol):
    """A place, not at work yet."""

    @property
    def name(self) -> str:
        """Of its operators."""

    def open(self, work: Callable[..., Work], given: Any, known: Mapping[str, Any]) -> Opened:
        """Starts it on ``work(given)``; batches that are sent there refer to ``known`` by name."""


@dataclass(frozen=True)
class Schedule:
    """Which place prepares batches in addition to the CPU, and how many.

    Attributes:
        place: The place; None: that of the trainer's device.
        share: "auto" measures and chooses; "cpu" prepares all batches on the CPU; "device" prepares all at the place;
            or a :class:`Plan`.

    Raises: ConfigError for another share.

    Example:
        >>> Schedule(share="gpu")
        Traceback (most recent call last):
        graphweft._errors.ConfigError: schedule: expected one of auto, cpu, device, got 'gpu'
    """

    place: Place | None = None
    share: str | Plan = "auto"

    def __post_init__(self) -> None:
        if not isinstance(self.share, Plan) and self.share not in SCHEDULES:
            raise ConfigError(f"schedule: expected one of {', '.join(SCHEDULES)}, got {self.share!r}")


__all__ = ["SCHEDULES", "Opened", "Place", "Schedule", "Work"]
