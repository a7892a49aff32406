"""Launchers of several products in one call: ``epilogue(A1 W1 + A2 W2 + ...)``, and ``A1^T G, A2^T G, ...``.

Comes in: a :class:`Term` per product, whose left operand is rows as they lie, rows of a table by index, or sums of a
table's rows over edges; a :class:`Left` per contraction. Goes out: new matrices. float32 on the CPU. Called by compiled
programs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from graphweft import _native
from graphweft._errors import DtypeError, ShapeError
from graphweft._memory import empty
from graphweft.runtime import dense
from graphweft.runtime.epilogue import Epilogue
from graphweft.runtime.sparse import Adjacency

_gemm_tn_terms = _native.declare("gw_gemm_tn_terms_f32")
_gemm_tn_terms_rounded = _native.declare("gw_gemm_tn_terms_f32_bf16")
_gemm_terms_split, _gemm_tn_terms_split = (
    _native.declare(f"gw_gemm_{name}_f32_split") for name in ("terms", "tn_terms")
)
_gemm_terms, _gemm_terms_rounded = _native.declare("gw_gemm_terms_f32"), _native.declare("gw_gemm_terms_f32_bf16")

STORED = (torch.float32, torch.bfloat16)  # how rows that a product reads may lie in memory


@dataclass(frozen=True, slots=True)
class Term:
    """``a @ w``, where row i of a is ``x[i]``, with ``rows`` ``x[rows[i]]``, with ``edges`` a sum over row i's columns.

    Attributes:
        x: (n, k), or a table of rows (t, k), float32 or bfloat16; rows are contiguous.
        w: (k, m), with ``transposed`` (m, k).
        rows: (n,) int64.
        edges: An adjacency of n rows and t columns.
        row_scale: (n,): the sums over edges are multiplied by it.
        kept: (n, k) **output**: the scaled sums, float32, or bfloat16 where operands are rounded.
    """

    x: torch.Tensor
    w: torch.Tensor
    transposed: bool = False
    rows: torch.Tensor | None = None
    edges: Adjacency | None = None
    row_scale: torch.Tensor | None = None
    kept: torch.Tensor | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, inner size and columns of the product.

        Raises: ShapeError or DtypeError for what does not fit.
        """
        given = [t for t in (self.w, self.row_scale) if t is not None]
        stored = [t for t in (self.x, self.kept) if t is not None]
        if any(t.dtype not in STORED for t in stored) or any(t.dtype is not torch.float32 for t in given):
            got = ", ".join(str(t.dtype) for t in (*stored, *given))
            raise DtypeError(f"matmul_terms: expected float32, or bfloat16 for x and kept, got {got}")
        table, k = self.x.shape
        n = table if self.rows is None else self.rows.numel()
        if self.edges is not None:
            n = self.edges.num_rows
            if self.rows is not None or self.edges.num_cols != table:
                raise ShapeError(f"matmul_terms: expected edges over {table} rows, got {self.edges.num_cols} columns")
        _check_ids("matmul_terms", self.rows)
        if self.w.dim() != 2 or self.w.shape[self.transposed] != k:
            side = "columns" if self.transposed else "rows"
            raise ShapeError(f"matmul_terms: expected a weight with {k} {side}, got {tuple(self.w.shape)}")
        for name, tensor, shape in (("row_scale", self.row_scale, (n,)), ("kept", self.kept, (n, k))):
            if tensor is not None and (tensor.shape != shape or not tensor.is_contiguous()):
                raise ShapeError(f"matmul_terms: expected {name} of shape {shape}, got {tuple(tensor.shape)}")
        return n, k, self.w.shape[not self.transposed]

    def native(self) -> _native.Term:
        """The structure that the kernel reads. It holds addresses only: this object must outlive the call."""
        x, w, kept = self.x, self.w, self.kept
        is_half = kept is not None and kept.dtype is torch.bfloat16
        return _native.Term(
            x.shape[1],
            x.data_ptr(),
            x.stride(0),
            x.shape[0],
            _native.pointer(self.rows),
            None if self.edges is None else ctypes.pointer(self.edges.native),
            _native.pointer(self.row_scale),
            None if is_half else _native.pointer(kept),
            0 if kept is None else kept.stride(0),
            w.data_ptr(),
            w.stride(0),
            self.transposed,
            x.dtype is torch.bfloat16,
            _native.pointer(kept) if is_half else None,
        )


@dataclass(frozen=True, slots=True)
class Left:
    """The left operand of a contraction: ``x``, or with ``rows`` ``x[rows]``.

    Attributes:
        x: (n, k), or a table of rows (t, k), float32 or bfloat16.
        rows: (n,) int64.
    """

    x: torch.Tensor
    rows: torch.Tensor | None = None


def _check_ids(who: str, rows: torch.Tensor | None) -> None:
    if rows is not None and (rows.dim() != 1 or rows.dtype is not torch.int64 or not rows.is_contiguous()):
        raise ShapeError(f"{who}: expected rows as contiguous int64 ids, got {rows.dtype}, shape {tuple(rows.shape)}")


def _rows(x: torch.Tensor) -> torch.Tensor:
    """The same with contiguous rows that do not overlap."""
    return x if x.stride(1) == 1 and x.stride(0) >= x.shape[1] else x.contiguous()


def _contiguous(term: Term) -> Term:
    """The same over operands whose rows are contiguous; a transposed weight is read as what it is stored as."""
    x, w, transposed = term.x, term.w, term.transposed
    if w.stride(0) == 1 and w.stride(1) >= w.shape[0] > 1:
        w, transposed = w.t(), not transposed
    return replace(
        term,
        x=_rows(x),
        w=_rows(w),
        transposed=transposed,
    )


def matmul_terms(
    terms: Sequence[Term],
    *,
    epilogue: Epilogue | None = None,
    rounds: bool = False,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """``epilogue`` of the sum of the terms' products.

    Sums stay in registers from the first term to the last, and rows that are gathered or summed are put together in the
    core's own cache: no partial result and no gathered copy is stored. Source: Morphling, section 4. ``rounds``: as in
    matmul; sums over edges are rounded after they are scaled, and kept as they are. A result in bfloat16 (``dtype``),
    and sums that are kept so, are of operands that are rounded.

    Shape: n and m are those of every term -> (n, m).
    Raises: ShapeError or DtypeError where a term does not fit; IndexRangeError for a row outside its table.

    Example:
        >>> one, two = Term(torch.ones(2, 3), torch.ones(3, 1)), Term(torch.ones(4, 1), torch.ones(1, 1))
        >>> matmul_terms([one, Term(two.x, two.w, rows=torch.tensor([3, 0]))]).flatten()
        tensor([4., 4.])
    """
    shapes = [term.shape for term in terms]
    n, k, m = shapes[0] if shapes else (0, 0, 0)
    if not shapes or any((other[0], other[2]) != (n, m) for other in shapes):
        raise ShapeError(f"matmul_terms: expected products of one shape, got {[(s[0], s[2]) for s in shapes]}")
    terms = [_contiguous(term) for term in terms]
    stages = None
    if epilogue is not None:
        epilogue.check("matmul_terms", n, m)
        stages = ctypes.byref(epilogue.native())
    y = empty((n, m), dtype)
    table = (_native.Term * len(terms))(*(term.native() for term in terms))
    decides = dense.rounds_beside_half if all(t.x.dtype is torch.bfloat16 for t in terms) else dense.rounds_operands
    stores_half = [t.dtype is torch.bfloat16 for t in (y, *(term.kept for term in terms)) if t is not None]
    if any(stores_half) or (rounds and decides(k, m)):
        _gemm_terms_rounded(n, m, table, len(terms), stages, y.data_ptr(), y.stride(0), stores_half[0])
    else:
        product = _gemm_terms_split if dense.splits_operands(sum(shape[1] for shape in shapes), m) else _gemm_terms
        product(n, m, table, len(terms), stages, y.data_ptr(), y.stride(0))
    return y


def contract_terms(
    lefts: Sequence[Left],
    edges: Adjacency,
    x: torch.Tensor,
    *,
    epilogue: Epilogue | None = None,
    rounds: bool = False,
) -> list[torch.Tensor]:
    """``A.T @ G`` for every left operand A, where row i of G is ``epilogue`` of the sum of ``x[j]`` over i's edges.

    G is made block of rows by block of rows, in the core's own cache, and never stored: with A the input of a layer and
    the sums of its neighbours, these are the gradients of both weights. ``rounds``: as in matmul; rows of G are rounded
    after the epilogue. x, and the epilogue's mask and addend, may be bfloat16.

    Shape: x (edges.num_cols, m), left operands (edges.num_rows, k) -> (k, m) each.
    Raises: ShapeError or DtypeError where an operand does not fit; IndexRangeError for a row outside its table.
    """
    who, n, m = "contract_terms", edges.num_rows, x.shape[1]
    if any(t.dtype not in STORED for t in (x, *(left.x for left in lefts))):
        got = f"{x.dtype} and {[str(left.x.dtype) for left in lefts]}"
        raise DtypeError(f"{who}: expected float32 or bfloat16, got {got}")
    if x.shape[0] != edges.num_cols:
        raise ShapeError(f"{who}: expected {edges.num_cols} rows, one per column, got {x.shape[0]}")
    stages = None
    if epilogue is not None:
        epilogue.check(who, n, m, half_stages=True)
        stages = ctypes.byref(epilogue.native())
    table = (_native.Left * len(lefts))()
    made, read = [], [_rows(x)]
    for place, left in enumerate(lefts):
        _check_ids(who, left.rows)
        count = left.x.shape[0] if left.rows is None else left.rows.numel()
        if count != n:
            raise ShapeError(f"{who}: expected left operands of {n} rows, got {count}")
        rows, dw = _rows(left.x), empty((left.x.shape[1], m), torch.float32)
        ids, target = _native.pointer(left.rows), (dw.data_ptr(), dw.stride(0))
        half = rows.dtype is torch.bfloat16
        table[place] = _native.Left(rows.shape[1], rows.data_ptr(), rows.stride(0), rows.shape[0], ids, *target, half)
        made.append(dw)
        read.append(rows)
    decides = dense.rounds_beside_half if all(t.dtype is torch.bfloat16 for t in read[1:]) else dense.rounds_operands
    rounded = rounds and all(decides(left.x.shape[1], m) for left in lefts)
    source = read[0] if rounded or read[0].dtype is torch.float32 else read[0].float()
    operands = (m, table, len(lefts), edges.native, source.data_ptr(), source.stride(0))
    if rounded:
        _gemm_tn_terms_rounded(*operands, source.dtype is torch.bfloat16, stages)
    else:
        splits = dense.splits_operands(sum(rows.shape[1] for rows in read[1:]), m)
        splits = splits and all(rows.dtype is torch.float32 for rows in read[1:])
        (_gemm_tn_terms_split if splits else _gemm_tn_terms)(*operands, stages)
    return made
