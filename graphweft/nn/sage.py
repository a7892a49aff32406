"""GraphSAGE (Hamilton, Ying, Leskovec, NeurIPS 2017).

``h' = reduce(h_j over in-neighbours j) W_neigh + h W_self + b`` with reduce mean, sum or max; "pool", the maximum of
``relu(h_j W_pool + b_pool)``; or "lstm", the last state of an LSTM that reads the neighbours one after another.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from graphweft._errors import ConfigError
from graphweft.graph.graph import Graph
from graphweft.ir.ops import Op
from graphweft.ir.program import Value
from graphweft.nn.edges import WEIGHT, EdgeInputs
from graphweft.nn.frame import Frame
from graphweft.nn.lstm import last_states
from graphweft.nn.module import REDUCERS, CompiledModule, as_widths, check_model, glorot, reducer
from graphweft.nn.stack import Stack
from graphweft.storage.dense_rows import dense_rows
from graphweft.storage.feature import Features, SparseFeatures

_FURTHER = {"pool": "max", "lstm": "lstm"}  # reducers of this layer alone, and how rows are combined


class SAGEConv(CompiledModule):
    """One GraphSAGE layer.

    Shape: (nodes, in_features) -> (nodes, out_features); ``neighbor_weight`` and ``self_weight`` are
    (in_features, out_features).

    Args:
        in_features: Width of the input rows; a pair for features (x_src, x_dst) of two sets of nodes.
        out_features: Width of the output rows.
        bias: Adds a learned vector.
        reduce: ``"mean"``, ``"sum"`` or ``"max"`` over the in-neighbours; ``"pool"`` for the maximum after a linear map
            and a ReLU (``project=True`` with ``"max"``); ``"lstm"`` for an LSTM in the order of the edges.
        aggr: Another name for ``reduce``, as in PyTorch Geometric; ``"add"`` is ``"sum"``.
        root_weight: Adds the node's own row times ``self_weight``.
        project: Applies ``relu(h W_pool + b_pool)`` to the neighbours' rows first.
        normalize: Divides every output row by its length.

    Raises: ConfigError for a value out of range.

    Example:
        >>> import torch
        >>> from graphweft.graph.graph import Graph
        >>> SAGEConv(4, 2)(Graph([0, 1], [1, 2]), torch.ones(3, 4)).shape
        torch.Size([3, 2])
        >>> users_to_items = Graph([0, 1, 1], [0, 0, 2], num_nodes=(2, 3))
        >>> SAGEConv((4, 5), 2)(users_to_items, (torch.ones(2, 4), torch.ones(3, 5))).shape
        torch.Size([3, 2])
    """

    takes_pairs = True

    def __init__(
        self,
        in_features: int | tuple[int, int],
        out_features: int,
        bias: bool = True,
        reduce: str = "mean",
        *,
        aggr: str | None = None,
        root_weight: bool = True,
        project: bool = False,
        normalize: bool = False,
    ) -> None:
        reduce = reducer("SAGEConv", reduce, aggr, "mean")
        sizes = {"in_features": in_features, "out_features": out_features}
        check_model("SAGEConv", sizes, 0.0, reduce, (*REDUCERS, *_FURTHER))
        if project and reduce == "lstm":
            raise ConfigError("SAGEConv: project=True cannot be combined with reduce='lstm'")
        super().__init__(in_features)
        width, own_width = as_widths(in_features)
        self.neighbor_weight = glorot(width, out_features)
        self.self_weight = glorot(own_width, out_features) if root_weight else None
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None
        projects = project or reduce == "pool"
        self.pool_weight = glorot(width, width) if projects else None
        self.pool_bias = nn.Parameter(torch.zeros(width)) if projects else None
        self.lstm = nn.LSTM(width, width, batch_first=True) if reduce == "lstm" else None
        self.reduce, self.normalize = reduce, normalize
        self.takes_sparse = reduce != "max" or projects  # a maximum is taken over the rows as they are

    @property
    def takes_edge_weight(self) -> bool:  # type: ignore[override]
        """Not with an LSTM, whose states are no sum."""
        return self.lstm is None

    def define(self, frame: Frame, x: Value) -> Value:
        """Neighbours and self, each with its own weight."""
        if self.lstm is not None:
            raise ConfigError("SAGEConv: reduce='lstm' is not compiled; it runs layer by layer, on torch's LSTM")
        weight, kind = frame.of_edges(WEIGHT), _FURTHER.get(self.reduce, self.reduce)
        rows = x
        if self.pool_weight is not None:
            rows = frame.relu(frame.bias(frame.matmul(x, self.pool_weight), self.pool_bias))
        if kind == "max":
            h = frame.matmul(frame.aggregate(rows, "max", weight=weight), self.neighbor_weight)
        else:  # written transform first, which sparse features need; the compiler may turn the two around
            h = frame.aggregate(frame.matmul(rows, self.neighbor_weight), kind, weight=weight)
        if self.self_weight is not None:
            own = frame.bias(frame.own_product(x, self.self_weight), self.bias)
            h = frame.add(Op.ADD, h, own)
        else:
            h = frame.bias(h, self.bias)
        if not self.normalize:
            return h
        length = frame.add(Op.POW, frame.add(Op.ROW_SUM, frame.add(Op.MUL, h, h)), exponent=-0.5)
        return frame.add(Op.ROW_SCALE, h, length)

    def runs_apart(self) -> bool:
        """Also with an LSTM, which is torch's."""
        return self.lstm is not None or super().runs_apart()

    def apart(self, graph: Graph, x: Features | None, rows: Tensor | None, edges: EdgeInputs) -> Tensor:
        """With an LSTM over the neighbours of each node."""
        if self.lstm is None:
            return super().apart(graph, x, rows, edges)
        self.arguments(graph, x, rows, edges)  # checks all of them
        parts: tuple[Any, Any] = x if isinstance(x, tuple) else (x, x)
        sources, own = (dense_rows("SAGEConv", p)[0] if isinstance(p, SparseFeatures) else p for p in parts)
        h = last_states(graph, sources, self.lstm) @ self.neighbor_weight
        if self.self_weight is not None:
            h = h + own[: graph.num_dst] @ self.self_weight
        h = h if self.bias is None else h + self.bias
        h = nn.functional.normalize(h) if self.normalize else h
        return h if rows is None else h[rows]


class SAGE(Stack):
    """A stack of :class:`SAGEConv`; arguments as :class:`graphweft.nn.stack.Stack`; ``reduce`` also "pool" and "lstm",
    ``root_weight``, ``project`` and ``normalize`` as the layer.

    Example:
        >>> SAGE(4, 8, 2, reduce="pool").layers[1].pool_weight.shape
        torch.Size([8, 8])
    """

    layer = SAGEConv
    usual_reduce = "mean"
    reducers = (*REDUCERS, *_FURTHER)
