"""Where a prepared batch goes: the memory that the model reads.

Comes in: arrays in host memory. Goes out: the same in the second tier, and how many bytes that took. Called by the
preparation of batches. On a machine without a device the second tier is host memory of the pool, used again and again.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor

from graphweft._checks import check_device
from graphweft._memory import empty


class Tier:
    """The memory of ``device``; "cpu" stands for a device on a machine without one.

    Attributes:
        bytes: Sent so far.
        sends: How often.

    Example:
        >>> tier = Tier()
        >>> there = tier.room((2,), torch.float32)
        >>> tier.send(torch.tensor([1.0, 2.0]), there)
        >>> there.tolist(), tier.bytes, tier.sends
        ([1.0, 2.0], 8, 1)
    """

    def __init__(self, device: str | torch.device = "cpu") -> None:
        self.device = check_device("Tier", device)
        self.bytes = self.sends = 0
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def room(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Memory in the tier."""
        if self.device.type == "cpu":
            return empty(shape, dtype)
        return torch.empty(shape, dtype=dtype, device=self.device)

    def staging(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Host memory from which copies to the tier are fastest: pinned pages for a device."""
        if self.device.type == "cpu":
            return empty(shape, dtype)
        return torch.empty(shape, dtype=dtype, pin_memory=True)

    def send(self, source: Tensor, target: Tensor) -> None:
        """Copies, and returns when ``source`` may be written again."""
        target.copy_(source, non_blocking=True)
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        with self._lock:
            self.bytes += source.numel() * source.element_size()
            self.sends += 1
