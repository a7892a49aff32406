"""The output of one node with more in-edges than memory has room for: its neighbours' rows are reduced piece by piece.

Comes in: a layer, the ids of the node's neighbours, a function that gives rows by id. Goes out: the node's row.
Called by inference part by part. A layer that sums, averages or takes the maximum of its neighbours' rows gives the
same for one neighbour that has their sum, mean or maximum as its row.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from graphweft.graph.adjacency import Adjacency
from graphweft.graph.block import Block, with_degrees
from graphweft.graph.graph import Graph
from graphweft.nn.gcn import GCNConv
from graphweft.nn.gin import GINConv
from graphweft.nn.sage import SAGEConv
from graphweft.sample.neighbor import NeighborSampler

Ids = NDArray[np.int64]


def is_reducible(layer: nn.Module) -> bool:
    """Whether neighbours of a layer can be put together before it runs."""
    if type(layer) is GCNConv:  # as published, or a mean: others read degrees in another way
        return layer.add_self_loops and not layer.improved and layer.reduce != "max"
    return type(layer) in (SAGEConv, GINConv)


def joined(
    layer: nn.Module, own: int, sources: Ids, rows: Callable[[Ids], Tensor], degrees: Tensor, most: int
) -> tuple[Block, Tensor]:
    """A block of one node and one neighbour in the place of all, and the rows of both, (2, F).

    Args:
        layer: One that is reducible.
        own: Id of the node.
        sources: Ids of the sources of its in-edges, ascending.
        rows: float32 (n, F) rows of ascending ids.
        degrees: float32 (N,) edges into each node, self-loops left out.
        most: Rows at a time.

    Example:
        >>> x = torch.tensor([[1.0], [2.0], [6.0]])
        >>> joined(SAGEConv(1, 1), 0, np.array([1, 2]), lambda ids: x[ids], torch.tensor([2.0, 0, 0]), 1)[1].tolist()
        [[1.0], [4.0]]
    """
    normalised = isinstance(layer, GCNConv)
    if normalised:  # which has a term of its own for the node
        sources = sources[sources != own]
    # on a block GCN scales what it sums to the node's degree, so it takes the mean in either case
    kind = "mean" if normalised else str(layer.reduce)
    total: Tensor | None = None
    for first in range(0, len(sources), most):
        ids = sources[first : first + most]
        piece = rows(ids).double()
        if normalised and layer.reduce == "sum":
            piece *= (degrees[torch.from_numpy(ids)].double() + 1).rsqrt().unsqueeze(1)
        found = piece.amax(0) if kind == "max" else piece.sum(0)
        total = found if total is None else torch.maximum(total, found) if kind == "max" else total + found
    mine = rows(np.array([own]))
    joint = torch.zeros_like(mine[0]) if total is None else (total / len(sources) if kind == "mean" else total).float()
    edges = min(len(sources), 1)
    offsets, columns = torch.tensor([0, edges, edges]), torch.ones(edges, dtype=torch.int32)
    graph = Graph.from_adjacency(Adjacency(offsets, columns, None, 2))
    with_degrees(graph, torch.stack([degrees[own], degrees.new_zeros(())]))
    block = NeighborSampler(graph, [-1]).sample(torch.arange(1)).blocks[0]
    both = torch.stack([mine[0], joint])
    return block, both[block.src_ids]
