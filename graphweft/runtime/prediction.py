"""Predicted seconds of the calls of a plan, what generated walks compute for every edge included.

Comes in: a plan, the numbers behind its symbols and the number of threads. Goes out: seconds, call by call. The orders
of a plan are decided by ``passes/work.py``, which prices what walks read; what they compute is the same work in either
order but for widths, and is added here from the loop nest itself. Called by ``explanation.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from graphweft.codegen.edge_nest import EdgeNest, Step, edge_nest
from graphweft.cost import CostModel, Works, call_work
from graphweft.passes.work import Sizes
from graphweft.runtime.kernel_call import KernelCall
from graphweft.runtime.plan import Plan

THREADS = 2  # the built-in coefficients of the cost model are those of so many

# Nanoseconds on one thread, measured on walks over 4 to 64 columns of float32: of an element, by the function that
# makes it, and of a sum across the lanes of a vector, however many it adds up.
SIMPLE, ACROSS, LANES = 0.04, 18.0, 16
_ELEMENT = {
    **dict.fromkeys(("div", "reciprocal", "sqrt", "sqrt0"), 0.25),
    "rsqrt": 0.5,
    "sigmoid": 1.2,
    **dict.fromkeys(("exp", "expm1", "log", "log1p", "tanh", "elu", "sin", "cos"), 1.9),
    "pow": 12.0,
    "erf": 13.0,
}


def edge_nanoseconds(nest: EdgeNest) -> float:
    """What a walk computes for one edge, on one thread."""
    sinks = sum(_whole(prod(sink.dims)) for sink in nest.sinks)
    return sum(_of_step(nest, step) for step in nest.steps) + SIMPLE * sinks


def _whole(elements: int) -> int:
    """Elements in whole vectors."""
    return -(-elements // LANES) * LANES


def _of_step(nest: EdgeNest, step: Step) -> float:
    if step.kind == "ewise":
        return _whole(prod(step.dims)) * _ELEMENT.get(str(step["fn"]), SIMPLE)
    if step.kind != "sum":
        return 0.0  # rearranged as it is read
    domain = nest.dims_of(step.operands[0])
    across = len(domain) - 1 in step["axes"] and domain[-1] > 1
    return SIMPLE * _whole(prod(domain)) + ACROSS * prod(step.dims) * across


def predicted(
    plan: Plan, calls: Sequence[KernelCall], sizes: Sizes, threads: int, model: CostModel | None = None
) -> list[float]:
    """Seconds of every call of ``calls``, which are calls of ``plan``; ``model``: None for that which decided it."""
    model = model or plan.compiled.model
    scale = THREADS / threads if model == CostModel() else 1.0  # a fitted model has seen the threads that there are
    return [sum(map(model.seconds, call.works)) * scale + computed(call, sizes) / threads for call in calls]


def plan_works(plan: Plan, sizes: Sizes) -> tuple[Works, float]:
    """What the calls of ``plan`` do at other sizes, made one by one, and the seconds on one thread of its walks."""
    calls, found = [*plan.forward, *plan.backward], plan.works_at(sizes)
    done = (next((found[slot.value] for slot in call.writes if slot.value in found), ()) for call in calls)
    works: Works = [(work, 1.0) for of_call in done for work in of_call]
    return [*works, (call_work(), len(calls))], sum(computed(call, sizes) for call in calls)


def computed(call: KernelCall, sizes: Sizes) -> float:
    """Seconds that a walk over edges computes, on one thread."""
    if call.kernel != "edge_nest":
        return 0.0
    graph = call.reads[0].value
    nest, _ = edge_nest(call.body, tuple(slot.value for slot in call.writes), graph)
    return 1e-9 * edge_nanoseconds(nest) * sizes.rows.get(graph.struct.edge, 1)


__all__ = ["THREADS", "computed", "edge_nanoseconds", "plan_works", "predicted"]
