"""Rules of views, joins, slices, assignments to slices, and tables.

Comes in: operands of one operation. Goes out: its result, raised. Entered into the table of ``rules.py``.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import torch

from graphweft.frontend.algebra import Algebra
from graphweft.frontend.layout import Known, N, Raised, Size, UnraisableError
from graphweft.frontend.rules import Out, rule
from graphweft.ir.ops import Op

aten = torch.ops.aten
_PIECES = 64  # features that are put together one by one


# views


@rule(aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten._reshape_alias.default)
def _view(a: Algebra, out: Out, x: Raised, *_: Any) -> Raised:
    return a.axes.view(x, out.shape)


@rule(aten.permute.default)
def _permute(a: Algebra, out: Out, x: Raised, order: Sequence[int]) -> Raised:
    return Raised(x.value, tuple(x.axes[axis] for axis in order))


@rule(aten.transpose.int)
def _transpose(a: Algebra, out: Out, x: Raised, one: int, two: int) -> Raised:
    axes = list(x.axes)
    axes[one], axes[two] = axes[two], axes[one]
    return Raised(x.value, tuple(axes))


@rule(aten.t.default, aten.numpy_T.default)
def _t(a: Algebra, out: Out, x: Raised) -> Raised:
    return Raised(x.value, x.axes[::-1])


@rule(aten.unsqueeze.default)
def _unsqueeze(a: Algebra, out: Out, x: Raised, dim: int) -> Raised:
    at = dim % (len(x.axes) + 1)
    return Raised(x.value, (*x.axes[:at], (), *x.axes[at:]))


@rule(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def _squeeze(a: Algebra, out: Out, x: Raised, dims: Any = None) -> Raised:
    rank = len(x.axes)
    chosen = range(rank) if dims is None else [d % rank for d in ([dims] if isinstance(dims, int) else dims)]
    return a.drop(x, [axis for axis in chosen if not x.axes[axis]])


@rule(aten.expand.default)
def _expand(a: Algebra, out: Out, x: Raised, *_: Any, **__: Any) -> Raised:
    return a.expand(x, out.shape)


@rule(aten.repeat.default)
def _repeat(a: Algebra, out: Out, x: Raised, repeats: Sequence[Any]) -> Raised:
    x = Raised(x.value, ((),) * (len(repeats) - len(x.axes)) + x.axes)
    counts = a.stage.symbols.shape(repeats)
    spread = Raised(x.value, tuple(axis for at in range(len(counts)) for axis in ((), x.axes[at])))
    wide = a.expand(spread, [size for count in counts for size in (count, None)])
    return Raised(wide.value, tuple(wide.axes[2 * at] + wide.axes[2 * at + 1] for at in range(len(counts))))


@rule(aten.select.int)
def _select(a: Algebra, out: Out, x: Raised, dim: int, index: int) -> Raised:
    at = dim % len(x.axes)
    size = _static(x, at)
    start = int(index) % size
    return a.drop(a.cut(x, at, start, start + 1), [at])


def _static(x: Raised, axis: int) -> int:
    """Size of an axis without rows."""
    size = 1
    for token in x.axes[axis]:
        if isinstance(token, str):
            raise UnraisableError("one of the nodes, edges or messages picked by position")
        size *= x.size(token)
    return size


@rule(aten.slice.Tensor)
def _slice(a: Algebra, out: Out, x: Raised, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Raised:
    at = dim % len(x.axes)
    size = out.shape[at]
    if any(isinstance(token, str) for token in x.axes[at]):
        whole = (start is None or start == 0) and step == 1 and (size.n or size.d) and isinstance(end, int | None)
        if whole and (end is None or end > 2**62):
            return x
        raise UnraisableError("some of the nodes, edges or messages picked by position")
    return a.cut(x, at, *_bounds(start, end, _static(x, at)), step)


def _bounds(start: Any, end: Any, size: int) -> tuple[int, int]:
    return slice(start, end).indices(size)[:2]


@rule(aten.unbind.int)
def _unbind(a: Algebra, out: Any, x: Raised, dim: int = 0) -> tuple[Raised, ...]:
    at = dim % len(x.axes)
    return tuple(a.drop(a.cut(x, at, i, i + 1), [at]) for i in range(_static(x, at)))


@rule(aten.split_with_sizes.default)
def _split(a: Algebra, out: Any, x: Raised, sizes: Sequence[int], dim: int = 0) -> tuple[Raised, ...]:
    at, begin, parts = dim % len(x.axes), 0, []
    for size in sizes:
        parts.append(a.cut(x, at, begin, begin + size))
        begin += size
    return tuple(parts)


@rule(aten.split.Tensor)
def _split_evenly(a: Algebra, out: Any, x: Raised, size: int, dim: int = 0) -> tuple[Raised, ...]:
    whole = _static(x, dim % len(x.axes))
    return _split(a, out, x, [builtins.min(size, whole - begin) for begin in range(0, whole, size)], dim)


@rule(aten.cat.default)
def _cat(a: Algebra, out: Out, xs: Sequence[Raised], dim: int = 0) -> Raised:
    return a.cat([a.cast(x, out.dtype) for x in xs], dim % len(out.shape))


@rule(aten.stack.default)
def _stack(a: Algebra, out: Out, xs: Sequence[Raised], dim: int = 0) -> Raised:
    at = dim % len(out.shape)
    return a.cat([_unsqueeze(a, out, a.cast(x, out.dtype), at) for x in xs], at)


@rule(aten.slice_scatter.default)
def _slice_scatter(
    a: Algebra, out: Out, x: Raised, source: Raised, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Raised:
    at = dim % len(x.axes)
    if any(isinstance(token, str) for token in x.axes[at]):
        if (start is None or start == 0) and (end is None or not isinstance(end, int) or end > 2**62) and step == 1:
            return a.expand(a.cast(source, out.dtype), out.shape)
        raise UnraisableError("an assignment to some of the nodes, edges or messages")
    size = _static(x, at)
    begin, stop = _bounds(start, end, size)
    if step != 1:
        places = range(begin, stop, step)
        if size > _PIECES or not places:
            raise UnraisableError("an assignment with a step")
        shape = [Size(len(places)) if i == at else size for i, size in enumerate(out.shape)]
        given = a.expand(a.cast(source, out.dtype), shape)
        parts = ((given, places.index(i)) if i in places else (x, i) for i in range(size))
        return a.cat([a.cut(part, at, i, i + 1) for part, i in parts], at)
    kept = [a.cut(x, at, 0, begin)] if begin else []
    shape = [Size(stop - begin) if i == at else size for i, size in enumerate(out.shape)]
    middle = a.expand(a.cast(source, out.dtype), shape)
    rest = [a.cut(x, at, stop, size)] if stop < size else []
    return a.cat([*kept, middle, *rest], at)


@rule(aten.select_scatter.default)
def _select_scatter(a: Algebra, out: Out, x: Raised, source: Raised, dim: int, index: int) -> Raised:
    at = dim % len(x.axes)
    begin = int(index) % _static(x, at)
    return _slice_scatter(a, out, x, _unsqueeze(a, out, source, at), at, begin, begin + 1)


# tables


@rule(aten.embedding.default)
def _embedding(
    a: Algebra,
    out: Out,
    table: Raised,
    index: Raised,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Raised:
    if scale_grad_by_freq:
        raise UnraisableError("gradients scaled by how often a row is read")
    rows = _lookup(a, table, index)
    if padding_idx < 0:
        return rows
    padding = a.ewise("eq", index, a.number(padding_idx, index.value.tensor.dtype))  # no gradient for its row
    return a.ewise("where", _unsqueeze(a, out, padding, -1), a.map(rows, Op.DETACH), rows)


@rule(aten.index.Tensor)
def _index(a: Algebra, out: Out, table: Raised, indices: Sequence[Any]) -> Raised:
    given = [at for at, index in enumerate(indices) if index is not None]
    if len(given) == 1 and (given[0] or table.has_rows):
        return _picked(a, table, given[0], indices[given[0]])
    if given != [0] or not isinstance(indices[0], Raised):
        raise UnraisableError("an index of several tensors")
    return _lookup(a, table, indices[0])


@rule(aten.index_select.default)
def _index_select(a: Algebra, out: Out, table: Raised, dim: int, index: Raised) -> Raised:
    if dim % len(table.axes) or table.has_rows:
        return _picked(a, table, dim % len(table.axes), index)
    return _lookup(a, table, index)


def _picked(a: Algebra, x: Raised, at: int, index: Raised) -> Raised:
    """Some features by constant positions."""
    if not isinstance(index, Known) or index.tensor.dim() != 1 or index.tensor.is_floating_point():
        raise UnraisableError("an index along features")
    size, positions = _static(x, at), index.tensor.tolist()
    if not 0 < len(positions) <= _PIECES or not all(-size <= i < size for i in positions):
        raise UnraisableError("an index along features")
    return a.cat([a.cut(x, at, i % size, i % size + 1) for i in positions], at)


def _lookup(a: Algebra, table: Raised, index: Raised) -> Raised:
    """Rows of a shared table by number."""
    if table.has_rows or N in table.tokens or not str(index.value.tensor.dtype).startswith("torch.int"):
        raise UnraisableError("an index into rows")
    index = a.axes.ordered(a.cast(index, torch.int64) if index.value.tensor.dtype != torch.int32 else index)
    plain = a.plain(table, 0)
    made = a.b.add(Op.LOOKUP, plain, index.value)
    depth = len(index.value.tensor.dims)
    own = tuple((depth + at,) for at in range(len(plain.tensor.dims) - 1))
    return a.trimmed(Raised(made, index.axes + own))
