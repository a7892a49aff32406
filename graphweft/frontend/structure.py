"""What follows from the integers of a batch alone, on a tape that knows none of them.

Comes in: a :class:`Tape` of ``sized_recorder.py``. Goes out: :class:`Structure`, the same without the steps that
follow from integers and sizes, each of them once; :class:`Facts`, which computes what is asked of them for one batch.
Called by ``nn/batch_call.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from graphweft._torch_private import pytree
from graphweft.frontend.sized_recorder import Count, Formula, Size
from graphweft.frontend.tape import Step, Tape, Var

aten = torch.ops.aten


@dataclass(frozen=True)
class Cut:
    """Structure as a step reads it: the first rows along one dimension, or all.

    Attributes:
        var: What it is of.
        axis: The dimension; None for all.
        size: How many rows.
    """

    var: Var
    axis: int | None = None
    size: Size | None = None


class Structure:
    """Steps of a tape that follow from integers and sizes.

    Attributes:
        tape: All others; what they read of these are :class:`Cut`.
        makers: The step that makes each, and which of its results it is.
        counted: Positions of the entries of masks, with the size that their number is.
    """

    def __init__(self, tape: Tape) -> None:
        self.makers: dict[Var, tuple[Step, int]] = {}
        self._same: dict[Var, Var] = {}  # values that an earlier step gives, too
        self._given = {var for var in tape.inputs if not var.dtype.is_floating_point and _is_argument(var)}
        known: dict[Hashable, Step] = {}
        steps = []
        for step in tape.steps:
            step = self._read(step)
            if step.reads or torch.Tag.nondeterministic_seeded in step.target.tags:
                steps.append(step)
                continue
            first = known.setdefault(_form(step), step)
            for at, (var, same) in enumerate(zip(step.outs, first.outs, strict=True)):
                if var is not None and same is not None:
                    self._same[var] = same
                    self.makers.setdefault(same, (first, at))
        outputs = [self._cut(item) for item in tape.outputs]
        inputs = [var for var in tape.inputs if var not in self._given]
        self.tape = replace(tape, inputs=inputs, steps=steps, outputs=outputs)
        self.counted: list[tuple[Cut, Size]] = [(self._cut(var), var.shape[0]) for var in tape.counted]

    def _cut(self, leaf: Any) -> Any:
        if isinstance(leaf, Var) and (leaf in self._given or leaf in self._same):
            return Cut(self._same.get(leaf, leaf))
        return leaf

    def _read(self, step: Step) -> Step:
        args, kwargs = pytree.tree_map(self._cut, (step.args, step.kwargs))
        return replace(step, args=args, kwargs=kwargs)

    def is_filled(self, var: Var) -> bool:
        """Whether it is one number everywhere, the same for any batch."""
        while (made := self.makers.get(var)) is not None:
            step = made[0]
            if step.target is aten.full.default:
                return True
            if step.target not in (aten.expand.default, aten.view.default, aten.slice.Tensor):
                return False
            var = step.args[0].var
        return False


def _is_argument(var: Var) -> bool:
    return var.source is not None and var.source[0] == "arg"


def _form(step: Step) -> Hashable:
    """What a step does, equal for steps that give the same."""
    leaves, spec = pytree.tree_flatten((step.args, step.kwargs))
    return step.target, str(spec), tuple(map(_told, leaves))


def _told(leaf: Any) -> Hashable:
    if isinstance(leaf, Tensor):
        return "tensor", id(leaf)
    return leaf if isinstance(leaf, Cut | Count | Formula) else (type(leaf), repr(leaf))


class Facts:
    """The structure of one batch, computed where it is asked for.

    Args:
        structure: What there is.
        flat: Arguments of the call.
        value: Gives a size of this batch.
    """

    def __init__(self, structure: Structure, flat: Sequence[Any], value: Callable[[Size], int]) -> None:
        self._structure, self._flat, self._value = structure, flat, value
        self._made: dict[Var, Tensor] = {}
        self._cuts: dict[Cut, Tensor] = {}

    def tensor(self, cut: Cut) -> Tensor:
        """Numbers of this batch."""
        found = self._cuts.get(cut)
        if found is None:
            found = self._var(cut.var)
            if cut.axis is not None and cut.size is not None:
                found = found.narrow(cut.axis, 0, self._value(cut.size))
            self._cuts[cut] = found
        return found

    def _var(self, var: Var) -> Tensor:
        if var in self._made:
            return self._made[var]
        if var.source is not None:
            found: Tensor = self._flat[var.source[1]].detach()
            self._made[var] = found
            return found
        step, at = self._structure.makers[var]
        args, kwargs = pytree.tree_map(self.put, (step.args, step.kwargs))
        with torch.no_grad():
            made = step.target(*args, **kwargs)
        result: Tensor = made[at] if isinstance(made, tuple | list) else made
        self._made[var] = result
        return result

    def put(self, leaf: Any, values: Mapping[Var, Any] | None = None) -> Any:
        """An operand of a step, for this batch."""
        if isinstance(leaf, Cut):
            return self.tensor(leaf)
        if isinstance(leaf, Count | Formula):
            return self._value(leaf)
        return values[leaf] if values is not None and isinstance(leaf, Var) else leaf


__all__ = ["Cut", "Facts", "Structure"]
