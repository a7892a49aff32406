"""Rows of features for batches on a device: the hot ones lie there, the others come from host memory.

Comes in: a table in host memory, a device, and memory there. Goes out: the rows of a batch, on the device, and how many
of them were there already. Called by loaders that draw on a device. Rows that do not lie there are read by the device's
kernels, or gathered on the host and sent with their batch: as is faster on this machine.
"""

from __future__ import annotations

import statistics
import time
import warnings
from typing import Any

import torch
from torch import Tensor

from graphweft._errors import ConfigError, FallbackWarning, GraphWeftError
from graphweft.runtime.targets import target_of
from graphweft.storage.gather import gather_rows

FAR_ROWS = ("auto", "read", "sent")
_TIMED = 5  # batches by either way, after one


class DeviceRows:
    """A table whose rows are read on a device.

    Args:
        table: (n, F) in host memory.
        kept: int64 ids of the rows that the device keeps, each once; None: all.
        device: Where rows are wanted.
        far: How the other rows come: "read" by the device, "sent" with their batch, or "auto": as :meth:`settle` finds,
            and until then read where that is possible.

    Attributes:
        read: Rows that batches have read.
        seconds: Of a batch by either way, where that was measured.

    Raises: ConfigError for another ``far``, or where "read" is not possible.

    Example:
        >>> rows = DeviceRows(torch.eye(3), torch.tensor([2]), torch.device("cpu"))
        >>> rows(torch.tensor([0, 2])).tolist(), rows.hits, rows.read, rows.far
        ([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], 1, 2, 'sent')
    """

    def __init__(self, table: Tensor, kept: Tensor | None, device: torch.device, far: str = "auto") -> None:
        if far not in FAR_ROWS:
            raise ConfigError(f"far_rows: expected one of {', '.join(FAR_ROWS)}, got {far!r}")
        self._table, self.device, self.read, self._sent_hits = table, device, 0, 0
        self._there = (table if kept is None else gather_rows(table, kept)).to(device)
        self._places: Tensor | None = None
        self._reader: Any = None
        self._is_open, self.seconds = far == "auto", dict[str, float]()
        if kept is not None:
            self._places = torch.full((table.shape[0],), -1)
            self._places[kept] = torch.arange(kept.numel())
            self._reader = None if far == "sent" else self._reader_of(kept)

    def _reader_of(self, kept: Tensor) -> Any:
        """What reads the others on the device; None where that is not possible and was not asked for."""
        make = target_of(self.device).row_reader
        try:
            if make is None:
                raise ConfigError(f"far_rows='read' cannot be combined with device='{self.device}'")
            return make(self._table, kept, self._there, self.device)
        except GraphWeftError:
            if not self._is_open:
                raise
            return None

    @property
    def far(self) -> str:
        """How rows come that do not lie on the device: "read" or "sent"."""
        return "sent" if self._reader is None else "read"

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self._there.nbytes + (0 if self._reader is None else int(self._reader.nbytes))

    @property
    def hits(self) -> int:
        """Rows of batches that lay on the device."""
        return self._sent_hits + (0 if self._reader is None else int(self._reader.hits))

    @property
    def hit_ratio(self) -> float:
        """Share of the rows that were read there."""
        return self.hits / max(self.read, 1)

    def settle(self, n_id: Tensor) -> None:
        """With "auto": times both ways on the rows of a typical batch, and takes the faster one from then on."""
        if self._reader is None or not self._is_open:
            return
        reader, self._is_open, why = self._reader, False, ""
        try:
            if not torch.equal(reader(n_id).view(torch.uint8), self._sent(n_id).view(torch.uint8)):
                why = "rows that it read were not those of the table"
            self.seconds = {"read": self._timed(reader, n_id), "sent": self._timed(self._sent, n_id)}
        except (RuntimeError, ValueError) as failure:  # as launchers raise for memory that the device does not reach
            why = " ".join(str(failure).split())[:200]
        if why:
            told = f"far_rows: rows are sent to {self.device}, which does not read them: {why}"
            warnings.warn(told, FallbackWarning, stacklevel=5)
        if why or self.seconds["sent"] <= self.seconds["read"]:
            self._reader = None
        else:
            reader.forget_hits()
        self._sent_hits = 0

    def _timed(self, rows: Any, n_id: Tensor) -> float:
        """Median seconds of a batch, which is over when its last row is known here."""
        taken = []
        for _ in range(_TIMED):
            begun = time.perf_counter()
            found = rows(n_id)
            found[-1:].cpu()
            taken.append(time.perf_counter() - begun)
        return statistics.median(taken)

    def __call__(self, n_id: Tensor) -> Tensor:
        """Rows ``n_id`` of the table, int64 ids in host memory or on the device, on the device."""
        self.read += n_id.numel()
        if self._places is None:
            self._sent_hits += n_id.numel()
            return self._there.index_select(0, n_id.to(self.device))
        if self._reader is not None:
            found: Tensor = self._reader(n_id)
            return found
        return self._sent(n_id.cpu())

    def _sent(self, n_id: Tensor) -> Tensor:
        """The others gathered here, and sent."""
        assert self._places is not None  # else all are there
        places = self._places[n_id]
        here, far = (places >= 0).nonzero().reshape(-1), (places < 0).nonzero().reshape(-1)
        self._sent_hits += here.numel()
        out = torch.empty((n_id.numel(), *self._table.shape[1:]), dtype=self._table.dtype, device=self.device)
        out[here.to(self.device)] = self._there.index_select(0, places[here].to(self.device))
        if far.numel():
            out[far.to(self.device)] = gather_rows(self._table, n_id[far]).to(self.device)
        return out


__all__ = ["FAR_ROWS", "DeviceRows"]
