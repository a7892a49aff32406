"""Attention in the IR: its meaning against softmax written out, gradient rules, what the kernels keep, refusals."""

from __future__ import annotations

import pytest
import torch
from ir.programs import WIDTH, Writer, attention, random_inputs
from ir.test_grad import compare_with_autograd
from zoo import ZOO

from graphweft._errors import IRError
from graphweft.ir.interpret import interpret
from graphweft.ir.ops import Op

SCORES = ("add", "add2", "dot")


def _scores(score, x, a, b, j, i):
    leaky = torch.nn.functional.leaky_relu
    if score == "add":
        return leaky(a[j] + b[i], 0.2)
    return (leaky(x[j] + a[i], 0.2) * b).sum(-1) if score == "add2" else 0.5 * (a[j] * b[i]).sum(-1)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("name", ZOO)
def test_meaning_is_the_softmax_of_each_nodes_in_edges(name, score):
    w = Writer()
    program = w.done(out=attention(w, score), stats=attention(w, score, Op.ATTENTION_STATS))
    edges = ZOO[name]
    inputs = random_inputs(program, edges)
    x, a, b = (inputs[key] for key in "xab")
    found = interpret(program, inputs)
    for i in range(edges.num_nodes):
        j = torch.from_numpy(edges.src[edges.dst == i])
        expected = torch.zeros(2, WIDTH, dtype=x.dtype)
        if len(j):
            scores = torch.stack([_scores(score, x, a, b, int(s), i) for s in j])
            expected = (torch.softmax(scores, 0)[:, :, None] * x[j]).sum(0)
            top = scores.max(0).values
            torch.testing.assert_close(found["stats"][i, :2], top)
            torch.testing.assert_close(found["stats"][i, 2:4], 1 / (scores - top).exp().sum(0))
        else:
            assert not found["stats"][i].any()
        torch.testing.assert_close(found["out"][i], expected)


@pytest.mark.parametrize("p", [0.0, 0.4])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("name", ZOO)
def test_gradient_rule_agrees_with_autograd(name, score, p):
    w = Writer()
    program = w.done(out=attention(w, score, p=p))
    compare_with_autograd(program, random_inputs(program, ZOO[name]))


@pytest.mark.parametrize("name", ZOO)
def test_heads_may_share_their_values(name):
    w = Writer()
    program = w.done(out=attention(w, "add", shared=True), stats=attention(w, "add", Op.ATTENTION_STATS, shared=True))
    inputs = random_inputs(program, ZOO[name])
    w = Writer()
    apart = w.done(out=attention(w, "add"), stats=attention(w, "add", Op.ATTENTION_STATS))
    wanted = interpret(apart, {**inputs, "x": inputs["x"].expand(-1, 2, -1)})
    for key, value in interpret(program, inputs).items():
        torch.testing.assert_close(value, wanted[key])
    w = Writer()
    dropped = w.done(out=attention(w, "add", p=0.4, shared=True))
    compare_with_autograd(dropped, random_inputs(dropped, ZOO[name]))


def test_only_sums_of_scores_share_values():
    w = Writer()
    for score in ("add2", "dot"):
        with pytest.raises(IRError, match=r"attention: expected dst\[V x 1 x 3\]"):
            attention(w, score, shared=True)


def test_wrong_operands_are_refused():
    w = Writer()
    add = w.b.add
    attrs = {"score": "add", "alpha": 0.2, "scale": 1.0, "p": 0.0, "stream": 0}
    x, s, t = w.rows_of("x", 2, 3), w.rows_of("s", 2), w.rows_of("t", 3)
    with pytest.raises(IRError, match=r"attention: expected dst\[V x 2\]"):
        add(Op.ATTENTION, w.graph(), x, s, t, **attrs)
    with pytest.raises(IRError, match="expected a score among add, add2, dot, got mul"):
        add(Op.ATTENTION, w.graph(), x, s, s, **{**attrs, "score": "mul"})
    with pytest.raises(IRError, match=r"a seed exactly when p is not 0, got 0\.5"):
        add(Op.ATTENTION, w.graph(), x, s, s, **{**attrs, "p": 0.5})
