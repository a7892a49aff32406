"""Losses of rows in Triton, with their gradients.

Comes in: outputs and labels. Goes out: the loss of every row, and the gradient of their mean. Called by ``losses.py``.
"""
# Triton has types of its own, and Python's are not checked here.
# mypy: ignore-errors

from __future__ import annotations

from typing import Any

from graphweft.runtime.cuda.functions import gw_max
from graphweft.runtime.cuda.jit import kernel

tl: Any = None  # triton.language, once a kernel is asked for


@kernel
def class_losses(logits, labels, losses, slopes, rows, C: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr):
    """``log(sum of exp(row)) - row[label]``, and ``(softmax(row) - one at the label) / rows``: a block of rows each."""
    ACC: tl.constexpr = losses.dtype.element_ty
    row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    c = tl.arange(0, BC)[None, :]
    some = row < rows
    here = some[:, None] & (c < C)
    label = tl.load(labels + row, mask=some, other=0)[:, None]
    t = tl.load(logits + row[:, None] * C + c, mask=here, other=float("-inf")).to(ACC)
    top = tl.reduce(t, 1, gw_max)
    base = tl.where(top == float("-inf"), 0.0, top)
    e = tl.exp(t - base[:, None])
    total = tl.sum(e, axis=1)
    own = tl.sum(tl.where(here & (c == label), t, 0.0), axis=1)
    tl.store(losses + row, tl.log(total) + (base - own), mask=some)
    slope = (e / total[:, None] - tl.where(c == label, 1.0, 0.0)) / rows
    tl.store(slopes + row[:, None] * C + c, slope, mask=here)
