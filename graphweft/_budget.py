"""A limit on the memory that this process takes, and the count of it.

Comes in: a number of bytes. Goes out: an error of one line where memory of node or edge size would go past it. The pool
(:mod:`graphweft._memory`) asks before it maps anything; the trainer asks after every step, as torch's own allocator
asks nobody.
"""

from __future__ import annotations

import contextlib
import os
import resource
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from graphweft._errors import MemoryBudgetError

_STATM = Path("/proc/self/statm")
# Bytes that nobody asks for may take before the next look, as a share of the limit, and what that is at least and at
# most: the kernels' and torch's own of a large run are more. Free memory is given back before.
_BETWEEN, _LEAST_BETWEEN, _MOST_BETWEEN = 16, 4 << 20, 16 << 20
# bytes of a mapping beyond what was predicted, and their share of that: free memory goes before, whose gaps it does not
# fit
_LARGE, _LARGE_SHARE = 8 << 20, 16
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def own_bytes() -> int:
    """Resident memory of this process that belongs to no file and is not :func:`uncounted`."""
    try:
        sizes = _STATM.read_text().split()
        return (int(sizes[1]) - int(sizes[2])) * _PAGE - _Uncounted.nbytes
    except (OSError, ValueError, IndexError):  # not Linux
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _file_bytes() -> int:
    """Resident pages of files; 0 where the system does not tell."""
    try:
        return int(_STATM.read_text().split()[2]) * _PAGE
    except (OSError, ValueError, IndexError):  # not Linux
        return 0


class _Uncounted:
    """Bytes that no budget counts."""

    nbytes = 0


@contextlib.contextmanager
def uncounted() -> Iterator[None]:
    """Imports of other packages in the block are no part of a run, as those of a bare ``import graphweft`` are not.

    Only for what happens once in a process.
    """
    before = own_bytes()
    yield
    _Uncounted.nbytes += max(0, own_bytes() - before)


def resident_peak() -> int:
    """The most resident bytes of this process so far; 0 where the system does not tell."""
    return max(_Noted.before, _noted())


def _noted() -> int:
    """The most resident bytes since the system was last told to forget."""
    try:
        for line in Path("/proc/self/status").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("VmHWM:"):  # of this program; getrusage also counts the one before exec
                return 1024 * int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return 0


class _Noted:
    """The most that the system had noted before it was told to forget, and who looks on."""

    before = 0
    watching: ClassVar[weakref.WeakSet[Highest]] = weakref.WeakSet()


class Highest:
    """The most own bytes of this process from now on, as the system notes it: short peaks are seen, too.

    The system counts pages of files in. Those are taken for the more of what they are at a look and at the last time
    when the system was told to forget, so that files which are closed in between, as by the collector of garbage, are
    not taken for memory of the run, and few of those that are opened later hide some of it.
    """

    def __init__(self) -> None:
        for other in list(_Noted.watching):
            other._look()
        _Noted.before, self._most, self._files = resident_peak(), 0, _file_bytes()
        try:
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
            _Noted.watching.add(self)
        except OSError:  # not Linux, or not allowed
            pass
        for one in _Noted.watching:
            one._files = _file_bytes()

    def _look(self) -> None:
        if self in _Noted.watching:
            files = max(self._files, _file_bytes())
            self._most = max(self._most, _noted() - files - _Uncounted.nbytes)

    @staticmethod
    def seen(nbytes: int) -> None:
        """All who look on know of so many own bytes: how many of what the system notes are files is a guess."""
        for one in list(_Noted.watching):
            one._most = max(one._most, nbytes)

    @property
    def nbytes(self) -> int:
        """As :func:`own_bytes`. 0 where the system does not tell."""
        self._look()
        if not self._most:
            return 0
        return max(own_bytes(), self._most)


@dataclass
class Budget:
    """At most ``limit`` bytes above ``floor``, the process's own bytes when counting began.

    Attributes:
        limit: Bytes that may be taken.
        floor: Own bytes of the process that do not count.
        accounts: Text that tells what takes how much, for the error.
        expected: Bytes that the run is predicted to take; 0: not known.
        reserve: Tells how many bytes stay free for what nobody asks for, as while programs are compiled.
    """

    limit: int
    floor: int = field(default_factory=own_bytes)
    accounts: str = ""
    expected: int = 0
    reserve: Callable[[], int] | None = None

    def used(self) -> int:
        """Bytes taken now."""
        return own_bytes() - self.floor

    def admit(self, more: int, release: Callable[[], None]) -> None:
        """``more`` bytes may be taken, if need be after ``release`` gave free memory back.

        Need is as well where the run would take more than it is expected to: gaps are no part of what was predicted.

        Raises: MemoryBudgetError.
        """
        reserve = 0 if self.reserve is None else self.reserve()
        between = min(max(self.limit // _BETWEEN, _LEAST_BETWEEN), _MOST_BETWEEN)
        used = self.used() + more
        is_expected = more < min(_LARGE, self.expected // _LARGE_SHARE) or not self.expected or used <= self.expected
        if is_expected and used + max(reserve, between) <= self.limit:
            return
        release()
        needed = self.used() + more + reserve
        if needed <= self.limit:
            return
        if self.accounts:
            text = f"expected at least {shown_bytes(needed)} for this run ({self.accounts})"
            raise MemoryBudgetError(f"memory: {text}, got {shown_bytes(self.limit)}", needed)
        text = f"expected more than the {shown_bytes(needed)} that are taken before this run is planned"
        remedy = "graphweft plan or gw.plan tells what would do"
        raise MemoryBudgetError(f"memory: {text}, got {shown_bytes(self.limit)}; {remedy}", reached=needed)

    @contextlib.contextmanager
    def enforced(self) -> Iterator[None]:
        """The pool keeps to this budget in the block, on all threads."""
        former, _InForce.budget = _InForce.budget, self
        try:
            yield
        finally:
            _InForce.budget = former


@contextlib.contextmanager
def lifted() -> Iterator[None]:
    """The pool asks nobody in the block, which runs code that must not be interrupted, such as a user's own model.

    Whoever lifts a budget looks at :func:`room` first.
    """
    former, around, _InForce.budget = _InForce.budget, _InForce.lifted, None
    _InForce.lifted = former or around
    try:
        yield
    finally:
        _InForce.budget, _InForce.lifted = former, around


class _InForce:
    """The budget that the pool asks now, and the one that is lifted."""

    budget: Budget | None = None
    lifted: Budget | None = None


def in_force() -> Budget | None:
    """The budget that the pool keeps to now."""
    return _InForce.budget


def room() -> int | None:
    """Bytes that may still be taken, where the budget is lifted as well; None without one.

    For what can be left out, and takes memory that nobody is asked for.
    """
    budget = _InForce.budget or _InForce.lifted
    return None if budget is None else max(0, budget.limit - budget.used())


def admit(more: int, release: Callable[[], None]) -> None:
    """As :meth:`Budget.admit` of the budget in force; nothing without one."""
    if _InForce.budget is not None:
        _InForce.budget.admit(more, release)


def shown_bytes(count: int) -> str:
    """A size for people, rounded up.

    Example:
        >>> shown_bytes(1_999_999), shown_bytes(2_100_000_000), shown_bytes(15_500)
        ('2 MB', '2100 MB', '16 KB')
    """
    return f"{-(-count // 10**6)} MB" if count >= 10**6 else f"{-(-count // 10**3)} KB"


__all__ = [
    "Budget",
    "Highest",
    "admit",
    "in_force",
    "lifted",
    "own_bytes",
    "resident_peak",
    "room",
    "shown_bytes",
    "uncounted",
]
