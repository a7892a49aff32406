"""The softmax over the in-edges of each node, for attention that is written by hand.

Comes in: a graph, scores of its edges. Goes out: weights of the edges. Called by users as ``gw.nn.edge_softmax``.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from graphweft._errors import ConfigError, DtypeError, ShapeError
from graphweft.graph.graph import Graph
from graphweft.ir.ops import Op
from graphweft.ir.program import Builder, Value
from graphweft.ir.residency import Residency
from graphweft.runtime.compile import Arguments, CompiledFunction

_SCORES = "scores"


def edge_softmax(
    graph: Graph, scores: Float[Tensor, "edges *columns"], norm_by: str = "dst"
) -> Float[Tensor, "edges *columns"]:
    """Softmax of edge scores over the in-edges of each node, separately for every column.

    Shape: scores (E, ...) -> (E, ...). Row i belongs to edge i in the order given to the graph.

    Args:
        graph: The graph, or a sampled block.
        scores: Of floating dtype.
        norm_by: "dst" for the edges into the same node; "src" for the edges out of the same node.

    Raises: ShapeError, DtypeError; ConfigError for another ``norm_by``.

    Example:
        >>> import torch
        >>> edge_softmax(Graph([0, 1, 2], [1, 2, 2]), torch.tensor([5.0, 0.0, 0.0])).tolist()
        [1.0, 0.5, 0.5]
    """
    if not isinstance(graph, Graph):
        raise ShapeError(f"edge_softmax: expected a graphweft Graph first, got {type(graph).__name__}")
    if norm_by not in ("dst", "src"):
        raise ConfigError(f"edge_softmax: expected norm_by dst or src, got {norm_by!r}")
    if not isinstance(scores, Tensor) or not scores.is_floating_point():
        got = scores.dtype if isinstance(scores, Tensor) else type(scores).__name__
        raise DtypeError(f"edge_softmax: expected scores of a floating dtype, got {got}")
    if scores.dim() == 0 or scores.shape[0] != graph.num_edges:
        shape = tuple(scores.shape)
        raise ShapeError(f"edge_softmax: expected {graph.num_edges} rows of scores, one per edge, got shape {shape}")
    flat = scores.reshape(graph.num_edges, -1).contiguous()
    over = graph if norm_by == "dst" else graph.reverse()
    given = Arguments(over, None, {}, None, 0, False, {_SCORES: (flat, Residency.EDGE)})
    return _FUNCTION(given)["out"].reshape(scores.shape)


def _describe(builder: Builder, inputs: dict[str, Value], training: bool) -> dict[str, Value]:
    return {"out": builder.add(Op.EDGE_SOFTMAX, inputs["graph"], inputs[_SCORES])}


_FUNCTION = CompiledFunction(_describe)
