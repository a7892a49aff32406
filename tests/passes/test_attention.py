"""Raising attention: forms that become one operation, forms that must not, and nothing of edge size left."""

from __future__ import annotations

import pytest
import torch
from ir.programs import Writer, random_inputs
from zoo import ZOO

from graphweft.graph.graph import Graph
from graphweft.ir.grad import differentiate
from graphweft.ir.interpret import interpret
from graphweft.ir.ops import Op
from graphweft.ir.residency import Residency
from graphweft.ir.verify import verify
from graphweft.nn import GATConv, GATv2Conv
from graphweft.passes.attention import raise_attention
from graphweft.passes.demand import push_demand

H, C = 2, 3


def sent(w, score):
    """What is scored, per edge and head."""
    add, g = w.b.add, w.graph()
    src, dst = lambda v: add(Op.BROADCAST_SRC, g, v), lambda v: add(Op.BROADCAST_DST, g, v)
    x = w.rows_of("x", H, C)
    if score == "gat":
        total = add(Op.EWISE, src(w.rows_of("s", H)), dst(w.rows_of("t", H)), fn="add")
        return add(Op.EWISE, total, fn="leaky_relu", alpha=0.2)
    if score == "gat_column":  # as ``(h * a).sum(-1, keepdim=True)`` leaves it, ends the other way around
        ends = [add(Op.RESHAPE, w.rows_of(n, H), dims=(H, 1)) for n in "st"]
        total = add(Op.EWISE, dst(ends[1]), src(ends[0]), fn="add")
        return add(Op.EWISE, total, fn="leaky_relu", alpha=0.2)
    if score == "gatv2":
        total = add(Op.EWISE, dst(w.rows_of("y", H, C)), src(x), fn="add")
        unit = add(Op.EWISE, total, fn="leaky_relu", alpha=0.2)
        return add(Op.SUM_DIMS, add(Op.EWISE, unit, w.shared("a", H, C), fn="mul"), axes=(1,))
    if score == "dot":
        product = add(Op.EWISE, src(w.rows_of("k", H, C)), dst(w.rows_of("q", H, C)), fn="mul")
        scale = add(Op.CONST, value=0.5, dtype=torch.float64)
        return add(Op.EWISE, add(Op.SUM_DIMS, product, axes=(1,)), scale, fn="mul")
    assert score == "einsum"
    return add(Op.EINSUM, src(w.rows_of("k", H, C)), dst(w.rows_of("q", H, C)), spec="nhc,nhc->nh")


def written(score, *, swapped=False, expand=False):
    w = Writer()
    add, g = w.b.add, w.graph()
    weights = add(Op.EDGE_SOFTMAX, g, sent(w, score))
    weights = add(Op.RESHAPE, weights, dims=(H, 1))
    if expand:
        weights = add(Op.EXPAND, weights, dims=(H, C))
    factors = (weights, add(Op.BROADCAST_SRC, g, w.rows_of("x", H, C)))
    message = add(Op.EWISE, *(factors[::-1] if swapped else factors), fn="mul")
    return w.done(out=add(Op.REDUCE, g, message, kind="sum"))


@pytest.mark.parametrize("name", ["power_law", "multi_edges", "isolated", "no_edges"])
@pytest.mark.parametrize("form", [{}, {"swapped": True}, {"expand": True}], ids=["plain", "swapped", "expand"])
@pytest.mark.parametrize("score", ["gat", "gat_column", "gatv2", "dot", "einsum"])
def test_raised_programs_compute_the_same(score, form, name):
    before = written(score, **form)
    after = raise_attention(before)
    verify(after)
    assert after.count(Op.ATTENTION) == 1 and after.count(Op.REDUCE, Op.EDGE_SOFTMAX, Op.BROADCAST_SRC) == 0
    inputs = random_inputs(before, ZOO[name])
    wanted = [v["name"] for v in before.inputs if v["name"] != "graph"]
    inputs["d:out"] = torch.randn(ZOO[name].num_nodes, H, C, dtype=torch.float64)
    found = interpret(differentiate(after, wanted), inputs)
    for key, value in interpret(differentiate(before, wanted), inputs).items():
        torch.testing.assert_close(found[key], value, rtol=1e-9, atol=1e-9)


def test_what_is_no_attention_stays():
    w = Writer()
    add, g = w.b.add, w.graph()
    x, s, t = w.rows_of("x", H, C), w.rows_of("s", H), w.rows_of("t", H)
    total = add(Op.EWISE, add(Op.BROADCAST_SRC, g, s), add(Op.BROADCAST_DST, g, t), fn="add")
    turned = add(Op.REVERSE, g)
    rows = add(Op.BROADCAST_SRC, g, x)
    for scores, graph, rows_ in (
        (total, g, rows),  # no leaky unit
        (add(Op.EWISE, total, fn="leaky_relu", alpha=1.5), g, rows),
        (add(Op.EWISE, total, fn="leaky_relu", alpha=0.2), turned, rows),  # normalised over the other end
        (add(Op.EWISE, total, fn="leaky_relu", alpha=0.2), g, add(Op.BROADCAST_DST, g, x)),
    ):
        weights = add(Op.RESHAPE, add(Op.EDGE_SOFTMAX, graph, scores), dims=(H, 1))
        out = add(Op.REDUCE, g, add(Op.EWISE, weights, rows_, fn="mul"), kind="sum")
        program = w.done(out=out)
        assert str(raise_attention(program)) == str(program)


@pytest.mark.parametrize("score", ["gat", "gatv2", "dot"])
def test_row_demand_restricts_the_edges(score):
    program = raise_attention(written(score))
    w = Writer()
    rows = w.rows()
    out = w.b.add(Op.TAKE_ROWS, program.output("out"), rows)
    whole = type(program)((*program.inputs, rows), (("out", out),))
    pushed = push_demand(whole)
    verify(pushed)
    assert pushed.count(Op.TAKE_DST) == 1 and pushed.output("out").op is Op.ATTENTION
    inputs = random_inputs(whole, ZOO["power_law"])
    torch.testing.assert_close(interpret(pushed, inputs)["out"], interpret(whole, inputs)["out"])


def test_row_demand_leaves_attention_whole_whose_weights_are_dropped(tmp_path, monkeypatch):
    """What is dropped is keyed by places of edges: nothing for the certificates to refuse (warnings are errors)."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    edges = ZOO["power_law"]
    graph, rows = Graph(edges.src, edges.dst, num_nodes=edges.num_nodes), torch.arange(0, edges.num_nodes, 3)
    model, x = GATConv(5, 8, heads=2, dropout=0.5).train(), torch.randn(edges.num_nodes, 5)
    torch.manual_seed(0)
    whole = model(graph, x)
    torch.manual_seed(0)
    assert torch.equal(model(graph, x, rows), whole[rows])


@pytest.mark.parametrize("layer", [GATConv, GATv2Conv])
def test_no_value_of_edge_size_is_left_forward_or_backward(layer):
    """SPEC P11, P12, M13."""
    edges = ZOO["power_law"]
    graph, model = Graph(edges.src, edges.dst, num_nodes=edges.num_nodes), layer(5, 8, heads=2)
    x = torch.randn(edges.num_nodes, 5, requires_grad=True)
    model(graph, x).sum().backward()
    (plan,) = model.function.plans()
    values = plan.compiled.program.values
    assert plan.compiled.program.count(Op.ATTENTION, Op.ATTENTION_GRAD) == 4
    assert not [v for v in values if getattr(v.type, "residency", None) is Residency.EDGE]
