"""Launcher of the losses that sum over entries: binary cross-entropy of logits, and squared differences.

Comes in: a matrix of outputs and one of labels, NaN where a label is unknown. Goes out: the mean loss, counts for the
F1 score, and the gradient. Called by the trainer. float32 on the CPU runs the native kernel, whose results do not
depend on the number of threads; other dtypes and devices run the same meaning in torch.
"""

from __future__ import annotations

import ctypes
import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from graphweft import _native
from graphweft._checks import check_ids
from graphweft._errors import ShapeError
from graphweft._memory import empty

_entry_loss = _native.declare("gw_entry_loss_f32")

Kind = Literal["binary", "squared"]


class EntryLoss(NamedTuple):
    """The loss over the known entries.

    Attributes:
        loss: Their mean, shape (), of the outputs' dtype; not-a-number where no entry is known.
        known: How many there are.
        hits: Of these, outputs above 0 whose label is above 1/2.
        predicted: Outputs above 0.
        actual: Labels above 1/2.
        gradient: By the outputs, their shape, or None.
    """

    loss: Tensor
    known: int
    hits: int
    predicted: int
    actual: int
    gradient: Tensor | None


class _Counts(ctypes.c_int64 * 4):  # type: ignore[misc]
    """What the kernel counts; not what it reads."""

    is_result = True


class EntryCells:
    """Where the kernel leaves the sum of the losses and the counts."""

    def __init__(self) -> None:
        self.total, self.counts = ctypes.c_double(), _Counts()

    @property
    def mean(self) -> float:
        """Mean loss of a known entry."""
        return self.total.value / self.counts[0] if self.counts[0] else float("nan")


def entry_loss(
    kind: Kind, outputs: Tensor, labels: Tensor, rows: Tensor | None = None, want_grad: bool = True
) -> EntryLoss:
    """Mean loss over the entries of ``rows`` whose label is known, counts, and the gradient by the outputs.

    A row listed twice counts twice; the gradient is zero where a label is unknown or a row is not listed.

    Shape: outputs (n, c), labels (n, c) of the same dtype, rows (r,) int64 or None for all.
    Raises: IndexRangeError for a row outside [0, n); ShapeError where shapes do not fit.

    Example:
        >>> found = entry_loss("binary", torch.zeros(1, 3), torch.tensor([[1.0, 0.0, float("nan")]]))
        >>> round(found.loss.item(), 4), found.known, found.gradient.tolist()
        (0.6931, 2, [[-0.25, 0.25, 0.0]])
    """
    if outputs.dim() != 2 or labels.shape != outputs.shape or outputs.shape[1] == 0:
        raise ShapeError(
            f"entry_loss: expected outputs and labels of one shape (n, c), got {tuple(outputs.shape)} and "
            f"{tuple(labels.shape)}"
        )
    if rows is not None and (rows.dim() != 1 or rows.dtype != torch.int64):
        raise ShapeError(f"entry_loss: expected int64 rows, got {rows.dtype} of shape {tuple(rows.shape)}")
    if rows is not None:
        check_ids("entry_loss", rows, outputs.shape[0])
    outputs = outputs.detach()
    if outputs.dtype is not torch.float32 or labels.dtype is not torch.float32 or not outputs.is_cpu:
        return _in_torch(kind, outputs, labels, rows, want_grad)
    outputs, labels = outputs.contiguous(), labels.contiguous()
    known = known_entries(labels, rows) if want_grad else 0  # the kernel counts them too late for the gradient
    cells, gradient = entry_loss_cells(kind, outputs, labels, rows, known, want_grad)
    _, hits, predicted, actual = cells.counts
    return EntryLoss(torch.tensor(cells.mean), cells.counts[0], hits, predicted, actual, gradient)


def known_entries(labels: Tensor, rows: Tensor | None = None) -> int:
    """Entries of the listed rows that are not NaN."""
    listed = labels if rows is None else labels[rows]
    if not math.isnan(float(listed.sum())):  # one pass, where all are known
        return listed.numel()
    return int((~listed.isnan()).sum())


def entry_loss_cells(
    kind: Kind,
    outputs: Tensor,
    labels: Tensor,
    rows: Tensor | None,
    known: int,
    want_grad: bool = True,
    over: bool = False,
    share: float = 1.0,
) -> tuple[EntryCells, Tensor | None]:
    """The kernel of :func:`entry_loss` for what that has checked, with ``known`` entries; both matrices contiguous.

    ``over``: the gradient is written over the outputs. ``share``: by which it is multiplied.
    """
    n, c = outputs.shape
    listed = None if rows is None else rows.contiguous()
    grad = outputs if over else empty((n, c), torch.float32) if want_grad else None
    cells = EntryCells()
    _entry_loss(
        kind == "squared",
        n,
        c,
        outputs.data_ptr(),
        outputs.stride(0),
        _native.pointer(listed),
        0 if listed is None else listed.shape[0],
        labels.data_ptr(),
        labels.stride(0),
        share / max(known, 1),
        _native.pointer(grad),
        c if grad is None else grad.stride(0),
        ctypes.byref(cells.total),
        cells.counts,
    )
    return cells, grad


def _in_torch(kind: Kind, outputs: Tensor, labels: Tensor, rows: Tensor | None, want_grad: bool) -> EntryLoss:
    """The same in torch, for other dtypes and devices."""
    with torch.enable_grad():
        leaf = outputs.requires_grad_(want_grad)
        picked, labels = (leaf, labels) if rows is None else (leaf[rows], labels[rows])
        known = ~labels.isnan()
        values, wanted = picked[known], labels[known].to(outputs.dtype)
        if kind == "binary":
            loss = functional.binary_cross_entropy_with_logits(values, wanted)
        else:
            loss = functional.mse_loss(values, wanted)
        gradient = torch.autograd.grad(loss, leaf)[0] if want_grad else None
    predicted, actual = values.detach() > 0, wanted > 0.5
    counts = (wanted.numel(), int((predicted & actual).sum()), int(predicted.sum()), int(actual.sum()))
    return EntryLoss(loss.detach(), *counts, gradient)
