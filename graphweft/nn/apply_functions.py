"""Functions on all edges or on all nodes, without a reduction: user functions, or built-in ones by name.

Comes in: a graph, a function, fields. Goes out: edge or node tensors by name. Compiled like any message-passing call;
a dot product of both ends becomes one sampled product (SDDMM). Called by users. Source: Joestar, section 5.3 (the
compute interface apply_edges, apply_nodes, push, pull).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from graphweft._errors import ConfigError
from graphweft.frontend.call import Function, absent, make_call, stored_nodes
from graphweft.frontend.source import current_line
from graphweft.frontend.views import Edges
from graphweft.graph.graph import Graph
from graphweft.nn.user_call import execute

EDGE_FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "u_add_v": torch.add,
    "u_sub_v": torch.sub,
    "u_mul_v": torch.mul,
    "u_div_v": torch.div,
    "u_dot_v": lambda u, v: (u * v).sum(-1),
    "copy_u": lambda u, v: u,
    "copy_v": lambda u, v: v,
}
NODE_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "copy": lambda x: x,
}


def apply_edges(
    graph: Graph,
    function: Function | str,
    *,
    ndata: Mapping[str, Any] | None = None,
    edata: Mapping[str, Any] | None = None,
    ntype_data: Mapping[str, Any] | None = None,
    etype_data: Mapping[str, Any] | None = None,
    params: Sequence[Any] = (),
) -> dict[str, Tensor]:
    """Applies ``function(edges, *params)`` to all edges at once.

    Args:
        graph: The graph.
        function: As ``message`` of :func:`graphweft.update_all`, or a name: ``"u_add_v"``, ``"u_sub_v"``,
            ``"u_mul_v"``, ``"u_div_v"``, ``"u_dot_v"``, ``"copy_u"``, ``"copy_v"``, with u the source and v the
            destination. A named function reads the only node field. If there are two fields, it reads the first at the
            source and the second at the destination. Its result is called ``"e"``.
        ndata: Node fields; those of ``graph.ndata`` where left out.
        edata: Edge fields; those of ``graph.edata`` where left out.
        ntype_data: Tables of node types.
        etype_data: Tables of relations.
        params: More arguments of the function. All as of :func:`graphweft.update_all`.

    Returns: fields with one row per edge, in the order in which edges were given.

    Raises: as :func:`graphweft.update_all`; ConfigError for an unknown name.

    Example:
        >>> import torch
        >>> g, h = Graph([0, 1], [1, 2]), torch.tensor([[1.0], [2.0], [3.0]])
        >>> apply_edges(g, "u_dot_v", ndata={"h": h})["e"].tolist()
        [2.0, 6.0]
        >>> apply_edges(g, lambda edges: {"gap": edges.dst["h"] - edges.src["h"]}, ndata={"h": h})["gap"].tolist()
        [[1.0], [1.0]]
    """
    if isinstance(function, str):
        _known("apply_edges", function, EDGE_FUNCTIONS)
        function = _on_ends(EDGE_FUNCTIONS[function], _names(graph, ndata))
    given: dict[str, Any] = {"ndata": ndata, "edata": edata, "ntype_data": ntype_data, "etype_data": etype_data}
    return execute(make_call(graph, function, absent, who="apply_edges", **given, params=params))


def apply_nodes(
    graph: Graph,
    function: Function | str,
    *,
    ndata: Mapping[str, Any] | None = None,
    ntype_data: Mapping[str, Any] | None = None,
) -> dict[str, Tensor]:
    """Applies ``function(nodes)`` to all nodes at once; on a bipartite graph to all destinations.

    Args:
        graph: The graph.
        function: As ``update`` of :func:`graphweft.update_all`, or a name, applied to every field: ``"relu"``,
            ``"sigmoid"``, ``"tanh"``, ``"copy"``.
        ndata: Node fields, as of :func:`graphweft.update_all`; those of ``graph.ndata`` where left out.
        ntype_data: Tables of node types.

    Returns: fields with one row per node.

    Raises: as :func:`graphweft.update_all`; ConfigError for an unknown name.

    Example:
        >>> import torch
        >>> g, h = Graph([0, 1], [1, 2]), torch.tensor([[1.0], [-2.0], [3.0]])
        >>> apply_nodes(g, "relu", ndata={"h": h})["h"].flatten().tolist()
        [1.0, 0.0, 3.0]
    """
    if isinstance(function, str):
        _known("apply_nodes", function, NODE_FUNCTIONS)
        function = _on_fields(NODE_FUNCTIONS[function], _names(graph, ndata))
    return execute(make_call(graph, absent, absent, function, who="apply_nodes", ndata=ndata, ntype_data=ntype_data))


def _names(graph: Graph, ndata: Mapping[str, Any] | None) -> list[str]:
    """Names of the node fields that a call reads."""
    stored = ndata is None and isinstance(graph, Graph)  # anything else is refused later
    return list(stored_nodes(graph) if stored else ndata or {})


def _on_ends(code: Callable[[Tensor, Tensor], Tensor], names: list[str]) -> Function:
    if len(names) not in (1, 2):
        raise ConfigError(f"apply_edges: expected one node field, or two, got {len(names)} ({current_line()})")

    def run(edges: Edges) -> dict[str, Tensor]:
        return {"e": code(edges.src[names[0]], edges.dst[names[-1]])}

    return run


def _on_fields(code: Callable[[Tensor], Tensor], names: list[str]) -> Function:
    return lambda nodes: {name: code(nodes.data[name]) for name in names}


def _known(who: str, name: str, table: Mapping[str, Any]) -> None:
    if name not in table:
        raise ConfigError(f"{who}: expected a function or one of {', '.join(table)}, got {name!r} ({current_line()})")


__all__ = ["EDGE_FUNCTIONS", "NODE_FUNCTIONS", "apply_edges", "apply_nodes"]
