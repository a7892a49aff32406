"""The algebra of a whole module: values on nodes, on edges and shared ones meet in one program over one graph.

Comes in: raised operands with the sizes of the recorded run. Goes out: a raised result. Where a user function has one
kind of rows, here every value has its own: rows of nodes ``V`` (``S`` and ``D`` on a bipartite graph), rows of edges
``E``, or none. Rows of different kinds never meet but through the graph. Called by ``regions.py`` and the rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch

from graphweft.frontend.algebra import Algebra, Stage
from graphweft.frontend.layout import Axes, Axis, N, Raised, Size, Symbols, Token, UnraisableError
from graphweft.ir.ops import Op
from graphweft.ir.program import Builder, Value

MODEL = "model"


class _Numbers(Symbols):
    """Sizes are numbers."""

    def __init__(self) -> None:
        super().__init__(None, None)

    def read(self, size: Any) -> Size:
        return Size(int(size))


class RowAxes(Axes):
    """As :class:`Axes`, where the number of rows of every kind is known."""

    def __init__(self, builder: Builder, counts: Mapping[str, int]) -> None:
        super().__init__(builder)
        self._counts = counts  # grows with further graphs

    def count(self, x: Raised) -> int:
        """How many rows a value has."""
        return self._counts[str(x.value.tensor.rows)]

    def sizes(self, x: Raised) -> tuple[int, ...]:
        """The shape of the traced tensor."""
        return tuple(prod(self.count(x) if t == N else x.size(t) for t in axis) for axis in x.axes)

    def view(self, x: Raised, shape: tuple[Size, ...]) -> Raised:
        """The same elements in row-major order under another shape."""
        x = self.ordered(x)
        runs: list[tuple[Token, int]] = []  # tokens in order, neighbouring trailing dimensions as one
        for token in x.tokens:
            if token == N:
                runs.append((N, self.count(x)))
            elif runs and runs[-1][0] != N:
                runs[-1] = (0, runs[-1][1] * x.size(token))
            else:
                runs.append((0, x.size(token)))
        if not all(size for _, size in runs):
            raise UnraisableError("a view of no elements")
        dims: list[int] = []
        axes: list[Axis] = []
        for size in shape:
            number = size.number
            axis: list[Token] = []
            while number > 1:
                if not runs:
                    raise UnraisableError("a view of another number of elements")
                token, head = runs.pop(0)
                if token == N:
                    if number % head:
                        raise UnraisableError("a view that mixes rows with features")
                    axis.append(N)
                    number //= head
                    continue
                taken = head if number % head == 0 else number
                if head % taken:
                    raise UnraisableError("a view that mixes rows with features")
                axis.append(len(dims))
                dims.append(taken)
                number //= taken
                if head != taken:
                    runs.insert(0, (0, head // taken))
            axes.append(tuple(axis))
        if runs:
            raise UnraisableError("a view that mixes rows with features")
        return Raised(self.reshape(x.value, tuple(dims)), tuple(axes))


class RowAlgebra(Algebra):
    """Writes IR for a whole module.

    Args:
        builder: Makes values.
        graph: The first graph's value.
        counts: The number of rows of every kind in the recorded run.
        seed: The seed of random draws.

    Attributes:
        filled: Extrema with another number than 0 where there are no edges -> the extrema.
    """

    axes: RowAxes

    def __init__(self, builder: Builder, graph: Value, counts: Mapping[str, int], seed: Value) -> None:
        super().__init__(builder, Stage(MODEL, graph, _Numbers(), seed=seed))
        self.counts = dict(counts)
        self.axes = RowAxes(builder, self.counts)
        self.filled: dict[Value, Value] = {}
        self._graphs = dict.fromkeys(counts, graph)

    def know(self, graph: Value, count: int) -> None:
        """Takes a further graph over the same nodes, of ``count`` edges."""
        self._graphs[graph.struct.edge] = graph
        self.counts[graph.struct.edge] = count

    def is_edge(self, value: Value) -> bool:
        """Whether the rows are edges of one of the graphs."""
        rows = str(value.tensor.rows)
        return rows in self._graphs and self._graphs[rows].struct.edge == rows

    # residency

    def real(self, x: Raised) -> Raised:
        """Every row token here belongs to rows of a value."""
        return x

    def joined(self, xs: Sequence[Raised], real: bool = False) -> list[Raised]:
        """Operands of one operation; ``real``: all with rows if one has them."""
        kinds = {x.value.tensor.rows for x in xs if x.has_rows}
        if len(kinds) > 1:
            raise UnraisableError("rows of nodes laid over rows of edges")
        if real and kinds:
            (kind,) = kinds
            return [x if x.has_rows else self.spread(x, str(kind)) for x in xs]
        return list(xs)

    def spread(self, x: Raised, kind: str) -> Raised:
        """A shared value with the same row for all rows of a kind; its axes are as before."""
        graph = self._graphs[kind]
        to = "edge" if kind == graph.struct.edge else "dst" if kind == graph.struct.dst else "src"
        return Raised(self.b.add(Op.BROADCAST_SHARED, graph, x.value, to=to), x.axes)

    def expand(self, x: Raised, shape: Sequence[Size | None]) -> Raised:
        """Axes of size 1 repeated; None keeps a size. A size that is a number of rows makes rows."""
        axes = ((),) * (len(shape) - len(x.axes)) + x.axes
        made: list[Axis] = []
        for at, (axis, size) in enumerate(zip(axes, shape, strict=True)):
            if axis or size is None or size.number == 1:
                made.append(axis)
                continue
            kind = self.kind_of(size.number)
            if at == 0 and kind is not None and not x.has_rows:
                x = self.spread(x, kind)
                made.append((N,))
                continue
            dims = x.value.tensor.dims
            grown = self.axes.reshape(x.value, (*dims, 1))
            x = Raised(self.b.add(Op.EXPAND, grown, dims=(*dims, size.number)), x.axes)
            made.append((len(dims),))
        return Raised(x.value, tuple(made))

    def kind_of(self, size: int) -> str | None:
        """The rows of which there are ``size``."""
        return next((kind for kind, count in self.counts.items() if count == size), None)

    def count_rows(self, x: Raised) -> int:
        """How many rows ``x`` has."""
        return self.axes.count(x)

    def count(self, x: Raised, dims: Sequence[int], dtype: torch.dtype) -> Raised:
        """How many elements a reduction takes together; of rows counted in every call, so that a program serves
        graphs of any size.
        """
        number, rows = 1, False
        for axis in dims:
            for token in x.axes[axis]:
                rows = rows or token == N
                number *= 1 if token == N else x.size(token)
        constant = self.number(number, dtype)
        if not rows:
            return constant
        one = self.spread(self.number(1.0, dtype), str(x.value.tensor.rows))
        count = Raised(self._fold_rows(one.value, "sum", "split"), ())
        return count if number == 1 else self.ewise("mul", count, constant)

    # between nodes and edges

    def gather(self, graph: Value, x: Raised, dim: int, source: bool) -> Raised:
        """Rows of the source or destination for every edge."""
        self._check_axis(x, dim, graph.struct.src if source else graph.struct.dst)
        op = Op.BROADCAST_SRC if source else Op.BROADCAST_DST
        return Raised(self.b.add(op, graph, x.value), x.axes)

    def scatter(self, graph: Value, x: Raised, dim: int, kind: str, source: bool) -> Raised:
        """Rows of edges combined at their destination, or at their source; 0 where there are none."""
        self._check_axis(x, dim, graph.struct.edge)
        graph = self.b.add(Op.REVERSE, graph) if source else graph
        ties = {"ties": "split"} if kind in ("max", "min") else {}
        return Raised(self.b.add(Op.REDUCE, graph, x.value, kind=kind, **ties), x.axes)

    # between nodes and groups of them

    def into_table(self, x: Raised, dim: int, ids: Value, size: int, kept: int | None = None) -> Raised:
        """Rows added up by number into a shared table; with ``kept`` the first so many rows of it."""
        self._check_axis(x, dim, str(ids.tensor.rows))
        made = self.b.add(Op.LOOKUP_SUM, x.value, ids, size=size)
        if kept is not None:
            made = self.b.add(Op.SLICE, made, axis=0, start=0, stop=kept, step=1)
        axes = [tuple(0 if token == N else int(token) + 1 for token in axis) for axis in x.axes]
        return self.trimmed(Raised(made, tuple(axes)))

    def from_table(self, x: Raised, dim: int, ids: Value) -> Raised:
        """Rows of a shared table by number."""
        if x.has_rows or N in x.tokens:
            raise UnraisableError("an index into rows of another kind")
        order = [dim, *(at for at in range(len(x.axes)) if at != dim)]
        plain = self.plain(Raised(x.value, tuple(x.axes[at] for at in order)), 0)
        made = self.b.add(Op.LOOKUP, plain, ids)
        axes: list[Axis] = [(at,) for at in range(len(order) - 1)]
        axes.insert(dim, (N,))
        return self.trimmed(Raised(made, tuple(axes)))

    def own_rows(self, x: Raised, dim: int) -> Raised | None:
        """Of rows of sources those of as many destinations, from the first on; None for other rows."""
        graph = self.stage.graph
        if graph.struct.src == graph.struct.dst or x.value.tensor.rows != graph.struct.src or x.axes[dim] != (N,):
            return None
        return Raised(self.b.add(Op.OWN_ROWS, graph, x.value), x.axes)

    def _check_axis(self, x: Raised, dim: int, rows: str) -> None:
        if x.value.tensor.rows != rows or x.axes[dim] != (N,):
            raise UnraisableError("an index into rows of another kind")
