"""Raises attention: a softmax over in-edges that weighs a sum over the same in-edges becomes one operation.

Comes in: programs with EDGE_SOFTMAX. Goes out: ATTENTION where the score is one that a kernel knows; its weights are
never stored. What a layer of ours and what a user's function wrote look alike here. Sources: Graphiler, MLSys 2022,
section 5 (broadcast-compute-reduce, Norm); the rescaled softmax without stored weights is that of FlashAttention (Dao
et al., NeurIPS 2022).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from graphweft.ir.ops import Op
from graphweft.ir.pattern import rewrite
from graphweft.ir.program import Builder, Program, Value


class _Score(NamedTuple):
    """A score that the kernels know: attributes and the two operands."""

    attrs: dict[str, Any]
    a: Value
    b: Value


class _Site(NamedTuple):
    """Where attention may be: the graph, the values and their shape as heads times channels."""

    graph: Value
    value: Value
    heads: int
    channels: int


def raise_attention(program: Program) -> Program:
    """``reduce(edge_softmax(score) * broadcast_src(x))`` -> ``attention``."""
    return rewrite(program, _raise)


def _raise(b: Builder, v: Value) -> Value | None:
    dims = v.tensor.dims if v.op is Op.REDUCE else ()
    if v.op is not Op.REDUCE or v["kind"] != "sum" or len(dims) not in (1, 2):
        return None
    graph, message = v.inputs
    for weights, rows in _factors(message):
        if rows.op is not Op.BROADCAST_SRC or rows.inputs[0] is not graph or rows.tensor.dims != dims:
            continue
        site = _Site(graph, rows.inputs[1], dims[0] if len(dims) == 2 else 1, dims[-1])
        found = _weights(weights, site)
        score = None if found is None else _score(found[0].inputs[1], site)
        if found is None or score is None:
            continue
        _, dropped, seed = found
        full, heads = (site.heads, site.channels), (site.heads,)
        shapes = {"add": (heads, heads), "add2": (full, full), "dot": (full, full)}[score.attrs["score"]]
        operands = [_fit(b, x, shape) for x, shape in zip((score.a, score.b), shapes, strict=True)]
        value = _fit(b, site.value, full)
        if value is None or operands[0] is None or operands[1] is None:
            continue
        result = b.add(Op.ATTENTION, graph, value, operands[0], operands[1], *seed, **score.attrs, **dropped)
        return _fit(b, result, dims)
    return None


def squeezed(v: Value) -> tuple[int, ...]:
    """The trailing sizes other than 1."""
    return tuple(size for size in v.tensor.dims if size != 1)


def _fit(b: Builder, v: Value, dims: tuple[int, ...]) -> Value | None:
    """``v`` with dimensions of size 1 put in or left out, or None where that is not enough."""
    if v.tensor.dims == dims:
        return v
    return b.add(Op.RESHAPE, v, dims=dims) if squeezed(v) == tuple(s for s in dims if s != 1) else None


def seen_through(v: Value) -> Value:
    """What got or lost dimensions of size 1."""
    while v.op in (Op.RESHAPE, Op.EXPAND) and squeezed(v) == squeezed(v.inputs[0]):
        v = v.inputs[0]
    return v


def _factors(v: Value) -> list[tuple[Value, Value]]:
    """The operands of a product, either way around."""
    if not _is_ewise(v, "mul") and v.op is not Op.MUL:
        return []
    x, y = v.inputs
    return [(x, y), (y, x)]


def _is_ewise(v: Value, fn: str) -> bool:
    return v.op is Op.EWISE and v["fn"] == fn


def _weights(v: Value, site: _Site) -> tuple[Value, dict[str, Any], tuple[Value, ...]] | None:
    """The softmax, the attributes of its dropout and the seed, of one weight per edge and head."""
    if v.op is Op.EXPAND and v.inputs[0].tensor.dims[-1:] == (1,):
        v = v.inputs[0]
    if v.tensor.dims not in ((site.heads, 1), (1,), ()):
        return None
    v = seen_through(v)
    dropped: dict[str, Any] = {"p": 0.0, "stream": 0}
    seed: tuple[Value, ...] = ()
    if v.op is Op.DROPOUT:
        dropped, seed, v = {"p": v["p"], "stream": v["stream"]}, (v.inputs[1],), seen_through(v.inputs[0])
    if v.op is not Op.EDGE_SOFTMAX or v.get("log") or v.inputs[0] is not site.graph:
        return None
    return (v, dropped, seed) if squeezed(v) == tuple(s for s in (site.heads,) if s != 1) else None


def _score(v: Value, site: _Site) -> _Score | None:
    v = seen_through(v)
    if _is_ewise(v, "leaky_relu") and 0.0 <= v["alpha"] <= 1.0:
        ends = _ends(seen_through(v.inputs[0]), site.graph)
        if ends is not None:
            return _Score({"score": "add", "alpha": v["alpha"], "scale": 1.0}, *ends)
    return _summed(v, site, 1.0)


def _summed(v: Value, site: _Site, scale: float) -> _Score | None:
    """Scores that are sums over channels, perhaps times a constant."""
    v = seen_through(v)
    if v.op is Op.SCALE:
        return _summed(v.inputs[0], site, scale * v["factor"])
    if (_is_ewise(v, "mul") or _is_ewise(v, "div")) and v.inputs[1].op is Op.CONST:
        factor = v.inputs[1]["value"]
        return _summed(v.inputs[0], site, scale * factor if v["fn"] == "mul" else scale / factor)
    pair = contracted_ends(v)
    if pair is None:
        return None
    for x, y in (pair, pair[::-1]):
        if x.op is Op.BROADCAST_SRC and y.op is Op.BROADCAST_DST and x.inputs[0] is site.graph is y.inputs[0]:
            return _Score({"score": "dot", "alpha": 1.0, "scale": scale}, x.inputs[1], y.inputs[1])
        if _is_ewise(x, "leaky_relu") and y.tensor.rows is None and scale == 1.0 and 0.0 <= x["alpha"] <= 1.0:
            ends = _ends(x.inputs[0], site.graph)
            if ends is not None and ends[0] is site.value:
                return _Score({"score": "add2", "alpha": x["alpha"], "scale": 1.0}, ends[1], y)
    return None


def contracted_ends(v: Value) -> tuple[Value, Value] | None:
    """x, y of a sum over the last dimension of x * y, (heads, channels) or (channels,) each."""
    if v.op is Op.EINSUM and len(v.inputs) == 2:
        left, right = v["spec"].split("->")[0].split(",")
        result = v["spec"].split("->")[1]
        letters = left.lstrip("n")
        same = letters == right.lstrip("n") and len(letters) in (1, 2)
        return (v.inputs[0], v.inputs[1]) if same and result == "n" + letters[:-1] else None
    rank = len(v.inputs[0].tensor.dims) if v.op is Op.SUM_DIMS else 0
    if v.op is Op.SUM_DIMS and v["axes"] == (rank - 1,) and rank in (1, 2):
        product = v.inputs[0]
        if _is_ewise(product, "mul") or product.op is Op.MUL:
            x, y = product.inputs
            return (seen_through(x) if x.tensor.rows is None else x), (seen_through(y) if y.tensor.rows is None else y)
    return None


def _ends(v: Value, graph: Value) -> tuple[Value, Value] | None:
    """x, y of ``broadcast_src(x) + broadcast_dst(y)`` over ``graph``."""
    if not (_is_ewise(v, "add") or v.op is Op.ADD):
        return None
    for x, y in (v.inputs, v.inputs[::-1]):
        x, y = seen_through(x), seen_through(y)
        if x.op is Op.BROADCAST_SRC and y.op is Op.BROADCAST_DST and x.inputs[0] is graph is y.inputs[0]:
            return x.inputs[1], y.inputs[1]
    return None
