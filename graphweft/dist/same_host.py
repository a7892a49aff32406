"""Messages between ranks of one host: the receiver copies them out of the sender's memory, once.

Comes in: tensors to send and to fill. Goes out: the same as with sockets, in one copy. Called by
:class:`graphweft.dist.ranks.Ranks` where all ranks are on one host and may read each other's memory (Linux's
``process_vm_readv``); elsewhere messages go through torch.distributed. Where a message lies is told in one block of
shared memory without a name: nothing is left behind, however the processes end.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import mmap
import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from graphweft._trace import span

_SLOTS = 64  # messages of a pair under way
_SUMS = 4  # sums under way
_TRACER = 0x59616D61  # PR_SET_PTRACER: processes of the same starter may read this one's memory where Yama restricts it
MOST_SUMMED = 1 << 20  # bytes that every rank reads of every other to add them up
_SPINS, _YIELDS = 20, 20  # looks before a waiting rank yields, and before it sleeps
_NAP, _LONG_NAP = 3e-5, 5e-4  # seconds
_LOOK = 0.2  # seconds between two looks whether the other process is alive


class _Span(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]


class SameHost:
    """The ranks of one host.

    Args:
        rank: This one.
        pids: Process of each.
        table: Shared memory, int64 (size, size, 2 + 2 * slots): for sender and receiver how many messages were posted,
            how many were read, then address and size of the last ones.
        timeout: Seconds to wait for another rank.
        sums: A table like ``table`` for the messages of sums, whose order among other messages may differ by rank.
    """

    def __init__(
        self, rank: int, pids: Sequence[int], table: np.ndarray, timeout: float, sums: np.ndarray | None = None
    ) -> None:
        self._rank, self._pids, self._table, self._timeout = rank, pids, table, timeout
        self._posted, self._read = [0] * len(pids), [0] * len(pids)
        self._held: list[list[tuple[int, Tensor]]] = [[] for _ in pids]
        self._sums = None if sums is None else SameHost(rank, pids, sums, timeout)
        self._open: list[Callable[[], None]] = []

    @classmethod
    def join(cls, texts: Callable[[str], list[str]], rank: int, size: int, timeout: float) -> SameHost | None:
        """All ranks, where each can read the memory of all others; else None on every rank.

        ``texts`` gives every rank's text to all.
        """
        shape = (2, size, size, 2 + 2 * _SLOTS)
        handle, token = -1, torch.randint(2**62, (1,))
        if rank == 0 and hasattr(os, "memfd_create"):
            handle = os.memfd_create("graphweft-ranks")
            os.ftruncate(handle, 8 * int(np.prod(shape)))
        _permit()
        mine = {"boot": _boot(), "pid": os.getpid(), "handle": handle, "at": token.data_ptr(), "token": int(token)}
        said = [json.loads(text) for text in texts(json.dumps(mine))]
        made = None
        if mine["boot"] and all(one["boot"] == mine["boot"] for one in said) and said[0]["handle"] >= 0:
            with contextlib.suppress(OSError, ValueError):
                for one in said:
                    found = torch.zeros(1, dtype=torch.int64)
                    _copy(one["pid"], one["at"], found)
                    if int(found) != one["token"]:
                        raise OSError("another process")
                table, sums = _mapped(said[0], shape)
                made = cls(rank, [one["pid"] for one in said], table, timeout, sums)
        agreed = all(text == "yes" for text in texts("yes" if made is not None else "no"))
        if handle >= 0:
            os.close(handle)  # all that could have mapped it
        return made if agreed else None

    def begin(self, sent: Sequence[Tensor], received: Sequence[Tensor], kept: bool) -> Callable[[], None]:
        """Posts ``sent[r]`` for every other rank r; the result fills ``received[r]``.

        ``kept``: what is sent stays as it is for good, so that the end need not wait for its readers.

        Raises: RuntimeError (from the result as well) for a rank that has ended or does not come.
        """
        others = [(self._rank + step) % len(self._pids) for step in range(1, len(self._pids))]
        posted = [(r, self._post(r, sent[r])) for r in others if sent[r].numel()]
        wanted = {r: self._next(r) for r in others if received[r].numel()}

        def finish() -> None:
            with span("exchange", "network"):
                for r, number in wanted.items():
                    self._take(r, number, received[r])
                    self._let_go(r)  # of what it has read meanwhile
                for r, number in () if kept else posted:
                    self._until(r, lambda r=r, number=number: self._done(r) >= number)  # type: ignore[misc]
                    self._let_go(r)

        return finish

    def adds(self, tensor: Tensor) -> bool:
        """Whether :meth:`begin_sum` takes a tensor: a large one is added up with fewer bytes in other ways."""
        return self._sums is not None and tensor.nbytes <= MOST_SUMMED

    def begin_sum(self, tensor: Tensor) -> Callable[[], None]:
        """Begins to add up a tensor over ranks, in place, in the order of the ranks; the result waits for the end.

        Raises: RuntimeError (from the result as well), as :meth:`begin`.
        """
        assert self._sums is not None  # asked before
        while len(self._open) >= _SUMS - 1:  # else two ranks might wait for each other to read
            self._open.pop(0)()
        mine = tensor.clone(memory_format=torch.contiguous_format)  # others read it while the sum is written
        received = [mine if rank == self._rank else torch.empty_like(mine) for rank in range(len(self._pids))]
        wait = self._sums.begin([mine] * len(received), received, kept=True)

        def end() -> None:
            wait()
            torch.add(received[0], received[1], out=tensor)
            for other in received[2:]:
                tensor.add_(other)

        def finish() -> None:
            while end in self._open:  # messages are read in their order
                self._open.pop(0)()

        self._open.append(end)
        return finish

    def _next(self, other: int) -> int:
        self._read[other] += 1
        return self._read[other]

    def _post(self, other: int, message: Tensor) -> int:
        """Says where a message lies; its number."""
        message = message.detach().contiguous()
        self._posted[other] += 1
        number = self._posted[other]
        self._until(other, lambda: number - self._done(other) <= _SLOTS)
        self._let_go(other)
        self._held[other].append((number, message))
        row = self._table[self._rank, other]
        at = 2 + 2 * (number % _SLOTS)
        row[at], row[at + 1] = message.data_ptr(), message.nbytes
        row[0] = number  # last: whoever sees it sees the others (x86 keeps the order of stores)
        return number

    def _take(self, other: int, number: int, out: Tensor) -> None:
        """Reads a message of another rank."""
        row = self._table[other, self._rank]
        self._until(other, lambda: int(row[0]) >= number)
        at = 2 + 2 * (number % _SLOTS)
        if int(row[at + 1]) != out.nbytes:
            raise RuntimeError(f"expected {out.nbytes} bytes of rank {other}, got {int(row[at + 1])}")
        whole = out if out.is_contiguous() else torch.empty_like(out, memory_format=torch.contiguous_format)
        try:
            _copy(self._pids[other], int(row[at]), whole)
        except OSError as failure:
            raise RuntimeError(f"rank {other} has ended ({failure.strerror})") from None
        if whole is not out:
            out.copy_(whole)
        row[1] = number

    def _done(self, other: int) -> int:
        """Messages that another rank has read."""
        return int(self._table[self._rank, other, 1])

    def let_go(self) -> None:
        """Gives up all messages that were read."""
        for other in range(len(self._pids)):
            self._let_go(other)

    def _let_go(self, other: int) -> None:
        """Gives up messages that one rank has read."""
        done, held = self._done(other), self._held[other]
        while held and held[0][0] <= done:
            held.pop(0)

    def _until(self, other: int, holds: Callable[[], bool]) -> None:
        """Waits. Raises: RuntimeError."""
        for turn in range(_SPINS + _YIELDS):
            if holds():
                return
            if turn >= _SPINS:
                os.sched_yield()
        begun = looked = time.monotonic()
        nap = _NAP
        while not holds():
            time.sleep(nap)
            nap = min(1.2 * nap, _LONG_NAP)
            now = time.monotonic()
            if now - looked > _LOOK:
                looked = now
                if not _lives(self._pids[other]) and not holds():
                    raise RuntimeError(f"rank {other} has ended")
            if now - begun > self._timeout:
                raise RuntimeError(f"Timed out waiting for rank {other}")


def _boot() -> str:
    """What tells this host from others; empty where the means are missing."""
    if platform.machine() not in ("x86_64", "AMD64") or not hasattr(ctypes.CDLL(None), "process_vm_readv"):
        return ""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def _permit() -> None:
    """Lets processes of the same starter read this one's memory, where the system asks for that."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(_TRACER, ctypes.c_ulong(os.getppid()), 0, 0, 0)


def _mapped(first: dict[str, int], shape: tuple[int, ...]) -> np.ndarray:
    """The table that rank 0 made."""
    handle = os.open(f"/proc/{first['pid']}/fd/{first['handle']}", os.O_RDWR)
    try:
        return np.frombuffer(mmap.mmap(handle, 8 * int(np.prod(shape))), dtype=np.int64).reshape(shape)
    finally:
        os.close(handle)


def _copy(pid: int, address: int, out: Tensor) -> None:
    """Fills a contiguous tensor from the memory of a process. Raises: OSError."""
    if not out.nbytes:
        return
    read = _read_of_process()
    done, size = 0, out.nbytes
    while done < size:
        here, there = _Span(out.data_ptr() + done, size - done), _Span(address + done, size - done)
        got = read(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
        if got <= 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        done += got


@functools.cache
def _read_of_process() -> Callable[..., int]:
    """The system's call, looked up once: that takes as long as reading some hundred kilobytes."""
    function = ctypes.CDLL(None, use_errno=True).process_vm_readv
    function.restype = ctypes.c_ssize_t
    spans = (ctypes.c_void_p, ctypes.c_ulong)
    function.argtypes = (ctypes.c_int, *spans, *spans, ctypes.c_ulong)
    return function


def _lives(pid: int) -> bool:
    """Whether a process runs."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in ("Z", "X")
