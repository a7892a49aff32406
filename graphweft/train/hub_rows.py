"""The output of one node with more in-edges than memory has room for: its neighbours' rows are reduced piece by piece.

Comes in: a layer, the ids of the node's neighbours, a function that gives rows by id. Goes out: the node's row.
Called by inference part by part. A layer that sums, averages or takes the maximum of its neighbours' rows gives the
same for one neighbour that has their sum, mean or maximum as its row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from graphweft._distinct import Ids
from graphweft.graph.block import Block
from graphweft.loader.parts import PartSource
from graphweft.loader.whole_first import joined_block
from graphweft.nn.gcn import GCNConv
from graphweft.nn.gin import GINConv
from graphweft.nn.sage import SAGEConv


def is_reducible(layer: nn.Module, weighted: bool = False) -> bool:
    """Whether neighbours of a layer can be put together before it runs; ``weighted``: each times its edge's weight."""
    if weighted and getattr(layer, "reduce", None) == "max":
        return False
    if type(layer) is GCNConv:  # as published, or a mean: others read degrees in another way
        return layer.add_self_loops and not layer.improved and layer.reduce != "max"
    if type(layer) is SAGEConv:  # whose rows, where they are projected or go through an LSTM, are no plain sum
        return layer.pool_weight is None and layer.lstm is None
    return type(layer) is GINConv


class HubWeights(NamedTuple):
    """Weights of edges.

    Attributes:
        edges: float32 (n,) of a node's in-edges.
        degrees: float32 (N,) of all in-edges of each node, with that of its own row.
    """

    edges: NDArray[np.float32]
    degrees: Tensor


def joined(
    layer: nn.Module,
    own: int,
    sources: Ids,
    rows: Callable[[Ids], Tensor],
    degrees: Tensor,
    most: int,
    weights: HubWeights | None = None,
) -> tuple[Block, Tensor]:
    """A block of one node and one neighbour in the place of all, and the rows of both, (2, F).

    Args:
        layer: One that is reducible.
        own: Id of the node.
        sources: Ids of the sources of its in-edges, ascending.
        rows: float32 (n, F) rows of ascending ids.
        degrees: float32 (N,) edges into each node, self-loops left out.
        most: Rows at a time.
        weights: What each row is multiplied by, or None.

    Example:
        >>> x = torch.tensor([[1.0], [2.0], [6.0]])
        >>> joined(SAGEConv(1, 1), 0, np.array([1, 2]), lambda ids: x[ids], torch.tensor([2.0, 0, 0]), 1)[1].tolist()
        [[1.0], [4.0]]
    """
    of_edges = None if weights is None else weights.edges
    if isinstance(layer, GCNConv):  # which has a term of its own for the node
        of_edges = None if of_edges is None else of_edges[sources != own]
        sources = sources[sources != own]
    kind = joined_kind(layer)
    total: Tensor | None = None
    for first in range(0, len(sources), most):
        ids = sources[first : first + most]
        piece = rows(ids).double()
        if scales_sources(layer):
            at = torch.from_numpy(ids)
            scale = degrees[at].double() + 1 if weights is None else weights.degrees[at].double()
            piece *= torch.where(scale == 0, 0.0, scale.rsqrt()).unsqueeze(1)
        if of_edges is not None:
            piece *= torch.from_numpy(of_edges[first : first + most]).double().unsqueeze(1)
        found = piece.amax(0) if kind == "max" else piece.sum(0)
        total = found if total is None else torch.maximum(total, found) if kind == "max" else total + found
    mine = rows(np.array([own]))
    if total is None:
        return joined_block(torch.zeros(1, dtype=torch.bool), degrees[own : own + 1]), mine
    joint = (total / len(sources) if kind == "mean" else total).float()
    block = joined_block(torch.ones(1, dtype=torch.bool), degrees[own : own + 1])
    return block, torch.stack([mine[0], joint])


def joined_kind(layer: nn.Module) -> str:
    """How neighbours of a reducible layer are put together."""
    # on a block GCN scales what it sums to the node's degree, so it takes the mean in either case
    return "mean" if isinstance(layer, GCNConv) else str(layer.reduce)


def scales_sources(layer: nn.Module) -> bool:
    """Whether a reducible layer multiplies a neighbour's row by a factor of that neighbour's degree."""
    return isinstance(layer, GCNConv) and layer.reduce == "sum"


def degrees_of(source: PartSource) -> Tensor:
    """float32 (N,): edges into each node of some parts, self-loops left out."""
    bounds = source.bounds
    found = torch.empty(int(bounds[-1]))
    for number, start in enumerate(bounds[:-1].tolist()):
        offsets, sources = source.structure(number)
        degrees = np.diff(offsets)
        rows = np.repeat(np.arange(len(degrees), dtype=sources.dtype), degrees)
        loops = np.bincount(rows[sources == rows + sources.dtype.type(start)], minlength=len(degrees))
        found[start : start + len(degrees)] = torch.from_numpy(degrees - loops)
    return found
