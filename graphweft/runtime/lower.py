"""From groups of IR values to calls of kernels, as data.

Comes in: a :class:`Group` and the slots of the program's values. Goes out: a :class:`KernelCall` with the group's
operands by role. Nothing here knows a machine: which function runs a call is its target's to say. Called by
``plan.py`` and ``staged.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

import torch

from graphweft.cost import Work
from graphweft.ir.ops import Op
from graphweft.ir.program import Attrs, Value
from graphweft.passes.fuse import Group, Term
from graphweft.runtime.kernel_call import KernelCall, Slot, body_of

Parts = tuple[str, list[tuple[str, Value]], list[tuple[str, Value]], Attrs]  # kernel, operands, results, attributes

NO_WORK = Work("rows", 0.0, 0.0)
_PRODUCTS = ("matmul", "contract", "matmul_terms", "contract_terms")
_ROLES = {
    Op.SPMM: ("graph", "x", "weight"),
    Op.SPMM_MAX: ("graph", "x"),
    Op.MATMUL: ("x", "weight"),
    Op.ATTENTION: ("graph", "x", "a", "b", "seed"),
    Op.BATCH_NORM: ("x", "stats", "weight", "bias"),
    Op.NORMALISE: ("x", "mean", "variance", "weight", "bias"),
    Op.BATCH_NORM_GRAD: ("x", "stats", "dy", "products", "sums", "weight"),
}


def lower(
    group: Group,
    slot: Mapping[Value, int],
    also: Value | None = None,
    *,
    works: tuple[Work, ...] = (NO_WORK,),
    frees: tuple[int, ...] = (),
    over: bool = False,
    rounds: Set[str] = frozenset(),
) -> KernelCall:
    """The call that computes ``group``, and ``also``, the arg of a maximum, from slots into slots.

    ``over``: an aggregation, or a softmax over edges, writes over what it reads. ``rounds``: what is read in bfloat16,
    "rows" that are summed over edges and "operands" of dense products, where they are float32.
    """
    kernel, operands, results, attrs = _parts(group)
    if rounds and group.result.tensor.dtype == torch.float32:
        kind = "rows" if kernel in ("spmm", "spmm_self") else "operands" if kernel in _PRODUCTS else ""
        attrs = (*attrs, (kind, "bf16")) if kind in rounds else attrs
    if also is not None:
        results = [*results, ("arg", also)]
    reads = tuple(Slot(role, slot[value], value) for role, value in operands)
    writes = tuple(Slot(role, slot[value], value) for role, value in results)
    body = group.chain or body_of([value for _, value in operands], [value for _, value in results])
    return KernelCall(kernel, reads, writes, attrs, body, label(group), works, frees, over)


def _parts(group: Group) -> Parts:
    value = group.anchor
    if value is not None and value.op in (Op.ATTENTION, Op.ATTENTION_GRAD):
        return _attention(group, value)
    if group.kernel:
        return _joined(group)
    if group.chain:
        return _generated(group)
    if group.terms:
        return _contractions(group) if group.terms[0].shared is not None else _products(group)
    if value is None:
        return _rows(group)
    if value.op in (Op.SPMM, Op.MATMUL):
        return _product(group, value)
    if value.op in (Op.BATCH_NORM, Op.NORMALISE, Op.BATCH_NORM_GRAD):
        return _norm(group, value)
    if value.op in (Op.DROPOUT, Op.MUL_SCALAR) and group.gather is not None:
        (_, ids), other = _left(group, value.inputs[0]), value.inputs[1]
        name = "dropout_of_rows" if value.op is Op.DROPOUT else "scale_of_rows"
        rows = [("x", group.gather.inputs[0]), ("ids", ids)] if ids is not None else []
        return name, [*rows, ("seed" if value.op is Op.DROPOUT else "factor", other)], [("out", group.result)], ()
    if value.op is Op.SPMM_MAX:
        return "spmm_max", _by_role(value), [("out", value)], (("minimum", value["kind"] == "min"),)
    if _is_inverse_degree(value):
        return "inverse_degree", [("graph", value.inputs[0].inputs[0])], [("out", group.result)], ()
    operands = [(f"x{i}", operand) for i, operand in enumerate(value.inputs)]
    return value.op.name.lower(), [*operands, *_stages(group)], _results(group), _attrs(value)


def _attrs(value: Value) -> Attrs:
    return tuple((name, item) for name, item in value.attrs if isinstance(item, bool | int | float | str | tuple))


def _by_role(value: Value) -> list[tuple[str, Value]]:
    return list(zip(_ROLES[value.op], value.inputs, strict=False))


def _stages(group: Group) -> list[tuple[str, Value]]:
    """Operands of what is done to a finished row; the rows behind a short addend are the graph's to say."""
    found = [(name, value) for name, value in group.stages.items() if value is not None]
    return found if group.padded is None else [*found, ("rows_of", group.padded.inputs[0])]


def _switches(group: Group) -> Attrs:
    """Stages without an operand."""
    short = (("short_addend", True),) if group.padded is not None else ()
    return ((("relu", True),) if "relu" in group.stages else ()) + short


def _results(group: Group) -> list[tuple[str, Value]]:
    """The result, and the column sums beside it."""
    return [("out", group.result), *(("col_sum", value) for value in group.taps)]


def _rows(group: Group) -> Parts:
    assert group.source is not None  # a group without anchor has a source
    source, ids = _left(group, group.source)
    rows = [("x", source), *([] if ids is None else [("ids", ids)])]
    return "rows", [*rows, *_stages(group)], _results(group), _switches(group)


def _left(group: Group, value: Value) -> tuple[Value, Value | None]:
    """The first operand's rows, or a table and the ids of those rows."""
    if group.gather is None:
        return value, None
    table, ids = group.gather.inputs
    return table, ids


def _product(group: Group, value: Value) -> Parts:
    """Edges times rows, or rows times a matrix."""
    operands = _by_role(value)
    if value.op is Op.SPMM:
        if group.src_scale is not None and group.scaled is not None:
            operands[1:2] = [("x", group.scaled), ("src_scale", group.src_scale)]
        coefficient = float(value.get("self_coef", 0.0))
        if group.self_factor is not None:
            operands.append(("self_factor", group.self_factor))
            coefficient = 1.0
        attrs: Attrs = (("self_coef", coefficient),)
        name = "spmm" if group.self_factor is None else "spmm_self"
        return name, [*operands, *_stages(group)], _results(group), attrs + _switches(group)
    x, ids = _left(group, value.inputs[0])
    operands[:1] = [("x", x), *([] if ids is None else [("ids", ids)])]
    name = "sparse_matmul" if value.inputs[0].tensor.sparse else "contract" if value.get("ta") else "matmul"
    attrs = (("by_column", bool(value.get("ta"))), ("transposed", bool(value.get("tb"))))
    return name, [*operands, *_stages(group)], _results(group), attrs + _switches(group)


def _attention(group: Group, value: Value) -> Parts:
    """An attention with its statistics, or all gradients of one, to which what comes by the scores may be added."""
    forward, values = value.op is Op.ATTENTION, value.inputs
    if forward:
        names = _ROLES[Op.ATTENTION][: len(values)]
    else:
        seed = ("seed",) if len(values) == 9 else ()
        names = ("graph", "turned", "x", "a", "b", *seed, "out", "stats", "dout")
    operands = list(zip(names, values, strict=True))
    attrs = _attrs(value) + (() if forward else (("heads", value.inputs[-3].tensor.dims[0]),))
    if forward:
        return "attention", operands, [("out", value), *(("stats", tap) for tap in group.taps)], attrs
    for product in (v for v in group.chain if v.op is Op.EINSUM):
        number, vector = product.inputs if product.inputs[1] not in group.chain else product.inputs[::-1]
        operands.append((f"vector{number['wrt']}", vector))
    return "attention_grad", operands, [(f"d{v.get('wrt', 0)}", v) for v in (group.result, *group.taps)], attrs


def _norm(group: Group, value: Value) -> Parts:
    """A batch norm or the gradient of its rows; what the call makes on the way is a result."""
    named = _by_role(value)
    operands = [(role, operand) for role, operand in named if operand not in group.taps]
    results = [("out", group.result), *((role, operand) for role, operand in named if operand in group.taps)]
    return value.op.name.lower(), operands, results, (("eps", value["eps"]), *_switches(group))


def _products(group: Group) -> Parts:
    """Several products that are added up."""
    operands: list[tuple[str, Value]] = []
    results = [("out", group.result)]
    attrs: Attrs = ()
    for i, term in enumerate(group.terms):
        left, weight = term.product.inputs
        kind, found = _first_of(term, left)
        operands += [(f"{role}{i}", value) for role, value in (*found, ("weight", weight))]
        attrs += ((f"first{i}", kind), (f"transposed{i}", bool(term.product.get("tb"))))
        if kind == "sums" and left in group.taps:
            results.append((f"kept{i}", left))
    if "col_sum" in group.stages:
        results.append(("col_sum", group.taps[0]))
    taken = {value for _, value in results}
    results += [(f"tap{i}", tap) for i, tap in enumerate(group.taps) if tap not in taken]
    return "matmul_terms", [*operands, *_stages(group)], results, attrs + _switches(group)


def _first_of(term: Term, left: Value) -> tuple[str, list[tuple[str, Value]]]:
    """The kind of a product's first operand, and where it comes from."""
    if term.gather is not None:
        table, ids = term.gather.inputs
        return "gathered", [("x", table), ("ids", ids)]
    if term.sums is None:
        return "rows", [("x", left)]
    assert term.sums.anchor is not None  # an aggregation
    graph, source = term.sums.anchor.inputs
    factor = term.sums.stages.get("row_scale")
    return "sums", [("graph", graph), ("x", source), *([] if factor is None else [("row_scale", factor)])]


def _contractions(group: Group) -> Parts:
    """Contractions with one second operand, which is summed over edges on the way."""
    shared = group.terms[0].shared
    assert shared is not None and shared.anchor is not None  # an aggregation
    graph, source = shared.anchor.inputs
    operands, results = [("graph", graph), ("x", source)], []
    for i, term in enumerate(group.terms):
        table, ids = (term.product.inputs[0], None) if term.gather is None else term.gather.inputs
        operands += [(f"left{i}", table), *([] if ids is None else [(f"ids{i}", ids)])]
        results.append(("out" if i == 0 else f"out{i}", term.product))
    results += [("col_sum", tap) for tap in shared.taps]
    first = next(i for i, (_, value) in enumerate(results) if value is group.result)
    results.insert(0, results.pop(first))
    return "contract_terms", [*operands, *_stages(shared)], results, (("count", len(group.terms)), *_switches(shared))


def _joined(group: Group) -> Parts:
    """Values that one kernel computes side by side."""
    operands = [(f"x{i}", operand) for i, operand in enumerate(group.operands())]
    return group.kernel, operands, [("out", group.result), *((f"out{i}", v) for i, v in enumerate(group.taps, 1))], ()


def _generated(group: Group) -> Parts:
    """One generated kernel: over rows, or over the edges of a graph."""
    values = [value for value in group.operands() if value is not group.walk]
    operands = [(str(i), value) for i, value in enumerate(values)]
    results = [("out", group.result), *((f"out{i}", tap) for i, tap in enumerate(group.taps, 1))]
    if group.walk is None:
        return "row_nest", operands, results, ()
    return "edge_nest", [("graph", group.walk), *operands], results, ()


def _is_inverse_degree(value: Value) -> bool:
    """Whether it is 1 over the in-degrees of a graph, 0 where there are none."""
    if value.op is not Op.POW or value["exponent"] != -1.0 or value.get("eps") or value.tensor.dtype != torch.float32:
        return False
    return value.inputs[0].op is Op.IN_DEGREE


def label(group: Group) -> str:
    """``spmm + row_scale + bias + relu``: what one call does."""
    if group.kernel:
        return f"{group.kernel} + {' + '.join(v.op.name.lower() for v in group.chain if v is not group.anchor)}"
    if group.walk is not None:
        made = " + ".join(value.op.name.lower() for value in (group.result, *group.taps))
        return f"edges ({len(group.chain)} values): {made}"
    name = "rows" if group.anchor is None else group.anchor.op.name.lower()
    if group.anchor is not None and group.anchor.op is Op.MATMUL:
        name = "sparse matmul" if group.anchor.inputs[0].tensor.sparse else name
        name += " transposed" if group.anchor.get("ta") else ""
    extra = ["src_scale"] if group.src_scale is not None else []
    extra += ["own rows"] if group.self_factor is not None else []
    if group.terms:
        kinds = ["gathered rows" if t.gather else "sums" if t.sums else "rows" for t in group.terms]
        name = f"matmul of {' and '.join(kinds)}"
        shared = group.terms[0].shared
        if shared is not None:
            name = " + ".join([f"matmul transposed of {' and '.join(kinds)} by sums", *shared.stages])
    tapped = ["col_sum"] if group.taps and not group.terms and "col_sum" not in group.stages else []
    return " + ".join([name, *extra, *group.stages, *tapped])


__all__ = ["label", "lower"]
