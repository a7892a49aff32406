"""What a layer writes its computation with: the builder, the graph, and the module's parameters as values.

Comes in: IR inputs. Goes out: IR values, through methods named as the field names them. Called by the ``define``
methods of layers and models.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from graphweft._errors import IRError
from graphweft.ir.ops import Op
from graphweft.ir.program import Builder, Value

DST = "rows of destinations"  # name of a field; no parameter can be called so
SLOPES = {"elu": 1.0, "leaky_relu": 0.2}  # slope or scale of the negative side
ACTIVATIONS = ("relu", "elu", "leaky_relu", "gelu", "silu", "tanh", "sigmoid", "none")


class Frame:
    """One forward program being written.

    Attributes:
        graph: The graph.
        x: The input features.
        training: Whether dropout acts and batch norm uses the batch's own statistics.
        outputs: Outputs beside the result: values to be stored in buffers after the call.
        looped: Whether the graph has the self-loops that layers add.
        dst: The input features of the destinations, where a call gives rows for either set of nodes.
        attention: The weights of edges by which the last layer summed, (heads,); None before one did.
    """

    def __init__(self, builder: Builder, inputs: dict[str, Value], names: dict[int, str], training: bool) -> None:
        self._builder, self._inputs, self._names = builder, inputs, names
        self.graph, self.x, self.training = inputs["graph"], inputs["x"], training
        self.dst = inputs.get(DST)
        self.outputs: dict[str, Value] = {}
        self.attention: Value | None = None
        self.looped = False
        self._streams = 0

    def add(self, op: Op, *operands: Value, **attrs: Any) -> Value:
        """Any operation of the IR."""
        return self._builder.add(op, *operands, **attrs)

    def param(self, tensor: Tensor) -> Value:
        """The value of a parameter or buffer of the module being compiled."""
        name = self._names.get(id(tensor))
        if name is None:
            raise IRError("define: expected a parameter or buffer of this module, got another tensor")
        return self._inputs[name]

    def matmul(self, x: Value, weight: Tensor) -> Value:
        """``x @ weight``; weight is (in, out)."""
        return self.add(Op.MATMUL, x, self.param(weight))

    def bias(self, x: Value, bias: Tensor | None) -> Value:
        """``x + bias``, or x when there is none."""
        return x if bias is None else self.add(Op.BIAS, x, self.param(bias))

    def aggregate(self, x: Value, kind: str, graph: Value | None = None, weight: Value | None = None) -> Value:
        """Sum, mean, max or min over in-edges of the sources' rows, each times the ``weight`` of its edge.

        Shape: x source rows (columns,), weight edge rows () -> destination rows (columns,).
        """
        over = self.graph if graph is None else graph
        rows = self.add(Op.BROADCAST_SRC, over, x)
        return self.add(Op.REDUCE, over, rows if weight is None else self.add(Op.ROW_SCALE, rows, weight), kind=kind)

    def of_edges(self, name: str) -> Value | None:
        """The input ``name`` of :mod:`graphweft.nn.edges`; None where the call has none."""
        return self._inputs.get(name)

    @property
    def on_block(self) -> bool:
        """Whether the graph is a sampled block: its destinations are the first of its sources."""
        return not self.graph.struct.square

    def own(self, x: Value) -> Value:
        """The rows of the destinations themselves."""
        if self.dst is not None:
            if x is not self.x:
                raise IRError("define: expected the input features, got other rows of the sources")
            return self.dst
        return self.add(Op.OWN_ROWS, self.graph, x) if self.on_block else x

    def own_product(self, x: Value, weight: Tensor) -> Value:
        """``own(x) @ weight``, for sparse rows too."""
        if x.tensor.sparse and self.dst is None:
            return self.own(self.matmul(x, weight))
        return self.matmul(self.own(x), weight)

    def one_loop(self) -> Value:
        """The graph with exactly one self-loop at every node."""
        return self.add(Op.ONE_LOOP, self.graph)

    def degree_power(self, graph: Value, exponent: float, like: Value) -> Value:
        """``in_degree ** exponent`` per destination, 0 where the degree is 0 and the exponent negative."""
        degree = self.add(Op.IN_DEGREE, graph, dtype=like.tensor.dtype)
        return self.add(Op.POW, degree, exponent=exponent)

    def relu(self, x: Value) -> Value:
        """``max(x, 0)``."""
        return self.add(Op.RELU, x)

    def apply(self, fn: str, *operands: Value, **attrs: Any) -> Value:
        """An elementwise function of the IR; trailing dimensions broadcast from the right."""
        return self.add(Op.EWISE, *operands, fn=fn, **attrs)

    def activation(self, name: str, x: Value) -> Value:
        """One of ``ACTIVATIONS``."""
        if name in SLOPES:
            return self.apply(name, x, alpha=SLOPES[name])
        if name in ("tanh", "sigmoid"):
            return self.apply(name, x)
        if name == "silu":
            return self.add(Op.MUL, x, self.apply("sigmoid", x))
        if name == "gelu":
            return self.gelu(x)
        return self.relu(x) if name == "relu" else x

    def gelu(self, x: Value) -> Value:
        """``x`` times the normal distribution function at ``x``."""
        half = self.add(Op.SCALE, x, factor=0.5)
        return self.add(Op.ADD, half, self.add(Op.MUL, half, self.apply("erf", self.add(Op.SCALE, x, factor=0.5**0.5))))

    def reshape(self, x: Value, *dims: int) -> Value:
        """The trailing dimensions anew, in row-major order."""
        return self.add(Op.RESHAPE, x, dims=dims)

    def attend(self, graph: Value, score: Value, x: Value, p: float, training: bool | None = None) -> Value:
        """Sum over in-edges of the sources' rows, weighted by the softmax of ``score``, of which ``p`` is dropped.

        Shape: score edge rows (heads,), x source rows (heads, channels) -> destination rows (heads, channels).
        """
        self.attention = self.dropout(self.add(Op.EDGE_SOFTMAX, graph, score), p, training)
        return self.weigh(graph, self.attention, x)

    def weigh(self, graph: Value, weights: Value, x: Value, kind: str = "sum") -> Value:
        """Sum or mean over in-edges of the sources' rows times the weights of the edges.

        Shape: weights edge rows (heads,), x source rows (heads, channels) -> destination rows (heads, channels).
        """
        per_row = self.reshape(weights, *weights.tensor.dims, 1)
        return self.add(Op.REDUCE, graph, self.apply("mul", per_row, self.add(Op.BROADCAST_SRC, graph, x)), kind=kind)

    def dropout(self, x: Value, p: float, training: bool | None = None) -> Value:
        """Dropout in training, x otherwise; each call draws from a stream of its own.

        ``training``: the mode of the layer that drops; None for that of the module being compiled.
        """
        self._streams += 1
        if not (self.training if training is None else training) or p == 0.0:
            return x
        return self.add(Op.DROPOUT, x, self._inputs["seed"], p=p, stream=self._streams)

    def norm(self, x: Value, norm: nn.Module | None) -> Value:
        """As ``norm``, a batch or layer norm; x where there is none."""
        if norm is None:
            return x
        return self.batch_norm(x, norm) if isinstance(norm, nn.BatchNorm1d) else self.layer_norm(x, norm)  # type: ignore[arg-type]

    def batch_norm(self, x: Value, norm: nn.BatchNorm1d) -> Value:
        """As ``norm``; the batch's means and variances come out for its running statistics."""
        name = self._names[id(norm)]
        vectors = [] if norm.weight is None else [self.param(norm.weight), self.param(norm.bias)]
        if norm.training or norm.running_mean is None:
            statistics = self.add(Op.BATCH_STATS, x)
            self.outputs[f"{name}.stats"] = self.add(Op.DETACH, statistics)
            return self.add(Op.BATCH_NORM, x, statistics, *vectors, eps=norm.eps)
        assert norm.running_var is not None  # as there is a mean
        given = (self.param(norm.running_mean), self.param(norm.running_var))
        return self.add(Op.NORMALISE, x, *given, *vectors, eps=norm.eps)

    def layer_norm(self, x: Value, norm: nn.LayerNorm) -> Value:
        """As ``norm``, over the features of each row."""
        width = x.tensor.dims[0]
        mean = self.add(Op.SCALE, self.add(Op.ROW_SUM, x), factor=-1.0 / width)
        centred = self.add(Op.ROW_ADD, x, mean)
        variance = self.add(Op.SCALE, self.add(Op.ROW_SUM, self.add(Op.MUL, centred, centred)), factor=1.0 / width)
        scaled = self.add(Op.ROW_SCALE, centred, self.add(Op.POW, variance, exponent=-0.5, eps=norm.eps))
        if norm.weight is None:
            return scaled
        return self.bias(self.add(Op.COL_SCALE, scaled, self.param(norm.weight)), norm.bias)
