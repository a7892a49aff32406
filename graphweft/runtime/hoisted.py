"""Values that a plan computes once: kept per graph and expression, for the content that they were computed from.

Comes in: a plan, one of its hoisted values, the arguments of a call. Goes out: the value, from an earlier call or anew;
the same kernels make it either way, so the bits of a result are the same. Called by ``compile.py``. Values are kept for
the graphs that were used last; a value goes when its graph, or an input that it was made from, dies or changes.
"""

from __future__ import annotations

import functools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from graphweft._memory import POOL, empty
from graphweft.graph.graph import Graph
from graphweft.runtime.constants import Reference
from graphweft.runtime.plan import HoistedValue, Plan
from graphweft.storage.fingerprint import fingerprint

_GRAPHS = 4  # that values are kept for: a value may hold its graph, so more would keep graphs alive that nobody uses
_PATIENCE = 3  # changes in a row after which an input is taken to change in every call
_LONGEST = 64  # calls until it is looked at again


class Content:
    """What the inputs of one call hold, each looked at once and only when asked for.

    Args:
        named: The inputs by name.
        trusted: Names of those that are as they were while they are the same object: declared, or made from the graph.
    """

    def __init__(self, named: Mapping[str, Any], trusted: Collection[str]) -> None:
        self.named = named
        self._trusted = trusted
        self._marks: dict[str, Any] = {}

    def marks(self, names: tuple[str, ...]) -> tuple[Any, ...]:
        """What to compare with a later call's; the graph that values are kept for has none, for it never changes."""
        return tuple(self._mark(name) for name in names)

    def is_trusted(self, names: tuple[str, ...]) -> bool:
        """Whether no bytes have to be read to know that the inputs are as they were."""
        return all(name in self._trusted or isinstance(self.named[name], Graph) for name in names)

    def _mark(self, name: str) -> Any:
        item = self.named[name]
        if isinstance(item, Graph):
            return None if item is self.named["graph"] else Reference(item)
        if name not in self._marks:
            self._marks[name] = Reference(item) if name in self._trusted else fingerprint(item)
        return self._marks[name]


class _Entry:
    """A kept value, and how often its inputs had changed when it was asked for."""

    __slots__ = ("changes", "marks", "skip", "value", "watched")

    def __init__(self) -> None:
        self.value: Any = None
        self.marks: tuple[Any, ...] | None = None  # None: nothing is kept
        self.watched: tuple[weakref.ref[Any], ...] = ()
        self.changes = self.skip = 0

    def keep(self, value: Any, marks: tuple[Any, ...], inputs: list[Any]) -> None:
        """Keeps ``value`` until one of ``inputs`` dies."""
        self.value, self.marks = value, marks
        self.watched = tuple(weakref.ref(item, self._forget) for item in inputs)

    def drop(self) -> None:
        """Lets the value go."""
        self.value, self.marks, self.watched = None, None, ()

    def changed(self, patience: int = _PATIENCE, longest: int = _LONGEST) -> None:
        """Counts a change: what changes again and again is soon not looked at any more.

        The bounds are defaults, so that an input which dies at interpreter exit still finds them.
        """
        self.changes += 1
        if self.changes >= patience:
            self.skip = min(1 << self.changes, longest)

    def _forget(self, dead: weakref.ref[Any]) -> None:
        if dead in self.watched:
            self.drop()
            self.changed()


Columns = Callable[[int, int], Tensor]
_COLUMNS = 32  # read of features at a time where they are not in memory

_Entries = dict[str, _Entry]


class HoistedValues:
    """Values computed once, by graph and expression."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, tuple[weakref.ref[Graph], _Entries]] = OrderedDict()

    def get(
        self,
        plan: Plan,
        item: HoistedValue,
        content: Content,
        over: str | None = None,
        columns: Columns | None = None,
    ) -> Any:
        """The value of ``item``, computed if it is not at hand; ``over`` as for the plan.

        ``columns``: gives some columns of "x"; the value is computed from so many at a time, where columns do not mix.
        """
        if content.named["graph"].is_drawn:  # it comes once
            return self._made(plan, item, content, over)
        entry = self._entry(content, item)
        if entry.skip and not content.is_trusted(item.leaves):
            entry.skip -= 1
            return self._made(plan, item, content, over)
        marks = content.marks(item.leaves)
        if entry.marks is not None and entry.marks == marks:
            entry.changes = 0
            return _given(entry.value, item)
        if entry.marks is not None:
            entry.changed()
        entry.drop()  # its memory goes before the new value comes
        if columns is not None and over is None and plan.keeps_columns(item, "x"):
            value = _by_columns(plan, item, content, columns)
        else:
            value = self._made(plan, item, content, over)
        inputs = [content.named[name] for name in item.leaves]
        entry.keep(value, marks, [leaf for leaf in inputs if not isinstance(leaf, Graph)])
        return _given(value, item)

    def has(self, item: HoistedValue, content: Content) -> bool:
        """Whether the value of ``item`` is at hand for the inputs as they are."""
        marks = self._entry(content, item).marks
        return marks is not None and marks == content.marks(item.leaves)

    def bytes_by_torch(self) -> int:
        """Bytes of kept values that lie in torch's own memory, as those that the interpreter made."""
        values = [entry.value for _, entries in self._kept.values() for entry in entries.values()]
        return sum(value.nbytes for value in values if type(value) is Tensor and not POOL.owns(value))

    def renew(self, item: HoistedValue, content: Content) -> None:
        """Takes the inputs, as they are now, for those that the kept value was computed from."""
        entry = self._entry(content, item)
        if entry.marks is not None:
            entry.marks = content.marks(item.leaves)

    def _entry(self, content: Content, item: HoistedValue) -> _Entry:
        entries = self._of(content.named["graph"])
        found = entries.get(item.key)
        if found is None:
            found = entries[item.key] = _Entry()
        return found

    def _of(self, graph: Graph) -> _Entries:
        """The entries of ``graph``, from now on the last that was used."""
        key, kept = id(graph), self._kept
        found = kept.get(key)
        if found is not None and found[0]() is graph:
            if len(kept) > 1:
                kept.move_to_end(key)
            return found[1]
        entries: _Entries = {}
        kept[key] = weakref.ref(graph, functools.partial(_leave, kept, key)), entries  # also when the interpreter ends
        kept.move_to_end(key)
        while len(kept) > _GRAPHS:
            kept.popitem(last=False)
        return entries

    @staticmethod
    def _made(plan: Plan, item: HoistedValue, content: Content, over: str | None) -> Any:
        leaves = {name: content.named[name] for name in item.leaves}
        with torch.inference_mode(False), torch.no_grad():  # a training step may save what an evaluation made
            return plan.evaluate_hoisted(item, leaves, over)


def _by_columns(plan: Plan, item: HoistedValue, content: Content, columns: Columns) -> Tensor:
    """As :meth:`HoistedValues.get`, some columns after the others."""
    leaves = {name: content.named[name] for name in item.leaves}
    width = leaves["x"].shape[1]
    made: Tensor | None = None
    with torch.inference_mode(False), torch.no_grad():
        for first in range(0, width, _COLUMNS):
            last = min(first + _COLUMNS, width)
            some = plan.evaluate_hoisted(item, {**leaves, "x": columns(first, last)})
            made = empty((some.shape[0], width), some.dtype) if made is None else made
            made[:, first:last] = some
    assert made is not None  # there are columns
    return made


def _given(value: Any, item: HoistedValue) -> Any:
    """A kept value as a call gets it: one that is handed on to the caller is copied, for the caller may change it."""
    return value.clone() if item.is_output else value


def _leave(kept: OrderedDict[int, tuple[weakref.ref[Graph], _Entries]], key: int, dead: weakref.ref[Graph]) -> None:
    """A graph died; its place may be another's by now."""
    found = kept.get(key)
    if found is not None and found[0] is dead:
        del kept[key]


__all__ = ["Columns", "Content", "HoistedValues"]
