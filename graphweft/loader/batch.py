"""One mini-batch: structure, features and labels under the names that loaders of the field use.

Comes in: a sample and the tables of a dataset. Goes out: :class:`Batch`. Made by the loader, read by models and loops.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from graphweft._checks import check_rows
from graphweft._errors import DtypeError, GraphError, ShapeError
from graphweft.graph.block import Block
from graphweft.graph.graph import Graph
from graphweft.graph.typed import Relation
from graphweft.graph.typed_block import TypedPart
from graphweft.loader.rows import Rows
from graphweft.loader.typed_views import TypedViews, edge_table, whole_graph
from graphweft.sample.sampler import Sample
from graphweft.storage.feature import SparseFeatures
from graphweft.storage.gather import gather_rows

Features = Tensor | SparseFeatures


class Data(Protocol):
    """What the loader reads of a dataset."""

    @property
    def graph(self) -> Graph: ...  # noqa: D102
    @property
    def x(self) -> Features | None: ...  # noqa: D102
    @property
    def y(self) -> Tensor: ...  # noqa: D102
    @property
    def train_idx(self) -> Tensor: ...  # noqa: D102


class Made(Protocol):
    """A sample with rows of features."""

    @property
    def sample(self) -> Any: ...  # noqa: D102
    @property
    def x(self) -> Tensor | None: ...  # noqa: D102


class Preparer(Protocol):
    """Draws batches of a :class:`NeighborSampler` its own way, the same bit for bit, as :class:`gw.Subtasks` does."""

    def prepare(  # noqa: D102
        self, sampler: Any, seeds: Tensor, key: tuple[int, int, int], x: Tensor | None = None
    ) -> Made: ...

    def sample(self, sampler: Any, seeds: Tensor, key: tuple[int, int, int], is_open: bool = False) -> Any: ...  # noqa: D102


class Batch:
    """The nodes around some seeds.

    Of a typed graph, ``batch["paper"]`` are the nodes of a type (``x``, ``y``, ``n_id``, ``batch_size``) and
    ``batch["author", "writes", "paper"]`` the edges of a relation (``edge_index``, ``e_id``); ids are local to types.

    Other tensors of the graph, its ``ndata`` and ``edata``, have their names, rows as in ``n_id`` and ``edge_index``:
    ``batch.pos``, ``batch.train_mask``. All tensors are where :meth:`to` sent the batch; blocks stay on the CPU.

    Attributes:
        batch_size: Number of seeds; rows ``[:batch_size]`` of every node table belong to them.
    """

    def __init__(self, sample: Sample, data: Data | Graph, x: Features | None, input_id: Tensor) -> None:
        self._sample, self._data, self._input_id = sample, data, input_id
        self.batch_size, self._rows = sample.batch_size, Rows()
        self._rows.put("x", x)
        self._views: TypedViews | None = None

    @property
    def x(self) -> Any:
        """Features of its nodes, (num_nodes, F), dense or sparse as the dataset has them; None without."""
        return self._rows.get("x")

    @x.setter
    def x(self, rows: Features | None) -> None:
        self._rows.put("x", rows)

    @property
    def input_id(self) -> Tensor:
        """int64 (batch_size,) places of the seeds in the loader's list of seeds."""
        ids: Tensor = self._rows.get("input_id", lambda: self._input_id)
        return ids

    @property
    def seed_time(self) -> Tensor | None:
        """Times of the seeds; None without."""
        times: Tensor | None = self._rows.get("seed_time")
        return times

    @seed_time.setter
    def seed_time(self, times: Tensor | None) -> None:
        self._rows.put("seed_time", times)

    def __getattr__(self, name: str) -> Any:
        """A tensor of the whole graph by name: rows of the batch's nodes or edges.

        Raises: AttributeError without one.
        """
        if name.startswith("_"):
            raise AttributeError(name)
        graph = self._whole()
        if name in graph.ndata:
            return self._rows.get(name, lambda: gather_rows(graph.ndata[name], self._sample.n_id))
        if name in graph.edata:
            return self._rows.get(name, lambda: gather_rows(graph.edata[name], self._sample.e_id))
        known = ", ".join([*graph.ndata, *graph.edata]) or "none"
        raise AttributeError(f"Batch: expected an attribute, or a tensor of the graph's ({known}), got {name!r}")

    def __getitem__(self, key: str | Relation) -> Any:
        """The nodes of a type, or the edges of a relation.

        Raises: GraphError for a batch of a graph without types, or an unknown one.
        """
        return self._typed()[key]

    @property
    def x_dict(self) -> dict[str, Any]:
        """Features by node type, of those that have some."""
        views = self._typed()
        found = {name: views[name].x for name in self.node_types}
        return {name: x for name, x in found.items() if x is not None}

    @property
    def edge_index_dict(self) -> dict[Relation, Tensor]:
        """``edge_index`` by relation."""
        views = self._typed()
        return {relation: views[relation].edge_index for relation in self.edge_types}

    @property
    def edge_attr_dict(self) -> dict[Relation, Tensor]:
        """Edge features by relation, where the dataset has some."""
        views = self._typed()
        found = {relation: views[relation].edge_attr for relation in self.edge_types}
        return {relation: rows for relation, rows in found.items() if rows is not None}

    @property
    def num_sampled_nodes_dict(self) -> dict[str, list[int]]:
        """:attr:`num_sampled_nodes` by node type."""
        views = self._typed()
        return {name: views[name].num_sampled_nodes for name in self.node_types}

    @property
    def num_sampled_edges_dict(self) -> dict[Relation, list[int] | None]:
        """:attr:`num_sampled_edges` by relation."""
        views = self._typed()
        return {relation: views[relation].num_sampled_edges for relation in self.edge_types}

    @property
    def node_types(self) -> tuple[str, ...]:
        """Node types of the whole graph."""
        return self._whole().node_types

    @property
    def edge_types(self) -> tuple[Relation, ...]:
        """Relations of the whole graph."""
        return self._whole().relations

    @property
    def typed(self) -> TypedPart:
        """The batch as one typed graph, with the order of its nodes and edges.

        Raises: GraphError for a batch of a graph without types.
        """
        return self._typed().part

    @property
    def n_id(self) -> Tensor:
        """int64 (num_nodes,) ids of the nodes: seeds first, in order, every node once."""
        ids: Tensor = self._rows.get("n_id", lambda: self._sample.n_id)
        return ids

    @property
    def e_id(self) -> Tensor:
        """int64 (num_edges,) positions of the edges in ``graph.edges()``, in the order of ``edge_index``."""
        ids: Tensor = self._rows.get("e_id", lambda: self._sample.e_id)
        return ids

    @property
    def edge_index(self) -> Tensor:
        """int64 (2, num_edges), row 0 the sources, in batch numbering; every sampled edge once."""
        ends: Tensor = self._rows.get("edge_index", lambda: self._sample.edge_index)
        return ends

    @property
    def blocks(self) -> tuple[Block, ...]:
        """One bipartite graph a layer, the input layer's first; none where all layers share :attr:`subgraph`."""
        return self._sample.blocks

    @property
    def subgraph(self) -> Graph:
        """The batch as one graph, edges in the order of ``edge_index``."""
        return self._sample.subgraph

    @property
    def node_norm(self) -> Tensor | None:
        """float32 (num_nodes,) weights of losses, whose sum over the seeds is unbiased; None: all alike."""
        weights: Tensor | None = self._rows.get("node_norm", lambda: self._sample.node_norm)
        return weights

    @property
    def edge_norm(self) -> Tensor | None:
        """float32 (num_edges,) factors that make sums over in-edges unbiased; None without. Blocks have their own."""
        factors: Tensor | None = self._rows.get("edge_norm", lambda: self._sample.edge_norm)
        return factors

    @property
    def owner(self) -> Tensor | None:
        """int64 (num_nodes,) number of the seed whose subgraph a node belongs to; None where all share one."""
        numbers: Tensor | None = self._rows.get("owner", lambda: self._sample.owner)
        return numbers

    @property
    def batch(self) -> Tensor | None:
        """:attr:`owner` under the name that it has in PyTorch Geometric."""
        return self.owner

    @property
    def y(self) -> Tensor | None:
        """Labels of the nodes, rows as in ``n_id``; None without."""
        return self._table("y")

    @property
    def edge_attr(self) -> Tensor | None:
        """Edge features, rows as in ``edge_index``; None without."""
        return self._table("edge_features", edges=True)

    @property
    def edge_weight(self) -> Tensor | None:
        """Edge weights, as in ``edge_index``; None without."""
        return self._table("edge_weight", edges=True)

    @property
    def num_nodes(self) -> int:
        """Nodes of the batch."""
        return self._sample.num_nodes

    @property
    def num_edges(self) -> int:
        """Edges of the batch."""
        return self._sample.num_edges

    @property
    def num_sampled_nodes(self) -> list[int]:
        """The seeds, and the new nodes of every hop."""
        return self._sample.num_sampled_nodes

    @property
    def num_sampled_edges(self) -> list[int] | None:
        """Edges into the seeds, and into the new nodes of every hop but the last; None where layers share a graph.

        With :attr:`num_sampled_nodes` what ``torch_geometric.utils.trim_to_layer`` takes.
        """
        return self._sample.num_sampled_edges

    def to(self, device: Any, non_blocking: bool = False) -> Batch:
        """All tensors on ``device``, also those that are still to be gathered; the batch itself."""
        self._rows.to(device, non_blocking)
        if self._views is not None:
            self._views.to(device, non_blocking)
        return self

    def cpu(self) -> Batch:
        """As :meth:`to`."""
        return self.to("cpu")

    def cuda(self, device: Any = "cuda", non_blocking: bool = False) -> Batch:
        """As :meth:`to`."""
        return self.to(device, non_blocking)

    def _table(self, name: str, edges: bool = False) -> Tensor | None:
        table = edge_table(self._data, name) if edges else getattr(self._data, name, None)
        if not isinstance(table, Tensor):
            return None
        ids = self._sample.e_id if edges else self._sample.n_id
        rows: Tensor = self._rows.get(name, lambda: gather_rows(table, ids))
        return rows

    def _whole(self) -> Graph:
        return whole_graph(self._data)

    def _typed(self) -> TypedViews:
        graph = self._whole()
        if not graph.is_typed:
            raise GraphError(f"Batch: expected a batch of a typed graph, got one of {graph!r}")
        if self._views is None:
            self._views = TypedViews(self._sample, self._input_id, graph, self._data, self._rows)
        return self._views

    def __repr__(self) -> str:
        return f"Batch(batch_size={self.batch_size}, num_nodes={self.num_nodes}, num_edges={self.num_edges})"


def graph_of(who: str, ds: Any) -> Graph:
    """The graph of a dataset, or the graph itself. Raises: GraphError for anything else."""
    graph = ds if isinstance(ds, Graph) else getattr(ds, "graph", None)
    if not isinstance(graph, Graph):
        foreign = hasattr(type(ds), "edge_index") or hasattr(type(ds), "edge_types")
        hint = "; gw.from_pyg(data) makes one of it" if foreign else ""
        raise GraphError(f"{who}: expected a dataset or a graph, got {type(ds).__name__}{hint}")
    return graph


def check_tables(who: str, ds: Any) -> None:
    """Tables of a dataset are tensors, with a row for every node or edge where that is needed.

    Raises: DtypeError, ShapeError.
    """
    if isinstance(ds, Graph):
        return
    edges = {"edge_features": ds.graph.num_edges, "edge_weight": ds.graph.num_edges}
    for name, rows in {"x": ds.graph.num_nodes, "y": None, **edges}.items():
        table = getattr(ds, name, None)
        if table is None:
            continue
        if not isinstance(table, SparseFeatures) and (not isinstance(table, Tensor) or table.layout != torch.strided):
            kind = str(table.layout) if isinstance(table, Tensor) else type(table).__name__
            wanted = "a dense tensor or gw.SparseFeatures" if name == "x" else "a dense tensor"
            raise DtypeError(f"{who}: expected {name} as {wanted}, got {kind}")
        if isinstance(table, SparseFeatures):
            if table.num_rows != rows:
                raise ShapeError(f"{who} {name}: expected {rows} rows, one per node, got {table.num_rows} rows")
        elif rows is not None:
            check_rows(f"{who} {name}", table, rows, "edge" if name in edges else "node")


def make_batch(sample: Sample, data: Data | Graph, input_id: Tensor, rows: Tensor | None = None) -> Batch:
    """The batch with its features gathered, or ``rows`` that were."""
    x = None if isinstance(data, Graph) else data.x
    if rows is not None:
        return Batch(sample, data, rows, input_id)
    return Batch(sample, data, None if x is None else gather_rows(x, sample.n_id), input_id)
