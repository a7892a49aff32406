"""From functions and texts to Triton kernels, when the first one is asked for.

Comes in: functions marked :func:`device` or :func:`kernel`, and the texts of generated kernels. Goes out: kernels that
can be launched. Triton is imported then and not before, so that the package works, and imports fast, without it. Called
by everything in this folder.
"""

from __future__ import annotations

import functools
import inspect
import linecache
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from graphweft._errors import ConfigError, MissingPackageError

_DRAWS = ("seed_low", "seed_high", "stream_low", "stream_high")
_WARP = 512  # elements of a block that one warp computes


class Kernel:
    """A kernel that is compiled on first use.

    Args:
        function: Its definition, over ``tl``, a global of its module that is set on first use.
    """

    def __init__(self, function: Callable[..., Any], is_device: bool = False) -> None:
        functools.update_wrapper(self, function)
        self.function, self.is_device = function, is_device

    @functools.cached_property
    def compiled(self) -> Any:
        """What Triton makes of it."""
        _prepare(self.function.__globals__)
        return self.jit

    @functools.cached_property
    def jit(self) -> Any:
        """The same before the names that it uses are known."""
        return self.of(self.function)

    def of(self, function: Callable[..., Any]) -> Any:
        """What Triton makes of ``function``: the same code for all draws, which are other numbers in every step."""
        if self.is_device:
            return find_triton().jit(function)
        drawn = [name for name in inspect.signature(function).parameters if name in _DRAWS]
        return find_triton().jit(function, do_not_specialize=drawn)

    def __call__(self, grid: tuple[int, ...], *arguments: Any, warps: int = 1, **fixed: Any) -> None:
        """Runs it on the device of its tensors."""
        launch(self.compiled, grid, *arguments, warps=warps, **fixed)


def _prepare(names: dict[str, Any]) -> None:
    """Gives the functions of a module what Triton looks up in it."""
    if names.get("tl") is None:
        names["tl"] = find_triton().language
        for name, item in list(names.items()):
            if isinstance(item, Kernel) and item.is_device:
                _prepare(item.function.__globals__)
                names[name] = item.jit


def device(function: Callable[..., Any]) -> Any:
    """Marks a function that kernels call."""
    return Kernel(function, is_device=True)


def kernel(function: Callable[..., Any]) -> Kernel:
    """Marks a kernel."""
    return Kernel(function)


@functools.cache
def find_triton() -> Any:
    """The package. Raises: MissingPackageError where it is not installed."""
    try:
        import triton
    except ImportError:
        raise MissingPackageError(
            "cuda: expected the package triton, which is not installed; pip install triton, or config(opt_level=0)"
        ) from None
    return triton


@functools.cache
def generated(text: str, name: str, functions: tuple[tuple[str, Kernel], ...]) -> Any:
    """The kernel ``name`` of a generated text, which may call ``functions``."""
    triton = find_triton()
    place = f"<graphweft {name} {hash(text):x}>"
    linecache.cache[place] = (len(text), None, text.splitlines(True), place)  # Triton reads the source of a function
    names = {"triton": triton, "tl": triton.language, "__name__": "graphweft.generated"}
    names |= {own: function.compiled for own, function in functions}
    exec(compile(text, place, "exec"), names)
    return names[name]


def launch(
    compiled: Any,
    grid: tuple[int, ...],
    *arguments: Any,
    warps: int = 1,
    fusion: bool = True,
    through: Sequence[Tensor] = (),
    **fixed: Any,
) -> None:
    """Runs a kernel on the device of its tensors; an empty grid is nothing to do. It may read pinned host memory.

    ``through`` are tensors whose addresses stand in one that is given; they lie on the same device.

    Without ``fusion`` a product and a sum are rounded twice: where threads hold copies of a sum over each other's
    products, each would leave its own unrounded, and the copies would differ.

    Raises: ConfigError for tensors on several devices, or in host memory without Triton's interpreter;
    MissingPackageError where Triton finds no C compiler.
    """
    if 0 in grid:
        return
    places = {item.device for item in arguments if isinstance(item, Tensor)}
    if len(places) > 1:
        places = {item.device for item in arguments if isinstance(item, Tensor) and not _is_pinned(item)}
    if len(places) != 1:
        raise ConfigError(f"cuda: expected tensors on one device, got {', '.join(sorted(map(str, places)))}")
    (place,) = places
    if place.type == "cuda":
        try:
            with torch.cuda.device(place):
                compiled[grid](*arguments, num_warps=warps, enable_fp_fusion=fusion, **fixed)
        except RuntimeError as failure:
            if "C compiler" not in str(failure):
                raise
            raise MissingPackageError(
                "cuda: expected a C compiler, with which Triton makes what launches a kernel, got none; "
                "install gcc, or set CC"
            ) from None
    elif find_triton().knobs.runtime.interpret:
        compiled[grid](*arguments, **fixed)
    else:
        raise ConfigError(
            f"cuda: expected tensors on a CUDA device, got {place}; set TRITON_INTERPRET=1 to try kernels"
        )


def _is_pinned(item: Tensor) -> bool:
    return item.device.type == "cpu" and item.is_pinned()


def warps_for(elements: int) -> int:
    """Warps for a block of so many elements: 1, 2, 4 or 8."""
    return min(8, max(1, 1 << max(0, (elements // _WARP).bit_length() - 1)))


__all__ = ["Kernel", "device", "find_triton", "generated", "kernel", "launch", "warps_for"]
