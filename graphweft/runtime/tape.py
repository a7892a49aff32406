"""A computation written down as native calls, to be run again on the same addresses without Python between the calls.

Comes in: a function that does the same on every call: the same kernels, sizes and inputs in the same memory. Goes out:
a :class:`Tape`, or None where torch computed more on the way than fills, copies of rows and sums, which are written
down as well. The trainer records its step: between two calls of Python all kernels are one foreign call.
Intermediate tensors live in an arena, a pool of the tape's own, which others may use between two replays.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from graphweft import _native
from graphweft._memory import POOL, SMALL, Pool
from graphweft.ir.ops import Op
from graphweft.runtime.packed_calls import Calls, PackedCalls

# what may be asked of torch while a tape is recorded: memory, and a look at a tensor or at its memory in another shape
_HARMLESS = frozenset({
    "frombuffer", "as_strided", "empty_strided",
    "empty", "new_empty", "from_numpy", "detach", "view", "t", "expand", "__get__", "data_ptr", "stride", "size", "dim",
    "numel", "_set_grad_enabled", "is_contiguous", "is_inference", "element_size", "__len__",
})  # fmt: skip
# looks at a tensor where they share its memory, copies where they do not
_LOOKS = frozenset({"contiguous", "reshape", "resolve_neg", "__getitem__"})
# what torch writes into memory that is there, and what it computes that can be written there
_IN_PLACE = frozenset({"zero_", "fill_", "index_copy_", "mul_", "copy_", "add_", "div_", "bernoulli_"})
_INTO = frozenset({"add", "sub", "mul", "neg", "mm", "addmm", "sum"})
# of these every element follows from elements at its own place
ELEMENTWISE = frozenset({"zero_", "fill_", "mul_", "copy_", "add_", "div_", "add", "sub", "mul", "neg"})
# operations that the interpreter computes by such calls alone
WRITTEN = frozenset({
    Op.ADD, Op.MUL, Op.BIAS, Op.COL_SCALE, Op.ROW_SCALE, Op.ROW_ADD, Op.SCALE, Op.MUL_SCALAR, Op.ADD_CONST,
})  # fmt: skip
_ATTEMPTS, _GROWTH = 24, 1.06


def PAUSE() -> int:
    """Where a computation waits for something from outside; nothing to run."""
    return 0


def pause() -> None:
    """Notes that the computation being recorded waits here."""
    if _native.recorder.calls is not None:
        _native.recorder.calls.append((PAUSE, ()))


def arena_sizes(nbytes: float) -> list[int]:
    """Sizes of an arena for what lives in ``nbytes`` at once, as they are tried until all of it fits."""
    return [int(nbytes * _GROWTH**attempt) for attempt in range(_ATTEMPTS)]


class Tape:
    """Recorded calls and what they refer to.

    Attributes:
        arena: Where the intermediate tensors lie.
        result: What the recorded function returned; its tensors hold the latest replay's numbers.
        calls: Those that were recorded, in order.
    """

    def __init__(self, arena: Pool, result: Any, calls: Calls, alive: list[Any], given: list[torch.Tensor]) -> None:
        self.arena, self.result = arena, result
        self.calls, self._alive, self._given = calls, alive, given
        self._lent = arena.stats().lent

    @cached_property
    def _packed(self) -> PackedCalls:
        """The calls as a replay makes them."""
        return PackedCalls([call for call in self.calls if call[0] is not PAUSE])

    @classmethod
    def record(cls, body: Callable[[], Any], alive: list[Any], nbytes: float | None) -> Tape | None:
        """The tape of ``body``; ``alive`` lists what its addresses point into, ``nbytes`` how much memory it may take.

        None where a replay would not be the same because torch computed. The arena is one interval, as small as the
        tensors' coming and going allows: ``body`` is tried in a larger one until it fits; with ``nbytes`` None it takes
        what it needs.
        """
        sizes: Sequence[int | None] = [None] * _ATTEMPTS if nbytes is None else arena_sizes(nbytes)
        for size in sizes:
            arena = Pool()
            if size is not None:
                arena.confine(size)
            # what is made on first use is made by the first run; the second is written down
            first, watch = Watch(keeps=False), Watch()
            found = cls._once(body, arena, first) and (first.computed or cls._once(body, arena, watch))
            if isinstance(found, tuple) and not watch.computed:
                return cls(arena, *found, alive, watch.given)
            found = None
            arena.trim()
            if first.computed or watch.computed:
                return None
        return None

    @staticmethod
    def _once(body: Callable[[], Any], arena: Pool, watch: Watch) -> tuple[Any, Calls] | None:
        """The result and the calls of one run; None where the arena is too small."""
        calls: Calls = []
        _native.recorder.calls = calls
        try:
            with POOL.within(arena), watch:
                return body(), calls
        except MemoryError:
            return None
        finally:
            _native.recorder.calls = None

    def keeps(self, address: int) -> bool:
        """Whether memory that lives as long as the tape has the address."""
        small = ((x.data_ptr(), x.nbytes) for x in self._given)
        return self.arena.holds(address) or any(0 <= address - begin < size for begin, size in small)

    def __del__(self) -> None:
        self.result = None
        self.arena.trim()

    def is_ready(self) -> bool:
        """Whether nobody else holds memory of the arena."""
        return self.arena.stats().lent == self._lent

    def replay(self) -> Any:
        """Runs all calls; returns ``result``."""
        self._packed.replay()
        return self.result


class Watch(TorchFunctionMode):
    """Sees what is asked of torch: keeps the memory that it gives, and notes whether it computes.

    Not a dispatch mode: the first of those in a process imports torch's compiler, 70 MiB.
    """

    def __init__(self, keeps: bool = True) -> None:
        super().__init__()
        self.computed, self._keeps = False, keeps
        self.given: list[torch.Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One call of torch."""
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        are_known = all(isinstance(x, torch.Tensor | int | float) for x in args)
        is_known = are_known and not kwargs
        if name in _INTO and is_known:
            return self._into(name, func(*args), args)
        result = func(*args, **kwargs)
        if name in _INTO and are_known and set(kwargs) == {"out"} and not result.requires_grad:
            self._made_in(name, result, args)
        elif name in _IN_PLACE and is_known:
            _write_down(getattr(torch.Tensor, name), args)
        elif name not in _HARMLESS and not (name in _LOOKS and _share(result, args[0])):
            self._note_computed()
        elif self._keeps and name in ("empty", "new_empty"):
            self.given.append(result)  # what is larger lies in the arena
        return result

    def _into(self, name: str, result: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor:
        """``result`` in memory of the arena, into which a replay computes it again."""
        if result.requires_grad:
            self._note_computed()
            return result
        made = POOL.empty(tuple(result.shape), result.dtype).copy_(result)
        self._made_in(name, made, args)
        return made

    def _made_in(self, name: str, made: torch.Tensor, args: tuple[Any, ...]) -> None:
        """A replay computes ``made`` again, where it lies."""
        if self._keeps and made.nbytes < SMALL:
            self.given.append(made)
        _write_down(getattr(torch, name), args, out=made)

    def _note_computed(self) -> None:
        self.computed = True
        self.given.clear()  # nothing will be replayed


def _share(result: Any, given: Any) -> bool:
    """Whether both are tensors on the same memory."""
    storages = [x.untyped_storage().data_ptr() for x in (result, given) if isinstance(x, torch.Tensor)]
    return len(storages) == 2 and storages[0] == storages[1]


def _write_down(function: Callable[..., Any], args: tuple[Any, ...], **more: torch.Tensor) -> None:
    """A call of torch goes on the tape, with tensors that do not keep the memory which they look at."""
    calls = _native.recorder.calls
    assert calls is not None  # a tape is being recorded
    given = [borrowed(x) if isinstance(x, torch.Tensor) else x for x in args]
    named = {key: borrowed(x) for key, x in more.items()}

    def call() -> int:
        function(*given, **named)
        return 0

    call.operation, call.operands = function.__name__, (*given, *named.values())  # type: ignore[attr-defined]
    calls.append((call, ()))


def borrowed(x: torch.Tensor) -> torch.Tensor:
    """A tensor at the address of ``x`` that does not own it."""
    if not x.numel():
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
    span = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    memory = (ctypes.c_byte * (span * x.element_size())).from_address(x.data_ptr())
    return torch.frombuffer(memory, dtype=x.dtype).as_strided(x.shape, x.stride())
