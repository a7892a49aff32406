"""Ctrl-C and SIGTERM while training: finish the epoch, save, then stop.

Comes in: signals. Goes out: a flag that the trainer reads between epochs. A second signal stops at once; what the first
would have saved is then missing, but the files on disk are whole.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """Training stopped on a signal, after ``epoch`` whole epochs."""

    def __init__(self, epoch: int, signum: int) -> None:
        super().__init__(f"stopped after epoch {epoch}")
        self.epoch, self.signum = epoch, signum


class StopRequest:
    """While entered, remembers the first SIGINT or SIGTERM instead of dying of it.

    Signals that are ignored or that the caller handles already are left alone, and so is every thread but the main one.

    Args:
        agree: What the signal that this process got, or None, means for all that train with it.
    """

    def __init__(self, agree: Callable[[int | None], int | None] = lambda signum: signum) -> None:
        self.signum: int | None = None
        self._agree = agree
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for name in _SIGNALS:
                if signal.getsignal(name) in (signal.SIG_DFL, signal.default_int_handler):
                    self._former[name] = signal.signal(name, self._remember)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, where: TracebackType | None
    ) -> None:
        for name, handler in self._former.items():
            signal.signal(name, handler)
        self._former.clear()

    def asked(self) -> int | None:
        """The signal to stop on, if any; to be called at the same points by all that train together."""
        return self._agree(self.signum)

    def _remember(self, signum: int, frame: FrameType | None) -> None:
        if self.signum is not None:
            raise KeyboardInterrupt
        self.signum = signum
