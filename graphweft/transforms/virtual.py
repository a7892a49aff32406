"""Virtual nodes: one more node a graph, through which any two nodes are two hops apart (Gilmer et al., ICML 2017).

Comes in: a graph. Goes out: a larger one. Called by users.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphweft._errors import GraphError
from graphweft.graph.graph import Graph


def virtual_nodes(graph: Graph, groups: Any = None) -> Graph:
    """Adds a virtual node that is joined to every other node in both directions; with ``groups`` one node per group.

    Args:
        graph: A graph over one set of nodes, without types.
        groups: (nodes,) number of the graph of each node in a batch; None: one graph.

    Returns: A graph whose last nodes are the virtual ones. ``edata["kind"]``, int64, is 0 for edges of the graph, 1 for
    those into a virtual node and 2 for those out of one, in this order. New rows of ``ndata`` and ``edata``
    are zeros, those of ``edata["edge_weight"]`` ones.

    Raises: GraphError for another graph, or groups that do not fit.

    Example:
        >>> made = virtual_nodes(Graph([0], [1], num_nodes=3))
        >>> [ends.tolist() for ends in made.edges()], made.edata["kind"].tolist()
        ([[0, 0, 1, 2, 3, 3, 3], [1, 3, 3, 3, 0, 1, 2]], [0, 1, 1, 1, 2, 2, 2])
    """
    if not isinstance(graph, Graph) or not graph.is_square or graph.is_typed:
        raise GraphError(f"virtual_nodes: expected an untyped graph over one set of nodes, got {graph!r}")
    nodes = graph.num_nodes
    of = torch.zeros(nodes, dtype=torch.int64) if groups is None else _groups(groups, nodes)
    count = 1 if groups is None else int(of.max()) + 1 if nodes else 0
    src, dst = (ends.long() for ends in graph.edges())
    own, virtual = torch.arange(nodes), nodes + of
    made = Graph(torch.cat([src, own, virtual]), torch.cat([dst, virtual, own]), num_nodes=nodes + count)
    for name, rows in graph.ndata.items():
        made.ndata[name] = _longer(rows, count, 0)
    for name, rows in graph.edata.items():
        made.edata[name] = _longer(rows, 2 * nodes, 1 if name == "edge_weight" else 0)
    made.edata["kind"] = torch.tensor([0, 1, 2]).repeat_interleave(torch.tensor([len(src), nodes, nodes]))
    return made


def _groups(given: Any, nodes: int) -> Tensor:
    """The group of every node."""
    of = torch.as_tensor(given)
    if of.shape != (nodes,) or of.is_floating_point() or of.dtype == torch.bool:
        kind = str(of.dtype).removeprefix("torch.")
        raise GraphError(
            f"virtual_nodes: expected groups as integers of shape ({nodes},), got {kind} {tuple(of.shape)}"
        )
    if nodes and int(of.min()) < 0:
        raise GraphError(f"virtual_nodes: expected groups >= 0, got {int(of.min())}")
    return of.long()


def _longer(rows: Tensor, by: int, fill: int) -> Tensor:
    """Rows with ``by`` more of them."""
    return torch.cat([rows, rows.new_full((by, *rows.shape[1:]), fill)])


__all__ = ["virtual_nodes"]
