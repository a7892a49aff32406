"""Places by the name that ``device=`` takes.

Comes in: what a trainer was given. Goes out: who shares out its batches. Called by the trainer. Another kind of device
joins by an entry of ``PLACES``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphweft._errors import ConfigError
from graphweft.schedule.emulated import EmulatedDevice
from graphweft.schedule.places import Place, Schedule
from graphweft.schedule.split import Plan

PLACES: dict[str, Callable[[], Place]] = {"emulated": EmulatedDevice}


def as_schedule(schedule: Any, device: Any) -> Schedule | None:
    """What shares out batches, from what a trainer was given; None where the CPU does everything.

    Raises: ConfigError for a place that is needed and is not there.

    Example:
        >>> as_schedule("auto", "cpu") is None
        True
        >>> as_schedule("device", None)
        Traceback (most recent call last):
        graphweft._errors.ConfigError: schedule: expected a device that prepares batches (emulated), got none
    """
    made = schedule if isinstance(schedule, Schedule) else Schedule(None, schedule)
    if made.place is not None:
        return made
    kind = str(device).split(":")[0]
    if kind in PLACES:
        return Schedule(PLACES[kind](), made.share)
    if made.share == "device" or isinstance(made.share, Plan):
        there = "none" if device is None or kind == "cpu" else f"{device!s}, which trains full batches"
        raise ConfigError(f"schedule: expected a device that prepares batches ({', '.join(PLACES)}), got {there}")
    return None


__all__ = ["PLACES", "as_schedule"]
