"""Launches kernels on a CUDA device that is there, for trials whose arrays lie in host memory.

Comes in: launches, through :func:`watching`. The arrays of each are copied to the device, the kernel runs, and they are
copied back. Results are filled with NaN beforehand.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from cuda.patched import launching

from graphweft.runtime.cuda import jit


class Copies:
    """Host memory of a launch on the device: arrays that share memory share it there, too."""

    def __init__(self) -> None:
        self.pairs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def there(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on the device."""
        memory = tensor.untyped_storage()
        if not memory.nbytes():
            return torch.zeros(tensor.shape, dtype=tensor.dtype, device="cuda")
        if memory.data_ptr() not in self.pairs:
            host = torch.zeros(0, dtype=torch.uint8).set_(memory)
            self.pairs[memory.data_ptr()] = host, host.cuda()
        copy = self.pairs[memory.data_ptr()][1].untyped_storage()
        made = torch.zeros(0, dtype=tensor.dtype, device="cuda")
        return made.set_(copy, tensor.storage_offset(), tensor.size(), tensor.stride())

    def back(self) -> None:
        """All of it to host memory."""
        for host, copy in self.pairs.values():
            host.copy_(copy)


@contextlib.contextmanager
def watching() -> Iterator[list[Any]]:
    """Inside, every launch runs on the device; yields the kernels that were launched."""
    launched, inner = list[Any](), jit.launch

    def launch(kernel: Any, grid: tuple[int, ...], *given: Any, through: Sequence[Any] = (), **fixed: Any) -> None:
        copies = Copies()
        launched.append(kernel)
        with torch.no_grad():
            moved = [copies.there(item.detach()) if isinstance(item, torch.Tensor) else item for item in given]
            places = {t.data_ptr(): copies.there(t.detach()).data_ptr() for t in through}
            if places:  # which stand in the first one
                moved[0] = torch.tensor([places.get(word, word) for word in given[0].tolist()], device="cuda")
            inner(kernel, grid, *moved, **fixed)
            copies.back()

    with launching(launch):
        yield launched


__all__ = ["watching"]
