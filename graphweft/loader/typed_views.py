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
from graphweft.loader.rows import Rows
from graphweft.sample.sampler import Sample, counts_up_to
from graphweft.storage.feature import SparseFeatures
from graphweft.storage.gather import gather_rows

Features = Tensor | SparseFeatures

_ON_EDGES = {"edge_features": "edge_attr", "edge_weight": "edge_weight"}  # what a graph calls them in its ``edata``


def edge_table(data: Any, name: str) -> Tensor | None:
    """The dataset's table of all edges, or else the graph's own."""
    table = getattr(data, name, None)
    if table is None:
        table = whole_graph(data).edata.get(_ON_EDGES[name])
    return table if isinstance(table, Tensor) else None


def whole_graph(data: Any) -> Graph:
    """The graph of a dataset, or the graph itself."""
    graph: Graph = data if isinstance(data, Graph) else data.graph
    return graph


class View:
    """Nodes of a type or edges of a relation; tensors that the whole graph has by name are attributes as well."""

    def __init__(self, ids: Tensor, flat: Tensor, kind: str | Relation, data: Any) -> None:
        self._ids, self._flat, self._kind, self._data, self._rows = ids, flat, kind, data, Rows()

    def _own(self, tables: str, name: str | None = None) -> Any:
        """The rows of the type's own table among those of the dataset; None without."""
        table = getattr(self._data, tables, {}).get(self._kind)
        if table is not None and name is not None:
            table = table.get(name)
        return None if table is None else gather_rows(table, self._ids)

    def _of_all(self, table: Any) -> Any:
        """The rows of a table of all nodes or edges; None without."""
        return None if table is None else gather_rows(table, self._flat)

    def _named(self, name: str, own: str, fields: Mapping[str, Tensor]) -> Any:
        """The rows of the tensor called ``name``. Raises: AttributeError without one."""
        found = self._rows.get(name, lambda: self._either(self._own(own, name), fields.get(name)))
        if found is None:
            known = [*getattr(self._data, own, {}).get(self._kind, {}), *fields]
            what = f"a tensor of {self._kind!r}, one of {', '.join(known) or 'none'}"
            raise AttributeError(f"{type(self).__name__}: expected {what}, got {name!r}")
        return found

    def _either(self, own: Any, table: Any) -> Any:
        return self._of_all(table) if own is None else own


class NodeView(View):
    """The nodes of one type in a batch: seeds of the type first, in order.

    Other tensors of the type have their names: ``batch["paper"].year``.

    Attributes:
        batch_size: Seeds of the type.
        num_sampled_nodes: Those, and the new nodes of every hop.
    """

    def __init__(
        self, n_id: Tensor, flat: Tensor, hops: list[int], batch_size: int, input_id: Tensor, name: str, data: Any
    ) -> None:
        super().__init__(n_id, flat, name, data)
        self.num_sampled_nodes, self.batch_size, self._input_id = hops, batch_size, input_id

    @property
    def num_nodes(self) -> int:
        """Nodes of the type in the batch."""
        return self._ids.numel()

    @property
    def n_id(self) -> Tensor:
        """int64 (num_nodes,) ids within the type."""
        ids: Tensor = self._rows.get("n_id", lambda: self._ids)
        return ids

    @property
    def input_id(self) -> Tensor:
        """int64 (batch_size,) places of the seeds in the loader's list of seeds."""
        ids: Tensor = self._rows.get("input_id", lambda: self._input_id)
        return ids

    @property
    def x(self) -> Features | None:
        """Features, one row a node: the type's own where the dataset has them, else those of all nodes; or None."""
        whole = None if isinstance(self._data, Graph) else self._data.x
        rows: Features | None = self._rows.get("x", lambda: self._either(self._own("features"), whole))
        return rows

    @property
    def y(self) -> Tensor | None:
        """Labels, one row a node, -1 where there is none; None without."""
        table = getattr(self._data, "y", None)
        rows: Tensor | None = self._rows.get("y", lambda: self._either(self._own("labels"), table))
        return rows

    def __getattr__(self, name: str) -> Any:
        """A tensor of the type, or of all nodes, by name."""
        if name.startswith("_"):
            raise AttributeError(name)
        return self._named(name, "node_tables", whole_graph(self._data).ndata)

    def __repr__(self) -> str:
        return f"NodeView({self._kind!r}, num_nodes={self.num_nodes}, batch_size={self.batch_size})"


class EdgeView(View):
    """The edges of one relation in a batch.

    Other tensors of the relation have their names: ``batch["author", "writes", "paper"].time``.

    Attributes:
        num_sampled_edges: Edges of every hop, in this order; None where layers share a graph.
    """

    def __init__(
        self, edge_index: Tensor, e_id: Tensor, flat: Tensor, hops: list[int] | None, relation: Relation, data: Any
    ) -> None:
        super().__init__(e_id, flat, relation, data)
        self.num_sampled_edges, self._edge_index = hops, edge_index

    @property
    def num_edges(self) -> int:
        """Edges of the relation in the batch."""
        return self._ids.numel()

    @property
    def edge_index(self) -> Tensor:
        """int64 (2, num_edges): places among the batch's nodes of the source and the destination type."""
        ends: Tensor = self._rows.get("edge_index", lambda: self._edge_index)
        return ends

    @property
    def e_id(self) -> Tensor:
        """int64 (num_edges,) ids within the relation."""
        ids: Tensor = self._rows.get("e_id", lambda: self._ids)
        return ids

    @property
    def edge_attr(self) -> Tensor | None:
        """Edge features, one row an edge: the relation's own, else those of all edges; None without."""
        return self._table("edge_features")

    @property
    def edge_weight(self) -> Tensor | None:
        """Edge weights, likewise; None without."""
        return self._table("edge_weight")

    def _table(self, name: str) -> Tensor | None:
        theirs, whole = _ON_EDGES[name], edge_table(self._data, name)
        rows: Tensor | None = self._rows.get(theirs, lambda: self._either(self._own("edge_tables", theirs), whole))
        return rows

    def __getattr__(self, name: str) -> Any:
        """A tensor of the relation, or of all edges, by name."""
        if name.startswith("_"):
            raise AttributeError(name)
        return self._named(name, "edge_tables", whole_graph(self._data).edata)

    def __repr__(self) -> str:
        return f"EdgeView(num_edges={self.num_edges})"


class TypedViews(Mapping[str | Relation, NodeView | EdgeView]):
    """All views of one batch: by node type, and by relation.

    Attributes:
        part: The batch as a typed graph; ``order`` and ``edge_order`` lead back to the batch's numbering.
    """

    def __init__(self, sample: Sample, input_id: Tensor, graph: Graph, data: Any, like: Rows) -> None:
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
            self._views[relation] = EdgeView(edges, flat - whole.edge_offsets[r], flat, drawn, relation, data)
        for view in self._views.values():
            view._rows.like(like)

    def to(self, device: Any, non_blocking: bool) -> None:
        """All tensors of all types on ``device``."""
        for view in self._views.values():
            view._rows.to(device, non_blocking)

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
