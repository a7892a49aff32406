"""Buffers that are reused: a pool of huge-page memory behind ordinary torch tensors.

Comes in: a shape and dtype. Goes out: a tensor whose memory returns to the pool when its last reference dies. Called
by the graph, data and runtime layers for anything of node or edge size. Steady-state training maps and faults no new
pages. Free memory is kept as intervals of address space: neighbours merge, a request takes the end of the smallest
one that it fits, and a mapping continues the lowest one, so that what the pool holds stays near the most that was ever
in use at once. A tensor may die anywhere, also where the garbage collector runs inside a call of the pool: its region
waits in a queue until the next call, and nothing changes the intervals while they are read.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import functools
import mmap
import sys
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from graphweft import _budget
from graphweft._errors import MemoryBudgetError
from graphweft._native import declare

_HUGE = 1 << 21
_HOST = torch.device("cpu")
GRAIN = 1 << 16  # sizes are rounded to this, so that a region starts on its own pages and little is wasted
_ROOMY = 1 << 23  # from here on a region for tensors of several sizes is larger than the first of them
SMALL = GRAIN  # below this torch's own allocator serves: what would waste most of a region

# Below this address the pool of a process maps, far from where the system puts what others map, such as large blocks of
# the C library's heap: with one of these in between, two free intervals are not one.
_AREA = 1 << 45 if sys.maxsize > 1 << 32 else 0

_PAGE = mmap.PAGESIZE
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # names of mallopt's options in <malloc.h>
LEAN = 1 << 18  # bytes of a freed block that a lean heap gives back
_USUAL_MMAPS = 65536  # blocks that the GNU C library maps at most

_NUMPY: dict[torch.dtype, type[np.generic]] = {
    torch.float32: np.float32, torch.float64: np.float64, torch.int64: np.int64, torch.int32: np.int32,
    torch.int16: np.int16, torch.int8: np.int8, torch.uint8: np.uint8, torch.bool: np.bool_,
}  # fmt: skip

_map = declare("gw_pages_map", recorded=False)
_unmap = declare("gw_pages_unmap", recorded=False)
_trim_heap = declare("gw_heap_trim", recorded=False)


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
        self._pool._leases.pop(self._address, None)
        noted = self._pool._noted  # another thread may stop noting meanwhile
        if noted is not None:
            noted.append((self._address, 0))
        self._pool._returned.append((self._address, self._size))  # without the lock, which this thread may hold


class _Redirection(threading.local):
    """The pool that serves in another's place, per thread."""

    arena: Pool | None = None
    spills = False
    handed: torch.Tensor | None = None


class Pool:
    """Regions cut from and merged into intervals of mapped huge pages.

    Args:
        area: The address below which it maps; 0: wherever the system says.

    Attributes:
        page: Mappings are as large as this, or a multiple.
    """

    page = _HUGE

    def __init__(self, area: int = 0) -> None:
        self._starts: list[int] = []  # of the free intervals, ascending; none touches the next
        self._sizes: dict[int, int] = {}
        self._returned: deque[tuple[int, int]] = deque()  # regions of dead tensors, on their way to the free ones
        self._lock = threading.RLock()
        self._leases: dict[int, int] = {}  # address and size of what is lent
        self._mapped = self._lent = self._peak = self._maps = 0
        self._last = area  # the latest mapping begins here
        self._confined = False
        self._noted: list[tuple[int, int]] | None = None
        self._redirection = _Redirection()

    @contextlib.contextmanager
    def noting(self, found: list[tuple[int, int]]) -> Iterator[None]:
        """``found`` gets the tensors of the block: address and bytes of each, 0 bytes once its region is free.

        Not within another such block.
        """
        self._noted = found
        try:
            yield
        finally:
            self._noted = None

    @contextlib.contextmanager
    def within(self, arena: Pool | None, spills: bool = False) -> Iterator[None]:
        """Takes this thread's tensors from ``arena`` instead; None leaves things as they are.

        ``spills``: what does not fit a confined arena comes from here after all.
        """
        before = self._redirection.arena, self._redirection.spills
        if arena is not None:
            self._redirection.arena, self._redirection.spills = arena, spills
        try:
            yield
        finally:
            self._redirection.arena, self._redirection.spills = before

    @contextlib.contextmanager
    def handing(self, made: torch.Tensor) -> Iterator[None]:
        """The first tensor of its shape and dtype that this thread asks for is ``made``, where a result is to go."""
        self._redirection.handed = made
        try:
            yield
        finally:
            self._redirection.handed = None

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32, roomy: bool = False) -> torch.Tensor:
        """An uninitialised tensor of ``shape``; rows are contiguous.

        ``roomy``: others of about its size will follow, as of a loader's batches. Its region then fits most of them,
        and no pages are touched for those that are a little larger. Within a budget it is as large as it must be.
        """
        handed = self._redirection.handed
        if handed is not None and handed.shape == shape and handed.dtype == dtype:
            self._redirection.handed = None
            return handed
        if self._redirection.arena is not None:
            try:
                return self._redirection.arena.empty(shape, dtype)
            except MemoryError:
                if not self._redirection.spills:
                    raise
        nbytes = dtype.itemsize
        for size in shape:
            nbytes *= size
        if nbytes < SMALL:
            return torch.empty(shape, dtype=dtype, device=_HOST)
        size = self.rounded(nbytes)
        if roomy and size >= _ROOMY and _budget.in_force() is None:
            step = 1 << (size.bit_length() - 4)  # eight sizes up to the next power of two
            size = -(-size // step) * step
        address = self._take(size)
        self._leases[address] = size
        noted = self._noted
        if noted is not None:
            noted.append((address, nbytes))
        flat = np.asarray(_Lease(self, address, size, nbytes))
        known = _NUMPY.get(dtype)
        if known is None:  # a dtype that NumPy lacks
            return torch.from_numpy(flat).view(dtype).view(shape)
        return torch.from_numpy(flat.view(known).reshape(shape))  # no view for torch: it owns its storage alone

    @staticmethod
    def rounded(nbytes: int) -> int:
        """The size of the region for so many bytes."""
        return -(-nbytes // GRAIN) * GRAIN

    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's memory came from here."""
        begin = tensor.data_ptr()
        end = begin + tensor.nbytes
        return any(address <= begin and end <= address + size for address, size in self._leases.copy().items())

    def holds(self, address: int) -> bool:
        """Whether memory that is mapped here, lent or free, has the address."""
        with self._lock:
            self._take_up()
            mapped = (*self._leases.copy().items(), *self._sizes.items())
        return any(begin <= address < begin + size for begin, size in mapped)

    def stats(self) -> PoolStats:
        """What the pool holds now."""
        with self._lock:
            self._take_up()
            return PoolStats(self._mapped, self._lent, self._peak, self._maps)

    def begin_peak(self) -> int:
        """Bytes lent now, from which on ``stats().peak_lent`` counts."""
        with self._lock:
            self._take_up()
            self._peak = self._lent
            return self._lent

    def trim(self) -> None:
        """Returns all free memory to the system, that of the C library's heap too."""
        _trim_heap()
        self._unmap_free()

    def __del__(self) -> None:
        if self._confined:  # an arena whose last tensor outlived its user
            self._unmap_free()

    def give_pages(self, nbytes: int) -> int:
        """Gives the system whole pages of free memory that is taken last, at most ``nbytes``; how many bytes.

        They stay mapped, and are there again once they are touched.
        """
        advise, given = getattr(ctypes.CDLL(None), "madvise", None), 0
        if advise is None:  # the system does not take them
            return 0
        with self._lock:
            self._take_up()
            for start in sorted(self._starts, key=self._sizes.__getitem__, reverse=True):
                first, last = -(-start // self.page), (start + self._sizes[start]) // self.page
                size = self.page * min(last - first, (nbytes - given) // self.page)
                if size <= 0:
                    continue
                at = ctypes.c_void_p(first * self.page)
                if advise(at, ctypes.c_size_t(size), mmap.MADV_DONTNEED) == 0:
                    _counts_untouched(first * self.page, size)
                    given += size
        return given

    def _unmap_free(self) -> None:
        """Returns the free intervals; they are no longer listed when the first of them goes."""
        with self._lock:
            self._take_up()
            free, self._sizes = self._sizes, {}
            self._starts.clear()
            self._mapped -= sum(free.values())
            for start, size in free.items():
                _forget_mapping(start, size)  # its addresses may be another's next
                _unmap(start, size)

    def _take_up(self) -> None:
        """The regions of dead tensors are free from now on; the caller has the lock."""
        while self._returned:
            self._give_back(*self._returned.popleft())

    def _release(self) -> None:
        """Gives the system all that is free, here and in the pool that everything else comes from."""
        self.trim()
        if self is not POOL:
            POOL.trim()

    def confine(self, nbytes: int) -> None:
        """Maps one free interval of at least ``nbytes``, and nothing more from now on: MemoryError instead."""
        with self._lock:
            self._map_free(max(nbytes, 1))
            self._confined = True

    def _take(self, size: int) -> int:
        """Address of ``size`` bytes: the end of a free interval, so that what is free gathers where mappings go on."""
        with self._lock:
            self._take_up()
            start = self._fitting(size)
            if start is None:
                self._grow(size)
                start = self._fitting(size)
            assert start is not None  # what grew holds it
            free = self._remove(start)
            if free > size:
                self._insert(start, free - size)
            self._lent += size
            self._peak = max(self._peak, self._lent)
            return start + free - size

    def _fitting(self, size: int) -> int | None:
        """The smallest free interval of so many bytes, of equal ones the highest; None where there is none."""
        fitting = ((free, -start) for start, free in self._sizes.items() if free >= size)
        return -min(fitting, default=(0, 0))[1] or None

    def _grow(self, size: int) -> None:
        """Maps what the free interval that the latest mapping begins with lacks of ``size`` bytes."""
        if self._confined:
            raise MemoryError("this pool's interval is full")
        for _ in range(2):  # free memory may have been given back to make room, that interval as well
            self._map_free(size - self._sizes.get(self._last, 0))
            if self._sizes.get(self._last, 0) >= size:
                return
        self._map_free(size)  # the addresses below it are others'

    def _map_free(self, size: int) -> None:
        """Maps whole pages, for at least ``size`` bytes, that are free from now on."""
        whole = -(-size // self.page) * self.page
        self._give_back(self._map(whole), whole, lent=0)

    def _admit(self, size: int) -> None:
        """Asks the budget for ``size`` bytes, beside pages that are mapped and do not count before they are touched."""
        if _budget.in_force() is None:
            return
        with contextlib.suppress(MemoryBudgetError):
            _budget.admit(size + _untouched_bytes(), self._release)
            return
        _budget.admit(size + _untouched_bytes(), self._release)  # by now some of them were given back

    def _map(self, size: int) -> int:
        self._admit(size)
        out = ctypes.c_void_p(self._last - size if self._last > size else None)  # both become one interval
        try:
            _map(size, ctypes.byref(out))
        except MemoryError:
            self.trim()
            out = ctypes.c_void_p()
            _map(size, ctypes.byref(out))
        self._mapped += size
        self._maps += 1
        self._last = int(out.value or 0)
        _counts_untouched(self._last, size)
        return self._last

    def _give_back(self, start: int, size: int, lent: int | None = None) -> None:
        """Adds an interval, merged with the free ones before and behind it."""
        with self._lock:
            self._lent -= size if lent is None else lent
            at = bisect.bisect_left(self._starts, start)
            if at < len(self._starts) and self._starts[at] == start + size:
                size += self._remove(self._starts[at])
            if at > 0 and self._starts[at - 1] + self._sizes[self._starts[at - 1]] == start:
                start = self._starts[at - 1]
                size += self._remove(start)
            self._insert(start, size)

    def _insert(self, start: int, size: int) -> None:
        bisect.insort(self._starts, start)
        self._sizes[start] = size

    def _remove(self, start: int) -> int:
        del self._starts[bisect.bisect_left(self._starts, start)]
        return self._sizes.pop(start)


# Mappings of all pools that were not seen with all of their pages yet: start, size and the budget that admitted them.
_untouched: dict[int, tuple[int, _budget.Budget]] = {}


def _counts_untouched(start: int, size: int) -> None:
    """The budget in force counts these pages, of which none is there, until all of them were touched."""
    budget = _budget.in_force()
    if budget is not None:
        _forget_mapping(start, size)
        _untouched[start] = (size, budget)


def _forget_mapping(start: int, size: int) -> None:
    """What is unmapped, or mapped anew, is no longer part of an earlier mapping.

    Entries change one by one: other threads, and pools that a garbage collection ends meanwhile, change theirs.
    """
    end = start + size
    for at, (n, budget) in list(_untouched.items()):
        if at < end and start < at + n and _untouched.pop(at, None) is not None:
            if at < start:
                _untouched[at] = (start - at, budget)
            if at + n > end:
                _untouched[end] = (at + n - end, budget)


def _untouched_bytes() -> int:
    """Bytes that the budget in force admitted and that the system counts only once they are touched.

    Other runs of this process may have mapped more than they touch: that is theirs.
    """
    total = 0
    for start, (size, budget) in list(_untouched.items()):
        if budget is not _budget.in_force():
            continue
        missing = _missing_bytes(start, size)
        total += missing
        if not missing:
            _untouched.pop(start, None)
    return total


def _missing_bytes(start: int, size: int) -> int:
    """Bytes of a mapping whose pages are not there; 0 where the system does not tell, or it is no mapping any more."""
    ask = getattr(ctypes.CDLL(None), "mincore", None)
    if ask is None:
        return 0
    there = np.zeros(-(-size // _PAGE), np.uint8)
    failed = ask(ctypes.c_void_p(start), ctypes.c_size_t(size), ctypes.c_void_p(there.ctypes.data))
    if failed and size > GRAIN:  # part of it was given back
        return sum(_missing_bytes(at, min(GRAIN, start + size - at)) for at in range(start, start + size, GRAIN))
    return 0 if failed else _PAGE * int((there & 1 == 0).sum())


def trim_heap() -> None:
    """Returns what the C library's heap has free to the system."""
    _trim_heap()


@functools.cache
def keep_heap() -> bool:
    """From now on the C library keeps freed memory of any size, as the pool does; whether it can do so.

    Left alone it maps every block above 32 MiB anew and unmaps it when it is freed, so that a step of training in plain
    torch faults all pages of its large tensors again. :meth:`Pool.trim` returns what is kept.
    """
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is None or heap_is_lean():  # not the GNU C library, or it is to keep little
        return False
    return bool(option(_MMAP_MAX, 0)) and bool(option(_TRIM_THRESHOLD, -1))


@functools.cache
def lean_heap() -> bool:
    """From now on the C library gives freed blocks of 256 KiB and more back at once; whether it can do so.

    Left alone it does so from 128 KiB up, but a block that is freed raises that bound to its own size, up to 32 MiB:
    then tensors of torch's own leave tens of megabytes behind, in gaps that the next ones do not fit.
    """
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is None:  # not the GNU C library
        return False
    sizes = {_MMAP_MAX: _USUAL_MMAPS, _MMAP_THRESHOLD: LEAN, _TRIM_THRESHOLD: LEAN}
    return all([option(name, value) for name, value in sizes.items()])


def heap_is_lean() -> bool:
    """Whether :func:`lean_heap` was called."""
    return bool(lean_heap.cache_info().currsize)


class _MallInfo(ctypes.Structure):
    """``struct mallinfo2`` of <malloc.h>: counts of bytes."""

    _fields_ = tuple((f"count{i}", ctypes.c_size_t) for i in range(10))
    in_use, mapped = property(lambda self: self.count7), property(lambda self: self.count4)  # uordblks, hblkhd


def heap_bytes() -> int:
    """Bytes of the C library's heap that are in use, as those of torch's own tensors; 0 where it does not tell."""
    ask = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if ask is None:  # not the GNU C library, or one before 2.33
        return 0
    ask.restype = _MallInfo
    found = ask()
    return int(found.in_use + found.mapped)


POOL = Pool(_AREA)
empty = POOL.empty
