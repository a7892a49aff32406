"""How batches are shared out between the CPU and a device, in closed form.

Comes in: a :class:`Profile`, seconds of the five steps of a batch. Goes out: the share that keeps the busiest place
least busy, the sizes of the two buffers, and a bound below which no schedule can be. Pure functions, called by
``feedback.py``. Source: MorphGL, sections IV-B and IV-C, with equation 6 as a maximum of three lines, and the CPU's
buffer as the device's divided by the ratio, which is what its tables show.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from graphweft._errors import ConfigError

STEPS = ("cpu_batch", "device_batch", "send", "model")
USUAL_BUFFER = 10
_VARIES = 0.2  # coefficient of variation from which a mean says little
_ROUND = 1e-9  # what a ratio of whole numbers may lose


@dataclass(frozen=True)
class Profile:
    """Mean seconds of a batch at every step.

    Attributes:
        cpu_batch: Prepared by the CPU.
        device_batch: Prepared by the device, which reads the host's memory over the link on the way.
        send: Sent to the device, once the CPU has prepared it.
        model: Trained by the device.
        variation: Coefficient of variation by step, where it was measured.

    Raises: ConfigError for a time that is not a finite number above 0.
    """

    cpu_batch: float
    device_batch: float
    send: float
    model: float
    variation: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in STEPS:
            seconds = getattr(self, name)
            if not (math.isfinite(seconds) and seconds > 0):
                raise ConfigError(f"{name}: expected seconds > 0, got {seconds!r}")

    def unsteady(self) -> list[str]:
        """The steps whose times vary so much that a mean says little."""
        return [name for name, value in self.variation.items() if value > _VARIES]


@dataclass(frozen=True)
class Plan:
    """Batches of one round; 0 leaves a side out.

    The order of an epoch follows from the plan alone: every round trains the device's batches, then those of the CPU,
    by ascending number. So a batch's route is known before anything runs, and so is the order of updates.

    Attributes:
        cpu: Batches that the CPU prepares ahead, the size of its buffer.
        device: Batches that the device prepares ahead, the size of its buffer.
        extra: Batches that the device prepares in a round beyond its buffer, each in the place of one that it trained.

    Raises: ConfigError for sizes without a batch.
    """

    cpu: int
    device: int
    extra: int = 0

    def __post_init__(self) -> None:
        sizes = (self.cpu, self.device, self.extra)
        if min(sizes) < 0 or self.cpu + self.device == 0 or (self.extra and not self.device):
            raise ConfigError(f"plan: expected buffers of at least one batch, got {self}")

    @property
    def mode(self) -> str:
        """Who prepares batches: "cpu", "device" or "both"."""
        return "cpu" if self.device == 0 else "device" if self.cpu == 0 else "both"

    def shown(self) -> str:
        """In words.

        Example:
            >>> Plan(2, 10, 1).shown(), Plan(10, 0).shown()
            ('rounds of 11 batches by the device and 2 by the cpu', 'all batches by the cpu')
        """
        if self.mode != "both":
            return f"all batches by the {self.mode}"
        return f"rounds of {self.device + self.extra} batches by the device and {self.cpu} by the cpu"

    def rounds(self, batches: int) -> list[Round]:
        """The rounds of an epoch; the last one shares out what is left in the same proportion.

        Example:
            >>> Plan(2, 3).rounds(8)
            [Round(first=0, device=3, cpu=2), Round(first=5, device=2, cpu=1)]
        """
        own = self.device + self.extra
        whole = own + self.cpu if self.mode == "both" else max(batches, 1)
        found = []
        for first in range(0, batches, whole):
            count = min(whole, batches - first)
            device = {"cpu": 0, "device": count}.get(self.mode, round(count * own / whole))
            found.append(Round(first, device, count - device))
        return found

    def routes(self, batches: int) -> list[str]:
        """Who prepares each batch of an epoch.

        Example:
            >>> Plan(1, 2).routes(4)
            ['device', 'device', 'cpu', 'device']
        """
        return [name for item in self.rounds(batches) for name in ["device"] * item.device + ["cpu"] * item.cpu]


class Round(NamedTuple):
    """Consecutive batches from ``first`` on: so many by the device, then so many by the CPU."""

    first: int
    device: int
    cpu: int


def epoch_seconds(profile: Profile, ratio: float, batches: float = 1.0) -> float:
    """Seconds of an epoch whose batches are all overlapped, by the busiest of CPU, link and device.

    Args:
        profile: Seconds of the steps.
        ratio: Batches that the device prepares for every one of the CPU; may be infinite.
        batches: Of the epoch.

    Example:
        >>> epoch_seconds(Profile(4.0, 2.0, 1.0, 1.0), 0.0), epoch_seconds(Profile(4.0, 2.0, 1.0, 1.0), 1.0)
        (4.0, 2.0)
    """
    share = 1.0 / (1.0 + ratio)
    by_device = profile.device_batch * (1.0 - share)
    lines = (share * profile.cpu_batch, share * profile.send + by_device, profile.model + by_device)
    return batches * max(lines)


def best_ratio(profile: Profile) -> float:
    """The ratio with the least :func:`epoch_seconds`, the smallest of equals.

    The CPU's line rises with its share, the device's falls; they, or the device's and the link's, cross at the optimum.

    Example:
        >>> best_ratio(Profile(4.0, 2.0, 1.0, 1.0)), best_ratio(Profile(1.0, 2.0, 1.0, 1.5))
        (1.0, 0.0)
    """
    crossing = (profile.cpu_batch - profile.model) / (profile.device_batch + profile.model)
    if profile.device_batch >= profile.send:
        return max(0.0, min(crossing, (profile.cpu_batch - profile.send) / profile.device_batch))
    return max(0.0, crossing, (profile.send - profile.model) / profile.model)


def buffers(ratio: float, device: int = USUAL_BUFFER) -> Plan:
    """The sizes of both buffers, in batches: the CPU's is the device's divided by the ratio, at least 1.

    Example:
        >>> buffers(2 / 3) == Plan(15, 10), buffers(2.0) == Plan(5, 10), buffers(0.0) == Plan(10, 0)
        (True, True, True)
    """
    if device < 1:
        raise ConfigError(f"device: expected batches >= 1, got {device}")
    if ratio <= 0:
        return Plan(device, 0)
    if math.isinf(ratio):
        return Plan(0, device)
    return Plan(max(1, math.floor(device / ratio + _ROUND)), device)


def least_seconds(profile: Profile, batches: int) -> float:
    """A bound: no schedule of so many batches ends earlier, however it shares them out."""
    counts = _near(best_ratio(profile), batches)
    return min(_busiest(profile, batches, count) for count in counts)


def _busiest(profile: Profile, batches: int, by_cpu: int) -> float:
    """The work of the busiest of device, link and CPU."""
    by_device = (batches - by_cpu) * profile.device_batch
    return max(batches * profile.model + by_device, by_device + by_cpu * profile.send, by_cpu * profile.cpu_batch)


def _near(ratio: float, batches: int) -> list[int]:
    """Whole numbers of the CPU's batches around the best share; the work is a convex function of it."""
    middle = int(batches / (1.0 + ratio))
    return [count for count in range(middle - 1, middle + 3) if 0 <= count <= batches]


__all__ = [
    "STEPS",
    "USUAL_BUFFER",
    "Plan",
    "Profile",
    "Round",
    "best_ratio",
    "buffers",
    "epoch_seconds",
    "least_seconds",
]
