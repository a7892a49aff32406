"""Message passing as plain tensor code: the public calls.

Comes in: a graph, functions over edges and nodes, fields. Goes out: node tensors by name. Called by users.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from graphweft import _config
from graphweft._errors import UserCodeError
from graphweft.frontend.call import Function, make_call
from graphweft.frontend.failures import UserTypeError
from graphweft.frontend.habits import aggregation, keyword, signature
from graphweft.frontend.source import current_line, first_line
from graphweft.frontend.views import Edges, Nodes
from graphweft.graph.graph import Graph
from graphweft.graph.shared import SharedGraph
from graphweft.nn.opaque import left_out, traced, untraced
from graphweft.nn.products import on_kernels, paused
from graphweft.nn.shared_call import execute_shared
from graphweft.nn.user_call import execute


@left_out
def update_all(
    graph: Graph,
    message: Function,
    reduce: Function,
    update: Function | None = None,
    *,
    ndata: Mapping[str, Any] | None = None,
    edata: Mapping[str, Any] | None = None,
    ntype_data: Mapping[str, Any] | None = None,
    etype_data: Mapping[str, Any] | None = None,
    params: Sequence[Any] = (),
    **other: Any,
) -> dict[str, Tensor]:
    """One round of message passing: sends a message along every edge, reduces the messages of each node, updates the
    nodes.

    Args:
        graph: The graph.
        message: ``message(edges, *params) -> dict`` of fields with one row per edge. It sees all edges at once.
        reduce: ``reduce(nodes) -> dict`` of fields with one row per node. ``nodes.mailbox[name]`` has the shape (nodes,
            messages, ...), with messages by ascending edge id. The function must treat nodes independently.
        update: ``update(nodes) -> dict`` of fields with one row per node, or None. It sees all nodes at once: the node
            fields, overridden by reduced fields of the same name.
        ndata: Node fields: a tensor with one row per node, or a dict of tensors by node type; on a bipartite graph a
            pair (source rows, destination rows). The default are the fields of ``graph.ndata``, or of ``graph.srcdata``
            and ``graph.dstdata``.
        edata: Edge fields: one row per edge in the order given to the graph, or a dict by relation. The default are the
            fields of ``graph.edata``.
        ntype_data: Tables with one row per node type, or dicts by node type.
        etype_data: Tables with one row per relation, or dicts by relation.
        params: Further arguments of ``message``.
        **other: Keywords of other libraries raise an error that names the equivalent.

    Returns: the dict of the last function. Nodes without in-edges have zeros in every reduced field. Fields, params and
    tensors that the functions capture receive gradients; in-place operations never reach them.

    Raises: FieldError, ShapeError, DtypeError, UserCodeError naming the field, both sizes and the user's line.
    Source: Graphiler, MLSys 2022, section 3.1; message passing after Gilmer et al., ICML 2017.

    Example:
        >>> import torch
        >>> from graphweft.graph.graph import Graph
        >>> g, h = Graph([0, 1, 2], [1, 2, 2]), torch.tensor([[1.0], [2.0], [3.0]])
        >>> out = update_all(
        ...     g,
        ...     lambda edges: {"m": edges.src["h"]},
        ...     lambda nodes: {"h": nodes.mailbox["m"].sum(1)},
        ...     ndata={"h": h},
        ... )
        >>> out["h"].flatten().tolist()
        [0.0, 1.0, 5.0]
    """
    if other:
        raise _unknown("update_all", graph, other)
    given: dict[str, Any] = {"ndata": ndata, "edata": edata, "ntype_data": ntype_data, "etype_data": etype_data}
    if traced():
        return untraced(update_all)(graph, message, reduce, update, params=params, **given)
    with paused():
        call = make_call(graph, message, reduce, update, params=params, **given)
        return execute_shared(call) if isinstance(graph, SharedGraph) else execute(call)


class MessagePassing(nn.Module):
    """Base class of layers that define ``message``, ``reduce`` and optionally ``update``; see :func:`update_all`.

    Example:
        >>> import torch
        >>> from graphweft.graph.graph import Graph
        >>> class Mean(MessagePassing):
        ...     def message(self, edges):
        ...         return {"m": edges.src["h"]}
        ...
        ...     def reduce(self, nodes):
        ...         return {"h": nodes.mailbox["m"].mean(1)}
        ...
        ...     def forward(self, graph, h):
        ...         return self.propagate(graph, ndata={"h": h})["h"]
        >>> Mean()(Graph([0, 1], [2, 2]), torch.tensor([[1.0], [3.0], [0.0]])).flatten().tolist()
        [0.0, 0.0, 2.0]
    """

    update: Function | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if (args or kwargs) and not self.call_super_init:
            given = ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())])
            remedy = aggregation(kwargs.get("aggr", args[0] if args else None))
            raise UserTypeError(
                f"MessagePassing.__init__: expected no arguments, got {given}: {remedy} ({current_line()})"
            )
        super().__init__(*args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As of any module; on large inputs products by weights in ``forward`` run on this package's kernels."""
        if traced() or _config.current().opt_level == 0:
            return super().__call__(*args, **kwargs)
        with on_kernels((*args, *kwargs.values())):
            return super().__call__(*args, **kwargs)

    def message(self, edges: Edges) -> Mapping[str, Tensor]:
        """Fields to send along every edge."""
        raise UserCodeError(f"{type(self).__name__}: expected a class that writes message(edges)")

    def reduce(self, nodes: Nodes) -> Mapping[str, Tensor]:
        """Fields of every node from its mailbox."""
        raise UserCodeError(f"{type(self).__name__}: expected a class that writes reduce(nodes)")

    def propagate(
        self,
        graph: Graph,
        ndata: Mapping[str, Any] | None = None,
        edata: Mapping[str, Any] | None = None,
        ntype_data: Mapping[str, Any] | None = None,
        etype_data: Mapping[str, Any] | None = None,
        **other: Any,
    ) -> dict[str, Tensor]:
        """:func:`update_all` with this module's functions as they are now."""
        if other:
            raise _unknown("propagate", graph, other)
        try:
            return update_all(
                graph,
                self.message,
                self.reduce,
                self.update,
                ndata=ndata,
                edata=edata,
                ntype_data=ntype_data,
                etype_data=etype_data,
            )
        except UserCodeError as failure:
            functions: dict[str, Any] = {"message": self.message, "reduce": self.reduce, "update": self.update}
            stage = str(failure).partition(":")[0]
            remedy = signature(stage, functions.get(stage))
            if remedy is None:
                raise
            raise UserTypeError(f"{stage}: {remedy} ({first_line(functions[stage])})") from failure


def _unknown(who: str, graph: Any, other: Mapping[str, Any]) -> UserTypeError:
    """The error of keywords that a call does not have."""
    name, value = next(iter(other.items()))
    known = "ndata, edata, ntype_data, etype_data" + (", params" if who == "update_all" else "")
    where = f"{keyword(name, value, graph)} ({current_line()})"
    return UserTypeError(f"{who}: expected the keywords {known}, got {name}=: {where}")
