"""Sizes of graphs that a plan may read, without making them, against the graphs themselves."""

from __future__ import annotations

import pytest
import torch
from zoo import random_edges

from graphweft.graph.graph import Graph
from graphweft.ir.interpret import evaluate
from graphweft.ir.ops import Op
from graphweft.ir.program import Builder, Program, Value
from graphweft.ir.residency import IndexType, StructType
from graphweft.runtime.sizes import measure_sizes

INTO = ("as it is", "loops left out and added", "looped")


def taken(into: str, turned: int) -> tuple[Program, list[Value]]:
    """The graph into some rows, turned so often; the program, and its steps."""
    b = Builder()
    graph = b.add(Op.GRAPH, name="graph", type=StructType("V", "V", "E"))
    rows = b.add(Op.INPUT, name="rows", type=IndexType("R", "V"))
    source = {"as it is": graph, "loops left out and added": None, "looped": None}[into]
    steps = []
    if source is None:
        source = b.add(Op.WITHOUT_LOOPS if into != "looped" else Op.ONE_LOOP, graph)
        steps.append(source)
    loops = {"loops": True} if into == "loops left out and added" else {}
    steps.append(b.add(Op.TAKE_DST, source, rows, **loops))
    for _ in range(turned):
        steps.append(b.add(Op.REVERSE, steps[-1]))
    return Program((graph, rows), (("out", steps[-1]),)), steps


@pytest.mark.parametrize("turned", [0, 1, 2])
@pytest.mark.parametrize("into", INTO)
def test_sizes_are_those_of_the_graphs_which_are_not_made(into: str, turned: int) -> None:
    drawn = random_edges(50, 300, 3)
    graph = Graph(drawn.src, drawn.dst, num_nodes=50)
    assert graph.has_self_loops
    rows = torch.tensor([7, 3, 20, 49, 11])
    program, steps = taken(into, turned)
    found = measure_sizes(program, {"graph": graph, "rows": rows}, 0).rows
    assert graph._taken is None and graph._looped is None
    assert graph.loopless._taken is None and graph.loopless._looped is None
    known = dict(zip(program.inputs, (graph, rows), strict=True))
    for value in steps:
        known[value] = evaluate(value, [known[operand] for operand in value.inputs])
    made, kind = known[steps[-1]], steps[-1].struct
    assert [found[name] for name in (kind.src, kind.dst, kind.edge)] == [made.num_src, made.num_dst, made.num_edges]
    assert found["R"] == 5
