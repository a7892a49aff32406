"""The structure of a typed graph as features of its nodes.

Comes in: a typed graph. Goes out: sparse rows, ``[A_1 ... A_R I]``: the adjacency of every relation and the identity
side by side, so that a product with a matrix sums a learned row per relation and neighbour. What R-GCN reads where
nodes have no features (Schlichtkrull et al., ESWC 2018, section 2.2). Called by its first layer and the trainer.
"""

from __future__ import annotations

import numpy as np
import torch

from graphweft._errors import GraphError
from graphweft.graph.graph import Graph
from graphweft.graph.typed import stretches
from graphweft.graph.typed_pairs import same_type_degrees
from graphweft.storage.feature import SparseFeatures


def relational_rows(graph: Graph, mean: bool = True, own: bool = True) -> SparseFeatures:
    """Row i has, in column ``r N + j``, the share of the edges j -> i among the edges of relation r into i.

    Shape: (N, R N), or with ``own`` (N, (R + 1) N) with a one in column ``R N + i`` of row i. Without ``mean`` edges
    count 1 each.

    Raises: GraphError where relations times nodes pass 62 bits.

    Example:
        >>> graph = Graph.hetero({("a", "r", "a"): ([1, 2], [0, 0])}, {"a": 3})
        >>> relational_rows(graph).to_dense()[0].tolist()
        [0.0, 0.5, 0.5, 1.0, 0.0, 0.0]
    """
    nodes, relations = graph.num_nodes, len(graph.relations)
    if (relations + 1) * max(nodes, 1) >= 2**62:
        raise GraphError(f"relational_rows: expected relations x nodes below 2**62, got {relations} x {nodes}")
    width = (relations + own) * nodes
    narrow = torch.int32 if width <= torch.iinfo(torch.int32).max else torch.int64
    form = graph.csc
    column, value = stretches(graph.layout.edge_offsets, narrow), same_type_degrees(graph).reciprocal_()
    if form.edge_ids is not None:
        column, value = column.index_select(0, form.edge_ids), value.index_select(0, form.edge_ids)
    column = column.mul_(nodes).add_(form.indices)
    value = value if mean else torch.ones_like(value)
    if not own:
        return SparseFeatures(form.indptr, column, value, (nodes, width))
    every = torch.arange(nodes)
    indptr = form.indptr + torch.arange(nodes + 1)
    column = _with_last(indptr, column, relations * nodes + every)
    return SparseFeatures(indptr, column, _with_last(indptr, value, torch.ones(nodes)), (nodes, width))


def _with_last(indptr: torch.Tensor, others: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """Rows that begin at ``indptr``: their ``others``, one after the other, and then the one ``last`` of each."""
    out, place = others.new_empty(others.numel() + last.numel()), indptr[1:] - 1
    mask = np.ones(out.numel(), dtype=bool)
    mask[place.numpy()] = False
    out.numpy()[mask] = others.numpy()
    out[place] = last.to(out.dtype)
    return out
