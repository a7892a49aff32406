"""Rows of features for batches on a device: the hot ones lie there, the others come from host memory.

Comes in: a table in host memory, a device, and memory there. Goes out: the rows of a batch, on the device, and how many
of them were there already. Called by loaders that draw on a device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphweft.storage.gather import gather_rows


class DeviceRows:
    """A table whose rows are read on a device.

    Args:
        table: (n, F) in host memory.
        kept: int64 ids of the rows that the device keeps, each once; None: all.
        device: Where rows are wanted.

    Attributes:
        read: Rows that batches have read.
        hits: Those of them that were on the device.

    Example:
        >>> rows = DeviceRows(torch.eye(3), torch.tensor([2]), torch.device("cpu"))
        >>> rows(torch.tensor([0, 2])).tolist(), rows.hits, rows.read
        ([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], 1, 2)
    """

    def __init__(self, table: Tensor, kept: Tensor | None, device: torch.device) -> None:
        self._table, self.device, self.read, self.hits = table, device, 0, 0
        self._there = (table if kept is None else gather_rows(table, kept)).to(device)
        self._places: Tensor | None = None
        if kept is not None:
            self._places = torch.full((table.shape[0],), -1)
            self._places[kept] = torch.arange(kept.numel())

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self._there.nbytes

    @property
    def hit_ratio(self) -> float:
        """Share of the rows that were read there."""
        return self.hits / max(self.read, 1)

    def __call__(self, n_id: Tensor) -> Tensor:
        """Rows ``n_id`` of the table, int64 ids in host memory, on the device."""
        self.read += n_id.numel()
        if self._places is None:
            self.hits += n_id.numel()
            return self._there.index_select(0, n_id.to(self.device))
        places = self._places[n_id]
        here, far = (places >= 0).nonzero().reshape(-1), (places < 0).nonzero().reshape(-1)
        self.hits += here.numel()
        out = torch.empty((n_id.numel(), *self._table.shape[1:]), dtype=self._table.dtype, device=self.device)
        out[here.to(self.device)] = self._there.index_select(0, places[here].to(self.device))
        if far.numel():
            out[far.to(self.device)] = gather_rows(self._table, n_id[far]).to(self.device)
        return out


__all__ = ["DeviceRows"]
