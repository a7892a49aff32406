"""How a traced tensor lies over an IR value: which of its axes are rows, messages, and trailing dimensions.

Comes in: shapes with symbolic sizes. Goes out: :class:`Raised`, an IR value with the axes of the traced tensor, each a
product of tokens: ``"n"`` the rows of the stage, ``"d"`` the messages of a mailbox, a number a trailing dimension of
the value. Views and permutations change axes only; ``(n, d)`` together are edge rows. No token has size 1. Called by
the rules that raise ATen operations.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any

from torch import Tensor

from graphweft.ir.ops import Op
from graphweft.ir.program import Builder, Value

Token = str | int
Axis = tuple[Token, ...]
N, D = "n", "d"


class UnraisableError(Exception):
    """Something that has no counterpart in the IR; names the operation and why, and in which function where known."""

    def __init__(self, what: str, line: str | None = None) -> None:
        super().__init__(what)
        self.what, self.line = what, line
        self.stage: str | None = None

    @staticmethod
    @contextlib.contextmanager
    def within(stage: str) -> Iterator[None]:
        """Failures inside belong to ``stage``."""
        try:
            yield
        except UnraisableError as failure:
            failure.stage = failure.stage or stage
            raise


@dataclass(frozen=True)
class Raised:
    """A traced tensor as an IR value. Tokens ``n`` and ``d`` of a shared value are virtual: the same for all rows.

    A value with rows and without a token ``n`` is a number that differs by node: of the messages in its mailbox.
    """

    value: Value
    axes: tuple[Axis, ...]

    @property
    def tokens(self) -> list[Token]:
        """All tokens in order."""
        return [token for axis in self.axes for token in axis]

    @property
    def has_rows(self) -> bool:
        """Whether the value has rows."""
        return self.value.tensor.rows is not None

    def size(self, token: Token) -> int:
        """Size of a trailing dimension."""
        assert isinstance(token, int)
        return self.value.tensor.dims[token]


@dataclass(frozen=True)
class Known(Raised):
    """A constant of which a rule may read the numbers."""

    tensor: Tensor


@dataclass(frozen=True)
class Size:
    """A size of a traced tensor: a number times the sizes of rows and messages."""

    number: int
    n: bool = False
    d: bool = False


class Symbols:
    """Reads sizes: which symbol is the rows of the stage, which the messages of a mailbox.

    ``numbers``: symbols of Python numbers that are inputs, with their positions in what the functions capture.
    """

    def __init__(self, rows: Any, messages: Any, numbers: Mapping[Any, int] | None = None) -> None:
        self.rows, self.messages, self.numbers = rows, messages, dict(numbers or {})

    def of_numbers(self, number: Any) -> tuple[tuple[Any, int], ...]:
        """The symbols of numbers in a symbolic number, or an expression, with their positions."""
        free: set[Any] = getattr(getattr(getattr(number, "node", None), "expr", number), "free_symbols", set())
        return tuple((symbol, at) for symbol, at in self.numbers.items() if symbol in free)

    def read(self, size: Any) -> Size:
        """``size``, an int or a symbolic one, as a product."""
        expression = getattr(getattr(size, "node", None), "expr", size)
        powers = expression.as_powers_dict() if hasattr(expression, "as_powers_dict") else {}
        if not powers or isinstance(expression, int) or expression.is_Integer:
            return Size(int(expression))
        number, n, d = 1, False, False
        for base, power in powers.items():
            if base == self.rows and power == 1:
                n = True
            elif base == self.messages and power == 1:
                d = True
            elif base.is_Integer and power.is_Integer and power >= 0:
                number *= int(base) ** int(power)
            else:
                raise UnraisableError("a size computed from the number of nodes, edges or messages")
        return Size(number, n, d)

    def shape(self, shape: Any) -> tuple[Size, ...]:
        """Every size of a shape."""
        return tuple(self.read(size) for size in shape)


class Axes:
    """Rearranges raised tensors; writes RESHAPE and PERMUTE only where trailing dimensions change."""

    def __init__(self, builder: Builder) -> None:
        self.b = builder

    def of(self, value: Value, lead: Axis = ()) -> Raised:
        """A value whose rows, if any, are the leading axes ``lead``; sizes of 1 become empty axes."""
        dims = value.tensor.dims
        kept = [axis for axis, size in enumerate(dims) if size != 1]
        axes = tuple((kept.index(axis),) if size != 1 else () for axis, size in enumerate(dims))
        return Raised(self.reshape(value, tuple(dims[axis] for axis in kept)), (*((t,) for t in lead), *axes))

    def reshape(self, value: Value, dims: tuple[int, ...]) -> Value:
        """RESHAPE where needed."""
        return value if value.tensor.dims == dims else self.b.add(Op.RESHAPE, value, dims=dims)

    def permute(self, value: Value, order: tuple[int, ...]) -> Value:
        """PERMUTE where needed."""
        return value if order == tuple(range(len(order))) else self.b.add(Op.PERMUTE, value, order=order)

    def ordered(self, x: Raised) -> Raised:
        """The same with trailing dimensions in the order of the axes."""
        order = tuple(token for token in x.tokens if isinstance(token, int))
        place = {token: at for at, token in enumerate(order)}
        axes = tuple(tuple(place[t] if isinstance(t, int) else t for t in axis) for axis in x.axes)
        return Raised(self.permute(x.value, order), axes)

    def view(self, x: Raised, shape: tuple[Size, ...]) -> Raised:
        """The same elements in row-major order under another shape."""
        x = self.ordered(x)
        runs: list[list[Any]] = []  # [token] for rows and messages, [product] for a run of trailing dimensions
        for token in x.tokens:
            if isinstance(token, str):
                runs.append([token])
            elif runs and not isinstance(runs[-1][0], str):
                runs[-1][0] *= x.size(token)
            else:
                runs.append([x.size(token)])
        sizes: list[int] = []
        axes: list[Axis] = []
        for size in shape:
            axes.append(self._consume(runs, size, sizes))
        if runs:
            raise UnraisableError("a view that mixes rows with features")
        return Raised(self.reshape(x.value, tuple(sizes)), tuple(axes))

    def _consume(self, runs: list[list[Any]], size: Size, sizes: list[int]) -> Axis:
        """Tokens of one new axis, taken from the front of ``runs``; new trailing sizes go to ``sizes``."""
        number, n, d = size.number, size.n, size.d
        axis: list[Token] = []
        while number > 1 or n or d:
            if not runs:
                raise UnraisableError("a view of another number of elements")
            head = runs[0][0]
            if isinstance(head, str):
                if not (n if head == N else d):
                    raise UnraisableError("a view that mixes rows with features")
                n, d = (False, d) if head == N else (n, False)
                axis.append(head)
                runs.pop(0)
                continue
            taken = head if number % head == 0 else number
            if head % taken or taken == 1:
                raise UnraisableError("a view that mixes rows with features")
            axis.append(len(sizes))
            sizes.append(taken)
            number //= taken
            runs[0][0] = head // taken
            if runs[0][0] == 1:
                runs.pop(0)
        return tuple(axis)

    def merged(self, x: Raised, axis: int) -> Raised:
        """The same with the trailing dimensions of ``axis`` made one; refused where rows are part of it."""
        tokens = x.axes[axis]
        if any(isinstance(token, str) for token in tokens):
            raise UnraisableError("an axis of nodes, edges or messages used as features")
        if len(tokens) <= 1:
            return x
        x = self.ordered(x)
        first = x.axes[axis][0]
        assert isinstance(first, int)
        dims, count = x.value.tensor.dims, len(x.axes[axis])
        joined = prod(dims[first : first + count])
        value = self.reshape(x.value, (*dims[:first], joined, *dims[first + count :]))

        def move(token: Token) -> Token:
            return token - count + 1 if isinstance(token, int) and token > first else token

        axes = tuple((first,) if i == axis else tuple(map(move, a)) for i, a in enumerate(x.axes))
        return Raised(value, axes)

    def refined(self, x: Raised, patterns: list[tuple[Any, ...]]) -> Raised:
        """The same with every non-empty axis cut as its pattern says: row tokens by name, trailing sizes as numbers."""
        x = self.ordered(x)
        sizes: list[int] = []
        axes: list[Axis] = []
        for axis, pattern in zip(x.axes, patterns, strict=True):
            tokens: list[Token] = []
            for item in pattern if axis else ():
                tokens.append(item if isinstance(item, str) else len(sizes))
                if not isinstance(item, str):
                    sizes.append(item)
            axes.append(tuple(tokens))
        return Raised(self.reshape(x.value, tuple(sizes)), tuple(axes))

    def pattern(self, candidates: list[tuple[Raised, Axis]]) -> tuple[Any, ...]:
        """The coarsest cut of one axis that all its non-empty candidates can be brought to."""
        rows = [[t for t in axis if isinstance(t, str)] for _, axis in candidates]
        if any(row != rows[0] for row in rows):
            raise UnraisableError("rows laid over features")
        segments: list[list[set[int]]] = []
        for x, axis in candidates:
            parts: list[list[int]] = [[]]
            for token in axis:
                if isinstance(token, str):
                    parts.append([])
                else:
                    parts[-1].append(x.size(token))
            segments.append([set(accumulate(part, lambda a, b: a * b)) for part in parts])
        found: list[Any] = []
        for at in range(len(rows[0]) + 1):
            if at:
                found.append(rows[0][at - 1])
            cuts = sorted(set().union(*(segment[at] for segment in segments)))
            before = 1
            for cut in cuts:
                if cut % before:
                    raise UnraisableError("features cut in ways that do not fit")
                found.append(cut // before)
                before = cut
        return tuple(found)
