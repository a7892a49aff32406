"""Batches of many small graphs: some of a set's graphs side by side in one block-diagonal graph.

Comes in: a set of graphs. Goes out: :class:`GraphBatch` after batch. Called by users' loops and the trainer's graph
tasks. Epochs, order and resume are those of :class:`EpochLoader`; a batch is made of shifted copies, natively.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol, Self

import torch
from torch import Tensor

from graphweft._checks import check_device, checksum
from graphweft._errors import ConfigError
from graphweft._torch_private import hosted
from graphweft.graph.graph import Graph
from graphweft.graph.ids import Ids
from graphweft.graph.select import as_selection
from graphweft.graph.side_by_side import SideBySide, Taken
from graphweft.loader.epoch_order import as_item_weight, as_share
from graphweft.loader.epochs import EpochLoader
from graphweft.loader.other_keywords import refuse
from graphweft.storage.feature import SparseFeatures
from graphweft.storage.gather import gather_rows


class Graphs(Protocol):
    """What the loader reads of a set of graphs; ``gw.GraphDataset`` has it."""

    @property
    def side_by_side(self) -> SideBySide: ...  # noqa: D102
    @property
    def x(self) -> Tensor | SparseFeatures | None: ...  # noqa: D102
    @property
    def y(self) -> Tensor: ...  # noqa: D102
    @property
    def edge_weight(self) -> Tensor | None: ...  # noqa: D102
    @property
    def edge_features(self) -> Tensor | None: ...  # noqa: D102


@dataclass(frozen=True, eq=False, repr=False)
class GraphBatch:
    """A batch of several graphs as one block-diagonal graph.

    Attributes:
        graph: All of them in one block-diagonal graph of N nodes and E edges; graphs stay on the CPU.
        x: (N, F) features, or None.
        y: (num_graphs,) or (num_graphs, C) labels.
        ptr: int64 (num_graphs + 1,): graph i has nodes ``ptr[i]`` to ``ptr[i + 1]``.
        batch: int64 (N,): number of the graph of each node.
        index: int64 (num_graphs,): numbers of the graphs in the set.
        edge_weight: (E,) weights in the order of ``graph.edges()``, or None.
        edge_attr: (E, K) features in that order, or None.
    """

    graph: Graph
    x: Tensor | SparseFeatures | None
    y: Tensor
    ptr: Tensor
    batch: Tensor
    index: Tensor
    edge_weight: Tensor | None = None
    edge_attr: Tensor | None = None

    @property
    def num_graphs(self) -> int:
        """Graphs of the batch."""
        return self.index.numel()

    @property
    def num_nodes(self) -> int:
        """Nodes of all graphs."""
        return self.graph.num_nodes

    @property
    def edge_index(self) -> Tensor:
        """int64 (2, E): sources and destinations, as models of PyTorch Geometric take them."""
        return torch.stack(self.graph.edges()).to(self.batch.device)

    def to(self, device: Any, non_blocking: bool = False) -> Self:
        """The same batch with its tensors on ``device``."""
        place = check_device("to", device)
        moved: dict[str, Any] = {}
        for name in ("x", "y", "ptr", "batch", "index", "edge_weight", "edge_attr"):
            rows = getattr(self, name)
            if isinstance(rows, Tensor):
                moved[name] = rows.to(place, non_blocking=non_blocking)
        return replace(self, **moved)

    def __repr__(self) -> str:
        width = "no features" if self.x is None else f"{self.x.shape[1]} features"
        return f"GraphBatch({self.num_graphs} graphs, {self.num_nodes} nodes, {self.graph.num_edges} edges, {width})"


class GraphLoader(EpochLoader[GraphBatch]):
    """Batches of whole graphs. Every ``iter(loader)`` starts the next epoch.

    Order and batches depend only on ``seed`` and the epoch. :meth:`state_dict`, taken between batches, is small. A
    loader that loads it, in another process too, resumes with the next batch of the epoch.

    Args:
        ds: A :class:`gw.GraphDataset`.
        batch_size: Graphs of a batch; the last one may have fewer.
        shuffle: A new order of the graphs every epoch.
        seed: Keys the order.
        drop_last: Leave out a last batch that is not full.
        graphs: Ids or a mask of the graphs to use; None: all.
        prefetch: Batches that threads make ahead; 0: each batch is made when it is needed.
        workers: Threads that make batches ahead; None: as many as ``prefetch``, at most one per processor.
        item_weight: As for :class:`gw.Loader`: weights of the graphs, or "balanced".
        share: As for :class:`gw.Loader`: (rank, number of ranks).

    Raises: ConfigError, IndexRangeError, ShapeError for arguments that do not fit.

    Example:
        >>> from graphweft.data.graph_dataset import GraphDataset
        >>> ds = GraphDataset.from_list([Graph([0, 1], [1, 0]), Graph([0, 1], [1, 2]), Graph([0], [1])], y=[0, 1, 0])
        >>> [(b.num_graphs, b.ptr.tolist(), b.y.tolist()) for b in GraphLoader(ds, batch_size=2)]
        [(2, [0, 2, 5], [0, 1]), (1, [0, 2], [0])]
    """

    who = "GraphLoader"

    @hosted
    def __init__(
        self,
        ds: Graphs,
        batch_size: int = 128,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        *,
        graphs: Ids | None = None,
        prefetch: int | None = 0,
        workers: int | None = None,
        item_weight: Any = None,
        share: Any = None,
        **others: NoReturn,
    ) -> None:
        refuse(self.who, others, type(self))
        whole = getattr(ds, "side_by_side", None)
        if not isinstance(whole, SideBySide):
            hint = "; gw.GraphDataset.from_list(graphs, y=labels) makes one"
            raise ConfigError(f"GraphLoader: expected a gw.GraphDataset, got {type(ds).__name__}{hint}")
        count = whole.ptr.numel() - 1
        chosen = torch.arange(count) if graphs is None else as_selection(self.who, "graph", graphs, count).clone()
        if chosen.numel() == 0:
            raise ConfigError("GraphLoader: expected at least one graph, got none")
        self.ds, self.graphs, self._checksum = ds, chosen, checksum(chosen)
        size = self._as_count("batch_size", batch_size, 1)
        drawn = as_item_weight(self.who, item_weight, ds.y[chosen], chosen.numel(), size)
        part = as_share(self.who, share, chosen.numel())
        super().__init__(chosen.numel(), batch_size, shuffle, seed, drop_last, prefetch, workers, drawn, part)

    def _identity(self) -> dict[str, Any]:
        sizes = {"num_nodes": self.ds.side_by_side.graph.num_nodes, "num_edges": self.ds.side_by_side.graph.num_edges}
        return {**super()._identity(), "num_graphs": self.num_items, "graphs_checksum": self._checksum, **sizes}

    def make(self, places: Tensor, epoch: int) -> GraphBatch:
        """The batch of the graphs at ``places``; called from any thread."""
        return graph_batch(self.ds, self.graphs[places])


def _rows_of(taken: Taken, x: Tensor | SparseFeatures) -> Tensor | SparseFeatures:
    """Rows of the nodes that were taken."""
    if isinstance(x, Tensor) and x.is_cpu and x.is_contiguous():
        return taken.rows(x.detach())
    return gather_rows(x, taken.nodes)


def graph_batch(ds: Graphs, ids: Tensor) -> GraphBatch:
    """The graphs ``ids`` (int64, contiguous, in range) of ``ds`` side by side."""
    taken = ds.side_by_side.take(ids)
    x, weight, attr = ds.x, ds.edge_weight, ds.edge_features
    return GraphBatch(
        taken.graph.as_drawn(),
        None if x is None else _rows_of(taken, x),
        ds.y[ids],
        taken.ptr,
        taken.owners,
        ids,
        None if weight is None else weight[taken.edges],
        None if attr is None else attr[taken.edges],
    )
