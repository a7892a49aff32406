"""Runs compiled PTX in NumPy, all threads of a launch at once, and checks every access to memory.

Comes in: the text of a kernel, a grid, arguments and the arrays that they point into. Goes out: what the kernel stores,
and a :class:`Traffic`. A register is an array with one element a thread. Threads stand in groups by the instruction
that they are at; the group that is furthest behind runs on until it meets another, so threads of a warp join again
where their ways do.

Errors: an address outside of every array, or not aligned; an address that two blocks store, or that one reads and
another stores; shared memory outside of what the kernel asked for, or handed from thread to thread without a barrier
between; a barrier or a shuffle that a part of its threads reaches; a register that is read and never written.

Not seen: time, caches, the last bits of approximate functions. Source: the PTX ISA.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from cuda.ptx_arithmetic import UNSIGNED, dtype_of
from cuda.ptx_steps import step as step_of
from cuda.ptx_text import Fault, Instruction, Program

Array = Any
WARP = 32
SECTOR = np.uint64(5)  # bits of a place in 32 bytes
_MANY = -2  # several blocks or threads read it
_TOGETHER = ("bar", "barrier", "shfl", "redux", "ldmatrix", "stmatrix")


@dataclass
class Traffic:
    """What a launch did.

    Attributes:
        instructions: Issued to a warp, guarded ones too.
        sectors: 32 bytes of global memory, by "ld" and "st": those that a request touches.
        requests: Of warps.
        accesses: Of threads.
    """

    instructions: int = 0
    sectors: dict[str, int] = field(default_factory=lambda: {"ld": 0, "st": 0})
    requests: dict[str, int] = field(default_factory=lambda: {"ld": 0, "st": 0})
    accesses: dict[str, int] = field(default_factory=lambda: {"ld": 0, "st": 0})


class _Array(NamedTuple):
    """Registered memory: bytes, and per 4 bytes the block that stores them and that which reads them, or -1."""

    start: int
    data: Array
    stored: Array
    read: Array


class Machine:
    """One launch.

    Args:
        program: What runs.
        shared: Bytes of shared memory of a block.
        grid: Blocks along x and y.
        arguments: One a parameter; what is left out is 0.
        arrays: Memory that may be accessed.
        counting: Whether sectors are counted, which takes time.
    """

    def __init__(
        self,
        program: Program,
        shared: int,
        grid: Sequence[int],
        arguments: Sequence[int | float],
        arrays: Sequence[Array],
        counting: bool = False,
    ) -> None:
        self.program, self.shared, self.counting = program, shared, counting
        across, down = grid[0], grid[1] if len(grid) > 1 else 1
        self.count = across * down * program.threads
        lane = np.arange(self.count)
        self.block, thread = np.divmod(lane, program.threads)
        self.warp = self.block * -(-program.threads // WARP) + thread // WARP
        self.lane = thread % WARP
        self.first = lane - self.lane  # of a thread's warp
        self.special = {
            "%tid.x": thread.astype(np.uint32),
            "%ctaid.x": (self.block % across).astype(np.uint32),
            "%ctaid.y": (self.block // across).astype(np.uint32),
            "%laneid": self.lane.astype(np.uint32),
            "%ntid.x": np.uint32(program.threads),
            "%nctaid.x": np.uint32(across),
            "%nctaid.y": np.uint32(down),
        }
        given = [*arguments, *[0] * len(program.parameters)]
        self.given = {name: given[k] for k, (_, name) in enumerate(program.parameters)}
        self.registers: dict[str, Array] = {}
        self.arrays = sorted((_registered(a) for a in [*arrays, *program.constants.values()]), key=lambda a: a.start)
        self.starts = np.array([a.start for a in self.arrays], np.uint64)
        self.ends = self.starts + np.array([a.data.size for a in self.arrays], np.uint64)
        self.local = np.zeros(self.count * program.local, np.uint8)
        bytes_of_all = across * down * shared
        self.fast = np.zeros(bytes_of_all, np.uint8)
        self.writer, self.reader = np.full(bytes_of_all, -1), np.full(bytes_of_all, -1)
        self.written_at = np.zeros((2, bytes_of_all), np.int64)  # barriers of block and warp before
        self.read_at = np.zeros((2, bytes_of_all), np.int64)
        self.barriers = np.zeros((2, self.count), np.int64)
        self.traffic = Traffic()
        self.alive = np.ones(self.count, bool)

    def run(self) -> Traffic:
        """Until all threads are at their end. Raises: Fault."""
        code = self.program.code
        steps = self.program.steps(step_of)
        every: Any = slice(None)
        groups: dict[int, Any] = {0: every}
        waiting: set[int] = set()  # groups that need others of their warps or blocks
        with np.errstate(all="ignore"):
            while groups:
                at = min(groups.keys() - waiting, default=-1)
                if at < 0:
                    raise Fault(f"{self.program.name}: only a part of the threads reaches {code[min(groups)].text}")
                lanes = groups.pop(at)
                stop = min((other for other in groups if other > at), default=len(code))
                warps = len(np.unique(self.warp[lanes]))
                while at < stop:
                    instruction, step = code[at], steps[at]
                    if instruction.parts[0] in _TOGETHER and not self._complete(lanes, instruction.parts):
                        waiting.add(at)
                        break
                    self.traffic.instructions += warps
                    chosen = lanes if instruction.guard is None else self._guarded(instruction, lanes)
                    if instruction.parts[0] == "bra":
                        waiting -= {at + 1, self.program.labels[instruction.operands[-1]]}
                        self._branch(groups, lanes, chosen, self.program.labels[instruction.operands[-1]], at + 1)
                        lanes = None
                        break
                    if instruction.parts[0] in ("ret", "exit"):
                        self.alive[chosen] = False
                        lanes = _without(lanes, chosen, self.count)
                        if lanes is None:
                            break
                    elif chosen is not None:
                        try:
                            step(self, chosen)
                        except Fault as fault:
                            raise Fault(f"{self.program.name}: {fault}: {instruction.text}") from None
                    at += 1
                if lanes is not None and at < len(code):
                    if at in groups:
                        waiting.discard(at)
                    self._join(groups, at, lanes)
        return self.traffic

    def _guarded(self, instruction: Instruction, lanes: Any) -> Any:
        """Threads whose guard holds; None for none."""
        assert instruction.guard is not None
        holds = self.registers[instruction.guard][lanes] != instruction.negated
        if holds.all():
            return lanes
        kept = np.flatnonzero(holds) if isinstance(lanes, slice) else lanes[holds]
        return kept if len(kept) else None

    def _branch(self, groups: dict[int, Any], lanes: Any, taken: Any, target: int, after: int) -> None:
        rest = lanes if taken is None else _without(lanes, taken, self.count)
        if taken is not None:
            self._join(groups, target, taken)
        if rest is not None:
            self._join(groups, after, rest)

    def _join(self, groups: dict[int, Any], at: int, lanes: Any) -> None:
        if at in groups:
            lanes = np.sort(np.concatenate([groups[at], lanes]))
        if not isinstance(lanes, slice) and len(lanes) == self.count:
            lanes = slice(None)
        if at < len(self.program.code):
            groups[at] = lanes

    # -- registers

    def get(self, name: str, lanes: Any, width: int) -> Array:
        """Bits of a register, of its low ``width`` ones."""
        value = self.special.get(name)
        if value is None:
            value = self.registers.get(name)
        if value is None:
            raise Fault(f"{name} is read and was never written")
        if np.ndim(value):
            value = value[lanes]
        return value if value.dtype.itemsize * 8 == width or value.dtype == np.bool_ else value.astype(UNSIGNED[width])

    def put(self, name: str, lanes: Any, value: Array) -> None:
        """Stores a result, wider or narrower than the register or not."""
        if name == "_":
            return
        width = self.program.width(name)
        wanted = np.bool_ if width == 1 else UNSIGNED[width]
        value = np.asarray(value)
        if value.dtype != wanted:
            if value.dtype.itemsize * 8 == width:
                value = value.view(wanted)
            elif value.dtype.kind == "f":
                value = value.view(UNSIGNED[value.dtype.itemsize * 8]).astype(wanted)
            else:
                value = value.astype(wanted)  # of the instruction's sign
        if isinstance(lanes, slice):
            self.registers[name] = np.full(self.count, value) if value.ndim == 0 else value
            return
        held = self.registers.get(name)
        if held is None:
            held = np.zeros(self.count, wanted) if width == 1 else np.full(self.count, -1).astype(wanted)
        else:
            held = held.copy()  # another register may share it
        held[lanes] = value
        self.registers[name] = held

    # -- memory

    def places(self, kind: str, address: Array, nbytes: int, lanes: Any) -> list[tuple[_Array, Any, Array]]:
        """Per array that is accessed: it, which of the lanes, and places in bytes."""
        block = self.block[lanes]
        if (address & np.uint64(nbytes - 1)).any():
            raise Fault(f"{kind} of {nbytes} bytes that is not aligned, block {int(block[0])}")
        which = np.searchsorted(self.starts, address, side="right").astype(np.int64) - 1
        bad = (which < 0) | (address + np.uint64(nbytes) > self.ends[np.maximum(which, 0)])
        if bad.any():
            raise Fault(f"{kind} outside of every array by {int(bad.sum())} threads, block {int(block[bad][0])}")
        if self.counting:
            self._count(kind, address, lanes)
        first = int(which[0])
        if (which == first).all():
            found = self.arrays[first]
            return [(found, slice(None), (address - self.starts[first]).astype(np.int64))]
        made = []
        for k in np.unique(which):
            own = np.flatnonzero(which == k)
            made.append((self.arrays[k], own, (address[own] - self.starts[k]).astype(np.int64)))
        return made

    def _count(self, kind: str, address: Array, lanes: Any) -> None:
        sector = address >> SECTOR
        near = (sector - sector.min()).astype(np.int64)
        warp = self.warp[lanes]
        self.traffic.sectors[kind] += len(np.unique(warp * (int(near.max()) + 1) + near))
        self.traffic.requests[kind] += len(np.unique(warp))
        self.traffic.accesses[kind] += len(address)

    def load(self, registers: list[str], address: Array, width: int, lanes: Any, kind: str) -> None:
        """From global memory."""
        found = self.places("ld", address, width // 8 * len(registers), lanes)
        block = self.block[lanes]
        for j, register in enumerate(registers):
            value = np.empty(len(address), dtype_of(kind))
            for array, own, at in found:
                place = at // (width // 8) + j
                value[own] = array.data.view(dtype_of(kind))[place]
                self._note_read(array, (at + j * (width // 8)) // 4, block[own])
            self.put(register, lanes, value)

    def _note_read(self, array: _Array, word: Array, block: Array) -> None:
        stored = array.stored[word]
        if ((stored >= 0) & (stored != block)).any():
            raise Fault("ld of what another block stores")
        before = array.read[word]
        array.read[word] = np.where((before == -1) | (before == block), block, _MANY)
        if (array.read[word] != block).any():
            array.read[word[array.read[word] != block]] = _MANY

    def store(self, values: list[Array], address: Array, width: int, lanes: Any) -> None:
        """To global memory."""
        block = self.block[lanes]
        for array, own, at in self.places("st", address, width // 8 * len(values), lanes):
            mine = block[own]
            for j, value in enumerate(values):
                word, place = (at + j * (width // 8)) // 4, at // (width // 8) + j
                if width >= 32:  # of shorter ones, two lie in a word
                    self._note_store(array, word, mine)
                given = np.broadcast_to(value, block.shape)[own]
                data = array.data.view(UNSIGNED[width])
                data[place] = given
                if (data[place] != given).any():
                    raise Fault("st of two values to one address at once")

    @staticmethod
    def _note_store(array: _Array, word: Array, block: Array) -> None:
        before, read = array.stored[word], array.read[word]
        array.stored[word] = block
        if ((before >= 0) & (before != block)).any() or (array.stored[word] != block).any():
            raise Fault("st to an address that two blocks store")
        if ((read != -1) & (read != block)).any():
            raise Fault("st to an address that another block reads")

    def fast_places(self, address: Array, nbytes: int, lanes: Any) -> Array:
        """Places of bytes in shared memory: (threads, bytes)."""
        address = np.broadcast_to(address, self.block[lanes].shape).astype(np.int64)
        if ((address < 0) | (address + nbytes > self.shared)).any():
            raise Fault(f"shared memory outside of {self.shared} bytes")
        if (address % nbytes).any():
            raise Fault(f"shared memory, {nbytes} bytes that are not aligned")
        return (self.block[lanes] * self.shared + address)[:, None] + np.arange(nbytes)

    def load_fast(self, at: Array, lanes: Any) -> Array:
        """Bytes of shared memory, which no other thread may have written since a barrier."""
        thread = np.arange(self.count)[lanes]
        writer = self.writer[at]
        self._ordered(writer, self.written_at[:, at], thread, "read", "written")
        before = self.reader[at]
        fresh = (before == -1) | (self.read_at[0, at] < self.barriers[0, thread][:, None])
        self.reader[at] = np.where(fresh | (before == thread[:, None]), thread[:, None], _MANY)
        self.reader[at] = np.where(self.reader[at] == thread[:, None], thread[:, None], _MANY)
        for k in range(2):
            self.read_at[k, at] = self.barriers[k, thread][:, None]
        return self.fast[at]

    def store_fast(self, at: Array, value: Array, lanes: Any) -> None:
        """Bytes to shared memory, which no other thread may have read or written since a barrier."""
        thread = np.arange(self.count)[lanes]
        self._ordered(self.writer[at], self.written_at[:, at], thread, "written", "written")
        self._ordered(self.reader[at], self.read_at[:, at], thread, "written", "read")
        self.fast[at] = value
        self.writer[at], self.reader[at] = thread[:, None], -1
        if (self.writer[at] != thread[:, None]).any() and (self.fast[at] != value).any():
            raise Fault("shared memory, two values to one address at once")
        for k in range(2):
            self.written_at[k, at] = self.barriers[k, thread][:, None]

    def _ordered(self, other: Array, since: Array, thread: Array, does: str, did: str) -> None:
        now = self.barriers[:, thread][:, :, None]
        same_warp = (other >= 0) & (self.warp[np.maximum(other, 0)] == self.warp[thread][:, None])
        same_warp |= other == _MANY if self.program.threads == WARP else False
        ordered = (now[0] > since[0]) | (same_warp & (now[1] > since[1]))
        if ((other != -1) & (other != thread[:, None]) & ~ordered).any():
            raise Fault(f"shared memory is {does} without a barrier after another thread has {did} it")

    def local_places(self, address: Array, nbytes: int, lanes: Any) -> Array:
        """Places of bytes in the memory of a thread's own."""
        thread, size = np.arange(self.count)[lanes], self.program.local
        address = np.broadcast_to(address, thread.shape).astype(np.int64)
        if ((address < 0) | (address + nbytes > size)).any():
            raise Fault(f"local memory outside of {size} bytes")
        return (thread * size + address)[:, None] + np.arange(nbytes)

    def _complete(self, lanes: Any, parts: tuple[str, ...]) -> bool:
        """Whether all threads that still run are there, of the blocks for a barrier, else of the warps."""
        kind = self.block if parts[0] in ("bar", "barrier") and "warp" not in parts else self.warp
        here, running = np.bincount(kind[lanes]), np.bincount(kind[self.alive])
        present = here > 0
        return bool((here[present] == running[: len(here)][present]).all())

    def wait(self, lanes: Any, of_block: bool) -> None:
        """A barrier, of the block or of the warp."""
        for k in range(0 if of_block else 1, 2):
            now = self.barriers[k].copy()
            now[lanes] += 1
            self.barriers[k] = now


def _registered(array: Array) -> _Array:
    data = np.atleast_1d(array).reshape(-1).view(np.uint8)
    words = data.size // 4 + 1
    return _Array(array.ctypes.data, data, np.full(words, -1, np.int32), np.full(words, -1, np.int32))


def _without(lanes: Any, some: Any, count: int) -> Any:
    """The lanes that are not among some; None for none."""
    if some is None:
        return lanes
    if isinstance(some, slice):
        return None
    left = np.ones(count, bool)
    left[some] = False
    rest = np.flatnonzero(left) if isinstance(lanes, slice) else lanes[left[lanes]]
    return rest if len(rest) else None


__all__ = ["Fault", "Machine", "Program", "Traffic"]
