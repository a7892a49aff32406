"""Values with tensors as bytes for another process: a small head, and the tensors' memory as it lies.

Comes in: anything that pickle takes. Goes out: a head and buffers, and from them the value again. Things that both
sides have, such as a graph, are sent by name. Called by the emulated device, whose link is timed by these bytes.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_ALIGNED = 64  # bytes at which a buffer begins


class _Packer(pickle.Pickler):
    """Tensors of the CPU go as buffers, known things by name."""

    def __init__(self, file: io.BytesIO, buffers: list[pickle.PickleBuffer], names: Mapping[int, str]) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffers.append)
        self._names = names

    def persistent_id(self, item: Any) -> str | None:
        """The name of what both sides have."""
        return self._names.get(id(item))

    def reducer_override(self, item: Any) -> Any:
        """A plain tensor as its bytes."""
        if type(item) is not Tensor or item.layout != torch.strided or item.device.type != "cpu":
            return NotImplemented
        flat = item.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        return _tensor, (pickle.PickleBuffer(flat.data), str(item.dtype)[6:], tuple(item.shape), item.requires_grad)


class _Unpacker(pickle.Unpickler):
    """The other side."""

    def __init__(self, head: bytes, buffers: Sequence[memoryview], known: Mapping[str, Any]) -> None:
        super().__init__(io.BytesIO(head), buffers=buffers)
        self._known = known

    def persistent_load(self, name: str) -> Any:
        """What is had here under the name."""
        return self._known[name]


def pack(value: Any, known: Mapping[str, Any] | None = None) -> tuple[bytes, list[memoryview]]:
    """Head and buffers of ``value``; ``known`` are things by name that the other side has as well.

    Raises: as pickle, for what it does not take.

    Example:
        >>> table = torch.eye(2)
        >>> head, buffers = pack((table, torch.ones(3)), {"table": table})
        >>> len(buffers), unpack(head, buffers, {"table": "here"})
        (1, ('here', tensor([1., 1., 1.])))
    """
    file, found = io.BytesIO(), list[pickle.PickleBuffer]()
    _Packer(file, found, {id(item): name for name, item in (known or {}).items()}).dump(value)
    return file.getvalue(), [buffer.raw() for buffer in found]


def unpack(head: bytes, buffers: Sequence[memoryview], known: Mapping[str, Any] | None = None) -> Any:
    """The inverse of :func:`pack`; tensors share the memory of the buffers."""
    return _Unpacker(head, buffers, known or {}).load()


def lay_out(buffers: Sequence[memoryview]) -> tuple[list[tuple[int, int]], int]:
    """Where each buffer lies in one piece of memory, as (begin, bytes), and the bytes of all.

    Example:
        >>> lay_out([memoryview(b"abc"), memoryview(b"de")])
        ([(0, 3), (64, 2)], 66)
    """
    places, end = [], 0
    for buffer in buffers:
        begin = -(-end // _ALIGNED) * _ALIGNED
        places.append((begin, buffer.nbytes))
        end = begin + buffer.nbytes
    return places, end


def copied(memory: memoryview, places: Sequence[tuple[int, int]]) -> list[memoryview]:
    """Buffers of their own with what lies at ``places``."""
    found = []
    for begin, size in places:
        room = torch.empty(size, dtype=torch.uint8).numpy().data
        room[:] = memory[begin : begin + size]
        found.append(room)
    return found


def _tensor(buffer: Any, dtype: str, shape: tuple[int, ...], requires_grad: bool) -> Tensor:
    """A tensor over the memory of a buffer."""
    kind: torch.dtype = getattr(torch, dtype)
    view = memoryview(buffer)
    made = torch.frombuffer(view, dtype=kind) if view.nbytes else torch.empty(0, dtype=kind)
    return made.reshape(shape).requires_grad_(requires_grad)


__all__ = ["copied", "lay_out", "pack", "unpack"]
