"""One mini-batch: structure, features and labels under the names that loaders of the field use.

Comes in: a sample and the tables of a dataset. Goes out: :class:`Batch`. Made by the loader, read by models and loops.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from graphweft import _html
from graphweft._checks import check_rows
from graphweft._errors import DtypeError, GraphError, IndexRangeError, ShapeError
from graphweft._torch_private import hosted
from graphweft.graph.block import Block
from graphweft.graph.graph import Graph
from graphweft.graph.typed import Relation
from graphweft.graph.typed_block import TypedPart
from graphweft.loader.block_fields import offer_to_block, offer_to_subgraph
from graphweft.loader.named import USUAL, Named, Row, check_ends, check_rows_of, given
from graphweft.loader.rows import Rows
from graphweft.loader.tables import edge_table, whole_graph, width_of
from graphweft.loader.typed_views import TypedViews
from graphweft.sample.sampler import Sample
from graphweft.storage.feature import Features, SparseFeatures
from graphweft.storage.gather import gather_rows


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
    """Draws batches of a :class:`NeighborSampler` its own way, the same bit for bit, as
    :class:`gw.schedule.Subtasks` does.
    """

    def prepare(  # noqa: D102
        self, sampler: Any, seeds: Tensor, key: tuple[int, int, int], x: Tensor | None = None
    ) -> Made: ...

    def sample(self, sampler: Any, seeds: Tensor, key: tuple[int, int, int], is_open: bool = False) -> Any: ...  # noqa: D102


class Batch(Named):
    """A mini-batch: some seeds and the nodes and edges that were sampled around them.

    For a typed graph, ``batch["paper"]`` has the nodes of a type (``x``, ``y``, ``n_id``, ``batch_size``).
    ``batch["author", "writes", "paper"]`` has the edges of a relation (``edge_index``, ``e_id``). The pair of types or
    the name is enough if it is unique. Ids are local to types. ``batch.y_dict`` and every other name with ``_dict``
    collect a name over the types.

    Tensors of ``graph.ndata`` and ``graph.edata`` have their names, such as ``batch.pos``, with rows as in ``n_id`` and
    ``edge_index``. All names can be assigned, new ones too; views by type have their own. :meth:`to` moves all tensors;
    blocks stay on the CPU.

    Attributes:
        batch_size: Number of seeds; rows ``[:batch_size]`` of every node table belong to them.
        num_seeds: Rows that a model returns for ``blocks``: the same.
    """

    batch_size: int
    num_seeds: int

    def __init__(self, sample: Sample, data: Data | Graph, x: Features | None, input_id: Tensor) -> None:
        self._sample, self._data, self._input_id = sample, data, input_id
        self.batch_size, self.num_seeds, self._rows = sample.batch_size, sample.batch_size, Rows()
        self._rows.put("x", x)
        self._views: TypedViews | None = None

    @property
    def data(self) -> Any:
        """The dataset or graph of the batch."""
        return self._data

    @Row
    def x(self) -> Any:
        """Features of the nodes, (num_nodes, F), dense or sparse as in the dataset; None without features."""
        return None

    @Row
    def input_id(self) -> Tensor:
        """int64 (batch_size,) positions of the seeds in the loader's list of seeds; node ids if that was a mask."""
        return self._input_id

    seed_time = given("Times of the seeds; None without.")

    @Row
    def n_id(self) -> Tensor:
        """int64 (num_nodes,) ids of the nodes: seeds first, in order, every node once."""
        return self._sample.n_id

    @Row
    def e_id(self) -> Tensor:
        """int64 (num_edges,) positions of the edges in ``graph.edges()``, in the order of ``edge_index``."""
        return self._sample.e_id

    @Row
    def edge_index(self) -> Tensor:
        """int64 (2, num_edges), row 0 the sources, in batch numbering; every sampled edge once."""
        return self._sample.edge_index

    @Row
    def node_norm(self) -> Tensor | None:
        """float32 (num_nodes,) weights of losses for an unbiased sum over the seeds; None: equal weights."""
        return self._sample.node_norm

    @Row
    def edge_norm(self) -> Tensor | None:
        """float32 (num_edges,) factors that make sums over in-edges unbiased; None without. Blocks have their own."""
        return self._sample.edge_norm

    @Row
    def batch(self) -> Tensor | None:
        """int64 (num_nodes,) number of the seed whose subgraph a node belongs to; None for a shared subgraph."""
        return self._sample.owner

    @property
    def owner(self) -> Tensor | None:
        """Another name of :attr:`batch`."""
        return self.batch

    @Row
    def y(self) -> Tensor | None:
        """Labels of the nodes, rows as in ``n_id``; None without."""
        rows: Tensor | None = _rows_of(self._table("y"), self._sample)
        return rows

    @Row
    def edge_attr(self) -> Tensor | None:
        """Edge features, rows as in ``edge_index``; None without."""
        rows: Tensor | None = _rows_of(edge_table(self._data, "edge_features"), self._sample, edges=True)
        return rows

    @Row
    def edge_weight(self) -> Tensor | None:
        """Edge weights, as in ``edge_index``; None without."""
        rows: Tensor | None = _rows_of(edge_table(self._data, "edge_weight"), self._sample, edges=True)
        return rows

    @property
    def root_n_id(self) -> Tensor:
        """int64 places of the seeds among the batch's nodes, which are the first."""
        return torch.arange(self._sample.batch_size, device=self.n_id.device)

    @property
    def num_graphs(self) -> int:
        """Subgraphs of the batch: one a seed where each has its own, else 1."""
        return 1 if self._sample.owner is None else self._sample.batch_size

    @property
    @hosted
    def ptr(self) -> Tensor:
        """int64 (num_graphs + 1,): where the nodes of each subgraph begin.

        Raises: GraphError where the nodes do not lie subgraph after subgraph, because the seeds come first.
        """
        owner = self._sample.owner
        if owner is None:
            return torch.tensor([0, self.num_nodes], device=self.n_id.device)
        if bool((owner.diff() < 0).any()):
            raise GraphError(
                "Batch.ptr: expected nodes graph after graph, got the seeds first; batch.batch has every node's graph"
            )
        sizes = torch.bincount(owner, minlength=self.num_graphs)
        return torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]).to(self.n_id.device)

    @property
    def num_features(self) -> Any:
        """Columns of ``x``, 0 without; of a typed graph by node type."""
        if self._whole().is_typed:
            return {name: width_of(self[name].x) for name in self.node_types}
        return width_of(self.x)

    num_node_features = num_features

    @property
    def num_edge_features(self) -> Any:
        """Columns of ``edge_attr``, 0 without; of a typed graph by relation."""
        if self._whole().is_typed:
            return {relation: width_of(self[relation].edge_attr) for relation in self.edge_types}
        return width_of(self.edge_attr)

    @property
    def input_type(self) -> str | Relation | None:
        """The type of the seeds; None where they are of several types, or the graph has none."""
        if not self._whole().is_typed:
            return None
        types = [name for name in self.node_types if self[name].batch_size > 0]
        return types[0] if len(types) == 1 else None

    def metadata(self) -> tuple[list[str], list[Relation]]:
        """Node types and relations of the whole graph. Raises: GraphError for a batch of a graph without types."""
        self._require_typed()
        return list(self.node_types), list(self.edge_types)

    def __getattr__(self, name: str) -> Any:
        """A tensor that was assigned, or one of the whole graph by name: rows of the batch's nodes or edges.

        Raises: AttributeError without one.
        """
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self._rows or self._rows.lacks(name):
            return self._rows.get(name)
        graph = self._whole()
        if name in graph.ndata:
            return self._rows.get(name, lambda: gather_rows(graph.ndata[name], self._sample.n_id))
        if name in graph.edata:
            return self._rows.get(name, lambda: gather_rows(graph.edata[name], self._sample.e_id))
        if name.endswith("_dict") and graph.is_typed:
            found = self._typed().collect(name.removesuffix("_dict"))
            if found:
                return found
        known = ", ".join([*graph.ndata, *graph.edata]) or "none"
        raise AttributeError(f"Batch: expected an attribute, or a tensor of the graph's ({known}), got {name!r}")

    def __getitem__(self, key: str | Relation | tuple[str, str]) -> Any:
        """A tensor by name; of a typed graph also the nodes of a type, or the edges of a relation.

        Raises: GraphError for an unknown one.
        """
        typed = self._whole().is_typed
        if isinstance(key, str) and not (typed and key in self.node_types) and key in self.keys():
            return getattr(self, key)
        if not typed:
            names = ", ".join(self.keys())
            raise GraphError(f"Batch: expected a batch of a typed graph, or a name among {names}, got {key!r}")
        return self._typed()[key]

    def __contains__(self, key: object) -> bool:
        if self._whole().is_typed and (key in self.node_types or key in self.edge_types):
            return True
        return super().__contains__(key)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Names and tensors, as of PyTorch Geometric's ``Data``."""
        return iter(self.items())

    def to_dict(self) -> dict[Any, Any]:
        """All tensors by name; of a typed graph a dict for every type and relation."""
        if not self._whole().is_typed:
            return super().to_dict()
        views = self._typed()
        return {key: views[key].to_dict() for key in views}

    def validate(self, raise_on_error: bool = True) -> bool:
        """Whether all tensors, those that were assigned too, have a row for every node or edge, and ids are in range.

        Raises: ShapeError, IndexRangeError; with ``raise_on_error=False`` there is a warning instead.
        """
        graph = self._whole()
        try:
            check_ends("Batch", self.edge_index, self.num_nodes, self.num_nodes)
            check_rows_of("Batch", self, ["x", "y", "n_id", "batch", *graph.ndata], self.num_nodes, "node")
            on_edges = ["e_id", "edge_attr", "edge_weight", *graph.edata]
            check_rows_of("Batch", self, on_edges, self.edge_index.shape[1], "edge")
        except (ShapeError, IndexRangeError) as fault:
            if raise_on_error:
                raise
            warnings.warn(str(fault), stacklevel=2)
            return False
        return True

    @property
    def x_dict(self) -> dict[str, Any]:
        """Features by node type, of those that have some."""
        return self._typed().collect("x")

    @property
    def edge_index_dict(self) -> dict[Relation, Tensor]:
        """``edge_index`` by relation."""
        return self._typed().collect("edge_index")

    @property
    def edge_attr_dict(self) -> dict[Relation, Tensor]:
        """Edge features by relation, where the dataset has some."""
        return self._typed().collect("edge_attr")

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
    @hosted
    def typed(self) -> TypedPart:
        """The batch as one typed graph, with the order of its nodes and edges.

        Raises: GraphError for a batch of a graph without types.
        """
        return self._typed().part

    @property
    @hosted
    def blocks(self) -> tuple[Block, ...]:
        """One bipartite graph a layer, the input layer's first; none where all layers share :attr:`subgraph`.

        Their ``edata``, ``srcdata`` and ``dstdata`` are rows of the graph's named tensors.
        """
        self._require_edges_as_sampled("blocks")
        for block in self._sample.blocks:
            offer_to_block(block, self._data)
        return self._sample.blocks

    @property
    @hosted
    def subgraph(self) -> Graph:
        """The batch as one graph, edges in the order of ``edge_index``, with the named tensors of the whole one."""
        self._require_edges_as_sampled("subgraph")
        offer_to_subgraph(self._sample, self._data)
        return self._sample.subgraph

    @property
    def num_nodes(self) -> int:
        """Nodes of the batch."""
        return self._sample.num_nodes

    @property
    def num_edges(self) -> int:
        """Edges of the batch."""
        return int(self.edge_index.shape[1]) if self._edges_were_set() else self._sample.num_edges

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

    def _made(self) -> Iterator[str]:
        sample, graph = self._sample, self._whole()
        yield from ("n_id", "e_id", "edge_index", "input_id")
        there = {
            "y": self._table("y"),
            "edge_attr": edge_table(self._data, "edge_features"),
            "edge_weight": edge_table(self._data, "edge_weight"),
            "batch": sample.owner,
            "node_norm": sample.node_norm,
            "edge_norm": sample.edge_norm,
        }
        yield from (name for name, table in there.items() if table is not None)
        yield from graph.ndata
        yield from graph.edata

    def _table(self, name: str) -> Tensor | None:
        table = getattr(self._data, name, None)
        return table if isinstance(table, Tensor) else None

    def _all_rows(self) -> list[Rows]:
        return [self._rows, *(self._views.rows() if self._views is not None else ())]

    def _check_names(self, names: tuple[str, ...]) -> None:
        unusual = tuple(name for name in names if not isinstance(name, str) or name not in USUAL)
        of_views = self._typed().names() if unusual and self._whole().is_typed else ()
        super()._check_names(tuple(name for name in unusual if name not in of_views))

    def __copy__(self) -> Self:
        twin = super().__copy__()
        twin._views = None if self._views is None else copy.copy(self._views)
        return twin

    def _edges_were_set(self) -> bool:
        return "edge_index" in self._rows and self._rows.was_put("edge_index")

    def _require_edges_as_sampled(self, name: str) -> None:
        if self._edges_were_set():
            remedy = "gw.Graph(*batch.edge_index, num_nodes=batch.num_nodes) is a graph of the new ones"
            raise GraphError(f"Batch.{name}: expected edge_index as it was sampled, got another; {remedy}")

    def _whole(self) -> Graph:
        return whole_graph(self._data)

    def _require_typed(self) -> None:
        if not self._whole().is_typed:
            raise GraphError(f"Batch: expected a batch of a typed graph, got one of {self._whole()!r}")

    def _typed(self) -> TypedViews:
        self._require_typed()
        if self._views is None:
            self._views = self._make_views()
        return self._views

    def _make_views(self) -> TypedViews:
        return TypedViews(self._sample, self._input_id, self._whole(), self._data, self._rows)

    def __repr__(self) -> str:
        sizes = f"batch_size={self.batch_size}, num_nodes={self.num_nodes}, num_edges={self.num_edges}"
        return f"{type(self).__name__}({sizes})"

    def _repr_html_(self) -> str:
        """Sizes, blocks and tensors, for notebooks."""
        facts = [("seeds", f"{self.batch_size:,}"), ("nodes", f"{self.num_nodes:,}"), ("edges", f"{self.num_edges:,}")]
        for at, block in enumerate(self._sample.blocks):
            sizes = f"{block.num_src:,} sources, {block.num_dst:,} destinations, {block.num_edges:,} edges"
            facts.append((f"blocks[{at}]", sizes))
        return _html.facts(type(self).__name__, [*facts, *_tensors_of(self)])


def _tensors_of(batch: Any) -> Iterator[tuple[str, str]]:
    """Names, shapes and dtypes of what a batch holds."""
    for name, value in batch.items():
        if isinstance(value, Tensor):
            kind = "sparse" if isinstance(value, SparseFeatures) else str(value.dtype).removeprefix("torch.")
            yield name, f"{tuple(value.shape)} {kind}"


def _rows_of(table: Tensor | None, sample: Sample, *, edges: bool = False) -> Any:
    """Rows of the sample's nodes or edges; None without a table."""
    return None if table is None else gather_rows(table, sample.e_id if edges else sample.n_id)


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
            wanted = "a dense tensor or gw.data.SparseFeatures" if name == "x" else "a dense tensor"
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
