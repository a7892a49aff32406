"""Selections and shapes of sparse features as torch's functions name them.

Comes in: calls from ``torch_calls.py``. Goes out: features with other rows, columns or types; nothing is made dense but
single rows and columns.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch
from torch import Tensor

from graphweft._errors import DtypeError
from graphweft._torch_private import stored_entries
from graphweft.graph.adjacency import Adjacency
from graphweft.runtime.torch_calls import HANDLERS, functions, mapped, serves, template
from graphweft.storage.feature import SparseFeatures

_UNCHANGED = "contiguous clone detach cpu pin_memory resolve_conj resolve_neg share_memory_ alias"
_RESHAPED = "view reshape flatten squeeze ravel expand view_as reshape_as expand_as unflatten"


# selections


@serves(Tensor.__getitem__)
def _getitem(x: Any, key: Any, /) -> Any:
    """Rows, columns or both; a single one is a dense vector."""
    if not isinstance(x, SparseFeatures):
        return NotImplemented
    parts = list(key) if isinstance(key, tuple) else [key]
    if any(part is Ellipsis for part in parts):
        at = next(i for i, part in enumerate(parts) if part is Ellipsis)
        parts[at : at + 1] = [slice(None)] * (3 - len(parts))
    parts += [slice(None)] * (2 - len(parts))
    if len(parts) != 2:
        return NotImplemented
    wanted = [_wanted(part, size) for part, size in zip(parts, x.shape, strict=True)]
    lists = sum(isinstance(part, Tensor) for part in wanted)
    numbers = sum(isinstance(part, int) for part in wanted)
    if any(part is None for part in wanted) or lists == 2 or (lists == 1 and numbers == 1):
        return NotImplemented
    rows, columns = wanted
    if not _is_whole(rows, x.num_rows):
        x = x.take_rows(torch.tensor([rows]) if isinstance(rows, int) else rows)
    if not _is_whole(columns, x.width):
        x = x.take_columns(torch.tensor([columns]) if isinstance(columns, int) else columns)
    if numbers == 0:
        return x
    dense = x.to_dense()
    dense = dense[0] if isinstance(rows, int) else dense
    return dense[..., 0] if isinstance(columns, int) else dense


def _is_whole(part: Any, size: int) -> bool:
    return isinstance(part, slice) and part.indices(size) == (0, size, 1)


def _wanted(part: Any, size: int) -> slice | int | Tensor | None:
    """One part of an index: a slice, a number or a vector of ids in range; None for another kind."""
    if isinstance(part, slice):
        return part if part.step is None or part.step > 0 else None
    if isinstance(part, bool) or part is None or isinstance(part, SparseFeatures):
        return None
    if not isinstance(part, Tensor):
        if not hasattr(part, "__len__"):
            return _in_range(int(part.__index__()), size) if hasattr(part, "__index__") else None
        part = torch.as_tensor(part if not isinstance(part, range) else list(part))
        part = part.long() if part.numel() == 0 else part
    if part.dim() == 0 and part.dtype not in (torch.bool, torch.uint8) and not part.is_floating_point():
        return _in_range(int(part), size)
    if part.dim() != 1 or part.dtype == torch.uint8 or part.is_floating_point():
        return None
    if part.dtype == torch.bool:
        return part if part.numel() == size else None
    part = part.cpu().long()
    return torch.where(part < 0, part + size, part) if bool((part < 0).any()) else part


def _in_range(number: int, size: int) -> int:
    if not -size <= number < size:
        raise IndexError(f"index {number} is out of bounds for dimension with size {size}")
    return number % size


@serves(torch.index_select, Tensor.index_select)
def _index_select(input: Any, dim: int, index: Tensor) -> Any:
    if not isinstance(input, SparseFeatures) or not -2 <= dim < 2 or index.dim() != 1:
        return NotImplemented
    return input.take_rows(index) if dim % 2 == 0 else input.take_columns(index)


@serves(torch.narrow, Tensor.narrow)
def _narrow(input: SparseFeatures, dim: int, start: Any, length: int) -> Any:
    size, start = input.shape[dim], int(start)
    start += size if start < 0 else 0
    if not -2 <= dim < 2 or start < 0 or length < 0 or start + length > size:
        return NotImplemented
    return _along(input, dim, slice(start, start + length))


@serves(torch.select, Tensor.select)
def _select(input: SparseFeatures, dim: int, index: Any) -> Any:
    return NotImplemented if not -2 <= dim < 2 else _along(input, dim, index)


def _along(x: SparseFeatures, dim: int, part: Any) -> Any:
    return _getitem(x, part if dim % 2 == 0 else (slice(None), part))


@serves(torch.split, Tensor.split, Tensor.split_with_sizes, torch.split_with_sizes)
def _split(tensor: SparseFeatures, split_size_or_sections: Any, dim: int = 0) -> Any:
    size = tensor.shape[dim]
    sizes = split_size_or_sections
    if isinstance(sizes, int):
        sizes = [min(sizes, size - first) for first in range(0, size, sizes)] if sizes > 0 and size else [size]
    if sum(sizes) != size:
        return NotImplemented
    ends = torch.tensor([0, *sizes]).cumsum(0).tolist()
    return tuple(_along(tensor, dim, slice(a, b)) for a, b in itertools.pairwise(ends))


@serves(torch.chunk, Tensor.chunk)
def _chunk(input: SparseFeatures, chunks: int, dim: int = 0) -> Any:
    return _split(input, max(1, -(-input.shape[dim] // chunks)), dim)


@serves(*functions("t adjoint"))
def _turned(input: SparseFeatures) -> Any:
    return input.t()


@serves(*functions("transpose swapaxes swapdims"))
def _transposed(input: SparseFeatures, dim0: int, dim1: int) -> Any:
    if not (-2 <= dim0 < 2 and -2 <= dim1 < 2):
        return NotImplemented
    return input if (dim0 - dim1) % 2 == 0 else input.t()


@serves(*functions("cat concat concatenate"))
def _cat(tensors: Any, dim: int = 0) -> Any:
    parts = list(tensors)
    if not parts or not all(isinstance(x, SparseFeatures) for x in parts) or not -2 <= dim < 2:
        return NotImplemented
    if len({x.shape[1 - dim % 2] for x in parts}) > 1:
        return NotImplemented
    dtype = functools.reduce(torch.promote_types, [x.dtype for x in parts])
    if dim % 2 == 1:
        return _cat([x.t() for x in parts]).t().to(dtype)
    starts = torch.tensor([0, *(x.nnz for x in parts)]).cumsum(0)
    offsets = [x.indptr[:-1] + start for x, start in zip(parts, starts.tolist(), strict=False)]
    indices = torch.cat([x.indices.long() for x in parts])
    structure = Adjacency(torch.cat([*offsets, starts[-1:]]), indices, None, parts[0].width).fitted()
    return SparseFeatures._over(structure, torch.cat([x.values.to(dtype) for x in parts]))


@serves(*functions(_UNCHANGED))
def _unchanged(x: Any, /, memory_format: Any = None) -> Any:
    return x if isinstance(x, SparseFeatures) else NotImplemented


def _same_shape(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The features themselves where a view has their shape."""
    if not args or not isinstance(args[0], SparseFeatures):
        return NotImplemented
    like = func(*mapped(template, args), **mapped(template, kwargs))
    return args[0] if like.shape == args[0].shape else NotImplemented


HANDLERS.update(dict.fromkeys(functions(_RESHAPED, torch, Tensor), _same_shape))


@serves(Tensor.float)
def _float(x: SparseFeatures, /) -> Any:
    return x.to(torch.float32)


@serves(Tensor.double)
def _double(x: SparseFeatures, /) -> Any:
    return x.to(torch.float64)


@serves(Tensor.type)
def _type(x: SparseFeatures, dtype: Any = None, /) -> Any:
    return "torch.DoubleTensor" if dtype is None and x.dtype == torch.float64 else _typed(x, dtype)


def _typed(x: SparseFeatures, dtype: Any) -> Any:
    names = {"torch.FloatTensor": torch.float32, "torch.DoubleTensor": torch.float64}
    return "torch.FloatTensor" if dtype is None else x.to(names.get(dtype, dtype))


@serves(Tensor.type_as)
def _type_as(x: Any, other: Tensor, /) -> Any:
    return x.to(other.dtype) if isinstance(x, SparseFeatures) else NotImplemented


@serves(*functions("half bfloat16 int long short bool char byte", Tensor))
def _other_dtype(x: SparseFeatures, /) -> Any:
    raise DtypeError("SparseFeatures: expected float32 or float64; to_dense() makes rows of any dtype")


@serves(Tensor.cuda)
def _cuda(x: SparseFeatures, /, device: Any = "cuda", non_blocking: bool = False) -> Any:
    return x.to(device)


# parts of torch's own compressed rows


@serves(*functions("to_sparse_csr", Tensor))
def _to_sparse_csr(x: SparseFeatures, /) -> Any:
    return torch.sparse_csr_tensor(x.indptr, x.indices.long(), x.values, x.shape)


@serves(Tensor.crow_indices)
def _crow_indices(x: SparseFeatures, /) -> Any:
    return x.indptr


@serves(Tensor.col_indices)
def _col_indices(x: SparseFeatures, /) -> Any:
    return x.indices


@serves(torch.equal, Tensor.equal)
def _equal(input: Any, other: Any) -> Any:
    """Whether two canonical forms are the same."""
    if not isinstance(input, SparseFeatures) or not isinstance(other, SparseFeatures) or input.dtype != other.dtype:
        return NotImplemented
    parts = ((x.indptr, x.indices.long(), x.values) for x in (input, other))
    return input.shape == other.shape and all(torch.equal(a, b) for a, b in zip(*parts, strict=True))


@serves(stored_entries)
def _nnz(x: SparseFeatures, /) -> Any:
    return x.nnz


@serves(*functions("nonzero argwhere"))
def _nonzero(x: SparseFeatures, /) -> Any:
    return torch.stack(x.adjacency.to_coo(), 1)


@serves(*functions("count_nonzero"))
def _count_nonzero(x: SparseFeatures, /) -> Any:
    return torch.tensor(x.nnz)
