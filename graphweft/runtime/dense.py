"""Launchers of the dense kernels: torch tensors in, torch tensors out.

Comes in: matrices whose rows are contiguous (others are copied), an optional :class:`Epilogue`. Goes out: new tensors
from the buffer pool, or ``out``. Called by compiled programs. float32 on the CPU runs the native kernels, whose results
do not depend on the number of threads; other dtypes and devices run the same meaning in torch.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import replace

import torch

from graphweft import _native
from graphweft._errors import DtypeError, ShapeError
from graphweft._memory import empty
from graphweft._pieces import total
from graphweft.runtime.epilogue import Epilogue

_gemm_nn, _gemm_nn_rounded = _native.declare("gw_gemm_nn_f32"), _native.declare("gw_gemm_nn_f32_bf16")
_gemm_tn, _gemm_tn_rounded = _native.declare("gw_gemm_tn_f32"), _native.declare("gw_gemm_tn_f32_bf16")
_gemm_tn_half, _gemm_tn_half_rounded = map(_native.declare, ("gw_gemm_tn_half_f32", "gw_gemm_tn_half_f32_bf16"))
_gemm_nn_split, _gemm_tn_split = _native.declare("gw_gemm_nn_f32_split"), _native.declare("gw_gemm_tn_f32_split")
_half_unit = _native.declare("gw_half_unit")
_rows_apply, _rows_apply_half = _native.declare("gw_rows_apply_f32"), _native.declare("gw_rows_apply_half_f32")
_col_sum = _native.declare("gw_col_sum_f32")
_dot = _native.declare("gw_dot_f32")
_dropout = _native.declare("gw_dropout_f32")
_cross_entropy = _native.declare("gw_cross_entropy_f32")

# Columns of both operands from which a product of rounded operands is faster: every number that is read and rounded
# takes part in as many products as the narrower operand has columns.
_ROUNDED_FROM = 40
_HALF_FROM = 16  # the same where the left operand is not rounded, as it lies in bfloat16
_SPLIT_FROM = 128  # columns of both operands from which floats that are split are multiplied faster
_TILES = 2
_HALVES = ({torch.bfloat16, torch.float32}, {torch.bfloat16})


def _is_native(x: torch.Tensor, w: torch.Tensor) -> bool:
    """Whether both are float32 on the CPU."""
    return x.dtype is torch.float32 and w.dtype is torch.float32 and x.is_cpu and w.is_cpu


def _rows(who: str, x: torch.Tensor) -> torch.Tensor:
    """``x`` as a matrix whose rows are contiguous and do not overlap."""
    if x.dim() != 2:
        raise ShapeError(f"{who}: expected a matrix, got shape {tuple(x.shape)}")
    if x.is_contiguous():
        return x
    rows, width = x.shape
    return x if (x.stride(1) == 1 or width <= 1) and (x.stride(0) >= width or rows <= 1) else x.contiguous()


def _output(who: str, out: torch.Tensor | None, rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """``out``, checked, or a new matrix."""
    if out is None:
        return empty((rows, width), dtype)
    if out.shape != (rows, width) or out.dtype != dtype or _rows(who, out) is not out:
        got = f"{out.dtype}, shape {tuple(out.shape)}, strides {out.stride()}"
        raise ShapeError(f"{who}: expected out of {dtype}, shape {(rows, width)} with contiguous rows, got {got}")
    return out


def _finish(t: torch.Tensor, epilogue: Epilogue | None, out: torch.Tensor | None) -> torch.Tensor:
    """The epilogue in torch, with its column sums, stored where it was asked for."""
    if epilogue is not None:
        if epilogue.col_sum is not None:
            epilogue.col_sum.copy_(replace(epilogue, post_scale=None).reference(t).sum(0))
        t = epilogue.reference(t)
    return t if out is None else out.copy_(t)


def matmul(
    x: torch.Tensor,
    w: torch.Tensor,
    *,
    transposed: bool = False,
    epilogue: Epilogue | None = None,
    out: torch.Tensor | None = None,
    rows: torch.Tensor | None = None,
    rounds: bool = False,
) -> torch.Tensor:
    """``epilogue(x @ w)``, or ``epilogue(x @ w.T)`` when ``transposed``.

    With ``rows`` the product is that of ``x[rows]``, whose rows are read where they lie. Source: Joestar, section 5.3
    (gather-GEMM fusion). ``rounds``: float32 operands are rounded to bfloat16 where :func:`rounds_operands` says so.

    Shape: x (n, k), w (k, m) or transposed (m, k) -> (n, m); with rows (r,) int64 -> (r, m). ``out`` may be the
    epilogue's addend, not x.
    Raises: ShapeError where sizes do not fit; IndexRangeError for a row outside x.

    Example:
        >>> matmul(torch.ones(2, 3), torch.ones(3, 2), epilogue=Epilogue(bias=torch.tensor([0.0, 1.0])))
        tensor([[3., 4.],
                [3., 4.]])
    """
    x = _rows("matmul", x)
    n, k = x.shape
    if w.dim() != 2 or w.shape[transposed] != k:
        side = "columns" if transposed else "rows"
        raise ShapeError(f"matmul: expected a weight with {k} {side}, got {tuple(w.shape)}")
    m = w.shape[not transposed]
    n = _check_rows("matmul", rows, n)
    if not _is_native(x, w):
        if x.dtype != w.dtype:
            raise DtypeError(f"matmul: expected operands of one dtype, got {x.dtype} and {w.dtype}")
        x = x if rows is None else x[rows]
        return _finish(x @ (w.t() if transposed else w), epilogue, out)
    if w.stride(0) == 1 and w.stride(1) >= w.shape[0] > 1:  # a transposed view: read it as what it is stored as
        w, transposed = w.t(), not transposed
    w = _rows("matmul", w)
    y = _output("matmul", out, n, m, torch.float32)
    stages = None
    if epilogue is not None:
        epilogue.check("matmul", n, m)
        stages = ctypes.byref(epilogue.native())
    left, right = (x.data_ptr(), x.stride(0)), (w.data_ptr(), w.stride(0), transposed)
    if rounds and rounds_operands(k, m):
        product = _gemm_nn_rounded
    else:
        product = _gemm_nn_split if splits_operands(k, m) else _gemm_nn
    product(n, k, m, *left, *right, stages, y.data_ptr(), y.stride(0), _native.pointer(rows), x.shape[0])
    return y


def rounds_operands(k: int, m: int) -> bool:
    """Whether a float32 product of k columns by m columns that may round its operands does so.

    It depends on the processor and on widths alone: batches of all sizes run the same kernel. Without matrix tiles
    products of float32 were faster wherever it was measured.
    """
    return half_unit() == _TILES and min(k, m) >= _ROUNDED_FROM


def rounds_beside_half(k: int, m: int) -> bool:
    """As :func:`rounds_operands`, where the left operand lies in bfloat16 and only the right one is rounded."""
    return rounds_operands(k, m) or (half_unit() == _TILES and min(k, m) >= _HALF_FROM)


def splits_operands(k: int, m: int) -> bool:
    """Whether a float32 product of k columns by m columns is made by matrix tiles, of operands that are split.

    A float32 is the sum of three bfloat16 numbers, and six of the nine products of such parts make a product that is no
    further from the exact one than that of float32. It is another sum, with other last bits, so it is asked for as in
    torch: by ``torch.set_float32_matmul_precision("high")``. Then, as for :func:`rounds_operands`, widths decide.
    """
    return min(k, m) >= _SPLIT_FROM and _may_split() and _native.has_tiles()


def _may_split() -> bool:
    """Whether torch was told that products of float32 may be made of shorter numbers."""
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # torch does not answer for the older setting once the newer ones say something else
        newer: str = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
        return newer not in ("ieee", "none")


@functools.cache
def half_unit() -> int:
    """What this processor multiplies bfloat16 numbers with: 2 matrix tiles, 1 dot products of pairs, 0 neither."""
    used = ctypes.c_int32()
    _half_unit(2, ctypes.byref(used))
    return used.value


def _check_rows(who: str, rows: torch.Tensor | None, count: int) -> int:
    """How many rows of a table of ``count`` are read."""
    if rows is None:
        return count
    if rows.dim() != 1 or rows.dtype != torch.int64 or not rows.is_contiguous():
        raise ShapeError(f"{who}: expected rows as contiguous int64 ids, got {rows.dtype}, shape {tuple(rows.shape)}")
    return rows.numel()


def matmul_tn(
    x: torch.Tensor,
    g: torch.Tensor,
    *,
    row_scale: torch.Tensor | None = None,
    col_sum: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    rows: torch.Tensor | None = None,
    rounds: bool = False,
) -> torch.Tensor:
    """``x.T @ (row_scale[:, None] * g)``, the gradient of a weight; with ``rows`` that of ``x[rows]``, as in matmul.

    ``col_sum`` (m,), if given, receives the column sums of ``g`` itself (not scaled), the gradient of a bias.
    ``rounds``: as in matmul; ``g`` is rounded after it is scaled. Without ``row_scale`` each may be bfloat16.

    Shape: x (n, k), g (n, m), row_scale (n,) -> (k, m).
    Raises: ShapeError where sizes do not fit.

    Example:
        >>> matmul_tn(torch.ones(4, 1), torch.ones(4, 2))
        tensor([[4., 4.]])
    """
    x, g = _rows("matmul_tn", x), _rows("matmul_tn", g)
    k, m = x.shape[1], g.shape[1]
    n = _check_rows("matmul_tn", rows, x.shape[0])
    if g.shape[0] != n:
        raise ShapeError(f"matmul_tn: expected {n} rows of g, one per row of x, got {g.shape[0]}")
    Epilogue(row_scale=row_scale, col_sum=col_sum).check("matmul_tn", n, m)
    if {x.dtype, g.dtype} in _HALVES and row_scale is None and x.is_cpu:
        dw = _output("matmul_tn", out, k, m, torch.float32)
        return _contract_half(x, g, dw, col_sum, rows, rounds)
    if not _is_native(x, g):
        if x.dtype != g.dtype:
            raise DtypeError(f"matmul_tn: expected operands of one dtype, got {x.dtype} and {g.dtype}")
        if col_sum is not None:
            col_sum.copy_(g.sum(0))
        x = x if rows is None else x[rows]
        scaled = g if row_scale is None else g * row_scale.to(g.dtype)[:, None]
        return _finish(x.t() @ scaled, None, out)
    dw = _output("matmul_tn", out, k, m, torch.float32)
    if rounds and rounds_operands(k, m):
        product = _gemm_tn_rounded
    else:
        product = _gemm_tn_split if splits_operands(k, m) else _gemm_tn
    product(
        n,
        k,
        m,
        x.data_ptr(),
        x.stride(0),
        g.data_ptr(),
        g.stride(0),
        _native.pointer(row_scale),
        dw.data_ptr(),
        dw.stride(0),
        _native.pointer(col_sum),
        _native.pointer(rows),
        x.shape[0],
    )
    return dw


def _contract_half(
    x: torch.Tensor,
    g: torch.Tensor,
    dw: torch.Tensor,
    col_sum: torch.Tensor | None,
    rows: torch.Tensor | None,
    rounds: bool,
) -> torch.Tensor:
    """:func:`matmul_tn` where x, g or both lie in bfloat16."""
    (k, m), half_x = dw.shape, x.dtype is torch.bfloat16
    sums, ids = _native.pointer(col_sum), _native.pointer(rows)
    target = (dw.data_ptr(), dw.stride(0), sums, ids, x.shape[0])
    if rounds and (rounds_beside_half if half_x else rounds_operands)(k, m):
        left, right = (x.data_ptr(), x.stride(0), half_x), (g.data_ptr(), g.stride(0), g.dtype is torch.bfloat16)
        _gemm_tn_half_rounded(g.shape[0], k, m, *left, *right, *target)
        return dw
    wide = g.float()
    if not half_x:
        return matmul_tn(x, wide, col_sum=col_sum, out=dw, rows=rows)
    _gemm_tn_half(wide.shape[0], k, m, x.data_ptr(), x.stride(0), wide.data_ptr(), wide.stride(0), *target)
    return dw


def rows_apply(
    x: torch.Tensor, epilogue: Epilogue, *, out: torch.Tensor | None = None, rows: torch.Tensor | None = None
) -> torch.Tensor:
    """``epilogue(x)`` without a product; ``out`` may be ``x``; with ``rows`` that of ``x[rows]``, as in matmul.

    Shape: x (n, f) -> (n, f), float32 for rows in bfloat16.
    Raises: ShapeError where a stage does not fit.

    Example:
        >>> rows_apply(torch.tensor([[-1.0, 2.0]]), Epilogue(relu=True))
        tensor([[0., 2.]])
    """
    source = _rows("rows_apply", x)
    n, f = _check_rows("rows_apply", rows, source.shape[0]), source.shape[1]
    is_half = source.dtype is torch.bfloat16 and source.is_cpu
    if not is_half and not _is_native(source, source):
        return _finish(source if rows is None else source[rows], epilogue, out)
    epilogue.check("rows_apply", n, f)
    y = _output("rows_apply", out, n, f, torch.float32)
    stages = ctypes.byref(epilogue.native())
    table = (_native.pointer(rows), source.shape[0])
    apply = _rows_apply_half if is_half else _rows_apply
    apply(n, f, source.data_ptr(), source.stride(0), stages, y.data_ptr(), y.stride(0), *table)
    return y


def col_sum(x: torch.Tensor) -> torch.Tensor:
    """Column sums, the same bits for any number of threads.

    Shape: x (n, f) -> (f,).

    Example:
        >>> col_sum(torch.ones(5, 2))
        tensor([5., 5.])
    """
    x = _rows("col_sum", x)
    if not _is_native(x, x):
        return x.sum(0)
    n, f = x.shape
    total = torch.empty(f, dtype=torch.float32)
    _col_sum(n, f, x.data_ptr(), x.stride(0), total.data_ptr())
    return total


def dot(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The sum of all products of elements, the same bits for any number of threads; no product is stored.

    Shape: x, y of one shape -> ().
    Raises: ShapeError for two shapes.

    Example:
        >>> dot(torch.ones(5, 2), torch.full((5, 2), 3.0))
        tensor(30.)
    """
    if x.shape != y.shape:
        raise ShapeError(f"dot: expected operands of one shape, got {tuple(x.shape)} and {tuple(y.shape)}")
    if not _is_native(x, y):
        return total(x * y)
    x, y = x.contiguous(), y.contiguous()
    out = torch.empty((), dtype=torch.float32)
    _dot(x.numel(), x.data_ptr(), y.data_ptr(), out.data_ptr())
    return out


def dropout(
    x: torch.Tensor,
    p: float,
    seed: int,
    stream: int,
    *,
    out: torch.Tensor | None = None,
    rows: torch.Tensor | None = None,
) -> torch.Tensor:
    """``x / (1 - p)`` where an element is kept, 0 where it is dropped, which happens with probability ``p``.

    A pure function of (seed, stream, position in x), so applying it to the gradient is its backward and nothing is
    saved. Decisions draw 16 bits: p is resolved to 1 / 65536. ``out`` may be ``x``. With ``rows`` it is the dropout of
    ``x[rows]``, as in matmul.

    Shape: x (n, f) -> (n, f).
    Raises: ShapeError where p is no probability.

    Example:
        >>> dropout(torch.ones(1, 2), 0.0, seed=0, stream=0)
        tensor([[1., 1.]])
    """
    source = _rows("dropout", x)
    if not 0.0 <= p <= 1.0:
        raise ShapeError(f"dropout: expected a probability in [0, 1], got {p}")
    n, f = _check_rows("dropout", rows, source.shape[0]), source.shape[1]
    if not _is_native(source, source):
        source = source if rows is None else source[rows]
        kept = dropout(torch.ones(source.shape, dtype=torch.float32), p, seed, stream)
        return _finish(
            torch.where(kept.to(x.device) > 0, source * (1.0 / (1.0 - p) if p < 1.0 else 0.0), 0.0), None, out
        )
    y = _output("dropout", out, n, f, torch.float32)
    mask = (1 << 64) - 1
    given, table = (source.data_ptr(), source.stride(0)), (_native.pointer(rows), source.shape[0])
    _dropout(n, f, *given, p, seed & mask, stream & mask, y.data_ptr(), y.stride(0), *table)
    return y


def cross_entropy(
    logits: torch.Tensor, y: torch.Tensor, rows: torch.Tensor | None = None, want_grad: bool = True
) -> tuple[torch.Tensor, int, torch.Tensor | None]:
    """Mean softmax cross entropy over ``rows``, how many of them are predicted right, and the gradient by the logits.

    A row listed twice counts twice; the gradient is zero in rows that are not listed. Predicted right: the label is the
    first column that holds the row's maximum.

    Shape: logits (n, c), y (n,) int64, rows (r,) int64 or None for all -> loss () of the logits' dtype, int, and (n, c)
    or None.
    Raises: IndexRangeError for a label of a listed row outside [0, c) or a row outside [0, n); ShapeError for no rows.

    Example:
        >>> loss, correct, grad = cross_entropy(torch.zeros(2, 4), torch.tensor([0, -1]), torch.tensor([0]))
        >>> round(loss.item(), 4), correct, grad.tolist()
        (1.3863, 1, [[-0.75, 0.25, 0.25, 0.25], [0.0, 0.0, 0.0, 0.0]])
    """
    logits = _rows("cross_entropy", logits)
    n, c = logits.shape
    if y.shape != (n,) or y.dtype != torch.int64:
        raise ShapeError(f"cross_entropy: expected {n} int64 labels, got {y.dtype} of shape {tuple(y.shape)}")
    if rows is not None and (rows.dim() != 1 or rows.dtype != torch.int64):
        raise ShapeError(f"cross_entropy: expected int64 rows, got {rows.dtype} of shape {tuple(rows.shape)}")
    count = n if rows is None else rows.shape[0]
    if count == 0 or c == 0:
        raise ShapeError(f"cross_entropy: expected at least one row and one class, got {count} rows, {c} classes")
    if not _is_native(logits, logits):
        return _torch_cross_entropy(logits, y, rows, want_grad)
    cells, grad = cross_entropy_cells(logits, y, rows, want_grad)
    return torch.tensor(cells.mean, dtype=torch.float32), cells.correct.value, grad


class LossCells:
    """Where the kernel leaves the sum of the losses and the number of rows predicted right."""

    def __init__(self, count: int) -> None:
        self.total, self.correct = ctypes.c_double(), ctypes.c_int64()
        self._count = count

    @property
    def mean(self) -> float:
        """Mean loss of a row."""
        return self.total.value / self._count


def cross_entropy_cells(
    logits: torch.Tensor,
    y: torch.Tensor,
    rows: torch.Tensor | None,
    want_grad: bool,
    over: bool = False,
    share: float = 1.0,
) -> tuple[LossCells, torch.Tensor | None]:
    """The kernel of :func:`cross_entropy` for what that has checked: contiguous float32 logits, int64 labels.

    ``over``: the gradient is written over the logits. ``share``: by which it is multiplied.
    """
    n, c = logits.shape
    y = y.contiguous()
    listed = None if rows is None else rows.contiguous()
    count = n if listed is None else listed.shape[0]
    grad = logits if over else empty((n, c), torch.float32) if want_grad else None
    cells = LossCells(count)
    _cross_entropy(
        n,
        c,
        logits.data_ptr(),
        logits.stride(0),
        _native.pointer(listed),
        count,
        y.data_ptr(),
        share / count,
        _native.pointer(grad),
        c if grad is None else grad.stride(0),
        ctypes.byref(cells.total),
        ctypes.byref(cells.correct),
    )
    return cells, grad


def _torch_cross_entropy(
    logits: torch.Tensor, y: torch.Tensor, rows: torch.Tensor | None, want_grad: bool
) -> tuple[torch.Tensor, int, torch.Tensor | None]:
    """The same in torch, for other dtypes and devices."""
    with torch.enable_grad():
        leaf = logits.detach().requires_grad_(want_grad)
        picked, labels = (leaf, y) if rows is None else (leaf[rows], y[rows])
        loss = torch.nn.functional.cross_entropy(picked, labels)
        grad = torch.autograd.grad(loss, leaf)[0] if want_grad else None
    correct = int((picked.detach().argmax(1) == labels).sum())
    return loss.detach(), correct, grad
