"""Python numbers that user functions read and that change between calls: inputs of a program in place of constants.

Comes in: the functions of a call and positions of numbers in what they capture. Goes out: the same functions reading
symbols there, to be recorded, and the values of expressions of such symbols, to be given to the program in every call.
Nothing that the user holds is changed: what lies on the way to a number is copied. Called by ``udf.py``, ``trace.py``
and ``nn/user_call.py``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CellType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from graphweft import _torch_recording as recording
from graphweft.frontend.captured import NUMBERS, Captured, Walk, globals_of, own_packages
from graphweft.frontend.layout import UnraisableError
from graphweft.ir.program import reached

NUMBER = "number:"  # begins the name of an input that stands in the place of a Python number
_LEAF = 3  # parts of a number's key: its class, its digits, its position
_ASKS_FOR_CLASSES = {"isinstance", "type", "issubclass", "is_integer", "as_integer_ratio", "hex", "format", "repr"}
_MARK = 1_000_003  # a number that nobody uses


def skeleton(key: Any) -> Any:
    """``key`` without the numbers in it."""
    return blanked(key, None)


def blanked(key: Any, positions: frozenset[int] | None) -> Any:
    """``key`` without the numbers at ``positions``; None: without any."""
    if type(key) is not tuple:
        return key
    if is_leaf(key):
        return (key[0], key[-1]) if positions is None or key[-1] in positions else key
    return tuple([blanked(part, positions) for part in key])


def is_leaf(key: tuple[Any, ...]) -> bool:
    """Whether a part of a key is that of a number."""
    return len(key) == _LEAF and key[0] in NUMBERS and type(key[1]) is str and type(key[2]) is int


def usable(numbers: Sequence[Any], positions: frozenset[int]) -> bool:
    """Whether the numbers at ``positions`` can be inputs: no infinity, which arithmetic on symbols knows nothing of."""
    return all(math.isfinite(numbers[at]) for at in positions)


@dataclass(frozen=True)
class Written:
    """A number that a program reads: an expression of symbols, the positions these stand for, and its dtype."""

    expression: Any
    symbols: tuple[tuple[Any, int], ...]
    dtype: torch.dtype

    def value(self, numbers: Sequence[Any]) -> Any:
        """The number, computed as Python would. Raises: ArithmeticError, ValueError as Python's own code."""
        if len(self.symbols) == 1 and self.expression is self.symbols[0][0]:
            number = numbers[self.symbols[0][1]]
            return float(number) if isinstance(number, float) else number
        given = ((symbol, numbers[at]) for symbol, at in self.symbols)
        known = {symbol: float(x) if isinstance(x, float) else x for symbol, x in given}
        return recording.sympy_interp(recording.PythonReferenceAnalysis, known, self.expression)

    def tensor(self, numbers: Sequence[Any]) -> Tensor:
        """The number as an input, as torch would take it beside tensors of this dtype."""
        return torch.scalar_tensor(self.value(numbers), dtype=self.dtype)


class OpenNumbers:
    """The functions of a call with some of their numbers to be put in.

    Args:
        roots: Message, reduce, update and params.
        captured: What they read.
        positions: Which numbers are open.

    Raises: UnraisableError where a number cannot be replaced without changing what the user holds.
    """

    def __init__(self, roots: tuple[Any, ...], captured: Captured, positions: frozenset[int]) -> None:
        self.roots, self.captured, self.positions = roots, captured, positions
        self._found = _Tracking(own_packages(roots))
        key = tuple(self._found.visit(root) for root in roots)
        if not _ASKS_FOR_CLASSES.isdisjoint(self._found.names):
            raise UnraisableError("code that checks the type of a number")
        self._slots = {at: self._slot(at, key) for at in sorted(positions)}

    def put_in(self, numbers: Mapping[int, Any]) -> tuple[Any, ...]:
        """The functions with ``numbers`` by position."""
        return _Copies(self._found, {self._slots[at]: number for at, number in numbers.items()}).roots(self.roots)

    def _slot(self, at: int, key: Any) -> tuple[int, Any]:
        """Where the number at ``at`` is held: the object's id and the name in it."""
        holder, number = self._found.holders[at], self.captured.numbers[at]
        for name, value, _ in _slots(holder):
            if value is number and self._leads_to((id(holder), name), at, key):
                return id(holder), name
        raise UnraisableError("a number that is held where it cannot be replaced")

    def _leads_to(self, slot: tuple[int, Any], at: int, key: Any) -> bool:
        """Whether another number in ``slot`` is seen at ``at`` and nowhere else."""
        kind = type(self.captured.numbers[at])
        mark = kind(_MARK + at)
        try:
            copies = _Copies(self._found, {slot: mark}).roots(self.roots)
        except (TypeError, AttributeError, UnraisableError):  # a class whose instances cannot be copied
            return False
        walk = Walk(own_packages(copies))
        seen = tuple(walk.visit(root) for root in copies)
        return bool(seen == _replaced(key, at, (kind.__name__, repr(mark), at)))


def _replaced(key: Any, at: int, leaf: tuple[Any, ...]) -> Any:
    if type(key) is not tuple:
        return key
    if is_leaf(key):
        return leaf if key[-1] == at else key
    return tuple([_replaced(part, at, leaf) for part in key])


def name_number(roots: tuple[Any, ...], at: int) -> str:
    """The number at position ``at`` as the user's code calls it, like ``self.tau``."""
    found = _Tracking(own_packages(roots))
    for root in roots:
        found.visit(root)
    item, number = found.holders[at], found.found.numbers[at]
    name = next((label for _, value, label in _slots(item) if value is number), None)
    if name is None:
        inside = isinstance(item, nn.Module) or hasattr(item, "__dict__")
        known = [n for n in dir(type(item)) if inside and getattr(type(item), n, None) is number]
        name = f".{known[0]}" if known else "a number"
    while name.startswith((".", "[")):
        parent = found.parents[id(item)][0]
        if parent is None:
            return f"params{name}" if name.startswith("[") else name.lstrip(".")
        label = next((label for _, value, label in _slots(parent) if value is item), "")
        name, item = f"{label}{name}", parent
    return name


class _Tracking(Walk):
    """A walk that remembers which object led to which."""

    def __init__(self, own: frozenset[str]) -> None:
        super().__init__(own)
        self.parents: dict[int, list[Any]] = {}
        self.holders: dict[int, Any] = {}
        self._way: list[Any] = [None]

    def visit(self, item: Any) -> Any:
        """As of any walk."""
        known = len(self.found.numbers)
        if type(item).__name__ in NUMBERS:
            made = super().visit(item)
            if len(self.found.numbers) > known:
                self.holders[known] = self._way[-1]
            return made
        self.parents.setdefault(id(item), []).append(self._way[-1])
        self._way.append(item)
        try:
            return super().visit(item)
        finally:
            self._way.pop()

    def above(self, ids: set[int]) -> Collection[int]:
        """Ids of objects and of all that lead to them."""
        return reached(ids, lambda at: [id(one) for one in self.parents.get(at, ()) if one is not None])


def _slots(item: Any) -> Iterator[tuple[Any, Any, str]]:
    """Where ``item`` holds other things and numbers: key, content, and how code writes it."""
    if isinstance(item, FunctionType):
        for name in globals_of(item.__code__):
            if name in item.__globals__:
                yield ("global", name), item.__globals__[name], name
        for at, (name, cell) in enumerate(zip(item.__code__.co_freevars, item.__closure__ or (), strict=True)):
            try:
                yield ("cell", at), cell.cell_contents, name
            except ValueError:  # an empty cell
                continue
        yield ("defaults", 0), item.__defaults__, "a default"
        yield ("kwdefaults", 0), item.__kwdefaults__, "a default"
        yield ("dict", 0), item.__dict__, item.__name__
    elif isinstance(item, MethodType):
        yield ("self", 0), item.__self__, "self"
    elif isinstance(item, functools.partial):
        yield ("args", 0), item.args, "an argument"
        yield ("keywords", 0), item.keywords, "an argument"
        yield ("func", 0), item.func, ""
    elif type(item) in (list, tuple):
        yield from ((("item", at), part, f"[{at}]") for at, part in enumerate(item))
    elif type(item) is dict:
        yield from ((("item", key), part, f"[{key!r}]") for key, part in item.items())
    elif isinstance(getattr(item, "__dict__", None), dict) and not isinstance(item, type):
        yield from ((("attribute", name), part, f".{name}") for name, part in item.__dict__.items())
        if isinstance(item, nn.Module):
            yield from ((("module", name), part, f".{name}") for name, part in item._modules.items())


class _Copies:
    """Copies of everything on the way to some slots, with other numbers in these; the rest is shared."""

    def __init__(self, found: _Tracking, numbers: Mapping[tuple[int, Any], Any]) -> None:
        self._numbers = numbers
        self._on_the_way = found.above({holder for holder, _ in numbers})
        self._made: dict[int, Any] = {}

    def roots(self, roots: tuple[Any, ...]) -> tuple[Any, ...]:
        """The copies of ``roots``."""
        return tuple(self._of(root) for root in roots)

    def _of(self, item: Any) -> Any:
        if id(item) not in self._on_the_way or type(item).__name__ in NUMBERS:
            return item
        if id(item) not in self._made:
            self._made[id(item)] = item  # met again on its own way, as a recursive function is
            self._made[id(item)] = self._copy(item)
        return self._made[id(item)]

    def _in(self, item: Any, slot: tuple[str, Any], content: Any) -> Any:
        """What the copy of ``item`` holds in ``slot``."""
        known = (id(item), slot)
        return self._numbers[known] if known in self._numbers else self._of(content)

    def _copy(self, item: Any) -> Any:
        if isinstance(item, FunctionType):
            return self._function(item)
        if isinstance(item, MethodType):
            return MethodType(self._of(item.__func__), self._of(item.__self__))
        if isinstance(item, functools.partial):
            return functools.partial(self._of(item.func), *self._of(item.args), **self._of(item.keywords))
        if type(item) in (list, tuple):
            parts = (self._in(item, ("item", at), part) for at, part in enumerate(item))
            return type(item)(parts)
        if type(item) is dict:
            return {key: self._in(item, ("item", key), part) for key, part in item.items()}
        if isinstance(item, type | np.ndarray | Tensor) or not isinstance(getattr(item, "__dict__", None), dict):
            raise UnraisableError("a number that is held where it cannot be replaced")
        return self._object(item)

    def _function(self, item: FunctionType) -> FunctionType:
        read = [name for name in globals_of(item.__code__) if name in item.__globals__]
        outside = item.__globals__
        changed = {name: self._in(item, ("global", name), outside[name]) for name in read}
        if any(changed[name] is not outside[name] for name in read):
            outside = {**outside, **changed}
        cells = tuple(self._cell(item, at, cell) for at, cell in enumerate(item.__closure__ or ()))
        defaults = self._of(item.__defaults__)
        made = FunctionType(item.__code__, outside, item.__name__, defaults, cells if item.__closure__ else None)
        made.__kwdefaults__ = self._of(item.__kwdefaults__)
        made.__dict__.update(self._of(item.__dict__))
        made.__module__, made.__qualname__ = item.__module__, item.__qualname__
        return made

    def _cell(self, item: FunctionType, at: int, cell: CellType) -> CellType:
        try:
            content = cell.cell_contents
        except ValueError:  # an empty cell
            return cell
        made = self._in(item, ("cell", at), content)
        return cell if made is content else CellType(made)

    def _object(self, item: Any) -> Any:
        kind = type(item)
        make: Any = getattr(kind, "__new__")  # noqa: B009  typed for known classes only
        made = self._made[id(item)] = make(kind)
        contents = {name: self._in(item, ("attribute", name), part) for name, part in item.__dict__.items()}
        if isinstance(item, nn.Module):
            parts = item._modules.items()
            contents["_modules"] = {name: self._in(item, ("module", name), part) for name, part in parts}
        made.__dict__.update(contents)
        return made


__all__ = ["OpenNumbers", "Written", "blanked", "name_number", "skeleton", "usable"]
