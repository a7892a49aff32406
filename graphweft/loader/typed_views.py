"""A batch of a typed graph by node type and relation, under the names that PyTorch Geometric's HeteroData has.

Comes in: a batch's nodes and edges as a typed graph of their own, and the tables of the dataset. Goes out:
:class:`NodeView` and :class:`EdgeView`, tables with ids local to each type. Made by :class:`Batch`, read by loops.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Self

import torch
from torch import Tensor

from graphweft._errors import GraphError
from graphweft.graph.graph import Graph
from graphweft.graph.typed import Relation
from graphweft.graph.typed_block import TypedPart
from graphweft.loader.named import Named, Row, given
from graphweft.loader.rows import Rows
from graphweft.loader.tables import ON_EDGES, edge_table, whole_graph, width_of
from graphweft.sample.sampler import Sample, counts_up_to
from graphweft.storage.feature import Features
from graphweft.storage.gather import gather_rows


class View(Named):
    """Nodes of a type or edges of a relation; tensors that the whole graph has by name are attributes as well."""

    _tables: str  # the dataset's tables by type and name

    def __init__(self, ids: Tensor, flat: Tensor, kind: str | Relation, data: Any) -> None:
        self._rows = Rows()
        self._ids, self._flat, self._kind, self._data = ids, flat, kind, data

    def _own(self, tables: str, name: str | None = None) -> Any:
        """The type's own table among those of the dataset; None without."""
        table = getattr(self._data, tables, {}).get(self._kind)
        return table.get(name) if table is not None and name is not None else table

    def _either(self, own: Any, table: Any) -> Any:
        """Rows of the type's own table, else of the one of all nodes or edges; None without."""
        if own is not None:
            return gather_rows(own, self._ids)
        return None if table is None else gather_rows(table, self._flat)

    @abstractmethod
    def _fields(self) -> Mapping[str, Tensor]:
        """Named tensors of all nodes or edges of the whole graph."""

    def _made_by_name(self) -> Iterator[str]:
        yield from self._own(self._tables) or {}
        yield from self._fields()

    def __getattr__(self, name: str) -> Any:
        """A tensor that was assigned, or one of the type, or of all types, by name. Raises: AttributeError."""
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self._rows or self._rows.lacks(name):
            return self._rows.get(name)
        found = self._rows.get(name, lambda: self._either(self._own(self._tables, name), self._fields().get(name)))
        if found is None:
            what = f"a tensor of {self._kind!r}, one of {', '.join(self._made_by_name()) or 'none'}"
            raise AttributeError(f"{type(self).__name__}: expected {what}, got {name!r}")
        return found


class NodeView(View):
    """The nodes of one type in a batch: seeds of the type first, in order.

    Other tensors of the type have their names: ``batch["paper"].year``. Names can be assigned.

    Attributes:
        batch_size: Seeds of the type.
        num_sampled_nodes: Those, and the new nodes of every hop.
    """

    _tables = "node_tables"
    batch_size: int
    num_sampled_nodes: list[int]

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
    def num_features(self) -> int:
        """Columns of ``x``; 0 without."""
        return width_of(self.x)

    num_node_features = num_features

    @Row
    def n_id(self) -> Tensor:
        """int64 (num_nodes,) ids within the type."""
        return self._ids

    @Row
    def input_id(self) -> Tensor:
        """int64 (batch_size,) places of the seeds in the loader's list of seeds; node ids where that was a mask."""
        return self._input_id

    @Row
    def x(self) -> Features | None:
        """Features, one row a node: the type's own where the dataset has them, else those of all nodes; or None."""
        rows: Features | None = self._either(self._own("features"), self._all("x"))
        return rows

    @Row
    def y(self) -> Tensor | None:
        """Labels, one row a node, -1 where there is none; None without."""
        rows: Tensor | None = self._either(self._own("labels"), self._all("y"))
        return rows

    batch = given("int64 (num_nodes,) number of the seed whose tree a node belongs to; None where seeds share nodes.")
    seed_time = given("Times of the seeds of the type; None without.")

    def _all(self, name: str) -> Any:
        """The table of all nodes; None without."""
        return None if isinstance(self._data, Graph) else getattr(self._data, name, None)

    def _fields(self) -> Mapping[str, Tensor]:
        return whole_graph(self._data).ndata

    def _made(self) -> Iterator[str]:
        there = {"x": (self._own("features"), self._all("x")), "y": (self._own("labels"), self._all("y"))}
        yield from (name for name, tables in there.items() if any(table is not None for table in tables))
        yield "n_id"
        if self.batch_size:
            yield "input_id"
        yield from self._made_by_name()

    def __repr__(self) -> str:
        return f"NodeView({self._kind!r}, num_nodes={self.num_nodes}, batch_size={self.batch_size})"


class EdgeView(View):
    """The edges of one relation in a batch.

    Other tensors of the relation have their names: ``batch["author", "writes", "paper"].time``. Names can be assigned;
    the relation that a :class:`LinkLoader` predicts has ``edge_label_index``, ``edge_label`` and ``input_id``.

    Attributes:
        num_sampled_edges: Edges of every hop, in this order; None where layers share a graph.
    """

    _tables = "edge_tables"
    num_sampled_edges: list[int] | None

    def __init__(
        self, edge_index: Tensor, e_id: Tensor, flat: Tensor, hops: list[int] | None, relation: Relation, data: Any
    ) -> None:
        super().__init__(e_id, flat, relation, data)
        self.num_sampled_edges, self._edge_index = hops, edge_index

    @property
    def num_edges(self) -> int:
        """Edges of the relation in the batch."""
        return int(self.edge_index.shape[1])

    @property
    def num_features(self) -> int:
        """Columns of ``edge_attr``; 0 without."""
        return width_of(self.edge_attr)

    num_edge_features = num_features

    @Row
    def edge_index(self) -> Tensor:
        """int64 (2, num_edges): places among the batch's nodes of the source and the destination type."""
        return self._edge_index

    @Row
    def e_id(self) -> Tensor:
        """int64 (num_edges,) ids within the relation."""
        return self._ids

    @Row
    def edge_attr(self) -> Tensor | None:
        """Edge features, one row an edge: the relation's own, else those of all edges; None without."""
        rows: Tensor | None = self._either(*self._on_edges("edge_features"))
        return rows

    @Row
    def edge_weight(self) -> Tensor | None:
        """Edge weights, likewise; None without."""
        rows: Tensor | None = self._either(*self._on_edges("edge_weight"))
        return rows

    def _on_edges(self, name: str) -> tuple[Any, Tensor | None]:
        """The relation's own table, and that of all edges."""
        return self._own("edge_tables", ON_EDGES[name]), edge_table(self._data, name)

    def _fields(self) -> Mapping[str, Tensor]:
        return whole_graph(self._data).edata

    def _made(self) -> Iterator[str]:
        yield from ("edge_index", "e_id")
        yield from (theirs for name, theirs in ON_EDGES.items() if self._on_edges(name) != (None, None))
        yield from self._made_by_name()

    def __repr__(self) -> str:
        return f"EdgeView(num_edges={self.num_edges})"


class TypedViews(Mapping[str | Relation, Any]):
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
        times = like.get("seed_time")
        for t, name in enumerate(layout.node_types):
            mine = part.order[layout.node_offsets[t] : layout.node_offsets[t + 1]]
            seeds = mine[: int(torch.count_nonzero(mine < sample.batch_size))]
            flat = n_id[mine]
            places = input_id[seeds] if input_id.numel() == sample.batch_size else seeds
            hops = counts_up_to(mine, node_ends)
            view = NodeView(flat - whole.node_offsets[t], flat, hops, seeds.numel(), places, name, data)
            if sample.owner is not None:
                view.batch = sample.owner[mine]
            if times is not None and seeds.numel():
                view.seed_time = times[seeds.to(times.device)]
            self._views[name] = view
        for r, relation in enumerate(layout.relations):
            here = slice(layout.edge_offsets[r], layout.edge_offsets[r + 1])
            places = part.edge_order[here]
            flat, drawn = e_id[places], None if edge_ends is None else counts_up_to(places, edge_ends)
            edges = torch.empty((2, flat.numel()), dtype=torch.int64)
            for row, end, kind in zip(edges, ends, relation[::2], strict=True):
                torch.sub(end[here], layout.node_range(kind).start, out=row)
            self._views[relation] = EdgeView(edges, flat - whole.edge_offsets[r], flat, drawn, relation, data)
        for each in self._views.values():
            each._rows.like(like)

    def rows(self) -> list[Rows]:
        """What all views keep."""
        return [view._rows for view in self._views.values()]

    def collect(self, name: str) -> dict[Any, Any]:
        """The attribute ``name`` by node type and relation, of those that have it."""
        found = {key: getattr(view, name, None) for key, view in self._views.items()}
        return {key: value for key, value in found.items() if value is not None}

    def names(self) -> set[str]:
        """Names of the tensors of any view."""
        return {name for view in self._views.values() for name in view}

    def local_rows(self, rows: Tensor, node_type: str) -> Tensor:
        """Rows of the batch's nodes, all of one type, as places among the nodes of that type."""
        start = self.part.graph.layout.node_range(node_type).start
        return self.part.place.to(rows.device)[rows] - start

    def __copy__(self) -> Self:
        twin = object.__new__(type(self))
        twin.part, twin._views = self.part, {key: copy.copy(view) for key, view in self._views.items()}
        return twin

    def __getitem__(self, key: Any) -> Any:
        """The view of a node type or a relation, also by the pair of types or the name where that is one relation."""
        found = self._views.get(key) if isinstance(key, str | tuple) else None
        if found is None:
            alike = [name for name in self._views if isinstance(name, tuple) and key in (name[1], name[::2])]
            if len(alike) == 1:
                return self._views[alike[0]]
            known = ", ".join("-".join(k) if isinstance(k, tuple) else k for k in self._views)
            hint = f", which {len(alike)} relations have" if alike else ""
            raise GraphError(f"Batch: expected a node type or a relation of {known}, got {key!r}{hint}")
        return found

    def __iter__(self) -> Iterator[str | Relation]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)
