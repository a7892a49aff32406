"""Sums over edges in forms that no program has, written as others: extrema with a start, segments, sparse matrices.

Comes in: operands of one ATen operation while a module is recorded. Goes out: its result by operations that programs
have, or None where it stays as it is. Called by ``recorder.py``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from graphweft._torch_recording import FakeTensor
from graphweft.frontend.elementwise_rules import stop_gradient
from graphweft.frontend.rules import entering

aten = torch.ops.aten
Form = Callable[..., Any]
FORMS: dict[Any, Form] = {}
_form = entering(FORMS)
_LOWEST = {"amax": -torch.inf, "amin": torch.inf}
_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)


def is_lowest(base: Tensor, kind: str) -> bool:
    """Whether a start leaves every extremum as it is."""
    return kind in _LOWEST and bool((base == _LOWEST[kind]).all())


@_form(aten.scatter_reduce.two)
def _started(
    start: Tensor, dim: int, index: Tensor, rows: Tensor, kind: str, *, include_self: bool = True
) -> Tensor | None:
    """Means and extrema that begin with what is there, where that is structure; what replaces what is there."""
    if isinstance(index, FakeTensor) or start.dim() == 0:
        return None
    if not include_self:
        return _replaced(start, dim, index, rows, kind)
    if isinstance(start, FakeTensor):
        return None
    if kind not in ("mean", "amax", "amin") or is_lowest(start, kind):
        return None
    zeros = torch.zeros_like(start)
    if kind == "mean":
        count = torch.ones_like(start).scatter_add(dim, index, torch.ones(rows.shape, dtype=start.dtype))
        return start / count + zeros.scatter_add(dim, index, rows) / count
    there = _reached(start, dim, index, rows)
    best = zeros.scatter_reduce(dim, index, rows, kind, include_self=False)
    beyond = torch.logical_and(best > start if kind == "amax" else best < start, there)
    # the start has its part in a tie: one of one more
    equal = torch.where(rows == best.gather(dim, index), torch.ones((), dtype=start.dtype), 0.0)
    ties = zeros.scatter_add(dim, index, equal)
    shared = (best - stop_gradient(best)) * (ties / (ties + 1))
    tied = torch.where(torch.logical_and(best == start, there), shared, 0.0)
    return with_gradient_of(torch.where(beyond, best, start), tied)


def _replaced(start: Tensor, dim: int, index: Tensor, rows: Tensor, kind: str) -> Tensor | None:
    """Sums and means in the place of what is there, which stays where no row goes."""
    if kind not in ("sum", "mean") or (not isinstance(start, FakeTensor) and not bool(start.any())):
        return None  # what an extremum replaces has a part in torch's gradient of ties
    there = _reached(start, dim, index, rows)
    zeros = torch.zeros(start.shape, dtype=start.dtype)
    return torch.where(there, zeros.scatter_reduce(dim, index, rows, kind, include_self=False), start)


def _reached(start: Tensor, dim: int, index: Tensor, rows: Tensor) -> Tensor:
    """Where rows go."""
    nowhere = torch.zeros(start.shape, dtype=torch.bool)
    return nowhere.scatter(dim, index, torch.ones(rows.shape, dtype=torch.bool))


@_form(aten.segment_reduce.default)
def _segments(
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Any = None,
) -> Tensor | None:
    """Segments of rows, with their numbers as an index."""
    if axis != 0 or indices is not None or (lengths is None) == (offsets is None):
        return None
    reduce = reduce.removeprefix("a")
    counts = lengths if lengths is not None else offsets.diff()  # type: ignore[union-attr]
    if isinstance(counts, FakeTensor) or counts.dim() != 1 or reduce not in ("sum", "mean", "max", "min"):
        return None
    if not unsafe and int(counts.sum()) != data.shape[0]:
        return None  # torch tells what is wrong
    if initial not in (None, 0) or (initial is not None and reduce in ("max", "min")):
        return None
    if reduce == "mean" and initial is None and bool((counts == 0).any()):
        return None
    index = torch.repeat_interleave(torch.arange(counts.shape[0]), counts)
    zeros = torch.zeros((counts.shape[0], *data.shape[1:]), dtype=data.dtype)
    if reduce == "sum":
        return zeros.index_add(0, index, data)
    if reduce == "mean":
        wide = counts.clamp(min=1).to(data.dtype).view(-1, *((1,) * (data.dim() - 1)))
        return zeros.index_add(0, index, data) / wide
    wide_index = index.view(-1, *((1,) * (data.dim() - 1))).expand(data.shape)
    start = torch.full_like(zeros, _LOWEST[f"a{reduce}"])
    return start.scatter_reduce(0, wide_index, data, f"a{reduce}")


@_form(aten.masked_select.default)
def _selected(x: Tensor, mask: Tensor) -> Tensor | None:
    """Elements where structure says so."""
    if isinstance(mask, FakeTensor):
        return None
    shape = torch.broadcast_shapes(x.shape, mask.shape)  # type: ignore[no-untyped-call]
    ids = mask.expand(shape).reshape(-1).nonzero().view(-1)
    return x.expand(shape).reshape(-1).index_select(0, ids)


@_form(aten.bincount.default)
def _counted(ids: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor | None:
    """Sums of weights by bin, which torch gives no gradient."""
    if isinstance(ids, FakeTensor) or weights is None or not ids.numel() or int(ids.min()) < 0:
        return None
    count = max(minlength, int(ids.max()) + 1)
    numbers = weights if weights.dtype == torch.float32 else weights.double()
    return torch.zeros(count, dtype=numbers.dtype).index_add(0, ids, stop_gradient(numbers))


_MODES = ("sum", "mean")


@_form(aten._embedding_bag.default)
def _bags(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:
    """Sums or means of rows of a table by bags that are structure."""
    moving = isinstance(indices, FakeTensor) or isinstance(offsets, FakeTensor)
    if moving or mode >= len(_MODES) or scale_grad_by_freq or sparse:
        return None
    starts = offsets[:-1] if include_last_offset else offsets
    bag = torch.searchsorted(starts.contiguous(), torch.arange(len(indices), dtype=starts.dtype), right=True) - 1
    if padding_idx >= 0:
        kept = (indices != padding_idx).nonzero().view(-1)
        bag, indices = bag[kept], indices[kept]
        per_sample_weights = None if per_sample_weights is None else per_sample_weights.index_select(0, kept)
    rows = weight.index_select(0, indices)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.view(-1, 1)
    made = torch.zeros((len(starts), weight.shape[1]), dtype=weight.dtype).index_add(0, bag, rows)
    counts = torch.zeros(len(starts), dtype=torch.int64).index_add(0, bag, torch.ones_like(bag))
    if _MODES[mode] == "mean":
        made = made / counts.clamp(min=1).to(made.dtype).view(-1, 1)
    return made, bag, counts, counts


@_form(aten._embedding_bag_forward_only.default)
def _bags_alone(*args: Any, **kwargs: Any) -> Any:
    """The same, which torch calls where no gradient is asked: that of stand-ins is."""
    made = _bags(*args, **kwargs)
    return aten._embedding_bag.default(*args, **kwargs) if made is None else made


@_form(aten.copy.default, aten.fill.Tensor)
def _overwritten(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """What is written over all of ``x``; torch's own has no derivative."""
    return source.to(x.dtype).expand(x.shape)


@_form(aten.unsafe_split.Tensor, aten.unsafe_split_with_sizes.default)
def _parts(x: Tensor, sizes: int | Sequence[int], dim: int = 0) -> list[Tensor]:
    """Parts that may be written into, as recurrent cells do: torch promises that nobody reads the whole again."""
    length = x.shape[dim]
    starts = list(range(0, length, sizes)) if isinstance(sizes, int) else [sum(sizes[:at]) for at in range(len(sizes))]
    bounds = itertools.pairwise([*starts, length])
    return [aten.clone.default(aten.slice.Tensor(x, dim, start, stop)) for start, stop in bounds]


def is_sparse(item: Any) -> bool:
    """Whether something is a sparse matrix."""
    return isinstance(item, Tensor) and item.layout in _SPARSE


@_form(aten.mm.default, aten._sparse_mm.default)
def _sparse_product(left: Tensor, right: Tensor) -> Tensor | None:
    """A sparse matrix times rows."""
    if not is_sparse(left):
        if is_sparse(right):
            found = _sparse_product(right.t(), left.t())
            return None if found is None else found.t()
        return None
    if is_sparse(right):
        return None
    coo = left if left.layout == torch.sparse_coo else left.to_sparse_coo()  # type: ignore[no-untyped-call]
    row, column, weight = coo._indices()[0], coo._indices()[1], coo._values()
    rows = right.index_select(0, column)
    if not bool((weight == 1).all()):
        rows = rows * weight.view(-1, 1)
    return torch.zeros((left.shape[0], right.shape[1]), dtype=right.dtype).index_add(0, row, rows)


@_form(aten.addmm.default, aten._sparse_addmm.default)
def _sparse_sum(start: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor | None:
    if not is_sparse(left) and not is_sparse(right):
        return None
    made = _sparse_product(left, right)
    return None if made is None else made * alpha + (start * beta if beta else 0.0)


@_form(aten._sparse_mm_reduce_impl.default)
def _sparse_reduction(left: Tensor, right: Tensor, reduce: str) -> Any:
    """A product whose rows are sums or means; extrema give gradients to one of equal ones, as no program does."""
    if reduce not in ("sum", "mean") or isinstance(left, FakeTensor):
        return None
    made = _sparse_product(left, right)
    if made is None or reduce == "sum":
        return made, None
    counts = left.crow_indices().diff() if left.layout == torch.sparse_csr else None
    if counts is None:
        return None
    return made / counts.clamp(min=1).to(made.dtype).view(-1, 1), None


@_form(aten.mv.default)
def _sparse_vector(left: Tensor, right: Tensor) -> Tensor | None:
    made = _sparse_product(left, right.view(-1, 1)) if is_sparse(left) else None
    return None if made is None else made.view(-1)


def with_gradient_of(value: Tensor, zero: Tensor) -> Tensor:
    """``value``, to which the gradient of a sum of zeros is added; without it where no gradient is asked."""
    made: Tensor = torch.ops.graphweft_trace.with_gradient_of(value, zero)
    return made


_LIBRARY = torch.library.Library("graphweft_trace", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("with_gradient_of(Tensor x, Tensor zero) -> Tensor")  # type: ignore[no-untyped-call]
_LIBRARY.impl("with_gradient_of", lambda x, zero: x + zero, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]

__all__ = ["FORMS", "is_lowest", "is_sparse", "with_gradient_of"]
