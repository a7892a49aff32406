"""Message and reduce functions by the names that DGL gives them, for :func:`graphweft.update_all` and ``apply_edges``.

Comes in: names of fields. Goes out: a function of edges or of nodes. ``u`` is the source of an edge, ``v`` its
destination, ``e`` the edge itself; a field of fewer dimensions is repeated along the first ones after the rows, as in
DGL. Called by users as ``gw.fn``. Source of the names: DGL (Wang et al., 2019).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from torch import Tensor

from graphweft.frontend.views import Edges, Nodes

Message = Callable[[Edges], dict[str, Tensor]]
Reduce = Callable[[Nodes], dict[str, Tensor]]
Binary = Callable[[str, str, str], Message]


def copy_u(u: str, out: str) -> Message:
    """Message function: every edge sends the field ``u`` of its source as ``out``.

    Example:
        >>> import torch
        >>> from graphweft.graph.graph import Graph
        >>> from graphweft.nn.message_passing import update_all
        >>> g, h = Graph([0, 1], [1, 1]), torch.tensor([[1.0], [2.0]])
        >>> update_all(g, copy_u("h", "m"), sum("m", "h"), ndata={"h": h})["h"].flatten().tolist()
        [0.0, 3.0]
    """
    return lambda edges: {out: edges.src[u]}


def copy_e(e: str, out: str) -> Message:
    """Message function: every edge sends its field ``e`` as ``out``."""
    return lambda edges: {out: edges.data[e]}


def _dot(left: Tensor, right: Tensor) -> Tensor:
    return (left * right).sum(-1, keepdim=True)


def _binary(left: str, code: Callable[[Any, Any], Any], right: str) -> Binary:
    """The function of two fields, each read at its own place."""

    def make(lhs: str, rhs: str, out: str) -> Message:
        def run(edges: Edges) -> dict[str, Tensor]:
            at = {"u": edges.src, "v": edges.dst, "e": edges.data}
            one, other = at[left][lhs], at[right][rhs]
            rank = one.dim() if one.dim() > other.dim() else other.dim()
            return {out: code(_widened(one, rank), _widened(other, rank))}

        return run

    return make


def _widened(x: Tensor, rank: int) -> Tensor:
    """Dimensions of size 1 after the first, up to ``rank``."""
    return x.reshape(x.shape[0], *(1,) * (rank - x.dim()), *x.shape[1:]) if x.dim() < rank else x


u_add_v = _binary("u", operator.add, "v")
u_sub_v = _binary("u", operator.sub, "v")
u_mul_v = _binary("u", operator.mul, "v")
u_div_v = _binary("u", operator.truediv, "v")
u_dot_v = _binary("u", _dot, "v")
u_add_e = _binary("u", operator.add, "e")
u_sub_e = _binary("u", operator.sub, "e")
u_mul_e = _binary("u", operator.mul, "e")
u_div_e = _binary("u", operator.truediv, "e")
u_dot_e = _binary("u", _dot, "e")
v_add_u = _binary("v", operator.add, "u")
v_sub_u = _binary("v", operator.sub, "u")
v_mul_u = _binary("v", operator.mul, "u")
v_div_u = _binary("v", operator.truediv, "u")
v_dot_u = _binary("v", _dot, "u")
v_add_e = _binary("v", operator.add, "e")
v_sub_e = _binary("v", operator.sub, "e")
v_mul_e = _binary("v", operator.mul, "e")
v_div_e = _binary("v", operator.truediv, "e")
v_dot_e = _binary("v", _dot, "e")
e_add_u = _binary("e", operator.add, "u")
e_sub_u = _binary("e", operator.sub, "u")
e_mul_u = _binary("e", operator.mul, "u")
e_div_u = _binary("e", operator.truediv, "u")
e_dot_u = _binary("e", _dot, "u")
e_add_v = _binary("e", operator.add, "v")
e_sub_v = _binary("e", operator.sub, "v")
e_mul_v = _binary("e", operator.mul, "v")
e_div_v = _binary("e", operator.truediv, "v")
e_dot_v = _binary("e", _dot, "v")


def sum(msg: str, out: str) -> Reduce:
    """Reduce function: the sum of the messages ``msg`` of a node; 0 without messages."""
    return lambda nodes: {out: nodes.mailbox[msg].sum(1)}


def mean(msg: str, out: str) -> Reduce:
    """Reduce function: the mean of the messages ``msg``; 0 without messages."""
    return lambda nodes: {out: nodes.mailbox[msg].mean(1)}


def max(msg: str, out: str) -> Reduce:
    """Reduce function: the elementwise maximum of the messages ``msg``; 0 without messages. Its gradient goes to one
    message.
    """
    return lambda nodes: {out: nodes.mailbox[msg].max(1).values}


def min(msg: str, out: str) -> Reduce:
    """Reduce function: the elementwise minimum of the messages ``msg``; 0 without messages. Its gradient goes to one
    message.
    """
    return lambda nodes: {out: nodes.mailbox[msg].min(1).values}
