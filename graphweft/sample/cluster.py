"""Cluster sampling: batches of whole parts of the graph, with the edges within and between them.

Comes in: numbers of parts. Goes out: the subgraph between their nodes. Called by the loader. Source: Cluster-GCN
(Chiang et al., KDD 2019).
"""

from __future__ import annotations

from typing import Any

import torch

from graphweft._checks import check_rows, checksum
from graphweft._errors import ConfigError, GraphError
from graphweft.graph.graph import Graph
from graphweft.graph.ids import as_ids, require_ids
from graphweft.sample.pieces import Pieces, seeds_first
from graphweft.sample.sampler import GroupSampler, Sample


class ClusterSampler(GroupSampler):
    """Cluster-GCN: batches of ``batch_size`` parts of a partition, each part once per epoch. Edges to parts of other
    batches are left out.

    Args:
        graph: A square graph.
        part: (num_nodes,) number of each node's part, such as ``gw.partition(graph, k).part``. A part may be empty.

    Raises: ConfigError, GraphError, IndexRangeError, ShapeError.

    Example:
        >>> sampler = ClusterSampler(Graph([0, 1, 2, 3], [1, 0, 3, 0]), [0, 0, 1, 1])
        >>> sample = sampler.draw(torch.tensor([1]), torch.tensor([True, True, False, True]))
        >>> sample.n_id.tolist(), sample.batch_size, sample.edge_index.tolist()
        ([3, 2], 1, [[1], [0]])
    """

    def __init__(self, graph: Graph, part: Any) -> None:
        who = type(self).__name__
        if not isinstance(graph, Graph) or not graph.is_square:
            raise GraphError(f"{who}: expected a graph over one set of nodes, got {graph!r}")
        numbers = as_ids(who, "part", part).long()
        check_rows(f"{who} part", numbers, graph.num_nodes, "node")
        if graph.num_nodes == 0:
            raise ConfigError(f"{who}: expected a graph with nodes, got {graph!r}")
        require_ids(who, "part", numbers, max(int(numbers.max()) + 1, 1))
        self.graph, self.num_items = graph, int(numbers.max()) + 1
        self._nodes = torch.argsort(numbers, stable=True)
        self._starts = torch.zeros(self.num_items + 1, dtype=torch.int64)
        torch.cumsum(torch.bincount(numbers, minlength=self.num_items), 0, out=self._starts[1:])
        self._checksum = checksum(numbers)
        self._pieces = Pieces(graph)

    def identity(self) -> dict[str, Any]:
        """Settings that decide the batches, in addition to graph and random keys."""
        return {"parts": self.num_items, "parts_checksum": self._checksum}

    def draw(self, items: torch.Tensor, wanted: torch.Tensor, *, seed: int = 0, epoch: int = 0) -> Sample:
        """The subgraph between the nodes of the parts ``items``, those where ``wanted`` holds first."""
        starts = self._starts.tolist()
        nodes = [self._nodes[starts[item] : starts[item + 1]] for item in items.tolist()]
        n_id, count = seeds_first(torch.cat(nodes) if nodes else self._nodes[:0], wanted)
        return self._pieces.induced(n_id, count)
