"""What message, reduce and update functions see: fields of edges and of nodes, by name.

Comes in: loaders of tensors by name. Goes out: :class:`Edges` and :class:`Nodes`, whose attributes are mappings. A
field is loaded when it is first read and is the same tensor until the function ends; assigning to a name is seen only
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, fields
from typing import Any, NoReturn

from torch import Tensor

from graphweft._errors import FieldError, UserCodeError
from graphweft.frontend.source import current_line


class FieldView(MutableMapping[str, Tensor]):
    """Tensors by name, made on first use.

    Args:
        stage: ``message``, ``reduce`` or ``update``.
        name: How the user writes this view, as ``edges.src``.
        load: Maker of each field.
        what: What a field of this view is called in messages.
        remedy: Where a missing field could come from, by its name.
    """

    def __init__(
        self,
        stage: str,
        name: str,
        load: Mapping[str, Callable[[], Tensor]],
        what: str,
        remedy: Callable[[str], str] | None = None,
    ) -> None:
        self._stage, self._name, self._load, self._what = stage, name, load, what
        self._remedy = remedy
        self._tensors: dict[str, Tensor] = {}

    def __getitem__(self, field: str) -> Tensor:
        if field not in self._tensors:
            if field not in self._load:
                known = ", ".join(repr(key) for key in self._load) or "there is none"
                remedy = "" if self._remedy is None else self._remedy(field)
                raise FieldError(
                    f"{self._stage}: {self._name}[{field!r}]: expected one of the {self._what} "
                    f"({known}), got {field!r}{remedy} ({current_line()})"
                )
            self._tensors[field] = self._load[field]()
        return self._tensors[field]

    def __setitem__(self, field: str, tensor: Tensor) -> None:
        self._tensors[field] = tensor

    def __delitem__(self, field: str) -> None:
        raise FieldError(f"{self._stage}: {self._name}: fields cannot be deleted ({current_line()})")

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._load, *self._tensors)))

    def __len__(self) -> int:
        return len({*self._load, *self._tensors})

    def __contains__(self, field: object) -> bool:
        return field in self._load or field in self._tensors

    def __repr__(self) -> str:
        return f"{self._name}({', '.join(repr(field) for field in self)})"


class _NoSuchView(UserCodeError, AttributeError):
    """So that ``hasattr`` answers."""


def _no_such_view(views: Any, called: str, name: str) -> NoReturn:
    known = ", ".join(field.name for field in fields(views) if field.name != "count")
    where = "" if name.startswith("__") else f" ({current_line()})"
    raise _NoSuchView(f"{called}: expected one of {known}, got {name!r}{where}")


@dataclass(frozen=True)
class Edges:
    """All edges, as a message function sees them.

    Attributes:
        src: Fields of the source node of every edge.
        dst: Fields of the destination node of every edge.
        data: Fields of the edges themselves.
        srctype: Rows of the node type tables, of every edge's source.
        dsttype: Likewise of its destination.
        type: Rows of the edge type tables.
        count: Number of edges.
    """

    src: FieldView
    dst: FieldView
    data: FieldView
    srctype: FieldView
    dsttype: FieldView
    type: FieldView
    count: int

    def batch_size(self) -> int:
        """Number of edges."""
        return self.count

    def __getattr__(self, name: str) -> NoReturn:
        _no_such_view(self, "edges", name)


@dataclass(frozen=True)
class Nodes:
    """Nodes, as a reduce function (some of them) or an update function (all of them) sees them.

    Attributes:
        data: Fields of the nodes.
        mailbox: Messages received, (nodes, messages, ...), by ascending edge id; empty in an update function.
        type: Rows of the node type tables.
        count: Number of nodes.
    """

    data: FieldView
    mailbox: FieldView
    type: FieldView
    count: int

    def batch_size(self) -> int:
        """Number of nodes."""
        return self.count

    def __getattr__(self, name: str) -> NoReturn:
        _no_such_view(self, "nodes", name)
