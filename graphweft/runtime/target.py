"""Targets: who runs the calls of a plan.

Comes in: the calls of a plan, as data. Goes out: for each a launcher, a function of the list of slots. A target is a
table of launchers by kernel and dtype; a kernel without an entry is run from the body of its call: what it does over
edges by walks, where the target writes these, all else by the interpreter of the IR. So a new target starts with an
empty table and is right from the first day: ``reference`` is that target.
Called by ``plan.py`` and ``staged.py``; the CPU's table is in ``runtime/cpu``, targets are listed in ``targets.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graphweft import _config
from graphweft._errors import ConfigError
from graphweft.ir.interpret import evaluate
from graphweft.ir.ops import Op
from graphweft.ir.program import Value
from graphweft.passes.groups import Group
from graphweft.passes.work import Sizes
from graphweft.runtime.described import described
from graphweft.runtime.described_typed import described_typed
from graphweft.runtime.kernel_call import KernelCall, Launch, Slots
from graphweft.runtime.losses import LOSSES, Loss, class_score
from graphweft.sample.sampler import Sampler
from graphweft.storage.feature import is_dense

# what drops the same weights: where one is switched off or missing, other kernels draw, and do so for both
_DRAW_ALIKE = {"attention": "attention_grad", "attention_grad": "attention"}

# looks at a call once; None where it cannot run this one
Launcher = Callable[[KernelCall], Launch | None]


class Bound(NamedTuple):
    """Launchers in the order of the calls, and the first results of those that run generated kernels over edges."""

    launches: tuple[Launch, ...]
    generated: frozenset[Value]


class Target:
    """Launchers by kernel and dtype.

    Args:
        name: As ``gw.config(target=)`` takes it.
        device: The type of the devices whose plans it runs unasked; None: it is asked for by name, on any device.
        worth: Bytes of a matrix from which it generates a kernel; None: from where a compiler of C++ pays.
        joins: Whether calls are joined that save no memory traffic together, since each is a launch.

    Attributes:
        class_score: Of outputs, class ids and rows: the mean loss, and how many rows are predicted right.
        capture: See :meth:`captures`.
        recorder: Makes what records launches on a device and launches them again, or None; None: there is none.
        later: Reads a number, shape (), as it is now, when it is asked for; None: numbers are there at once.
        pinned: A tensor in host memory from where it reads while the host goes on.
        row_reader: Makes, of a table, ids of some rows, these on a device, and the device, what gathers rows there of
            which it reads the others in host memory; None: it reads none.
        sender: Makes, for a device, what copies tensors there beside the work of other threads.
        sparse_bytes: Bytes of features that stay sparse there, with dropout or without; None: they become dense.
        updates: Makes, for "adam" or "sgd" and a device, what steps all parameters there in one launch, or None where
            torch steps them; None: torch does.

    Example:
        >>> target = Target("made-up")
        >>> @target.launches("matmul", torch.float32)
        ... def matmul(call):
        ...     a, b, out = call.operand("x"), call.operand("weight"), call.writing("out")
        ...     return lambda slots: slots.__setitem__(out, slots[a] @ slots[b])
        >>> sorted(target.kernels())
        ['matmul']
    """

    # What it reads in bfloat16 where a plan asks for that: in whole graphs, and in sampled batches, whose steps are
    # written down and replayed, so that nothing may depend on how large a batch is.
    rounds: Set[str] = frozenset({"rows", "operands"})
    rounds_in_batches: Set[str] = frozenset({"operands"})

    # Operands that it reads in bfloat16 as well: kernel and role, without the number of one of several.
    halves: frozenset[tuple[str, str]] = frozenset()

    losses: Mapping[str, Loss] = LOSSES  # of classes, and of entries, "binary" or "squared"

    sparse_from = 0.9  # share of zeros from which features stay sparse on its device

    keeps = False  # whether what passes decide for it follows from this package alone, and is kept between processes

    blocking = False  # whether a launch is over when it returns, so that it can be timed, and written down as it is
    has_all = False  # whether what its table lacks is left to torch, so that walks run what is switched off alone
    norms_in_place = False  # whether the gradient of a norm takes the memory of the one that it is given

    def __init__(
        self,
        name: str,
        device: str | None = None,
        worth: int | None = None,
        joins: bool = False,
    ) -> None:
        self.name, self.device, self.worth = name, device, worth
        self.joins = joins
        self._table: dict[tuple[str, torch.dtype | None], Launcher] = {}
        self._samplers: dict[type, Callable[[Any, torch.device, int | None], Sampler]] = {}
        self.class_score: Callable[[Tensor, Tensor, Tensor], tuple[float, int]] = class_score
        self.capture: Callable[..., Any] | None = None
        self.recorder: Callable[[torch.device], Any] | None = None
        self.later: Callable[[Tensor], Callable[[], float]] | None = None
        self.pinned: Callable[[Tensor], Tensor] = _as_it_is
        self.row_reader: Callable[[Tensor, Tensor, Tensor, torch.device], Any] | None = None
        self.sender: Callable[[torch.device], Callable[..., tuple[Tensor, ...]]] = _plain_sender
        self.sparse_bytes: Callable[[Any, bool], int] | None = None
        self.updates: Callable[[str, torch.device], Any] | None = None

    def captures(self, how: Callable[..., Any]) -> None:
        """Registers how a step of a batch is written down and replayed; see ``captured.py``."""
        self.capture = how

    def keeps_sparse(self, x: Any) -> bool:
        """Whether features stay sparse on its device: it has products of them, and so few entries pay there."""
        may = self.sparse_bytes is not None and "sparse_matmul" not in _config.current().disabled_kernels.split(",")
        return may and x.sparsity >= self.sparse_from

    @property
    def has_samplers(self) -> bool:
        """Whether it draws batches itself."""
        return bool(self._samplers)

    def samples(self, kind: type, make: Callable[[Any, torch.device, int | None], Sampler]) -> None:
        """Registers what draws the batches of samplers of a ``kind`` on a device, the same bit for bit."""
        self._samplers[kind] = make

    def sampler(self, plan: Any, device: torch.device, memory: int | None = None) -> Sampler:
        """What draws the batches of ``plan`` on ``device``, within so many bytes there where it can.

        Raises: ConfigError for one that is not drawn there.
        """
        make = self._samplers.get(type(plan))
        if make is None:
            there = ", ".join(sorted(kind.__name__ for kind in self._samplers)) or "none"
            raise ConfigError(
                f"device='{device}' cannot be combined with {type(plan).__name__} (samplers there: {there}); "
                "without device= batches are made on the CPU, and batch.to(device) sends them"
            )
        return make(plan, device, memory)

    def launches(self, kernel: str, *dtypes: torch.dtype) -> Callable[[Launcher], Launcher]:
        """Registers a launcher for results of ``dtypes``, or of any."""

        def register(launcher: Launcher) -> Launcher:
            for dtype in dtypes or (None,):
                self._table[kernel, dtype] = launcher
            return launcher

        return register

    def kernels(self) -> set[str]:
        """Names of the kernels it has launchers for."""
        return {kernel for kernel, _ in self._table}

    def is_built(self, region: Sequence[Value]) -> bool:
        """Whether it has a kernel for a chain of functions of elements, so that none is generated."""
        return False

    def prepare(self, groups: Iterable[Group]) -> None:
        """Told of the groups of a program before all of its passes are over."""

    def bind(self, calls: Sequence[KernelCall]) -> Bound:
        """A launcher for every call."""
        return Bound(tuple(self.launch(call) for call in calls), frozenset())

    def scratch(self, call: KernelCall, sizes: Sizes) -> int:
        """Bytes that a call takes beside its operands and results while it runs."""
        return 0

    def makes_half(self, call: KernelCall) -> bool:
        """Whether results of a call may be stored in bfloat16: it makes them of operands that it rounds."""
        return False

    def buffers(self, call: KernelCall, sizes: Sizes) -> int:
        """Bytes of the buffers that a call takes while it runs, which kernels keep for the next one."""
        return 0

    def launcher(self, call: KernelCall) -> Launcher | None:
        """What makes the launcher of a call; None where its body is run, as where it is switched off."""
        if self._is_off(call):
            return None
        return self._table.get((call.kernel, call.dtype)) or self._table.get((call.kernel, None))

    def _is_off(self, call: KernelCall) -> bool:
        """Whether the kernel of a call is switched off by its name; or, if it draws, one that is to draw the same."""
        off = _config.current().disabled_kernels.split(",")
        twin = _DRAW_ALIKE.get(call.kernel) if call.get("p") else None
        return call.kernel in off or (twin is not None and (twin in off or twin not in self.kernels()))

    def launch(self, call: KernelCall) -> Launch:
        """The launcher of one call."""
        launcher = self.launcher(call)
        found = None if launcher is None else launcher(call)
        if found is None and self.writes_walks and (not self.has_all or self._is_off(call)):
            found = described_typed(call, self._bound) or described(call, self._bound)
        return interpreted(call) if found is None else found

    def _bound(self, calls: Sequence[KernelCall]) -> Sequence[Launch]:
        return self.bind(calls).launches

    @property
    def writes_walks(self) -> bool:
        """Whether it makes kernels of loop nests over edges."""
        return "edge_nest" in self.kernels()


def _as_it_is(source: Tensor) -> Tensor:
    return source


def _plain_sender(device: torch.device) -> Callable[..., tuple[Tensor, ...]]:
    return lambda *arrays: tuple(array.to(device) for array in arrays)


def interpreted(call: KernelCall) -> Launch:
    """The values of a call by the interpreter; those that nobody reads any more are let go."""
    given = [(slot.value, slot.at) for slot in call.reads]
    results = [(slot.value, slot.at) for slot in call.writes]
    wanted, rounds = {value for value, _ in results}, call.get("operands") == "bf16"
    last = {operand: value for value in call.body for operand in value.inputs}
    dead = {
        value: tuple(v for v in dict.fromkeys(value.inputs) if last[v] is value and v not in wanted)
        for value in call.body
    }

    def run(slots: Slots) -> None:
        known = {value: slots[index] for value, index in given}
        for value in call.body:
            operands = [known[operand] for operand in value.inputs]
            known[value] = evaluate(value, _rounded(operands) if rounds and value.op is Op.MATMUL else operands)
            for operand in dead[value]:
                del known[operand]
        for value, index in results:
            slots[index] = _contiguous(known[value])

    return run


def whole(function: Callable[..., Any], in_place: bool = False) -> Launcher:
    """The launcher of a function of a value and its operands; ``in_place``: it takes ``over``."""

    def launcher(call: KernelCall) -> Launch:
        value, out = call.value, call.writes[0].at
        made = partial(function, over=True) if in_place and call.over else function
        places = [slot.at for slot in call.reads]

        def run(slots: Slots) -> None:
            slots[out] = made(value, *[slots[i] for i in places])

        return run

    return launcher


def _rounded(operands: Sequence[Any]) -> list[Any]:
    """Operands of a product that are read in bfloat16."""
    return [t.to(torch.bfloat16).to(t.dtype) if isinstance(t, Tensor) and is_dense(t) else t for t in operands]


def _contiguous(result: Any) -> Any:
    if not isinstance(result, Tensor) or result.is_contiguous():
        return result
    return result.clone(memory_format=torch.contiguous_format)  # of fake tensors too, unlike contiguous()


__all__ = ["Bound", "Launch", "Launcher", "Target", "interpreted", "whole"]
