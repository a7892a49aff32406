"""Programs over edges, one a way of broadcasting, computing and reducing; all on the same inputs.

Inputs: ``src:h`` (F,), ``dst:h`` (F,), ``src:k`` (2, C), ``dst:k`` (2, C), ``edge:e`` (1,), ``edge:f`` (3,), weights
``w`` (2 F, 4), ``v`` (3, 4), ``b`` (F,).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from graphweft.ir.elementwise import FUNCTIONS
from graphweft.ir.ops import Op
from graphweft.ir.program import Builder, Value
from graphweft.ir.residency import Residency

F, C = 21, 9
WIDTHS = {
    "src:h": (Residency.SRC, (F,)),
    "dst:h": (Residency.DST, (F,)),
    "src:k": (Residency.SRC, (2, C)),
    "dst:k": (Residency.DST, (2, C)),
    "edge:e": (Residency.EDGE, (1,)),
    "edge:f": (Residency.EDGE, (3,)),
    "w": (Residency.SHARED, (2 * F, 4)),
    "v": (Residency.SHARED, (3, 4)),
    "b": (Residency.SHARED, (F,)),
}
Region = Callable[["Edges"], dict[str, Value]]
REGIONS: dict[str, Region] = {}


class Edges:
    """Writes a region; what is read becomes an input."""

    def __init__(self, builder: Builder, inputs: dict[str, Value]) -> None:
        self.b, self.inputs, self.g = builder, inputs, inputs["graph"]

    def __getitem__(self, name: str) -> Value:
        return self.inputs[name]

    def src(self, name: str = "src:h") -> Value:
        return self.b.add(Op.BROADCAST_SRC, self.g, self.inputs[name])

    def dst(self, x: Value | str = "dst:h") -> Value:
        return self.b.add(Op.BROADCAST_DST, self.g, self.inputs[x] if isinstance(x, str) else x)

    def f(self, fn: str, *xs: Value | float, **attrs: float) -> Value:
        dtype = next(x.tensor.dtype for x in reversed(xs) if isinstance(x, Value))
        given = [x if isinstance(x, Value) else self.b.add(Op.CONST, value=x, dtype=dtype) for x in xs]
        return self.b.add(Op.EWISE, *given, fn=fn, **attrs)

    def reduce(self, x: Value, kind: str = "sum") -> Value:
        return self.b.add(Op.REDUCE, self.g, x, kind=kind)

    def einsum(self, spec: str, *xs: Value) -> Value:
        return self.b.add(Op.EINSUM, *xs, spec=spec)

    def total(self, x: Value, *axes: int) -> Value:
        return self.b.add(Op.SUM_DIMS, x, axes=axes)

    def shaped(self, x: Value, *dims: int) -> Value:
        return self.b.add(Op.RESHAPE, x, dims=dims)

    def softmax(self, x: Value, log: bool = False) -> Value:
        return self.b.add(Op.EDGE_SOFTMAX, self.g, x, log=log)


def region(function: Region) -> Region:
    REGIONS[function.__name__] = function
    return function


@region
def product_of_ends(e: Edges) -> dict[str, Value]:
    return {"out": e.reduce(e.f("mul", e.f("tanh", e.f("mul", e.src(), e.dst())), e.src()))}


@region
def mean_of_gated_difference(e: Edges) -> dict[str, Value]:
    gate = e.f("sigmoid", e.f("sub", e.src(), e.dst()))
    return {"out": e.reduce(e.f("mul", gate, e["edge:e"]), "mean")}


@region
def largest_and_smallest(e: Edges) -> dict[str, Value]:
    m = e.f("sin", e.f("add", e.src(), e.f("mul", e.dst(), e["edge:e"])))
    return {"out": e.reduce(m, "max"), "least": e.reduce(m, "min")}


@region
def shares_of_both_degrees(e: Edges) -> dict[str, Value]:
    degree = e.b.add(Op.POW, e.b.add(Op.IN_DEGREE, e.g, dtype=e["src:h"].tensor.dtype), exponent=-0.5)
    m = e.f("mul", e.f("tanh", e.f("mul", e.src(), e.dst())), e.dst(degree))
    return {"out": e.reduce(e.f("mul", m, e["edge:e"]), "mean")}


@region
def dot_as_gate(e: Edges) -> dict[str, Value]:
    score = e.b.add(Op.SDDMM, e.g, e["dst:h"], e["src:h"])
    m = e.f("mul", e.src(), e.shaped(e.f("tanh", score), 1))
    return {"out": e.reduce(m)}


@region
def attention_by_distance(e: Edges) -> dict[str, Value]:
    distance = e.f("sqrt0", e.total(e.f("square", e.f("sub", e.src(), e.dst())), 0))
    weight = e.softmax(e.f("neg", distance))
    return {"out": e.reduce(e.f("mul", e.src(), e.shaped(weight, 1)))}


@region
def linear_of_joined_ends(e: Edges) -> dict[str, Value]:
    joined = e.b.add(Op.CAT, e.f("tanh", e.src()), e.f("mul", e.dst(), e.src()), axis=0)
    hidden = e.einsum("na,ab->nb", joined, e["w"])
    return {"out": e.reduce(e.f("mul", hidden, e.f("sigmoid", hidden)))}


@region
def heads_of_products(e: Edges) -> dict[str, Value]:
    left, right = e.src("src:k"), e.dst("dst:k")
    weight = e.softmax(e.f("elu", e.einsum("nhc,nhc->nh", left, e.f("tanh", right)), alpha=1.0))
    return {"out": e.reduce(e.einsum("nh,nhc->nhc", weight, left))}


@region
def matrix_per_edge(e: Edges) -> dict[str, Value]:
    matrix = e.shaped(e.f("relu", e.einsum("na,ab->nb", e["edge:f"], e["v"])), 2, 2)
    few = e.b.add(Op.SLICE, e.src("src:k"), axis=1, start=1, stop=8, step=3)
    return {"out": e.reduce(e.einsum("nab,nac->nbc", matrix, few))}


@region
def normalised_layer(e: Edges) -> dict[str, Value]:
    x = e.f("add", e.src(), e.dst())
    centred = e.f("sub", x, e.shaped(e.f("div", e.total(x, 0), float(F)), 1))
    variance = e.f("div", e.total(e.f("square", centred), 0), float(F))
    scale = e.shaped(e.f("rsqrt", e.f("add", variance, 1e-3)), 1)
    return {"out": e.reduce(e.f("add", e.f("mul", centred, scale), e["b"]))}


@region
def pieces_put_together(e: Edges) -> dict[str, Value]:
    turned = e.b.add(Op.PERMUTE, e.f("mul", e.src("src:k"), e.dst("dst:k")), order=(1, 0))
    row = e.shaped(turned, 2 * C)
    part = e.b.add(Op.SLICE, e.f("mul", e.src(), e.dst()), axis=0, start=2, stop=20, step=1)
    spread = e.b.add(Op.UNSLICE, e["edge:f"], axis=0, start=1, stop=16, step=6, size=2 * C)
    return {"out": e.reduce(e.b.add(Op.CAT, e.f("add", row, spread), part, axis=0))}


@region
def log_of_softmax(e: Edges) -> dict[str, Value]:
    chance = e.softmax(e.f("mul", e.src(), e.dst()), log=True)
    return {"out": e.reduce(e.f("mul", e.f("exp", chance), chance))}


@region
def choice(e: Edges) -> dict[str, Value]:
    near = e.f("logical_and", e.f("gt", e.src(), e.dst()), e.f("logical_not", e.f("lt", e.src(), 0.5)))
    return {"out": e.reduce(e.f("where", near, e.src(), e.f("mul", e.dst(), e["edge:e"])))}


@region
def from_destinations_to_sources(e: Edges) -> dict[str, Value]:
    turned = e.b.add(Op.REVERSE, e.g)
    m = e.f("mul", e.src(), e.f("exp", e.f("neg", e.f("square", e.dst()))))
    return {"out": e.b.add(Op.REDUCE, turned, m, kind="sum"), "there": e.reduce(m)}


@region
def number_per_edge(e: Edges) -> dict[str, Value]:
    return {"out": e.f("log1p", e.total(e.f("abs", e.f("mul", e.src(), e.dst())), 0))}


@region
def sum_over_all_edges(e: Edges) -> dict[str, Value]:
    m = e.f("tanh", e.f("mul", e.src(), e.dst()))
    return {"out": e.einsum("na,nb->ab", m, e["edge:f"]), "plain": e.b.add(Op.COL_SUM, m)}


@region
def two_levels(e: Edges) -> dict[str, Value]:
    first = e.reduce(e.f("mul", e.src(), e.dst()), "mean")
    deviation = e.f("square", e.f("sub", e.src(), e.dst(first)))
    return {"out": e.f("add", e.reduce(deviation), first)}


@region
def operations_of_layers(e: Edges) -> dict[str, Value]:
    """The specific operations that layers write, on rows of edges."""
    b = e.b
    x = b.add(Op.MUL, e.src(), b.add(Op.DETACH, e.f("sub", e.dst(), e.src())))
    x = b.add(Op.BIAS, b.add(Op.COL_SCALE, b.add(Op.SCALE, x, factor=0.5), e["b"]), e["b"])
    x = b.add(Op.RELU, b.add(Op.ADD, x, b.add(Op.BROADCAST_SHARED, e.g, e["b"], to="edge")))
    number = b.add(Op.ROW_SUM, b.add(Op.ADD_CONST, e.f("tanh", x), constant=0.25))
    x = b.add(Op.ROW_ADD, b.add(Op.ROW_SCALE, x, number), number)
    x = b.add(Op.ADD, x, b.add(Op.FILL_COLS, number, width=F))
    few = b.add(Op.MATMUL, b.add(Op.CAT, x, e.src(), axis=0), e["w"])
    scalar = e.total(e["v"], 0, 1)
    return {"out": e.reduce(b.add(Op.MUL_SCALAR, few, scalar))}


def all_functions(e: Edges) -> dict[str, Value]:
    """Every function of elements whose gradient is defined everywhere, one output each."""
    positive = e.f("add", e.f("square", e.src()), 0.5)
    outputs = {}
    for fn, function in FUNCTIONS.items():
        attrs = {"alpha": 0.3} if fn in ("leaky_relu", "elu") else {}
        xs = [e.f("mul", e.src(), e.dst()), e.dst(), e.src()][: function.arity]
        if fn in ("log", "sqrt", "sqrt0", "rsqrt", "reciprocal", "pow", "div"):
            xs = [xs[0], positive] if function.arity == 2 else [positive]
            xs = [positive, xs[1]] if fn == "pow" else xs
        if fn == "log1p":
            xs = [e.f("square", xs[0])]
        if fn.startswith("logical"):
            xs = [e.f("gt", x, 0.1) for x in xs]
        if fn == "where":
            xs[0] = e.f("gt", xs[0], 0.0)
        value = e.f(fn, *xs, **attrs)
        if value.tensor.dtype == torch.bool:
            value = e.f("where", value, e.src(), e.dst())
        outputs["out" if not outputs else fn] = e.reduce(value)
    return outputs


def attends(score: str) -> Region:
    """Attention of two heads, by name of its score."""

    def written(e: Edges) -> dict[str, Value]:
        value, far, near = e["src:k"], e["src:k"], e["dst:k"]
        if score == "add":
            far, near = e.total(e["src:k"], 1), e.total(e["dst:k"], 1)
        elif score == "add2":
            part = e.b.add(Op.SLICE, e["b"], axis=0, start=0, stop=18, step=1)
            far, near = e["dst:k"], e.shaped(part, 2, 9)
        fixed = {"score": score, "alpha": 0.2, "scale": 0.3, "p": 0.0, "stream": 0}
        return {"out": e.b.add(Op.ATTENTION, e.g, value, far, near, **fixed)}

    return written
