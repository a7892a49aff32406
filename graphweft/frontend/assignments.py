"""``x[mask] = y`` and ``x[ids] = y`` as a choice row by row, where the rows of ``y`` are known before the program runs.

Comes in: an assignment to rows that structure picks, and the recording so far. Goes out: the same as a ``where`` over
all rows; None where the rows that are assigned follow from the program itself, which then ends before them. Called by
``recorder.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from graphweft._torch_recording import FakeTensor
from graphweft.frontend.tape import Step, Tape, Var

aten = torch.ops.aten
_ALONG = {aten.index_add.default, aten.scatter_add.default, aten.scatter_reduce.two, aten.index_reduce.default}
_LOOKED_AT = 64  # steps that the assigned rows follow from


def assigned(
    tape: Tape, values: Mapping[Tensor, Var | None], x: Tensor, indices: Sequence[Any], y: Tensor, *more: Any
) -> Tensor | None:
    """``x`` with ``y`` in the rows of ``indices``; None where that is no choice by structure.

    Args:
        tape: What was recorded so far.
        values: What stand-ins are now.
        x: Rows.
        indices: Which of them, as ``index_put`` takes them.
        y: What they become.
        *more: Whether it is added.
    """
    ids = indices[0] if len(indices) == 1 else None
    if any(more) or not isinstance(x, FakeTensor) or not isinstance(ids, Tensor) or isinstance(ids, FakeTensor):
        return None
    if ids.dim() != 1 or x.dim() == 0 or x.dtype != y.dtype:
        return None
    if ids.dtype == torch.bool:
        ids = ids.nonzero()[:, 0]
    ids = torch.where(ids < 0, ids + x.shape[0], ids)
    if torch.unique(ids).numel() < ids.numel():  # the last of several wins
        return None
    chosen = torch.zeros(x.shape[0], dtype=torch.bool).index_fill_(0, ids, True)
    chosen = chosen.view(-1, *((1,) * (x.dim() - 1)))
    if y.numel() == 1:
        return torch.where(chosen, y.reshape(()), x)
    rows = _picked_from(tape, values, y, ids, x) if isinstance(y, FakeTensor) else None
    if rows is None:
        zeros = torch.zeros(x.shape, dtype=x.dtype)
        if not isinstance(y, FakeTensor) or _is_given(tape, values[y]):
            rows = zeros.index_put([ids], y)
        elif x.dim() > 1 and y.shape == (len(ids), *x.shape[1:]):  # a number a row is one of edges, such as a weight
            rows = zeros.index_add(0, ids, y)  # each row once
        else:
            return None
    return torch.where(chosen, rows, x)


def _makers(tape: Tape) -> dict[Var, Step]:
    return {var: step for step in tape.steps for var in step.outs if var is not None}


def _is_given(tape: Tape, var: Var | None) -> bool:
    """Whether a value follows from inputs by a few steps without sums over edges or draws."""
    makers = _makers(tape)
    open_, seen = [var], set[Var]()
    while open_ and len(seen) < _LOOKED_AT:
        one = open_.pop()
        if one is None:
            return False
        step = makers.get(one)
        if step is None or one in seen:
            continue
        seen.add(one)
        if step.target in _ALONG or torch.Tag.nondeterministic_seeded in step.target.tags:
            return False
        open_.extend(step.reads)
    return not open_


def _picked_from(
    tape: Tape, values: Mapping[Tensor, Var | None], y: Tensor, ids: Tensor, like: Tensor
) -> Tensor | None:
    """The rows that ``y`` was picked from by the same ids."""
    var = values[y]
    step = _makers(tape).get(var) if var is not None else None
    if step is None or step.target not in (aten.index.Tensor, aten.index_select.default):
        return None
    given = step.args[1] if step.target is aten.index.Tensor else [step.args[2]] if step.args[1] == 0 else []
    if len(given) != 1 or not isinstance(given[0], Tensor) or not torch.equal(given[0], ids):
        return None
    source = step.args[0]
    if not isinstance(source, Var) or source.shape != tuple(like.shape):
        return None
    return next((stand_in for stand_in, held in values.items() if held is source), None)
