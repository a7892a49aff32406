"""Principal neighbourhood aggregation (Corso et al., NeurIPS 2020).

``h'_i = (h_i || s_1 a_1 || s_1 a_2 ... ) W_post`` and one more product, where the ``a`` are several aggregations of
``h_j W_src + h_i W_dst + e_ij W_edge + b`` over the in-neighbours j, and the ``s`` scale them by the in-degree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from graphweft._errors import ConfigError
from graphweft.graph.graph import Graph
from graphweft.ir.ops import Op
from graphweft.ir.program import Value
from graphweft.nn.edges import ATTR, Carried, EdgeInputs
from graphweft.nn.frame import Frame
from graphweft.nn.module import CompiledModule, check_model, glorot

AGGREGATORS = ("mean", "min", "max", "std", "sum", "var")
SCALERS = ("identity", "amplification", "attenuation")
_LEAST = 1e-5  # variance below which a deviation counts as none


def mean_log_degree(graph: Graph) -> float:
    """The mean of ``log(d + 1)`` over the in-degrees d of a graph, for the scalers of :class:`PNAConv`.

    Example:
        >>> round(mean_log_degree(Graph([0, 1], [2, 2], num_nodes=3)), 4)
        0.3662
    """
    return float(graph.in_degrees().double().log1p().mean()) if graph.num_dst else 0.0


class PNAConv(CompiledModule):
    """One layer of principal neighbourhood aggregation, with one tower.

    Shape: (nodes, in_features) -> (nodes, out_features); ``src_weight`` and ``dst_weight`` are (in_features,
    in_features), ``post_weight`` is ((1 + aggregators * scalers) * in_features, out_features), ``weight``
    (out_features, out_features).

    Args:
        in_features: Width of the input rows.
        out_features: Width of the output rows.
        aggregators: Names among ``mean``, ``min``, ``max``, ``std``, ``sum`` and ``var``.
        scalers: Names among ``identity``, ``amplification`` and ``attenuation``.
        mean_log_degree: The mean of ``log(d + 1)`` over the in-degrees of the graphs that are trained on, as
            :func:`mean_log_degree` gives it.
        edge_dim: Columns of edge features.

    Raises: ConfigError for a name that is not known, or a size out of range.

    Example:
        >>> graph = Graph([0, 1], [1, 2])
        >>> layer = PNAConv(4, 2, mean_log_degree=mean_log_degree(graph))
        >>> layer(graph, torch.ones(3, 4)).shape
        torch.Size([3, 2])
    """

    takes_sparse = False

    def __init__(
        self,
        in_features: int,
        out_features: int,
        aggregators: Sequence[str] = ("mean", "min", "max", "std"),
        scalers: Sequence[str] = SCALERS,
        mean_log_degree: float = 1.0,
        edge_dim: int | None = None,
    ) -> None:
        check_model("PNAConv", {"in_features": in_features, "out_features": out_features}, 0.0, "sum")
        for what, given, known in (("aggregators", aggregators, AGGREGATORS), ("scalers", scalers, SCALERS)):
            unknown = [name for name in given if name not in known]
            if isinstance(given, str) or not given or unknown:
                raise ConfigError(f"PNAConv: expected {what} among {', '.join(known)}, got {unknown or given!r}")
        if not mean_log_degree > 0.0:
            raise ConfigError(f"PNAConv: expected mean_log_degree > 0, got {mean_log_degree}")
        if edge_dim is not None:
            check_model("PNAConv", {"edge_dim": edge_dim}, 0.0, "sum")
        super().__init__(in_features)
        self.aggregators, self.scalers = tuple(aggregators), tuple(scalers)
        self.mean_log_degree, self.edge_dim = float(mean_log_degree), edge_dim
        fans = 3 * in_features
        self.src_weight, self.dst_weight = (glorot(in_features, in_features, fans=fans) for _ in range(2))
        self.edge_projection = None if edge_dim is None else glorot(edge_dim, in_features)
        self.bias = nn.Parameter(torch.zeros(in_features))
        self.post_weight = glorot((1 + len(self.aggregators) * len(self.scalers)) * in_features, out_features)
        self.post_bias = nn.Parameter(torch.zeros(out_features))
        self.weight = glorot(out_features, out_features)
        self.last_bias = nn.Parameter(torch.zeros(out_features))

    def define(self, frame: Frame, x: Value) -> Value:
        """Messages, their aggregations, each under all scalers, and two products."""
        graph, own = frame.graph, frame.own(x)
        ends = [
            frame.add(Op.BROADCAST_SRC, graph, frame.matmul(x, self.src_weight)),
            frame.add(Op.BROADCAST_DST, graph, frame.bias(frame.matmul(own, self.dst_weight), self.bias)),
        ]
        message, rows = frame.apply("add", *ends), frame.of_edges(ATTR)
        if rows is not None and self.edge_projection is not None:
            message = frame.apply("add", message, frame.matmul(rows, self.edge_projection))
        found = self._aggregated(frame, message)
        log = frame.apply("log1p", frame.add(Op.IN_DEGREE, graph, dtype=x.tensor.dtype))
        parts = [own]
        for scaler in self.scalers:
            factor = self._factor(frame, scaler, log)
            parts += [a if factor is None else frame.add(Op.ROW_SCALE, a, factor) for a in found]
        h = frame.bias(frame.matmul(frame.add(Op.CAT, *parts, axis=0), self.post_weight), self.post_bias)
        return frame.bias(frame.matmul(h, self.weight), self.last_bias)

    def _aggregated(self, frame: Frame, message: Value) -> list[Value]:
        """The aggregations in order."""

        def reduce(x: Value, kind: str) -> Value:
            ties = {"ties": "split"} if kind in ("min", "max") else {}
            return frame.add(Op.REDUCE, frame.graph, x, kind=kind, **ties)

        def variance() -> Value:
            mean = reduce(message, "mean")
            squares = reduce(frame.apply("mul", message, message), "mean")
            return frame.apply("sub", squares, frame.apply("mul", mean, mean))

        made = {"std": lambda: self._deviation(frame, variance()), "var": variance}
        return [made[name]() if name in made else reduce(message, name) for name in self.aggregators]

    def _deviation(self, frame: Frame, variance: Value) -> Value:
        """The root of a variance, 0 for one that is as good as none."""
        least, zero = (frame.add(Op.CONST, value=number, dtype=variance.tensor.dtype) for number in (_LEAST, 0.0))
        above = frame.apply("gt", variance, least)
        return frame.apply("where", above, frame.apply("sqrt", frame.apply("where", above, variance, least)), zero)

    def _factor(self, frame: Frame, scaler: str, log: Value) -> Value | None:
        """What a scaler multiplies the row of a node by; None for 1."""
        if scaler == "identity":
            return None
        if scaler == "amplification":
            return frame.add(Op.SCALE, log, factor=1.0 / self.mean_log_degree)
        least = frame.add(Op.CONST, value=math.log(2.0), dtype=log.tensor.dtype)
        inverse = frame.apply("reciprocal", frame.apply("maximum", log, least))
        return frame.add(Op.SCALE, inverse, factor=self.mean_log_degree)

    def edge_columns(self) -> int:
        """``edge_dim``."""
        return self.edge_dim or 0

    def edge_form(self) -> tuple[object, ...]:
        """The width of what edges carry."""
        return (PNAConv, self.edge_dim)

    def carried(self, graph: Graph, edges: EdgeInputs) -> Carried:
        """The graph as it is, with features of its edges."""
        return edges.features(graph)


__all__ = ["PNAConv", "mean_log_degree"]
