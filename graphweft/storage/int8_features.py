"""Dense node features in 8 bits, with a scale and an offset a column: a quarter of the memory of float32.

Comes in: a dense matrix. Goes out: :class:`Int8Features`, an immutable matrix whose numbers are float32 where they are
read. Called by datasets, gathers of mini-batches and the trainer.

Scales are kept by column, not by row. The columns of a table have ranges of their own (an age, an income), and a scale
that a row shares leaves the small ones no levels at all; a range by column costs the same for any unit. A row is read
from one run of bytes either way, and the scales of all columns stay in the core's first cache while rows are gathered.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from graphweft._errors import DataError, DtypeError, GraphError, ShapeError
from graphweft._memory import empty
from graphweft._native import declare
from graphweft._torch_private import without_subclasses, wrapper_subclass
from graphweft.storage.dense_rows import dense_rows

_gather = declare("gw_gather_int8_rows")

_WHO = "Int8Features"
_LEVELS, _LEAST = 255, -128  # steps of a column from its lowest number to its highest, and the lowest level
_ROWS = 1 << 14  # that are looked at and rounded at a time
_EXACT = 16  # significant bits of a scale: its product with a level has at most 24, those of float32
# What torch answers from shape, dtype and device alone.
_METADATA = frozenset({
    "size", "dim", "ndimension", "numel", "nelement", "is_floating_point", "is_complex", "element_size", "stride",
    "is_contiguous", "get_device", "is_inference", "is_pinned", "is_shared", "__get__", "register_hook",
})  # fmt: skip
_MEMORY = frozenset({
    "data_ptr", "untyped_storage", "storage", "const_data_ptr", "mutable_data_ptr", "numpy", "__dlpack__",
})  # fmt: skip


class Int8Features(torch.Tensor):
    """Node features in 8 bits: the number in column c of row i is ``levels[i, c] * scale[c] + offset[c]``.

    Each column has 256 levels between its lowest and its highest number, so a number changes by at most half of a 254th
    of that range. Zero stays zero if it is within the range. One far outlier makes the levels of its whole column
    coarser: take logarithms or clip first.

    The object is a tensor of dtype float32 to torch. Selected rows (``x[ids]``) are dense. Any other function of torch
    gets dense rows of all nodes, with a :class:`DenseFeaturesWarning`.

    Args:
        levels: (N, F) int8.
        scale: (F,) float32, at least 0.
        offset: (F,) float32.

    Raises: DtypeError, ShapeError; DataError for a scale or an offset that is not finite.

    Example:
        >>> x = Int8Features.from_dense(torch.tensor([[0.0, 1000.0], [1.0, 2000.0]]))
        >>> x.levels.dtype, x.nbytes, x[torch.tensor([1])].round().tolist()
        (torch.int8, 20, [[1.0, 2000.0]])
    """

    levels: Tensor
    scale: Tensor
    offset: Tensor

    def __new__(cls, levels: Tensor, scale: Tensor, offset: Tensor) -> Self:
        """Checked features."""
        kinds = [tensor.dtype for tensor in (levels, scale, offset)]
        if kinds != [torch.int8, torch.float32, torch.float32]:
            raise DtypeError(f"{_WHO}: expected int8, float32 and float32, got {', '.join(map(str, kinds))}")
        if levels.dim() != 2 or scale.shape != levels.shape[1:] or offset.shape != levels.shape[1:]:
            got = ", ".join(str(tuple(tensor.shape)) for tensor in (levels, scale, offset))
            raise ShapeError(f"{_WHO}: expected levels (N, F), scale (F,) and offset (F,), got {got}")
        for name, numbers in (("scale", scale), ("offset", offset)):
            if not bool(torch.isfinite(numbers).all()):
                column = int((~torch.isfinite(numbers)).nonzero()[0])
                raise DataError(f"{_WHO}: expected {name} finite, got {float(numbers[column])} at column {column}")
        return cls._over(levels.contiguous(), scale.contiguous(), offset.contiguous())

    @classmethod
    def _over(cls, levels: Tensor, scale: Tensor, offset: Tensor) -> Self:
        features: Self = wrapper_subclass(cls, tuple(levels.shape), dtype=torch.float32)
        features.levels, features.scale, features.offset = levels, scale, offset
        return features

    @classmethod
    def from_dense(cls, x: Any) -> Self:
        """The nearest levels of a dense matrix of real numbers, some rows at a time.

        Shape: x (N, F) of any real dtype.

        Raises: ShapeError, DtypeError for anything else; DataError naming the first number that is not finite.
        """
        x = torch.as_tensor(x)
        if x.layout != torch.strided or x.is_complex():
            raise DtypeError(f"{_WHO}.from_dense: expected a dense matrix of real numbers, got {x.layout}, {x.dtype}")
        if x.dim() != 2:
            raise ShapeError(f"{_WHO}.from_dense: expected a matrix, got shape {tuple(x.shape)}")
        x = x.detach().cpu()
        low, high = _ranges(x)
        scale, offset = _steps(low, high)
        levels = empty(tuple(x.shape), torch.int8)
        step = torch.where(scale > 0, scale, torch.ones_like(scale))
        for first in range(0, x.shape[0], _ROWS):
            rows = ((x[first : first + _ROWS].float() - offset) / step).round_().clamp_(_LEAST, _LEAST + _LEVELS)
            levels[first : first + _ROWS] = torch.where(scale > 0, rows, torch.zeros_like(rows))
        return cls._over(levels, scale, offset)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """A function of torch: rows that are picked, what follows from sizes, or one on dense rows."""
        return _call(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """An operation that torch's own code calls."""
        name = str(getattr(func, "overloadpacket", func)).rpartition(".")[2]
        return args[0] if name in ("detach", "alias", "clone") else _on_dense_rows(name, func, args, kwargs or {})

    @property
    def num_rows(self) -> int:
        """N."""
        return self.levels.shape[0]

    @property
    def width(self) -> int:
        """F."""
        return self.levels.shape[1]

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        """Bytes of levels, scales and offsets."""
        return self.levels.nbytes + self.scale.nbytes + self.offset.nbytes

    @property
    def sparsity(self) -> float:
        """Share of the numbers that are zero; 0 for a matrix without elements."""
        zeros = 0
        for first in range(0, self.num_rows, _ROWS):
            zeros += int((self.take_rows(torch.arange(first, min(first + _ROWS, self.num_rows))) == 0).sum())
        return zeros / max(self.numel(), 1)

    @property
    def requires_grad(self) -> bool:
        """False: 8-bit features have no gradient."""
        return False

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Itself. Raises: GraphError where a gradient is asked for."""
        if requires_grad:
            raise GraphError(f"{_WHO}: expected requires_grad=False, got True; x.to_dense().requires_grad_() takes one")
        return self

    def detach(self) -> Self:
        """Returns itself; 8-bit features have no gradient."""
        return self

    def to_dense(self) -> Tensor:  # type: ignore[override]
        """A new float32 matrix (N, F)."""
        return self._read(None, self.num_rows)

    @cached_property
    def dense(self) -> Tensor:
        """:meth:`to_dense`, computed once and kept as long as the features."""
        return self.to_dense()

    def take_rows(self, ids: Tensor) -> Tensor:
        """Rows ``ids`` in float32.

        Shape: ids (n,) int64 -> (n, F). Raises: IndexRangeError with the first bad id and its position.
        """
        return self._read(ids.contiguous(), ids.numel())

    def _read(self, ids: Tensor | None, count: int) -> Tensor:
        out = empty((count, self.width), torch.float32)
        numbers = self.scale.data_ptr(), self.offset.data_ptr()
        at = None if ids is None else ids.data_ptr()
        _gather(self.levels.data_ptr(), *self.levels.shape, self.width, *numbers, at, count, out.data_ptr())
        return out

    def __len__(self) -> int:
        return self.num_rows

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Int8Features({self.num_rows} x {self.width}, {self.nbytes / 1e6:,.1f} MB)"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return type(self)._over, (self.levels, self.scale, self.offset)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = self._over(*(copy.deepcopy(part, memo) for part in (self.levels, self.scale, self.offset)))
        memo[id(self)] = made
        return made


def _ranges(x: Tensor) -> tuple[Tensor, Tensor]:
    """The lowest and the highest number of every column, float32. Raises: DataError for one that is not finite."""
    low, high = torch.full((x.shape[1],), torch.inf), torch.full((x.shape[1],), -torch.inf)
    for first in range(0, x.shape[0], _ROWS):
        rows = x[first : first + _ROWS].float()
        here = torch.aminmax(rows, dim=0)  # both are NaN if any number of the column is
        if not bool(torch.isfinite(here.min).all() and torch.isfinite(here.max).all()):
            row, column = (~torch.isfinite(rows)).nonzero()[0].tolist()
            got = float(rows[row, column])
            raise DataError(f"{_WHO}: expected finite values, got {got} at row {first + row}, column {column}")
        torch.minimum(low, here.min, out=low)
        torch.maximum(high, here.max, out=high)
    return (low, high) if x.shape[0] else (torch.zeros_like(low), torch.zeros_like(high))


def _steps(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Scale and offset of every column; a column of one number has the scale 0 and that number as its offset."""
    around = (low <= 0) & (high >= 0)
    # one level fewer where zero is to lie on one, so that both ends are still reached
    exact = (high.double() - low.double()) / torch.where(around, _LEVELS - 1, _LEVELS)
    mantissa, exponent = torch.frexp(exact)
    scale = torch.ldexp((mantissa * 2.0**_EXACT).ceil(), exponent - _EXACT).float()
    scale = torch.where(high > low, scale, torch.zeros_like(scale))
    wide = scale.double()
    zero = (_LEAST - low.double() / torch.where(wide > 0, wide, 1.0)).round()  # the level of zero
    offset = torch.where(around & (wide > 0), -zero * wide, low.double() - _LEAST * wide)
    return scale, offset.float()


def _call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = getattr(func, "__name__", str(func))
    x = args[0] if args else None
    if isinstance(x, Int8Features):
        if name in _MEMORY:
            raise GraphError(f"{name}: Int8Features have no dense memory; to_dense() makes some")
        if name in ("__setitem__", "__set__") or (name.endswith("_") and not name.endswith("__")):
            raise GraphError(f"{name}: Int8Features cannot be changed; to_dense() makes a tensor that can")
        if name in ("index_select", "__getitem__") and not kwargs:
            picked = _picked(x, name, args[1:])
            if picked is not None:
                return picked
    if name in _METADATA:
        with without_subclasses():
            return func(*args, **kwargs)
    return _on_dense_rows(name, func, args, kwargs)


def _picked(x: Int8Features, name: str, rest: tuple[Any, ...]) -> Tensor | None:
    """Rows by ids, a mask, a slice or one number; None for what is not rows alone."""
    index = rest[-1]
    if name == "index_select" and rest[0] != 0:
        return None
    if isinstance(index, slice):
        index = torch.arange(*index.indices(x.num_rows))
    if isinstance(index, int) and not isinstance(index, bool):
        return x.take_rows(torch.arange(x.num_rows)[index : index + 1 or None])[0]
    if isinstance(index, Tensor) and index.dim() == 1 and index.dtype == torch.bool:
        index = index.nonzero().flatten()
    if not isinstance(index, Tensor) or index.dim() != 1 or index.is_floating_point():
        return None
    return x.take_rows(torch.where(index < 0, index + x.num_rows, index).long())


def _on_dense_rows(name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``func`` on dense rows, after a warning with their size."""

    def widened(item: Any) -> Any:
        if isinstance(item, Int8Features):
            return dense_rows(name, item)[0]
        if type(item) in (list, tuple):
            return type(item)(map(widened, item))
        return item

    return func(*widened(args), **{key: widened(item) for key, item in kwargs.items()})


__all__ = ["Int8Features"]
