"""Whole graphs out of several: batches of some of the graphs that lie side by side in one, whose nodes are trained on.

Comes in: numbers of graphs. Goes out: those graphs side by side. Called by the loader and the trainer, for an inductive
split in which training, validation and test nodes are of different graphs.
"""

from __future__ import annotations

from typing import Any

import torch

from graphweft._checks import checksum
from graphweft._errors import ConfigError, GraphError
from graphweft.graph.graph import Graph
from graphweft.graph.ids import Ids
from graphweft.graph.select import as_selection
from graphweft.sample.cluster import ClusterSampler
from graphweft.sample.sampler import Sample


class GraphSampler(ClusterSampler):
    """Batches of ``batch_size`` whole graphs, each graph once per epoch.

    Args:
        graph: Several graphs side by side, without edges between them.
        graph_id: (num_nodes,) number of the graph of each node.
        graphs: Ids or a mask of the graphs to draw; None: all.

    Raises: ConfigError, GraphError, IndexRangeError, ShapeError.

    Example:
        >>> sampler = GraphSampler(Graph([0, 1, 2, 3], [1, 0, 3, 2]), [0, 0, 1, 1])
        >>> sample = sampler.draw(torch.tensor([1]), torch.ones(4, dtype=torch.bool))
        >>> sample.n_id.tolist(), sample.batch_size, sample.edge_index.tolist()
        ([2, 3], 2, [[1, 0], [0, 1]])
    """

    def __init__(self, graph: Graph, graph_id: Any, graphs: Ids | None = None) -> None:
        super().__init__(graph, graph_id)
        self.graph_id = torch.as_tensor(graph_id).long()
        src, dst = graph.edges()
        across = self.graph_id[src] != self.graph_id[dst]
        if bool(across.any()):
            at = int(across.nonzero()[0])
            pair = f"edge {at} from graph {int(self.graph_id[src[at]])} to graph {int(self.graph_id[dst[at]])}"
            raise GraphError(f"GraphSampler: expected edges within graphs, got {pair}")
        count = self.num_items
        self.graphs = torch.arange(count) if graphs is None else as_selection("GraphSampler", "graph", graphs, count)
        if self.graphs.numel() == 0:
            raise ConfigError("GraphSampler: expected at least one graph, got none")
        self.num_items = self.graphs.numel()

    def holding(self, nodes: torch.Tensor) -> GraphSampler:
        """A sampler of the graphs that contain some of ``nodes``."""
        return GraphSampler(self.graph, self.graph_id, torch.unique(self.graph_id[nodes], sorted=True))

    def identity(self) -> dict[str, Any]:
        """Settings that decide the batches, in addition to graph and random keys."""
        return {**super().identity(), "graphs": self.num_items, "graphs_checksum": checksum(self.graphs)}

    def draw(self, items: torch.Tensor, wanted: torch.Tensor, *, seed: int = 0, epoch: int = 0) -> Sample:
        """The graphs ``items`` of those that are drawn; nodes where ``wanted`` holds come first."""
        return super().draw(self.graphs[items], wanted, seed=seed, epoch=epoch)
