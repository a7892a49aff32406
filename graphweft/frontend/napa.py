"""The primitives NeighborApply, Pull and Apply as IR.

Comes in: a builder, the inputs of the program by name (``node:h`` or ``src:h`` and ``dst:h``, ``edge``, ``weight``,
``bias``) and modes by name. Goes out: the value of the result. Called by ``nn.napa``. Source: GraphTensor, section IV.
"""

from __future__ import annotations

from collections.abc import Mapping

from graphweft.ir.ops import Op
from graphweft.ir.program import Builder, Value

MODES = ("dot", "mul", "add", "sub", "copy", "concat")
WEIGHTS = ("mul", "add", "sub", "softmax", "copy")
REDUCERS = ("sum", "mean", "max", "min")
ACTIVATIONS = ("relu", "leaky_relu", "elu", "sigmoid", "tanh")
_SLOPES = {"leaky_relu": 0.01, "elu": 1.0}


def write_neighbor_apply(b: Builder, inputs: Mapping[str, Value], mode: str, square: bool) -> Value:
    """Edge values from the two ends."""
    graph = inputs["graph"]
    src, dst = (inputs["node:h"],) * 2 if square else (inputs["src:h"], inputs["dst:h"])
    if mode == "dot":
        return b.add(Op.SDDMM, graph, dst, src)
    left = b.add(Op.BROADCAST_SRC, graph, src)
    if mode == "copy":
        return left
    right = b.add(Op.BROADCAST_DST, graph, dst)
    if mode == "concat":
        return b.add(Op.EINSUM, b.add(Op.CAT, left, right, axis=0), inputs["weight"], spec="na,ab->nb")
    return b.add(Op.EWISE, left, right, fn=mode)


def write_pull(b: Builder, inputs: Mapping[str, Value], weight: str, reduce: str, square: bool) -> Value:
    """Weighted source rows reduced at destinations."""
    graph = inputs["graph"]
    message = b.add(Op.BROADCAST_SRC, graph, inputs["node:h" if square else "src:h"])
    if weight != "copy":
        edge = inputs["edge"]
        if weight == "softmax":
            edge, weight = b.add(Op.EDGE_SOFTMAX, graph, edge), "mul"
        message = b.add(Op.EWISE, message, edge, fn=weight)
    return b.add(Op.REDUCE, graph, message, kind=reduce)


def write_apply(b: Builder, inputs: Mapping[str, Value], act: str | None, bias: bool) -> Value:
    """A dense layer on rows."""
    y = b.add(Op.MATMUL, inputs["node:x"], inputs["weight"])
    if bias:
        y = b.add(Op.BIAS, y, inputs["bias"])
    if act == "relu":
        return b.add(Op.RELU, y)
    return y if act is None else b.add(Op.EWISE, y, fn=act, **({"alpha": _SLOPES[act]} if act in _SLOPES else {}))
