"""Launchers of products on a device: edges times rows by Triton, rows times matrices by torch, epilogues by Triton.

Comes in: a :class:`KernelCall`. Goes out: a function of the slots. Registered in ``target.py``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from graphweft.graph.graph import Graph
from graphweft.runtime.cuda import edges
from graphweft.runtime.cuda.measured import csr_product, prefers_csr
from graphweft.runtime.kernel_call import KernelCall, Slots
from graphweft.runtime.target import Launch

_ROUNDED_REUSE = 4  # edges a row from which rounding all rows first costs less than it saves
_STAGES = ("row_scale", "bias", "addend", "mask", "post_scale")


class Epilogue:
    """What a call does to finished rows: operands by slot, and the column sums beside the result."""

    def __init__(self, call: KernelCall) -> None:
        self._fixed = {slot.role: slot.at for slot in call.reads if slot.role in _STAGES}
        self._relu, self._sums = bool(call.get("relu")), call.writing("col_sum")
        self._late = self._fixed.pop("post_scale", None) if self._sums is not None else None

    def __bool__(self) -> bool:
        return bool(self._fixed) or self._relu or self._sums is not None

    def run(self, slots: Slots, rows: Callable[[dict[str, Tensor], bool], Tensor]) -> Tensor:
        """The result of ``rows``, which takes operands by stage; column sums go into their slot."""
        made = rows({name: slots[at] for name, at in self._fixed.items()}, self._relu)
        if self._sums is not None:
            slots[self._sums] = made.sum(0)
        return made if self._late is None else made.mul_(slots[self._late].unsqueeze(1))

    def over(self, slots: Slots, made: Tensor) -> Tensor:
        """The stages on finished rows, in their memory."""
        if not self:
            return made
        if not self._fixed and not self._relu:
            return self.run(slots, lambda given, relu: made)
        return self.run(slots, lambda given, relu: edges.finish_rows(made, None, given, relu, over=True))


def rows(call: KernelCall) -> Launch:
    """Stages applied to rows as they are, or read by index."""
    source, ids, out, epilogue = call.operand("x"), call.reading("ids"), call.writes[0].at, Epilogue(call)

    def run(slots: Slots) -> None:
        at = None if ids is None else slots[ids]
        slots[out] = epilogue.run(slots, lambda given, relu: edges.finish_rows(slots[source], at, given, relu))

    return run


def spmm(call: KernelCall) -> Launch:
    """Rows summed over edges."""
    graph, x, out, epilogue = call.operand("graph"), call.operand("x"), call.writes[0].at, Epilogue(call)
    weight, scale, own = call.reading("weight"), call.reading("src_scale"), float(call.get("self_coef") or 0.0)
    rounds, factor = call.get("rows") == "bf16", call.reading("self_factor")

    def run(slots: Slots) -> None:
        def summed(given: dict[str, Tensor], relu: bool) -> Tensor:
            if factor is not None:  # the host does not wait for a number on the device
                given = {**given, "addend": own * slots[factor] * slots[x]}
            weights, factors = (None if at is None else slots[at] for at in (weight, scale))
            often = slots[graph].num_edges >= _ROUNDED_REUSE * slots[x].shape[0]
            rounded = torch.bfloat16 if rounds and often else None
            coef = own if factor is None else 0.0
            is_plain = factors is None and not (coef or given or relu or rounded)
            if weights is not None and is_plain and _goes_to_csr(slots[graph], slots[x]):
                return csr_product(slots[graph], slots[x], weights)
            return edges.sum_edges(slots[graph], slots[x], weights, factors, coef, given, relu, rounded)

        slots[out] = epilogue.run(slots, summed)

    return run


def _goes_to_csr(graph: Graph, x: Tensor) -> bool:
    """Whether torch's product was measured to be the faster one; batches are recorded, and have graphs of their own."""
    return not graph.is_drawn and x.dtype == torch.float32 and prefers_csr(x.device, x.shape[1])


def spmm_max(call: KernelCall) -> Launch:
    """Extrema over edges, and where each comes from."""
    graph, x, out, arg = call.operand("graph"), call.operand("x"), call.writes[0].at, call.writing("arg")
    minimum = bool(call.get("minimum"))

    def run(slots: Slots) -> None:
        slots[out], found = edges.extremum(slots[graph], slots[x], minimum, arg is not None)
        if arg is not None:
            slots[arg] = found

    return run


def matmul(call: KernelCall) -> Launch:
    """Rows times a matrix."""
    a, b, ids, out = call.operand("x"), call.operand("weight"), call.reading("ids"), call.writes[0].at
    transposed, epilogue = call.get("transposed"), Epilogue(call)

    def run(slots: Slots) -> None:
        left = slots[a] if ids is None else slots[a].index_select(0, slots[ids])
        slots[out] = epilogue.over(slots, left @ (slots[b].t() if transposed else slots[b]))

    return run


def contract(call: KernelCall) -> Launch:
    """A product that sums over rows, with the column sums of its second operand."""
    a, b, ids, out = call.operand("x"), call.operand("weight"), call.reading("ids"), call.writes[0].at
    tap = call.writing("col_sum")

    def run(slots: Slots) -> None:
        left = slots[a] if ids is None else slots[a].index_select(0, slots[ids])
        slots[out] = left.t() @ slots[b]
        if tap is not None:
            slots[tap] = slots[b].sum(0)

    return run


def matmul_terms(call: KernelCall) -> Launch:
    """Several products, added up."""
    out, epilogue = call.writes[0].at, Epilogue(call)
    count = sum(slot.role.startswith("weight") for slot in call.reads)
    terms = [_term(call, i) for i in range(count)]

    def run(slots: Slots) -> None:
        total: Tensor | None = None
        for term in terms:
            left, right = term(slots)
            total = left @ right if total is None else total.addmm_(left, right)
        assert total is not None  # there are several
        slots[out] = epilogue.over(slots, total)

    return run


def _term(call: KernelCall, i: int) -> Callable[[Slots], tuple[Tensor, Tensor]]:
    """The two factors of one product of a sum."""
    x, w, transposed = (
        call.operand(f"x{i}"),
        call.operand(f"weight{i}"),
        call.get(f"transposed{i}"),
    )
    graph, ids, scale = (call.reading(f"{role}{i}") for role in ("graph", "ids", "row_scale"))
    kept = call.writing(f"kept{i}")

    def factors(slots: Slots) -> tuple[Tensor, Tensor]:
        left = slots[x]
        if ids is not None:
            left = left.index_select(0, slots[ids])
        elif graph is not None:
            given = {} if scale is None else {"row_scale": slots[scale]}
            left = edges.sum_edges(slots[graph], left, given=given)
            if kept is not None:
                slots[kept] = left
        return left, slots[w].t() if transposed else slots[w]

    return factors


def contract_terms(call: KernelCall) -> Launch:
    """Contractions with one second operand, which is summed over edges on the way."""
    graph, source, count, epilogue = call.operand("graph"), call.operand("x"), call.get("count"), Epilogue(call)
    outs = [slot.at for slot in call.writes[:count]]
    lefts = [(call.operand(f"left{i}"), call.reading(f"ids{i}")) for i in range(count)]

    def run(slots: Slots) -> None:
        shared = epilogue.run(
            slots, lambda given, relu: edges.sum_edges(slots[graph], slots[source], given=given, relu=relu)
        )
        for out, (x, ids) in zip(outs, lefts, strict=True):
            left = slots[x] if ids is None else slots[x].index_select(0, slots[ids])
            slots[out] = left.t() @ shared

    return run


def dropout_of_rows(call: KernelCall) -> Launch:
    """Dropout of rows read by index, in one pass."""
    x, ids, seed, out = *(call.operand(role) for role in ("x", "ids", "seed")), call.writes[0].at
    p, stream = call.value["p"], call.value["stream"]

    def run(slots: Slots) -> None:
        slots[out] = edges.dropout(slots[x], p, slots[seed], stream, slots[ids])

    return run


LAUNCHERS = {
    "rows": rows,
    "spmm": spmm,
    "spmm_self": spmm,
    "spmm_max": spmm_max,
    "matmul": matmul,
    "contract": contract,
    "matmul_terms": matmul_terms,
    "contract_terms": contract_terms,
    "dropout_of_rows": dropout_of_rows,
}

__all__ = ["LAUNCHERS"]
