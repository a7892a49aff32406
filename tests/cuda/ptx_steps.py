"""From an instruction to what it does to a machine: its operands are looked up once, when a program is first run.

Comes in: an :class:`Instruction`. Goes out: a function of a machine and the threads that execute it. Called by
``ptx.py``. Source: the PTX ISA, section 9.7.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from cuda.ptx_arithmetic import UNSIGNED, arithmetic, comparison, conversion, dtype_of, width_of
from cuda.ptx_text import Fault, Instruction

Array = Any
_SHARED = 32  # bits of an address of shared and of local memory

Step = Callable[[Any, Any], None]


def operand(text: str, kind: str) -> Callable[[Any, Any], Array]:
    """A register, a number or a name, as an array of type ``kind``."""
    width, wanted = width_of(kind), dtype_of(kind)
    if text.startswith("%"):

        def read(machine: Any, lanes: Any) -> Array:
            bits = machine.get(text, lanes, max(width, 8))
            return bits if bits.dtype == wanted or wanted is np.bool_ else bits.view(wanted)

        return read
    if text[:2] in ("0f", "0F", "0d", "0D"):
        fixed = UNSIGNED[32 if text[1] in "fF" else 64](int(text[2:], 16)).view(wanted)
    elif re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)U?", text):
        number = int(text.rstrip("U"), 0)
        fixed = np.bool_(number) if kind == "pred" else UNSIGNED[width](number & (1 << width) - 1).view(wanted)
    elif text == "global_smem" or text.startswith("__local_depot"):
        fixed = UNSIGNED[width](0).view(wanted)
    else:
        return lambda machine, lanes: UNSIGNED[width](machine.program.constants[text].ctypes.data).view(wanted)
    return lambda machine, lanes: fixed


def addressed(text: str, width: int) -> Callable[[Any, Any], Array]:
    """``[register + offset]``."""
    base, _, offset = text[1:-1].partition("+")
    read, more = operand(base.strip(), f"b{width}"), UNSIGNED[width](int(offset or 0) & (1 << width) - 1)
    return lambda machine, lanes: read(machine, lanes) + more


def listed(text: str) -> list[str]:
    """The registers of ``{a, b}``, or the one."""
    return [name.strip() for name in text.strip("{} ").split(",")]


def computed(i: Instruction) -> Step:
    """Arithmetic: registers to a register."""
    kind = i.parts[-1]
    function = arithmetic(i.parts, kind)
    kinds = [kind] * (len(i.operands) - 1)
    if i.parts[0] in ("shl", "shr"):
        kinds[1] = "u32"
    elif i.parts[0] == "bfe":
        kinds[1:] = ["u32", "u32"]
    elif "wide" in i.parts and len(kinds) == 3:
        kinds[2] = f"{kind[0]}{2 * width_of(kind)}"
    given, to = [operand(text, k) for text, k in zip(i.operands[1:], kinds, strict=True)], i.operands[0]

    def run(machine: Any, lanes: Any) -> None:
        machine.put(to, lanes, function(*(read(machine, lanes) for read in given)))

    return run


def _parameter(i: Instruction) -> Step:
    kind, name, to = i.parts[-1], i.operands[1].strip("[] "), i.operands[0]

    def run(machine: Any, lanes: Any) -> None:
        given = machine.given[name]
        if isinstance(given, float):
            value = np.float32(given) if width_of(kind) == 32 else np.float64(given)
        else:
            width = width_of(kind)
            value = UNSIGNED[width](given & (1 << width) - 1).view(dtype_of(kind))
        machine.put(to, lanes, value)

    return run


def _load(i: Instruction) -> Step:
    space, kind = i.parts[1], i.parts[-1]
    if space == "param":
        return _parameter(i)
    to, width = listed(i.operands[0]), width_of(kind)
    nbytes = width // 8 * len(to)
    if space == "global":
        where = addressed(i.operands[1], 64)
        return lambda machine, lanes: machine.load(to, where(machine, lanes), width, lanes, kind)
    near = addressed(i.operands[1], _SHARED)
    if space not in ("shared", "local"):
        raise NotImplementedError(f"ptx: {i.text} is not known")

    def run(machine: Any, lanes: Any) -> None:
        if space == "shared":
            data = machine.load_fast(machine.fast_places(near(machine, lanes), nbytes, lanes), lanes)
        else:
            data = machine.local[machine.local_places(near(machine, lanes), nbytes, lanes)]
        values = np.ascontiguousarray(data).view(dtype_of(kind))
        for j, register in enumerate(to):
            machine.put(register, lanes, values[:, j].copy())

    return run


def _store(i: Instruction) -> Step:
    space, width = i.parts[1], width_of(i.parts[-1])
    given = [operand(text, f"b{width}") for text in listed(i.operands[1])]
    if space == "global":
        where = addressed(i.operands[0], 64)

        def far(machine: Any, lanes: Any) -> None:
            machine.store([read(machine, lanes) for read in given], where(machine, lanes), width, lanes)

        return far
    near, nbytes = addressed(i.operands[0], _SHARED), width // 8 * len(given)
    if space not in ("shared", "local"):
        raise NotImplementedError(f"ptx: {i.text} is not known")

    def run(machine: Any, lanes: Any) -> None:
        count = len(machine.block[lanes])
        values = np.stack([np.broadcast_to(read(machine, lanes), (count,)) for read in given], 1)
        data = np.ascontiguousarray(values).view(np.uint8)
        if space == "shared":
            machine.store_fast(machine.fast_places(near(machine, lanes), nbytes, lanes), data, lanes)
        else:
            machine.local[machine.local_places(near(machine, lanes), nbytes, lanes)] = data

    return run


def _matrices(i: Instruction) -> Step:
    """``ldmatrix``, ``stmatrix``: matrices of 8 x 8 halves; thread t has two neighbours of row t / 4 of each, and
    thread 8 m + r says where row r of matrix m lies."""
    if "trans" in i.parts or "m8n8" not in i.parts:
        raise NotImplementedError(f"ptx: {i.text} is not known")
    loads = i.parts[0] == "ldmatrix"
    names, place = (listed(i.operands[0]), i.operands[1]) if loads else (listed(i.operands[1]), i.operands[0])
    near = addressed(place, _SHARED)
    reads = [operand(name, "b32") for name in names]

    def run(machine: Any, lanes: Any) -> None:
        address = np.zeros(machine.count, np.uint32)
        address[lanes] = near(machine, lanes)
        first, lane = machine.first[lanes], machine.lane[lanes]
        for m, name in enumerate(names):
            row = address[first + 8 * m + lane // 4]
            if (row % np.uint32(16)).any():
                raise Fault("shared memory, a row that is not aligned")
            at = machine.fast_places(row + (lane % 4).astype(np.uint32) * np.uint32(4), 4, lanes)
            if loads:
                data = machine.load_fast(at, lanes)
                machine.put(name, lanes, np.ascontiguousarray(data).view(np.uint32)[:, 0].copy())
            else:
                value = np.broadcast_to(reads[m](machine, lanes), first.shape)
                machine.store_fast(at, np.ascontiguousarray(value)[:, None].view(np.uint8), lanes)

    return run


def _shuffle(i: Instruction) -> Step:
    mode, to = i.parts[2], i.operands[0].split("|")[0].strip()
    value, where = operand(i.operands[1], "b32"), operand(i.operands[2], "b32")
    if mode not in ("bfly", "idx", "down", "up") or int(i.operands[4], 0) & 0xFFFFFFFF != 0xFFFFFFFF:
        raise NotImplementedError(f"ptx: {i.text} is not known")

    def run(machine: Any, lanes: Any) -> None:
        given = np.zeros(machine.count, np.uint32)
        given[lanes] = value(machine, lanes)
        lane, by = machine.lane[lanes], np.asarray(where(machine, lanes)).astype(np.int64)
        source = {"bfly": lane ^ by, "idx": by & 31, "down": lane + by, "up": lane - by}[mode]
        source = np.where((source < 0) | (source > 31), lane, source)
        machine.put(to, lanes, given[machine.first[lanes] + source])

    return run


def _reduced(i: Instruction) -> Step:
    """``redux``: one number of the threads of a warp that the mask names."""
    kind, functions = i.parts[-1], {"min": np.minimum, "max": np.maximum, "add": np.add}
    if i.parts[2] not in functions:
        raise NotImplementedError(f"ptx: {i.text} is not known")
    read, members, function = operand(i.operands[1], kind), operand(i.operands[2], "b32"), functions[i.parts[2]]

    def run(machine: Any, lanes: Any) -> None:
        count = len(machine.lane[lanes])
        given = np.broadcast_to(read(machine, lanes), (count,)).reshape(-1, 32)
        mask = np.broadcast_to(members(machine, lanes), (count,)).reshape(-1, 32, 1)
        inside = (mask >> np.arange(32, dtype=np.uint32) & np.uint32(1)).astype(bool)
        if not inside[:, np.arange(32), np.arange(32)].all():
            raise Fault("a thread that the mask does not name")
        bounds = np.iinfo(given.dtype)
        none = {"min": bounds.max, "max": bounds.min, "add": 0}[i.parts[2]]
        made = function.reduce(np.where(inside, given[:, None, :], given.dtype.type(none)), axis=2)
        machine.put(i.operands[0], lanes, made.reshape(-1).astype(given.dtype))

    return run


def _move(i: Instruction) -> Step:
    kind, (to, of) = i.parts[-1], i.operands
    width = width_of(kind)
    if of.startswith("{"):
        parts = [operand(name, f"b{width // len(listed(of))}") for name in listed(of)]

        def joined(machine: Any, lanes: Any) -> None:
            made = UNSIGNED[width](0)
            for k, read in enumerate(parts):
                made = made | (read(machine, lanes).astype(UNSIGNED[width]) << UNSIGNED[width](k * width // len(parts)))
            machine.put(to, lanes, made)

        return joined
    read = operand(of, kind)
    if not to.startswith("{"):
        return lambda machine, lanes: machine.put(to, lanes, np.array(read(machine, lanes)))
    names = listed(to)
    short = width // len(names)

    def split(machine: Any, lanes: Any) -> None:
        value = read(machine, lanes).view(UNSIGNED[width])
        for k, name in enumerate(names):
            machine.put(name, lanes, (value >> UNSIGNED[width](k * short)).astype(UNSIGNED[short]))

    return split


def _compare(i: Instruction) -> Step:
    if len(i.parts) > 3 and i.parts[2] != "ftz":
        raise NotImplementedError(f"ptx: {i.text} is not known")
    function, kind = comparison(i.parts[1], i.parts[-1]), i.parts[-1]
    a, b = (operand(text, kind) for text in i.operands[1:3])
    return lambda machine, lanes: machine.put(i.operands[0], lanes, function(a(machine, lanes), b(machine, lanes)))


def _choose(i: Instruction) -> Step:
    a, b = (operand(text, i.parts[-1]) for text in i.operands[1:3])
    which = operand(i.operands[3], "pred")

    def run(machine: Any, lanes: Any) -> None:
        machine.put(i.operands[0], lanes, np.where(which(machine, lanes), a(machine, lanes), b(machine, lanes)))

    return run


def _convert(i: Instruction) -> Step:
    if len(i.operands) == 3 and i.parts[-2] in ("f16x2", "bf16x2"):
        return _convert_pair(i)
    function, read = conversion(i.parts), operand(i.operands[1], i.parts[-1])
    if len(i.operands) != 2:
        raise NotImplementedError(f"ptx: {i.text} is not known")
    return lambda machine, lanes: machine.put(i.operands[0], lanes, function(np.asarray(read(machine, lanes))))


def _convert_pair(i: Instruction) -> Step:
    """Two numbers of 16 bits in one register: the first operand in the upper half."""
    function = conversion((*i.parts[:-2], i.parts[-2].removesuffix("x2"), i.parts[-1]))
    high, low = (operand(text, i.parts[-1]) for text in i.operands[1:])

    def run(machine: Any, lanes: Any) -> None:
        bits = [function(np.asarray(read(machine, lanes))).view(np.uint16) for read in (high, low)]
        machine.put(i.operands[0], lanes, bits[0].astype(np.uint32) << np.uint32(16) | bits[1])

    return run


def _with_carry(i: Instruction) -> Step:
    """``mad.lo.cc`` and ``madc.hi``: a product of 64 bits, by halves."""
    a, b, c = (operand(text, "u32") for text in i.operands[1:])
    high = i.parts[0] == "madc"
    if i.parts[1] != ("hi" if high else "lo") or i.parts[-1] != "u32":
        raise NotImplementedError(f"ptx: {i.text} is not known")

    def run(machine: Any, lanes: Any) -> None:
        product = np.multiply(a(machine, lanes), b(machine, lanes), dtype=np.uint64)
        part = product >> np.uint64(32) if high else product & np.uint64(0xFFFFFFFF)
        total = part + c(machine, lanes)
        if high:
            total = total + machine.get("%cc", lanes, 8)
        machine.put(i.operands[0], lanes, (total & np.uint64(0xFFFFFFFF)).astype(np.uint32))
        if "cc" in i.parts:
            machine.put("%cc", lanes, total >> np.uint64(32) != 0)

    return run


def _barrier(i: Instruction) -> Step:
    of_warp = "warp" in i.parts
    return lambda machine, lanes: machine.wait(lanes, not of_warp)


_SPECIAL: dict[str, Callable[[Instruction], Step]] = {
    "ld": _load,
    "st": _store,
    "ldmatrix": _matrices,
    "stmatrix": _matrices,
    "shfl": _shuffle,
    "redux": _reduced,
    "mov": _move,
    "setp": _compare,
    "selp": _choose,
    "cvt": _convert,
    "madc": _with_carry,
    "bar": _barrier,
    "barrier": _barrier,
    "cvta": lambda i: _move(i._replace(parts=("mov", f"b{i.parts[-1][1:]}"))),
    "bra": lambda i: lambda machine, lanes: None,  # by the machine
    "ret": lambda i: lambda machine, lanes: None,
}


def step(i: Instruction) -> Step:
    """What an instruction does to a machine. Raises: NotImplementedError for one that is not known."""
    if i.parts[:3] == ("mad", "lo", "cc"):
        return _with_carry(i)
    return _SPECIAL.get(i.parts[0], computed)(i)


__all__ = ["Step", "step"]
