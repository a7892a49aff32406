"""The structure of a typed graph as features of its nodes.

Comes in: a typed graph. Goes out: sparse rows, ``[A_1 ... A_R I]``: the adjacency of every relation and the identity
side by side, so that a product with a matrix sums a learned row per relation and neighbour. What R-GCN reads where
nodes have no features (Schlichtkrull et al., ESWC 2018, section 2.2). Called by its first layer and the trainer.
"""

from __future__ import annotations

import scipy.sparse as sp
import torch

from graphweft._errors import GraphError
from graphweft.graph.graph import Graph
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
    src, dst = graph.edges()
    column = graph.edge_type() * nodes + src
    value = same_type_degrees(graph).reciprocal_() if mean else torch.ones(graph.num_edges)
    if own:
        every = torch.arange(nodes)
        dst, column = torch.cat([dst, every]), torch.cat([column, relations * nodes + every])
        value = torch.cat([value, torch.ones(nodes)])
    shape = (nodes, (relations + own) * nodes)
    entries = (value.numpy(), (dst.numpy(), column.numpy()))
    return SparseFeatures.from_scipy(sp.coo_array(entries, shape=shape))
