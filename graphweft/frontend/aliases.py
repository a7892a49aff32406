"""Views of recorded tensors, so that writing in place into one changes all that share its memory.

Comes in: every view that a recorded run makes, and every write. Goes out: the operations that give what the tensors
below a written view hold by then. Called by ``recorder.py``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from graphweft.frontend import elementwise_rules  # noqa: F401  it defines an operation

aten = torch.ops.aten
STOPPED = (aten.detach.default, torch.ops.graphweft_trace.stop_gradient.default)  # the same memory, no gradient
Dispatch = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
_SAME_ORDER = {
    aten.view.default,
    aten._unsafe_view.default,
    aten._reshape_alias.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.alias.default,
    *STOPPED,
}


_STRETCHES = {aten.slice.Tensor, aten.split.Tensor, aten.split_with_sizes.default}


@dataclass(frozen=True, eq=False)
class View:
    """How a tensor lies in another's memory: the operation that made it, which of its results it is, and whether
    gradients were recorded then.
    """

    base: Tensor
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    position: int | None
    graded: bool = True


class Aliases:
    """All views of one recording."""

    def __init__(self) -> None:
        self._views: Any = WeakTensorKeyDictionary()
        self._over: Any = WeakTensorKeyDictionary()  # tensor -> views that were made of it

    def note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], made: Any) -> None:
        """Remembers the results of an operation that gives views."""
        returned = func._schema.returns
        alias = returned[0].alias_info if returned else None
        if not args or ((alias is None or alias.is_write) and func not in STOPPED):
            return
        several, graded = isinstance(made, tuple | list), torch.is_grad_enabled()
        for at, view in enumerate(made if several else [made]):
            if view is not args[0] and isinstance(view, Tensor):
                self._views[view] = View(args[0], func, args[1:], kwargs, at if several else None, graded)
                self._over.setdefault(args[0], []).append(weakref.ref(view))

    def put_behind(self, tensor: Tensor, before: Tensor, func: Any, args: tuple[Any, ...]) -> None:
        """Makes ``tensor`` a view of ``before``, which takes its place among the others."""
        view, over = self._views.pop(tensor, None), self._over.pop(tensor, [])
        if view is not None:
            self._views[before] = view
            others = self._over[view.base]
            self._over[view.base] = [weakref.ref(before) if one() is tensor else one for one in others]
        for one in over:
            if (upper := one()) is not None:
                self._views[upper] = replace(self._views[upper], base=before)
        self._views[tensor] = View(before, func, args, {}, None, torch.is_grad_enabled())
        self._over[before] = [*over, weakref.ref(tensor)]

    def view(self, tensor: Tensor) -> View | None:
        """How ``tensor`` was made, if it is a view."""
        found: View | None = self._views.get(tensor)
        return found

    def is_closed(self, tensor: Tensor) -> bool:
        """Whether autograd lets nobody write into a view: one of several results, or one made without gradients."""
        while (view := self._views.get(tensor)) is not None and view.func not in STOPPED:
            if view.position is not None or not view.graded:
                return True
            tensor = view.base
        return False

    def root(self, tensor: Tensor) -> Tensor:
        """The tensor whose memory it is."""
        while (view := self._views.get(tensor)) is not None:
            tensor = view.base
        return tensor

    def stretch(self, tensor: Tensor) -> tuple[Tensor, int]:
        """The tensor of which ``tensor`` is a stretch of rows, and the first of them; itself where it is none."""
        first = 0
        while (view := self._views.get(tensor)) is not None:
            start = _first_row(view)
            if start is None or (torch.is_grad_enabled() and not view.graded):
                break
            tensor, first = view.base, first + start
        return tensor, first

    def again(self, view: View, base: Tensor, dispatch: Dispatch) -> Tensor:
        """The view made of ``base``."""
        made = dispatch(view.func, (base, *view.args), view.kwargs)
        result: Tensor = made if view.position is None else made[view.position]
        return result

    def others(self, written: Tensor) -> list[Tensor]:
        """Views that share memory with ``written`` and are not below it."""
        below = {id(written)}
        tensor = written
        while (view := self._views.get(tensor)) is not None:
            tensor = view.base
            below.add(id(tensor))
        found, stack = [], [tensor]
        while stack:
            for one in self._over.get(stack.pop(), ()):
                view_ = one()
                if view_ is not None:
                    stack.append(view_)
                    if id(view_) not in below:
                        found.append(view_)
        return found


def _first_row(view: View) -> int | None:
    """Where a stretch of rows begins in what it is a view of; None for other views."""
    size = view.base.shape[0] if view.base.dim() else 0
    dim = (*(view.args if view.func is aten.slice.Tensor else view.args[1:]), 0)[0]
    if view.func not in _STRETCHES or view.kwargs or dim % max(view.base.dim(), 1):
        return None
    if view.func is aten.slice.Tensor:
        start, step = view.args[1] if len(view.args) > 1 else None, view.args[3] if len(view.args) > 3 else 1
        return slice(start, None).indices(size)[0] if step == 1 else None
    if view.func in (aten.split.Tensor, aten.split_with_sizes.default) and view.position is not None:
        sizes = view.args[0]
        return sizes * view.position if isinstance(sizes, int) else sum(sizes[: view.position])
    return None


def put_back(view: View, value: Tensor, dispatch: Dispatch) -> Tensor | None:
    """``view.base`` with ``value`` in the place of the view; None where that is not known."""
    base, func, args = view.base, view.func, view.args
    if func in _SAME_ORDER:
        if not value.is_contiguous():  # what is written may lie in memory in another order than what was there
            value = dispatch(aten.clone.default, (value,), {"memory_format": torch.contiguous_format})
        return _plain(dispatch(aten.view.default, (value, list(base.shape)), {}))
    if func in (aten.t.default, aten.transpose.int):
        return _plain(dispatch(func, (value, *args), {}))
    if func is aten.permute.default:
        order = [dim % base.dim() for dim in args[0]]
        return _plain(dispatch(func, (value, [order.index(at) for at in range(len(order))]), {}))
    if func is aten.slice.Tensor:
        return _plain(dispatch(aten.slice_scatter.default, (base, value, *args), view.kwargs))
    if func is aten.select.int:
        return _plain(dispatch(aten.select_scatter.default, (base, value, *args), {}))
    if func is aten.unbind.int and view.position is not None:
        dim = args[0] if args else 0
        return _plain(dispatch(aten.select_scatter.default, (base, value, dim, view.position), {}))
    if func in (aten.split.Tensor, aten.split_with_sizes.default) and view.position is not None:
        dim = args[1] if len(args) > 1 else 0
        sizes = args[0]
        start = sizes * view.position if isinstance(sizes, int) else sum(sizes[: view.position])
        stop = start + value.shape[dim]
        return _plain(dispatch(aten.slice_scatter.default, (base, value, dim, start, stop), {}))
    return None


def _plain(made: Any) -> Tensor:
    result: Tensor = made
    return result
