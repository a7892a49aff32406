"""Exact inference layer by layer, tile by tile: memory bounded by two layers' rows and one tile.

Comes in: a stack of layers, a graph, features. Goes out: output rows of all nodes. Called by the mini-batch trainer
where a pass over the whole graph at once would take too much memory; usable on any :class:`Stack`. Every tile is a
block of some destinations with all of their in-edges: nothing is sampled, and each layer's rows are computed once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from graphweft._errors import ConfigError, DtypeError, ShapeError
from graphweft._memory import POOL, empty
from graphweft.dist.ranks import Ranks
from graphweft.graph.graph import Graph
from graphweft.nn.edges import EdgeInputs
from graphweft.nn.stack import Stack
from graphweft.sample.neighbor import NeighborSampler
from graphweft.sample.shadow import ShadowSampler
from graphweft.storage.feature import Features, SparseFeatures
from graphweft.storage.gather import gather_rows
from graphweft.train.edge_data import EdgeData
from graphweft.train.part_inference import evaluating

USUAL_TILE = 16_384


def infer(
    model: Stack,
    graph: Graph,
    x: Features,
    tile: int = USUAL_TILE,
    each: Callable[[int, Tensor], None] | None = None,
    edges: EdgeInputs | None = None,
    ranks: Ranks | None = None,
    trims: bool = False,
) -> Tensor:
    """Output rows of all nodes in evaluation mode; as ``model.eval()(graph, x)`` but for the order of sums.

    A model on a device computes there, tile by tile; all rows stay in host memory.

    Shape: x (nodes, in_features) -> (nodes, out_features), float32. ``each`` is shown every layer's rows. With
    ``edges`` layers read weights or features of edges. With ``ranks`` each computes some of the tiles, and all get all
    rows; the bits do not depend on their number. With ``trims`` free memory goes back to the system before each tile:
    tiles differ in size, and one does not fit the gaps of others.

    Raises: ConfigError for a tile without rows; DtypeError, ShapeError when x does not fit.

    Example:
        >>> from graphweft.nn.sage import SAGE
        >>> infer(SAGE(4, 8, 2), Graph([0, 1], [1, 2]), torch.ones(3, 4), tile=2).shape
        torch.Size([3, 2])
    """
    if isinstance(tile, bool) or not isinstance(tile, int) or tile < 1:
        raise ConfigError(f"infer: expected tile >= 1, got {tile!r}")
    if not isinstance(model, Stack):
        raise ConfigError(f"infer: expected a stack of layers such as gw.nn.SAGE, got {type(model).__name__}")
    _check_features(model, graph, x)
    sampler = NeighborSampler(graph, [-1])
    with evaluating(model):
        for index in range(len(model.layers)):
            x = _layer(model, index, sampler, x, tile, edges, ranks or Ranks(), trims)
            if each is not None:
                each(index, x)
    assert isinstance(x, Tensor)
    return x


def _check_features(model: Stack, graph: Graph, x: Features) -> None:
    """Raises: DtypeError, ShapeError."""
    if not isinstance(x, Tensor | SparseFeatures):
        raise DtypeError(f"infer: expected x as a tensor or gw.data.SparseFeatures, got {type(x).__name__}")
    kind = next(model.parameters()).dtype
    if isinstance(x, Tensor) and x.dtype != kind:
        raise DtypeError(f"infer: expected x of {kind}, as the parameters are, got {x.dtype}")
    rows = x.shape[0]
    if isinstance(graph, Graph) and rows != graph.num_nodes:
        raise ShapeError(f"infer: expected {graph.num_nodes} rows of x, one per node, got {rows}")


def _layer(
    model: Stack,
    index: int,
    sampler: NeighborSampler,
    x: Features,
    tile: int,
    edges: EdgeInputs | None,
    ranks: Ranks,
    trims: bool,
) -> Tensor:
    """Rows of one layer for all nodes."""
    nodes, place = sampler.graph.num_nodes, next(model.parameters()).device
    rows: Tensor | None = None
    cuts = [(min(a * tile, nodes), min(b * tile, nodes)) for a, b in ranks.cuts(-(-nodes // tile))]
    for first in range(*cuts[ranks.rank], tile):
        if trims:
            POOL.trim()
        block = sampler.sample(torch.arange(first, min(first + tile, nodes))).blocks[0]
        part = model.run_layer(index, block, gather_rows(x, block.src_ids).to(place), edges).to(x.device)
        if rows is None:
            rows = empty((nodes, part.shape[1]), part.dtype)
        rows[first : first + part.shape[0]] = part
        del block, part  # before the next one is drawn
    if ranks.size > 1 and nodes:
        # a rank without a tile learns the width from the others
        width = ranks.agreed(0 if rows is None else rows.shape[1])
        rows = empty((nodes, width), next(model.parameters()).dtype) if rows is None else rows
        ranks.gather_rows(rows, cuts)
    return torch.empty(0, model.out_features) if rows is None else rows


def by_subgraphs(
    model: nn.Module, sampler: ShadowSampler, x: Features, edge_data: EdgeData, at_once: int, key: tuple[int, int]
) -> Tensor:
    """Logits of every node from a subgraph of its own, the same in every evaluation; ``key``: seed and stage."""
    model.eval()
    parts = []
    with torch.no_grad():
        for nodes in torch.split(torch.arange(sampler.graph.num_nodes), at_once):
            sample = sampler.sample(nodes, seed=key[0], stage=key[1])
            given = {} if edge_data.inputs is None else edge_data.of_subgraph(sample.e_id)
            rows = model(sample.subgraph, gather_rows(x, sample.n_id), **given)
            parts.append(rows[: nodes.numel()])
    return torch.cat(parts)
