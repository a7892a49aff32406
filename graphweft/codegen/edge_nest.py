"""Loop nests of fused regions over edges: rows, the edges of a row, the trailing dimensions of an edge's values.

Comes in: the values of a region, operands before users, and the graph whose rows the nest walks. Goes out: an
:class:`EdgeNest`, plain data that does not refer to the program, so that equal regions give equal text. Every operation
is written in few kinds of steps: functions of elements, sums over trailing dimensions, rearrangements, and sinks.
Called by ``runtime/edge_kernels.py``. Sources: Graphiler, section 5 (broadcast-compute-reduce); GraphTensor, section IV
(a destination's row is read once).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from graphweft._errors import IRError
from graphweft.codegen.loops import Operand
from graphweft.ir.ops import Op
from graphweft.ir.pattern import end_of
from graphweft.ir.program import Value
from graphweft.ir.trailing import ROWS, broadcast_dims, split_spec

Dims = tuple[int, ...]
SIZES = {"float": 4, "double": 8}  # bytes of a number, by its name in C++


@dataclass(frozen=True)
class Source:
    """What is read: a row of the ``far`` end, of the ``own`` end (the nest's row), of the ``edge``, or ``shared``.

    ``logic``: conditions, as numbers 0 and 1.
    """

    kind: str
    dims: Dims
    logic: bool = False


@dataclass(frozen=True)
class Step:
    """One value of an edge.

    Attributes:
        kind: ``ewise``, ``sum``, ``reshape``, ``expand``, ``permute``, ``slice``, ``unslice`` or ``cat``.
        operands: What it reads.
        dims: Its trailing dimensions.
        attrs: As the operation of the IR has them.
    """

    kind: str
    operands: tuple[Operand, ...]
    dims: Dims
    attrs: tuple[tuple[str, Any], ...] = ()

    def __getitem__(self, name: str) -> Any:
        return dict(self.attrs)[name]


@dataclass(frozen=True)
class Sink:
    """What leaves the nest: a row's ``sum``, ``mean``, ``max`` or ``min``, a value per ``edge``, or the ``total``."""

    kind: str
    operand: Operand
    dims: Dims


@dataclass(frozen=True)
class EdgeNest:
    """``for every row, for every edge of it: run the steps, feed the sinks``; ``real``: the numbers' type in C++."""

    sources: tuple[Source, ...]
    steps: tuple[Step, ...]
    sinks: tuple[Sink, ...]
    real: str = "float"

    def __str__(self) -> str:
        lines = [f"in{k} = {s.kind}{list(s.dims)}{' logic' * s.logic}" for k, s in enumerate(self.sources)]
        lines.append("for row, edge:")
        for number, step in enumerate(self.steps):
            attrs = [f"{key}={value}" for key, value in step.attrs if key != "fn"]
            shown = ", ".join([*map(str, step.operands), *attrs])
            name = step["fn"] if step.kind == "ewise" else step.kind
            lines.append(f"  t{number}{list(step.dims)} = {name}({shown})")
        lines += [f"  {s.kind} out{k}{list(s.dims)} <- {s.operand}" for k, s in enumerate(self.sinks)]
        return "\n".join(lines)

    def dims_of(self, operand: Operand) -> Dims:
        """The trailing dimensions of what a step or sink reads."""
        if operand.kind == "number":
            return ()
        return (self.sources if operand.kind == "input" else self.steps)[operand.index].dims


def edge_nest(region: Sequence[Value], results: Sequence[Value], graph: Value) -> tuple[EdgeNest, tuple[Value, ...]]:
    """The nest over the rows of ``graph`` and the values that it reads, in the order of its sources.

    Args:
        region: Values computed for every edge, and what is reduced from them.
        results: Those that are stored, in the order of the sinks.
        graph: Its destinations are the nest's rows.

    Raises: IRError where a step or sink would not be written in full from its operands.
    """
    writer = _Writer(set(region), graph)
    sinks = tuple(writer.sink(value) for value in results)
    real = "double" if results[0].tensor.dtype == torch.float64 else "float"
    nest = EdgeNest(tuple(writer.sources), tuple(writer.steps), sinks, real)
    _check(nest)
    return nest, tuple(writer.read)


def _check(nest: EdgeNest) -> None:
    """Raises: IRError where dimensions do not follow from those of the operands, so loops would miss elements."""
    for number, step in enumerate(nest.steps):
        given = _given(step, [nest.dims_of(operand) for operand in step.operands])
        if given != step.dims:
            raise IRError(f"walk: expected {list(given)} for t{number} = {step.kind}, got {list(step.dims)}")
    for number, sink in enumerate(nest.sinks):
        if broadcast_dims("walk", [nest.dims_of(sink.operand), sink.dims]) != sink.dims:
            raise IRError(f"walk: expected {list(nest.dims_of(sink.operand))} for out{number}, got {list(sink.dims)}")


def _given(step: Step, operands: Sequence[Dims]) -> Dims:
    """The dimensions that a step has by its operands."""
    x, dims = operands[0], step.dims
    if step.kind == "ewise":
        return broadcast_dims("walk", operands)
    if step.kind == "sum":
        return tuple(size for axis, size in enumerate(x) if axis not in step["axes"])
    if step.kind == "permute":
        return tuple(x[axis] for axis in step["order"])
    if step.kind == "reshape":
        return dims if prod(x) == prod(dims) else x
    if step.kind == "expand":
        return broadcast_dims("walk", [x, dims])
    axis = step["axis"]
    if step.kind == "cat":
        return (*x[:axis], sum(own[axis] for own in operands), *x[axis + 1 :])
    if step.kind == "slice":
        return (*x[:axis], len(range(step["start"], step["stop"], step["step"])), *x[axis + 1 :])
    last = step["start"] + (x[axis] - 1) * step["step"]  # an unslice, whose length is its own
    return (*x[:axis], max(dims[axis], last + 1), *x[axis + 1 :])


class _Writer:
    """Steps of a nest, one after the other."""

    def __init__(self, region: set[Value], graph: Value) -> None:
        self.region, self.turned = region, end_of(graph)[1]
        self.sources: list[Source] = []
        self.steps: list[Step] = []
        self.read: list[Value] = []
        self._known: dict[Value, Operand] = {}
        self._inputs: dict[tuple[Value, str], Operand] = {}

    def sink(self, value: Value) -> Sink:
        """The value as it leaves the nest."""
        dims = value.tensor.dims
        if value.op is Op.REDUCE:
            return Sink(value["kind"], self.operand(value.inputs[1]), dims)
        if value.op is Op.SPMM:
            graph, x, weight = value.inputs
            row = self._end(x, not self._is_own(graph, "dst"))
            return Sink("sum", self.ewise("mul", row, self.operand(weight)), dims)
        if value.tensor.rows is not None:
            return Sink("edge", self.operand(value), dims)
        if value.op is Op.COL_SUM:
            return Sink("total", self.operand(value.inputs[0]), dims)
        if value.op is Op.MATMUL:
            return Sink("total", self._contract("na,nb->ab", value.inputs), dims)
        return Sink("total", self._contract(value["spec"], value.inputs), dims)

    def operand(self, value: Value) -> Operand:
        """What reads ``value``: a step or source."""
        if value.op is Op.CONST:
            return Operand("number", number=float(value["value"]))
        if value not in self._known:
            if value in self.region:
                self._known[value] = self._write(value)
            else:
                self._known[value] = self._input(value, "edge" if value.tensor.rows is not None else "shared")
        return self._known[value]

    def dims_of(self, operand: Operand) -> Dims:
        """Trailing dimensions."""
        if operand.kind == "number":
            return ()
        return (self.sources if operand.kind == "input" else self.steps)[operand.index].dims

    def ewise(self, fn: str, *operands: Operand, alpha: float | None = None) -> Operand:
        """A function of elements, dimensions broadcast from the right."""
        shapes = [self.dims_of(operand) for operand in operands]
        depth = max(map(len, shapes))
        padded = [(1,) * (depth - len(shape)) + shape for shape in shapes]
        dims = tuple(max(sizes) for sizes in zip(*padded, strict=True))
        attrs = (("fn", fn), *(() if alpha is None else (("alpha", alpha),)))
        return self._step("ewise", operands, dims, attrs)

    def _is_own(self, graph: Value, end: str) -> bool:
        """Whether the end of an edge that an operation on ``graph`` means is the nest's row."""
        return (end == "dst") == (end_of(graph)[1] == self.turned)

    def _end(self, rows: Value, own: bool) -> Operand:
        return self._input(rows, "own" if own else "far")

    def _input(self, value: Value, kind: str) -> Operand:
        key = (value, kind)
        if key not in self._inputs:
            self._inputs[key] = Operand("input", len(self.sources))
            self.sources.append(Source(kind, value.tensor.dims, value.tensor.dtype == torch.bool))
            self.read.append(value)
        return self._inputs[key]

    def _step(self, kind: str, operands: Sequence[Operand], dims: Dims, attrs: Any = ()) -> Operand:
        if kind == "reshape" and self._out_of_place(operands[0], dims):
            operands = [self.ewise("copy", operands[0])]
        self.steps.append(Step(kind, tuple(operands), tuple(dims), tuple(attrs)))
        return Operand("result", len(self.steps) - 1)

    def _out_of_place(self, x: Operand, dims: Dims) -> bool:
        """Whether a reshape to ``dims`` needs the elements one after the other and they are not."""
        if [n for n in dims if n != 1] == [n for n in self.dims_of(x) if n != 1]:
            return False
        while x.kind == "result" and self.steps[x.index].kind in ("reshape", "expand", "permute", "slice"):
            if self.steps[x.index].kind != "reshape":
                return True
            x = self.steps[x.index].operands[0]
        return False

    def _sum(self, x: Operand, axes: Sequence[int]) -> Operand:
        dims = self.dims_of(x)
        if not axes:
            return x
        kept = tuple(size for axis, size in enumerate(dims) if axis not in axes)
        return self._step("sum", (x,), kept, (("axes", tuple(axes)),))

    def _write(self, value: Value) -> Operand:
        op, dims = value.op, value.tensor.dims
        if op in (Op.BROADCAST_SRC, Op.BROADCAST_DST):
            end = "src" if op is Op.BROADCAST_SRC else "dst"
            return self._end(value.inputs[1], self._is_own(value.inputs[0], end))
        if op in (Op.BROADCAST_SHARED, Op.FILL_ROWS):
            return self._input(value.inputs[op is Op.BROADCAST_SHARED], "shared")
        if op is Op.SDDMM:
            graph, a, b = value.inputs
            own = self._is_own(graph, "dst")
            product = self.ewise("mul", self._end(a, own), self._end(b, not own))
            return self._sum(product, range(len(value.inputs[1].tensor.dims)))
        if op is Op.EINSUM:
            return self._contract(value["spec"], value.inputs)
        if op is Op.MATMUL:
            return self._contract("na,ba->nb" if value.get("tb") else "na,ab->nb", value.inputs)
        operands = [self.operand(x) for x in value.inputs]
        if op is Op.EWISE:
            return self.ewise(value["fn"], *operands, alpha=value.get("alpha"))
        if op in _AS_EWISE:
            return self.ewise(_AS_EWISE[op], *operands)
        if op is Op.SCALE:
            return self.ewise("mul", operands[0], Operand("number", number=value["factor"]))
        if op is Op.ADD_CONST:
            return self.ewise("add", operands[0], Operand("number", number=value["constant"]))
        if op is Op.RELU_MASK:
            above = self.ewise("gt", operands[1], Operand("number"))
            return self.ewise("where", above, operands[0], Operand("number"))
        if op is Op.FILL_COLS:
            return self._step("expand", operands, dims)
        if op is Op.ROW_SUM:
            return self._sum(operands[0], (0,))
        if op is Op.SUM_DIMS:
            return self._sum(operands[0], value["axes"])
        if op is Op.DETACH:
            return operands[0]
        return self._step(op.name.lower(), operands, dims, [a for a in value.attrs if a[0] != "dims"])

    def _contract(self, spec: str, values: Sequence[Value]) -> Operand:
        """Sums of products: a product over all letters, the innermost one where most operands lie side by side."""
        inputs, result = split_spec(spec)
        letters = [own.removeprefix(ROWS) for own in inputs]
        operands = [self.operand(value) for value in values]
        sizes = {
            x: n for own, o in zip(letters, operands, strict=True) for x, n in zip(own, self.dims_of(o), strict=True)
        }
        kept = [x for x in result if x != ROWS]
        summed = [x for x in dict.fromkeys("".join(letters)) if x not in kept]
        ends = [own[-1:] for own in letters]
        inner = bool(kept and summed) and ends.count(kept[-1]) >= ends.count(summed[-1])
        domain = [*kept[:-1], *summed, kept[-1]] if inner else [*kept, *summed]
        product: Operand | None = None
        for own, operand in zip(letters, operands, strict=True):
            order = sorted(range(len(own)), key=lambda axis, own=own: domain.index(own[axis]))  # type: ignore[misc]
            if order != list(range(len(own))):
                dims = tuple(sizes[own[axis]] for axis in order)
                operand = self._step("permute", (operand,), dims, (("order", tuple(order)),))
            shape = tuple(sizes[x] if x in own else 1 for x in domain)
            if shape != self.dims_of(operand) and operand.kind != "number":
                operand = self._step("reshape", (operand,), shape)
            product = operand if product is None else self.ewise("mul", product, operand)
        assert product is not None  # an einsum has operands
        full = tuple(sizes[x] for x in domain)
        if self.dims_of(product) != full:
            product = self._step("expand", (product,), full)
        return self._sum(product, [axis for axis, x in enumerate(domain) if x in summed])


_AS_EWISE = {
    Op.ADD: "add",
    Op.MUL: "mul",
    Op.ROW_SCALE: "mul",
    Op.ROW_ADD: "add",
    Op.COL_SCALE: "mul",
    Op.BIAS: "add",
    Op.MUL_SCALAR: "mul",
    Op.RELU: "relu",
}


def work(nest: EdgeNest) -> int:
    """Elements computed for one edge."""
    return sum(prod(step.dims) for step in nest.steps if step.kind in ("ewise", "sum")) + sum(
        prod(sink.dims) for sink in nest.sinks
    )
