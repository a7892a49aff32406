"""Preparation of batches as subtasks on threads, and what a recorded run says about where its time goes."""

from typing import TYPE_CHECKING

from graphweft._namespace import lazy

if TYPE_CHECKING:
    from graphweft.runtime.tier import Tier as Tier
    from graphweft.schedule.emulated import EmulatedDevice as EmulatedDevice
    from graphweft.schedule.places import Schedule as Schedule
    from graphweft.schedule.subtasks import Subtasks as Subtasks

__all__ = ["EmulatedDevice", "Schedule", "Subtasks", "Tier"]

if not TYPE_CHECKING:
    __getattr__ = lazy(
        __name__,
        {
            "EmulatedDevice": "graphweft.schedule.emulated",
            "Schedule": "graphweft.schedule.places",
            "Subtasks": "graphweft.schedule.subtasks",
            "Tier": "graphweft.runtime.tier",
        },
    )
