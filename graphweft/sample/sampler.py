"""What a sampler takes and gives.

Comes in: seeds and what keys the random draws. Goes out: a :class:`Sample`, the nodes and edges of one batch, without
features. Implemented by the modules beside this one; called by the loader.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from graphweft._checks import as_integer
from graphweft._errors import ConfigError
from graphweft._memory import empty
from graphweft.graph.block import Block, DrawnEdges, FarIds, OpenBlock
from graphweft.graph.graph import Graph
from graphweft.graph.hops import Hops, mark
from graphweft.graph.ids import Ids
from graphweft.graph.select import as_selection

DENSE_MOST = 1 << 24  # nodes: up to here numbers lie in an array over all of them, beyond in a table of a batch's size


class Sample:
    """The structure of one batch.

    Attributes:
        n_id: int64 (num_nodes,) ids of its nodes: the seeds first, in their order, every node once. A
            :class:`NeighborSampler` numbers what a hop adds in ascending order of the ids.
        batch_size: Number of seeds.
        blocks: One bipartite layer per hop, the one farthest from the seeds first, so that layer i of a model runs on
            block i. Empty if the sampler makes one graph for all layers, :attr:`subgraph`.
        node_norm: float32 (num_nodes,) weights of losses. The weighted sum over the first ``batch_size`` nodes is an
            unbiased estimate of the mean over all seeds. None: equal weights.
        edge_norm: float32 (num_edges,) factors that make sums over a node's in-edges unbiased; None without.
        owner: int64 (num_nodes,) number of the seed whose subgraph a node belongs to; None for a shared subgraph.
    """

    node_norm: torch.Tensor | None = None
    edge_norm: torch.Tensor | None = None
    owner: torch.Tensor | None = None

    def __init__(
        self, n_id: torch.Tensor | FarIds, batch_size: int, blocks: tuple[Block, ...], drawn: tuple[DrawnEdges, ...]
    ) -> None:
        self._n_id, self.batch_size, self.blocks, self._drawn = n_id, batch_size, blocks, drawn
        self._edge_index: torch.Tensor | None = None
        self._e_id: torch.Tensor | None = None
        self._subgraph: Graph | None = None

    @property
    def n_id(self) -> torch.Tensor:
        """See the class; of a batch that was drawn on a device the copy in host memory."""
        return self._n_id.host if isinstance(self._n_id, FarIds) else self._n_id

    @property
    def ids(self) -> torch.Tensor:
        """:attr:`n_id` where the batch was drawn: in host memory or on a device."""
        return self._n_id.far if isinstance(self._n_id, FarIds) else self._n_id

    @property
    def num_nodes(self) -> int:
        """Nodes of the batch."""
        return self.ids.numel()

    @property
    def num_edges(self) -> int:
        """Edges of the batch, each drawn one once."""
        return sum(part.num_edges for part in self._drawn)

    @property
    def edge_index(self) -> torch.Tensor:
        """int64 (2, num_edges): sources in row 0, destinations in row 1, in batch numbering, by destination."""
        if self._edge_index is None:
            self._edge_index = empty((2, self.num_edges), torch.int64)
            self._fill(lambda part, here: part.write(self._edge_index[0, here], self._edge_index[1, here], None))
            mark(self._edge_index, self._hops(self._edge_index))
        return self._edge_index

    def _hops(self, edge_index: torch.Tensor) -> Hops:
        """Where the hops end; one for all where layers share a graph."""
        if not self.blocks:
            return Hops(self.batch_size, (self.num_nodes,), ())
        nodes = (self.batch_size, *(block.num_src for block in reversed(self.blocks)))
        ends = torch.searchsorted(edge_index[1], torch.tensor(nodes[:-1]))
        return Hops(self.batch_size, nodes, tuple(ends.tolist()))

    @property
    def e_id(self) -> torch.Tensor:
        """int64 (num_edges,): positions of the edges in ``graph.edges()``, in the order of ``edge_index``."""
        if self._e_id is None:
            self._e_id = empty((self.num_edges,), torch.int64)
            self._fill(lambda part, here: part.write(None, None, self._e_id[here]))
        return self._e_id

    @property
    def subgraph(self) -> Graph:
        """The batch as one graph, edges in the order of ``edge_index``."""
        if self._subgraph is None:
            src, dst = self.edge_index
            self._subgraph = Graph(src, dst, num_nodes=self.num_nodes).as_drawn()
        return self._subgraph

    @property
    def num_sampled_nodes(self) -> list[int]:
        """New nodes of the seeds and of every hop."""
        ends = [self.batch_size, *(block.num_src for block in reversed(self.blocks))]
        return [ends[0], *(after - before for before, after in itertools.pairwise(ends))]

    @property
    def num_sampled_edges(self) -> list[int] | None:
        """Edges into the seeds, then into the new nodes of every hop but the last; None for one graph for all layers.

        ``edge_index`` is in this order, so that a layer that needs fewer hops reads its beginning.
        """
        if not self.blocks:
            return None
        ends = torch.tensor([block.num_dst for block in reversed(self.blocks)])
        return counts_up_to(self.edge_index[1].contiguous(), ends)

    def _fill(self, write: Any) -> None:
        done = 0
        for part in self._drawn:
            write(part, slice(done, done + part.num_edges))
            done += part.num_edges


def counts_up_to(ascending: torch.Tensor, ends: torch.Tensor) -> list[int]:
    """How many entries lie below the first end, between it and the second, and so on.

    Example:
        >>> counts_up_to(torch.tensor([0, 0, 1, 4]), torch.tensor([1, 3, 5]))
        [2, 1, 1]
    """
    return torch.diff(torch.searchsorted(ascending, ends), prepend=torch.zeros(1, dtype=torch.int64)).tolist()


class OpenSample:
    """A batch whose last hop was drawn and not numbered.

    Attributes:
        n_id: int64 ids of the nodes that have numbers: the seeds first, then those of all hops but the last.
        batch_size: Number of seeds.
        blocks: As of :class:`Sample`; the first is open.
    """

    def __init__(self, n_id: torch.Tensor, batch_size: int, blocks: tuple[Block | OpenBlock, ...]) -> None:
        self.n_id, self.batch_size, self.blocks = n_id, batch_size, blocks


class Sampler(Protocol):
    """Draws batches around seeds; the same seeds under the same keys give the same sample, on any thread.

    Attributes:
        graph: The graph that is sampled.
    """

    graph: Graph

    def sample(self, seeds: torch.Tensor, *, seed: int = 0, epoch: int = 0, stage: int = 0) -> Sample:
        """The batch of ``seeds``, distinct int64 ids."""

    def identity(self) -> dict[str, Any]:
        """What decides the draws, beside graph and keys: numbers and texts, for states of loaders."""


class ShownBySettings(abc.ABC):
    """A sampler shows its graph and what decides its draws."""

    graph: Graph

    @abc.abstractmethod
    def identity(self) -> dict[str, Any]:
        """As :meth:`Sampler.identity`."""

    def __repr__(self) -> str:
        """Graph and settings.

        Example:
            >>> from graphweft.sample.neighbor import NeighborSampler
            >>> NeighborSampler(Graph([0], [1]), [3, 2])
            NeighborSampler(Graph(num_nodes=2, num_edges=1), fanouts=[3, 2])
        """
        settings = {name: value for name, value in self.identity().items() if not name.endswith("_checksum")}
        told = (f"{name}={value!r}" for name, value in settings.items() if value is not None and value is not False)
        return f"{type(self).__name__}({', '.join([repr(self.graph), *told])})"


class GroupSampler(ShownBySettings):
    """Draws subgraphs without regard to seeds: an epoch goes over the sampler's own items, some of them a batch.

    Attributes:
        graph: The graph that is sampled.
        num_items: Items of an epoch.
    """

    graph: Graph
    num_items: int

    @abc.abstractmethod
    def draw(self, items: torch.Tensor, wanted: torch.Tensor, *, seed: int = 0, epoch: int = 0) -> Sample:
        """The batch of ``items``, distinct int64 in [0, num_items).

        ``wanted``: bool (num_nodes,), the nodes that are trained on. Those of the batch come first in its ``n_id``, and
        ``batch_size`` is their number.
        """

    @abc.abstractmethod
    def identity(self) -> dict[str, Any]:
        """As :meth:`Sampler.identity`."""


def as_seeds(
    distinct: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]], seeds: Ids, bound: int
) -> torch.Tensor:
    """``seeds`` (ids, a mask or a slice) as int64 ids, each once. ``distinct`` finds repeats.

    Raises: IndexRangeError for an id that is no node, ConfigError for one that comes twice.
    """
    ids = as_selection("sample", "seed", seeds, bound).contiguous()
    unique, places = distinct(ids)
    if unique.numel() < ids.numel():
        again = int((places != torch.arange(ids.numel())).nonzero()[0])
        pair = f"positions {int(places[again])} and {again}"
        raise ConfigError(f"sample: expected distinct seeds, got {int(ids[again])} at {pair}")
    return ids


def check_fanouts(who: str, fanouts: Any) -> tuple[int, ...]:
    """Fan-outs from the seeds outwards: positive, or -1 for all in-edges.

    Raises: ConfigError.

    Example:
        >>> check_fanouts("Loader", [15, -1])
        (15, -1)
    """
    given = fanouts.tolist() if isinstance(fanouts, torch.Tensor | np.ndarray) else fanouts
    if isinstance(given, str | bytes) or not isinstance(given, Sequence) or len(given) == 0:
        raise ConfigError(f"{who}: expected fanouts as a list of numbers, one a layer, got {fanouts!r}")
    numbers = []
    for position, fanout in enumerate(given):
        number = as_integer(fanout)
        if number is None or (number != -1 and not 0 < number < 2**31):
            raise ConfigError(f"{who}: expected fanouts >= 1, or -1 for all, got {fanout!r} at position {position}")
        numbers.append(number)
    return tuple(numbers)
