"""A sum over edges by its description: the loop nest that every target's writer of walks makes a kernel of.

Comes in: a call that a target has no kernel for, and whose body sums rows over edges or takes their extrema. Goes out:
a launcher, of walks over edges for these and of what the target has for all else; None where nothing of the body is a
walk. So a target that writes :class:`~graphweft.codegen.edge_nest.EdgeNest` has all sums, with weights, factors and
stages; a kernel of its own is one more implementation of the same nest. Called by ``target.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from graphweft.codegen.edge_nest import EdgeNest, edge_nest
from graphweft.graph.graph import Graph
from graphweft.ir.ops import Op
from graphweft.ir.pattern import end_of
from graphweft.ir.program import Builder, Program, Value
from graphweft.ir.residency import StructType
from graphweft.passes.edges import cover_edges
from graphweft.passes.fuse import FORWARD, group_values
from graphweft.passes.groups import EdgeWalk
from graphweft.passes.opened import open_sums
from graphweft.runtime.kernel_call import KernelCall, Launch, Slots
from graphweft.runtime.lower import lower

# (the graph whose rows are walked, what is read) -> results in the order of the sinks
Walk = Callable[[Graph, Sequence[Tensor]], Sequence[Tensor]]


def described(call: KernelCall, bind: Callable[[Sequence[KernelCall]], Sequence[Launch]]) -> Launch | None:
    """The launcher of ``call`` by the calls of its walks and of the rest, which ``bind`` finds launchers for."""
    if call.kernel == "edge_nest" or not any(value.op in (Op.SPMM, Op.SPMM_MAX) for value in call.body):
        return None  # a walk that could not be written, or no sum
    alone, turned = _alone(call)
    program = open_sums(alone)
    phase = dict.fromkeys(program.values, FORWARD)
    groups = cover_edges(program, set(), phase, partial(group_values, program, phase=phase))
    if not any(isinstance(group, EdgeWalk) for group in groups):
        return None
    at = {value: index for index, value in enumerate(program.values)}
    made = [(at[value], slot.at) for (_, value), slot in zip(program.outputs, call.writes, strict=True)]
    launches = bind([lower(group, at) for group in groups])
    given = [(at[value], int(value["name"]), value["name"] in turned) for value in program.inputs]

    def run(slots: Slots) -> None:
        env: Slots = [None] * len(at)
        for index, place, is_turned in given:
            env[index] = slots[place].reverse() if is_turned else slots[place]
        for launch in launches:
            launch(env)
        for index, place in made:
            slots[place] = env[index]

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


__all__ = ["described", "walk_of", "walking"]
