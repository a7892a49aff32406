"""Launchers of the sparse kernels: torch tensors in, torch tensors out, over an :class:`Adjacency`.

Comes in: an adjacency (rows are destinations), row-major matrices on the CPU. Goes out: new matrices, or ``out``.
Called by compiled programs and by sparse features. Shapes are compared in one expression; what is wrong is found out
only after that failed. Ids are not looked at: an Adjacency has checked its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from graphweft import _native
from graphweft._errors import DtypeError, GraphWeftError, ShapeError
from graphweft._memory import empty
from graphweft._native import declare
from graphweft.runtime.epilogue import Epilogue
from graphweft.runtime.stand_in import times_larger

_spmm_f32, _spmm_rounded = declare("gw_spmm_f32"), declare("gw_spmm_f32_bf16")
_spmm_f64, _spmm_bf16 = declare("gw_spmm_f64"), declare("gw_spmm_bf16")
_REALS = {torch.float32: "f32", torch.float64: "f64"}
_WITH_HALF = {**_REALS, torch.bfloat16: "bf16"}
_SPMM_MAX = {dtype: declare(f"gw_spmm_max_{name}") for dtype, name in _WITH_HALF.items()}
_SPMM_MAX_WINNERS = {dtype: declare(f"gw_spmm_max_winners_{name}") for dtype, name in _WITH_HALF.items()}
_SPMM_MAX_GRAD = {dtype: declare(f"gw_spmm_max_grad_{name}") for dtype, name in _WITH_HALF.items()}
_SDDMM = {dtype: declare(f"gw_sddmm_dot_{name}") for dtype, name in _REALS.items()}
_MARGINS = {dtype: declare(f"gw_edge_margins_{name}") for dtype, name in _REALS.items()}
_MARGINS_GRAD = {dtype: declare(f"gw_edge_margins_grad_{name}") for dtype, name in _REALS.items()}
_softmax = declare("gw_edge_softmax_f32")
_softmax_grad = declare("gw_edge_softmax_grad_f32")
_sparse_dropout = declare("gw_sparse_dropout_f32")
_WEIGHT_DTYPE = {torch.float32: torch.float32, torch.float64: torch.float64, torch.bfloat16: torch.float32}
_MEAN = {"sum": 0, "mean": 1}

PANEL_ROW = 192  # bytes of a row that one pass over the edges reads, at most, when x is copied panel by panel
_PANEL_COLUMNS = 32  # of float32, that sums are cut by where rows are copied
_PANEL_ABOVE = 4 << 20  # bytes of x: what is smaller stays in cache as it is
_PANEL_REUSE = 6  # edges per row of x: what is read less often is not worth a copy
_EXTREMA_REUSE = 24  # the same for extrema, which read fewer rows in the time that a copy takes
_ROUNDED_ABOVE = 1 << 20  # bytes of x: what is smaller stays in a core's own cache
_ROUNDED_REUSE = 4  # edges per row of x from which rows are rounded once and read in half the bytes


class Adjacency(Protocol):
    """What the launchers read of a compressed adjacency."""

    @property
    def num_rows(self) -> int: ...  # noqa: D102
    @property
    def num_cols(self) -> int: ...  # noqa: D102
    @property
    def num_edges(self) -> int: ...  # noqa: D102
    @property
    def indices(self) -> torch.Tensor: ...  # noqa: D102
    @property
    def edge_ids(self) -> torch.Tensor | None: ...  # noqa: D102
    @property
    def native(self) -> _native.Adjacency: ...  # noqa: D102


def spmm(
    adj: Adjacency,
    x: torch.Tensor,
    *,
    reduce: str = "sum",
    weight: torch.Tensor | None = None,
    src_scale: torch.Tensor | None = None,
    self_coef: float = 0.0,
    self_factor: torch.Tensor | None = None,
    epilogue: Epilogue | None = None,
    out: torch.Tensor | None = None,
    prefetch: int = -1,
    rounds: bool = False,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``y[i] = epilogue(reduce_{e = (j -> i)} weight[e] * src_scale[j] * x[j] + self_coef * src_scale[i] * x[i])``.

    Equal to ``epilogue(A @ x)`` with ``A[i, j]`` the sum of ``weight[e] * src_scale[j]`` over the edges j -> i; "mean"
    divides the neighbours' sum by the row's number of edges. ``self_factor``, a float32 number beside float32 or
    bfloat16 rows, multiplies self_coef; it is read in the call. A row without edges gives 0 before self term and
    epilogue; one that has no row of x of its number has no self term.
    Rows of x and out may be strided. bfloat16 is summed in float32; the result is bfloat16, or float32 where ``dtype``
    says so. ``prefetch``: how many edges ahead rows of x are fetched; 0 never, -1 as the size of x asks for; it changes
    no bit of the result. ``out`` may be x itself, where rows and columns are as many; the bits are the same.
    ``rounds``: neighbours' rows of a float32 x, times their scale, are rounded to bfloat16 where that saves time; sums
    and the self term are float32.

    Shape: x (num_cols, f) float32, float64 or bfloat16 -> (num_rows, f). weight (num_edges,) by edge id, src_scale
    (num_cols,): of x's dtype, float32 for bfloat16.

    Raises: ShapeError, DtypeError.
    """
    width = x.size(-1)
    x = x if x.stride(-1) == 1 else x.contiguous()
    if out is None:
        out = empty((adj.num_rows, width), dtype or x.dtype)
    is_half = x.dtype == torch.bfloat16
    try:
        mean = _MEAN[reduce]
        kind = _WEIGHT_DTYPE[x.dtype]
    except KeyError:
        raise _spmm_failure(adj, x, reduce, weight, src_scale, out) from None
    if (
        x.size(0) != adj.num_cols
        or x.dim() != 2
        or out.shape != (adj.num_rows, width)
        or not (out.dtype == x.dtype or (is_half and out.dtype == torch.float32))
        or (weight is not None and (weight.numel() != adj.num_edges or weight.dtype != kind))
        or (weight is not None and not weight.is_contiguous())
        or (src_scale is not None and (src_scale.numel() != adj.num_cols or src_scale.dtype != kind))
    ):
        raise _spmm_failure(adj, x, reduce, weight, src_scale, out)
    if self_factor is not None and (self_factor.numel() != 1 or not self_factor.dtype == kind == torch.float32):
        given = f"{self_factor.dtype} of shape {tuple(self_factor.shape)} beside {x.dtype}"
        raise ShapeError(f"spmm: expected one float32 number for self_factor, beside rows summed in it, got {given}")
    if epilogue is not None:
        epilogue.check("spmm", adj.num_rows, width, half_stages=True)
    weights, scales, factor = map(_native.pointer, (weight, src_scale, self_factor))
    over = out.data_ptr() == x.data_ptr()
    columns, entries = _stood_for(adj)
    plain = over and not wants_panel(columns, entries, width * x.dtype.itemsize)  # as into memory elsewhere
    rounded = rounds and x.dtype == torch.float32 and rounds_rows(columns, entries, width * 4)
    panel = _panel(adj, width, torch.bfloat16 if rounded else x.dtype, must=over or rounded)
    source = (x.data_ptr(), x.stride(0), width)
    room, target = _native.pointer(panel), (out.data_ptr(), out.stride(0))
    if x.dtype == torch.float64:
        _spmm_f64(adj.native, *source, weights, scales, self_coef, mean, prefetch, room, *target)
        return out if epilogue is None else epilogue.apply_(out)
    stages = None if epilogue is None else epilogue.native()
    operands = (adj.native, *source, weights, scales, self_coef, factor, mean, stages, prefetch, room)
    if is_half:
        _spmm_bf16(*operands, plain, out.dtype == torch.float32, *target)
    elif rounded:
        _spmm_rounded(*operands, *target)
    else:
        _spmm_f32(*operands, plain, *target)
    return out


def _panel(adj: Adjacency, width: int, dtype: torch.dtype, must: bool, extrema: bool = False) -> torch.Tensor | None:
    """Room for a copy of up to three cache lines of each row of x, for a product that gains from reading those instead.

    ``must``: the product writes over x, or reads it rounded.
    """
    size = dtype.itemsize
    if not must and not wants_panel(*_stood_for(adj), width * size, extrema):
        return None
    return empty((adj.num_cols, panel_row(width * size) // size), dtype)


def _stood_for(adj: Adjacency) -> tuple[int, int]:
    """Columns and entries by which the way is chosen: a part that tells what the whole takes goes the whole's."""
    times = times_larger()
    return int(times * adj.num_cols), int(times * adj.num_edges)


def panel_row(row_bytes: int) -> int:
    """Bytes of a panel's row: whole cache lines."""
    return min(PANEL_ROW, -(-row_bytes // 64) * 64)


def wants_panel(num_cols: int, num_edges: int, row_bytes: int, extrema: bool = False) -> bool:
    """Whether a sum, or ``extrema``, read rows that are wide, many, and read often enough to copy part of each before.

    Example:
        >>> wants_panel(60_000, 600_000, 1200), wants_panel(60_000, 600_000, 1200, extrema=True)
        (True, False)
    """
    is_large = row_bytes > PANEL_ROW and num_cols * row_bytes > _PANEL_ABOVE
    return is_large and num_edges >= (_EXTREMA_REUSE if extrema else _PANEL_REUSE) * num_cols


def summed_width(num_cols: int, num_edges: int, width: int) -> int:
    """Columns of a float32 product that are summed in one pass over the edges, from which its cuts of rows follow."""
    return min(_PANEL_COLUMNS, width) if wants_panel(num_cols, num_edges, 4 * width) else width


def rounds_rows(num_cols: int, num_edges: int, row_bytes: int) -> bool:
    """Whether a product that may round the rows it sums does: there are enough of them, read often enough."""
    return num_cols * row_bytes > _ROUNDED_ABOVE and num_edges >= _ROUNDED_REUSE * num_cols


def _spmm_failure(
    adj: Adjacency,
    x: torch.Tensor,
    reduce: str,
    weight: torch.Tensor | None,
    src_scale: torch.Tensor | None,
    out: torch.Tensor,
) -> GraphWeftError:
    """The error that tells what is wrong with a call of :func:`spmm`."""
    if reduce not in _MEAN:
        return ShapeError(f"spmm: expected reduce sum or mean, got {reduce!r}")
    if x.dtype not in _WEIGHT_DTYPE:
        return DtypeError(f"spmm: expected x of dtype float32, float64 or bfloat16, got {x.dtype}")
    if x.dim() != 2 or x.size(0) != adj.num_cols:
        return ShapeError(f"spmm: expected x of {adj.num_cols} rows, one per column, got shape {tuple(x.shape)}")
    if out.dtype not in (x.dtype, _WEIGHT_DTYPE[x.dtype]) or out.shape != (adj.num_rows, x.size(1)):
        expected = f"{x.dtype} of shape {(adj.num_rows, x.size(1))}"
        return ShapeError(f"spmm: expected out as {expected}, got {out.dtype} of shape {tuple(out.shape)}")
    for name, tensor, length in (("weight", weight, adj.num_edges), ("src_scale", src_scale, adj.num_cols)):
        if tensor is not None and tensor.dtype != _WEIGHT_DTYPE[x.dtype]:
            return DtypeError(f"spmm: expected {name} of dtype {_WEIGHT_DTYPE[x.dtype]}, got {tensor.dtype}")
        if tensor is not None and (tensor.shape != (length,) or not tensor.is_contiguous()):
            return ShapeError(
                f"spmm: expected {name} of shape ({length},), contiguous, got shape {tuple(tensor.shape)}"
            )
    return ShapeError(f"spmm: expected a square adjacency for a self term, got {adj.num_rows} x {adj.num_cols}")


def spmm_max(
    adj: Adjacency, x: torch.Tensor, *, minimum: bool = False, want_arg: bool = True
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """``y[i] = max over j in row i of x[j]`` by element (``minimum``: min), and the column that attains it.

    A row without edges gives 0 and argument -1; of equal values the first edge in row order is named; a NaN wins, as in
    ``torch.amax``.

    Shape: x (num_cols, f) float32, float64 or bfloat16 -> y (num_rows, f), arg (num_rows, f) of the dtype of indices.

    Raises: ShapeError, DtypeError.
    """
    _check_operand("spmm_max", "x", x, adj.num_cols, _SPMM_MAX)
    x, width = _by_rows(x), x.size(1)
    y = empty((adj.num_rows, width), x.dtype)
    arg = empty((adj.num_rows, width), adj.indices.dtype) if want_arg else None
    panel = _native.pointer(_panel(adj, width, x.dtype, must=False, extrema=True))
    source, target = (x.data_ptr(), x.stride(0), width, minimum, panel), (y.data_ptr(), y.stride(0))
    _SPMM_MAX[x.dtype](adj.native, *source, *target, None if arg is None else arg.data_ptr(), width)
    return y, arg


def spmm_max_grad(transposed: Adjacency, arg: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """Gradient of :func:`spmm_max`: ``dx[j, f] = sum of dy[i, f] over destinations i with arg[i, f] == j``.

    ``transposed`` has the sources as rows; parallel edges stand side by side there, as ``Adjacency.transpose`` leaves
    them, and count once.

    Shape: arg (num_cols, f) of the dtype of indices, dy (num_cols, f) -> dx (num_rows, f).

    Raises: ShapeError, DtypeError.
    """
    _check_operand("spmm_max_grad", "dy", dy, transposed.num_cols, _SPMM_MAX_GRAD)
    if arg.shape != dy.shape or arg.dtype != transposed.indices.dtype:
        expected = f"{transposed.indices.dtype} of shape {tuple(dy.shape)}"
        raise ShapeError(f"spmm_max_grad: expected arg as {expected}, got {arg.dtype} of shape {tuple(arg.shape)}")
    dy, arg, width = _by_rows(dy), _by_rows(arg), dy.size(1)
    dx = empty((transposed.num_rows, width), dy.dtype)
    rows = (arg.data_ptr(), arg.stride(0), dy.data_ptr(), dy.stride(0), width)
    _SPMM_MAX_GRAD[dy.dtype](transposed.native, *rows, dx.data_ptr(), dx.stride(0))
    return dx


def spmm_max_winners(num_cols: int, arg: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """As :func:`spmm_max_grad`, from the winners alone.

    No edges are read, which pays where rows have many (:func:`graphweft.cost.winners_pay`). The order of the sums is
    that of the destinations, for any number of threads.

    Shape: arg (num_rows, f) of int32 or int64, dy (num_rows, f) -> dx (num_cols, f).

    Raises: ShapeError, DtypeError.
    """
    _check_operand("spmm_max_winners", "dy", dy, dy.size(0), _SPMM_MAX_WINNERS)
    if arg.shape != dy.shape or arg.dtype not in (torch.int32, torch.int64):
        expected = f"int32 or int64 of shape {tuple(dy.shape)}"
        raise ShapeError(f"spmm_max_winners: expected arg as {expected}, got {arg.dtype} of shape {tuple(arg.shape)}")
    dy, arg, width = _by_rows(dy), _by_rows(arg), dy.size(1)
    dx = empty((num_cols, width), dy.dtype)
    winners = (arg.data_ptr(), arg.dtype == torch.int64, arg.stride(0))
    rows = (dy.data_ptr(), dy.stride(0), dy.size(0), width)
    _SPMM_MAX_WINNERS[dy.dtype](*winners, *rows, dx.data_ptr(), dx.stride(0), num_cols)
    return dx


def sddmm_dot(adj: Adjacency, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``out[e] = <a[i], b[j]>`` for every edge e = (j -> i), by edge id.

    Shape: a (num_rows, f), b (num_cols, f), float32 or float64 -> (num_edges,).

    Raises: ShapeError, DtypeError.
    """
    _check_operand("sddmm_dot", "a", a, adj.num_rows, _SDDMM)
    _check_operand("sddmm_dot", "b", b, adj.num_cols, _SDDMM)
    if a.size(1) != b.size(1) or a.dtype != b.dtype:
        raise ShapeError(
            f"sddmm_dot: expected a and b of one width and dtype, got {a.size(1)} {a.dtype} and {b.size(1)} {b.dtype}"
        )
    a, b = _by_rows(a), _by_rows(b)
    out = empty((adj.num_edges,), a.dtype)
    left, right = (a.data_ptr(), a.stride(0)), (b.data_ptr(), b.stride(0), a.size(1))
    _SDDMM[a.dtype](adj.native, *left, *right, out.data_ptr())
    return out


def edge_margins(adj: Adjacency, scores: torch.Tensor) -> torch.Tensor:
    """``out[e] = sum over the in-edges k of e's destination of max(0, scores[e] - scores[k])``, by edge id.

    Each row's scores are sorted, so it costs d log d for d edges; no pair is stored. A score that is not a number makes
    all of its row so; an infinite one only itself, and what is above minus infinity is infinite.

    Shape: scores (num_edges, ...) float32 or float64 -> the same.

    Raises: ShapeError, DtypeError.
    """
    scores = _check_scores("edge_margins", adj, scores)
    out = empty(tuple(scores.shape), scores.dtype)
    if scores.numel():
        _MARGINS[scores.dtype](adj.native, scores.data_ptr(), scores.numel() // adj.num_edges, out.data_ptr())
    return out


def edge_margins_grad(adj: Adjacency, scores: torch.Tensor, dout: torch.Tensor, *, closed: bool) -> torch.Tensor:
    """Gradient of :func:`edge_margins`; ``closed``: pairs with equal scores pass it on, as ``clamp`` does at its bound.

    Shape: scores and dout (num_edges, ...) of one dtype -> the same.

    Raises: ShapeError, DtypeError.
    """
    scores = _check_scores("edge_margins_grad", adj, scores)
    if dout.shape != scores.shape or dout.dtype != scores.dtype:
        expected = f"{scores.dtype} of shape {tuple(scores.shape)}"
        raise ShapeError(f"edge_margins_grad: expected dout as {expected}, got {dout.dtype} {tuple(dout.shape)}")
    out, dout = empty(tuple(scores.shape), scores.dtype), dout.contiguous()
    if scores.numel():
        operands = (scores.data_ptr(), dout.data_ptr(), scores.numel() // adj.num_edges, closed)
        _MARGINS_GRAD[scores.dtype](adj.native, *operands, out.data_ptr())
    return out


def _check_scores(who: str, adj: Adjacency, scores: torch.Tensor) -> torch.Tensor:
    """Edge rows that the kernels take, contiguous."""
    if scores.dtype not in _MARGINS:
        raise DtypeError(f"{who}: expected scores of dtype float32, float64, got {scores.dtype}")
    if scores.dim() < 1 or scores.size(0) != adj.num_edges:
        raise ShapeError(f"{who}: expected scores of {adj.num_edges} rows, got shape {tuple(scores.shape)}")
    return scores.contiguous()


def sparse_dropout(
    adj: Adjacency, values: torch.Tensor, *, width: int, transposed: bool, p: float, seed: int, stream: int
) -> torch.Tensor:
    """Dropout of the stored entries of a (nodes, width) matrix: the elements that dense dropout would keep, the same.

    Whether an entry is kept depends on (seed, stream, node, feature) only, so both layouts of a matrix agree. Rows of
    ``adj`` are nodes, or features when ``transposed``.

    Shape: values (num_edges,) float32 by position in ``adj`` -> the same, kept ones times 1 / (1 - p).

    Raises: ShapeError, DtypeError.
    """
    if values.dtype != torch.float32:
        raise DtypeError(f"sparse_dropout: expected values of dtype torch.float32, got {values.dtype}")
    if values.shape != (adj.num_edges,) or not values.is_contiguous():
        raise ShapeError(f"sparse_dropout: expected {adj.num_edges} contiguous values, got {tuple(values.shape)}")
    if not 0.0 <= p <= 1.0:
        raise ShapeError(f"sparse_dropout: expected a probability in [0, 1], got {p}")
    out = empty((adj.num_edges,), torch.float32)
    mask = (1 << 64) - 1
    draws = (width, transposed, p, seed & mask, stream & mask)
    _sparse_dropout(adj.native, values.data_ptr(), *draws, out.data_ptr())
    return out


def _by_rows(x: torch.Tensor) -> torch.Tensor:
    """The matrix with contiguous rows; a copy only if they are not."""
    return x if x.stride(1) == 1 else x.contiguous()


def _check_operand(who: str, name: str, x: torch.Tensor, rows: int, kernels: Mapping[torch.dtype, object]) -> None:
    """``x`` is a matrix of ``rows`` rows whose dtype one of the kernels takes."""
    if x.dtype not in kernels:
        taken = ", ".join(str(dtype).removeprefix("torch.") for dtype in kernels)
        raise DtypeError(f"{who}: expected {name} of dtype {taken}, got {x.dtype}")
    if x.dim() != 2 or x.size(0) != rows:
        raise ShapeError(f"{who}: expected {name} of {rows} rows, got shape {tuple(x.shape)}")


def edge_softmax(adj: Adjacency, x: torch.Tensor, over: bool = False) -> torch.Tensor:
    """The softmax over the entries of each row, per trailing element; ``x`` by edge id. ``over``: it takes x's memory.

    Shape: x (num_edges, ...) float32, contiguous -> the same.

    Raises: ShapeError.
    """
    return _normalised(adj, x, None, over)


def edge_softmax_grad(adj: Adjacency, s: torch.Tensor, g: torch.Tensor, over: bool = False) -> torch.Tensor:
    """The gradient of the operand of :func:`edge_softmax` from its result ``s`` and the gradient ``g`` of that.

    ``over``: it takes the memory of ``g``.

    Shape: s, g (num_edges, ...) float32, contiguous -> the same.

    Raises: ShapeError.
    """
    return _normalised(adj, s, g, over)


def _normalised(adj: Adjacency, x: torch.Tensor, g: torch.Tensor | None, over: bool) -> torch.Tensor:
    if x.size(0) != adj.num_edges or (g is not None and g.shape != x.shape):
        raise ShapeError(f"edge_softmax: expected rows of {adj.num_edges} edges, got {tuple(x.shape)}")
    spent = x if g is None else g
    out = spent.detach() if over else empty(tuple(x.shape), torch.float32)
    heads = x.numel() // max(x.size(0), 1)
    if not x.numel():
        return out
    if g is None:
        _softmax(adj.native, heads, x.data_ptr(), out.data_ptr())
    else:
        _softmax_grad(adj.native, heads, x.data_ptr(), g.data_ptr(), out.data_ptr())
    return out
