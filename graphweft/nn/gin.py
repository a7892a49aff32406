"""Graph isomorphism network (Xu, Hu, Leskovec, Jegelka, ICLR 2019).

``h' = MLP((1 + eps) h + reduce(h_j over in-neighbours j))`` with a two-layer perceptron and reduce sum, mean or max.
For graphs as samples the paper normalises within the perceptron, too (``mlp_norm="batch"``).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphweft._errors import ConfigError
from graphweft._torch_private import transforms_are_on
from graphweft.graph.graph import Graph
from graphweft.ir.ops import Op
from graphweft.ir.program import Value
from graphweft.nn.edges import WEIGHT, EdgeInputs
from graphweft.nn.frame import Frame
from graphweft.nn.module import CompiledModule, as_widths, check_model, glorot, make_norm, reducer
from graphweft.nn.stack import Stack
from graphweft.storage.feature import Features


class GINConv(CompiledModule):
    """One GIN layer: ``relu(z W1 + b1) W2 + b2`` with ``z = (1 + eps) h + sum of neighbours``.

    Shape: (nodes, in_features) -> (nodes, out_features).

    Args:
        in_features: Width of the input rows; for features (x_src, x_dst) of two sets of nodes a pair of equal widths.
            Or a module that replaces the perceptron, as in PyTorch Geometric.
        out_features: Width of the output rows and of the perceptron's hidden layer; not with a module.
        bias: Adds learned vectors in the perceptron.
        reduce: ``"sum"``, ``"mean"`` or ``"max"`` over the in-neighbours.
        aggr: Another name for ``reduce``, as in PyTorch Geometric; ``"add"`` is ``"sum"``.
        eps: Initial weight of the node itself.
        train_eps: Whether eps is learned.
        mlp_norm: Norm between the first linear map of the perceptron and its ReLU: ``"batch"``, ``"layer"`` or None.

    Example:
        >>> import torch
        >>> from graphweft.graph.graph import Graph
        >>> GINConv(4, 2)(Graph([0, 1], [1, 2]), torch.ones(3, 4)).shape
        torch.Size([3, 2])
        >>> mlp = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> GINConv(mlp, train_eps=True)(Graph([0, 1], [1, 2]), torch.ones(3, 4)).shape
        torch.Size([3, 2])
    """

    takes_edge_weight = True
    takes_pairs = True
    eps: torch.Tensor

    def __init__(
        self,
        in_features: int | tuple[int, int] | nn.Module,
        out_features: int | None = None,
        bias: bool = True,
        reduce: str = "sum",
        eps: float = 0.0,
        train_eps: bool = False,
        mlp_norm: str | None = None,
        *,
        aggr: str | None = None,
    ) -> None:
        reduce = reducer("GINConv", reduce, aggr, "sum")
        mlp = in_features if isinstance(in_features, nn.Module) else None
        if mlp is not None and (out_features is not None or mlp_norm is not None):
            raise ConfigError("GINConv: out_features and mlp_norm cannot be combined with a module for the perceptron")
        width, own_width = as_widths(_width(mlp) if isinstance(in_features, nn.Module) else in_features)
        if width != own_width:
            raise ConfigError(f"GINConv: expected in_features of one width for both sets of nodes, got {in_features}")
        sizes = {"in_features": width} if mlp is not None else {"in_features": width, "out_features": out_features}
        check_model("GINConv", sizes, 0.0, reduce)
        super().__init__(width)
        self.mlp, self.first_eps = mlp, float(eps)
        if out_features is not None:
            self.weight1 = glorot(width, out_features)
            self.bias1 = nn.Parameter(torch.zeros(out_features)) if bias else None
            self.weight2 = glorot(out_features, out_features)
            self.bias2 = nn.Parameter(torch.zeros(out_features)) if bias else None
            self.norm = make_norm(mlp_norm, out_features)
        self.reduce = reduce
        self.takes_sparse = reduce != "max" and mlp is None  # else rows are combined as they are
        if train_eps:
            self.eps = nn.Parameter(torch.tensor(float(eps)))
        else:
            self.register_buffer("eps", torch.tensor(float(eps)))

    def define(self, frame: Frame, x: Value) -> Value:
        """Aggregation is linear but for max, so the first product is written on the nodes and may move."""
        weight, fixed = frame.of_edges(WEIGHT), self.read_numbers()
        if self.mlp is not None:  # which is called on this sum
            return frame.add(Op.ADD, frame.aggregate(x, self.reduce, weight=weight), self._own(frame, frame.own(x)))
        if self.reduce == "max":
            total = frame.add(Op.ADD, frame.aggregate(x, "max", weight=weight), self._own(frame, frame.own(x)))
            h = frame.matmul(total, self.weight1)
        else:
            product = frame.matmul(x, self.weight1)
            if fixed and self.reduce == "sum" and weight is None and not frame.on_block and frame.dst is None:
                h = frame.add(Op.SPMM, frame.graph, product, self_coef=1.0 + fixed[0])
            else:
                own = frame.own(product) if frame.dst is None else frame.matmul(frame.dst, self.weight1)
                h = frame.add(Op.ADD, frame.aggregate(product, self.reduce, weight=weight), self._own(frame, own))
        h = frame.relu(frame.norm(frame.bias(h, self.bias1), self.norm))
        return frame.bias(frame.matmul(h, self.weight2), self.bias2)

    def read_numbers(self) -> tuple[float, ...]:
        """The number eps where it is not learned: its value is part of the program."""
        learned = isinstance(self.eps, nn.Parameter) or self.eps.requires_grad
        return () if learned or self.eps.is_meta or transforms_are_on() else (float(self.eps),)

    def reset_parameters(self) -> None:
        """As of every module; one in the perceptron's place draws its own anew, and eps is what it was at first."""
        if self.mlp is None:
            super().reset_parameters()
            return
        for module in self.mlp.modules():
            reset = getattr(module, "reset_parameters", None)
            if reset is not None:
                reset()
        with torch.no_grad():
            self.eps.fill_(self.first_eps)

    def runs_apart(self) -> bool:
        """Also with a module in the perceptron's place."""
        return self.mlp is not None or super().runs_apart()

    def apart(self, graph: Graph, x: Features | None, rows: Tensor | None, edges: EdgeInputs) -> Tensor:
        """The sum, compiled, then the module."""
        if self.mlp is None:
            return super().apart(graph, x, rows, edges)
        made: Tensor = self.mlp(self._function(self.arguments(graph, x, rows, edges))["out"])
        return made

    def _own(self, frame: Frame, own: Value) -> Value:
        """The node's own share of its rows."""
        if not frame.on_block and frame.dst is None:  # there a product with a number reads its rows by index
            for eps in self.read_numbers():
                return own if eps == 0.0 else frame.add(Op.SCALE, own, factor=1.0 + eps)
        return frame.add(Op.MUL_SCALAR, own, frame.add(Op.ADD_CONST, frame.param(self.eps), constant=1.0))


def _width(mlp: nn.Module | None) -> int:
    """Columns that a module takes: those of its first layer that tells them. Raises: ConfigError for none."""
    for module in () if mlp is None else mlp.modules():
        for name in ("in_features", "in_channels", "num_features"):
            if isinstance(width := getattr(module, name, None), int):
                return width
    raise ConfigError("GINConv: expected a module with a layer that has in_features, got none")


class GIN(Stack):
    """A stack of :class:`GINConv`; arguments as :class:`graphweft.nn.stack.Stack`; ``eps``, ``train_eps``,
    ``mlp_norm`` as the layer.

    Example:
        >>> GIN(4, 8, 2, train_eps=True).layers[0].eps.requires_grad
        True
    """

    layer = GINConv
