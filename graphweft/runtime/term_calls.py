"""Groups with stages or several products, as calls of their launchers.

Comes in: a :class:`Group` and the slots of its operands. Goes out: what builds its epilogue at each call, or the call.
Called by ``lower.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from graphweft._memory import empty
from graphweft.ir.program import Value
from graphweft.passes.fuse import Group, Term
from graphweft.runtime.epilogue import Epilogue
from graphweft.runtime.terms import Left, contract_terms, matmul_terms
from graphweft.runtime.terms import Term as Operand

Slots = list[Any]
Call = Callable[[Slots], None]


def epilogue_of(group: Group, slot: Mapping[Value, int]) -> Callable[[Slots], Epilogue | None]:
    """How to build the epilogue of each call; the column sums are allocated and put into their slot."""
    if not group.stages:
        return lambda env: None
    fixed = {name: slot[v] for name, v in group.stages.items() if v is not None}
    relu = "relu" in group.stages
    tap = slot[group.taps[0]] if "col_sum" in group.stages else None
    width, is_short = group.result.tensor.dims[0], group.padded is not None

    def build(env: Slots) -> Epilogue:
        operands = {name: env[i] for name, i in fixed.items()}
        if is_short:
            operands["addend_rows"] = operands["addend"].shape[0]
        if tap is not None:
            operands["col_sum"] = env[tap] = torch.empty(width)
        return Epilogue(relu=relu, **operands)

    return build


def lower(group: Group, slot: Mapping[Value, int]) -> Call:
    """The call of a group with several products."""
    if group.terms[0].shared is not None:
        return _contractions(group, group.terms[0].shared, slot)
    out, epilogue = slot[group.result], epilogue_of(group, slot)
    terms = [_term(group, term, slot) for term in group.terms]

    def call(env: Slots) -> None:
        env[out] = matmul_terms([term(env) for term in terms], epilogue=epilogue(env))

    return call


def _term(group: Group, term: Term, slot: Mapping[Value, int]) -> Callable[[Slots], Operand]:
    """What one product of a group reads."""
    left, weight = term.product.inputs
    w, transposed = slot[weight], bool(term.product.get("tb"))
    if term.gather is not None:
        table, ids = (slot[v] for v in term.gather.inputs)
        return lambda env: Operand(env[table], env[w], transposed, rows=env[ids])
    if term.sums is None:
        x = slot[left]
        return lambda env: Operand(env[x], env[w], transposed)
    assert term.sums.anchor is not None  # an aggregation
    graph, source = (slot[v] for v in term.sums.anchor.inputs)
    factor = term.sums.stages.get("row_scale")
    scale, kept = None if factor is None else slot[factor], slot[left] if left in group.taps else None

    def summed(env: Slots) -> Operand:
        edges, x = env[graph].csc_structure, env[source]
        room = None if kept is None else empty((edges.num_rows, x.shape[1]), x.dtype)
        if kept is not None:
            env[kept] = room
        factors = None if scale is None else env[scale]
        return Operand(x, env[w], transposed, edges=edges, row_scale=factors, kept=room)

    return summed


def _contractions(group: Group, shared: Group, slot: Mapping[Value, int]) -> Call:
    """Contractions with one second operand, which is summed over edges on the way."""
    assert shared.anchor is not None  # an aggregation
    graph, source = (slot[v] for v in shared.anchor.inputs)
    epilogue = epilogue_of(shared, slot)
    outs = [slot[term.product] for term in group.terms]
    lefts = []
    for term in group.terms:
        table, ids = (term.product.inputs[0], None) if term.gather is None else term.gather.inputs
        lefts.append((slot[table], None if ids is None else slot[ids]))

    def call(env: Slots) -> None:
        operands = [Left(env[x], None if ids is None else env[ids]) for x, ids in lefts]
        made = contract_terms(operands, env[graph].csc_structure, env[source], epilogue=epilogue(env))
        for out, result in zip(outs, made, strict=True):
            env[out] = result

    return call
