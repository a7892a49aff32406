"""What runs in plain torch around compiled calls: counted while it runs, and priced.

Comes in: torch operations, while the mode is on. Goes out: how many, and predicted seconds of a training step with
them. Called by ``explanation.py``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from graphweft._torch_private import TorchDispatchMode, pytree
from graphweft.cost import CostModel, Work
from graphweft.runtime.prediction import THREADS

_BACKWARD = 2.0  # what the gradients of an operation take, in times of itself


class PlainTorch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations, arithmetic and bytes; operations that move nothing are left out."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations, self.seconds = 0, 0.0
        self._model = CostModel()
        counter = importlib.import_module("torch.utils.flop_counter")  # imports Triton
        self._products: dict[Any, Callable[..., Any]] = counter.flop_registry

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        read = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        written = [x for x in pytree.tree_leaves(made) if isinstance(x, Tensor)]
        packet = getattr(func, "_overloadpacket", func)
        if packet in self._products:
            amount = float(self._products[packet](*args, **kwargs, out_val=made))
            self._add(Work("product", amount, _bytes([*read, *written])))
        elif written and not any(x._is_view() or x.data_ptr() == y.data_ptr() for x in written for y in read):
            self._add(Work("plain", 0.0, _bytes([*read, *written])))
        return made

    def _add(self, work: Work) -> None:
        self.operations += 1
        self.seconds += (1.0 + _BACKWARD) * self._model.seconds(work) * THREADS / torch.get_num_threads()

    def __str__(self) -> str:
        if not self.operations:
            return "around them nothing runs in plain torch"
        return (
            f"around them {self.operations} operations of plain torch, predicted {self.seconds * 1e3:.3f} ms of a step"
        )


def _bytes(tensors: list[Tensor]) -> float:
    return float(sum(x.numel() * x.element_size() for x in tensors))
