"""Tensors by name, as PyTorch Geometric's ``Data`` has them: read, set, listed, moved and copied.

Comes in: the rows that a batch keeps, and functions that make those still missing. Goes out: :class:`Named`, the base
of batches and of their views by type, and :class:`Row`, one tensor of them.
"""

from __future__ import annotations

import copy
import functools
import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Generic, Self, TypeVar, overload

import torch
from torch import Tensor

from graphweft._errors import ConfigError, GraphError, IndexRangeError, ShapeError
from graphweft.loader.rows import Rows

T = TypeVar("T")

# Names that PyTorch Geometric's batches have; ``to`` passes over those that a batch lacks, as there.
USUAL = frozenset(
    [
        "x",
        "y",
        "pos",
        "time",
        "batch",
        "ptr",
        "n_id",
        "e_id",
        "edge_index",
        "edge_attr",
        "edge_weight",
        "input_id",
        "seed_time",
        "train_mask",
        "val_mask",
        "test_mask",
        "node_norm",
        "edge_norm",
        "root_n_id",
        "edge_label_index",
        "edge_label",
        "edge_label_time",
        "src_index",
        "dst_pos_index",
        "dst_neg_index",
    ]
)


class Row(Generic[T]):
    """A tensor of a batch, made when it is first read; what is assigned takes its place. Use: as ``property``."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make, self.__doc__ = make, make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, holder: None, owner: type) -> Self: ...
    @overload
    def __get__(self, holder: Named, owner: type | None = None) -> T: ...
    def __get__(self, holder: Named | None, owner: type | None = None) -> Any:
        if holder is None:
            return self
        make: Callable[[], Any] = functools.partial(self._make, holder)
        return holder._rows.get(self._name, make)

    def __set__(self, holder: Named, value: Any) -> None:
        holder._rows.put(self._name, value)

    def __delete__(self, holder: Named) -> None:
        holder._rows.put(self._name, None)


def given(doc: str) -> Row[Tensor | None]:
    """A row that is there once it is assigned; None before."""
    row: Row[Tensor | None] = Row(lambda holder: None)
    row.__doc__ = doc
    return row


class Named(ABC):
    """Tensors under their names. A name that is assigned and not known yet becomes one of them."""

    _rows: Rows
    _plain: ClassVar[frozenset[str]] = frozenset()  # annotated attributes: numbers and structures, not tensors by name

    def __init_subclass__(cls) -> None:
        cls._plain = frozenset(name for base in cls.__mro__ for name in inspect.get_annotations(base))

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or name in self._plain or hasattr(type(self), name):
            object.__setattr__(self, name, value)
        else:
            self._rows.put(name, value)

    def __delattr__(self, name: str) -> None:
        if name in self._rows:
            self._rows.put(name, None)
        else:
            object.__delattr__(self, name)

    @abstractmethod
    def _made(self) -> Iterator[str]:
        """Names of tensors that are there, or can be made."""

    def keys(self) -> list[str]:
        """Names of the tensors that there are, those that were assigned last."""
        names = dict.fromkeys([*self._made(), *self._rows.names()])
        return [name for name in names if not self._rows.lacks(name)]

    def __contains__(self, name: object) -> bool:
        return name in self.keys()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    def __getitem__(self, name: str) -> Any:
        """The tensor called ``name``. Raises: GraphError without one."""
        if not isinstance(name, str) or name not in self.keys():
            raise GraphError(f"{type(self).__name__}: expected one of {', '.join(self.keys())}, got {name!r}")
        return getattr(self, name)

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    def get(self, name: str, default: Any = None) -> Any:
        """The tensor called ``name``, or ``default``."""
        return getattr(self, name) if name in self else default

    def items(self) -> list[tuple[str, Any]]:
        """Names and tensors."""
        return [(name, getattr(self, name)) for name in self.keys()]

    def to_dict(self) -> dict[Any, Any]:
        """All tensors by name."""
        return dict(self.items())

    def to(self, device: Any, *names: str, non_blocking: bool = False) -> Self:
        """All tensors, or those with these names, on ``device``, also those that are still to be made; itself.

        Raises: ConfigError for a name that no batch has.
        """
        self._check_names(names)
        self._move(device, names, non_blocking)
        return self

    def cpu(self, *names: str) -> Self:
        """As :meth:`to`."""
        return self.to("cpu", *names)

    def cuda(self, device: Any = "cuda", *names: str, non_blocking: bool = False) -> Self:
        """As :meth:`to`."""
        return self.to(device, *names, non_blocking=non_blocking)

    def clone(self) -> Self:
        """A copy with tensors of its own."""
        twin = copy.copy(self)
        for rows in twin._all_rows():
            rows.clone()
        return twin

    def pin_memory(self) -> Self:
        """All tensors in page-locked memory, from which copies to an accelerator are faster; itself.

        Without an accelerator there is one warning, and the tensors stay where they are.
        """
        if not torch.accelerator.is_available():
            warnings.warn("pin_memory: no accelerator is available; tensors are not pinned", stacklevel=2)
            return self
        for rows in self._all_rows():
            rows.pin()
        return self

    def __copy__(self) -> Self:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._rows = copy.copy(self._rows)
        return twin

    def _all_rows(self) -> list[Rows]:
        return [self._rows]

    def _move(self, device: Any, names: tuple[str, ...], non_blocking: bool) -> None:
        for rows in self._all_rows():
            rows.to(device, non_blocking, names)

    def _check_names(self, names: tuple[str, ...]) -> None:
        for name in names:
            if not isinstance(name, str):
                raise ConfigError(
                    f"to: expected names of tensors after the device, got {name!r}; write non_blocking=..."
                )
            if name not in USUAL and name not in self:
                raise ConfigError(f"to: expected names among {', '.join(self.keys())}, got {name!r}")


def check_rows_of(who: str, holder: Named, names: list[str], rows: int, kind: str) -> None:
    """Each of these tensors that is there has ``rows`` rows. Raises: ShapeError."""
    for name in names:
        value = holder.get(name)
        if isinstance(value, Tensor) and (value.dim() == 0 or value.shape[0] != rows):
            raise ShapeError(f"{who} {name}: expected {rows} rows, one per {kind}, got shape {tuple(value.shape)}")


def check_ends(who: str, edge_index: Any, num_src: int, num_dst: int) -> None:
    """``edge_index`` is (2, E) with ids in range. Raises: ShapeError, IndexRangeError."""
    if not isinstance(edge_index, Tensor) or edge_index.dim() != 2 or edge_index.shape[0] != 2:
        shape = tuple(edge_index.shape) if isinstance(edge_index, Tensor) else type(edge_index).__name__
        raise ShapeError(f"{who} edge_index: expected shape (2, E), got {shape}")
    for row, name, bound in ((0, "sources", num_src), (1, "destinations", num_dst)):
        ids = edge_index[row]
        if ids.numel() and not (int(ids.min()) >= 0 and int(ids.max()) < bound):
            bad = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
            raise IndexRangeError(f"{who} edge_index: expected {name} in [0, {bound}), got {bad}")
