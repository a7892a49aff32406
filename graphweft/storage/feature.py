"""Sparse node features in compressed rows; never made dense unless asked.

Comes in: offsets, columns and values, a SciPy matrix or a dense tensor. Goes out: :class:`SparseFeatures`, an immutable
matrix in canonical form, and the exact sparsity of a dense matrix. Called by readers and layers. Torch's functions on
such a matrix are in ``runtime/torch_functions.py``, next to the kernels that they run on.
"""

from __future__ import annotations

import copy
import ctypes
import importlib
import sys
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Self, TypeGuard

import numpy as np
import scipy.sparse as sp
import torch

from graphweft._errors import DtypeError, GraphError, ShapeError
from graphweft._memory import empty
from graphweft._native import declare
from graphweft._torch_private import parse_to, wrapper_subclass
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.ids import Ids, as_count, as_ids, borrow, index_dtype, is_wide, to_array
from graphweft.graph.select import as_selection
from graphweft.storage.int8_features import Int8Features

_count_nonzero = declare("gw_dense_count_nonzero")
_from_dense = declare("gw_csr_from_dense")
_to_dense = declare("gw_csr_to_dense")
_require_finite = declare("gw_require_finite")
_merge_equal = declare("gw_csr_merge_equal")
_normalize_rows = declare("gw_csr_normalize_rows")

_WHO = "SparseFeatures"
_FUNCTIONS = "graphweft.runtime.torch_functions"  # by name: the kernels are in a room above this one
_ITERATED = 1 << 10  # rows that iteration makes dense at a time
_COUNTED = 1 << 12  # rows whose zeros are counted at a time: counts that small map no memory of the pool
_DTYPES = (torch.float32, torch.float64)


def _is_double(values: torch.Tensor) -> int:
    return int(values.dtype == torch.float64)


def _matrix(who: str, x: Any) -> torch.Tensor:
    """``x`` as a dense float32 or float64 matrix with contiguous rows."""
    tensor = x.detach() if isinstance(x, torch.Tensor) else borrow(to_array(who, "x", x))
    if tensor.layout != torch.strided:
        raise DtypeError(f"{who}: expected a dense matrix, got {tensor.layout}")
    if tensor.dim() != 2:
        raise ShapeError(f"{who}: expected a matrix, got shape {tuple(tensor.shape)}")
    if tensor.is_complex():
        raise DtypeError(f"{who}: expected real numbers, got {tensor.dtype}")
    tensor = (tensor if tensor.dtype in _DTYPES else tensor.float()).cpu()
    in_rows = tensor.shape[1] <= 1 or tensor.stride(1) == 1
    return tensor if in_rows and _row_stride(tensor) >= tensor.shape[1] else tensor.contiguous()


def _row_stride(x: torch.Tensor) -> int:
    """Elements between rows; torch leaves it open where there is at most one."""
    return x.stride(0) if x.shape[0] > 1 else x.shape[1]


def _row_counts(x: torch.Tensor) -> torch.Tensor:
    counts = empty((x.shape[0],), torch.int64)
    _count_nonzero(_is_double(x), *x.shape, _row_stride(x), x.data_ptr(), counts.data_ptr())
    return counts


def sparsity(x: Any) -> float:
    """Share of zeros: 1 - nnz / (N F), exact, in one pass over ``x`` without temporaries of its size.

    Shape: x (N, F) dense, or SparseFeatures. A matrix without elements has sparsity 0.
    Raises: ShapeError, DtypeError for anything but a real matrix.

    Example:
        >>> sparsity(torch.tensor([[0.0, 1.0], [0.0, 0.0]]))
        0.75
    """
    if isinstance(x, SparseFeatures | Int8Features):
        return x.sparsity
    matrix = _matrix("sparsity", x)
    starts = range(0, matrix.shape[0], _COUNTED)
    nonzero = sum(int(_row_counts(matrix[first : first + _COUNTED]).sum()) for first in starts)
    return _zero_share(nonzero, *matrix.shape)


def _zero_share(nnz: int, rows: int, width: int) -> float:
    size = rows * width
    return (size - nnz) / size if size else 0.0


def _as_values(values: Any, dtype: torch.dtype) -> torch.Tensor:
    """A contiguous vector of finite ``dtype`` numbers."""
    tensor = values.detach() if isinstance(values, torch.Tensor) else None
    if tensor is None:
        array = to_array(_WHO, "values", values)
        if array.dtype.kind not in "fiub":
            raise DtypeError(f"{_WHO}: expected values of real numbers, got {array.dtype}")
        native = array.dtype.newbyteorder("=")
        unsigned = array.dtype.kind == "u" and array.dtype.itemsize > 1
        tensor = borrow(array.astype(np.float64 if unsigned or array.dtype.itemsize > 8 else native, copy=False))
    if tensor.layout != torch.strided or tensor.is_complex():
        raise DtypeError(f"{_WHO}: expected values as a vector of real numbers, got {tensor.layout}, {tensor.dtype}")
    if tensor.dim() != 1:
        raise ShapeError(f"{_WHO}: expected values with 1 dimension, got shape {tuple(tensor.shape)}")
    tensor = tensor.cpu().to(dtype).contiguous() if tensor.numel() else torch.empty(0, dtype=dtype)  # of stride 1
    try:
        _require_finite(_is_double(tensor), tensor.numel(), tensor.data_ptr())
    except ShapeError as failure:
        raise GraphError(f"{_WHO}: {failure}") from None
    return tensor


def _canonical(structure: Adjacency, values: torch.Tensor) -> tuple[Adjacency, torch.Tensor]:
    """Columns strictly ascending in every row, no stored zero; the same arrays if that holds already."""
    if not structure.columns_ascend():
        structure, values = structure.transpose_values(values)
        structure, values = structure.transpose_values(values)
    indptr = empty((structure.num_rows + 1,), torch.int64)
    indptr[0] = 0
    counts = indptr[1:]
    source = (ctypes.byref(structure.native), _is_double(values), values.data_ptr())
    _merge_equal(*source, counts.data_ptr(), None, None)
    counts.cumsum_(0)
    nnz = int(indptr[-1])
    if nnz == values.numel():
        return structure, values
    indices, merged = empty((nnz,), structure.indices.dtype), empty((nnz,), values.dtype)
    if nnz > 0:
        _merge_equal(*source, indptr.data_ptr(), indices.data_ptr(), merged.data_ptr())
    return Adjacency(indptr, indices, None, structure.num_cols), merged


class SparseFeatures(torch.Tensor):
    """Sparse node features in compressed rows: for each p of row i, column ``indices[p]`` has ``values[p]``.

    The form is canonical: columns ascend inside a row, duplicate entries are added up (as in SciPy), and zeros are not
    stored. Canonical arrays of fitting types are kept, not copied; do not change them.

    The object is a tensor to torch. Products, dropout, selections, sums and functions that map zero to zero run on the
    stored values, with gradients for weights. A function that needs dense rows gets them with a
    :class:`DenseFeaturesWarning`.

    Args:
        indptr: Offsets, shape (N + 1,).
        indices: Columns, shape (nnz,).
        values: Finite numbers, shape (nnz,); None: ones.
        shape: (N, F).
        dtype: float32 (default) or float64.

    Raises: GraphError, IndexRangeError, ShapeError, DtypeError with the first fault and its position.

    Example:
        >>> x = SparseFeatures([0, 2, 2], [2, 0], [1.0, 3.0], (2, 4))
        >>> x.to_dense().tolist(), x.sparsity
        ([[3.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]], 0.75)
        >>> (x @ torch.eye(4)).tolist(), x[0:1].sum(1).tolist()
        ([[3.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]], [4.0])
    """

    _adjacency: Adjacency
    _numbers: torch.Tensor

    def __new__(
        cls, indptr: Ids, indices: Ids, values: Any, shape: tuple[int, int], *, dtype: torch.dtype = torch.float32
    ) -> Self:
        """Checked features."""
        if dtype not in _DTYPES:
            raise DtypeError(f"{_WHO}: expected float32 or float64, got {dtype}")
        rows, width = _shape(shape)
        offsets, columns = as_ids(_WHO, "indptr", indptr).long(), as_ids(_WHO, "indices", indices)
        if offsets.numel() != rows + 1:
            raise ShapeError(f"{_WHO}: expected {rows + 1} offsets for {rows} rows, got {offsets.numel()}")
        numbers = _as_values(torch.ones(columns.numel()) if values is None else values, dtype)
        if numbers.numel() != columns.numel():
            raise ShapeError(f"{_WHO}: expected one value per index, {columns.numel()}, got {numbers.numel()}")
        structure = Adjacency(offsets, columns, None, width)
        structure.check(_WHO)
        return cls._over(*_canonical(structure.fitted(), numbers))

    @classmethod
    def _over(cls, adjacency: Adjacency, values: torch.Tensor) -> Self:
        """Features over parts that are known to be canonical."""
        size = (adjacency.num_rows, adjacency.num_cols)
        features: Self = wrapper_subclass(cls, size, dtype=values.dtype)
        features._adjacency, features._numbers = adjacency, values
        return features

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """A function of torch on sparse features."""
        return _functions().call(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """An operation that torch's own code calls on sparse features."""
        return _functions().dispatch(func, args, kwargs or {})

    @classmethod
    def from_dense(cls, x: Any) -> SparseFeatures:
        """The nonzero elements of a dense matrix (N, F). float64 stays float64, all other dtypes become float32.

        Raises: GraphError for values that are not finite; ShapeError, DtypeError for anything but a real matrix.
        """
        matrix = _matrix("SparseFeatures.from_dense", x)
        rows, width = matrix.shape
        indptr = empty((rows + 1,), torch.int64)
        indptr[0] = 0
        torch.cumsum(_row_counts(matrix), 0, out=indptr[1:])
        nnz = int(indptr[-1])
        indices, values = empty((nnz,), index_dtype(rows, width, nnz, False)), empty((nnz,), matrix.dtype)
        source = (_is_double(matrix), rows, width, _row_stride(matrix), matrix.data_ptr(), indptr.data_ptr())
        _from_dense(*source, is_wide(indices), indices.data_ptr(), values.data_ptr())
        return cls._over(Adjacency(indptr, indices, None, width), _as_values(values, matrix.dtype))

    @classmethod
    def from_scipy(cls, matrix: Any, *, dtype: torch.dtype = torch.float32) -> SparseFeatures:
        """A SciPy sparse matrix or array of any format; its arrays are copied."""
        is_sparse = sp.issparse(matrix)
        if not is_sparse:
            raise DtypeError(f"SparseFeatures.from_scipy: expected a SciPy sparse matrix, got {type(matrix).__name__}")
        rows = sp.csr_array(matrix, copy=True)  # the caller may write to the matrix later
        return cls(rows.indptr, rows.indices, rows.data, rows.shape, dtype=dtype)

    @classmethod
    def from_torch(cls, matrix: torch.Tensor) -> SparseFeatures:
        """A copy of a sparse matrix of torch in any layout.

        Raises: DtypeError for a dense tensor, or for one that requires a gradient.
        """
        if matrix.layout == torch.strided or matrix.requires_grad:
            got = "one that requires a gradient" if matrix.requires_grad else f"a {matrix.layout} one"
            raise DtypeError(f"SparseFeatures.from_torch: expected a sparse matrix without gradient, got {got}")
        rows_and_columns = int(matrix.shape[0]), int(matrix.shape[1])
        size, dtype = rows_and_columns, torch.float64 if matrix.dtype == torch.float64 else torch.float32
        if matrix.layout == torch.sparse_coo:
            rows = matrix.coalesce()
            return cls.from_scipy(
                sp.coo_array((rows.values().numpy(), tuple(rows.indices().numpy())), size), dtype=dtype
            )
        is_csr = matrix.layout == torch.sparse_csr
        offsets = matrix.crow_indices() if is_csr else matrix.ccol_indices()
        within = matrix.col_indices() if is_csr else matrix.row_indices()
        parts = (matrix.values().numpy(), within.numpy(), offsets.numpy())
        return cls.from_scipy((sp.csr_array if is_csr else sp.csc_array)(parts, size), dtype=dtype)

    @property
    def indptr(self) -> torch.Tensor:
        """Offsets of the rows, int64 (N + 1,)."""
        return self._adjacency.indptr

    @property
    def indices(self) -> torch.Tensor:  # type: ignore[override]
        """Columns, int32 (int64 if they do not fit), (nnz,)."""
        return self._adjacency.indices

    @property
    def values(self) -> torch.Tensor:  # type: ignore[override]
        """Values in the order of ``indices``."""
        return self._numbers

    @property
    def adjacency(self) -> Adjacency:
        """The structure: rows are nodes, columns features."""
        return self._adjacency

    @property
    def shape(self) -> tuple[int, int]:  # type: ignore[override]
        """(N, F)."""
        size = torch.Size((self._adjacency.num_rows, self._adjacency.num_cols))
        return size  # type: ignore[return-value]  # a tuple of two

    @property
    def num_rows(self) -> int:
        """N."""
        return self._adjacency.num_rows

    @property
    def width(self) -> int:
        """F."""
        return self._adjacency.num_cols

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        """Type of the values."""
        return self._numbers.dtype

    @property
    def layout(self) -> torch.layout:  # type: ignore[override]
        """``torch.sparse_csr``."""
        return torch.sparse_csr

    @property
    def is_sparse_csr(self) -> bool:  # type: ignore[override]
        """True. ``is_sparse``, which is for coordinates, is False."""
        return True

    @property
    def requires_grad(self) -> bool:
        """False: sparse features receive no gradient."""
        return False

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    @property
    def nnz(self) -> int:
        """Number of non-zero values."""
        return self._numbers.numel()

    @property
    def sparsity(self) -> float:
        """1 - nnz / (N F); 0 for a matrix without elements."""
        return _zero_share(self.nnz, self.num_rows, self.width)

    @cached_property
    def transposed(self) -> tuple[Adjacency, torch.Tensor]:
        """The transposed structure (rows are features, columns nodes) with the values in its order; computed once."""
        return self._adjacency.transpose_values(self._numbers)

    @cached_property
    def beside(self) -> dict[Any, Any]:
        """Values that other modules keep with the features, such as arrays on a device."""
        return {}

    def t(self) -> SparseFeatures:
        """The transposed matrix, (F, N); shares :attr:`transposed`."""
        turned = self._over(*self.transposed)
        turned.__dict__["transposed"] = (self._adjacency, self._numbers)
        return turned

    def alias(self) -> SparseFeatures:
        """The same features in the same memory, without any kept values."""
        return self._over(self._adjacency, self._numbers)

    def to_dense(self) -> torch.Tensor:  # type: ignore[override]
        """A new dense matrix (N, F)."""
        out = empty(tuple(self.shape), self.dtype).zero_()
        source = (ctypes.byref(self._adjacency.native), _is_double(self._numbers), self._numbers.data_ptr())
        _to_dense(*source, self.width, out.data_ptr())
        return out

    @cached_property
    def dense(self) -> torch.Tensor:
        """:meth:`to_dense`, computed once and kept as long as the features: the same tensor at every call."""
        return self.to_dense()

    def to_scipy(self) -> sp.csr_array:
        """A SciPy CSR array over the same memory."""
        parts = (self._numbers.numpy(), self.indices.numpy(), self.indptr.numpy())
        return sp.csr_array(parts, shape=self.shape)

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """The same matrix with float32 or float64 values; on another device, dense rows there, with a warning.

        Arguments as of ``torch.Tensor.to``. Raises: DtypeError for another dtype.
        """
        device, dtype = parse_to(*args, **_without_copy(kwargs))
        if dtype is not None and dtype not in _DTYPES:
            raise DtypeError(f"{_WHO}: expected float32 or float64, got {dtype}; to_dense() makes rows of any dtype")
        values = self._numbers if dtype is None else self._numbers.to(dtype)
        found = self if values is self._numbers else self._over(self._adjacency, values)
        return found if device is None or device.type == "cpu" else _functions().on_device(found, device)

    def contiguous(self, memory_format: Any = None) -> Self:
        """Itself."""
        return self

    def detach(self) -> Self:
        """Returns itself; sparse features have no gradient."""
        return self

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Itself. Raises: GraphError where a gradient is asked for."""
        if requires_grad:
            raise GraphError(f"{_WHO}: expected requires_grad=False, got True; x.to_dense().requires_grad_() takes one")
        return self

    def with_values(self, values: torch.Tensor) -> SparseFeatures:
        """The same entries with other values, (nnz,). Zeros among them are no longer stored."""
        return self._over(*_canonical(self._adjacency, values.contiguous()))

    def row_normalized(self) -> SparseFeatures:
        """The features with every row divided by the sum of its absolute values; empty rows stay. The structure is
        shared.
        """
        out = empty((self.nnz,), self.dtype)
        source = (ctypes.byref(self._adjacency.native), _is_double(out), self._numbers.data_ptr())
        _normalize_rows(*source, out.data_ptr())
        return self._over(self._adjacency, out)

    def take_rows(self, rows: Ids) -> SparseFeatures:
        """The rows ``rows`` in this order: ids, a boolean mask or a slice."""
        ids = as_selection("SparseFeatures.take_rows", "row", rows, self.num_rows)
        return self._over(*self._adjacency.take_rows_with_values(ids, self._numbers))

    def take_columns(self, columns: Ids) -> SparseFeatures:
        """The columns ``columns`` in this order: ids, a boolean mask or a slice."""
        ids = as_selection("SparseFeatures.take_columns", "column", columns, self.width)
        adjacency, values = self.transposed
        chosen, values = adjacency.take_rows_with_values(ids, values)
        return self._over(*chosen.transpose_values(values))

    def __len__(self) -> int:
        return self.num_rows

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Dense rows, as of any matrix."""
        for first in range(0, self.num_rows, _ITERATED):
            yield from self.take_rows(slice(first, first + _ITERATED)).to_dense()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return type(self)._over, (self._adjacency, self._numbers)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = self._over(copy.deepcopy(self._adjacency, memo), copy.deepcopy(self._numbers, memo))
        memo[id(self)] = made
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"SparseFeatures({self.num_rows} x {self.width}, {self.nnz} values, sparsity {self.sparsity:.4f})"

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)


Features = torch.Tensor | SparseFeatures  # rows of nodes, in either layout


def is_dense(x: Any) -> TypeGuard[torch.Tensor]:
    """Whether ``x`` is a tensor with memory of its own: sparse and 8-bit features are tensors to torch, but have none.

    Example:
        >>> is_dense(torch.eye(2)), is_dense(SparseFeatures.from_dense(torch.eye(2)))
        (True, False)
    """
    return isinstance(x, torch.Tensor) and not isinstance(x, SparseFeatures | Int8Features)


def kind_of(x: torch.Tensor | None) -> str:
    """How features are stored: "dense", "sparse" or "int8"."""
    return "int8" if isinstance(x, Int8Features) else "sparse" if isinstance(x, SparseFeatures) else "dense"


def stored(x: torch.Tensor) -> torch.Tensor:
    """The tensor whose memory holds the numbers of features: stored values, levels, or the features themselves.

    Example:
        >>> stored(SparseFeatures.from_dense(torch.eye(2))).tolist()
        [1.0, 1.0]
    """
    if isinstance(x, Int8Features):
        return x.levels
    return x.values if isinstance(x, SparseFeatures) else x


def alone(x: torch.Tensor) -> torch.Tensor:
    """The same features in the same memory; sparse ones with nothing kept beside them, such as dense rows.

    Example:
        >>> x = SparseFeatures.from_dense(torch.eye(2))
        >>> alone(x) is x, alone(x.dense) is x.dense
        (False, True)
    """
    return x.alias() if isinstance(x, SparseFeatures) else x


def _functions() -> Any:
    """The module of torch's functions, loaded when the first one is called."""
    return sys.modules.get(_FUNCTIONS) or importlib.import_module(_FUNCTIONS)


def _without_copy(options: dict[str, Any]) -> dict[str, Any]:
    """Options of ``to`` but ``copy``: nobody can tell a copy of what never changes."""
    return {name: value for name, value in options.items() if name != "copy"}


def _shape(shape: Any) -> tuple[int, int]:
    try:
        rows, width = shape
    except (TypeError, ValueError):
        raise ShapeError(f"{_WHO}: expected shape (rows, width), got {type(shape).__name__}") from None
    return as_count(_WHO, "the number of rows", rows), as_count(_WHO, "the width", width)
