"""Calls over edges by their descriptions: loop nests that every target's writer of walks makes kernels of.

Comes in: a call that a target has no kernel for. Goes out: a launcher, of walks over edges and of what the target has
for all else; None where nothing of the body is a walk. So a target that writes
:class:`~graphweft.codegen.edge_nest.EdgeNest` has sums and extrema with weights, factors and stages, dot products of
two ends, softmax, attention, and the gradients of these; a kernel of its own is one more implementation of the same
nests. Called by ``target.py``; products with a matrix a relation go through ``described_typed.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from graphweft.codegen.edge_nest import EdgeNest, edge_nest
from graphweft.graph.graph import Graph
from graphweft.ir.ops import Op
from graphweft.ir.pattern import end_of
from graphweft.ir.program import Builder, Program, Value
from graphweft.ir.residency import StructType
from graphweft.passes.cleanup import cleanup
from graphweft.passes.edges import cover_edges
from graphweft.passes.fuse import FORWARD, group_values
from graphweft.passes.groups import EdgeWalk
from graphweft.passes.opened import open_extrema, open_softmax, open_softmax_gradient, open_sums
from graphweft.passes.opened_attention import open_attention
from graphweft.runtime.kernel_call import KernelCall, Launch, Slots
from graphweft.runtime.lower import lower

# (the graph whose rows are walked, what is read) -> results in the order of the sinks
Walk = Callable[[Graph, Sequence[Tensor]], Sequence[Tensor]]
Bind = Callable[[Sequence[KernelCall]], Sequence[Launch]]  # finds launchers


def described(call: KernelCall, bind: Bind) -> Launch | None:
    """The launcher of ``call`` by the calls of its walks and of the rest, which ``bind`` finds launchers for."""
    if call.kernel == "edge_nest" or not any(isinstance(slot.value.type, StructType) for slot in call.reads):
        return None  # a walk that could not be written, or nothing over edges
    alone, turned = _alone(call)
    walked = by_walks(alone, bind)
    if walked is None:
        return None
    given = [(value["name"], int(value["name"]), value["name"] in turned) for value in alone.inputs]
    made = [slot.at for slot in call.writes]

    def run(slots: Slots) -> None:
        inputs = {name: slots[at].reverse() if is_turned else slots[at] for name, at, is_turned in given}
        for place, result in zip(made, walked(inputs), strict=True):
            slots[place] = result

    return run


def by_walks(program: Program, bind: Bind) -> Callable[[Mapping[str, Any]], list[Tensor]] | None:
    """From the inputs of ``program`` by name to its outputs in order; None where nothing of it is a walk."""
    opened = open_softmax(open_softmax_gradient(open_sums(open_attention(program))))
    opened = cleanup(open_extrema(opened))
    phase = dict.fromkeys(opened.values, FORWARD)
    groups = cover_edges(opened, set(), phase, partial(group_values, opened, phase=phase), alone=True)
    if not any(isinstance(group, EdgeWalk) for group in groups):
        return None
    at = {value: index for index, value in enumerate(opened.values)}
    last = {operand: k for k, group in enumerate(groups) for operand in group.operands()}
    kept = {value for _, value in opened.outputs}
    over = [[at[v] for v, end in last.items() if end == k and v not in kept] for k in range(len(groups))]
    launches = bind([lower(group, at) for group in groups])

    def run(inputs: Mapping[str, Any]) -> list[Tensor]:
        env: Slots = [None] * len(at)
        for value in opened.inputs:
            env[at[value]] = inputs[value["name"]]
        for launch, read in zip(launches, over, strict=True):
            launch(env)
            for place in read:
                env[place] = None
        return [env[at[value]] for _, value in opened.outputs]

    return run


def walk_of(call: KernelCall, write: Callable[[EdgeNest, Sequence[Value], Value], Walk]) -> Launch:
    """The launcher of a walk: ``write`` makes a kernel of its nest, its results and the graph whose rows it walks.

    Raises: IRError for a nest that is not written.
    """
    graph = next(slot.value for slot in call.reads if isinstance(slot.value.type, StructType))
    results = [slot.value for slot in call.writes]
    nest, read = edge_nest(call.body, results, graph)
    return walking(call, write(nest, results, graph), read)


def walking(call: KernelCall, kernel: Walk, read: Sequence[Value]) -> Launch:
    """Runs ``kernel`` over the graph of a walk and over what it reads, in order."""
    at = {slot.value: slot.at for slot in call.reads}
    graph = next(slot.at for slot in call.reads if isinstance(slot.value.type, StructType))
    places, outs = [at[value] for value in read], [slot.at for slot in call.writes]

    def run(slots: Slots) -> None:
        for out, made in zip(outs, kernel(slots[graph], [slots[i] for i in places]), strict=True):
            slots[out] = made

    return run


def _alone(call: KernelCall) -> tuple[Program, set[str]]:
    """The body as a program of its own, whose inputs have the numbers of their slots for names.

    Beside it the names of graphs that the slot has turned around.
    """
    builder, new, turned = Builder(), dict[Value, Value](), set[str]()
    for slot in call.reads:
        base, is_turned = end_of(slot.value)
        if base not in new:
            leaf = Op.GRAPH if isinstance(base.type, StructType) else Op.INPUT
            new[base] = builder.add(leaf, name=str(slot.at), type=base.type)
            turned |= {str(slot.at)} if is_turned else set()
        new[slot.value] = builder.add(Op.REVERSE, new[base]) if is_turned else new[base]
    inputs = tuple(value for value in dict.fromkeys(new.values()) if value.op is not Op.REVERSE)
    for value in call.body:
        new[value] = builder.like(value, tuple(new[operand] for operand in value.inputs))
    return Program(inputs, tuple((slot.role, new[slot.value]) for slot in call.writes)), turned


__all__ = ["Bind", "by_walks", "described", "walk_of", "walking"]
