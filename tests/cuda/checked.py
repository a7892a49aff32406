"""Watches kernels in Triton's interpreter: addresses lie in tensors of the launch, none is stored by two programs.

Comes in: launches, through :func:`watching`. Goes out: an error with the program's number at the first fault. Results
are filled with NaN beforehand, so that an element that nobody writes shows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import triton.runtime.interpreter as interpreter
from cuda.interpreting import quickened
from cuda.patched import launching

from graphweft.runtime.cuda import jit


class Faults:
    """The addresses of one launch: registered tensors, and which program stored where."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        places = sorted((t.data_ptr(), t.data_ptr() + t.numel() * t.element_size()) for t in tensors)
        self.first = np.array([a for a, _ in places], np.uint64)
        self.last = np.array([b for _, b in places], np.uint64)
        self.stored: dict[int, tuple[int, ...]] = {}

    def seen(self, kind: str, pointers: Any, mask: Any, program: tuple[int, ...]) -> None:
        """One load or store of a block."""
        size = pointers.get_element_ty().primitive_bitwidth // 8
        live = np.broadcast_to(mask.data, pointers.data.shape).astype(bool, copy=False)
        at = pointers.data.astype(np.uint64, copy=False)[live]
        index = np.searchsorted(self.first, at, side="right").astype(int) - 1
        bad = (index < 0) | (at + np.uint64(max(size, 1)) > self.last[np.maximum(index, 0)])
        if bad.any():
            raise IndexError(f"{kind}: {int(bad.sum())} elements outside of every tensor in program {program}")
        if kind == "store":
            for address in at.tolist():
                if self.stored.setdefault(address, program) != program:
                    raise RuntimeError(f"store: programs {self.stored[address]} and {program} write one element")
            if len(np.unique(at)) < len(at):
                raise RuntimeError(f"store: program {program} writes one element twice at once")


@contextlib.contextmanager
def shuffled(seed: int) -> Iterator[None]:
    """Inside, the programs of a launch run in a random order."""
    kind, drawn = type(interpreter.interpreter_builder), np.random.default_rng(seed)
    place, size = kind.set_grid_idx, kind.set_grid_dim
    orders: list[Any] = [None]

    def begin(b: Any, *grid: int) -> None:
        orders[0] = drawn.permutation(grid[0])
        size(b, *grid)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "set_grid_dim", begin)
        patch.setattr(kind, "set_grid_idx", lambda b, x, y, z: place(b, int(orders[0][x]), y, z))
        yield


@contextlib.contextmanager
def watching() -> Iterator[list[Any]]:
    """Inside, every launch is watched; yields the kernels that were launched."""
    builder, launched = interpreter.interpreter_builder, list[Any]()
    kind, inner = type(builder), jit.launch
    load, store = kind.create_masked_load, kind.create_masked_store
    faults: list[Faults] = []

    def watched(compiled: Any, grid: Any, *arguments: Any, **fixed: Any) -> None:
        launched.append(compiled)
        given = (*arguments, *fixed.get("through", ()))
        faults.append(Faults([t for t in given if isinstance(t, torch.Tensor)]))
        inner(compiled, grid, *arguments, **fixed)

    def loads(b: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        faults[-1].seen("load", pointers, mask, tuple(b.grid_idx))
        return load(b, pointers, mask, *rest)

    def stores(b: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        faults[-1].seen("store", pointers, mask, tuple(b.grid_idx))
        return store(b, pointers, value, mask, *rest)

    with launching(watched) as patch:
        words = quickened(patch)
        patch.setattr(kind, "create_masked_load", loads)
        patch.setattr(kind, "create_masked_store", stores)
        try:
            yield launched
        finally:
            words.put_back()
