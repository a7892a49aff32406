"""Dense rows of sparse or 8-bit features for code that needs them: a warning, or an error above the bound.

Comes in: such features and the name of the function that needs rows. Goes out: a dense matrix. Called by torch's
functions on such features, by message passing and by modules that have no sparse form. The bound is a setting or a
constant, never the memory that happens to be free: equal calls do equal things on any machine.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor

from graphweft import _config
from graphweft._budget import in_force
from graphweft._errors import DenseFeaturesWarning, DenseSizeError

BOUND = 4 << 30  # bytes of dense rows where Config.memory is 0
_INSIDE = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent))

# Per place and function the text of the first warning: a later one with another size is the same warning to Python,
# whose filters then decide how often it is shown.
_TEXTS: dict[tuple[str, int, str], str] = {}
_REGISTRIES: dict[str, dict[Any, Any]] = {}


class _Compact(Protocol):
    """Features that are stored in another form than dense rows."""

    @property
    def num_rows(self) -> int: ...

    @property
    def width(self) -> int: ...

    @property
    def dense(self) -> Tensor: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def to_dense(self) -> Tensor: ...


def dense_rows(who: str, *features: _Compact, kept: bool = False) -> list[Tensor]:
    """Dense matrices of ``features``; ``kept``: the same tensors at every call, which live as long as the features.

    Raises: DenseSizeError where they are larger than ``Config.memory`` (4 GiB where that is 0, or a run has a budget).

    Warns: with
    :class:`DenseFeaturesWarning`, once for each place that calls ``who``.
    """
    _check(who, features)
    return [x.dense if kept else x.to_dense() for x in features]


def _check(who: str, features: Sequence[_Compact]) -> None:
    """Raises above the bound, warns below it."""
    nbytes = sum(x.num_rows * x.width * x.dtype.itemsize for x in features)
    bound = BOUND if in_force() is not None else _config.current().memory or BOUND  # a budget is kept to as a whole
    kind = " and ".join(dict.fromkeys(type(x).__name__ for x in features))
    size = " and ".join(f"{x.num_rows} x {x.width}" for x in features)
    got = f"{size} ({nbytes / 1e6:,.1f} MB)"
    if nbytes > bound:
        raise DenseSizeError(
            f"{who}: expected at most {bound / 1e6:,.1f} MB of dense rows, got {kind} {got}; multiply by a "
            "weight first, call to_dense() or raise gw.config(memory=)"
        )
    file, line = _place()
    text = f"{who}: {kind} {got} were made dense; to_dense() beforehand does it once and without this warning"
    text = _TEXTS.setdefault((file, line, who), text)
    warnings.warn_explicit(text, DenseFeaturesWarning, file, line, registry=_REGISTRIES.setdefault(file, {}))


def _place() -> tuple[str, int]:
    """The innermost line that is neither torch's nor this package's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_INSIDE):
        frame = frame.f_back
    return ("unknown", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)
