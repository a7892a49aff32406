"""What has to be done once a recording of launches is over, before they are launched again.

Comes in: functions, from code that runs while launches are recorded. Goes out: their calls. A recording copies nothing
from host memory, and memory that it takes is written by launches of others; so a table of addresses, some of which are
known within a recording only, lies in memory from before it and is filled after it. Called by ``recorder.py``
and ``updates.py``.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

Work = Callable[[], object]
_NOW = threading.local()


@contextlib.contextmanager
def recording() -> Iterator[list[Work]]:
    """Launches inside are recorded by this thread; yields what is to be called after it, and kept with it."""
    former, _NOW.later = getattr(_NOW, "later", None), list[Work]()
    try:
        yield _NOW.later
    finally:
        _NOW.later = former


def recorded() -> list[Work] | None:
    """The list of the recording under way in this thread; None outside of one."""
    return getattr(_NOW, "later", None)


__all__ = ["Work", "recorded", "recording"]
