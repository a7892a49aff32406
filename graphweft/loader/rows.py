"""Tensors of a batch, made when they are first asked for, on the device that the batch was sent to.

Comes in: a name and how to make what it stands for. Goes out: the tensor. Held by batches and by their views by type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from graphweft._checks import check_device
from graphweft._torch_private import on_host
from graphweft.storage.feature import SparseFeatures, is_dense

_Place = tuple[Any, bool]  # a device, and whether the copy to it may run beside the caller


class Rows:
    """A dict that makes its entries. Sparse features become dense rows on other devices than the CPU, with a warning.

    Values that are no tensors stay where they are.

    Example:
        >>> import torch
        >>> rows = Rows()
        >>> rows.get("y", lambda: torch.ones(2)).device, rows.to("meta").get("y", lambda: None).device
        (device(type='cpu'), device(type='meta'))
    """

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}
        self._place: _Place | None = None
        self._places: dict[str, _Place] = {}  # of single names
        self._given: set[str] = set()  # names that were put
        self._pinned = self._cloned = False

    def get(self, name: str, make: Callable[[], Tensor | SparseFeatures | None] | None = None) -> Any:
        """The tensor called ``name``, which ``make`` makes when it is first asked for; None where there is none."""
        if name not in self._kept:
            if make is None:
                return None
            with on_host():  # a default device of the caller is not where the batch is
                made = make()
            if made is None:
                return None
            self._kept[name] = self._sent(name, made.clone() if self._cloned and isinstance(made, Tensor) else made)
        return self._kept[name]

    def put(self, name: str, rows: Any) -> None:
        """``rows`` as they are under ``name``; None: none from now on."""
        self._kept[name] = rows
        self._given.add(name)

    def was_put(self, name: str) -> bool:
        """Whether ``name`` was put rather than made."""
        return name in self._given

    def __contains__(self, name: object) -> bool:
        return self._kept.get(name) is not None  # type: ignore[call-overload]

    def names(self) -> list[str]:
        """What is kept."""
        return [name for name, rows in self._kept.items() if rows is not None]

    def lacks(self, name: str) -> bool:
        """Whether ``name`` was set to None."""
        return name in self._kept and self._kept[name] is None

    def to(self, device: Any, non_blocking: bool = False, names: tuple[str, ...] = ()) -> Rows:
        """Everything, or what has one of ``names``, on ``device``, also what is still to be made; itself."""
        place = (check_device("to", device), non_blocking)
        if names:
            self._places.update(dict.fromkeys(names, place))
        else:
            self._place, self._places = place, {}
        for name in names or tuple(self._kept):
            if name in self._kept:
                self._kept[name] = self._sent(name, self._kept[name])
        return self

    def pin(self) -> None:
        """Everything in page-locked memory, also what is still to be made."""
        self._pinned = True
        self._kept = {name: self._sent(name, rows) for name, rows in self._kept.items()}

    def clone(self) -> None:
        """Copies of everything in place of the tensors, also of what is still to be made."""
        self._cloned = True
        self._kept = {name: rows.clone() if isinstance(rows, Tensor) else rows for name, rows in self._kept.items()}

    def __copy__(self) -> Rows:
        twin = Rows()
        twin.__dict__.update(self.__dict__, _kept=dict(self._kept), _places=dict(self._places), _given=set(self._given))
        return twin

    def like(self, other: Rows) -> Rows:
        """On the devices of another; itself."""
        self._place, self._places = other._place, dict(other._places)
        self._pinned, self._cloned = other._pinned, other._cloned
        self._kept = {name: self._sent(name, rows) for name, rows in self._kept.items()}
        return self

    def _sent(self, name: str, rows: Any) -> Any:
        if not isinstance(rows, Tensor):
            return rows
        place = self._places.get(name, self._place)
        if place is not None:
            rows = rows.to(place[0], non_blocking=place[1])
        return rows.pin_memory() if self._pinned and is_dense(rows) and rows.device.type == "cpu" else rows
