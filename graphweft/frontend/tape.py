"""What one run of a module did to tensors, as a list: a straight line of ATen operations over named values.

Comes in: operations as ``recorder.py`` meets them. Goes out: a :class:`Tape`. Values that follow from integers and
shapes alone, such as ids of edges, degrees and coefficients, are tensors in it; all others are :class:`Var`. Read by
``regions.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from graphweft._torch_private import pytree
from graphweft.frontend.aliases import STOPPED
from graphweft.frontend.operands import LEAVES, leaves
from graphweft.frontend.sum_forms import with_gradient_of  # noqa: F401  it defines an operation

TRIMMED = "first rows"  # the call of steps that no code asked for: rows that are left out
_STOPPED = {*STOPPED, torch.ops.aten.isinf.default, torch.ops.aten.isnan.default}


@dataclass(frozen=True, eq=False)
class Var:
    """A tensor whose numbers differ from call to call.

    Attributes:
        shape: Its shape in the recorded run.
        dtype: Its dtype.
        source: Where an input comes from, as ("arg", position), ("parameter", name) or ("buffer", name); None for the
            result of a step.
        grad: Whether an input wants a gradient.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    source: tuple[str, Any] | None = None
    grad: bool = False


LEAVES.add(Var)


@dataclass(frozen=True, eq=False)
class Step:
    """One operation.

    Attributes:
        target: The ATen operation; it changes none of its operands.
        args, kwargs: Its operands; tensors among them are structure.
        outs: Its results in order; None for one that is no tensor.
        line: The user's line.
        call: The function of torch that was called there.
        stops: Whether no gradient passes.
    """

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outs: tuple[Var | None, ...]
    line: str
    call: str
    stops: bool = False

    @property
    def leaves(self) -> Iterator[Any]:
        """All operands, one by one."""
        return iter(leaves((self.args, self.kwargs)))

    @property
    def reads(self) -> list[Var]:
        """The values among the operands."""
        return [leaf for leaf in self.leaves if isinstance(leaf, Var)]

    @property
    def name(self) -> str:
        """The operation as an error names it."""
        operation = str(self.target._schema.name).partition("::")[2]
        return operation if operation == self.call else f"{self.call}: {operation}"


@dataclass
class Tape:
    """A recorded run.

    Attributes:
        inputs: Values given from outside, those that are read.
        steps: Operations in order.
        outputs: What was returned, flat: values, structure, arguments (:class:`Passed`), and Python things.
        spec: Its form.
        buffers: New contents of buffers, by name.
        tied: Pairs of sources that were one tensor.
        asks: Whether code asked which of the inputs want gradients; they are all kept then.
        wanting: Arguments, by position, that code made want gradients.
        replaced: Buffers that other tensors were put in the place of, as (module, name): the first of the results
            behind those of the function.
        counted: Structure whose number of rows is a size of other values.
    """

    inputs: list[Var] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    spec: Any = None
    buffers: dict[str, Var] = field(default_factory=dict)
    tied: list[tuple[tuple[str, Any], tuple[str, Any]]] = field(default_factory=list)
    asks: bool = False
    wanting: list[int] = field(default_factory=list)
    replaced: list[tuple[str, str]] = field(default_factory=list)
    counted: list[Var] = field(default_factory=list)

    def pruned(self) -> Tape:
        """The same without steps that nothing reads."""
        asked = {item for item in (*self.outputs, *self.buffers.values()) if isinstance(item, Var)}  # by a gradient
        needed = asked.union(self.counted)
        kept: list[Step] = []
        for step in reversed(self.steps):
            if not any(out in needed for out in step.outs):
                continue
            passes = not step.stops and step.target not in _STOPPED and any(out in asked for out in step.outs)
            if step.target is torch.ops.graphweft_trace.with_gradient_of.default and not passes:
                step = replace(step, target=torch.ops.aten.clone.default, args=step.args[:1])
            kept.append(step)
            needed.update(step.reads)
            if passes:
                asked.update(step.reads)
        inputs = [var for var in self.inputs if var in needed or self.asks]
        return replace(self, inputs=inputs, steps=[*map(_without_history, reversed(kept))])


def _without_history(step: Step) -> Step:
    """The same, where writes in place made autograd's history hang on structure: that of the recorded run only."""
    if not any(tensor.requires_grad for tensor in structure_of(step)):
        return step
    args, kwargs = pytree.tree_map_only(Tensor, lambda tensor: tensor.detach(), (step.args, step.kwargs))
    return replace(step, args=args, kwargs=kwargs)


def graded(tape: Tape) -> set[Var]:
    """Values that a gradient may pass to; all others have none, whatever computes them."""
    found = {var for var in tape.inputs if _has_slopes(var) and (var.grad or _kind(var) != "buffer")}
    for step in tape.steps:
        passes = not step.stops and step.target not in _STOPPED
        if passes and any(var in found for var in step.reads):
            found.update(var for var in step.outs if var is not None and _has_slopes(var))
    return found


def _kind(var: Var) -> str | None:
    """Which kind of input a value is; None for the result of a step."""
    return None if var.source is None else var.source[0]


def _has_slopes(var: Var) -> bool:
    """Whether numbers of a value's dtype may have gradients."""
    return var.dtype.is_floating_point or var.dtype.is_complex


@dataclass(frozen=True)
class Passed:
    """An output that is an argument itself, by its position among the flat arguments."""

    position: int


def structure_of(step: Step) -> list[Tensor]:
    """The tensors of structure that a step reads."""
    return [leaf for leaf in step.leaves if isinstance(leaf, Tensor)]
