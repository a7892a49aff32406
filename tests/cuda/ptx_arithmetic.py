"""What PTX instructions compute, over NumPy arrays with one element a thread.

Comes in: an opcode and its operands as arrays of the instruction's type. Goes out: the result. An opcode that is not
here is an error that names it. Called by ``ptx.py``. Source: the PTX ISA, sections 9.7.1 to 9.7.9.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

UNSIGNED: dict[int, Any] = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SIGNED: dict[int, Any] = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
FLOATS: dict[int, Any] = {16: np.float16, 32: np.float32, 64: np.float64}
KINDS = {"u": UNSIGNED, "b": UNSIGNED, "s": SIGNED, "f": FLOATS}
Array = Any
Function = Callable[..., Array]


def width_of(kind: str) -> int:
    """Bits of a type such as ``f32``; of ``pred`` 1."""
    return 1 if kind == "pred" else 16 if kind == "bf16" else int(kind[1:])


def dtype_of(kind: str) -> Any:
    """The type of NumPy; truth values for ``pred``, bits for ``bf16``."""
    if kind == "pred":
        return np.bool_
    return np.uint16 if kind == "bf16" else KINDS[kind[0]][int(kind[1:])]


def arithmetic(parts: tuple[str, ...], kind: str) -> Function:
    """The function of an opcode, split at its dots, over operands of type ``kind``. Raises: NotImplementedError."""
    name = parts[0]
    if kind == "pred":
        found = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor, "not": np.logical_not}.get(name)
    elif "wide" in parts:
        found = _wide(name, kind)
    elif "hi" in parts and name in ("mul", "mad"):
        found = _high(name, kind)
    elif kind == "bf16":
        found = _short(_float(name, parts, "f32"))
    elif kind[0] == "f":
        found = _float(name, parts, kind)
    else:
        found = _integer(name, kind)
    if found is None:
        raise NotImplementedError(f"ptx: {'.'.join(parts)} is not known")
    return found


def _wide(name: str, kind: str) -> Function:
    double = KINDS[kind[0]][2 * width_of(kind)]

    def run(a: Array, b: Array, c: Array | None = None) -> Array:
        product = np.multiply(a, b, dtype=double)
        return product if c is None else product + c

    return run


def _high(name: str, kind: str) -> Function:
    width = width_of(kind)
    if width == 32:
        double, single = KINDS[kind[0]][64], KINDS[kind[0]][32]

        def of_words(a: Array, b: Array, c: Array | None = None) -> Array:
            high = (np.multiply(a, b, dtype=double) >> double(32)).astype(single)
            return high if c is None else high + c

        return of_words

    def exact(a: Array, b: Array, c: Array | None = None) -> Array:
        words = [int(x) * int(y) >> 64 & (1 << 64) - 1 for x, y in np.nditer([np.atleast_1d(a), b])]
        high = np.array(words, np.uint64).view(dtype_of(kind))
        return high if c is None else high + c

    return exact


def _float(name: str, parts: tuple[str, ...], kind: str) -> Function | None:
    f = dtype_of(kind)
    nan = "NaN" in parts
    wider = {16: np.float32, 32: np.float64, 64: np.longdouble}[width_of(kind)]
    table: dict[str, Function] = {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "div": np.divide,
        "neg": np.negative,
        "abs": np.abs,
        "max": np.maximum if nan else np.fmax,
        "min": np.minimum if nan else np.fmin,
        "fma": lambda a, b, c: (np.multiply(a, b, dtype=wider) + c).astype(f),
        "rcp": lambda a: (1 / a).astype(f),
        "sqrt": np.sqrt,
        "rsqrt": lambda a: (1 / np.sqrt(a)).astype(f),
        "ex2": np.exp2,
        "lg2": np.log2,
        "sin": np.sin,
        "cos": np.cos,
        "tanh": np.tanh,
    }
    found = table.get(name)
    if found is None or "ftz" not in parts:
        return found
    least = np.finfo(f).tiny

    def flushed(*operands: Array) -> Array:
        made = found(*(_flush(x, least) for x in operands))
        return _flush(made, least)

    return flushed


def _flush(x: Array, least: float) -> Array:
    return np.where(np.abs(x) < least, np.copysign(0, x), x).astype(x.dtype)


def _integer(name: str, kind: str) -> Function | None:
    width, t = width_of(kind), dtype_of(kind)
    u = UNSIGNED[width]

    def shifted(left: bool) -> Function:
        def run(a: Array, by: Array) -> Array:
            some = np.minimum(by, width - 1).astype(t)
            if left:
                return np.where(by >= width, t(0), a << some)
            return np.where(by >= width, (a >> t(width - 1)) if kind[0] == "s" else t(0), a >> some)

        return run

    def quotient(a: Array, b: Array) -> Array:
        near = a // b
        return near + ((a % b != 0) & ((a < 0) != (b < 0))) if kind[0] == "s" else near

    def bits(a: Array, start: Array, count: Array) -> Array:
        top = t(width) - start.astype(t) - count.astype(t)
        return (a << top) >> (top + start.astype(t))

    def turned(low: Array, high: Array, by: Array) -> Array:
        both = high.astype(np.uint64) << np.uint64(32) | low
        return (both << (by & np.uint32(31)).astype(np.uint64) >> np.uint64(32)).astype(u)

    return {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "mad": lambda a, b, c: a * b + c,
        "div": quotient,
        "rem": lambda a, b: a - quotient(a, b) * b,
        "max": np.maximum,
        "min": np.minimum,
        "neg": lambda a: (~a + t(1)) if kind[0] != "s" else np.negative(a),
        "abs": np.abs,
        "not": np.invert,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "shl": shifted(True),
        "shr": shifted(False),
        "bfe": bits,
        "shf": turned,
        "lop3": _lop3(u),
        "prmt": _permuted,
        "popc": lambda a: np.bitwise_count(a).astype(np.uint32),
    }.get(name)


def _lop3(u: Any) -> Function:
    def run(a: Array, b: Array, c: Array, table: Array) -> Array:
        made = u(0)
        for k in range(8):
            if int(np.ravel(table)[0]) >> k & 1:
                one = [x if k >> 2 - i & 1 else ~x for i, x in enumerate((a, b, c))]
                made = made | (one[0] & one[1] & one[2])
        return made

    return run


def _permuted(a: Array, b: Array, pick: Array) -> Array:
    both = b.astype(np.uint64) << np.uint64(32) | a
    made = np.uint32(0)
    for k in range(4):
        at = pick.astype(np.uint64) >> np.uint64(4 * k) & np.uint64(15)
        byte = both >> ((at & np.uint64(7)) * np.uint64(8)) & np.uint64(255)
        byte = np.where(at & np.uint64(8), np.where(byte & np.uint64(128), np.uint64(255), np.uint64(0)), byte)
        made = made | (byte << np.uint64(8 * k)).astype(np.uint32)
    return made


def comparison(name: str, kind: str) -> Function:
    """Of ``setp``: for floats false where one is NaN, and true where the name ends in ``u``."""
    plain = {
        "lt": np.less,
        "le": np.less_equal,
        "gt": np.greater,
        "ge": np.greater_equal,
        "eq": np.equal,
        "ne": np.not_equal,
    } | {"lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal}
    if kind[0] != "f":
        return plain[name]

    def unordered(a: Array, b: Array) -> Array:
        return np.isnan(a) | np.isnan(b)

    if name in ("nan", "num"):
        return unordered if name == "nan" else lambda a, b: ~unordered(a, b)
    if name == "ne":
        return lambda a, b: (a != b) & ~unordered(a, b)
    if name.endswith("u"):
        return lambda a, b: plain[name[:-1]](a, b) | unordered(a, b)
    return plain[name]


def conversion(parts: tuple[str, ...]) -> Function:
    """Of ``cvt``: from the last type to the one before it."""
    to, of = parts[-2:]
    if "bf16" in (to, of):
        return _to_short if to == "bf16" else _from_short
    rounded = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
    how = next((rounded[p] for p in parts if p in rounded), None)
    wanted = dtype_of(to)

    def run(a: Array) -> Array:
        if of[0] == "f" and how is not None:
            a = how(a)
        if of[0] == "f" and to[0] != "f":
            bounds = np.iinfo(wanted)
            inside = np.clip(np.nan_to_num(a.astype(np.float64)), float(bounds.min), float(bounds.max))
            return inside.astype(wanted)
        return a.astype(wanted)

    return run


def _short(inner: Function | None) -> Function | None:
    """A function of float32 on bfloat16: rounded once."""
    if inner is None:
        return None
    return lambda *given: _to_short(inner(*map(_from_short, given)))


def _to_short(a: Array) -> Array:
    bits = np.asarray(a, np.float32).view(np.uint32)
    near = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(a), np.uint32(0x7FFF), near).astype(np.uint16)


def _from_short(a: Array) -> Array:
    return (a.astype(np.uint32) << np.uint32(16)).view(np.float32)


__all__ = ["UNSIGNED", "arithmetic", "comparison", "conversion", "dtype_of", "width_of"]
