"""Memory of the host that kernels read, and rows of a table of which the hot ones lie on the device.

Comes in: tensors in host memory. Goes out: the same, pinned where they lie, and rows of batches on the device, by one
launch for both kinds of rows. Called by loaders and samplers through the target. On Linux a device reads pinned memory
at the host's own addresses, so a kernel takes such a tensor like any other. Without a device, as in Triton's
interpreter, all memory is the host's. Source: PyTorch-Direct (Min et al., VLDB 2021).
"""

from __future__ import annotations

import contextlib
import weakref

import torch
from torch import Tensor

from graphweft._errors import ConfigError
from graphweft.codegen.edge_triton import padded
from graphweft.runtime.cuda import sampling_kernels as kernels
from graphweft.runtime.cuda.jit import warps_for
from graphweft.runtime.cuda.streams import Aside, pinned

_PORTABLE = 1  # cudaHostRegisterPortable: pinned for all devices
_WORDS, _ELEMENTS = 128, 1024  # of a row at once, of a block
_pins: weakref.WeakValueDictionary[tuple[int, int], Pinned] = weakref.WeakValueDictionary()


class Pinned:
    """A tensor's memory, pinned where it lies as long as this lives.

    Attributes:
        tensor: The tensor, which kernels may read.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self._end = weakref.finalize(self, _unpin, tensor)


def readable(tensor: Tensor, device: torch.device) -> Pinned | Tensor:
    """Holds ``tensor``, whose memory kernels on ``device`` may read as long as this is held.

    Raises: ConfigError where the driver does not pin it.
    """
    if (
        device.type != "cuda"
        or not tensor.nbytes
        or (tensor.is_pinned() and (tensor.data_ptr(), tensor.nbytes) not in _pins)
    ):
        return tensor
    key = tensor.data_ptr(), tensor.nbytes
    found = _pins.get(key)
    if found is None:
        with torch.cuda.device(device):
            code = int(torch.cuda.cudart().cudaHostRegister(*key, _PORTABLE))  # type: ignore[no-untyped-call]
            if code:
                _forget_error(device)
                raise ConfigError(f"device: expected {key[1]} bytes of host memory to pin, got CUDA's error {code}")
        found = _pins[key] = Pinned(tensor)
    return found


def _unpin(tensor: Tensor) -> None:
    """Kernels that read it are over then."""
    with contextlib.suppress(RuntimeError):
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaHostUnregister(tensor.data_ptr())  # type: ignore[no-untyped-call]


def _forget_error(device: torch.device) -> None:
    """The next launch reports the driver's last error, whosever that was."""
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device=device)


class RowReader:
    """Rows of a table, some of which lie on the device.

    Args:
        table: (n, ...) in host memory, contiguous.
        kept: int64 ids of the rows that the device keeps, each once.
        there: Those rows, on the device.
        device: Where rows are wanted.

    Attributes:
        hits: Rows of batches that were read on the device.

    Raises: ConfigError for memory that the device cannot read.
    """

    def __init__(self, table: Tensor, kept: Tensor, there: Tensor, device: torch.device) -> None:
        if not table.is_contiguous():
            raise ConfigError("far_rows: expected features without gaps between rows, got a view")
        self._table, self._device, self._aside = table, device, Aside(device)
        self._held = readable(table, device)
        places = torch.full((table.shape[0],), -1, dtype=torch.int32)
        places[kept] = torch.arange(kept.numel(), dtype=torch.int32)
        self._places, self._there = places.to(device), there
        row = table[:1].nbytes
        self._kind = next(kind for kind in (torch.int32, torch.int16, torch.uint8) if row % kind.itemsize == 0)
        self._width = row // self._kind.itemsize
        self.hits = 0

    @property
    def nbytes(self) -> int:
        """Bytes on the device beside the rows: a number for every row of the table."""
        return self._places.nbytes

    def forget_hits(self) -> None:
        """Counts anew."""
        self.hits = 0

    def __call__(self, n_id: Tensor) -> Tensor:
        """Rows ``n_id``, int64 ids in host memory or on the device, there."""
        count, width = n_id.numel(), self._width
        with self._aside.running():
            ids = pinned(n_id).to(self._device, non_blocking=True)
            out = torch.empty((count, *self._table.shape[1:]), dtype=self._table.dtype, device=self._device)
            if count and width:
                tile = min(padded(width), _WORDS)
                at_once = max(1, _ELEMENTS // tile)
                programs = -(-count // at_once)
                hits = torch.empty(programs, dtype=torch.int32, device=self._device)
                arrays = (ids, self._places, *map(self._words, (self._there, self._table)), self._words(out), hits)
                fixed = {"W": width, "BW": tile, "BR": at_once, "warps": warps_for(tile * at_once)}
                kernels.read_rows((programs,), *arrays, count, **fixed)
                self.hits += int(hits.sum())  # waits for this stream alone, as the end does
            self._aside.hand_over(out)
        return out

    def _words(self, rows: Tensor) -> Tensor:
        """The same memory as whole numbers, whose bits arrive as they are."""
        return rows.reshape(rows.shape[0], -1).view(self._kind) if rows.numel() else rows.new_empty(0, dtype=self._kind)


__all__ = ["Pinned", "RowReader", "readable"]
