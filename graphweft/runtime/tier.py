"""Another memory that rows move to: the one that a step reads.

Comes in: arrays in host memory. Goes out: the same in the second tier, at once or while other work goes on, and how
many bytes that took. Called by the preparation of batches and by the launchers of ``move_start`` and ``move_wait``. On
a machine without a device the second tier is host memory of the pool, used again and again.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from graphweft._checks import check_device
from graphweft._memory import empty


class Arrival:
    """Rows on their way to a tier."""

    def __init__(self, there: Tensor, sent: Future[None]) -> None:
        self._there, self._sent = there, sent

    def wait(self) -> Tensor:
        """The rows, once they are there."""
        self._sent.result()
        return self._there


class Tier:
    """The memory of ``device``; "cpu" emulates a device on a machine without one.

    Attributes:
        bytes: Bytes that were sent so far.
        sends: Number of transfers so far.

    Example:
        >>> tier = Tier()
        >>> there = tier.room((2,), torch.float32)
        >>> tier.send(torch.tensor([1.0, 2.0]), there)
        >>> there.tolist(), tier.bytes, tier.sends
        ([1.0, 2.0], 8, 1)
        >>> tier.begin(torch.tensor([3.0])).wait().tolist()
        [3.0]
    """

    def __init__(self, device: str | torch.device = "cpu") -> None:
        self.device = check_device("Tier", device)
        self.bytes = self.sends = 0
        self._begin()

    def _begin(self) -> None:
        self._lock, self._mover = threading.Lock(), ThreadPoolExecutor(1, "graphweft-tier")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_mover")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def room(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Allocates memory in the tier."""
        if self.device.type == "cpu":
            return empty(shape, dtype)
        return torch.empty(shape, dtype=dtype, device=self.device)

    def staging(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Allocates host memory for fast copies to the tier: pinned pages for a device."""
        if self.device.type == "cpu":
            return empty(shape, dtype)
        return torch.empty(shape, dtype=dtype, pin_memory=True)

    def send(self, source: Tensor, target: Tensor) -> None:
        """Copies ``source`` to the tier, and returns when ``source`` may be written again."""
        target.copy_(source, non_blocking=True)
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        with self._lock:
            self.bytes += source.numel() * source.element_size()
            self.sends += 1

    def begin(self, source: Tensor) -> Arrival:
        """Starts :meth:`send` to newly allocated memory in a thread of the tier."""
        there = self.room(tuple(source.shape), source.dtype)
        return Arrival(there, self._mover.submit(self.send, source, there))


__all__ = ["Arrival", "Tier"]
