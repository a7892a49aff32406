"""A layer that makes rows narrower, over neighbours that its weight was multiplied by before they were put together.

Comes in: a stack, the number of a layer, rows of nodes and of their neighbours put together. Goes out: rows of the
layer. Called by inference over slices of columns: sums of narrower rows are fewer bytes to write and to read. Products
and sums can be turned around where neighbours are added up, as in GCN and SAGE.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphweft import _config
from graphweft.graph.block import Block
from graphweft.nn.edges import EdgeInputs
from graphweft.nn.gcn import GCNConv
from graphweft.nn.sage import SAGEConv
from graphweft.nn.stack import Stack
from graphweft.runtime.dense import matmul


def narrowing(model: Stack, index: int) -> Tensor | None:
    """(in, out) weight of the neighbours of a reducible layer, where their products are narrower; None where not.

    Example:
        >>> from graphweft.nn.sage import SAGE
        >>> model = SAGE(8, 16, 4, num_layers=2)
        >>> narrowing(model, 0) is None, narrowing(model, 1).shape
        (True, torch.Size([16, 4]))
    """
    layer = model.layers[index]
    if model.runs_apart() or type(model).run_layer is not Stack.run_layer or _config.current().precision != "float32":
        return None
    if type(layer) is GCNConv and layer.reduce != "max":
        weight: Tensor = layer.weight
    elif type(layer) is SAGEConv and layer.reduce != "max":
        weight = layer.neighbor_weight
    else:
        return None
    return weight.detach() if weight.shape[1] < weight.shape[0] else None


def run_narrow(
    model: Stack, index: int, block: Block, rows: Tensor, own: int, weight: Tensor, edges: EdgeInputs | None = None
) -> Tensor:
    """Rows of a layer, and of what follows it, for the destinations of a block.

    Args:
        model: The stack.
        index: Number of the layer.
        block: Each destination with its neighbours as one.
        rows: (n, in) rows of ``own`` destinations; the others have products in their first columns, and are changed.
        own: How many are destinations.
        weight: As :func:`narrowing` gives it.
        edges: What the layer reads of the block's edges.
    """
    width = weight.shape[1]
    rows[own:, width:] = 0
    name = "neighbor_weight"
    if isinstance(model.layers[index], GCNConv):  # where a node's own row goes the way of its neighbours'
        name = "weight"
        rows[:own, :width] = matmul(rows[:own], weight)
        rows[:own, width:] = 0
    return model.run_layer(index, block, rows, edges, replaced={name: torch.eye(*weight.shape)})


__all__ = ["narrowing", "run_narrow"]
