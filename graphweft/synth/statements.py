"""One C++ statement for a kernel call: the table of the kernels that programs have.

Comes in: a :class:`KernelCall` and a :class:`Scene`, which knows the names of its operands. Goes out: lines of C++ over
``csrc/program/kernels.h``. A call without a printer is refused by name. Called by ``steps.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from graphweft._errors import ConfigError
from graphweft.codegen.loops import RowNest, row_nest
from graphweft.ir.head_product import head_product, vector_product
from graphweft.ir.program import Value
from graphweft.runtime.attention import Attention, Score
from graphweft.runtime.kernel_call import KernelCall

_STAGES = ("row_scale", "bias", "addend", "mask", "post_scale")
_LATER = {"edge_nest": "generated walks over edges"}


class Scene(Protocol):
    """What a printer asks for while a call is printed; asking for an operand counts as reading it in this step.

    Attributes:
        implicit: Whether gradients by sparse features read them by row.
    """

    implicit: bool

    def matrix(self, value: Value) -> str:
        """The matrix of an operand."""

    def numbers(self, value: Value) -> str:
        """The address of an operand's first number."""

    def edges(self, graph: Value, form: str) -> str:
        """A compressed form: "in_edges", "out_edges", each also with "_in_order", or "out_edges_side_by_side"."""

    def read_often(self, graph: Value, form: str) -> str:
        """The same, by stretches of columns as well where the order pays: sums read them many times."""

    def reads_winners(self, graph: Value) -> bool:
        """Whether gradients of extrema read no edges, only where each value came from."""

    def ids(self, value: Value) -> str:
        """A list of row ids."""

    def made(self, call: KernelCall, role: str, over: Value | None = None) -> str:
        """The matrix of a result, which may take the place of ``over`` where that is not read again."""

    def room(self, like: Value, cols: int) -> str:
        """The matrix of scratch with ``cols`` numbers for every row of a value."""

    def over_heads(self, count: int, channels: int, shared: bool = False) -> None:
        """Has kernels compiled for so many heads of so many channels, which they may share."""

    def slopes(self, graph: Value, kind: Attention, width: int) -> str:
        """The address of room for the gradients of all scores; empty where a backward pass computes them twice."""

    def panel(self, graph: Value, x: Value, extrema: bool = False) -> str:
        """Room for a copy of part of the rows that a product over edges reads; empty where it wants none."""

    def weighted(self, graph: Value, value: Value) -> tuple[str, str]:
        """Edges by destination, and the address of their weights by edge number; empty where edges bring them."""

    def features(self, value: Value, by_column: bool, width: int) -> tuple[list[str], str, str, str]:
        """Of sparse features: statements before the product, their structure, their values, and room as above."""

    def seed(self, value: Value) -> str:
        """The seed of this epoch's draws."""

    def elementwise(self, nest: RowNest) -> str:
        """The name of a function of elements."""

    def region(self, call: KernelCall) -> tuple[Value, ...]:
        """The values that a call over elements computes, those that are never stored first."""


Printer = Callable[[KernelCall, Scene], list[str]]


def print_call(call: KernelCall, scene: Scene) -> list[str]:
    """The statements of one call. Raises: ConfigError naming a part that programs do not have."""
    printer = _PRINTERS.get(call.kernel)
    if printer is None:
        what = _LATER.get(call.kernel, "this kernel")
        raise _refused(call, f"{what} comes later")
    return printer(call, scene)


def _refused(call: KernelCall, why: str) -> ConfigError:
    return ConfigError(f"model: expected parts that a program can hold, got {call.kernel} ({call.label}): {why}")


def _value(call: KernelCall, role: str) -> Value:
    return next(slot.value for slot in call.reads if slot.role == role)


def _only(call: KernelCall, *roles: str) -> None:
    """Refuses operands that no statement has a place for."""
    for slot in call.reads:
        if slot.role not in (*roles, *_STAGES):
            raise _refused(call, f"its operand {slot.role} comes later")
    if call.get("short_addend"):
        raise _refused(call, "rows of a sampled block come later")


def _epilogue(call: KernelCall, scene: Scene) -> str:
    """``Epilogue().bias(...).relu()``; empty where nothing is done to a row."""
    given = {slot.role: slot.value for slot in call.reads}
    stages = []
    for role in ("row_scale", "bias", "addend", "relu", "mask", "col_sum", "post_scale"):
        if role == "relu" and call.get("relu"):
            stages.append("relu()")
        elif role == "col_sum" and call.writing("col_sum") is not None:
            stages.append(f"col_sum({scene.made(call, 'col_sum')}.at)")
        elif role in ("addend", "mask") and role in given:
            stages.append(f"{role}({scene.matrix(given[role])})")
        elif role in given and role in _STAGES:
            stages.append(f"{role}({scene.numbers(given[role])})")
    return f"Epilogue().{'.'.join(stages)}" if stages else ""


def _call(name: str, *arguments: str) -> str:
    """A statement without the arguments at the end that are as usual."""
    return f"{name}({', '.join(a for a in arguments if a)});"


def _spmm(call: KernelCall, scene: Scene) -> list[str]:
    _only(call, "graph", "x", "src_scale", "weight", "self_factor")
    graph, x = _value(call, "graph"), _value(call, "x")
    source, out = scene.matrix(x), scene.made(call, "out")
    then, panel = _epilogue(call, scene), scene.panel(graph, x)
    if call.reading("weight") is not None:
        edges, weights = scene.weighted(graph, _value(call, "weight"))
    elif call.reading("src_scale") is not None and not panel:  # looked up for each edge
        edges, weights = scene.edges(graph, "in_edges"), ""
    else:
        edges, weights = scene.read_often(graph, "in_edges"), ""
    scale = scene.numbers(_value(call, "src_scale")) if call.reading("src_scale") is not None else ""
    by = f", {scene.numbers(_value(call, 'self_factor'))}" if call.reading("self_factor") is not None else ""
    stages = [f"self({float(call.get('self_coef'))!r}{by})"] if call.get("self_coef") else []
    stages += [f"src_scale({scale})"] if scale else []
    stages += [f"weights({weights})"] if weights else []
    stages += [f"panel({panel})"] if panel else []
    reading = f"Reading().{'.'.join(stages)}" if stages else ""
    then = then or ("Epilogue()" if reading else "")
    return [_call("spmm", edges, source, out, then, reading)]


def _spmm_max(call: KernelCall, scene: Scene) -> list[str]:
    graph, x = _value(call, "graph"), _value(call, "x")
    edges, source = scene.read_often(graph, "in_edges_in_order"), scene.matrix(x)
    arg = "nullptr" if call.writing("arg") is None else scene.made(call, "arg")
    kind = "Extremum::minimum" if call.get("minimum") else "Extremum::maximum"
    return [_call("spmm_max", edges, source, scene.made(call, "out"), arg, kind, scene.panel(graph, x, extrema=True))]


def _spmm_max_grad(call: KernelCall, scene: Scene) -> list[str]:
    graph, arg, dy = (_value(call, f"x{i}") for i in range(3))
    edges = "" if scene.reads_winners(graph) else scene.edges(graph, "out_edges_side_by_side")
    return [_call("spmm_max_grad", edges, scene.matrix(arg), scene.matrix(dy), scene.made(call, "out"))]


def _matmul(call: KernelCall, scene: Scene) -> list[str]:
    _only(call, "x", "weight")
    x, weight, form = scene.matrix(_value(call, "x")), scene.matrix(_value(call, "weight")), _form(call, "transposed")
    return [_call("matmul", x, weight, form, scene.made(call, "out"), _epilogue(call, scene))]


def _form(call: KernelCall, name: str) -> str:
    return "Weight::transposed" if call.get(name) else "Weight::as_stored"


def _sparse_matmul(call: KernelCall, scene: Scene) -> list[str]:
    _only(call, "x", "weight")
    if call.get("transposed"):
        raise _refused(call, "a transposed operand comes later")
    weight = _value(call, "weight")
    width = weight.tensor.dims[-1]
    is_implicit = scene.implicit and bool(call.get("by_column"))
    by_column = bool(call.get("by_column")) and not is_implicit
    before, structure, values, panel = scene.features(_value(call, "x"), by_column, width)
    right, out, then = scene.matrix(weight), scene.made(call, "out"), _epilogue(call, scene)
    then = then or ("Epilogue()" if panel else "")
    if is_implicit:
        if then:
            raise _refused(call, "gradients that are worked on further come later")
        return [*before, _call("implicit_transpose", structure, values, right, out)]
    return [*before, _call("sparse_matmul", structure, values, right, out, then, panel)]


def _contract(call: KernelCall, scene: Scene) -> list[str]:
    _only(call, "x", "weight")
    sums = f"{scene.made(call, 'col_sum')}.at" if call.writing("col_sum") is not None else ""
    x, weight = scene.matrix(_value(call, "x")), scene.matrix(_value(call, "weight"))
    return [_call("contract", x, weight, scene.made(call, "out"), sums)]


def _matmul_terms(call: KernelCall, scene: Scene) -> list[str]:
    count = sum(slot.role.startswith("weight") for slot in call.reads)
    _only(call, *(f"{role}{i}" for role in ("x", "weight") for i in range(count)))
    terms = []
    for i in range(count):
        if call.get(f"first{i}") != "rows":
            raise _refused(call, "products of gathered rows come later")
        x, weight = scene.matrix(_value(call, f"x{i}")), scene.matrix(_value(call, f"weight{i}"))
        terms.append(f"Term{{{x}, {weight}, {_form(call, f'transposed{i}')}}}")
    terms[0], terms[-1] = f"{{{terms[0]}", f"{terms[-1]}}}"
    return [_call("matmul_terms", *terms, scene.made(call, "out"), _epilogue(call, scene))]


def _rows(call: KernelCall, scene: Scene) -> list[str]:
    _only(call, "x")
    x = _value(call, "x")
    return [_call("rows", scene.matrix(x), scene.made(call, "out", x), _epilogue(call, scene) or "Epilogue()")]


def _col_sum(call: KernelCall, scene: Scene) -> list[str]:
    if call.value.get("mean"):
        raise _refused(call, "normalisation over the batch comes later")
    return [_call("col_sum", scene.matrix(_value(call, "x0")), f"{scene.made(call, 'out')}.at")]


def _dot(call: KernelCall, scene: Scene) -> list[str]:
    x, y = scene.matrix(_value(call, "x0")), scene.matrix(_value(call, "x1"))
    return [_call("dot", x, y, f"{scene.made(call, 'out')}.at")]


def _dropout(call: KernelCall, scene: Scene) -> list[str]:
    if call.value.inputs[0].tensor.sparse:
        return []  # the product that reads them drops their entries on the way
    x, seed = scene.matrix(_value(call, "x0")), scene.seed(_value(call, "x1"))
    p, stream = call.value["p"], call.value["stream"]
    return [_call("dropout", x, repr(float(p)), seed, str(stream), scene.made(call, "out"))]


def _take_rows(call: KernelCall, scene: Scene) -> list[str]:
    x, ids = scene.matrix(_value(call, "x0")), scene.ids(_value(call, "x1"))
    return [_call("take_rows", x, ids, scene.made(call, "out"))]


def _scatter_rows(call: KernelCall, scene: Scene) -> list[str]:
    x, ids = scene.matrix(_value(call, "x0")), scene.ids(_value(call, "x1"))
    return [_call("scatter_rows", x, ids, scene.made(call, "out"))]


def _scale(call: KernelCall, scene: Scene) -> list[str]:
    x = scene.matrix(_value(call, "x0"))
    return [_call("scale", x, repr(float(call.value["factor"])), scene.made(call, "out"))]


def _mul_scalar(call: KernelCall, scene: Scene) -> list[str]:
    x, factor = scene.matrix(_value(call, "x0")), scene.numbers(_value(call, "x1"))
    return [_call("scale", x, factor, scene.made(call, "out"))]


def _add_const(call: KernelCall, scene: Scene) -> list[str]:
    x = scene.matrix(_value(call, "x0"))
    return [_call("add_constant", x, f"{float(call.value['constant'])!r}f", scene.made(call, "out"))]


def _add(call: KernelCall, scene: Scene) -> list[str]:
    x, y = _value(call, "x0"), _value(call, "x1")
    if (x.tensor.rows, x.tensor.dims) != (y.tensor.rows, y.tensor.dims):
        raise _refused(call, "operands of several shapes come later")
    return [_call("rows", scene.matrix(x), scene.made(call, "out", x), f"Epilogue().addend({scene.matrix(y)})")]


def _elementwise(call: KernelCall, scene: Scene) -> list[str]:
    """A function of elements, in one loop."""
    nest, read = row_nest(scene.region(call))
    shape = (call.value.tensor.rows, call.value.tensor.dims)
    if any((value.tensor.rows, value.tensor.dims) != shape for value in read):
        raise _refused(call, "operands of several shapes come later")
    name, operands = scene.elementwise(nest), [scene.matrix(value) for value in read]
    return [_call("elementwise", name, f"{{{', '.join(operands)}}}", scene.made(call, "out"))]


def _in_degree(call: KernelCall, scene: Scene) -> list[str]:
    edges = scene.edges(_value(call, "x0"), "graph")
    return [f"{edges}.in_degrees({scene.made(call, 'out')}.at);"]


def _inverse_degree(call: KernelCall, scene: Scene) -> list[str]:
    edges, out = scene.edges(_value(call, "graph"), "graph"), scene.made(call, "out")
    return [f"{edges}.in_degrees({out}.at);", _call("power", out, "-1.0", out, "")]


def _reduce(call: KernelCall, scene: Scene) -> list[str]:
    if call.value["kind"] != "sum":
        raise _refused(call, f"the {call.value['kind']} over in-edges comes later")
    edges, weights = scene.weighted(_value(call, "x0"), _value(call, "x1"))
    return [_call("sum_weights", edges, weights, f"{scene.made(call, 'out')}.at")]


def _pow(call: KernelCall, scene: Scene) -> list[str]:
    exponent = call.value["exponent"]
    if exponent not in (-0.5, -1.0, -1.5):
        raise _refused(call, f"the exponent {exponent} comes later")
    more = repr(float(call.value["eps"])) if call.value.get("eps") else ""
    return [_call("power", scene.matrix(_value(call, "x0")), repr(exponent), scene.made(call, "out"), more)]


def _heads(call: KernelCall, scene: Scene) -> tuple[str, str, str]:
    """The kind of attention, the settings of its heads, and room for the gradients of scores where it wants some."""
    value, rows = call.value, _value(call, "x")
    out = value if call.kernel == "attention" else _value(call, "out")
    count, channels = out.tensor.dims[0], rows.tensor.dims[1]
    kind = Attention(Score[value["score"].upper()], count)
    seed = scene.seed(_value(call, "seed")) if call.reading("seed") is not None else "0"
    by = float(value["scale"] if kind.score is Score.DOT else value["alpha"])
    is_shared = rows.tensor.dims[0] != count
    scene.over_heads(count, channels, is_shared)
    more = f"{value['stream']}{', true' if is_shared else ''}"
    settings = f"Heads{{{count}, {channels}, {by!r}, {float(value['p'])!r}, {seed}, {more}}}"
    slopes = scene.slopes(_value(call, "graph"), kind, count * channels) if call.kernel == "attention_grad" else ""
    return f"Attention<Score::{value['score']}>", settings, slopes


def _attention(call: KernelCall, scene: Scene) -> list[str]:
    _only(call, "graph", "x", "a", "b", "seed")
    given = [_value(call, role) for role in ("x", "a", "b")]
    kind, heads, _ = _heads(call, scene)
    edges = scene.edges(_value(call, "graph"), "in_edges_in_order" if call.reading("seed") is not None else "in_edges")
    stats = "nullptr" if call.writing("stats") is None else f"{scene.made(call, 'stats')}.at"
    return [_call(f"{kind}::forward", edges, heads, *map(scene.matrix, given), scene.made(call, "out"), stats)]


def _attention_grad(call: KernelCall, scene: Scene) -> list[str]:
    _only(call, "graph", "turned", "x", "a", "b", "seed", "out", "stats", "dout")
    graph, x, stats = _value(call, "graph"), _value(call, "x"), _value(call, "stats")
    kind, heads, slopes = _heads(call, scene)
    order = "_in_order" if call.reading("seed") is not None or slopes else ""  # draws and slopes are by edge number
    edges, back = scene.edges(graph, f"in_edges{order}"), scene.edges(graph, f"out_edges{order}")
    read = [scene.matrix(_value(call, role)) for role in ("x", "a", "b", "out")]
    given = f"Attended{{{', '.join([*read, scene.numbers(stats), scene.matrix(_value(call, 'dout'))])}}}"
    wanted = {slot.role for slot in call.writes}
    if not {"d1", "d2"} <= wanted:
        raise _refused(call, "gradients of some operands come later")
    made = [scene.made(call, role) for role in ("d1", "d2")]
    first = scene.made(call, "d0") if "d0" in wanted else f"unread({scene.room(x, math.prod(x.tensor.dims))})"
    room = f"{scene.room(stats, 4 * _value(call, 'out').tensor.dims[0])}.at"
    return [_call(f"{kind}::backward", edges, back, heads, given, first, *made, room, slopes)]


def _einsum(call: KernelCall, scene: Scene) -> list[str]:
    """Products of rows with one vector or one matrix a head; rows may be those of a weight."""
    _only(call, "x0", "x1")
    spec, addend = call.body[0]["spec"], call.reading("addend") is not None
    found, by_head = vector_product(spec), head_product(spec)
    operands = [_value(call, role) for role in ("x0", "x1") if call.reading(role) is not None]
    if len(operands) != 2 or (addend and (found is None or found.kind != "products")):
        raise _refused(call, f"the product {spec} comes later")
    swapped = found.swapped if found is not None else by_head is not None and by_head.swapped
    left, right = reversed(operands) if swapped else operands
    width = str(right.tensor.dims[-1])
    if found is not None:
        scene.over_heads(right.tensor.dims[-2], right.tensor.dims[-1])
    if found is not None and found.kind == "dots":
        return [_call("head_dots", scene.matrix(left), scene.numbers(right), width, scene.made(call, "out"))]
    if found is not None and found.kind == "sums":
        return [_call("head_sums", scene.matrix(left), scene.matrix(right), width, f"{scene.made(call, 'out')}.at")]
    if found is not None:
        more = scene.numbers(_value(call, "addend")) if addend else "nullptr"
        rows, vectors = scene.matrix(left), scene.numbers(right)
        return [_call("head_products", rows, vectors, width, more, scene.made(call, "out"))]
    if by_head is None or by_head.order not in ((0, 1, 2), (2, 1, 0)):
        raise _refused(call, f"the product {spec} comes later")
    heads, turned = str(left.tensor.dims[0]), by_head.order != (0, 1, 2)
    both, out = (scene.matrix(left), scene.matrix(right)), scene.made(call, "out")
    if not by_head.outer:
        return [_call("head_matmul", *both, heads, f"Weight::{'transposed' if turned else 'as_stored'}", out)]
    room = f"{scene.room(call.value, math.prod(call.value.tensor.dims))}.at" if turned else "nullptr"
    return [_call("head_outer", *both, heads, out, room)]


def _norm(call: KernelCall, scene: Scene) -> str:
    """What a norm learned, its epsilon, and whether the result is cut at 0."""
    weight, bias = (
        scene.numbers(_value(call, role)) if call.reading(role) is not None else "nullptr"
        for role in ("weight", "bias")
    )
    return f"Norm{{{weight}, {bias}, {float(call.get('eps'))!r}{', true' if call.get('relu') else ''}}}"


def _batch_norm(call: KernelCall, scene: Scene) -> list[str]:
    _only(call, "x", "weight", "stats")
    x, norm, out = scene.matrix(_value(call, "x")), _norm(call, scene), scene.made(call, "out")
    if call.reading("stats") is not None:
        stats, width = scene.matrix(_value(call, "stats")), _value(call, "x").tensor.dims[0]
        return [_call("normalise", x, f"{stats}.at", f"{stats}.at + {width}", norm, out)]
    return [_call("batch_norm", x, norm, scene.made(call, "stats"), out)]


def _normalise(call: KernelCall, scene: Scene) -> list[str]:
    _only(call, "x", "mean", "variance", "weight")
    x, mean, variance = scene.matrix(_value(call, "x")), *(scene.numbers(_value(call, r)) for r in ("mean", "variance"))
    return [_call("normalise", x, mean, variance, _norm(call, scene), scene.made(call, "out"))]


def _batch_norm_grad(call: KernelCall, scene: Scene) -> list[str]:
    _only(call, "x", "stats", "dy", "weight")
    if call.writing("products") is None or call.writing("sums") is None:
        raise _refused(call, "gradients of some operands come later")
    x, stats, dy = (scene.matrix(_value(call, role)) for role in ("x", "stats", "dy"))
    of_vectors = [f"{scene.made(call, role)}.at" for role in ("products", "sums")]
    return [_call("batch_norm_grad", x, stats, dy, _norm(call, scene), scene.made(call, "out"), *of_vectors)]


def _row_sum(call: KernelCall, scene: Scene) -> list[str]:
    return [_call("row_sum", scene.matrix(_value(call, "x0")), scene.made(call, "out"))]


def _mul(call: KernelCall, scene: Scene) -> list[str]:
    x, y = _value(call, "x0"), _value(call, "x1")
    if (x.tensor.rows, x.tensor.dims) != (y.tensor.rows, y.tensor.dims):
        raise _refused(call, "operands of several shapes come later")
    return [_call("multiply", scene.matrix(x), scene.matrix(y), scene.made(call, "out"))]


def _with_vector(call: KernelCall, scene: Scene) -> list[str]:
    """Rows and a number for every row, or for every column."""
    x, by = scene.matrix(_value(call, "x0")), scene.numbers(_value(call, "x1"))
    return [_call(call.kernel, x, by, scene.made(call, "out"))]


def _fill_cols(call: KernelCall, scene: Scene) -> list[str]:
    return [_call("fill_cols", scene.numbers(_value(call, "x0")), scene.made(call, "out"))]


def _sum_dims(call: KernelCall, scene: Scene) -> list[str]:
    """Over heads."""
    x = _value(call, "x0")
    if len(x.tensor.dims) != 2 or call.value["axes"] != (0,):
        raise _refused(call, "sums over other dimensions come later")
    return [_call("sum_heads", scene.matrix(x), str(x.tensor.dims[0]), scene.made(call, "out"))]


def _expand(call: KernelCall, scene: Scene) -> list[str]:
    """The same row for every head."""
    x, dims = _value(call, "x0"), call.value.tensor.dims
    if len(dims) != 2 or x.tensor.dims != (1, dims[1]):
        raise _refused(call, "other repeated rows come later")
    return [_call("repeat_heads", scene.matrix(x), str(dims[0]), scene.made(call, "out"))]


_PRINTERS: dict[str, Printer] = {
    "batch_norm": _batch_norm,
    "batch_norm_grad": _batch_norm_grad,
    "normalise": _normalise,
    "row_sum": _row_sum,
    "row_add": _with_vector,
    "col_scale": _with_vector,
    "mul": _mul,
    "fill_cols": _fill_cols,
    "sum_dims": _sum_dims,
    "expand": _expand,
    "attention": _attention,
    "attention_grad": _attention_grad,
    "einsum": _einsum,
    "ewise": _elementwise,
    "row_nest": _elementwise,
    "spmm": _spmm,
    "spmm_self": _spmm,
    "spmm_max": _spmm_max,
    "spmm_max_grad": _spmm_max_grad,
    "matmul": _matmul,
    "sparse_matmul": _sparse_matmul,
    "contract": _contract,
    "matmul_terms": _matmul_terms,
    "rows": _rows,
    "col_sum": _col_sum,
    "dot": _dot,
    "dropout": _dropout,
    "take_rows": _take_rows,
    "scatter_rows": _scatter_rows,
    "scale": _scale,
    "mul_scalar": _mul_scalar,
    "add": _add,
    "add_const": _add_const,
    "in_degree": _in_degree,
    "inverse_degree": _inverse_degree,
    "reduce": _reduce,
    "pow": _pow,
}

__all__ = ["Scene", "print_call"]
