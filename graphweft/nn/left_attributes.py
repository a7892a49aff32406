"""Tensors that forward leaves in attributes of a module, such as ``self.mu = self.lin(x)``.

Comes in: a module and a recording of its forward. Goes out: the recording with those tensors among its results, once it
is sure that forward does not read what an earlier call left there. Called by ``compiled_call.py``.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Set
from typing import Any

import torch
from torch import Tensor, nn

from graphweft._torch_private import pytree
from graphweft.frontend.layout import UnraisableError
from graphweft.frontend.tape import Passed, Tape, Var
from graphweft.storage.fingerprint import fingerprint

Place = tuple[str, str]  # a module inside, and its attribute
LEFT = "forward, which keeps what follows from features in attributes of the module"
NOW = threading.local()  # whether this thread records
Recording = Callable[[], tuple[Tape, list[tuple[str, str, Any]], list[Place]]]


class Unreadable(Tensor):
    """A tensor of an earlier call: any use of it while forward is recorded shows that forward reads the attribute."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Raises: UnraisableError while recording."""
        if getattr(NOW, "recording", False):
            raise UnraisableError(LEFT)
        return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def without(module: nn.Module, places: Set[Place], stand_in: Tensor | None = None) -> Iterator[None]:
    """Inside, tensors in the attributes are gone, or another is in their place; afterwards they are back."""
    before: list[tuple[dict[str, Any], str, Any]] = []
    for path, name in places:
        attributes = vars(module.get_submodule(path))
        if name not in attributes or type(attributes[name]) is Tensor:
            before.append((attributes, name, attributes.pop(name, None)))
            if stand_in is not None:
                attributes[name] = stand_in
    try:
        yield
    finally:
        for attributes, name, value in before:
            attributes.pop(name, None)
            if value is not None:
                attributes[name] = value


def checked(module: nn.Module, left: Set[Place], record: Recording) -> tuple[Tape, list[Any], list[Place]]:
    """Records forward; twice where it leaves tensors, without and with those of an earlier call.

    Args:
        module: The module.
        left: Attributes that earlier recordings are known to leave.
        record: Records; gives the tape, the attributes that are set, and the places of those that end its results.

    Raises: UnraisableError if the recordings differ, so forward reads what it left.
    """
    with without(module, left):
        tape, assigned, places = record()
        for path, name in places:
            if hasattr(module.get_submodule(path), name):  # an initial value, which code may tell from a tensor
                raise UnraisableError(LEFT)
    if left or places:
        stand_in = torch.empty(0).as_subclass(Unreadable)
        with without(module, left | set(places), stand_in):
            again, _, others = record()
        if others != places or _form(again) != _form(tape):
            raise UnraisableError(LEFT)
    last = tape.outputs[len(tape.outputs) - len(places) :] if places else []
    if any(not isinstance(item, Passed) and (not isinstance(item, Var) or item.source is not None) for item in last):
        raise UnraisableError(LEFT)
    return tape, [item for item in assigned if item[:2] not in places], places


def _form(tape: Tape) -> Any:
    """What a tape does, equal for recordings of the same operations."""
    numbers: dict[Var, Any] = {var: var.source for var in tape.inputs}

    def told(item: Any) -> Any:
        if isinstance(item, Var):
            return "value", numbers.get(item, item.source)
        if isinstance(item, Tensor):
            return "tensor", item.dtype, tuple(item.shape), fingerprint(item)
        return item.position if isinstance(item, Passed) else repr(item)

    steps: list[Any] = []
    for step in tape.steps:
        leaves, spec = pytree.tree_flatten((step.args, step.kwargs))
        steps.append((step.target, step.stops, spec, [told(leaf) for leaf in leaves]))
        for var in step.outs:
            if var is not None:
                numbers[var] = len(numbers)
    outputs = [told(item) for item in tape.outputs]
    return steps, outputs, tape.spec, {name: told(var) for name, var in tape.buffers.items()}, tape.tied


__all__ = ["LEFT", "NOW", "Place", "Unreadable", "checked"]
