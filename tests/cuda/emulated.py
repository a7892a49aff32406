"""Launches kernels as a device with compute capability 9.0 would, compiled, on the emulator of ``ptx.py``.

Comes in: launches, through :func:`watching`. Triton specialises and compiles as it does on a device; the arrays of the
launch are those of host memory. Results are filled with NaN beforehand.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from cuda.patched import launching
from cuda.ptx import Machine, Program, Traffic
from triton.backends.compiler import GPUTarget
from triton.runtime import driver


class NoDevice:
    """A driver that only says what would be compiled for."""

    def __init__(self, capability: int = 90) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return self.capability  # kernels are kept by device

    def get_current_stream(self, device: int) -> int:
        return 0


@dataclass(frozen=True)
class Launch:
    """One launch: the kernel, what it was compiled to, the grid, what it was given and what it moved."""

    kernel: Any
    code: Any
    grid: tuple[int, ...]
    given: tuple[Any, ...]
    fixed: dict[str, Any]
    traffic: Traffic

    def code_for(self, capability: int) -> Any:
        """The same launch, compiled for another device."""
        return compiled_for(capability, self.kernel, self.grid, *self.given, **self.fixed)


def compiled_for(
    capability: int, kernel: Any, grid: tuple[int, ...], *given: Any, warps: int = 1, fusion: bool = True, **fixed: Any
) -> Any:
    """What Triton's own front end makes of a launch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "_active", NoDevice(capability))
        return kernel.warmup(*given, grid=grid, num_warps=warps, enable_fp_fusion=fusion, **fixed)


@functools.lru_cache(maxsize=256)
def program_of(text: str) -> Program:
    """A program, taken apart once."""
    return Program(text)


def run(
    code: Any,
    grid: tuple[int, ...],
    given: tuple[Any, ...],
    text: str | None = None,
    counting: bool = False,
    through: Sequence[Any] = (),
) -> Traffic:
    """Runs compiled code; of another ``text`` if given."""
    fixed = {name for name, kind in code.src.signature.items() if kind == "constexpr"}
    named = [item for name, item in zip(code.src.signature, given, strict=False) if name not in fixed]
    arrays = {t.data_ptr(): bytes_of(t) for t in (*given, *through) if isinstance(t, torch.Tensor) and t.numel()}
    numbers = [item.data_ptr() if isinstance(item, torch.Tensor) else item for item in named]
    program = program_of(text or code.asm["ptx"])
    return Machine(program, code.metadata.shared, grid, numbers, list(arrays.values()), counting).run()


def bytes_of(tensor: torch.Tensor) -> Any:
    """A tensor's memory, all of it and no more."""
    assert tensor.is_contiguous()
    return tensor.detach().view(-1).view(torch.uint8).numpy() if tensor.dtype != torch.bool else tensor.view(-1).numpy()


Change = Callable[[str], str]


@contextlib.contextmanager
def watching(change: Change | None = None, counting: bool = False, run_it: bool = True) -> Iterator[list[Launch]]:
    """Inside, every launch runs on the emulator; yields the launches. ``change``: of the text before it runs.
    With ``run_it=False`` launches are compiled and do nothing."""
    made = list[Launch]()

    def launch(kernel: Any, grid: tuple[int, ...], *given: Any, through: Sequence[Any] = (), **fixed: Any) -> None:
        if 0 in grid:
            return
        code = compiled_for(90, kernel, grid, *given, **fixed)
        text = code.asm["ptx"] if change is None else change(code.asm["ptx"])
        traffic = run(code, grid, given, text, counting, through) if run_it else Traffic()
        made.append(Launch(kernel, code, grid, given, fixed, traffic))

    with launching(launch):
        yield made


__all__ = ["Launch", "NoDevice", "compiled_for", "run", "watching"]
