"""Work beside the current stream, and numbers that the host reads without waiting for what was launched after them.

Comes in: tensors and devices. Goes out: the same, later or elsewhere. Called by the sampler, and by trainers through
the target. Without a CUDA device, as in Triton's interpreter, everything happens at once.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import torch
from torch import Tensor


class Aside:
    """A stream for each thread, so that waiting for a number does not mean waiting for the training that was launched.

    Args:
        device: Where.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._threads = device, threading.local()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """What is launched inside runs aside, and is over at the end."""
        if self._device.type != "cuda":
            yield
            return
        stream = getattr(self._threads, "stream", None)
        if stream is None:
            stream = self._threads.stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            yield
        stream.synchronize()

    def hand_over(self, *made: Tensor) -> None:
        """Memory of ``made`` is not used again before the launches that read it by then are over."""
        if self._device.type == "cuda":
            for tensor in made:
                tensor.record_stream(torch.cuda.default_stream(self._device))


class Sender:
    """Copies of tensors in host memory, through pinned memory and beside what is launched meanwhile.

    Args:
        device: Where they go.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._aside = device, Aside(device)

    def __call__(self, *arrays: Tensor) -> tuple[Tensor, ...]:
        """The arrays on the device; the caller waits until they are there."""
        with self._aside.running():
            there = tuple(pinned(array).to(self._device, non_blocking=True) for array in arrays)
            self._aside.hand_over(*there)
        return there


def later(number: Tensor) -> Callable[[], float]:
    """What reads ``number``, shape (), as it is now; the host waits then for what was launched before this call."""
    if number.device.type != "cuda":
        copy = number.detach().clone()
        return lambda: float(copy)
    there = torch.empty((), dtype=number.dtype, pin_memory=True)
    there.copy_(number.detach(), non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record(torch.cuda.current_stream(number.device))

    def read() -> float:
        arrived.synchronize()
        return float(there)

    return read


def pinned(source: Tensor) -> Tensor:
    """In host memory that a device reads while the host goes on."""
    is_host = source.device.type == "cpu" and torch.cuda.is_available()
    return source.pin_memory() if is_host else source


__all__ = ["Aside", "Sender", "later", "pinned"]
