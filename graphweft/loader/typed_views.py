"""A batch of a typed graph by node type and relation, under the names that PyTorch Geometric's HeteroData has.

Comes in: a batch's nodes and edges as a typed graph of their own, and the tables of the dataset. Goes out:
:class:`NodeView` and :class:`EdgeView`, tables with ids local to each type. Made by :class:`Batch`, read by loops.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from graphweft._errors import GraphError
from graphweft.graph.graph import Graph
from graphweft.graph.typed import Relation
from graphweft.graph.typed_block import TypedPart
from graphweft.sample.sampler import Sample, counts_up_to
from graphweft.storage.feature import SparseFeatures
from graphweft.storage.gather import gather_rows

Features = Tensor | SparseFeatures

_ON_EDGES = {"edge_features": "edge_attr", "edge_weight": "edge_weight"}  # what a graph calls them in its ``edata``


def edge_table(data: Any, name: str) -> Tensor | None:
    """The dataset's table of all edges, or else the graph's own."""
    table = getattr(data, name, None)
    if table is None:
        graph = data if isinstance(data, Graph) else data.graph
        table = graph.edata.get(_ON_EDGES[name])
    return table if isinstance(table, Tensor) else None


class NodeView:
    """The nodes of one type in a batch: seeds of the type first, in order.

    Attributes:
        n_id: int64 (num_nodes,) ids within the type.
        batch_size: Seeds of the type.
        num_sampled_nodes: Those, and the new nodes of every hop.
        input_id: int64 (batch_size,) their places in the loader's list of seeds.
    """

    def __init__(
        self, n_id: Tensor, flat: Tensor, hops: list[int], batch_size: int, input_id: Tensor, name: str, data: Any
    ) -> None:
        self.n_id, self.num_sampled_nodes, self.batch_size, self.input_id = n_id, hops, batch_size, input_id
        self._flat, self._name, self._data = flat, name, data

    @property
    def num_nodes(self) -> int:
        """Nodes of the type in the batch."""
        return self.n_id.numel()

    @property
    def x(self) -> Features | None:
        """Features, one row a node: the type's own where the dataset has them, else those of all nodes; or None."""
        own = getattr(self._data, "features", {}).get(self._name)
        if own is not None:
            return gather_rows(own, self.n_id)
        whole = None if isinstance(self._data, Graph) else self._data.x
        return None if whole is None else gather_rows(whole, self._flat)

    @property
    def y(self) -> Tensor | None:
        """Labels, one row a node, -1 where there is none; None without."""
        own = getattr(self._data, "labels", {}).get(self._name)
        if own is not None:
            return gather_rows(own, self.n_id)  # type: ignore[return-value]
        table = getattr(self._data, "y", None)
        return gather_rows(table, self._flat) if isinstance(table, Tensor) else None  # type: ignore[return-value]

    def __repr__(self) -> str:
        return f"NodeView({self._name!r}, num_nodes={self.num_nodes}, batch_size={self.batch_size})"


class EdgeView:
    """The edges of one relation in a batch.

    Attributes:
        edge_index: int64 (2, num_edges): places among the batch's nodes of the source and the destination type.
        e_id: int64 (num_edges,) ids within the relation.
        num_sampled_edges: Edges of every hop, in this order; None where layers share a graph.
    """

    def __init__(self, edge_index: Tensor, e_id: Tensor, flat: Tensor, hops: list[int] | None, data: Any) -> None:
        self.edge_index, self.e_id, self.num_sampled_edges = edge_index, e_id, hops
        self._flat, self._data = flat, data

    @property
    def num_edges(self) -> int:
        """Edges of the relation in the batch."""
        return self.e_id.numel()

    @property
    def edge_attr(self) -> Tensor | None:
        """Edge features, one row an edge; None without."""
        table = edge_table(self._data, "edge_features")
        return gather_rows(table, self._flat) if isinstance(table, Tensor) else None  # type: ignore[return-value]

    @property
    def edge_weight(self) -> Tensor | None:
        """Edge weights; None without."""
        table = edge_table(self._data, "edge_weight")
        return gather_rows(table, self._flat) if isinstance(table, Tensor) else None  # type: ignore[return-value]

    def __repr__(self) -> str:
        return f"EdgeView(num_edges={self.num_edges})"


class TypedViews(Mapping[str | Relation, NodeView | EdgeView]):
    """All views of one batch: by node type, and by relation.

    Attributes:
        part: The batch as a typed graph; ``order`` and ``edge_order`` lead back to the batch's numbering.
    """

    def __init__(self, sample: Sample, input_id: Tensor, graph: Graph, data: Any) -> None:
        src, dst = sample.edge_index
        whole, n_id, e_id = graph.layout, sample.n_id, sample.e_id
        self.part = part = TypedPart.of(whole, n_id, e_id, src, dst)
        self._views: dict[str | Relation, NodeView | EdgeView] = {}
        layout, ends = part.graph.layout, part.graph.edges()
        of_edges = sample.num_sampled_edges
        node_ends = torch.tensor(sample.num_sampled_nodes).cumsum(0)
        edge_ends = None if of_edges is None else torch.tensor(of_edges, dtype=torch.int64).cumsum(0)
        for t, name in enumerate(layout.node_types):
            mine = part.order[layout.node_offsets[t] : layout.node_offsets[t + 1]]
            seeds = mine[: int(torch.count_nonzero(mine < sample.batch_size))]
            flat = n_id[mine]
            places = input_id[seeds] if input_id.numel() == sample.batch_size else seeds
            hops = counts_up_to(mine, node_ends)
            self._views[name] = NodeView(flat - whole.node_offsets[t], flat, hops, seeds.numel(), places, name, data)
        for r, relation in enumerate(layout.relations):
            here = slice(layout.edge_offsets[r], layout.edge_offsets[r + 1])
            places = part.edge_order[here]
            flat, drawn = e_id[places], None if edge_ends is None else counts_up_to(places, edge_ends)
            edges = torch.empty((2, flat.numel()), dtype=torch.int64)
            for row, end, kind in zip(edges, ends, relation[::2], strict=True):
                torch.sub(end[here], layout.node_range(kind).start, out=row)
            self._views[relation] = EdgeView(edges, flat - whole.edge_offsets[r], flat, drawn, data)

    def __getitem__(self, key: str | Relation) -> NodeView | EdgeView:
        found = self._views.get(key)
        if found is None:
            known = ", ".join("-".join(k) if isinstance(k, tuple) else k for k in self._views)
            raise GraphError(f"Batch: expected a node type or a relation of {known}, got {key!r}")
        return found

    def __iter__(self) -> Any:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)
