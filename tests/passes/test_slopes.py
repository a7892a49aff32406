"""Sums of slopes in the forward walk: values and gradients against float64, walks counted, and what is left alone."""

from __future__ import annotations

import pytest
import torch
from codegen.regions import Edges, Region
from codegen.test_edges import arguments, compare, fields_of, function_of, needs_compiler
from zoo import CASES, power_law_edges

import graphweft as gw
from graphweft._config import config
from graphweft.ir.ops import Op
from graphweft.ir.program import Value
from graphweft.ir.residency import TensorType
from graphweft.passes import pipeline
from graphweft.passes.groups import EdgeWalk
from graphweft.runtime.compile import Standing
from graphweft.runtime.plan import Plan
from graphweft.sample.neighbor import NeighborSampler

pytestmark = needs_compiler


@pytest.fixture(autouse=True)
def _kernels_for_small_graphs(monkeypatch):
    monkeypatch.setattr(pipeline, "WORTH_A_KERNEL", 0)


def gate(e: Edges) -> dict[str, Value]:
    return {"out": e.reduce(e.f("mul", e.f("sigmoid", e.f("add", e.dst(), e.src())), e.src()))}


def gate_mean(e: Edges) -> dict[str, Value]:
    return {"out": e.reduce(e.f("mul", e.f("tanh", e.f("add", e.dst(), e.src())), e["edge:e"]), "mean")}


def modulation(e: Edges) -> dict[str, Value]:
    """Two operands of the destination, of which one is a product of features."""
    shift = e.f("square", e["dst:h"])
    return {"out": e.reduce(e.f("relu", e.f("add", e.f("mul", e.dst(), e.src()), e.dst(shift))))}


def leaky_difference(e: Edges) -> dict[str, Value]:
    """Slopes on both sides of a choice, a quotient, a difference and a scale."""
    leaky = e.f("leaky_relu", e.f("sub", e.src(), e.dst()), alpha=0.2)
    return {"out": e.reduce(e.f("div", e.b.add(Op.SCALE, leaky, factor=0.5), e.f("exp", e.src())))}


def heads(e: Edges) -> dict[str, Value]:
    far, near = e.src("src:k"), e.dst("dst:k")
    return {"out": e.reduce(e.shaped(e.f("sigmoid", e.f("mul", far, near)), 18))}


def twice(e: Edges) -> dict[str, Value]:
    """Two layers: the second one's gradients are the first one's."""
    first = gate(e)["out"]
    return {"out": e.reduce(e.f("mul", e.f("sigmoid", e.f("add", e.dst(first), e.src())), e.src()))}


def largest(e: Edges) -> dict[str, Value]:
    return {"out": e.reduce(e.f("tanh", e.f("add", e.dst(), e.src())), "max")}


def weighted_by_softmax(e: Edges) -> dict[str, Value]:
    """A softmax a channel: its gradient needs a sum over the row, which is the gradient times the result."""
    weight = e.softmax(e.f("tanh", e.f("add", e.dst(), e.src())))
    return {"out": e.reduce(e.f("mul", weight, e.src()))}


def score_of_ends(e: Edges) -> dict[str, Value]:
    """The slope of a channel needs the gradients of all others."""
    score = e.total(e.f("mul", e.dst(), e.src()), 0)
    return {"out": e.reduce(e.f("mul", e.shaped(e.f("tanh", score), 1), e.f("sin", e.src())))}


def three_operands(e: Edges) -> dict[str, Value]:
    """Three sums would be kept for one walk."""
    scale, shift = e.dst(e.f("sin", e["dst:h"])), e.dst(e.f("square", e["dst:h"]))
    inner = e.f("add", e.f("mul", e.f("tanh", e.f("mul", e.dst(), e.src())), scale), shift)
    return {"out": e.reduce(e.f("tanh", inner))}


# region -> sums that are new, walks that go
SUMMED: dict[str, tuple[Region, int, int]] = {
    "gate": (gate, 1, 1), "gate_mean": (gate_mean, 1, 1), "modulation": (modulation, 2, 1),
    "leaky_difference": (leaky_difference, 1, 1), "heads": (heads, 1, 1), "twice": (twice, 2, 2),
    "weighted_by_softmax": (weighted_by_softmax, 0, 1),
}  # fmt: skip
LEFT = {f.__name__: f for f in (largest, score_of_ends, three_operands)}


def plan_of(region: Region, off: str = "", dtype: torch.dtype = torch.float32) -> Plan:
    edges = power_law_edges(60, 400, seed=4)
    graph = gw.Graph(edges.src, edges.dst, num_nodes=60)
    with config(disabled_passes=off):
        return function_of(region).compile(arguments(graph, fields_of(graph, dtype)), Standing())


def walks(plan: Plan, phase: int) -> list[int]:
    """How many results each walk of a phase has."""
    groups = [g for g in plan.compiled.groups if isinstance(g, EdgeWalk) and plan.compiled.phase[g.result] == phase]
    return [1 + len(group.taps) for group in groups]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("name", SUMMED)
def test_a_backward_walk_becomes_results_of_the_forward_walk(name, dtype):
    region, sums, gone = SUMMED[name]
    plan, before = plan_of(region, dtype=dtype), plan_of(region, "slopes", dtype)
    assert sum(walks(plan, 0)) == sum(walks(before, 0)) + sums
    assert len(walks(plan, 0)) == len(walks(before, 0))
    assert len(walks(plan, 1)) == len(walks(before, 1)) - gone
    assert "slopes" in dict(plan.compiled.trace)
    assert {"slopes"} <= {c.name for c in plan.compiled.certificates if c.verdict == "holds"}


@pytest.mark.parametrize("name", SUMMED)
def test_only_the_sums_are_kept_in_addition(name):
    region, sums, _ = SUMMED[name]
    plan, before = plan_of(region), plan_of(region, "slopes")
    kept, kept_before = (
        [p.compiled.program.values[slot] for slot in p.saved if slot not in p.saved_outputs] for p in (plan, before)
    )
    kept, kept_before = ([v for v in values if _wide(v)] for values in (kept, kept_before))
    assert len(kept) - len(kept_before) == sums
    assert not [v for v in kept if v.tensor.rows == "E" and v.op is not Op.INPUT]


def _wide(value: Value) -> bool:
    """Whether it is rows of features that a call made."""
    made = value.op is not Op.INPUT and isinstance(value.type, TensorType)
    return made and value.tensor.rows is not None and value.tensor.dims != ()


@pytest.mark.parametrize("name", LEFT)
def test_left_alone(name):
    assert plan_of(LEFT[name]).text == plan_of(LEFT[name], "slopes").text


def test_without_gradients_nothing_is_kept():
    edges = power_law_edges(60, 400, seed=4)
    graph = gw.Graph(edges.src, edges.dst, num_nodes=60)
    fields = {name: (x.detach(), where) for name, (x, where) in fields_of(graph, torch.float32).items()}
    plan = function_of(gate).compile(arguments(graph, fields), Standing())
    assert walks(plan, 0) == [1]
    assert not plan.backward


@pytest.mark.parametrize("name", SUMMED)
def test_values_and_gradients_are_those_of_float64(name):
    """Isolated nodes, hubs, loops and parallel edges among the graphs of the zoo."""
    function, other = function_of(SUMMED[name][0]), function_of(SUMMED[name][0])
    for case in CASES:
        if case.num_edges:
            compare(function, case.graph(), 1e-10, torch.float64)
    for case in CASES[::4]:
        if case.num_edges:
            compare(other, case.graph())


@pytest.mark.parametrize("name", ["gate_mean", "modulation"])
def test_blocks(name):
    """Sources and destinations are different nodes."""
    edges = power_law_edges(80, 500, seed=2)
    whole = gw.Graph(edges.src, edges.dst, num_nodes=80)
    block = NeighborSampler(whole, [-1]).sample(range(0, 80, 3)).blocks[0]
    assert block.num_src > block.num_dst
    function = function_of(SUMMED[name][0])
    compare(function, block, 1e-10, torch.float64)
    (plan,) = function.plans()
    assert walks(plan, 0) == [1 + SUMMED[name][1]]
    assert len(walks(plan, 1)) == 1


def test_infinite_gradients_do_not_reach_nodes_without_edges():
    """As one over a degree of 0 gives them: the gradient is 0 there, as that of a sum over nothing."""
    graph = gw.Graph([0, 1, 2], [1, 2, 1], num_nodes=4)
    fields = fields_of(graph, torch.float64)
    function = function_of(gate)
    out = function(arguments(graph, fields))["out"]
    (walk,) = [w for w in [walks(p, 0) for p in function.plans()] if w]
    assert walk == [2]
    given = torch.ones_like(out)
    given[[0, 3]] = torch.inf
    (found,) = torch.autograd.grad(out, fields["dst:h"][0], given)
    assert torch.equal(found[[0, 3]], torch.zeros(2, found.shape[1], dtype=torch.float64))
    assert bool(found[[1, 2]].isfinite().all())
