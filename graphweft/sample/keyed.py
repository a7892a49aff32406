"""Random numbers by key: the same for the same key, whoever asks, in whatever order.

Comes in: integers that name a draw. Goes out: a number in (0, 1) for each. Called by the samplers that are written in
NumPy; the native ones have the same kind of draws of their own. The mixing function is that of SplitMix64 (Steele et
al., OOPSLA 2014).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def keyed_uniforms(key: tuple[int, ...], *columns: NDArray[Any] | Tensor | int) -> NDArray[np.float64]:
    """float64 (n,) numbers in (0, 1), one per row of the integer ``columns``, each a function of ``key`` and its row.

    Example:
        >>> draws = keyed_uniforms((7, 0), np.arange(3))
        >>> bool((draws > 0).all() and (draws < 1).all()), bool(draws[1] == keyed_uniforms((7, 0), np.array([1]))[0])
        (True, True)
    """
    bits = np.zeros(1, np.uint64)
    for part in (*key, *columns):
        bits = _mixed(bits ^ (_mixed(_words(part)) + _STEP))
    return (np.asarray(bits >> np.uint64(12), np.float64) + 0.5) * 2.0**-52


def _words(part: NDArray[Any] | Tensor | int) -> NDArray[np.uint64]:
    """Integers as 64 bits each, one dimension at least."""
    if isinstance(part, int):
        return np.array([part & (2**64 - 1)], np.uint64)
    values = part.numpy() if isinstance(part, Tensor) else part
    return np.atleast_1d(values.astype(np.int64, copy=False)).view(np.uint64)


def _mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    bits = bits + _STEP
    bits = (bits ^ (bits >> np.uint64(30))) * _FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * _SECOND
    return bits ^ (bits >> np.uint64(31))
