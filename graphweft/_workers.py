"""Threads that work beside the caller's: how they take their place among the cores.

Comes in: what a thread does. Goes out: it runs its parallel loops alone, on whichever core is free, and has ended
before the interpreter does. Called by loaders and schedules.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from graphweft._native import declare

_thread_width = declare("gw_thread_width", recorded=False)
_stops: weakref.WeakKeyDictionary[threading.Thread, Callable[[], None]] = weakref.WeakKeyDictionary()
_collection = threading.local()


def _note_collection(phase: str, _: dict[str, int]) -> None:
    _collection.runs = phase == "start"


gc.callbacks.append(_note_collection)


def start_worker(name: str, stop: Callable[[], None], work: Callable[..., None], *args: object) -> threading.Thread:
    """A thread that does ``work(*args)``, which returns soon after ``stop()``; that is called at exit at the latest.

    A thread that is in native code while the interpreter ends takes the whole process down.
    """
    thread = threading.Thread(target=work, args=args, name=name, daemon=True)
    _stops[thread] = stop
    thread.start()
    return thread


def join_workers(threads: Iterable[threading.Thread]) -> None:
    """Waits for threads that were told to stop.

    Not inside a garbage collection, which closes abandoned iterators wherever this thread happens to be: it may hold
    the lock of a pool that a thread waits for. The threads end by themselves then.
    """
    if getattr(_collection, "runs", False):
        return
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join()


@atexit.register
def _end_workers() -> None:
    """Stops what still runs, all of it first, then waits."""
    running = [(thread, stop) for thread, stop in list(_stops.items()) if thread.is_alive()]
    for _, stop in running:
        stop()
    for thread, _ in running:
        thread.join()


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
