"""Places by the name that ``device=`` takes.

Comes in: what a trainer was given. Goes out: who shares out its batches. Called by the trainer. Another kind of device
joins by an entry of ``PLACES``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphweft._errors import ConfigError
from graphweft.schedule.device_place import DevicePlace
from graphweft.schedule.emulated import EmulatedDevice
from graphweft.schedule.places import Place, Schedule
from graphweft.schedule.split import Plan

PLACES: dict[str, Callable[[], Place]] = {"emulated": EmulatedDevice, "cuda": DevicePlace}


def holds_model(place: Any) -> bool:
    """Whether a place, or what makes it, trains the trainer's own model where that lies; others have a copy."""
    return bool(getattr(place, "holds_model", False))


def is_apart(device: Any) -> bool:
    """Whether a name stands for a place with a copy of the model, not for a device of torch.

    Example:
        >>> is_apart("emulated"), is_apart("cuda"), is_apart(None)
        (True, False, False)
    """
    return str(device) in PLACES and not holds_model(PLACES[str(device)])


def as_schedule(schedule: Any, device: Any, mode: str = "mini") -> Schedule | None:
    """What shares out batches, from what a trainer was given; None where the CPU, or the device, does everything.

    Raises: ConfigError for a place that is needed and is not there.

    Example:
        >>> as_schedule("auto", "cpu") is None, as_schedule("auto", "cuda:0").place.name
        (True, 'cuda')
        >>> as_schedule("device", None)
        Traceback (most recent call last):
        graphweft._errors.ConfigError: schedule: expected a device that prepares batches (emulated, cuda), got none
    """
    made = schedule if isinstance(schedule, Schedule) else Schedule(None, schedule)
    if made.place is not None:
        return made
    kind = str(device).split(":")[0]
    if kind in PLACES and (mode == "mini" or not holds_model(PLACES[kind])):
        return Schedule(PLACES[kind](), made.share)
    if made.share == "device" or isinstance(made.share, Plan):
        there = "none" if device is None or kind == "cpu" else f"{device!s}, which trains full batches"
        raise ConfigError(f"schedule: expected a device that prepares batches ({', '.join(PLACES)}), got {there}")
    return None


__all__ = ["PLACES", "as_schedule", "holds_model", "is_apart"]
