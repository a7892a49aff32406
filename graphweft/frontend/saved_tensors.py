"""Copies of results that torch's autograd keeps while a module is recorded.

Comes in: every ATen operation of a recording. Goes out: whether it is autograd that takes such a copy, or unpacks it.
Operations like ``tanh`` keep what they gave for their backward pass, as a detached copy; torch ties it to its origin
again where a gradient of a gradient is taken (``torch.autograd.grad`` with ``create_graph=True`` in forward, as for
forces). So such a copy is the result itself, unlike one that the user's code detaches. Called by ``recorder.py``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

_DETACH = torch.ops.aten.detach.default


class SavedTensors:
    """Knows autograd's copies from detached tensors of the user's."""

    def __init__(self) -> None:
        self._made: list[int] = []  # results of the last operation, until code calls the next function
        self._alive: Any = None  # so that their ids stay theirs
        self._copies: Any = WeakTensorKeyDictionary()

    def called(self) -> None:
        """The user's code, or torch's Python code for it, calls a function."""
        self._made, self._alive = [], None

    def is_copy(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Whether autograd detaches a result that it keeps, or unpacks it."""
        return func is _DETACH and (id(args[0]) in self._made or args[0] in self._copies)

    def copied(self, original: Tensor, copy: Tensor) -> None:
        """``copy`` is autograd's own; what it unpacks from it is read by backward passes."""
        if original not in self._copies:
            self._copies[copy] = True

    def ran(self, tensors: list[Tensor]) -> None:
        """An operation gave ``tensors``."""
        if tensors:  # autograd also asks for devices
            self._made, self._alive = [*map(id, tensors)], tensors
