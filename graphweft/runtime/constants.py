"""Which inputs of a call keep their content between calls: declared by their owner, or found unchanged by their bytes.

Comes in: tensors, sparse features, graphs. Goes out: whether an input is declared constant, and a mark of its content
to compare with. Called by ``compile.py`` for every call, by the trainer for the data that it owns, and by users through
``gw.constant``. Nothing is guessed: torch's version counter does not see writes through NumPy, ``.data`` or
``torch.inference_mode``, so an input that nobody declared counts as unchanged only if a fingerprint of its bytes says
so.
"""

from __future__ import annotations

import contextlib
import contextvars
import weakref
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from graphweft._checks import check_ids
from graphweft._errors import DtypeError
from graphweft.storage.feature import SparseFeatures, stored
from graphweft.storage.fingerprint import fingerprint

Kept = TypeVar("Kept", Tensor, SparseFeatures)

_declared: dict[int, weakref.ref[Any]] = {}  # by id: tensors compare by element
_sent: dict[tuple[int, torch.device], tuple[Reference, Tensor]] = {}
_checked: dict[int, tuple[Reference, int]] = {}  # by id: ids that are known to lie below a bound
_OWNED: contextvars.ContextVar[tuple[Any, ...]] = contextvars.ContextVar("owned", default=())
_ONCE: contextvars.ContextVar[bool] = contextvars.ContextVar("once", default=False)
_CONSUMED: contextvars.ContextVar[Any] = contextvars.ContextVar("consumed", default=None)


def constant(x: Kept) -> Kept:
    """Declares that the values of ``x`` do not change; returns ``x`` itself.

    Compiled calls may then compute values once that depend only on ``x`` and the graph, such as the first layer's
    aggregation of the input features, and choose the order of computation accordingly. In-place operations of torch
    (``x.mul_(2)``) are detected. After any other change, through NumPy memory or ``x.data``, results may be those of
    the old values. Inputs that are not declared may change at any time: calls compare their bytes if that is cheaper
    than computing again.

    Args:
        x: A tensor of any shape, or :class:`gw.data.SparseFeatures`.

    Raises: DtypeError for anything else.

    Example:
        >>> import torch
        >>> x = constant(torch.ones(3, 4))
        >>> is_declared(x), is_declared(x.clone())
        (True, False)
    """
    if not isinstance(x, Tensor | SparseFeatures):
        raise DtypeError(f"constant: expected a tensor or SparseFeatures, got {type(x).__name__}")
    key = id(x)
    if key not in _declared:
        _declared[key] = weakref.ref(x, lambda _: _declared.pop(key, None))
    return x


@contextlib.contextmanager
def owning(*items: Any) -> Iterator[None]:
    """Declares ``items`` for the calls inside, by a caller that watches over their content itself: the trainer."""
    token = _OWNED.set((*_OWNED.get(), *items))
    try:
        yield
    finally:
        _OWNED.reset(token)


@contextlib.contextmanager
def once() -> Iterator[None]:
    """Calls inside have other inputs every time but for those that are declared, and go backward once at most.

    So nothing is kept to compare the next call with, nor an input that the backward pass does not read.
    """
    token = _ONCE.set(True)
    try:
        yield
    finally:
        _ONCE.reset(token)


@contextlib.contextmanager
def consumed(item: Tensor) -> Iterator[None]:
    """Calls inside may write over ``item``, which nobody reads after them."""
    token = _CONSUMED.set(item)
    try:
        yield
    finally:
        _CONSUMED.reset(token)


def is_consumed(item: Any) -> bool:
    """Whether ``item`` is the input of a call inside :func:`consumed`."""
    return item is not None and _CONSUMED.get() is item


def comes_once() -> bool:
    """Whether the call is one inside :func:`once`."""
    return _ONCE.get()


def is_owned() -> bool:
    """Whether the call is one of the trainer's, whose decisions are its own."""
    return bool(_OWNED.get())


def is_declared(item: Any) -> bool:
    """Whether somebody said that ``item`` stays as it is."""
    owned = _OWNED.get()
    if owned and any(item is one for one in owned):
        return True
    found = _declared.get(id(item)) if _declared else None
    return found is not None and found() is item


def sent(item: Tensor, device: torch.device) -> Tensor:
    """``item`` on ``device``; what is declared is sent once, and declared there too."""
    if item.device == device or not is_declared(item):
        return item.to(device)
    found = _sent.get((id(item), device))
    if found is None or found[0] != Reference(item):
        found = _sent[id(item), device] = Reference(item), constant(item.to(device))
        weakref.finalize(item, _sent.pop, (id(item), device), None)
    return found[1]


def check_ids_once(who: str, ids: Tensor, bound: int) -> None:
    """Every id lies in [0, bound); of declared ids once, since a device is waited for. Raises: as ``check_ids``."""
    if not is_declared(ids):
        check_ids(who, ids, bound)
        return
    known = Reference(ids), bound
    if _checked.get(id(ids)) != known:
        check_ids(who, ids, bound)
        if id(ids) not in _checked:
            weakref.finalize(ids, _checked.pop, id(ids), None)
        _checked[id(ids)] = known


class Reference:
    """An object by identity, place and version, without keeping it alive."""

    __slots__ = ("_mark", "_target")

    def __init__(self, target: Any) -> None:
        self._target, self._mark = weakref.ref(target), _mark(target)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Reference):
            return NotImplemented
        mine = self._target()
        return mine is not None and mine is other._target() and self._mark == other._mark

    def __hash__(self) -> int:
        return hash(self._mark)


def _mark(item: Any) -> tuple[int, ...]:
    tensor = stored(item) if isinstance(item, Tensor) else item
    if not isinstance(tensor, Tensor):
        return ()
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version


class Watch:
    """Finds out whether memory that somebody owns was changed behind torch's back.

    Args:
        item: A tensor or sparse features; it is not looked at before :meth:`look` is called.
    """

    def __init__(self, item: Tensor | SparseFeatures) -> None:
        self.item = item
        self._seen: tuple[Reference, tuple[Any, ...]] | None = None

    def look(self) -> None:
        """Reads the memory; after a change that torch did not see, its version counter is moved on.

        Whoever compares versions, as :class:`Reference` does, then sees the change.
        """
        tensor = stored(self.item)
        found = Reference(self.item), fingerprint(self.item)
        if self._seen is not None and found[0] == self._seen[0] and found[1] != self._seen[1]:
            if not tensor.is_inference():
                increment_version(tensor)
            found = Reference(self.item), found[1]
        self._seen = found


__all__ = [
    "Reference", "Watch", "comes_once", "constant", "consumed", "is_consumed", "is_declared", "is_owned", "once",
    "owning",
]  # fmt: skip
