"""Fused attention and the gradient of a softmax, written out for walks: the same numbers, and no weight is stored."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from ir.programs import Writer, random_inputs
from zoo import ZOO

from graphweft.ir.grad import differentiate
from graphweft.ir.interpret import interpret
from graphweft.ir.ops import Op
from graphweft.ir.program import Program, Value
from graphweft.ir.residency import Residency
from graphweft.ir.verify import verify
from graphweft.passes.cleanup import cleanup
from graphweft.passes.edges import cover_edges
from graphweft.passes.fuse import FORWARD, group_values
from graphweft.passes.groups import EdgeWalk
from graphweft.passes.opened import open_softmax_gradient
from graphweft.passes.opened_attention import open_attention

H, C = 3, 4
FUSED = (Op.ATTENTION, Op.ATTENTION_STATS, Op.ATTENTION_GRAD)


def attention(score: str, p: float = 0.0, shared: bool = False) -> Program:
    """An attention with all of its gradients."""
    w = Writer()
    x = w.rows_of("x", 1 if shared else H, C)
    operands = {
        "add": lambda: (w.rows_of("a", H), w.rows_of("b", H)),
        "add2": lambda: (w.rows_of("a", H, C), w.shared("b", H, C)),
        "dot": lambda: (w.rows_of("a", H, C), w.rows_of("b", H, C)),
    }[score]()
    seed = (w.seed(),) if p else ()
    attrs = {"score": score, "alpha": 0.2, "scale": 0.5 if score == "dot" else 1.0, "p": p, "stream": 3}
    return differentiate(w.done(out=w.b.add(Op.ATTENTION, w.graph(), x, *operands, *seed, **attrs)), ["x", "a", "b"])


@pytest.mark.parametrize("graph", ZOO)
@pytest.mark.parametrize("p", [0.0, 0.4])
@pytest.mark.parametrize(("score", "shared"), [("add", False), ("add", True), ("add2", False), ("dot", False)])
def test_attention_written_out_is_the_same(score: str, shared: bool, p: float, graph: str) -> None:
    program = attention(score, p, shared)
    opened = open_attention(program)
    verify(opened)
    assert program.count(*FUSED) > 4 and not opened.count(*FUSED)
    inputs = random_inputs(program, ZOO[graph])
    expected, found = interpret(program, inputs), interpret(opened, inputs)
    assert expected.keys() == found.keys() == {"out", "grad:x", "grad:a", "grad:b"}
    for name, wanted in expected.items():
        torch.testing.assert_close(found[name], wanted, rtol=1e-9, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")


def test_what_gradients_read_is_the_same() -> None:
    program = attention("add", 0.4)
    stats = next(value for value in program.values if value.op is Op.ATTENTION_STATS)
    kept = Program(program.inputs, (("stats", stats),))
    inputs = random_inputs(program, ZOO["power_law"])
    wanted = interpret(kept, inputs)["stats"]
    torch.testing.assert_close(interpret(open_attention(kept), inputs)["stats"], wanted, rtol=1e-9, atol=1e-10)


def _walks(program: Program) -> list[EdgeWalk]:
    phase = dict.fromkeys(program.values, FORWARD)
    groups = cover_edges(program, set(), phase, partial(group_values, program, phase=phase, fuse=False), alone=True)
    assert not any(_at_edges(group.result) for group in groups if not isinstance(group, EdgeWalk))
    return [group for group in groups if isinstance(group, EdgeWalk)]


def _at_edges(value: Value) -> bool:
    return value.op is not Op.REVERSE and value.tensor.residency is Residency.EDGE


@pytest.mark.parametrize(("score", "walks"), [("add", 3), ("add2", 4), ("dot", 4)])
def test_a_softmax_is_two_walks_and_its_gradients_are_one_a_direction(score: str, walks: int) -> None:
    """Nothing of an edge is stored; of GAT's scores the destinations' part follows from sums of rows."""
    found = _walks(cleanup(open_attention(attention(score))))
    assert len(found) == walks
    assert not any(_at_edges(value) for walk in found for value in (walk.result, *walk.taps))


@pytest.mark.parametrize("graph", ZOO)
def test_the_gradient_of_a_softmax_written_out_is_the_same(graph: str) -> None:
    w = Writer()
    scores, slopes = w.edges("scores", H), w.edges("slopes", H)
    softmax = w.b.add(Op.EDGE_SOFTMAX, w.graph(), scores, whole=True)
    program = w.done(out=w.b.add(Op.EDGE_SOFTMAX_GRAD, w.graph(), softmax, slopes))
    opened = open_softmax_gradient(program)
    verify(opened)
    assert not opened.count(Op.EDGE_SOFTMAX_GRAD)
    inputs = random_inputs(program, ZOO[graph])
    wanted = interpret(program, inputs)["out"]
    torch.testing.assert_close(interpret(opened, inputs)["out"], wanted, rtol=1e-9, atol=1e-10)
