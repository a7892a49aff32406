"""Named tensors that belong to a graph's nodes or edges.

Comes in: name and tensor. Goes out: a mapping that only holds tensors with one row per node (or edge). Called by Graph
for ``ndata``, ``srcdata``, ``dstdata`` and ``edata``.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

import torch

from graphweft._checks import check_rows
from graphweft._errors import DtypeError


class Fields(MutableMapping[str, torch.Tensor]):
    """A dict of tensors with ``rows`` rows each.

    Example:
        >>> fields = Fields("ndata", "node", 3)
        >>> fields["h"] = torch.ones(3, 2)
        >>> fields["h"] = torch.ones(4, 2)
        Traceback (most recent call last):
        graphweft._errors.ShapeError: ndata['h']: expected 3 rows, one per node, got 4 rows
    """

    def __init__(self, name: str, what: str, rows: int) -> None:
        self._name, self._what, self._rows = name, what, rows
        self.tensors: dict[str, torch.Tensor] = {}

    def __setitem__(self, key: str, value: Any) -> None:
        who = f"{self._name}[{key!r}]"
        try:
            tensor = torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError):
            raise DtypeError(f"{who}: expected a tensor, got {type(value).__name__}") from None
        check_rows(who, tensor, self._rows, self._what)
        self.tensors[key] = tensor

    def __getitem__(self, key: str) -> torch.Tensor:
        return self.tensors[key]

    def __delitem__(self, key: str) -> None:
        del self.tensors[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __repr__(self) -> str:
        shapes = ", ".join(f"{key!r}: {tuple(tensor.shape)}" for key, tensor in self.tensors.items())
        return f"{self._name}({shapes})"
