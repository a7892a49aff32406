"""Which calls of a user's code do something only once, or give something else every time: what no recording can hold.

Comes in: frames and functions, as Python's profiler reports them while a module is recorded. Goes out: what the call
is, in the words of a warning. Called by ``recorder.py``.
"""

from __future__ import annotations

import random
from types import FrameType
from typing import Any

import numpy as np
import torch

from graphweft._torch_recording import applies_function
from graphweft.frontend.source import is_user_file

_OF_OS = ("/os.py", "<frozen os>", "/_collections_abc.py", "<frozen _collections_abc>")
_RANDOM_CLASSES = (np.random.Generator, np.random.RandomState, random.Random)
_SEEDING = ("manual_seed", "seed", "set_state")
_UNSEEN = "an autograd.Function (its code is not seen)"


def what_is_unsteady(frame: FrameType, event: str, called: Any) -> str | None:
    """Why a call cannot be recorded; None where it can be."""
    if event == "call":
        if applies_function(frame.f_code):
            return _UNSEEN
        if frame.f_code.co_filename.endswith(("/random.py", "/secrets.py")) and not _is_torch(frame):
            return "random numbers that are not torch's"
        return "a variable of the environment" if _reads_environment(frame) else None
    if event != "c_call":
        return None
    if applies_function(called):
        return _UNSEEN
    if called is print and is_user_file(frame.f_code.co_filename):
        return "printing"
    owner = getattr(called, "__self__", None)
    if isinstance(owner, torch.Generator) and called.__name__ in _SEEDING:
        return "a seed or a state that is set for random numbers"
    if isinstance(owner, _RANDOM_CLASSES) or _is_clock(called, frame):
        return "random numbers or times that are not torch's"
    return None


def _is_torch(frame: FrameType) -> bool:
    """Whether a frame is torch's own, which has a file of that name."""
    return "/torch" in frame.f_code.co_filename


def _reads_environment(frame: FrameType) -> bool:
    """Whether the user's code asks for a variable of the environment."""
    if frame.f_code.co_name != "__getitem__" or not frame.f_code.co_filename.endswith(_OF_OS[:2]):
        return False
    asking = frame.f_back
    while asking is not None and asking.f_code.co_filename.endswith(_OF_OS):
        asking = asking.f_back
    return asking is not None and is_user_file(asking.f_code.co_filename)


def _is_clock(called: Any, frame: FrameType) -> bool:
    return getattr(called, "__module__", None) == "time" and is_user_file(frame.f_code.co_filename)


__all__ = ["what_is_unsteady"]
