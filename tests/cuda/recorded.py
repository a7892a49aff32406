"""CUDA graphs without a device: what a step launches is written down and done again, on the same memory.

Comes in: the body of a step. Goes out: a :class:`Recorder` as ``cuda/graphs.py`` asks for one. A body that waits for a
number of the device is refused, as a capture refuses it; memory that a replay has not written holds NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from graphweft.runtime.cuda import jit, walks

WAITS = (
    "_local_scalar_dense",
    "nonzero",
    "equal.default",
    "is_nonzero",
    "unique",
    "masked_select",
    "repeat_interleave",
)


class _Watch(TorchDispatchMode):
    """Writes operations of torch down; what Triton's interpreter does on the way is the launch's own."""

    def __init__(self, steps: list[Callable[[], None]]) -> None:
        super().__init__()
        self.steps, self.inside = steps, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        if self.inside:
            return made
        if any(name in str(func) for name in WAITS):
            raise RuntimeError(f"recorded: {func} waits for a number of the device")
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        new = [t for t in tree_leaves(made) if isinstance(t, Tensor) and t.untyped_storage().data_ptr() not in given]

        def again() -> None:
            if "empty" in str(func):
                for target in new:
                    target.fill_(torch.nan if target.is_floating_point() else 0)
                return
            found = [t for t in tree_leaves(func(*args, **kwargs)) if isinstance(t, Tensor)]
            for target, source in zip(new, found, strict=False):
                target.copy_(source)

        self.steps.append(again)
        return made


class Recorder:
    """As the one of a device.

    Attributes:
        graphs: How many were recorded, in all.
        launched: Graphs that were launched.
    """

    graphs = launched = 0

    def __init__(self, device: torch.device) -> None:
        self.alive: list[Any] = []

    def warm(self, body: Callable[[], object]) -> None:
        body()

    def record(self, body: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        steps: list[Callable[[], None]] = []
        inner, watch = jit.launch, _Watch(steps)

        def noted(*given: Any, **fixed: Any) -> None:
            watch.inside = True
            try:
                inner(*given, **fixed)
            finally:
                watch.inside = False
            steps.append(lambda: inner(*given, **fixed))

        with pytest.MonkeyPatch.context() as patch, watch:
            for module in (jit, walks):
                patch.setattr(module, "launch", noted)
            made = body()
        self.alive.append(made)
        Recorder.graphs += 1

        def replay() -> None:
            Recorder.launched += 1
            with torch.no_grad():
                for step in steps:
                    step()

        return replay, made
