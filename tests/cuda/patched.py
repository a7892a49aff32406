"""Other code in the place of launches, and results that hold NaN before a kernel writes them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
import torch

from graphweft.runtime.cuda import jit, walks


def _filled(made: torch.Tensor) -> torch.Tensor:
    return made.fill_(torch.nan) if made.is_floating_point() else made


@contextlib.contextmanager
def launching(launch: Callable[..., None]) -> Iterator[pytest.MonkeyPatch]:
    """Inside, kernels are launched by ``launch``; yields what more can be patched with."""
    empty, empty_like = torch.empty, torch.empty_like
    with pytest.MonkeyPatch.context() as patch:
        for module in (jit, walks):
            patch.setattr(module, "launch", launch)
        patch.setattr(torch, "empty", lambda *args, **kwargs: _filled(empty(*args, **kwargs)))
        patch.setattr(torch, "empty_like", lambda *args, **kwargs: _filled(empty_like(*args, **kwargs)))
        yield patch


__all__ = ["launching"]
