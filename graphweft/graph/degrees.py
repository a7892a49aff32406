"""In-degrees of nodes as numbers to reckon with, and the nodes that have in-edges.

Comes in: a graph. Goes out: float32, one number a node; or ids. Called by compiled programs, and by what chooses them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphweft.graph.derived import derived
from graphweft.graph.graph import Graph
from graphweft.graph.placed import host_of


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


def receivers(graph: Graph) -> Tensor | None:
    """int64: ids of the nodes with in-edges, ascending, in host memory; None where all have some. Found once a graph.

    Example:
        >>> receivers(Graph([0, 1], [2, 2])).tolist(), receivers(Graph([0, 1], [1, 0]))
        ([2], None)
    """
    return derived(host_of(graph), _receivers)


def _receivers(graph: Graph) -> Tensor | None:
    degrees = graph.in_degrees()
    return None if bool((degrees > 0).all()) else degrees.nonzero().flatten()


__all__ = ["float_degrees", "receivers"]
