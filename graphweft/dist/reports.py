"""Who is lost, found out by those that are left.

Comes in: the store of a group whose starter is not ours (torchrun). Goes out: one line, from one of the ranks. Every
rank that cannot go on leaves a note, waits for the others' notes, and the lowest of them speaks: ranks without a note
are lost.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time

from torch.distributed import Store  # type: ignore[attr-defined]

_WAIT = 2.0  # seconds for all notes to come in


class Reports:
    """Notes of ranks that cannot go on."""

    def __init__(self, store: Store, rank: int, size: int, host: str) -> None:
        self._store, self._rank, self._size = store, rank, size
        store.set(f"graphweft/host/{rank}", host)

    def told(self, text: str, phase: str, own: bool) -> str:
        """What this rank says of its failure ``text``; empty where another one speaks.

        ``own``: it failed by itself, not because another one did. torchrun asks the ranks that are left to end at once;
        this one ends when it has spoken.
        """
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            self._store.set(f"graphweft/note/{self._rank}", f"{'own' if own else 'lost'} {text}")
            time.sleep(_WAIT)
            notes = {rank: self._note(rank) for rank in range(self._size)}
        except RuntimeError:
            return text  # the store went with the rank that held it
        left = [rank for rank, note in notes.items() if note]
        if left and left[0] != self._rank:
            return ""
        failed = [(rank, note.removeprefix("own ")) for rank, note in notes.items() if note.startswith("own ")]
        if failed:
            return f"rank {failed[0][0]} on {self._host(failed[0][0])} failed in {phase}: {failed[0][1]}"
        gone = [rank for rank, note in notes.items() if not note]
        if not gone:
            return text
        return f"rank {gone[0]} on {self._host(gone[0])} was lost in {phase}"

    def leave(self, text: str) -> None:
        """Says that this rank failed by itself and tells it."""
        with contextlib.suppress(RuntimeError):
            self._store.set(f"graphweft/note/{self._rank}", f"own {text}")

    def _note(self, rank: int) -> str:
        name = f"graphweft/note/{rank}"
        return self._store.get(name).decode() if self._store.check([name]) else ""

    def _host(self, rank: int) -> str:
        name = f"graphweft/host/{rank}"
        return self._store.get(name).decode() if self._store.check([name]) else "an unknown host"
