"""A graph whose nodes are shared out over processes, as one of them sees it.

Comes in: the in-edges of its own nodes. Goes out: :class:`SharedGraph`, which counts own nodes as its nodes and brings
the rows of others on demand. Made by ``dist``; models are called with it in the place of the whole graph.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from torch import Tensor

from graphweft._errors import ConfigError
from graphweft.graph.block import Block
from graphweft.graph.graph import Graph

T = TypeVar("T")


class SharedGraph(Graph, ABC):
    """The nodes of one process, and their in-edges, among them those from nodes of other processes.

    Node rows are those of own nodes; rows of edges are those of the whole graph, as with the blocks of a batch. What
    asks for edges or for other nodes by number is refused.

    Attributes:
        block: In-edges of own nodes; sources are own nodes, then those of others.
    """

    __slots__ = ("block",)
    block: Block

    @classmethod
    def around(cls, block: Block) -> Any:
        """The graph of the processes that have such a block each."""
        graph = cls.__new__(cls)
        graph._adopt(block._forms, block.num_dst, block.num_dst, True)
        graph.block = block
        return graph

    @abstractmethod
    def over(self, rows: Any, run: Callable[[Block, Any], T]) -> list[T]:
        """``run(block, rows of its sources)`` for blocks whose destinations are together the own nodes, in order.

        Shape: rows (own, columns), as are those of all other processes, which call this together.
        """

    @abstractmethod
    def fetched(self, rows: Tensor) -> Tensor:
        """Rows of the sources of :attr:`block`, from own rows (own, columns). All processes call it."""

    @abstractmethod
    def span(self, block: Block) -> slice:
        """Which own nodes are the destinations of a block that :meth:`over` runs."""

    @property
    def num_edges(self) -> int:
        """Edges that rows of edges are given for."""
        return self.block.source.num_edges

    def __repr__(self) -> str:
        return f"SharedGraph(num_nodes={self.num_nodes}, borrowed={self.block.num_src - self.num_nodes})"


def _refused(name: str) -> property:
    def refuse(graph: SharedGraph) -> NoReturn:
        raise ConfigError(f"graph.{name} is not supported over several ranks, whose graph has the edges of one of them")

    return property(refuse)


for _name in (
    "csc", "csr", "csc_structure", "csr_structure", "any_form", "is_symmetric", "has_self_loops", "loopless", "stats",
    "out_degrees", "reverse",
):  # fmt: skip
    setattr(SharedGraph, _name, _refused(_name))
