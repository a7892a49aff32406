"""In-degrees of nodes as numbers to reckon with.

Comes in: a graph. Goes out: float32, one number a node. Called by compiled programs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphweft.graph.graph import Graph


def float_degrees(graph: Graph, inverse: bool = False) -> Tensor:
    """float32 (num_dst,): edges into each node; with ``inverse`` 1 over them, and 0 for a node without any.

    One native call where in-edges lie together.

    Example:
        >>> float_degrees(Graph([0, 1], [2, 2]), inverse=True).tolist()
        [0.0, 0.0, 0.5]
    """
    form = graph._forms.by[graph._side]
    if form is not None:
        return form.float_degrees(inverse)
    degrees = graph.in_degrees().float()
    return torch.where(degrees > 0, 1.0 / degrees, 0.0) if inverse else degrees


__all__ = ["float_degrees"]
