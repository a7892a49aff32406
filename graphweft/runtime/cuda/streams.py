"""Work beside the current stream, and numbers that the host reads without waiting for what was launched after them.

Comes in: tensors and devices. Goes out: the same, later or elsewhere. Called by the sampler, and by trainers through
the target. Without a CUDA device, as in Triton's interpreter, everything happens at once.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

_free = collections.defaultdict[torch.device, list[Any]](list)


@contextlib.contextmanager
def borrowed(device: torch.device) -> Iterator[Any]:
    """A stream that nobody else uses in the block.

    Streams are given back and used again, by whichever thread: torch has 32 of them, and begins again with the first.
    Two users of one stream would wait for each other, and one could not wait for it while the other records.
    """
    free = _free[device]
    try:
        stream = free.pop()
    except IndexError:
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    try:
        yield stream
    finally:
        free.append(stream)


class Aside:
    """Work on a stream of its own, so that waiting for a number does not mean waiting for what else was launched.

    Args:
        device: Where.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """What is launched inside runs aside, and is over at the end."""
        if self._device.type != "cuda":
            yield
            return
        with borrowed(self._device) as stream:
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


__all__ = ["Aside", "Sender", "borrowed", "later", "pinned"]
