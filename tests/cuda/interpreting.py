"""Triton's interpreter with less work for an operation, and the same numbers.

Comes in: a monkeypatch. An operation on small blocks takes far longer to be described than to be computed: types of
blocks are made once, the language is replaced once, and reductions by functions of kernels run over whole blocks. Used
by ``checked.py``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import triton.language as tl
import triton.runtime.interpreter as interpreter

_BLOCK_TYPE, _NP_DTYPE = tl.core.block_type.__init__, interpreter._get_np_dtype
_BROADCAST = type(interpreter.interpreter_semantic).broadcast_impl_value
_BY_ELEMENTS = interpreter.ReduceOps.generic_reduce
_TYPES: dict[tuple[Any, ...], dict[str, Any]] = {}  # what types of blocks hold, by element and shape
_DTYPES: dict[str, Any] = {}
_OF_SCALARS = tl.constexpr(1), tl.tuple([])


class Words:
    """What Triton replaces in its language while it interprets, once for all launches that are watched.

    Triton does it again in every launch and in every call of a function by a kernel, which took a third of the time of
    all trials; nothing is put back before :meth:`put_back`, so that the second time would replace the same by the same.
    """

    def __init__(self) -> None:
        self.replace, self.done = interpreter._patch_lang, set[int]()
        self.scopes: list[Any] = []
        self.known: dict[int, tuple[dict[str, Any], set[int]]] = {}  # by the globals of a module

    def __call__(self, function: Any) -> Any:
        names = function.__globals__
        if id(names) not in self.known:
            self.known[id(names)] = names, {id(item) for item in names.values() if item is tl or item is tl.core}
        found = self.known[id(names)][1]
        if not found or not found <= self.done:
            self.scopes.append(self.replace(function))
            self.done |= found
        return interpreter._LangPatchScope()

    def put_back(self) -> None:
        """The language as it was."""
        while self.scopes:
            self.scopes.pop().restore()


def quickened(patch: pytest.MonkeyPatch) -> Words:
    """Replaces what takes long; the words are put back by the caller."""
    builder, words = interpreter.interpreter_builder, Words()
    patch.setattr(interpreter, "_patch_lang", words)
    patch.setattr(interpreter.ReduceOps, "generic_reduce", _by_halves)
    # With it Triton computes whether a sum of int32 overflows, and forgets the answer.
    patch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))
    patch.setattr(tl.core.block_type, "__init__", _block_type)
    patch.setattr(tl.core.tensor, "__init__", _tensor)
    patch.setattr(interpreter, "_get_np_dtype", _np_dtype)
    patch.setattr(type(interpreter.interpreter_semantic), "broadcast_impl_value", _broadcast)
    return words


def _by_halves(operation: Any, given: tuple[Any, ...]) -> list[Any]:
    """Triton's reduction by a function of the user, which has to be associative: neighbours in whole blocks.

    Triton calls the function once an element instead.
    """
    shape = given[0].handle.data.shape
    if operation.axis is None or operation.keep_dims or shape[operation.axis] & (shape[operation.axis] - 1):
        return _BY_ELEMENTS(operation, given)
    blocks = [np.moveaxis(t.handle.data, operation.axis, 0) for t in given]
    while len(blocks[0]) > 1:
        sides = [[operation.to_tensor(x[k::2], t.dtype) for x, t in zip(blocks, given, strict=True)] for k in range(2)]
        made = operation.combine_fn.fn(*sides[0], *sides[1])
        blocks = [t.handle.data for t in (made if isinstance(made, tuple) else (made,))]
    return [operation.to_tensor(x[0], t.dtype) for x, t in zip(blocks, given, strict=True)]


def _block_type(self: Any, element_ty: Any, shape: Any) -> None:
    key = (element_ty.name, *(shape.values if isinstance(shape, tl.tuple) else shape))
    found = _TYPES.get(key)
    if found is None:
        _BLOCK_TYPE(self, element_ty, shape)
        sizes = [tl.constexpr(size) for size in self.shape]
        found = _TYPES[key] = {**vars(self), "of_tensors": (tl.constexpr(self.numel), tl.tuple(sizes))}
    self.__dict__.update(found)


def _tensor(self: Any, handle: Any, type: Any) -> None:
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.numel, self.shape = type.of_tensors if type.is_block() else _OF_SCALARS


def _np_dtype(of: Any) -> Any:
    name = of.scalar.name
    if name not in _DTYPES:
        _DTYPES[name] = _NP_DTYPE(of)
    return _DTYPES[name]


def _broadcast(self: Any, lhs: Any, rhs: Any) -> Any:
    one, other = lhs.type, rhs.type
    if one.is_block() and other.is_block() and one.shape.values == other.shape.values:
        return lhs, rhs
    return _BROADCAST(self, lhs, rhs)


__all__ = ["Words", "quickened"]
