"""Tensor operations on raised tensors: elementwise, reductions, products, joins, by residency.

Comes in: :class:`Raised` operands of one stage. Goes out: a raised result. Here the inference rules of residency act
(Graphiler, table 1): elementwise code and products are Dense, and bring node rows to edges where a mailbox takes part;
a reduction over messages is Reduce, a softmax over them Norm; over the rows of message or update it contracts to
shared; in reduce, whose nodes are independent, that is refused. Called by the rules of ATen operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from graphweft.frontend.layout import Axes, Axis, D, N, Raised, Size, Symbols, Token, UnraisableError
from graphweft.frontend.message_counts import written
from graphweft.frontend.numbers import Written
from graphweft.ir.ops import Op
from graphweft.ir.program import Builder, Value

MESSAGE, REDUCE, UPDATE = "message", "reduce", "update"
Operand = Raised | int | float | bool


def _is_by_node(x: Raised) -> bool:
    return x.has_rows and N not in x.tokens


@dataclass
class Stage:
    """Where code runs: on all edges, on the mailboxes of nodes, or on all nodes.

    Attributes:
        name: ``message``, ``reduce`` or ``update``.
        graph: The graph.
        symbols: Reads sizes.
        receivers: In reduce, the ids of the nodes with in-edges when only those are computed, else None.
        seed: The seed of random draws.
        streams: How many draws there are so far.
        number: Makes an input of an expression of numbers that change between calls.
    """

    name: str
    graph: Value
    symbols: Symbols
    receivers: Value | None = None
    seed: Value | None = None
    streams: int = 0
    number: Callable[[Written], Raised] | None = None


class Algebra:
    """Writes IR for one stage."""

    def __init__(self, builder: Builder, stage: Stage) -> None:
        self.b, self.stage = builder, stage
        self.axes = Axes(builder)

    # residency

    def is_edge(self, value: Value) -> bool:
        """Whether the rows are edges."""
        return value.tensor.rows == self.stage.graph.struct.edge

    def node_rows(self, value: Value) -> Value:
        """Node rows of all destinations as the rows that reduce computes on."""
        if self.stage.name != REDUCE or self.stage.receivers is None:
            return value
        return self.b.add(Op.TAKE_ROWS, value, self.stage.receivers)

    def all_nodes(self, value: Value) -> Value:
        """The inverse: zeros for nodes that were left out."""
        if self.stage.name != REDUCE or self.stage.receivers is None:
            return value
        return self.b.add(Op.SCATTER_ROWS, value, self.stage.receivers, self.degree(torch.float32))

    def degree(self, dtype: torch.dtype) -> Value:
        """In-degrees of all destinations."""
        return self.b.add(Op.IN_DEGREE, self.stage.graph, dtype=dtype)

    def on_edges(self, x: Raised) -> Raised:
        """Node rows brought to the edges into them; edge rows and shared values as they are."""
        if not x.has_rows or self.is_edge(x.value):
            return x
        return Raised(self.b.add(Op.BROADCAST_DST, self.stage.graph, self.all_nodes(x.value)), x.axes)

    def real(self, x: Raised) -> Raised:
        """With rows of its own where it has row tokens."""
        tokens = x.tokens
        if D in tokens:
            if N not in tokens:
                raise UnraisableError("a tensor by position in the mailbox")
            x = self.on_edges(x)
        if x.has_rows or N not in tokens:
            return x
        edge = self.stage.name == MESSAGE or D in tokens
        value = self.b.add(Op.BROADCAST_SHARED, self.stage.graph, x.value, to="edge" if edge else "dst")
        return Raised(value if edge else self.node_rows(value), x.axes)

    def joined(self, xs: Sequence[Raised], real: bool = False) -> list[Raised]:
        """Operands of one operation with equal rows or shared; ``real``: all with rows if one has a row token."""
        tokens = {token for x in xs for token in x.tokens}
        if D in tokens:
            xs = [self.on_edges(x) for x in xs]
        if real and N in tokens:
            rows = [x if x.has_rows else self._like_rows(x, D in tokens) for x in xs]
            return rows
        return list(xs)

    def _like_rows(self, x: Raised, messages: bool) -> Raised:
        edge = self.stage.name == MESSAGE or messages
        value = self.b.add(Op.BROADCAST_SHARED, self.stage.graph, x.value, to="edge" if edge else "dst")
        return Raised(value if edge else self.node_rows(value), x.axes)

    # leaves

    def number(self, number: Any, dtype: torch.dtype) -> Raised:
        """A constant; an input where it changes between calls; by node where it comes from the size of a mailbox."""
        if isinstance(number, torch.SymInt | torch.SymFloat):
            return self._expression(number.node.expr, dtype)
        return Raised(self.b.add(Op.CONST, value=number, dtype=dtype), ())

    def cast(self, x: Operand, dtype: torch.dtype) -> Raised:
        """``x`` in another dtype."""
        if not isinstance(x, Raised):
            return self.number(x, dtype)
        if x.value.tensor.dtype == dtype:
            return x
        if x.value.op is Op.CONST:
            return Raised(self.b.add(Op.CONST, value=x.value["value"], dtype=dtype), x.axes)
        return Raised(self.b.add(Op.CAST, x.value, dtype=dtype), x.axes)

    def map(self, x: Raised, op: Op, **attrs: Any) -> Raised:
        """An operation that keeps shape and order."""
        return Raised(self.b.add(op, x.value, **attrs), x.axes)

    def _expression(self, expression: Any, dtype: torch.dtype) -> Raised:
        """``expression`` of sizes and of numbers that are inputs."""
        symbols = self.stage.symbols
        inner = dtype if dtype in (torch.float32, torch.float64) else torch.float64

        def leaf(part: Any, kind: torch.dtype = inner) -> Raised | None:
            if part == symbols.messages:
                return Raised(self.node_rows(self.degree(kind)), ())
            if part == symbols.rows:
                return self.cast(self.count_of_rows(), kind)
            if part.is_number:
                return self.number(float(part), kind)
            numbers = symbols.of_numbers(part)
            if len(numbers) < len(part.free_symbols) or self.stage.number is None:
                return None
            return self.stage.number(Written(part, numbers, kind))

        if len(symbols.of_numbers(expression)) == len(expression.free_symbols) > 0:
            made = leaf(expression, dtype)
            assert made is not None  # it is made of numbers alone
            return made
        return self.cast(written(expression, leaf, self.ewise), dtype)

    def count_of_rows(self) -> Raised:
        """The number of edges in message, of nodes in update, in float64."""
        if self.stage.name == REDUCE:
            raise UnraisableError("the number of nodes, which reduce sees one by one,")
        if self.stage.name == MESSAGE:
            ones = self.degree(torch.float64)
        else:
            one = self.b.add(Op.CONST, value=1.0, dtype=torch.float64)
            ones = self.b.add(Op.BROADCAST_SHARED, self.stage.graph, one, to="dst")
        count = Raised(self._fold_rows(ones, "sum", "split"), ())
        zero, some = self.number(0.0, torch.float64), self.number(2.0, torch.float64)
        return self.ewise("where", self.ewise("gt", count, zero), count, some)  # a program never runs on no edges

    # elementwise

    def ewise(self, fn: str, *operands: Raised, **attrs: Any) -> Raised:
        """``fn`` of operands of one dtype, broadcast from the right."""
        aligned, axes = self.align(self.joined(self._placed(operands)))
        return Raised(self.b.add(Op.EWISE, *aligned, fn=fn, **attrs), axes)

    def _placed(self, operands: Sequence[Raised]) -> Sequence[Raised]:
        """What differs by node without a row axis, given that of the tensor which it meets."""
        rank = max(len(x.axes) for x in operands)
        padded = [((),) * (rank - len(x.axes)) + x.axes for x in operands]
        place = next((at for axes in padded for at, tokens in enumerate(axes) if N in tokens), None)
        if place is None or not any(map(_is_by_node, operands)):
            return operands
        placed = []
        for x, axes in zip(operands, padded, strict=True):
            if _is_by_node(x):
                if axes[place]:
                    raise UnraisableError("a tensor made with the number of messages that has no rows")
                x = Raised(x.value, (*axes[:place], (N,), *axes[place + 1 :]))
            placed.append(x)
        return placed

    def align(self, operands: Sequence[Raised]) -> tuple[list[Value], tuple[Axis, ...]]:
        """Values whose trailing dimensions broadcast against each other, and the axes of the result."""
        rank = max(len(x.axes) for x in operands)
        padded = [Raised(x.value, ((),) * (rank - len(x.axes)) + x.axes) for x in operands]
        patterns = []
        for at in range(rank):
            candidates = [(x, x.axes[at]) for x in padded if x.axes[at]]
            patterns.append(self.axes.pattern(candidates) if candidates else ())
        _check_pairs(patterns)
        axes, _ = _number(patterns)
        values = []
        for x in padded:
            x = self.axes.refined(x, patterns)
            own = [
                size if x.axes[at] else 1
                for at, pattern in enumerate(patterns)
                for size in pattern
                if not isinstance(size, str)
            ]
            while own and own[0] == 1:
                own.pop(0)
            values.append(self.axes.reshape(x.value, tuple(own)))
        return values, axes

    # reductions

    def fold(self, x: Raised, dims: Sequence[int], kind: str, keepdim: bool, ties: str = "split") -> Raised:
        """Sum, mean, maximum or minimum over axes."""
        tokens = [token for axis in dims for token in x.axes[axis]]
        if N in tokens and self.stage.name == REDUCE:
            raise UnraisableError("a reduction over nodes, which reduce sees one by one,")
        if N in tokens or D in tokens:
            x = self.real(x)
        statics = tuple(sorted(token for token in tokens if isinstance(token, int)))
        value = x.value
        count = 1
        for token in statics:
            count *= x.size(token)
        if statics and kind in ("sum", "mean"):
            value = self.b.add(Op.SUM_DIMS, value, axes=statics)
        elif statics:
            value = self.b.add(Op.MAX_DIMS, value, axes=statics, kind=kind, ties=ties)
        if D in tokens:
            extra = {"ties": ties} if kind in ("max", "min") else {}
            value = self.node_rows(self.b.add(Op.REDUCE, self.stage.graph, value, kind=kind, **extra))
        if N in tokens:
            value = self._fold_rows(value, kind, ties)
        left = [token for token in range(len(x.value.tensor.dims)) if token not in statics]

        def move(token: Token) -> Token:
            return left.index(token) if isinstance(token, int) else token

        axes = [() if at in dims else tuple(map(move, axis)) for at, axis in enumerate(x.axes)]
        made = Raised(value, tuple(axis for at, axis in enumerate(axes) if keepdim or at not in dims))
        if kind == "mean" and count > 1:
            return self.ewise("div", made, self.number(count, value.tensor.dtype))
        return made

    def _fold_rows(self, value: Value, kind: str, ties: str) -> Value:
        """All rows to a shared value."""
        if kind in ("max", "min"):
            return self.b.add(Op.MAX_ROWS, value, kind=kind, ties=ties)
        dims = value.tensor.dims
        flat = 1
        for size in dims:
            flat *= size
        attrs = {"mean": True} if kind == "mean" else {}
        return self.axes.reshape(self.b.add(Op.COL_SUM, self.axes.reshape(value, (flat,)), **attrs), dims)

    def count(self, x: Raised, dims: Sequence[int], dtype: torch.dtype) -> Raised:
        """How many elements a reduction takes together, in the shape that keepdim gives."""
        number = 1
        found: Raised | None = None
        rows: Raised | None = None
        for axis in dims:
            for token in x.axes[axis]:
                if isinstance(token, int):
                    number *= x.size(token)
                elif token == D:
                    place = next(at for at, tokens in enumerate(x.axes) if N in tokens)
                    axes = tuple((N,) if at == place else () for at in range(len(x.axes)))
                    found = Raised(self.node_rows(self.degree(dtype)), axes)
                else:
                    rows = self.cast(self.count_of_rows(), dtype)
        constant = self.number(number, dtype)
        if rows is not None and found is not None:
            raise UnraisableError("a spread over nodes and messages together")
        found = rows if found is None else found
        return constant if found is None else found if number == 1 else self.ewise("mul", found, constant)

    def variance(self, x: Raised, dims: Sequence[int], correction: float, keepdim: bool) -> tuple[Raised, Raised]:
        """Variance and mean over axes, as torch.var_mean."""
        dtype = x.value.tensor.dtype
        mean = self.fold(x, dims, "mean", keepdim=True)
        squares = self.ewise("square", self.ewise("sub", x, mean))
        if any(N in x.axes[axis] for axis in dims) and not correction:
            variance = self.fold(squares, dims, "mean", keepdim=True)
        else:
            total = self.fold(squares, dims, "sum", keepdim=True)
            count = self.count(x, dims, dtype)
            if correction:
                count = self.ewise("sub", count, self.number(correction, dtype))
            variance = self.ewise("div", total, count)
        return (variance, mean) if keepdim else (self.drop(variance, dims), self.drop(mean, dims))

    def drop(self, x: Raised, dims: Sequence[int]) -> Raised:
        """Axes of size 1 left out."""
        return Raised(x.value, tuple(axis for at, axis in enumerate(x.axes) if at not in dims))

    def softmax(self, x: Raised, dim: int, log: bool) -> Raised:
        """Over an axis: Norm over the messages of a node, else spelled out with a shift that has no gradient."""
        if x.axes[dim] == (D,):
            x = self.real(x)
            attrs = {"log": True} if log else {}
            return Raised(self.b.add(Op.EDGE_SOFTMAX, self.stage.graph, x.value, **attrs), x.axes)
        shifted = self.ewise("sub", x, self.map(self.fold(x, [dim], "max", keepdim=True), Op.DETACH))
        total = self.fold(self.ewise("exp", shifted), [dim], "sum", keepdim=True)
        if log:
            return self.ewise("sub", shifted, self.ewise("log", total))
        return self.ewise("div", self.ewise("exp", shifted), total)

    def logsumexp(self, x: Raised, dims: Sequence[int], keepdim: bool) -> Raised:
        """Shifted by the maximum, which has no gradient."""
        top = self.map(self.fold(x, dims, "max", keepdim=True), Op.DETACH)
        total = self.fold(self.ewise("exp", self.ewise("sub", x, top)), dims, "sum", keepdim=True)
        result = self.ewise("add", self.ewise("log", total), top)
        return result if keepdim else self.drop(result, dims)

    # products

    def contract(self, a: Raised, b: Raised, spec: str) -> Raised:
        """``spec`` names the axes: ``mk,kn->mn``."""
        left, right = spec.split("->")[0].split(",")
        out = spec.split("->")[1]
        a, b = self.joined([a, b])
        patterns: dict[str, tuple[Any, ...]] = {}
        for label in {*left, *right}:
            sides = [(x, x.axes[names.index(label)]) for x, names in ((a, left), (b, right)) if label in names]
            patterns[label] = self.axes.pattern([side for side in sides if side[1]]) if any(s[1] for s in sides) else ()
        self._check_rows(a, b, left, right)
        a = self.axes.refined(a, [patterns[label] for label in left])
        b = self.axes.refined(b, [patterns[label] for label in right])
        summed = [t for label in patterns if label not in out for t in patterns[label] if isinstance(t, str)]
        if N in summed and self.stage.name == REDUCE:
            raise UnraisableError("a product over nodes, which reduce sees one by one,")
        if summed and not (a.has_rows or b.has_rows):
            a = self.real(a)
        letters = _letters(patterns)
        rows = a.has_rows or b.has_rows
        names = [(N if x.has_rows else "") + _spell(labels, letters) for x, labels in ((a, left), (b, right))]
        kept = rows and N not in summed
        result = (N if kept else "") + _spell(out, letters)
        value = self.b.add(Op.EINSUM, a.value, b.value, spec=f"{names[0]},{names[1]}->{result}")
        if D in summed:
            value = self.node_rows(self.b.add(Op.REDUCE, self.stage.graph, value, kind="sum"))
        return Raised(value, _number([patterns[label] for label in out])[0])

    def _check_rows(self, a: Raised, b: Raised, left: str, right: str) -> None:
        """Row tokens of both operands lie on the same axis."""
        for token in (N, D):
            places = [
                next((label for label, axis in zip(names, x.axes, strict=True) if token in axis), None)
                for x, names in ((a, left), (b, right))
            ]
            if None not in places and places[0] != places[1]:
                raise UnraisableError("a product of all rows with all rows")

    # joining and cutting

    def cat(self, xs: Sequence[Raised], dim: int) -> Raised:
        """Along an axis of trailing dimensions."""
        xs = self.joined(xs, real=True)
        patterns: list[tuple[Any, ...]] = []
        for at in range(len(xs[0].axes)):
            found = [(x, x.axes[at]) for x in xs if x.axes[at]]
            patterns.append(() if at == dim or not found else self.axes.pattern(found))
        values = []
        before = sum(not isinstance(item, str) for pattern in patterns[:dim] for item in pattern)
        for x in xs:
            x = self.axes.ordered(self.axes.merged(x, dim)) if x.axes[dim] else self.axes.ordered(x)
            own = x.size(x.axes[dim][0]) if x.axes[dim] else 1
            x = self.axes.refined(x, [(own,) if at == dim else pattern for at, pattern in enumerate(patterns)])
            sizes = [item for pattern in patterns for item in pattern if not isinstance(item, str)]
            sizes.insert(before, own)
            values.append(self.axes.reshape(x.value, tuple(sizes)))
        value = values[0] if len(values) == 1 else self.b.add(Op.CAT, *values, axis=before)
        patterns[dim] = (value.tensor.dims[before],)
        return self.trimmed(Raised(value, _number(patterns)[0]))

    def trimmed(self, x: Raised) -> Raised:
        """Trailing dimensions of size 1 removed from value and axes."""
        dims = x.value.tensor.dims
        kept = [token for token, size in enumerate(dims) if size != 1]

        def move(axis: Axis) -> Axis:
            return tuple(
                kept.index(t) if isinstance(t, int) else t for t in axis if not isinstance(t, int) or t in kept
            )

        value = self.axes.reshape(x.value, tuple(dims[token] for token in kept))
        return Raised(value, tuple(map(move, x.axes)))

    def cut(self, x: Raised, dim: int, start: int, stop: int, step: int = 1) -> Raised:
        """``start:stop:step`` along an axis of trailing dimensions."""
        x = self.axes.merged(x, dim)
        if not x.axes[dim]:
            if (start, stop) == (0, 1):
                return x
            raise UnraisableError("an empty slice")
        token = x.axes[dim][0]
        assert isinstance(token, int)
        stop = max(start, min(stop, x.size(token)))
        if (start, stop, step) == (0, x.size(token), 1):
            return x
        return self.trimmed(self.map(x, Op.SLICE, axis=token, start=start, stop=stop, step=step))

    def expand(self, x: Raised, shape: Sequence[Size | None]) -> Raised:
        """Axes of size 1 repeated; None keeps a size."""
        axes = ((),) * (len(shape) - len(x.axes)) + x.axes
        value, made = x.value, []
        for axis, size in zip(axes, shape, strict=True):
            if axis or size is None or size == Size(1):
                made.append(axis)
                continue
            tokens: list[Token] = [token for token, there in ((N, size.n), (D, size.d)) if there]
            if size.number != 1:
                dims = value.tensor.dims
                value = self.b.add(Op.EXPAND, self.axes.reshape(value, (*dims, 1)), dims=(*dims, size.number))
                tokens.append(len(dims))
            made.append(tuple(tokens))
        return self.on_edges_if(Raised(value, tuple(made)))

    def on_edges_if(self, x: Raised) -> Raised:
        """Node rows that were repeated along messages become edge rows."""
        return self.on_edges(x) if D in x.tokens else x

    # out

    def finish(self, x: Raised) -> Value:
        """The IR value of a field: its first axis is the rows, its trailing dimensions the other axes."""
        if not x.axes or x.axes[0] != (N,) or D in x.tokens or N in [t for axis in x.axes[1:] for t in axis]:
            raise UnraisableError("a field whose first dimension is not its rows")
        x = self.axes.ordered(self.real(x))
        return self.plain(x, 1)

    def plain(self, x: Raised, lead: int) -> Value:
        """The value with one trailing dimension for every axis after the first ``lead``."""
        sizes = []
        for axis in x.axes[lead:]:
            product = 1
            for token in axis:
                product *= x.size(token)
            sizes.append(product)
        return self.axes.reshape(self.axes.ordered(x).value, tuple(sizes))


def _check_pairs(patterns: Sequence[tuple[Any, ...]]) -> None:
    """No row is laid against itself, as ``e.unsqueeze(2) - e.unsqueeze(1)`` does for all pairs in a mailbox."""
    rows = [token for pattern in patterns for token in pattern if isinstance(token, str)]
    if len(rows) != len(set(rows)):
        what = "messages" if rows.count(D) > 1 else "rows"
        raise UnraisableError(f"code on all pairs of {what}")


def _number(patterns: Sequence[tuple[Any, ...]]) -> tuple[tuple[Axis, ...], tuple[int, ...]]:
    """Axes that number the trailing sizes of ``patterns`` in order, and those sizes."""
    dims: list[int] = []
    axes: list[Axis] = []
    for pattern in patterns:
        tokens: list[Token] = []
        for item in pattern:
            tokens.append(item if isinstance(item, str) else len(dims))
            if not isinstance(item, str):
                dims.append(item)
        axes.append(tuple(tokens))
    return tuple(axes), tuple(dims)


def _letters(patterns: dict[str, tuple[Any, ...]]) -> dict[str, str]:
    """Letters of an einsum for the trailing sizes of every axis; n is the rows."""
    free = iter("abcdefghijklmopqrstuvwxyz")
    return {label: "".join(next(free) for t in patterns[label] if not isinstance(t, str)) for label in sorted(patterns)}


def _spell(labels: str, letters: dict[str, str]) -> str:
    return "".join(letters[label] for label in labels)
