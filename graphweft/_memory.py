"""Buffers that are reused: a pool of huge-page memory behind ordinary torch tensors.

Comes in: a shape and dtype. Goes out: a tensor whose memory returns to the pool when its last reference dies. Called by
the graph, data and runtime layers for anything of node or edge size. Steady-state training maps and faults no new
pages.
"""

from __future__ import annotations

import ctypes
import threading
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import torch

from graphweft._native import declare

_HUGE = 1 << 21
_SMALL = 1 << 20  # below this, torch's own allocator serves

_map = declare("gw_pages_map", ctypes.c_int64, ctypes.POINTER(ctypes.c_void_p))
_unmap = declare("gw_pages_unmap", ctypes.c_void_p, ctypes.c_int64)


@dataclass(frozen=True)
class PoolStats:
    """Bytes of the pool: mapped from the system, lent to live tensors, most ever lent, and number of mappings made."""

    mapped: int
    lent: int
    peak_lent: int
    maps: int


class _Lease:
    """Owns one region while a tensor lives; gives it back to the pool when the tensor dies."""

    def __init__(self, pool: Pool, address: int, size: int, nbytes: int) -> None:
        self._pool, self._address, self._size = pool, address, size
        self.__array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3}

    def __del__(self) -> None:
        self._pool._give_back(self._address, self._size)


class Pool:
    """Regions of whole huge pages by size class; a size class is at most 1/8 larger than what was asked for."""

    def __init__(self) -> None:
        self._free: dict[int, list[int]] = defaultdict(list)
        self._lock = threading.RLock()  # a tensor may die, and give back, inside a pool call of the same thread
        self._mapped = self._lent = self._peak = self._maps = 0

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """An uninitialised tensor of ``shape``; rows are contiguous."""
        nbytes = dtype.itemsize
        for size in shape:
            nbytes *= size
        if nbytes < _SMALL:
            return torch.empty(shape, dtype=dtype)
        size = _size_class(nbytes)
        address = self._take(size)
        flat = torch.from_numpy(np.asarray(_Lease(self, address, size, nbytes)))
        return flat.view(dtype).view(shape)

    def stats(self) -> PoolStats:
        """What the pool holds now."""
        with self._lock:
            return PoolStats(self._mapped, self._lent, self._peak, self._maps)

    def trim(self) -> None:
        """Returns all free regions to the system."""
        with self._lock:
            for size, addresses in self._free.items():
                for address in addresses:
                    _unmap(address, size)
                    self._mapped -= size
            self._free.clear()

    def _take(self, size: int) -> int:
        with self._lock:
            self._lent += size
            self._peak = max(self._peak, self._lent)
            for candidate in (size, *(s for s in sorted(self._free) if size < s <= size + size // 4)):
                if self._free.get(candidate):
                    address = self._free[candidate].pop()
                    if candidate != size:  # keep the books in the class it was mapped as
                        _unmap(address + size, candidate - size)
                        self._mapped -= candidate - size
                    return address
            out = ctypes.c_void_p()
            try:
                _map(size, ctypes.byref(out))
            except MemoryError:
                self.trim()
                _map(size, ctypes.byref(out))
            self._mapped += size
            self._maps += 1
            return int(out.value or 0)

    def _give_back(self, address: int, size: int) -> None:
        with self._lock:
            self._free[size].append(address)
            self._lent -= size


def _size_class(nbytes: int) -> int:
    """Whole huge pages, rounded so that classes are at most 1/8 apart."""
    pages = -(-nbytes // _HUGE)
    step = 1 << max(0, pages.bit_length() - 4)
    return -(-pages // step) * step * _HUGE


POOL = Pool()
empty = POOL.empty
