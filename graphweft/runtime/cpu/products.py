"""Launchers of products: edges times rows, rows times matrices, sums of them, and rows read by index.

Comes in: a :class:`KernelCall`. Goes out: a function of the slots that calls the native kernel; everything that can be
decided is decided here, so that a call compares no strings and tests no formats. Registered in ``cpu/target.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch

from graphweft._memory import empty
from graphweft.graph.graph import Graph
from graphweft.graph.stretches import often_read
from graphweft.runtime import dense, sparse, typed_products
from graphweft.runtime.epilogue import Epilogue
from graphweft.runtime.feature_types import in_half
from graphweft.runtime.features import SparseOperand
from graphweft.runtime.half_rows import HALF
from graphweft.runtime.kernel_call import KernelCall, Slots
from graphweft.runtime.target import Launch, interpreted
from graphweft.runtime.terms import Left, Term, contract_terms, matmul_terms

_STAGES = ("row_scale", "bias", "addend", "mask", "post_scale")


def epilogue_of(call: KernelCall, width: int) -> Callable[[Slots], Epilogue | None]:
    """How to build the epilogue of each call; the column sums are allocated and put into their slot."""
    fixed = {slot.role: slot.at for slot in call.reads if slot.role in _STAGES}
    relu, is_short, tap = bool(call.get("relu")), bool(call.get("short_addend")), call.writing("col_sum")
    if not fixed and not relu and tap is None:
        return lambda slots: None

    def build(slots: Slots) -> Epilogue:
        operands = {role: slots[index] for role, index in fixed.items()}
        if is_short:
            operands["addend_rows"] = operands["addend"].shape[0]
        if tap is not None:
            operands["col_sum"] = slots[tap] = torch.empty(width, dtype=torch.float32)
        return Epilogue(relu=relu, **operands)

    return build


def _epilogue(call: KernelCall) -> Callable[[Slots], Epilogue | None]:
    return epilogue_of(call, call.value.tensor.dims[0])


def rounds(call: KernelCall) -> bool:
    """Whether the operands of a product are read in bfloat16."""
    return bool(call.get("operands") == "bf16")


def _result(call: KernelCall) -> torch.dtype:
    """How the result of products is stored."""
    return torch.bfloat16 if HALF in call.attrs else torch.float32


def rows(call: KernelCall) -> Launch:
    """Stages applied to rows as they are, or read by index."""
    source, ids, out, epilogue = call.operand("x"), call.reading("ids"), call.writes[0].at, _epilogue(call)

    def run(slots: Slots) -> None:
        found = epilogue(slots) or Epilogue()
        slots[out] = dense.rows_apply(slots[source], found, rows=None if ids is None else slots[ids])

    return run


def spmm(call: KernelCall) -> Launch:
    """Rows summed over edges."""
    graph, x, out = call.operand("graph"), call.operand("x"), call.writes[0].at
    weight, scale, over = call.reading("weight"), call.reading("src_scale"), call.over
    coefficient, epilogue, rounded = call.get("self_coef"), _epilogue(call), call.get("rows") == "bf16"
    factor, halves, dtype = call.reading("self_factor"), HALF in call.attrs, call.dtype
    widens = dtype == torch.bfloat16  # the kernel takes weights of such rows in float32

    def run(slots: Slots) -> None:
        source = slots[x]
        if halves and source.dtype != torch.bfloat16:  # its memory serves the result, where both are as many rows
            source = in_half(source)
        adjacency = slots[graph].csc_structure if weight is None else slots[graph].csc
        slots[out] = sparse.spmm(
            often_read(adjacency) if weight is None and source.dtype == torch.float32 else adjacency,
            source,
            weight=None if weight is None else slots[weight].float() if widens else slots[weight],
            src_scale=None if scale is None else slots[scale],
            self_coef=coefficient,
            self_factor=None if factor is None else slots[factor],
            epilogue=epilogue(slots),
            out=_place(slots[graph], slots[x], source, over, halves),
            rounds=rounded,
            dtype=torch.bfloat16 if halves else dtype,
        )

    return run


def _place(graph: Graph, x: torch.Tensor, source: torch.Tensor, over: bool, halves: bool) -> torch.Tensor | None:
    """Memory that a sum over edges is written into: that of its rows, or of their copy in bfloat16; None: new."""
    if over and halves == (x.dtype == torch.bfloat16):
        return x.detach()
    return source if halves and source is not x and graph.is_square else None


def spmm_max(call: KernelCall) -> Launch:
    """Extrema over edges, and where each comes from."""
    graph, x, out, arg = call.operand("graph"), call.operand("x"), call.writes[0].at, call.writing("arg")
    minimum = call.get("minimum")

    def run(slots: Slots) -> None:
        adjacency = often_read(slots[graph].csc) if slots[x].dtype == torch.float32 else slots[graph].csc
        slots[out], found = sparse.spmm_max(adjacency, slots[x], minimum=minimum, want_arg=arg is not None)
        if arg is not None:
            slots[arg] = found

    return run


def sparse_matmul(call: KernelCall) -> Launch:
    """Sparse features, or their transpose, times a matrix."""
    a, b, out, epilogue = call.operand("x"), call.operand("weight"), call.writes[0].at, _epilogue(call)
    by_column, transposed = call.get("by_column"), call.get("transposed")

    def run(slots: Slots) -> None:
        right, stages = slots[b].t().contiguous() if transposed else slots[b], epilogue(slots)
        # Column sums are added up in another order beside the compressed product.
        if (stages is None or stages.col_sum is None) and typed_products.multiplies(slots[a], right):
            product = (typed_products.contract if by_column else typed_products.matmul)(slots[a], right)
            slots[out] = product if stages is None else dense.rows_apply(product, stages, out=product)
            return
        operand = SparseOperand.of(slots[a])
        adjacency, values = operand.by_column() if by_column else operand.by_row()
        slots[out] = sparse.spmm(adjacency, right, weight=values, epilogue=stages)

    return run


def contract(call: KernelCall) -> Launch:
    """A product that sums over rows, with the column sums of its second operand."""
    a, b, ids, out = call.operand("x"), call.operand("weight"), call.reading("ids"), call.writes[0].at
    tap, rounded = call.writing("col_sum"), rounds(call)

    def run(slots: Slots) -> None:
        sums = None
        if tap is not None:
            sums = slots[tap] = torch.empty(slots[b].shape[1], dtype=slots[b].dtype)
        at = None if ids is None else slots[ids]
        slots[out] = dense.matmul_tn(slots[a], slots[b], col_sum=sums, rows=at, rounds=rounded)

    return run


def matmul(call: KernelCall) -> Launch:
    """Rows times a matrix."""
    a, b, ids, out = call.operand("x"), call.operand("weight"), call.reading("ids"), call.writes[0].at
    how, epilogue = {"transposed": call.get("transposed"), "rounds": rounds(call)}, _epilogue(call)
    dtype = _result(call)

    def run(slots: Slots) -> None:
        at, source = None if ids is None else slots[ids], slots[a]
        if torch.bfloat16 in (source.dtype, dtype):
            term = Term(source, slots[b], how["transposed"], rows=at)
            slots[out] = matmul_terms([term], epilogue=epilogue(slots), rounds=how["rounds"], dtype=dtype)
        else:
            slots[out] = dense.matmul(source, slots[b], epilogue=epilogue(slots), rows=at, **how)

    return run


def dropout_of_rows(call: KernelCall) -> Launch:
    """Dropout of rows read by index, in one pass."""
    x, ids, seed, out, value = *(call.operand(r) for r in ("x", "ids", "seed")), call.writes[0].at, call.value
    p, stream = value["p"], value["stream"]

    def run(slots: Slots) -> None:
        slots[out] = dense.dropout(slots[x], p, int(slots[seed]), stream, rows=slots[ids])

    return run


def scale_of_rows(call: KernelCall) -> Launch:
    """A multiple of rows read by index, in one pass."""
    x, ids, factor, out = *(call.operand(r) for r in ("x", "ids", "factor")), call.writes[0].at

    def run(slots: Slots) -> None:
        scale = empty((slots[ids].numel(),)).fill_(slots[factor])
        slots[out] = dense.rows_apply(slots[x], Epilogue(row_scale=scale), rows=slots[ids])

    return run


def scale(call: KernelCall) -> Launch:
    """Rows times a number."""
    x, out, factor = call.reads[0].at, call.writes[0].at, call.get("factor")

    def run(slots: Slots) -> None:
        rows = slots[x]
        if rows.dim() != 2:
            slots[out] = rows * factor
            return
        factors = empty((rows.shape[0],)).fill_(factor)
        slots[out] = dense.rows_apply(rows, Epilogue(row_scale=factors))

    return run


def row_scale(call: KernelCall) -> Launch:
    """Rows of any dimensions, each times its own number."""
    if len(call.body) > 1 or call.value.inputs[0].tensor.sparse:
        return interpreted(call)
    x, factors, out = call.operand("x0"), call.operand("x1"), call.writes[0].at

    def run(slots: Slots) -> None:
        rows = slots[x]
        flat = rows.reshape(rows.shape[0], prod(rows.shape[1:]))
        slots[out] = dense.rows_apply(flat, Epilogue(row_scale=slots[factors])).view(rows.shape)

    return run


def matmul_terms_of(call: KernelCall) -> Launch:
    """Several products, added up in registers."""
    out, epilogue = call.writes[0].at, _epilogue(call)
    count = sum(slot.role.startswith("weight") for slot in call.reads)
    terms, rounded = [_term(call, i) for i in range(count)], rounds(call)
    dtype = _result(call)

    def run(slots: Slots) -> None:
        operands = [term(slots) for term in terms]
        slots[out] = matmul_terms(operands, epilogue=epilogue(slots), rounds=rounded, dtype=dtype)

    return run


def _term(call: KernelCall, i: int) -> Callable[[Slots], Term]:
    """What one product of a sum reads."""
    kind, x, w, transposed = (
        call.get(f"first{i}"),
        call.operand(f"x{i}"),
        call.operand(f"weight{i}"),
        call.get(f"transposed{i}"),
    )
    if kind == "gathered":
        ids = call.operand(f"ids{i}")
        return lambda slots: Term(slots[x], slots[w], transposed, rows=slots[ids])
    if kind == "rows":
        return lambda slots: Term(slots[x], slots[w], transposed)
    graph, scale, kept = call.operand(f"graph{i}"), call.reading(f"row_scale{i}"), call.writing(f"kept{i}")
    dtype = torch.bfloat16 if call.get(f"kept{i}") == HALF[1] else torch.float32

    def summed(slots: Slots) -> Term:
        edges, source = slots[graph].csc_structure, slots[x]
        room = None if kept is None else empty((edges.num_rows, source.shape[1]), dtype)
        if kept is not None:
            slots[kept] = room
        factors = None if scale is None else slots[scale]
        return Term(source, slots[w], transposed, edges=edges, row_scale=factors, kept=room)

    return summed


def contract_terms_of(call: KernelCall) -> Launch:
    """Contractions with one second operand, which is summed over edges on the way."""
    graph, source, count = call.operand("graph"), call.operand("x"), call.get("count")
    shared = call.value.inputs[1]  # the operand that all contractions share, as wide as its column sums
    epilogue = epilogue_of(call, shared.tensor.dims[0])
    outs = [slot.at for slot in call.writes[:count]]
    lefts, rounded = [(call.operand(f"left{i}"), call.reading(f"ids{i}")) for i in range(count)], rounds(call)

    def run(slots: Slots) -> None:
        operands = [Left(slots[x], None if ids is None else slots[ids]) for x, ids in lefts]
        edges, stages = slots[graph].csc_structure, epilogue(slots)
        made = contract_terms(operands, edges, slots[source], epilogue=stages, rounds=rounded)
        for out, result in zip(outs, made, strict=True):
            slots[out] = result

    return run
