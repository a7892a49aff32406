"""One call of a kernel, as data: what is read and written, where, and what it computes.

Comes in: names, slots and IR values from ``lower.py``. Goes out: a :class:`KernelCall`, which prints, compares and
pickles. A plan is a list of them; a :class:`~graphweft.runtime.target.Target` finds a launcher for each. Read by
``plan.py``, ``footprint.py``, ``prediction.py`` and ``gw.explain``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from graphweft.cost import Work
from graphweft.ir.program import Attrs, Value, number, topological
from graphweft.ir.residency import TensorType

Slots = list[Any]
Launch = Callable[[Slots], None]  # runs a call over the slots


class Slot(NamedTuple):
    """A place in the list of slots: which part it plays in the call, its position, and the value that lies there."""

    role: str
    at: int
    value: Value


@dataclass(frozen=True, eq=False)
class KernelCall:
    """A kernel, the slots it reads and writes, and what it computes.

    Attributes:
        kernel: Name under which targets register their launchers.
        reads: Operands, each with its role ("graph", "x", "weight", "bias", ...).
        writes: Results, the call's own first.
        attrs: Numbers and switches that are fixed when the plan is made.
        body: Everything that the call computes, in IR, operands before users: its definition. A target without a
            kernel of that name runs it value by value.
        label: ``spmm + row_scale + bias``: the same in short.
        works: What it does, for the cost model: its own, then that of aggregations made on the way.
        frees: Indices of slots that nobody reads afterwards.
        over: Whether the result takes the memory of an operand.
        place: Where its operands and results lie.
        halves: Indices of slots that hold rows in bfloat16, whatever the type of their value says.
    """

    kernel: str
    reads: tuple[Slot, ...]
    writes: tuple[Slot, ...]
    attrs: Attrs
    body: tuple[Value, ...]
    label: str
    works: tuple[Work, ...] = (Work("rows", 0.0, 0.0),)
    frees: tuple[int, ...] = ()
    over: bool = False
    place: str = "host"
    halves: frozenset[int] = frozenset()

    @property
    def work(self) -> Work:
        """What it does itself; ``work.bytes`` are streamed in and out."""
        return self.works[0]

    @property
    def value(self) -> Value:
        """The first result."""
        return self.writes[0].value

    @property
    def dtype(self) -> torch.dtype | None:
        """Dtype of the first result; None for a graph or ids."""
        kind = self.value.type
        return kind.dtype if isinstance(kind, TensorType) else None

    def reading(self, role: str) -> int | None:
        """Index of the operand that plays ``role``, None where there is none."""
        return next((slot.at for slot in self.reads if slot.role == role), None)

    def operand(self, role: str) -> int:
        """Index of the operand that plays ``role``."""
        return next(slot.at for slot in self.reads if slot.role == role)

    def writing(self, role: str) -> int | None:
        """Index of the result that plays ``role``, None where there is none."""
        return next((slot.at for slot in self.writes if slot.role == role), None)

    def moved(self) -> tuple[dict[str, int], dict[str, int]]:
        """Bytes a row of the dense operands and of the results, each counted once, by what the rows are; "" for one.

        Structure, ids, numbers and sparse features are not counted.
        """
        read = {slot.at: slot for slot in self.reads}
        return _bytes_a_row(read.values(), self.halves), _bytes_a_row(self.writes, self.halves)

    def get(self, name: str, default: Any = None) -> Any:
        """The attribute ``name``, or ``default``."""
        return next((value for key, value in self.attrs if key == name), default)

    def text(self, names: Mapping[Value, str]) -> str:
        """``%7 = spmm(graph=%graph, x=%x; self_coef=1.0) : src[N x 16] float32 reads 64*N writes 64*N``, in bytes."""
        made = ", ".join(
            names[slot.value] if place == 0 else f"{slot.role}={names[slot.value]}"
            for place, slot in enumerate(self.writes)
        )
        given = ", ".join(f"{slot.role}={names[slot.value]}" for slot in self.reads)
        fixed = ", ".join(f"{name}={value!r}" for name, value in self.attrs)
        types = ", ".join(str(slot.value.type) for slot in self.writes)
        steps = f" [{len(self.body)} values]" if len(self.body) > 1 else ""
        at = {slot.at: names[slot.value] for slot in (*self.reads, *self.writes)}
        after = f" frees {', '.join(at.get(i, f'slot {i}') for i in self.frees)}" if self.frees else ""
        over = " in place" if self.over else ""
        read, written = (_sum_text(each) for each in self.moved())
        moved = f" reads {read} writes {written}"
        return f"{made} = {self.kernel}({given}{'; ' if fixed else ''}{fixed}){steps} : {types}{moved}{over}{after}"


def _bytes_a_row(slots: Iterable[Slot], halves: frozenset[int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for slot in slots:
        kind = slot.value.type
        if isinstance(kind, TensorType) and not kind.sparse:
            rows, item = kind.rows or "", torch.bfloat16.itemsize if slot.at in halves else kind.dtype.itemsize
            found[rows] = found.get(rows, 0) + item * math.prod(kind.dims)
    return found


def _sum_text(moved: Mapping[str, int]) -> str:
    """``24*V + 192``: bytes by the symbols of rows."""
    return " + ".join(f"{each}*{rows}" if rows else str(each) for rows, each in moved.items()) or "0"


def body_of(operands: Iterable[Value], results: Iterable[Value]) -> tuple[Value, ...]:
    """The values between ``operands`` and ``results``, the results with them, operands before users."""
    given = list(dict.fromkeys(operands))
    return tuple(topological(results, given))[len(given) :]


def calls_text(calls: Iterable[KernelCall], values: Iterable[Value]) -> str:
    """One line a call, by the names of the program's ``values``; equal texts mean equal lists of calls."""
    names = number(values)
    return "\n".join(call.text(names) for call in calls)


__all__ = ["KernelCall", "Launch", "Slot", "Slots", "body_of", "calls_text"]
