"""Values and programs: the immutable data-flow graph.

Comes in: operations appended through a :class:`Builder` (front ends, gradient rules, passes). Goes out: a
:class:`Program` in topological order that passes rewrite, the interpreter runs and the runtime lowers.
``str(program)`` is the printed form that golden tests and ``gw.explain`` show.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, KeysView, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from graphweft._errors import IRError
from graphweft.ir.ops import SPECS, Op
from graphweft.ir.places import placed
from graphweft.ir.residency import StructType, TensorType, Type

Attrs = tuple[tuple[str, Any], ...]
T = TypeVar("T")


@dataclass(frozen=True, eq=False, repr=False)
class Value:
    """The result of one operation. Immutable; compared by identity."""

    op: Op
    inputs: tuple[Value, ...]
    attrs: Attrs
    type: Type

    def __getitem__(self, name: str) -> Any:
        for key, value in self.attrs:
            if key == name:
                return value
        raise KeyError(name)

    def get(self, name: str, default: Any = None) -> Any:
        """The attribute ``name``, or ``default``."""
        return next((value for key, value in self.attrs if key == name), default)

    @property
    def tensor(self) -> TensorType:
        """The type, for a value known to be a tensor."""
        if not isinstance(self.type, TensorType):
            raise IRError(f"{self.op.name.lower()}: expected a tensor operand, got {self.type}")
        return self.type

    @property
    def struct(self) -> StructType:
        """The type, for a value known to be a graph."""
        if not isinstance(self.type, StructType):
            raise IRError(f"{self.op.name.lower()}: expected a graph operand, got {self.type}")
        return self.type

    @functools.cached_property
    def shown(self) -> tuple[str, list[str], str]:
        """The name of the operation, attributes and type, as a program prints them."""
        return self.op.name.lower(), [f"{k}={v}" for k, v in self.attrs if not _is_default(k, v)], str(self.type)

    def __getstate__(self) -> dict[str, Any]:
        return {"op": self.op, "inputs": self.inputs, "attrs": self.attrs, "type": self.type}  # not what is cached

    def __repr__(self) -> str:
        return f"<{self.op.name.lower()} {self.type}>"


@dataclass(frozen=True, eq=False)
class Program:
    """Inputs, named outputs, and all values between them in topological order."""

    inputs: tuple[Value, ...]
    outputs: tuple[tuple[str, Value], ...]
    values: tuple[Value, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(topological([v for _, v in self.outputs], self.inputs)))

    def __getstate__(self) -> dict[str, Any]:
        return {"inputs": self.inputs, "outputs": self.outputs, "values": self.values}  # not what is cached

    def input(self, name: str) -> Value:
        """The input called ``name``."""
        found = self._named.get(name)
        if found is not None:
            return found
        raise IRError(f"program: expected an input among {[v['name'] for v in self.inputs]}, got {name!r}")

    def output(self, name: str) -> Value:
        """The output called ``name``."""
        for key, value in self.outputs:
            if key == name:
                return value
        raise IRError(f"program: expected an output among {[k for k, _ in self.outputs]}, got {name!r}")

    def users(self) -> Mapping[Value, list[Value]]:
        """For each value, the values that read it, in order (outputs of the program are not counted)."""
        return self._users

    @functools.cached_property
    def _named(self) -> dict[str, Value]:
        return {value["name"]: value for value in reversed(self.inputs)}

    @functools.cached_property
    def _users(self) -> dict[Value, list[Value]]:
        users: dict[Value, list[Value]] = {value: [] for value in self.values}
        for value in self.values:
            for operand in value.inputs:
                users[operand].append(value)
        return users

    @functools.cached_property
    def places(self) -> Mapping[Value, int]:
        """The place of every value among :attr:`values`."""
        return {value: place for place, value in enumerate(self.values)}

    def count(self, *ops: Op) -> int:
        """How many values are made by one of ``ops``."""
        return sum(value.op in ops for value in self.values)

    def __str__(self) -> str:
        return self.text

    @functools.cached_property
    def text(self) -> str:
        """The printed form; equal texts mean equal programs."""
        names = number(self.values)
        lines = []
        for value in self.values:
            name, attrs, kind = value.shown
            lines.append(f"{names[value]} = {name}({', '.join([names[i] for i in value.inputs] + attrs)}) : {kind}")
        returned = ", ".join(f"{name}={names[value]}" for name, value in self.outputs)
        return "\n".join([*lines, f"return {returned}"])


def topological(roots: Iterable[Value], first: Iterable[Value] = ()) -> list[Value]:
    """Operands before users, ``first`` before everything; stable, without recursion."""
    ordered = list(first)
    begun, left = set(ordered), [*roots][::-1]
    ended = set(ordered)
    while left:
        value = left.pop()
        if value in ended:
            continue
        if value in begun:  # its operands have been seen to
            ended.add(value)
            ordered.append(value)
            continue
        begun.add(value)
        left.append(value)
        left.extend([operand for operand in value.inputs[::-1] if operand not in begun])
    return ordered


def reached(begin: Iterable[T], following: Callable[[T], Iterable[T]]) -> KeysView[T]:
    """``begin``, what follows from it, and so on, each once and always in the same order.

    Example:
        >>> sorted(reached([6], lambda n: [n // 2, n - 4] if n > 1 else []))
        [-2, -1, 1, 2, 3, 6]
    """
    found = dict.fromkeys(begin)
    left = list(found)
    while left:
        for item in following(left.pop()):
            if item not in found:
                found[item] = None
                left.append(item)
    return found.keys()


def number(values: Iterable[Value]) -> dict[Value, str]:
    """Printed names: inputs by their own name, others ``%0``, ``%1``, ... in order."""
    names: dict[Value, str] = {}
    count = 0
    for value in values:
        if value.op is Op.INPUT or value.op is Op.GRAPH:
            names[value] = f"%{value['name']}"
        else:
            names[value] = f"%{count}"
            count += 1
    return names


def _is_default(key: str, value: Any) -> bool:
    """Whether an attribute says nothing: names are printed elsewhere."""
    return key == "name" or value is None or value is False or (key == "self_coef" and value == 0.0)


def structural_key(value: Value) -> str:
    """A text that is equal for equal expressions over equally named inputs."""
    memo: dict[Value, str] = {}
    for item in topological([value]):
        parts = [memo[i] for i in item.inputs] + [f"{k}={v}" for k, v in item.attrs]
        memo[item] = f"{item.op.name.lower()}({','.join(parts)})"
    return memo[value]


def inferred(op: Op, types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """The type of a value of ``op``. Raises: IRError for a wrong operand."""
    spec = SPECS[op]
    return placed(op.name.lower(), spec.movement, types, spec.infer(types, attrs))


class Builder:
    """Makes values. Types are inferred by the op's rule; a wrong operand is an IRError that names the op."""

    def add(self, op: Op, *inputs: Value, **attrs: Any) -> Value:
        """A new value of ``op`` over ``inputs``."""
        spec = SPECS[op]
        if not spec.accepts(len(inputs)):
            raise IRError(f"{op.name.lower()}: expected {spec.arity} operands, got {len(inputs)}")
        ordered = tuple(sorted(attrs.items()))
        return Value(op, inputs, ordered, inferred(op, [value.type for value in inputs], attrs))

    def like(self, value: Value, inputs: tuple[Value, ...]) -> Value:
        """``value`` over other inputs; itself when they are the same."""
        if inputs == value.inputs:
            return value
        if all(new.type == old.type for new, old in zip(inputs, value.inputs, strict=True)):
            return Value(value.op, inputs, value.attrs, value.type)  # which follows from these types and the attributes
        return self.add(value.op, *inputs, **dict(value.attrs))


def written(types: Mapping[str, Type], describe: Callable[[Builder, dict[str, Value]], Mapping[str, Value]]) -> Program:
    """The program of ``describe`` over inputs of these types by name: those that it reads; its output "out" first."""
    builder = Builder()
    inputs = {
        name: builder.add(Op.GRAPH if isinstance(type_, StructType) else Op.INPUT, name=name, type=type_)
        for name, type_ in types.items()
    }
    ordered = tuple(sorted(describe(builder, inputs).items(), key=lambda item: item[0] != "out"))
    read = set(Program((), ordered).values)
    return Program(tuple(v for v in inputs.values() if v in read), ordered)
