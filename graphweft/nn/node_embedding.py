"""Learned rows in the place of features, in front of any model.

Comes in: a graph, or the blocks of a batch, and one-hot rows that say which node each row is. Goes out: what the model
makes of the learned rows. Used where nodes have no features, above all for link prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from graphweft._errors import ConfigError, ShapeError
from graphweft.graph.block import Block
from graphweft.graph.graph import Graph
from graphweft.nn.module import CompiledModule
from graphweft.storage.feature import SparseFeatures


class NodeEmbedding(nn.Module):
    """A model that reads a learned row per node, for graphs without features.

    Train it on ``ds.with_features("embedding")``, whose one-hot rows identify the nodes of a batch. Rows of nodes that
    no training step reaches keep their initial values.

    Args:
        num_nodes: Nodes of the graph.
        model: A model of ``gw.nn``, or a module called as ``model(graph, rows)``, for rows of width ``width``.
        width: Columns of the rows; None: ``model.in_features``.

    Raises: ConfigError for a size below 1.

    Example:
        >>> from graphweft.data.dataset import Dataset
        >>> from graphweft.nn.sage import SAGE
        >>> ds = Dataset("ring", Graph([0, 1, 2], [1, 2, 0])).with_features("embedding")
        >>> NodeEmbedding(ds.num_nodes, SAGE(8, 16, 4))(ds.graph, ds.x).shape
        torch.Size([3, 4])
    """

    def __init__(self, num_nodes: int, model: nn.Module, width: int | None = None) -> None:
        super().__init__()
        width = getattr(model, "in_features", None) if width is None else width
        for name, size in (("num_nodes", num_nodes), ("width", width)):
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ConfigError(f"NodeEmbedding: expected {name} >= 1, got {size!r}")
        assert isinstance(width, int)
        self.rows = nn.Embedding(num_nodes, width)  # first: what weight decay on the first layer decays
        nn.init.normal_(self.rows.weight, std=width**-0.5)
        self.model = model

    @property
    def takes_blocks(self) -> bool:
        """Whether the model runs on the blocks of a batch."""
        return isinstance(self.model, CompiledModule)

    def forward(self, graph: Graph | Sequence[Block], x: SparseFeatures, **options: Any) -> Float[Tensor, "rows out"]:
        """The model's output for the learned rows of the nodes that ``x`` identifies.

        Shape: x (nodes, num_nodes) with a single one per row.

        Raises: ShapeError for other features.
        """
        count = self.rows.num_embeddings
        if not isinstance(x, SparseFeatures) or x.width != count or not _is_one_hot(x):
            got = f"shape {tuple(x.shape)}" if hasattr(x, "shape") else type(x).__name__
            remedy = "ds.with_features('embedding') makes them"
            raise ShapeError(f"NodeEmbedding: expected one-hot rows of {count} columns, got {got}; {remedy}")
        out: Tensor = self.model(graph, self.rows(x.indices.long()), **options)
        return out


def _is_one_hot(x: SparseFeatures) -> bool:
    """One entry in every row."""
    return x.nnz == x.num_rows and bool((x.indptr[1:] - x.indptr[:-1] == 1).all()) and bool(torch.all(x.values == 1))
