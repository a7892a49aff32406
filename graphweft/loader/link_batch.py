"""A batch of edges to predict: the neighbourhoods of their ends, and which rows of it the edges join.

Comes in: a sample around the ends, and their rows in it. Goes out: :class:`LinkBatch`. Made by the link loader.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphweft.graph.graph import Graph
from graphweft.graph.typed import Relation
from graphweft.loader.batch import Batch, Data
from graphweft.loader.named import given
from graphweft.loader.typed_views import EdgeView, TypedViews
from graphweft.sample.sampler import Sample
from graphweft.storage.feature import Features
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
            those, raised by 1 if the least of all is 0, and 0 for negatives; None without negatives and labels.
        src_index, dst_pos_index: int64 (batch_size,) rows of the positives' ends, for triplets and in-batch negatives.
        dst_neg_index: int64 (batch_size,) or (batch_size, amount) rows of nodes that the source has no edge to.
        negative_mask: bool (batch_size, batch_size): where ``src_index[i]`` and ``dst_pos_index[j]`` have no edge.
        edge_label_time: Times of the positives.

    On a typed graph the view of the relation to predict has ``edge_label_index`` with ids local to its types, and
    ``edge_label``, ``edge_label_time`` and ``input_id``; for triplets and in-batch negatives the views of the two types
    have ``src_index``, ``dst_pos_index`` and ``dst_neg_index``.
    """

    def __init__(
        self, sample: Sample, data: Data | Graph, x: Features | None, input_id: Tensor, relation: Relation | None = None
    ) -> None:
        super().__init__(sample, data, x, input_id)
        self.batch_size, self._relation = input_id.numel(), relation

    edge_label_index = given("Rows of the ends of positives and negatives.")
    edge_label = given("Labels of those.")
    src_index = given("Rows of the positives' sources.")
    dst_pos_index = given("Rows of the positives' destinations.")
    dst_neg_index = given("Rows of the negatives' destinations.")
    negative_mask = given("Which pairs of positives' ends are negatives.")
    edge_label_time = given("Times of the positives.")

    @property
    def input_type(self) -> Relation | None:
        """The relation to predict; None for a graph without types."""
        return self._relation

    def _make_views(self) -> TypedViews:
        """The views, with the edges to predict in that of their relation and ids local to its types."""
        views = super()._make_views()
        assert self._relation is not None  # a link loader over a typed graph has one
        source, _, target = self._relation
        edges: EdgeView = views[self._relation]
        if self.edge_label_index is not None:
            src, dst = self.edge_label_index
            ends = views.local_rows(src, source), views.local_rows(dst, target)
            edges.edge_label_index = torch.stack(ends)
            edges.edge_label = self.edge_label
        for name, kind in (("src_index", source), ("dst_pos_index", target), ("dst_neg_index", target)):
            rows = self.get(name)
            if rows is not None:
                setattr(views[kind], name, views.local_rows(rows, kind))
        edges.negative_mask, edges.edge_label_time = self.negative_mask, self.edge_label_time
        edges.input_id = self.input_id
        for rows in views.rows():
            rows.like(self._rows)
        return views


def make_link_batch(sample: Sample, data: Data | Graph, input_id: Tensor, relation: Relation | None) -> LinkBatch:
    """The batch with its features gathered; labels and rows are still to come."""
    x = None if isinstance(data, Graph) else data.x
    return LinkBatch(sample, data, None if x is None else gather_rows(x, sample.n_id), input_id, relation)
