"""Functions of torch on the stored values of sparse features: products, dropout, sums, functions of elements.

Comes in: calls from ``torch_calls.py``. Goes out: dense results of products and sums, sparse ones of all that keeps
zero. Loaded by ``SparseFeatures``, by name, when the first function is called.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from graphweft._errors import GraphError
from graphweft._pieces import total
from graphweft.runtime import torch_rows
from graphweft.runtime.sparse_product import product
from graphweft.runtime.torch_calls import HANDLERS, call, dispatch, functions, mapped, on_device, serves
from graphweft.storage.dense_rows import dense_rows
from graphweft.storage.feature import SparseFeatures

_FLOATS = (torch.float32, torch.float64)
_ELEMENTWISE = (
    "abs absolute neg negative positive relu relu6 sqrt sin tan asin arcsin atan arctan sinh tanh asinh arcsinh atanh "
    "arctanh erf erfinv expm1 log1p sign sgn floor ceil round trunc fix frac square deg2rad rad2deg nan_to_num clamp "
    "clip clamp_min clamp_max pow hardtanh leaky_relu elu selu celu gelu silu mish softsign tanhshrink softshrink "
    "hardshrink hardswish threshold mul multiply div divide true_divide floor_divide fmod remainder add sub subtract "
    "__pow__ __mul__ __rmul__ __div__ __truediv__ __floordiv__ __mod__ __add__ __radd__ __sub__ __rsub__ __neg__ "
    "__abs__ rsub logical_and"
)


# products


@serves(F.linear)
def _linear(input: Any, weight: Tensor, bias: Tensor | None = None) -> Any:
    if not isinstance(input, SparseFeatures) or isinstance(weight, SparseFeatures) or weight.dim() != 2:
        return NotImplemented
    out = product("linear", input, weight.t())
    return out if bias is None else out + bias.to(out.dtype)


def _matmul(who: str, a: Any, b: Any) -> Any:
    if isinstance(a, SparseFeatures) and isinstance(b, SparseFeatures):
        return product(who, a, dense_rows(who, b)[0])
    if isinstance(a, SparseFeatures):
        return product(who, a, b) if isinstance(b, Tensor) and b.dim() <= 2 else NotImplemented
    if not isinstance(a, Tensor) or a.dim() not in (1, 2):
        return NotImplemented
    return product(who, b.t(), a) if a.dim() == 1 else product(who, b.t(), a.t()).t()


@serves(*functions("matmul mm mv __matmul__"), torch.sparse.mm, *functions("spmm"))
def _product_of(a: Any, b: Any, /) -> Any:
    return _matmul("matmul", a, b)


@serves(Tensor.__rmatmul__)
def _reversed_product(b: Any, a: Any, /) -> Any:
    return _matmul("matmul", a, b)


@serves(torch.addmm, Tensor.addmm)
def _addmm(input: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    made = NotImplemented if isinstance(input, SparseFeatures) else _matmul("addmm", mat1, mat2)
    if made is NotImplemented:
        return made
    made = made if alpha == 1 else alpha * made
    return made if beta == 0 else made + (input if beta == 1 else beta * input)


# dropout


@serves(F.dropout)
def _dropout(input: SparseFeatures, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    if inplace:
        raise GraphError("dropout: SparseFeatures cannot be changed, got inplace=True; leave it out")
    kept = F.dropout(input.values if training else input.values[:0], p, training)
    return input.with_values(kept) if training else input


@serves(torch.dropout)
def _native_dropout(input: SparseFeatures, p: float, train: bool) -> Any:
    return _dropout(input, p, train)


# sums


def _dims(dim: Any) -> tuple[int, ...] | None:
    """The axes 0 and 1 of a reduction; None where torch has something to say about them."""
    given = (0, 1) if dim is None or dim == () or dim == [] else dim if isinstance(dim, tuple | list) else (dim,)
    if not all(isinstance(d, int) and -2 <= d < 2 for d in given):
        return None
    found = tuple(d % 2 for d in given)
    return found if len(set(found)) == len(found) else None


def _reduced(x: SparseFeatures, values: Tensor, dims: tuple[int, ...], keepdim: bool) -> Tensor:
    """Sums of ``values`` in the places of ``x``."""
    if len(dims) == 2:
        return total(values).reshape((1, 1) if keepdim else ())
    summed = SparseFeatures._over(x.adjacency, values)
    if dims[0] == 0:
        summed = summed.t()
    return product("sum", summed, values.new_ones((summed.width, 1))).reshape(
        (summed.num_rows,) if not keepdim else (1, -1) if dims[0] == 0 else (-1, 1)
    )


@serves(torch.sum, Tensor.sum)
def _sum(input: SparseFeatures, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    dims = _dims(dim)
    if dims is None or (dtype is not None and dtype not in _FLOATS):
        return NotImplemented
    with torch.autocast("cpu", enabled=False):
        return _reduced(input, input.values if dtype is None else input.values.to(dtype), dims, keepdim)


@serves(torch.mean, Tensor.mean)
def _mean(input: SparseFeatures, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    made, dims = _sum(input, dim, keepdim, dtype=dtype), _dims(dim)
    if made is NotImplemented or dims is None:
        return NotImplemented
    count = 1
    for d in dims:
        count *= input.shape[d]
    return made / count


@serves(torch.norm, Tensor.norm)
def _norm(input: SparseFeatures, p: Any = "fro", dim: Any = None, keepdim: bool = False) -> Any:
    p = 2.0 if p in ("fro", None) else p
    dims = _dims(dim)
    if dims is None or not isinstance(p, int | float) or not 0 < p < float("inf"):
        return NotImplemented
    with torch.autocast("cpu", enabled=False):
        return _reduced(input, input.values.abs() ** p, dims, keepdim) ** (1.0 / p)


@serves(torch.linalg.vector_norm)
def _vector_norm(x: SparseFeatures, ord: Any = 2, dim: Any = None, keepdim: bool = False) -> Any:
    return _norm(x, ord, dim, keepdim)


@serves(torch.linalg.norm)
def _linalg_norm(A: SparseFeatures, ord: Any = None, dim: Any = None, keepdim: bool = False) -> Any:
    along_one = isinstance(dim, int) or (dim is None and ord is None)
    return _norm(A, ord, dim, keepdim) if along_one else NotImplemented


@serves(F.normalize)
def _normalize(input: SparseFeatures, p: float = 2.0, dim: Any = 1, eps: float = 1e-12) -> Any:
    if dim is None:
        return NotImplemented
    norm = _norm(input, p, dim, True)
    return NotImplemented if norm is NotImplemented else input / norm.clamp_min(eps)


# functions of elements


def _elementwise(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """On the stored values, where the function maps zero to zero."""
    given = [item for item in (*args, *kwargs.values()) if isinstance(item, Tensor)]
    learned = torch.is_grad_enabled() and any(item.requires_grad for item in given)
    _refuse_inplace(func, args, kwargs)
    wide = [item for item in given if item.dim() > 0 and not isinstance(item, SparseFeatures)]
    sparse = [item for item in given if isinstance(item, SparseFeatures)]
    if wide or len(sparse) != 1:
        two = len(wide) + len(sparse) == 2 and not kwargs
        return _of_two(func.__name__.strip("_"), args, learned) if two else NotImplemented
    if learned:
        return NotImplemented
    (x,) = sparse

    def on(values: Tensor) -> Any:
        return func(*mapped(lambda _: values, args), **mapped(lambda _: values, kwargs))

    zero = on(x.values.new_zeros(1))
    if not isinstance(zero, Tensor) or zero.dtype not in _FLOATS or zero.shape != (1,) or float(zero) != 0.0:
        return NotImplemented
    return x.with_values(on(x.values))


def _refuse_inplace(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises: GraphError where a function of ``torch.nn.functional`` is told to work in place."""
    if not kwargs.get("inplace") and not any(item is True for item in args[1:]):
        return
    if inspect.isfunction(func) and inspect.signature(func).bind(*args, **kwargs).arguments.get("inplace"):
        raise GraphError(f"{func.__name__}: SparseFeatures cannot be changed, got inplace=True; leave it out")


def _of_two(name: str, args: tuple[Any, ...], learned: bool) -> Any:
    """A product, quotient, sum or difference of features and a tensor, perhaps a learned one, or of two features."""
    if len(args) != 2:
        return NotImplemented
    a, b = args
    if name in ("rmul", "radd", "rsub"):
        name, a, b = name[1:], b, a
    if isinstance(a, SparseFeatures) and isinstance(b, SparseFeatures):
        return _of_sparse(name, a, b)
    if name in ("add", "sub", "subtract"):
        return _plus(a, b, -1.0 if name.startswith("sub") else 1.0)
    if learned:
        return NotImplemented
    if name in ("mul", "multiply"):
        return _scaled(a, b, False) if isinstance(a, SparseFeatures) else _scaled(b, a, False)
    if name in ("div", "divide", "true_divide", "truediv") and isinstance(a, SparseFeatures):
        return _scaled(a, b, True)
    return NotImplemented


def _scaled(x: SparseFeatures, by: Tensor, divide: bool) -> Any:
    """``x * by`` or ``x / by``, ``by`` with a factor for each row, column or element."""
    fits = by.dim() <= 2 and all(
        mine in (1, size) for mine, size in zip(reversed(by.shape), reversed(x.shape), strict=False)
    )
    if not fits or by.is_complex() or by.device.type != "cpu" or by.layout != torch.strided:
        return NotImplemented
    if not bool(torch.isfinite(by).all()) or (divide and not bool(by.all())):
        return NotImplemented  # a zero of x becomes NaN there
    at = by.reshape((1,) * (2 - by.dim()) + tuple(by.shape)).expand(x.shape)
    factors = at[x.adjacency.to_coo()]
    values = x.values / factors if divide else x.values * factors
    return x.with_values(values) if values.dtype in _FLOATS else NotImplemented


def _plus(a: Any, b: Any, sign: float) -> Any:
    """A dense matrix with features added in their places."""
    x, dense = (a, b) if isinstance(a, SparseFeatures) else (b, a)
    if dense.shape != x.shape or dense.device.type != "cpu" or dense.layout != torch.strided or dense.is_complex():
        return NotImplemented
    kind = torch.promote_types(x.dtype, dense.dtype)
    dense, values = dense.to(kind), x.values.to(kind)
    if x is a:
        dense = dense if sign > 0 else -dense
    else:
        values = sign * values
    return dense.reshape(-1).index_add(0, _places(x, *x.adjacency.to_coo()), values).reshape(dense.shape)


def _places(x: SparseFeatures, rows: Tensor, columns: Tensor) -> Tensor:
    """Places of elements in a contiguous matrix as wide as ``x``."""
    return rows * x.width + columns


def _of_sparse(name: str, a: SparseFeatures, b: SparseFeatures) -> Any:
    """SciPy's result for two matrices of one shape."""
    if a.shape != b.shape or name not in ("mul", "multiply", "add", "sub", "subtract"):
        return NotImplemented
    dtype = torch.promote_types(a.dtype, b.dtype)
    left, right = a.to_scipy(), b.to_scipy()
    made = left.multiply(right) if name.startswith("mul") else left + right if name == "add" else left - right
    return SparseFeatures.from_scipy(made, dtype=dtype)


HANDLERS.update(dict.fromkeys(functions(_ELEMENTWISE, torch, Tensor, F), _elementwise))


# sums of sparse rows into dense ones


def _scatter_add(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Rows of features added into rows of a dense matrix, entry by entry."""
    if len(args) != 4 or kwargs:
        return NotImplemented
    dense, dim, index, x = args
    if not isinstance(x, SparseFeatures) or isinstance(dense, SparseFeatures) or dense.dim() != 2 or dim not in (0, -2):
        return NotImplemented
    given = index.shape if func.__name__.startswith("scatter") else (*index.shape, x.width)
    if tuple(given) != tuple(x.shape) or dense.dtype != x.dtype or dense.shape[1] != x.width:
        return NotImplemented
    if not dense.is_contiguous() or dense.device.type != "cpu":
        return NotImplemented
    rows, columns = x.adjacency.to_coo()
    to = index[rows, columns] if index.dim() == 2 else index[rows]
    places = _places(x, to.long(), columns)
    if func.__name__.endswith("_"):
        dense.view(-1).index_add_(0, places, x.values)
        return dense
    return dense.reshape(-1).index_add(0, places, x.values).reshape(dense.shape)


HANDLERS.update(dict.fromkeys(functions("scatter_add scatter_add_ index_add index_add_", torch, Tensor), _scatter_add))

__all__ = ["call", "dispatch", "on_device", "torch_rows"]
