"""Threads that work beside the caller's: how they take their place among the cores.

Comes in: the calling thread. Goes out: it runs its parallel loops alone, on whichever core is free. Called first by
threads of loaders and schedules.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

import torch

from graphweft._native import declare

_thread_width = declare("gw_thread_width", ctypes.c_int32)


def become_worker() -> None:
    """The calling thread runs parallel loops by itself, and where any thread of the process may.

    One started by a thread that is bound to a core is bound to it too.
    """
    set_width(1)
    with contextlib.suppress(OSError, AttributeError):
        tasks = [int(entry.name) for entry in Path("/proc/self/task").iterdir()]
        os.sched_setaffinity(0, set().union(*(os.sched_getaffinity(task) for task in tasks)))


def set_width(threads: int) -> None:
    """The calling thread's parallel loops run on so many threads from now on."""
    _ = torch.get_num_threads()  # torch sets a thread's width when it first asks; ours comes after that
    _thread_width(threads)
