"""Pair-wise normalisation in a reduce function: sums over all pairs of messages of ``relu(e[j] - e[k])``.

Comes in: a recorded function. Goes out: the sums and means in it that are margins of one mailbox field, each raised to
EDGE_MARGIN, which makes no pairs. The difference and its cut at 0 have no value of their own; code that does anything
else with pairs is not raised. Called by ``raising.py``. Sources: Wang et al., arXiv 1910.11945; Graphiler, MLSys 2022,
section 5.2.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from graphweft.frontend.algebra import Algebra
from graphweft.frontend.elementwise_rules import CLAMP_PASSES
from graphweft.frontend.layout import D, N, Raised, Symbols, UnraisableError
from graphweft.ir.ops import LEAVES, Op
from graphweft.ir.program import Value

aten = torch.ops.aten
_FOLDS: dict[Any, str] = {aten.sum.dim_IntList: "sum", aten.mean.dim: "mean"}
_CLAMPS = (aten.clamp.default, aten.clamp_min.default)


@dataclass(frozen=True)
class Margin:
    """A sum or mean over one side of all pairs.

    Attributes:
        high, low: What is subtracted from what; each is one field of the mailbox, laid along its own axis.
        kind: ``sum`` or ``mean``.
        dim: The axis that is folded.
        keepdim: Whether it stays, with size 1.
        closed: Whether equal scores let gradients through, as in a clamp, or not, as in a ReLU.
        inside: The difference and its cut, which are not computed.
    """

    high: Node
    low: Node
    kind: str
    dim: int
    keepdim: bool
    closed: bool
    inside: tuple[Node, Node]


def find_margins(nodes: Iterable[Node], symbols: Symbols) -> dict[Node, Margin]:
    """The margins among ``nodes``, by the node that folds them; none of those whose pairs are read by others too."""
    found = {node: margin for node in nodes if (margin := _margin(node, symbols)) is not None}
    while True:
        known = {*found, *(x for margin in found.values() for x in margin.inside)}
        wrong = [n for n, margin in found.items() if any(u not in known for x in margin.inside for u in x.users)]
        if not wrong:
            return found
        for node in wrong:
            del found[node]


def raise_margin(a: Algebra, margin: Margin, high: Raised, low: Raised) -> Raised:
    """The fold as one operation on edges."""
    rank = max(len(high.axes), len(low.axes))
    sides = [Raised(x.value, ((),) * (rank - len(x.axes)) + x.axes) for x in (high, low)]
    upper, lower = (x.axes.index((D,)) if (D,) in x.axes else -1 for x in sides)
    rest = [tuple(axis for at, axis in enumerate(x.axes) if at not in (upper, lower)) for x in sides]
    lone = -1 not in (upper, lower) and sides[0].axes[lower] == () == sides[1].axes[upper]
    if not lone or rest[0] != rest[1] or (N,) not in rest[0] or not _equal(high.value, low.value):
        raise UnraisableError("code on all pairs of messages")
    x = a.real(sides[0])
    graph, score = a.stage.graph, x.value
    own = upper
    if margin.dim == upper:  # how far an edge lies below the others
        own, score = lower, a.b.add(Op.EWISE, score, fn="neg")
    elif margin.dim != lower:
        raise UnraisableError("code on all pairs of messages")
    weights = a.b.add(Op.EDGE_MARGIN, graph, score, **({"closed": True} if margin.closed else {}))
    axes = list(x.axes)
    axes[upper], axes[lower] = ((D,), ()) if own == upper else ((), (D,))
    made = Raised(weights, tuple(axis for at, axis in enumerate(axes) if margin.keepdim or at != margin.dim))
    return made if margin.kind == "sum" else _mean(a, made)


def _equal(x: Value, y: Value) -> bool:
    """Whether two values are computed alike."""
    if x is y:
        return True
    alike = (x.op, x.attrs, len(x.inputs)) == (y.op, y.attrs, len(y.inputs)) and x.op not in LEAVES
    return alike and all(map(_equal, x.inputs, y.inputs))


def _mean(a: Algebra, x: Raised) -> Raised:
    """Divided by the number of messages of the edge's destination."""
    graph = a.stage.graph
    share = a.b.add(Op.POW, a.degree(x.value.tensor.dtype), exponent=-1.0)
    per_edge = Raised(a.b.add(Op.BROADCAST_DST, graph, share), tuple(t if set(t) <= {N, D} else () for t in x.axes))
    return a.ewise("mul", x, per_edge)


def _margin(node: Node, symbols: Symbols) -> Margin | None:
    """``node`` as a fold over one of two message axes of a difference that is cut at 0."""
    target: Any = node.target
    kind = _FOLDS.get(target)
    if kind is None or not isinstance(node.args[0], Node):
        return None
    cut, dims = node.args[0], _listed(node.args[1])
    difference = cut.args[0] if cut.args else None
    clamps = cut.target in _CLAMPS and _at_zero(cut)
    closed = clamps and CLAMP_PASSES
    if not (cut.target is aten.relu.default or clamps) or not isinstance(difference, Node):
        return None
    if difference.target is not aten.sub.Tensor or difference.kwargs or len(difference.args) != 2:
        return None
    high, low = difference.args
    if not isinstance(high, Node) or not isinstance(low, Node):
        return None
    sizes = symbols.shape(difference.meta["val"].shape)
    pairs = [at for at, size in enumerate(sizes) if size.d and not size.n and size.number == 1]
    folded = [dim % len(sizes) for dim in dims]
    if len(pairs) != 2 or len(folded) != 1 or folded[0] not in pairs:
        return None
    keepdim = bool(node.args[2]) if len(node.args) > 2 else bool(node.kwargs.get("keepdim", False))
    return Margin(high, low, kind, folded[0], keepdim, closed, (difference, cut))


def _listed(dims: Any) -> list[int]:
    return [dims] if isinstance(dims, int) else list(dims or ())


def _at_zero(cut: Node) -> bool:
    """Whether a clamp is from 0 up."""
    low = cut.args[1] if len(cut.args) > 1 else cut.kwargs.get("min")
    high = cut.args[2] if len(cut.args) > 2 else cut.kwargs.get("max")
    return isinstance(low, int | float) and low == 0 and high is None
