"""Gradients of destinations without a walk of their own: the forward walk sums the slopes of the messages.

Comes in: a joint program whose walks are known, with what is hoisted and the phase of each value. Goes out: an equal
program, and phases. The gradient of a destination's operand is ``da_i = sum_e d_i f'(a_i, b_j, w_e)``, in which ``d_i``
is the same for every edge: ``da_i = d_i sum_e f'``. The sum leaves the walk that computes the messages, which has read
every operand of it, and the backward walk over the in-edges becomes a product of rows. Not where the slope needs what
the forward walk only has at its end, as the extremum of a row. The sum in a softmax's gradient, of the weight times the
gradient of the weight, is of this form too, and its sum of slopes the weighted sum itself. Called by ``pipeline.py``.
Source: derived here; GraphTensor, section IV, for reading a destination's row once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from graphweft.ir.elementwise_grad import Formula
from graphweft.ir.ops import LEAVES, Op
from graphweft.ir.pattern import substitute
from graphweft.ir.program import Builder, Program, Value
from graphweft.ir.residency import StructType
from graphweft.passes.edges import fuse_edges
from graphweft.passes.fuse import BACKWARD, FORWARD
from graphweft.passes.groups import Group

_MOST = 2  # rows of a destination that are kept for the backward pass in place of a walk
_PRODUCTS = frozenset({Op.MUL, Op.ROW_SCALE, Op.COL_SCALE, Op.MUL_SCALAR})


class _Term(NamedTuple):
    """``near * slope``: a row of the destination, which depends on gradients, and what does not; None: 1."""

    near: Value
    slope: Value | None


@dataclass(frozen=True)
class _State:
    """A program with its walks."""

    program: Program
    phase: Mapping[Value, int]
    walks: list[Group]


def sum_slopes(
    program: Program, hoisted: set[Value], phase: Mapping[Value, int], heavy: Collection[Value] = ()
) -> tuple[Program, Mapping[Value, int]]:
    """``program`` and ``phase`` with every walk gone whose gradients the forward walk can give."""
    seeds = {v for v in program.inputs if v["name"].startswith("d:")}
    if not seeds:
        return program, phase
    state = _State(program, phase, fuse_edges(program, hoisted, phase, heavy)[0])
    tried: set[tuple[Value, ...]] = set()
    while (results := _untried(state, tried)) is not None:
        tried.add(results)
        site = _Site(state, results)
        new = site.rewritten() if site.found else None
        if new is not None:
            walks, _ = fuse_edges(new[0], hoisted, new[1], heavy)
            if len(walks) < len(state.walks) and _fits(site.sums, walks, state.walks, new[1]):
                state = _State(*new, walks)
    return state.program, state.phase


def _untried(state: _State, tried: Collection[tuple[Value, ...]]) -> tuple[Value, ...] | None:
    """The gradients of destinations that a backward walk gives."""
    backward = (_sums(walk) for walk in state.walks if state.phase[walk.result] == BACKWARD)
    return next((results for results in backward if results and results not in tried), None)


def _sums(walk: Group) -> tuple[Value, ...]:
    """The gradients of destinations among the results of a walk; none where it has others over the same rows."""
    rowed = tuple(v for v in (walk.result, *walk.taps) if v.op in (Op.REDUCE, Op.SPMM))
    return rowed if all(v.op is Op.REDUCE and v["kind"] == "sum" for v in rowed) else ()


def _fits(
    sums: Collection[Value], walks: Collection[Group], former: Collection[Group], phase: Mapping[Value, int]
) -> bool:
    """Whether every sum comes out of a walk that was there before and reads nothing that it did not read."""
    for walk in walks:
        results = {walk.result, *walk.taps}
        own = results.intersection(sums)
        if not own:
            continue
        earlier = [w for w in former if phase.get(w.result) == FORWARD and results - own == {w.result, *w.taps}]
        if len(earlier) != 1 or len(own) > _MOST:
            return False
        widest = max(prod(v.tensor.dims) for v in results - own)
        read = {v for v in walk.operands() if v.op is not Op.CONST}
        if not read.issubset(earlier[0].operands()) or any(prod(v.tensor.dims) > widest for v in own):
            return False
    return True


class _Site:
    """Gradients that one backward walk gives, as products of rows and sums of slopes.

    Attributes:
        sums: The sums of slopes that the program does not have yet; it has that of a softmax, which is the result.
        found: What takes the place of every gradient; empty where one of them has another form.
    """

    def __init__(self, state: _State, results: tuple[Value, ...]) -> None:
        self._state = state
        self._builder = Builder()
        self._f = Formula(self._builder)
        self._moved = _dependent(state.program)
        self._present = set(state.program.values)
        self._known = {(v.op, v.inputs, v.attrs): v for v in state.program.values}
        self.sums: set[Value] = set()
        self.found: dict[Value, Value] = {}
        for result in results:
            made = self._gradient(result)
            if made is None:
                self.found = {}
                return
            self.found[result] = made

    def rewritten(self) -> tuple[Program, Mapping[Value, int]] | None:
        """The program and its phases, or None where a slope needs rows that only the backward pass makes."""
        old = self._state.phase
        program = substitute(self._state.program, self.found)
        phase = {v: old.get(v, BACKWARD) for v in program.values}
        stack = [*self.sums]
        while stack:
            value = stack.pop()
            if phase[value] == FORWARD:
                continue
            per_edge = value.op not in LEAVES and value.op is not Op.CONST and value not in self.sums
            if per_edge and (isinstance(value.type, StructType) or value.tensor.rows not in self._edges()):
                return None
            phase[value] = FORWARD
            stack += value.inputs
        return program, phase

    def _edges(self) -> set[str]:
        return {v.inputs[0].struct.edge for v in self.sums}

    def _add(self, op: Op, *inputs: Value, **attrs: Any) -> Value:
        """A value, the one at hand where there is an equal one."""
        value = self._builder.add(op, *inputs, **attrs)
        if value.get("fn") in ("add", "mul"):
            turned = self._known.get((op, inputs[::-1], value.attrs))
            return self._kept(value) if turned is None else turned
        return self._kept(value)

    def _apply(self, fn: str, *operands: Value | float) -> Value:
        like = next(o for o in operands if isinstance(o, Value) and o.tensor.dtype.is_floating_point)
        values = [o if isinstance(o, Value) else self._kept(self._f.number(o, like)) for o in operands]
        return self._add(Op.EWISE, *values, fn=fn)

    def _kept(self, value: Value) -> Value:
        return self._known.setdefault((value.op, value.inputs, value.attrs), value)

    def _gradient(self, result: Value) -> Value | None:
        """The product in the place of ``result``.

        Where the sum of slopes is 0 so is the gradient, as that of a destination without in-edges, whatever ``near``.
        """
        graph, message = result.inputs
        term = self._term(message, graph)
        if term is None or term.slope is None or term.slope.tensor.rows != message.tensor.rows:
            return None
        if not term.slope.tensor.dtype == result.tensor.dtype == term.near.tensor.dtype:
            return None
        total = self._add(Op.REDUCE, graph, term.slope, kind="sum")
        if total not in self._present:
            self.sums.add(total)
        made = self._apply("where", self._apply("ne", total, 0.0), self._apply("mul", term.near, total), 0.0)
        return made if made.tensor.dims == result.tensor.dims else None

    def _term(self, value: Value, graph: Value) -> _Term | None:
        """``value``, which depends on gradients, as a product; None where it is none."""
        op = value.op
        if op is Op.BROADCAST_DST:
            return _Term(value.inputs[1], None) if value.inputs[0] is graph else None
        if op is Op.EWISE and value["fn"] in _FUNCTIONS:
            return _FUNCTIONS[value["fn"]](self, value.inputs, graph)
        if op in _PRODUCTS:
            return self._product(value.inputs, graph)
        if op is Op.ADD:
            return self._sum("add", value.inputs, graph)
        if op is Op.SCALE:
            return self._scaled(value.inputs[0], value["factor"], graph)
        if op is Op.RELU_MASK and value.inputs[1] not in self._moved:
            return self._chosen((self._apply("gt", value.inputs[1], 0.0), value.inputs[0], None), graph)
        if op is Op.RESHAPE:
            return self._reshaped(value, graph)
        return None

    def _product(self, operands: tuple[Value, ...], graph: Value) -> _Term | None:
        x, y = operands if operands[0] in self._moved else operands[::-1]
        term = self._term(x, graph) if y not in self._moved else None
        if term is None:
            return None
        if y.tensor.rows is None:
            return self._times(term, y)
        return _Term(term.near, y if term.slope is None else self._apply("mul", term.slope, y))

    def _times(self, term: _Term, factor: Value | float) -> _Term:
        """A term times a number or vector that all rows share."""
        if term.slope is None:
            return _Term(self._apply("mul", term.near, factor), None)
        return _Term(term.near, self._apply("mul", term.slope, factor))

    def _scaled(self, x: Value, factor: float, graph: Value) -> _Term | None:
        term = self._term(x, graph)
        return None if term is None else self._times(term, factor)

    def _quotient(self, operands: tuple[Value, ...], graph: Value) -> _Term | None:
        x, y = operands
        term = self._term(x, graph) if x in self._moved and y not in self._moved else None
        if term is None or y.tensor.rows is None:
            return None
        return _Term(term.near, self._apply("div", 1.0 if term.slope is None else term.slope, y))

    def _sum(self, fn: str, operands: tuple[Value, ...], graph: Value) -> _Term | None:
        """Terms of one row of the destination."""
        terms = [self._term(x, graph) if x in self._moved else None for x in operands]
        one, two = terms
        if one is None or two is None or one.near is not two.near or one.slope is two.slope is None:
            return None
        return _Term(one.near, self._apply(fn, *(1.0 if t.slope is None else t.slope for t in (one, two))))

    def _chosen(self, operands: tuple[Value | None, ...], graph: Value) -> _Term | None:
        """A choice between terms of one row of the destination, or such a term and 0; None is 0."""
        condition, *choices = operands
        assert condition is not None  # only choices may be 0
        near: Value | None = None
        slopes: list[Value | float] = []
        for choice in choices:
            if choice is None or (choice.op is Op.CONST and choice["value"] == 0.0):
                slopes.append(0.0)
                continue
            term = self._term(choice, graph) if choice in self._moved else None
            if term is None or near not in (None, term.near):
                return None
            near = term.near
            slopes.append(1.0 if term.slope is None else term.slope)
        if near is None or condition.tensor.rows is None:
            return None
        numbers = [s if isinstance(s, Value) else self._kept(self._f.number(s, near)) for s in slopes]
        return _Term(near, self._add(Op.EWISE, condition, *numbers, fn="where"))

    def _reshaped(self, value: Value, graph: Value) -> _Term | None:
        """Both factors in other dimensions, where neither was broadcast."""
        x, dims = value.inputs[0], value.tensor.dims
        term = self._term(x, graph)
        if term is None or {v.tensor.dims for v in term if v is not None} != {x.tensor.dims}:
            return None
        slope = None if term.slope is None else self._add(Op.RESHAPE, term.slope, dims=dims)
        return _Term(self._add(Op.RESHAPE, term.near, dims=dims), slope)


_FUNCTIONS: dict[str, Callable[[_Site, tuple[Value, ...], Value], _Term | None]] = {
    "mul": _Site._product,
    "div": _Site._quotient,
    "neg": lambda site, operands, graph: site._scaled(operands[0], -1.0, graph),
    "add": lambda site, operands, graph: site._sum("add", operands, graph),
    "sub": lambda site, operands, graph: site._sum("sub", operands, graph),
    "where": _Site._chosen,
}


def _dependent(program: Program) -> set[Value]:
    """Values that depend on gradients of outputs."""
    found = {v for v in program.inputs if v["name"].startswith("d:")}
    for value in program.values:
        if not found.isdisjoint(value.inputs):
            found.add(value)
    return found
