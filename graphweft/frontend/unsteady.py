"""Which calls of a user's code do something only once, or give something else every time: what no recording can hold.

Comes in: frames and functions, as Python's profiler reports them while a module is recorded. Goes out: what the call
is, in the words of a warning. Called by ``recorder.py``.
"""

from __future__ import annotations

import functools
import random
from types import FrameType, ModuleType
from typing import Any

import numpy as np
import torch

from graphweft._torch_recording import applies_function
from graphweft.frontend.source import is_user_file

_OF_OS = ("/os.py", "<frozen os>", "/_collections_abc.py", "<frozen _collections_abc>")
_RANDOM_CLASSES = (np.random.Generator, np.random.RandomState, random.Random)
_SEEDING = ("manual_seed", "seed", "set_state")
CALLS = ("call", "c_call")  # the events of a profiler that :func:`what_is_unsteady` is asked about
_RANDOM, _OS = "random", "os"
_DRAWN = "random numbers or times that are not torch's"
_UNSEEN = "an autograd.Function (its code is not seen)"


def what_is_unsteady(frame: FrameType, event: str, called: Any) -> str | None:
    """Why a call cannot be recorded; None where it can be. ``event``: one of ``CALLS``.

    Asked at every call of all code that is recorded, torch's own as well, so the usual answer comes first.
    """
    if event == "call":
        if applies_function(frame.f_code):
            return _UNSEEN
        library = _library(frame.f_code.co_filename)
        if library == _RANDOM:
            return "random numbers that are not torch's"
        return "a variable of the environment" if library and _reads_environment(frame) else None
    owner = getattr(called, "__self__", None)
    if isinstance(owner, ModuleType):
        if called is print and is_user_file(frame.f_code.co_filename):
            return "printing"
        return _DRAWN if _is_clock(called, frame) else None
    if isinstance(owner, type):
        return _UNSEEN if applies_function(called) else None
    if isinstance(owner, _RANDOM_CLASSES):
        return _DRAWN
    if called.__name__ in _SEEDING and isinstance(owner, torch.Generator):
        return "a seed or a state that is set for random numbers"
    return None


@functools.cache
def _library(filename: str) -> str:
    """Which of Python's libraries that are looked for a file is, if it is one; torch has a file of the same name."""
    if filename.endswith(("/random.py", "/secrets.py")) and "/torch" not in filename:
        return _RANDOM
    return _OS if filename.endswith(_OF_OS[:2]) else ""


def _reads_environment(frame: FrameType) -> bool:
    """Whether a call of the library ``os`` is that of user code that asks for a variable of the environment."""
    if frame.f_code.co_name != "__getitem__":
        return False
    asking = frame.f_back
    while asking is not None and asking.f_code.co_filename.endswith(_OF_OS):
        asking = asking.f_back
    return asking is not None and is_user_file(asking.f_code.co_filename)


def _is_clock(called: Any, frame: FrameType) -> bool:
    return getattr(called, "__module__", None) == "time" and is_user_file(frame.f_code.co_filename)


__all__ = ["CALLS", "what_is_unsteady"]
