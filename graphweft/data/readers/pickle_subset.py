"""An interpreter for the few pickles that Planetoid files hold; it imports nothing and calls nothing that a file names.

Comes in: the bytes of a pickle. Goes out: integers, texts, lists, dicts and NumPy or CSR arrays rebuilt by this
module from their raw bytes. The seven names that such files mention stand for builders defined here; any other name
is refused. Called by ``planetoid``.
"""

from __future__ import annotations

import math
import pickletools
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from graphweft._errors import DataError
from graphweft.data.readers.files import one_line

_MAX_MEMO = 50_000_000
_MAX_STEPS = 5_000_000  # a million take about a second; the largest of the public sets has a tenth of that


class _Mark:
    """Where a run of stack items starts."""


class _Dtype:
    """``numpy.dtype`` before and after its state: a kind and size, then a byte order."""

    def __init__(self, code: object = None, *_: object) -> None:
        if not isinstance(code, str) or code not in _CODES:
            _refuse(f"a dtype {code!r}")
        self.code = code

    def set_state(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) < 2 or state[1] not in ("<", ">", "|", "="):
            _refuse("a dtype state")
        self.code = ("" if state[1] == "|" else state[1]) + self.code


class _Array:
    """``numpy.ndarray`` after ``_reconstruct``; its state brings shape, dtype and bytes."""

    def __init__(self, *_: object) -> None:
        self.value: NDArray[Any] | None = None

    def set_state(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            _refuse("an array state")
        _, shape, dtype, fortran, raw = state
        raw = raw.encode("latin-1") if isinstance(raw, str) else raw
        sizes = isinstance(shape, tuple) and all(type(size) is int and 0 <= size < 2**48 for size in shape)
        if not (sizes and isinstance(dtype, _Dtype) and isinstance(raw, bytes) and len(shape) <= 2):
            _refuse("an array of something else than numbers")
        kind = np.dtype(dtype.code)
        if kind.itemsize * math.prod(shape) != len(raw):
            _refuse(f"{len(raw)} bytes for an array of shape {shape}")
        flat = np.frombuffer(raw, kind).astype(kind.newbyteorder("="))
        self.value = flat.reshape(shape, order="F" if fortran else "C")


class _Csr:
    """``scipy.sparse`` CSR matrix; its state is its attributes."""

    def __init__(self, *_: object) -> None:
        self.state: dict[Any, Any] = {}

    def set_state(self, state: object) -> None:
        if not isinstance(state, dict):
            _refuse("a matrix state")
        self.state = state


_CODES = {f"{kind}{size}" for kind in "iuf" for size in (1, 2, 4, 8)} | {"b1"}


def _scalar(dtype: object, raw: object) -> int:
    """``numpy.core.multiarray.scalar``, for node ids kept as NumPy integers."""
    raw = raw.encode("latin-1") if isinstance(raw, str) else raw
    if not isinstance(dtype, _Dtype) or not isinstance(raw, bytes) or np.dtype(dtype.code).itemsize != len(raw):
        _refuse("a scalar")
    return int(np.frombuffer(raw, dtype.code)[0])


def _encode(text: object, encoding: object = "latin1") -> bytes:
    """``_codecs.encode``, by which Python 3 writes bytes in protocol 2."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        _refuse("an encoded text")
    return text.encode("latin-1")


class _Kind:
    """A class that a pickle mentions only as an argument."""


_BUILDERS: dict[str, Callable[..., Any]] = {
    "_reconstruct": _Array,
    "dtype": _Dtype,
    "csr_matrix": _Csr,
    "defaultdict": lambda *_: {},
    "_reconstructor": lambda kind=None, *_: _Csr() if kind is _Csr else _refuse("an object"),
    "scalar": _scalar,
    "encode": _encode,
}
_ADMITTED: dict[str, Any] = {
    **{
        f"{core}.multiarray {name}": _BUILDERS[name]
        for core in ("numpy.core", "numpy._core")
        for name in ("_reconstruct", "scalar")
    },
    **{f"scipy.sparse.{module} csr_matrix": _Csr for module in ("csr", "_csr")},
    "numpy ndarray": _Kind,
    "numpy dtype": _Dtype,
    "collections defaultdict": _BUILDERS["defaultdict"],
    **{f"{module} {name}": _Kind for module in ("__builtin__", "builtins") for name in ("list", "object")},
    **{f"{module} _reconstructor": _BUILDERS["_reconstructor"] for module in ("copy_reg", "copyreg")},
    "_codecs encode": _encode,
}
_PUSH_ARG = {
    *("BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "BINFLOAT", "FLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}


def _refuse(what: str) -> NoReturn:
    raise DataError(f"expected a pickle of numbers, lists and NumPy or CSR arrays, got {one_line(what, 100)}")


class _Machine:
    """Stack and memo of one pickle."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        """The object that the pickle describes."""
        for step_number, (opcode, arg, _) in enumerate(pickletools.genops(data)):
            name = opcode.name
            if step_number > _MAX_STEPS:
                _refuse(f"more than {_MAX_STEPS} instructions")
            if name in _PUSH_ARG:
                self.stack.append(arg)
            elif name in _CONSTANTS:
                self.stack.append(_CONSTANTS[name])
            elif name == "STOP":
                return self._pop()
            else:
                step = _STEPS.get(name)
                if step is None:
                    _refuse(f"the instruction {name}")
                step(self, arg)
        _refuse("no end")

    def _pop(self) -> Any:
        if not self.stack or isinstance(self.stack[-1], _Mark):
            _refuse("an unbalanced stack")
        return self.stack.pop()

    def _since_mark(self) -> list[Any]:
        items: list[Any] = []
        while self.stack and not isinstance(self.stack[-1], _Mark):
            items.append(self.stack.pop())
        if not self.stack:
            _refuse("an unbalanced stack")
        self.stack.pop()
        items.reverse()
        return items

    def put(self, arg: Any) -> None:
        index = len(self.memo) if arg is None else int(arg)
        if not self.stack or not 0 <= index < _MAX_MEMO:
            _refuse(f"memo entry {index}")
        self.memo[index] = self.stack[-1]

    def get(self, arg: Any) -> None:
        if int(arg) not in self.memo:
            _refuse(f"memo entry {arg}")
        self.stack.append(self.memo[int(arg)])

    def tuple_of(self, count: int) -> None:
        items = [self._pop() for _ in range(count)]
        self.stack.append(tuple(reversed(items)))

    def append(self, items: list[Any]) -> None:
        if not self.stack or type(self.stack[-1]) is not list:
            _refuse("items outside a list")
        self.stack[-1].extend(items)

    def set_items(self, items: list[Any]) -> None:
        if not self.stack or type(self.stack[-1]) is not dict or len(items) % 2:
            _refuse("items outside a dict")
        target = self.stack[-1]
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) not in (int, str):  # a nested tuple can take forever to hash
                _refuse("a key that is neither integer nor text")
            target[key] = value

    def name(self, text: Any) -> None:
        if text not in _ADMITTED:
            _refuse(f"the name {text!r}, which is never imported")
        self.stack.append(_ADMITTED[text])

    def stack_name(self) -> None:
        attribute, module = self._pop(), self._pop()
        self.name(f"{module} {attribute}" if isinstance(module, str) and isinstance(attribute, str) else None)

    def reduce(self) -> None:
        arguments, function = self._pop(), self._pop()
        if type(arguments) is not tuple or not any(function is known for known in _ADMITTED.values()):
            _refuse("a call")
        if function is _Kind:
            _refuse("a call")
        self.stack.append(function(*arguments))

    def build(self) -> None:
        state = self._pop()
        if not self.stack or not isinstance(self.stack[-1], _Dtype | _Array | _Csr):
            _refuse("a state of something else")
        self.stack[-1].set_state(state)


_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": lambda m, arg: None,
    "FRAME": lambda m, arg: None,
    "MARK": lambda m, arg: m.stack.append(_Mark()),
    "PUT": _Machine.put,
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
    "MEMOIZE": _Machine.put,
    "GET": _Machine.get,
    "BINGET": _Machine.get,
    "LONG_BINGET": _Machine.get,
    "EMPTY_TUPLE": lambda m, arg: m.stack.append(()),
    "EMPTY_LIST": lambda m, arg: m.stack.append([]),
    "EMPTY_DICT": lambda m, arg: m.stack.append({}),
    "TUPLE": lambda m, arg: m.stack.append(tuple(m._since_mark())),
    "TUPLE1": lambda m, arg: m.tuple_of(1),
    "TUPLE2": lambda m, arg: m.tuple_of(2),
    "TUPLE3": lambda m, arg: m.tuple_of(3),
    "LIST": lambda m, arg: m.stack.append(m._since_mark()),
    "APPEND": lambda m, arg: m.append([m._pop()]),
    "APPENDS": lambda m, arg: m.append(m._since_mark()),
    "SETITEM": lambda m, arg: m.set_items([*reversed([m._pop(), m._pop()])]),
    "SETITEMS": lambda m, arg: m.set_items(m._since_mark()),
    "DICT": lambda m, arg: m.stack.append({}) if not m._since_mark() else _refuse("a dict of protocol 0"),
    "GLOBAL": _Machine.name,
    "STACK_GLOBAL": lambda m, arg: m.stack_name(),
    "REDUCE": lambda m, arg: m.reduce(),
    "NEWOBJ": lambda m, arg: m.reduce(),
    "BUILD": lambda m, arg: m.build(),
}


def load_subset(data: bytes) -> Any:
    r"""The object of a pickle: int, str, list, dict, :class:`numpy.ndarray` or a CSR matrix.

    Raises: DataError for anything else; nothing named in the file is imported or called.

    Example:
        >>> load_subset(b"\x80\x02}K\x00]K\x01as.")
        {0: [1]}
        >>> load_subset(b"cos\nsystem\n(S'true'\ntR.")
        Traceback (most recent call last):
        graphweft._errors.DataError: expected a pickle of numbers, ... got the name 'os system', which is never imported
    """
    try:
        found = _Machine().run(data)
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"expected an undamaged pickle, got: {one_line(str(error), 100)}") from error
    if isinstance(found, _Array) and found.value is not None:
        return found.value
    if isinstance(found, _Csr):
        return _matrix(found.state)
    if not isinstance(found, int | str | list | dict):
        _refuse("another object")
    return found


def _matrix(state: dict[Any, Any]) -> scipy.sparse.csr_matrix:
    """A CSR matrix from checked parts; SciPy sees them only after that."""
    shape = state.get("_shape", state.get("shape"))
    parts = [state.get(key) for key in ("indptr", "indices", "data")]
    arrays = [
        part.value for part in parts if isinstance(part, _Array) and part.value is not None and part.value.ndim == 1
    ]
    if not (isinstance(shape, tuple) and len(shape) == 2 and all(type(s) is int and 0 <= s < 2**31 for s in shape)):
        _refuse("a matrix without a shape")
    if len(arrays) != 3 or any(array.dtype.kind not in "iu" for array in arrays[:2]):
        _refuse("a matrix without indptr, indices and data")
    indptr, indices, data = (array.astype(np.int64) if array.dtype.kind in "iu" else array for array in arrays)
    rises = (
        len(indptr) == shape[0] + 1 and indptr[0] == 0 and indptr[-1] == len(indices) and (np.diff(indptr) >= 0).all()
    )
    if not rises or len(data) != len(indices) or (len(indices) and not 0 <= indices.min() <= indices.max() < shape[1]):
        _refuse("a matrix whose parts contradict each other")
    return scipy.sparse.csr_matrix((data, indices, indptr), shape=shape)
