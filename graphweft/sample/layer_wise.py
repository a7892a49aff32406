"""Layer-wise sampling: nodes are drawn for a whole layer, so that the size of a batch does not grow with its depth.

Comes in: seeds. Goes out: a :class:`LayerSample` with one block per hop, whose edges carry the factors of unbiased
sums. Called by the loader. Sources: FastGCN (Chen et al., ICLR 2018), LADIES (Zou et al., NeurIPS 2019).
"""

from __future__ import annotations

from typing import Any

import torch

from graphweft._errors import ConfigError, GraphError
from graphweft._memory import empty
from graphweft.graph.block import Block
from graphweft.graph.graph import Graph
from graphweft.graph.hops import Hops, mark
from graphweft.graph.ids import Ids
from graphweft.sample.pieces import Pieces
from graphweft.sample.primitives import draw_nodes
from graphweft.sample.sampler import Sample, ShownBySettings, as_seeds, check_fanouts
from graphweft.sample.weights import as_weights, weights_identity

IMPORTANCE = ("ladies", "fastgcn", "uniform")


class LayerSampler(ShownBySettings):
    """Layer-wise sampling: draws the sources of a whole layer together, and keeps all edges to the layer's
    destinations.

    The destinations of hop h are the seeds and all nodes that were drawn before. ``sizes[h]`` sources are drawn for
    them. ``block.edge_norm`` makes sums over in-edges unbiased. Layers that divide by the drawn in-degree, as the
    built-in ones, normalise rows as LADIES does and need no factor.

    Args:
        graph: A square graph.
        sizes: Sources to draw in each hop, from the seeds outwards; -1: all.
        importance: Chances of the sources. "ladies": proportional to the squared norm of the source's column of the
            mean over in-edges, restricted to the layer's destinations. "fastgcn": the same for the whole column.
            "uniform": equal for all in-neighbours. Or (num_nodes,) weights >= 0.
        replace: Whether to draw with replacement.

    Raises: ConfigError, GraphError, ShapeError.

    Example:
        >>> sampler = LayerSampler(Graph([1, 2, 3, 3], [0, 0, 0, 1]), [1, 2])
        >>> sample = sampler.sample([0, 1])
        >>> [(block.num_dst, block.num_src) for block in sample.blocks], sample.n_id[:2].tolist()
        ([(3, 4), (2, 3)], [0, 1])
    """

    def __init__(self, graph: Graph, sizes: Any, importance: Any = "ladies", replace: bool = False) -> None:
        who = type(self).__name__
        if not isinstance(graph, Graph) or not graph.is_square:
            raise GraphError(f"{who}: expected a graph over one set of nodes, got {graph!r}")
        self.graph, self.sizes, self.replace = graph, check_fanouts(who, sizes), bool(replace)
        if self.replace and -1 in self.sizes:
            raise ConfigError(f"{who}: expected sizes >= 1 when drawing with replacement, got {self.sizes}")
        if isinstance(importance, str) and importance not in IMPORTANCE:
            raise ConfigError(f"{who}: expected importance among {', '.join(IMPORTANCE)}, got {importance!r}")
        self.importance = importance if isinstance(importance, str) else "given"
        self._degrees = graph.in_degrees()
        self._pieces = Pieces(graph)
        self._everywhere: tuple[torch.Tensor, torch.Tensor] | None = None
        self._given: torch.Tensor | None = None
        if self.importance == "fastgcn":
            self._everywhere = self._norms(graph.nodes())
        elif self.importance == "given":
            self._given = as_weights(who, importance, graph.num_nodes, "node").double()
        self._weights_identity = {} if self._given is None else weights_identity(self._given)

    def identity(self) -> dict[str, Any]:
        """Settings that decide the draws, in addition to graph and random keys."""
        options = {"layer_sizes": list(self.sizes), "importance": self.importance, "replace": self.replace}
        return {**options, **self._weights_identity}

    def sample(self, seeds: Ids, *, seed: int = 0, epoch: int = 0, stage: int = 0) -> Sample:
        """The batch of ``seeds``: distinct node ids, a mask or a slice.

        Raises: IndexRangeError for an id that is no node, ConfigError for one that comes twice.
        """
        n_id = as_seeds(self._pieces.distinct, seeds, self.graph.num_nodes)
        count, made = n_id.numel(), list[Block]()
        for hop, size in enumerate(self.sizes):
            ids, weight = self._candidates(n_id)
            places, factors = draw_nodes(ids, weight, size, self.replace, (seed, epoch, stage), hop)
            drawn = ids[places]
            rows = n_id
            n_id, numbers = self._pieces.distinct(torch.cat([rows, drawn]))
            numbers = numbers[rows.numel() :].clone()
            edges = self._pieces.between(rows, drawn, numbers, n_id)
            of_number = torch.zeros(n_id.numel(), dtype=torch.float32)
            of_number[numbers] = factors.float()
            made.append(Block.of(edges, n_id.numel(), of_number[edges.indices.long()]))
        return LayerSample(n_id, count, tuple(reversed(made)))

    def _candidates(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Who may be drawn for ``rows``, and with what weight."""
        if self._everywhere is not None:
            return self._everywhere
        ids, norms = self._norms(rows)
        if self.importance == "uniform":
            return ids, None
        return ids, norms if self._given is None else self._given[ids]

    def _norms(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """In-neighbours of ``rows``, and the squared norms of their columns of the mean over in-edges."""
        return self._pieces.sources(rows, self._degrees[rows].clamp(min=1).double() ** -2)


class LayerSample(Sample):
    """A batch whose blocks may share edges: as one graph, each counts once."""

    def __init__(self, n_id: torch.Tensor, batch_size: int, blocks: tuple[Block, ...]) -> None:
        super().__init__(n_id, batch_size, blocks, ())
        self._union: tuple[torch.Tensor, torch.Tensor] | None = None

    @property
    def num_edges(self) -> int:
        """Edges of the batch, each once."""
        return int(self._edges()[1].numel())

    @property
    def edge_index(self) -> torch.Tensor:
        """int64 (2, num_edges): sources in row 0, destinations in row 1, in batch numbering, by destination."""
        edge_index = self._edges()[0]
        mark(edge_index, Hops(self.batch_size, (self.num_nodes,), ()))  # a hop's edges may reach beyond the next
        return edge_index

    @property
    def e_id(self) -> torch.Tensor:
        """int64 (num_edges,): positions of the edges in ``graph.edges()``, in the order of ``edge_index``."""
        return self._edges()[1]

    def _edges(self) -> tuple[torch.Tensor, torch.Tensor]:
        if self._union is None:
            ends = torch.cat([torch.stack(block.edges()) for block in self.blocks], dim=1)
            ids = torch.cat([block.e_id for block in self.blocks])
            kept, inverse = torch.unique(ids, return_inverse=True)
            place = empty((kept.numel(),), torch.int64)
            place[inverse] = torch.arange(ids.numel())  # any occurrence of an edge: its ends are the same
            order = torch.argsort(ends[1][place], stable=True)
            self._union = ends[:, place[order]].contiguous(), kept[order]
        return self._union
