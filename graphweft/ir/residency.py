"""Types of IR values: where a value lives (residency), how an operation moves it (movement), its shape and dtype.

Comes in: nothing. Goes out: the vocabulary of every other IR module. A tensor's leading size is a symbol (``"V"``,
``"E"``), so a program serves every graph; the trailing sizes are integers. On a square graph sources and destinations
share one symbol, and a value that lives on either may be used as both. Source: Graphiler, MLSys 2022, section 4.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import torch


class Residency(enum.Enum):
    """What the leading dimension of a value counts."""

    __hash__ = object.__hash__  # as members are compared; that of Enum is a function in Python

    SRC = "src"
    DST = "dst"
    EDGE = "edge"
    NTYPE = "ntype"
    ETYPE = "etype"
    SHARED = "shared"


class Movement(enum.Enum):
    """How an operation relates the residency of its result to that of its operands."""

    __hash__ = object.__hash__  # as members are compared; that of Enum is a function in Python

    LEAF = "leaf"
    STRUCTURE = "structure"  # makes or changes a graph, or reads a property of one
    BROADCAST = "broadcast"  # node, type or shared values to edges or rows
    REDUCE = "reduce"  # edges to nodes
    NORM = "norm"  # reduce and broadcast back
    DENSE = "dense"  # row by row
    CONTRACT = "contract"  # rows to shared: weight and bias gradients
    PLACE = "place"  # the same rows in another memory


Dim = str  # a symbolic leading size
HOST = "host"  # the place where everything lies that was not moved


@dataclass(frozen=True)
class TensorType:
    """A tensor: ``rows`` x ``dims``, or just ``dims`` when it is shared.

    Attributes:
        residency: What the rows are.
        rows: Symbol of the leading size; None exactly when shared.
        dims: The trailing sizes.
        dtype: Element type.
        sparse: Stored as compressed rows (node features only).
        place: The memory that the rows lie in.
        arrived: Whether they are there; else they are on their way.
    """

    residency: Residency
    rows: Dim | None
    dims: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    sparse: bool = False
    place: str = HOST
    arrived: bool = True

    def __str__(self) -> str:
        sizes = ([self.rows] if self.rows is not None else []) + [str(size) for size in self.dims]
        kind = str(self.dtype).removeprefix("torch.") + (" csr" if self.sparse else "")
        way = "" if self.place == HOST and self.arrived else f" {'at' if self.arrived else 'to'} {self.place}"
        return f"{self.residency.value}[{' x '.join(sizes)}] {kind}{way}"


@dataclass(frozen=True)
class StructType:
    """A graph: symbols of its source, destination and edge counts."""

    src: Dim
    dst: Dim
    edge: Dim

    @property
    def square(self) -> bool:
        """Whether sources and destinations are the same nodes."""
        return self.src == self.dst

    def __str__(self) -> str:
        return f"graph[{self.src} -> {self.dst}, {self.edge}]"


@dataclass(frozen=True)
class IndexType:
    """A list of node ids, or a random seed: an operand that is no tensor of numbers. ``rows`` is None for a scalar."""

    rows: Dim | None
    into: Dim | None

    def __str__(self) -> str:
        return f"index[{self.rows} into {self.into}]" if self.rows else "seed"


Type = TensorType | StructType | IndexType

OTHER = "graph:{}"  # names of a program's graphs beside "graph"


def edges_of(graph: str) -> Dim:
    """The symbol of the edges of a graph beside the first one."""
    return f"E{graph.rpartition(':')[2]}"
