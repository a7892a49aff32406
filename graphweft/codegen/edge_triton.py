"""Triton text of loop nests over edges: one program per row, a block of its edges at a time.

Comes in: an :class:`EdgeNest`. Goes out: the source of one kernel and what its launcher has to know. Values are
written on demand: an element of a value is asked for by the indices of its dimensions, and a rearrangement changes the
indices, so that nothing of an edge is ever stored. A sum over trailing dimensions asks for its operand in a wider
block. What does not depend on the edge is computed once per row. Every sum is taken in one order, without atomics:
totals over all edges lie per program until they are added up. Called by ``runtime/cuda``. Sources: Graphiler, section
5; GraphTensor, section IV (a destination's row is read once).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from graphweft._errors import IRError
from graphweft.codegen.edge_nest import Dims, EdgeNest, Sink, Step
from graphweft.codegen.loops import Operand
from graphweft.codegen.triton_text import BOOL, LOGICAL, REALS, expression, number

MOST = 8192  # elements of an edge's largest block; a nest with more is left to others
_START = {"max": 'float("-inf")', "min": 'float("inf")'}


@dataclass(frozen=True)
class EdgeKernel:
    """The text of a kernel ``walk`` and how to launch it.

    Attributes:
        text: Its source; arguments are offsets, columns, edge ids, sources, sinks, rows, rows per program.
        block: Elements of the largest block of one edge.
        totals: Sinks whose results lie per program, to be added up.
        sums: Whether trailing dimensions are added up, in blocks of one more dimension.
    """

    text: str
    block: int
    totals: tuple[int, ...]
    sums: bool = False


class _Index(NamedTuple):
    """An index: its text, with ``{k}`` for axis k of the block, and the axes that it depends on."""

    text: str
    axes: frozenset[int]

    def __call__(self, sign: str, number: int) -> _Index:
        """``index + number``, and so on; a number where the index is one."""
        if (sign, number) in (("+", 0), ("-", 0), ("*", 1), ("//", 1)):
            return self
        if self.axes:
            return _Index(f"({self.text} {sign} {number})", self.axes)
        return _fixed(_ARITHMETIC[sign](int(self.text), number))


_ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod}


def _fixed(number: int) -> _Index:
    return _Index(str(number), frozenset())


_ZERO = _fixed(0)


class _Made(NamedTuple):
    """A computed block: its name, the axes it depends on, and whether it holds conditions."""

    name: str
    axes: frozenset[int]
    logic: bool = False


@dataclass(frozen=True)
class _Scope:
    """The axes of a block: the edges, then dimensions; sizes as they are, blocks are padded to powers of two."""

    sizes: tuple[int, ...]  # of the dimensions, from axis 1 on

    @property
    def rank(self) -> int:
        return len(self.sizes) + 1

    def size(self, axis: int) -> int:
        return self.sizes[axis - 1]

    @property
    def elements(self) -> int:
        return prod(padded(n) for n in self.sizes)


def render_walk(nest: EdgeNest) -> EdgeKernel:
    """The kernel of ``nest``. Raises: IRError where it cannot be written, or an edge has too many elements."""
    return _Kernel(nest).made()


def padded(size: int) -> int:
    """The least power of two that is not smaller."""
    return 1 << max(size - 1, 0).bit_length()


@dataclass
class _Lines:
    """Lines of a kernel by the place where they run."""

    head: list[str] = field(default_factory=list)
    row: list[str] = field(default_factory=list)
    edge: list[str] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    last: list[str] = field(default_factory=list)


class _Kernel:
    """The text of one nest."""

    def __init__(self, nest: EdgeNest) -> None:
        self.nest, self.real = nest, REALS[nest.real]
        self.lines, self.block, self.count = _Lines(), 1, 0
        self._known: dict[tuple[object, ...], _Made] = {}
        self._ranges: dict[tuple[int, int, int], str] = {}

    def made(self) -> EdgeKernel:
        """The whole kernel."""
        nest, lines = self.nest, self.lines
        totals = tuple(k for k, sink in enumerate(nest.sinks) if sink.kind == "total")
        for k, sink in enumerate(nest.sinks):
            self._sink(k, sink)
        if self.block > MOST:
            raise IRError(f"triton: expected at most {MOST} elements per edge, got {self.block}")
        names = [f"in{k}" for k in range(len(nest.sources))] + [f"out{k}" for k in range(len(nest.sinks))]
        fixed = "HAS_IDS: tl.constexpr, BE: tl.constexpr"
        head = f"def walk(offsets, columns, ids, {', '.join(names)}, rows, share, {fixed}):"
        start = ["program = tl.program_id(0).to(tl.int64)", "first = program * share"]
        row = ["begin = tl.load(offsets + row)", "end = tl.load(offsets + row + 1)", *lines.row]
        edge = ["p = at + tl.arange(0, BE)", "here = p < end", *self._ends(), *lines.edge]
        inner = ["for at in range(begin, end, BE):", *_indented(edge)] if lines.edge else []
        body = [*start, *lines.head, "for row in range(first, tl.minimum(first + share, rows)):"]
        body += [*_indented([*row, *inner, *lines.ends]), *lines.last]
        comment = "".join(f"# {line}\n" for line in str(nest).splitlines())
        text = comment + "@triton.jit\n" + head + "\n" + "\n".join(_indented(body)) + "\n"
        return EdgeKernel(text, self.block, totals, any(step.kind == "sum" for step in nest.steps))

    def _ends(self) -> list[str]:
        """The columns and numbers of the edges at hand, where they are read."""
        text = "\n".join(self.lines.edge)
        lines = []
        if "col[" in text:
            lines.append("col = tl.load(columns + p, mask=here, other=0).to(tl.int64)")
        if "edge[" in text:
            lines += ["if HAS_IDS:", "    edge = tl.load(ids + p, mask=here, other=0).to(tl.int64)"]
            lines += ["else:", "    edge = p.to(tl.int64)"]
        return lines

    # -- blocks

    def _fresh(self, text: str, axes: frozenset[int], logic: bool = False) -> _Made:
        """A new block, computed in every turn or, where no edge matters, once per row."""
        name = f"v{self.count}"
        self.count += 1
        (self.lines.edge if 0 in axes else self.lines.row).append(f"{name} = {text}")
        return _Made(name, axes, logic)

    def _range(self, axis: int, scope: _Scope) -> str:
        """The name of an axis of the block, from 0 on."""
        key = (padded(scope.size(axis)), axis, scope.rank)
        if key not in self._ranges:
            self._ranges[key] = f"i{len(self._ranges)}"
            self.lines.head.append(f"{self._ranges[key]} = tl.arange(0, {key[0]}){_along(axis, scope.rank)}")
        return self._ranges[key]

    def _text(self, index: _Index, scope: _Scope) -> str:
        return re.sub(r"\{(\d+)\}", lambda found: self._range(int(found[1]), scope), index.text)

    def _mask(self, axes: frozenset[int], scope: _Scope, edges: bool = True) -> str:
        """Where a block has elements, over the axes that it depends on; empty for everywhere."""
        parts = [f"here{_along(0, scope.rank)}"] if edges and 0 in axes else []
        for axis in sorted(axes - {0}):
            size = scope.size(axis)
            if padded(size) != size:
                parts.append(f"({self._range(axis, scope)} < {size})")
        return " & ".join(parts)

    # -- values

    def value(self, operand: Operand, at: tuple[_Index, ...], scope: _Scope) -> _Made:
        """The elements of an operand at these indices, one per dimension."""
        key = (operand, at, scope)
        if key not in self._known:
            self._known[key] = self._write(operand, at, scope)
        return self._known[key]

    def _write(self, operand: Operand, at: tuple[_Index, ...], scope: _Scope) -> _Made:
        if operand.kind == "number":
            return self._fresh(number(operand.number, scope.rank, self.real), frozenset())
        if operand.kind == "input":
            return self._load(operand.index, _linear(at, self.nest.dims_of(operand)), scope)
        step = self.nest.steps[operand.index]
        if step.kind == "ewise":
            return self._ewise(step, at, scope)
        if step.kind == "sum":
            return self._sum(step, at, scope)
        if step.kind == "cat":
            return self._cat(step, at, scope)
        if step.kind == "unslice":
            return self._unslice(step, at, scope)
        return self._view(step, at, scope)

    def _load(self, k: int, place: _Index, scope: _Scope) -> _Made:
        source = self.nest.sources[k]
        width, offset = prod(source.dims), self._text(place, scope)
        axes = place.axes | ({0} if source.kind in ("far", "edge") else set())
        if source.kind == "own":
            offset = f"row * {width} + {offset}"
        elif source.kind != "shared":
            offset = f"{'col' if source.kind == 'far' else 'edge'}{_along(0, scope.rank)} * {width} + {offset}"
        offset += f" + tl.zeros([{', '.join(['1'] * scope.rank)}], tl.int64)"
        mask = self._mask(axes, scope)
        made = self._fresh(f"tl.load(in{k} + {offset}{f', mask={mask}, other=0.0' if mask else ''})", axes)
        return self._fresh(f"{made.name} != 0", axes, True) if source.logic else made

    def _ewise(self, step: Step, at: tuple[_Index, ...], scope: _Scope) -> _Made:
        fn = step["fn"]
        found = []
        for place, operand in enumerate(step.operands):
            made = self.value(operand, _repeated(at, self.nest.dims_of(operand)), scope)
            wants = fn in LOGICAL or (fn == "where" and place == 0)
            if made.logic and not wants and fn != "copy":
                made = self._as_number(made)
            elif wants and not made.logic:
                made = self._fresh(f"{made.name} != 0", made.axes, True)
            found.append(made)
        axes = frozenset[int]().union(*(made.axes for made in found))
        alpha = dict(step.attrs).get("alpha", 0.0)
        logic = fn in BOOL or (fn == "copy" and found[0].logic)
        return self._fresh(expression(fn, [made.name for made in found], alpha), axes, logic)

    def _as_number(self, made: _Made) -> _Made:
        return self._fresh(f"{made.name}.to({self.real})", made.axes) if made.logic else made

    def _sum(self, step: Step, at: tuple[_Index, ...], scope: _Scope) -> _Made:
        """A block with the summed dimensions as further axes, added up along them."""
        dims, axes = self.nest.dims_of(step.operands[0]), step["axes"]
        kept, sizes, inside = iter(at), list(scope.sizes), []
        for axis, size in enumerate(dims):
            if axis not in axes:
                inside.append(next(kept))
            elif size == 1:
                inside.append(_ZERO)
            else:
                sizes.append(size)
                inside.append(_Index(f"{{{len(sizes)}}}", frozenset({len(sizes)})))
        wide = _Scope(tuple(sizes))
        made = self._as_number(self.value(step.operands[0], tuple(inside), wide))
        used = [wide.size(axis) for axis in made.axes if axis]
        self.block = max(self.block, prod(map(padded, used)))
        mask = self._mask(frozenset(a for a in made.axes if a >= scope.rank), wide, edges=False)
        text, outer = made.name, made.axes
        if mask:
            text = f"tl.where({mask}, {text}, 0.0)"
        for axis in reversed(range(scope.rank, wide.rank)):
            repeats = "" if axis in outer else f" * {wide.size(axis)}"
            text, outer = f"tl.sum({text}, axis={axis}){repeats}", outer - {axis}
        return self._fresh(text, outer)

    def _cat(self, step: Step, at: tuple[_Index, ...], scope: _Scope) -> _Made:
        """Of every operand the nearest element, and the one whose turn it is."""
        axis, offset = step["axis"], 0
        made: _Made | None = None
        for operand in step.operands:
            size = self.nest.dims_of(operand)[axis]
            if size == 0:
                continue
            place = at[axis]("-", offset)
            if place.axes or 0 <= int(place.text) < size:
                near = (*at[:axis], _clamped(place, size), *at[axis + 1 :])
                part = self._as_number(self.value(operand, near, scope))
                if made is not None:
                    text = f"tl.where({self._text(at[axis], scope)} < {offset}, {made.name}, {part.name})"
                    part = self._fresh(text, made.axes | part.axes | place.axes)
                made = part
            offset += size
        if made is None:
            raise IRError("triton: expected elements in what is joined, got none")
        return made

    def _unslice(self, step: Step, at: tuple[_Index, ...], scope: _Scope) -> _Made:
        """The elements that lie in the slice, zeros elsewhere."""
        axis, stride = step["axis"], step["step"]
        size = self.nest.dims_of(step.operands[0])[axis]
        offset = at[axis]("-", step["start"])
        near = (*at[:axis], _clamped(offset("//", stride), size), *at[axis + 1 :])
        last = (size - 1) * stride
        if not offset.axes and not (0 <= int(offset.text) <= last and int(offset.text) % stride == 0):
            return self._fresh(number(0.0, scope.rank, self.real), frozenset())
        part = self._as_number(self.value(step.operands[0], near, scope))
        if not offset.axes:
            return part
        text = self._text(offset, scope)
        inside = f"({text} >= 0) & ({text} <= {last})" + (f" & ({text} % {stride} == 0)" if stride != 1 else "")
        return self._fresh(f"tl.where({inside}, {part.name}, 0.0)", part.axes | offset.axes)

    def _view(self, step: Step, at: tuple[_Index, ...], scope: _Scope) -> _Made:
        """The same elements, by other indices."""
        operand = step.operands[0]
        dims = self.nest.dims_of(operand)
        if step.kind == "permute":
            order = step["order"]
            return self.value(operand, tuple(at[order.index(axis)] for axis in range(len(dims))), scope)
        if step.kind == "expand":
            return self.value(operand, _repeated(at, dims), scope)
        if step.kind == "slice":
            axis = step["axis"]
            there = at[axis]("*", step["step"])("+", step["start"])
            return self.value(operand, (*at[:axis], there, *at[axis + 1 :]), scope)
        if step.kind != "reshape":
            raise IRError(f"triton: expected a step with a text of its own, got {step.kind!r}")
        return self._reshape(operand, step.dims, at, scope)

    def _reshape(self, operand: Operand, shape: Dims, at: tuple[_Index, ...], scope: _Scope) -> _Made:
        dims = self.nest.dims_of(operand)
        if [n for n in dims if n != 1] == [n for n in shape if n != 1]:
            kept = iter([index for index, size in zip(at, shape, strict=True) if size != 1])
            return self.value(operand, tuple(_ZERO if size == 1 else next(kept) for size in dims), scope)
        place = _linear(at, shape)
        if operand.kind == "input":
            return self._load(operand.index, place, scope)
        found = []
        for axis, size in enumerate(dims):
            index = place("//", prod(dims[axis + 1 :]))
            found.append(_ZERO if size == 1 else index("%", size))
        return self.value(operand, tuple(found), scope)

    # -- sinks

    def _sink(self, k: int, sink: Sink) -> None:
        sizes = tuple(n for n in sink.dims if n != 1) or (1,)
        scope = _Scope(sizes)
        self.block = max(self.block, scope.elements)
        axes = iter(range(1, scope.rank))
        at = tuple(_ZERO if n == 1 else _Index(f"{{{axis}}}", frozenset({axis})) for n in sink.dims
                   for axis in [0 if n == 1 else next(axes)])  # fmt: skip
        made = self._as_number(self.value(sink.operand, _repeated(at, self.nest.dims_of(sink.operand)), scope))
        if sink.kind == "edge":
            self._store_edges(k, sink, made, self._text(_linear(at, sink.dims), scope), scope)
            return
        axes_of_row = [f"j{k}_{axis}" for axis in range(len(sizes))]
        for axis, (name, size) in enumerate(zip(axes_of_row, sizes, strict=True)):
            self.lines.head.append(f"{name} = tl.arange(0, {padded(size)}){_along(axis, len(sizes))}")
        flat = re.sub(r"\{(\d+)\}", lambda found: axes_of_row[int(found[1]) - 1], _linear(at, sink.dims).text)
        mask = " & ".join(f"({j} < {n})" for j, n in zip(axes_of_row, sizes, strict=True) if padded(n) != n)
        self.lines.head.append(f"to{k} = {flat} + tl.zeros([{_shape(sizes)}], tl.int32)")
        if mask:
            self.lines.head.append(f"in_{k} = tl.broadcast_to({mask}, [{_shape(sizes)}])")
        self._accumulate(k, sink, made, scope, sizes)
        guard = f", mask=in_{k}" if mask else ""
        width = prod(sink.dims)
        if sink.kind == "total":
            self.lines.last.append(f"tl.store(out{k} + program * {width} + to{k}, acc{k}{guard})")
            return
        if sink.kind == "mean":
            self.lines.ends.append(f"acc{k} = acc{k} / tl.maximum(end - begin, 1).to({self.real})")
        elif sink.kind in _START:
            self.lines.ends.append(f"acc{k} = tl.where(end > begin, acc{k}, 0.0)")
        self.lines.ends.append(f"tl.store(out{k} + row * {width} + to{k}, acc{k}{guard})")

    def _accumulate(self, k: int, sink: Sink, made: _Made, scope: _Scope, sizes: Sequence[int]) -> None:
        """The row's or the program's numbers so far, and what the edges at hand add to them."""
        here = f"here{_along(0, scope.rank)}"
        start = _START.get(sink.kind, "0.0")
        before = self.lines.head if sink.kind == "total" else self.lines.row
        before.append(f"acc{k} = tl.full([{_shape(sizes)}], {start}, {self.real})")
        masked = f"tl.where({here}, {made.name}, {start})"
        if sink.kind in _START:
            fn = f"gw_{sink.kind}"
            self.lines.edge.append(f"acc{k} = {fn}(acc{k}, tl.reduce({masked}, 0, {fn}))")
        else:
            self.lines.edge.append(f"acc{k} += tl.sum({masked}, axis=0)")

    def _store_edges(self, k: int, sink: Sink, made: _Made, place: str, scope: _Scope) -> None:
        mask = self._mask(frozenset(range(scope.rank)), scope)
        shape = ", ".join(["BE", *(str(padded(n)) for n in scope.sizes)])
        target = f"out{k} + edge{_along(0, scope.rank)} * {prod(sink.dims)} + {place}"
        target += f" + tl.zeros([{shape}], tl.int64)"
        self.lines.edge.append(f"tl.store({target}, tl.broadcast_to({made.name}, [{shape}]), mask={mask})")


def _shape(sizes: Sequence[int]) -> str:
    return ", ".join(str(padded(n)) for n in sizes)


def _along(axis: int, rank: int) -> str:
    """``[None, :, None]``: a vector as one axis of a block."""
    return "" if rank == 1 else "[" + ", ".join(":" if k == axis else "None" for k in range(rank)) + "]"


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _linear(at: Sequence[_Index], dims: Dims) -> _Index:
    """The place of an element among all, one after the other."""
    given = [index("*", prod(dims[axis + 1 :])) for axis, index in enumerate(at) if dims[axis] != 1]
    moving = [index for index in given if index.axes]
    offset = sum(int(index.text) for index in given if not index.axes)
    if not moving:
        return _fixed(offset)
    texts = [index.text for index in moving] + ([str(offset)] if offset else [])
    return _Index(f"({' + '.join(texts)})", frozenset().union(*(index.axes for index in moving)))


def _repeated(at: Sequence[_Index], dims: Dims) -> tuple[_Index, ...]:
    """The indices of what is broadcast from the right."""
    own = list(at)[len(at) - len(dims) :]
    return tuple(_ZERO if size == 1 else index for index, size in zip(own, dims, strict=True))


def _clamped(index: _Index, size: int) -> _Index:
    """The nearest index that exists."""
    if not index.axes:
        return _fixed(min(max(int(index.text), 0), size - 1))
    return _Index(f"tl.minimum(tl.maximum({index.text}, 0), {size - 1})", index.axes)


__all__ = ["MOST", "EdgeKernel", "padded", "render_walk"]
