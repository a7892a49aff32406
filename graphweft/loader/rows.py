"""Tensors of a batch, made when they are first asked for, on the device that the batch was sent to.

Comes in: a name and how to make what it stands for. Goes out: the tensor. Held by batches and by their views by type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from graphweft._checks import check_device
from graphweft.storage.feature import SparseFeatures


class Rows:
    """A dict that makes its entries. Sparse features stay on the CPU.

    Example:
        >>> import torch
        >>> rows = Rows()
        >>> rows.get("y", lambda: torch.ones(2)).device, rows.to("meta").get("y", lambda: None).device
        (device(type='cpu'), device(type='meta'))
    """

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}
        self._device: Any = None
        self._non_blocking = False

    def get(self, name: str, make: Callable[[], Tensor | SparseFeatures | None] | None = None) -> Any:
        """The tensor called ``name``, which ``make`` makes when it is first asked for; None where there is none."""
        if name not in self._kept:
            made = None if make is None else make()
            if made is None:
                return None
            self._kept[name] = self._sent(made)
        return self._kept[name]

    def put(self, name: str, rows: Tensor | SparseFeatures | None) -> None:
        """``rows`` as they are under ``name``; None: no longer any."""
        self._kept.pop(name, None)
        if rows is not None:
            self._kept[name] = rows

    def to(self, device: Any, non_blocking: bool = False) -> Rows:
        """Everything, also what is still to be made, on ``device``; itself."""
        self._device, self._non_blocking = check_device("to", device), non_blocking
        self._kept = {name: self._sent(rows) for name, rows in self._kept.items()}
        return self

    def like(self, other: Rows) -> Rows:
        """On the device of another; itself."""
        return self if other._device is None else self.to(other._device, other._non_blocking)

    def _sent(self, rows: Tensor | SparseFeatures) -> Tensor | SparseFeatures:
        if self._device is None or not isinstance(rows, Tensor):
            return rows
        return rows.to(self._device, non_blocking=self._non_blocking)
