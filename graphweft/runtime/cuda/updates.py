"""Steps of optimisers on a device: one launch for all parameters of a kind.

Comes in: parameters with gradients and state, settings of their groups, rates in device memory. Goes out: the step,
in their memory. Registered in ``target.py``, called by ``graphweft/optim.py``. The kernel reads addresses and settings
from a table. A table is sent when it is new; within a recording it lies in memory that was taken before, and is filled
when the recording is over.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from graphweft._errors import ConfigError, MissingPackageError
from graphweft.runtime.cuda import update_kernels
from graphweft.runtime.cuda.jit import Kernel, find_triton
from graphweft.runtime.cuda.recording import recorded
from graphweft.runtime.cuda.streams import pinned

_BLOCK, _WARPS = 1024, 4  # elements of a program
_WORDS = 10  # of a parameter
_KNOBS = 6  # of a group
_TABLES = 8  # that are kept: gradients lie in a few places by turns
_KERNELS: dict[str, Kernel] = {"adam": update_kernels.adam_step, "sgd": update_kernels.sgd_step}
_place_of = Tensor.data_ptr


class Stepped(NamedTuple):
    """A parameter of a step.

    Attributes:
        group: Its number.
        param: float32, contiguous, as all tensors here.
        grad: Of the same shape.
        state: Adam's means and count of steps, shape (); SGD's buffer where it has momentum.
        is_first: Whether the buffer is to be filled.
    """

    group: int
    param: Tensor
    grad: Tensor
    state: tuple[Tensor, ...]
    is_first: bool = False


class _Counted(NamedTuple):
    """The counts of steps of a parameter's programs, and the count of the state that they agree with."""

    counts: Tensor
    step: Tensor
    version: int


class _Words(NamedTuple):
    """A table without the gradients, which lie elsewhere in most steps, and what it was made of."""

    key: tuple[object, ...]
    words: Tensor
    grads: Tensor
    programs: int
    is_aligned: bool


class Updates:
    """What steps the parameters of an optimiser on one device.

    Args:
        kind: "adam" or "sgd".
        device: Where.
    """

    def __init__(self, kind: str, device: torch.device) -> None:
        self._kernel, self._device = _KERNELS[kind], device
        self._tables: dict[tuple[object, ...], tuple[Tensor, int, bool]] = {}
        self._counted: dict[Tensor, _Counted] = {}
        self._spare: Tensor | None = None
        self._known: _Words | None = None

    def __call__(
        self,
        rows: Sequence[Stepped],
        knobs: Sequence[tuple[float, ...]],
        rates: Sequence[Tensor],
        scale: Tensor | None = None,
    ) -> None:
        """One step.

        Args:
            rows: The parameters.
            knobs: By group: betas, eps, decay, whether it is decoupled, whether to ascend; for SGD momentum,
                dampening, decay, Nesterov, whether to ascend.
            rates: By group, shape () float32, there.
            scale: What gradients are multiplied by, shape () float32, there; None: nothing.
        """
        later = recorded()
        steps = [(row.param, row.state[2]) for row in rows if len(row.state) == 3]
        if later is None:
            self._count(steps)
        through = [t for row in rows for t in (row.param, row.grad, *row.state, rates[row.group])]
        through += [self._counted[param].counts for param, _ in steps]
        words, programs, is_aligned = self._table(rows, knobs, rates)
        if later is not None:

            def agree() -> object:
                self._count(steps)
                return words, through  # which live as long as what is recorded

            later.append(agree)
        fixed = {"ALIGNED": is_aligned, "HAS_SCALE": scale is not None, "BLOCK": _BLOCK}
        given = words if scale is None else scale
        self._kernel((programs,), words, given, warps=_WARPS, through=through, **fixed)

    def ready(self, params: Sequence[Tensor], steps: Mapping[Tensor, Tensor]) -> None:
        """Takes what a recorded step of ``params``, whose counts of steps are ``steps``, needs of memory."""
        if recorded() is not None:
            return
        self._count([(param, step) for param, step in steps.items() if step.device == self._device])
        size = sum(2 * _programs_of(param) + _WORDS + _KNOBS for param in params)  # groups are no more than parameters
        if self._spare is None or self._spare.numel() < size:
            self._spare = torch.empty(size, dtype=torch.int64, device=self._device)

    @property
    def is_ready(self) -> bool:
        """Whether :meth:`ready` was called since the last recording."""
        return self._spare is not None

    def held(self) -> list[Tensor]:
        """Counts of steps beside those of the optimiser's state, with which they change."""
        return [known.counts for known in self._counted.values()]

    def _count(self, steps: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Counts agree with the state, which others may have written."""
        for param, step in steps:
            known = self._counted.get(param)
            if known is not None and known.step is step and known.version == step._version:
                continue
            counts = step.new_empty(_programs_of(param)) if known is None else known.counts
            counts.fill_(step)
            self._counted[param] = _Counted(counts, step, step._version)

    def _table(
        self, rows: Sequence[Stepped], knobs: Sequence[tuple[float, ...]], rates: Sequence[Tensor]
    ) -> tuple[Tensor, int, bool]:
        """The table on the device, programs of the launch, and whether arrays are aligned to 16 bytes."""
        lie = [
            (*map(_place_of, (row.param, rates[row.group], *row.state)), row.param.numel(), row.group, row.is_first)
            for row in rows
        ]
        grads = [_place_of(row.grad) for row in rows]
        fixed = (*lie, *map(tuple, knobs))
        key = (*grads, fixed)
        if recorded() is None and key in self._tables:
            return self._tables.setdefault(key, self._tables.pop(key))  # the latest last
        if self._known is None or self._known.key != fixed:
            _on_one_device(rows, rates)
            self._known = _Words(fixed, *self._words(rows, lie, knobs))
        known = self._known
        is_aligned = known.is_aligned and all(place % 16 == 0 for place in grads)
        there = self._sent(partial(_with_gradients, known, grads), known.words.numel())
        if recorded() is None:
            self._tables[key] = there, known.programs, is_aligned
            if len(self._tables) > _TABLES:
                del self._tables[next(iter(self._tables))]
        return there, known.programs, is_aligned

    def _words(
        self, rows: Sequence[Stepped], lie: Sequence[tuple[int, ...]], knobs: Sequence[tuple[float, ...]]
    ) -> tuple[Tensor, Tensor, int, bool]:
        """Where each program's parameter stands and its part, parameters, settings; without gradients, of which the
        places are given; how many programs there are; and whether the other arrays are aligned.
        """
        parts = [_programs_of(row.param) for row in rows]
        programs = sum(parts)
        first = 2 * programs  # of the parameters
        of_groups = first + _WORDS * len(rows)
        words = [
            word for at, count in enumerate(parts) for part in range(count) for word in (first + _WORDS * at, part)
        ]
        for row, own in zip(rows, lie, strict=True):
            param, rate, *state, size, group, is_first = own
            counts = _place_of(self._counted[row.param].counts) if len(state) == 3 else 0
            words += [param, 0, size, rate, of_groups + _KNOBS * group, int(is_first)]
            words += [*state, *(0,) * (3 - len(state)), counts]
        for settings in knobs:
            words += [_word(number) for number in (*settings, *(0.0,) * (_KNOBS - len(settings)))]
        grads = torch.arange(first + 1, of_groups, _WORDS)
        is_aligned = all(place % 16 == 0 for own in lie for place in (own[0], *own[2:-3][:2]))
        return torch.tensor(words, dtype=torch.int64), grads, programs, is_aligned

    def _sent(self, words: Callable[[], Tensor], size: int) -> Tensor:
        """The table on the device, now, or when what is recorded is over.

        Raises: RuntimeError within a recording that nobody has made ready for.
        """
        later = recorded()
        if later is None:
            return words().to(self._device, non_blocking=True)
        there, self._spare = self._spare, None
        if there is None or there.numel() < size:
            raise RuntimeError("an update is recorded once the optimiser is ready for it")
        later.append(lambda: there[:size].copy_(words(), non_blocking=True))
        return there


def _with_gradients(known: _Words, grads: Sequence[int]) -> Tensor:
    """The table with the places of gradients, in pinned memory."""
    return pinned(known.words.index_copy(0, known.grads, torch.tensor(grads)))


def _on_one_device(rows: Sequence[Stepped], rates: Sequence[Tensor]) -> None:
    """Raises: ConfigError where a group's rate lies on another device than its parameters."""
    places = {t.device for row in rows for t in (row.param, row.grad, *row.state, rates[row.group])}
    if len(places) > 1:
        raise ConfigError(f"optimiser: expected a group on one device, got {', '.join(sorted(map(str, places)))}")


def updates_on(kind: str, device: torch.device) -> Updates | None:
    """What steps parameters on ``device``; None without Triton, where torch does."""
    try:
        find_triton()
    except MissingPackageError:
        return None
    return Updates(kind, device)


def _programs_of(param: Tensor) -> int:
    return -(-param.numel() // _BLOCK)


def _word(number: float) -> int:
    """The bits of a float64 number."""
    found: int = struct.unpack("q", struct.pack("d", number))[0]
    return found


__all__ = ["Stepped", "Updates", "updates_on"]
