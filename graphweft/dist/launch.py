"""Starts the ranks of ``graphweft train --ranks P`` on this machine, and watches over them.

Comes in: the command's own arguments. Goes out: its exit status once all ranks have ended. A rank that dies or stops
ends all, or all are started again; one line says which, and in which phase. Imports no torch: only the ranks need it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

from graphweft._errors import RankError
from graphweft._machine import processors
from graphweft.dist.board import Board

FOLDER, STARTER = "GRAPHWEFT_RANKS_FOLDER", "GRAPHWEFT_RANKS_STARTER"  # what ranks find in their environment
LOST = 75  # exit status of a rank that ends because another one did
SLICES = 8  # of a batch whose gradients are summed in order: as many ranks at most
_REFUSED = 2  # what cannot be run as it was asked for fails again
_POLL, _GRACE, _STALL, _START = 0.05, 5.0, 30.0, 120.0  # seconds
ENDING = _START - _STALL  # seconds beyond a silence that a rank may take to end
_A_PROCESSOR = 8  # ranks on each, at most: every one loads torch, and all take turns
_STOPPED = 5.0  # seconds between two looks after which this process was stopped itself, and the ranks maybe with it
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def launch(
    arguments: Sequence[str],
    size: int,
    restarts: int = 0,
    state: Path | None = None,
    check: Callable[[], str] | None = None,
) -> int:
    """Runs the command as ``size`` ranks; the exit status.

    Standard output and error are those of rank 0. Signals go to every rank. Where a rank is lost, all are started again
    up to ``restarts`` times, with ``--resume`` once this run has written ``state``, its last checkpoint. ``check`` runs
    while ranks start, and returns why they cannot run, or nothing.

    Raises: RankError naming the rank that failed, unless rank 0 has told it; for more ranks than have room here.
    """
    _check_room(size)
    before = _stamp(state)
    for restart in range(1, restarts + 1):
        try:
            return _run(arguments, size, check)
        except RankError as failure:
            if failure.status == _REFUSED:
                raise
            begun = _stamp(state) != before
            start = "from the last checkpoint" if begun else "from the start"
            if sys.stderr is not None:
                sys.stderr.write(f"{failure}; restarting {start}, {restart} of {restarts}\n")
            if begun and "--resume" not in arguments:
                arguments = [*arguments, "--resume"]
    return _run(arguments, size, check)


def _check_room(size: int) -> None:
    """Raises: RankError for more ranks than the processors start in reasonable time."""
    cores = processors()
    most = _A_PROCESSOR * max(cores, 1)
    if size > most:
        here = "1 processor" if cores == 1 else f"{cores} processors"
        raise RankError(
            f"ranks: expected at most {most}, {_A_PROCESSOR} for each of the {here} of this machine, got {size}; "
            "torchrun takes any number, on several machines",
            _REFUSED,
        )


def _stamp(path: Path | None) -> tuple[int, int] | None:
    """What changes whenever a file is written; None where there is none."""
    with contextlib.suppress(OSError):
        found = path.stat() if path is not None else None
        return None if found is None else (found.st_mtime_ns, found.st_ino)
    return None


def _run(arguments: Sequence[str], size: int, check: Callable[[], str] | None) -> int:
    """One start of all ranks. Raises: RankError of status 2 for what ``check`` finds before a rank has ended."""
    with tempfile.TemporaryDirectory(prefix="graphweft-ranks-") as name:
        folder = Path(name)
        Board.create(folder / "board", size)
        children = [_start(arguments, rank, size, folder) for rank in range(size)]
        try:
            with _forwarded(children) as signals:
                return _Watch(children, folder, signals, check).status()
        finally:
            _end(children)


def is_rank() -> bool:
    """Whether this process was started as one of several, by torchrun or by :func:`launch`."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def speaks() -> bool:
    """Whether this process writes results: rank 0, or the only one."""
    return not is_rank() or os.environ["RANK"] == "0"


def _start(arguments: Sequence[str], rank: int, size: int, folder: Path) -> subprocess.Popen[bytes]:
    """One rank. The package is found where this one was found, never in the working folder by chance."""
    package = str(Path(__file__).resolve().parents[2])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        "GLOO_SOCKET_IFNAME": "lo",
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONSAFEPATH": "1",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        FOLDER: str(folder),
        STARTER: str(os.getpid()),
    }
    command = [sys.executable, "-m", "graphweft", *arguments]
    if rank == 0:
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, process_group=0)
    with _errors_of(folder, rank).open("wb") as errors:
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": errors}
        return subprocess.Popen(command, env=environment, process_group=0, **streams)  # type: ignore[call-overload,no-any-return]


def _errors_of(folder: Path, rank: int) -> Path:
    return folder / f"errors-{rank}"


@contextlib.contextmanager
def _forwarded(children: Sequence[subprocess.Popen[bytes]]) -> Iterator[list[int]]:
    """Signals that this process gets go to the ranks, which decide together when to stop; the signals so far."""
    seen: list[int] = []

    def forward(signum: int, frame: FrameType | None) -> None:
        seen.append(signum)
        for child in children:
            if child.poll() is None:
                child.send_signal(signum)

    former = {name: signal.signal(name, forward) for name in _SIGNALS}
    try:
        yield seen
    finally:
        for name, handler in former.items():
            signal.signal(name, handler)


def _end(children: Sequence[subprocess.Popen[bytes]]) -> None:
    for child in children:
        if child.poll() is None:
            child.kill()
    for child in children:
        child.wait()


class _Watch:
    """Waits for the ranks."""

    def __init__(
        self,
        children: Sequence[subprocess.Popen[bytes]],
        folder: Path,
        signals: list[int],
        check: Callable[[], str] | None = None,
    ) -> None:
        self._children, self._folder, self._signals, self._begun = children, folder, signals, time.monotonic()
        self._refused: list[str] = []
        if check is not None:
            threading.Thread(target=lambda: self._refused.append(check()), daemon=True).start()
        self._board = Board(folder / "board", len(children))
        self._ended: list[int] = []  # ranks that failed, in the order that was seen
        self._stalled: dict[int, float] = {}
        self._looked = self._awake = self._begun  # at the ranks last; since when without having been stopped

    def status(self) -> int:
        """Once all have ended. Raises: RankError."""
        deadline = float("inf")
        while any(child.poll() is None for child in self._children):
            self._notice_stop()
            for rank, child in enumerate(self._children):
                self._look(rank, child)
            if not self._ended and any(self._refused):
                raise RankError(self._refused[0], _REFUSED)
            if self._ended and deadline == float("inf"):
                deadline = time.monotonic() + _GRACE
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL)
        for rank, child in enumerate(self._children):
            self._look(rank, child)
        codes = {rank: child.poll() for rank, child in enumerate(self._children)}
        _end(self._children)
        return self._verdict(codes)

    def _notice_stop(self) -> None:
        """Silence while this process was stopped (Ctrl-Z, a frozen container) says nothing about a rank."""
        now = time.monotonic()
        if now - self._looked > _STOPPED:
            self._awake = now
        self._looked = now

    def _look(self, rank: int, child: subprocess.Popen[bytes]) -> None:
        if rank in self._ended:
            return
        beaten = self._board.silent_seconds(rank)
        awake = time.monotonic() - self._awake
        silent = awake if beaten is None else min(beaten, awake)
        if child.poll() is None and silent > (_START if beaten is None else _STALL):
            self._stalled[rank] = silent
            child.kill()
            self._ended.append(rank)
        elif child.poll() not in (None, 0):
            self._ended.append(rank)

    def _verdict(self, codes: dict[int, int | None]) -> int:
        """Codes are None for ranks that had to be ended. Raises: RankError."""
        if self._signals and self._ended:
            return 128 + self._signals[0]
        for rank in self._ended:
            if rank in self._stalled:
                raise RankError(
                    f"{self._named(rank)} gave no sign of life for {self._stalled[rank]:.0f} s, {self._at(rank)}"
                )
        for rank in self._ended:
            code = codes[rank]
            if code is not None and code < 0:
                raise RankError(f"{self._named(rank)} was ended by {signal.Signals(-code).name}, {self._at(rank)}")
        own = [(rank, codes[rank] or 1) for rank in self._ended if codes[rank] not in (None, LOST)]
        if any(rank == 0 for rank, _ in own):
            return dict(own)[0]  # it has said why
        for rank, code in own:
            if text := self._board.failure(rank) or self._last_line(rank):
                raise RankError(f"{self._named(rank)} failed, {self._at(rank)}: {text}", code)
        for rank in self._ended:
            if text := self._board.failure(rank):
                raise RankError(text)
        return max((code for _, code in own), default=1 if self._ended else 0)

    def _named(self, rank: int) -> str:
        return f"rank {rank} (process {self._children[rank].pid})"

    def _at(self, rank: int) -> str:
        return f"in phase: {self._board.phase(rank) or 'starting'}"

    def _last_line(self, rank: int) -> str:
        """What a rank wrote last to its standard error."""
        with contextlib.suppress(OSError):
            lines = _errors_of(self._folder, rank).read_text(errors="replace").split("\n")
            return next((line.strip() for line in reversed(lines) if line.strip()), "")
        return ""
