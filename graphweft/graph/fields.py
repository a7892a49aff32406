"""Named tensors that belong to a graph's nodes or edges.

Comes in: name and tensor. Goes out: a mapping that only holds tensors with one row per node (or edge). Called by Graph
for ``ndata``, ``srcdata``, ``dstdata`` and ``edata``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, MutableMapping
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
        self._tensors: dict[str, torch.Tensor] = {}
        self._offered: dict[str, Callable[[], torch.Tensor]] = {}

    def offer(self, key: str, make: Callable[[], torch.Tensor]) -> None:
        """``make`` makes the tensor called ``key`` when it is first read; nothing where there is one already."""
        if key not in self._tensors:
            self._offered.setdefault(key, make)

    def follow(self, others: Fields, rows: torch.Tensor) -> None:
        """Offers ``rows`` of everything that others have."""
        for key in others:
            self.offer(key, functools.partial(_taken, others, key, rows))

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """All of them by name; not to be changed."""
        for key in tuple(self._offered):
            _ = self[key]
        return self._tensors

    def __setitem__(self, key: str, value: Any) -> None:
        who = f"{self._name}[{key!r}]"
        try:
            tensor = torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError):
            raise DtypeError(f"{who}: expected a tensor, got {type(value).__name__}") from None
        check_rows(who, tensor, self._rows, self._what)
        self._tensors[key] = tensor
        self._offered.pop(key, None)

    def __getitem__(self, key: str) -> torch.Tensor:
        make = self._offered.get(key)
        if make is not None:
            self[key] = make()
        return self._tensors[key]

    def __delitem__(self, key: str) -> None:
        if self._offered.pop(key, None) is None:
            del self._tensors[key]

    def __contains__(self, key: object) -> bool:
        return key in self._tensors or key in self._offered

    def __iter__(self) -> Iterator[str]:
        return iter([*self._tensors, *self._offered])

    def __len__(self) -> int:
        return len(self._tensors) + len(self._offered)

    def __getstate__(self) -> dict[str, Any]:
        return {"_name": self._name, "_what": self._what, "_rows": self._rows, "_tensors": dict(self), "_offered": {}}

    def __repr__(self) -> str:
        shapes = ", ".join(f"{key!r}: {tuple(tensor.shape)}" for key, tensor in self.items())
        return f"{self._name}({shapes})"


def _taken(fields: Fields, key: str, rows: torch.Tensor) -> torch.Tensor:
    return fields[key][rows]
