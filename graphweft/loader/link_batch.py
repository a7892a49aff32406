"""A batch of edges to predict: the neighbourhoods of their ends, and which rows of it the edges join.

Comes in: a sample around the ends, and their rows in it. Goes out: :class:`LinkBatch`. Made by the link loader.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from graphweft.graph.graph import Graph
from graphweft.loader.batch import Batch, Data, Features
from graphweft.sample.sampler import Sample
from graphweft.storage.gather import gather_rows


class LinkBatch(Batch):
    """Neighbourhoods of the ends of some edges, the positives, and of their negatives.

    Attributes:
        batch_size: Number of positives.
        num_seeds: Number of ends: rows ``[:num_seeds]`` of every node table, and what a model returns for ``blocks``.
        input_id: int64 (batch_size,) places of the positives in the loader's list of edges.
        edge_label_index: int64 (2, P) rows of the ends of positives and negatives, the positives first. None for
            triplets and in-batch negatives.
        edge_label: Labels of those: 1 for positives and 0 for negatives, float32; where the loader was given some,
            those plus 1, and 0; None without negatives and labels.
        src_index, dst_pos_index: int64 (batch_size,) rows of the positives' ends, for triplets and in-batch negatives.
        dst_neg_index: int64 (batch_size,) or (batch_size, amount) rows of nodes that the source has no edge to.
        negative_mask: bool (batch_size, batch_size): where ``src_index[i]`` and ``dst_pos_index[j]`` have no edge.
        edge_label_time: Times of the positives.
    """

    edge_label_index: Tensor | None = None
    edge_label: Tensor | None = None
    src_index: Tensor | None = None
    dst_pos_index: Tensor | None = None
    dst_neg_index: Tensor | None = None
    negative_mask: Tensor | None = None
    edge_label_time: Tensor | None = None

    def __init__(self, sample: Sample, data: Data | Graph, x: Features | None, input_id: Tensor) -> None:
        super().__init__(sample, data, x, input_id)
        self.num_seeds, self.batch_size = sample.batch_size, input_id.numel()

    def to(self, device: Any, non_blocking: bool = False) -> LinkBatch:
        """As :meth:`Batch.to`, with labels and rows."""
        super().to(device, non_blocking)
        for name in LinkBatch.__annotations__:
            tensor = getattr(self, name)
            if tensor is not None:
                setattr(self, name, tensor.to(device, non_blocking=non_blocking))
        return self

    def __repr__(self) -> str:
        return f"LinkBatch(batch_size={self.batch_size}, num_nodes={self.num_nodes}, num_edges={self.num_edges})"


def make_link_batch(sample: Sample, data: Data | Graph, input_id: Tensor) -> LinkBatch:
    """The batch with its features gathered; labels and rows are still to come."""
    x = None if isinstance(data, Graph) else data.x
    return LinkBatch(sample, data, None if x is None else gather_rows(x, sample.n_id), input_id)
