"""Plans as data: targets that run them, texts that describe them, bytes that they move."""

from __future__ import annotations

import copy
import math
import pickle
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from nn.models import BUILT_IN, IN, MODELS, features, make, random_graph
from torch import Tensor, nn
from typed_zoo import academic

import graphweft as gw
from graphweft._errors import ConfigError
from graphweft.ir.residency import TensorType
from graphweft.nn.edges import EdgeInputs
from graphweft.runtime import targets
from graphweft.runtime.cpu.target import CPU
from graphweft.runtime.kernel_call import KernelCall, Slots
from graphweft.runtime.plan import Plan
from graphweft.runtime.sizes import measure_sizes
from graphweft.runtime.target import Bound, Launch, Target
from graphweft.runtime.targets import NULL
from graphweft.storage.feature import is_dense

GOLDEN = Path(__file__).parents[1] / "golden" / "plans"
TYPED = ("rgcn", "hgt")
_EDGE_DIM = 3
# Layers that no model of BUILT_IN has, and options that add calls; those of _WITH_EDGES read features of edges.
LAYERS: dict[str, Callable[..., nn.Module]] = {
    "cheb": partial(gw.nn.ChebConv, IN, 4),
    "gine": partial(gw.nn.GINEConv, IN, 4, edge_dim=_EDGE_DIM),
    "pna": partial(gw.nn.PNAConv, IN, 4),
    "sg": partial(gw.nn.SGConv, IN, 4),
    "gat_edges": partial(gw.nn.GAT, IN, 8, 4, heads=2, edge_dim=_EDGE_DIM),
    "gin_norm": partial(gw.nn.GIN, IN, 8, 4, norm="batch", residual=True),
    "sage_norm": partial(gw.nn.SAGE, IN, 8, 4, norm="layer", residual=True),
}
_WITH_EDGES = ("gine", "gat_edges")
ALL = (*BUILT_IN, *TYPED, *LAYERS)


class Counting(Target):
    """Runs calls by another target, or not at all, and notes each with the bytes of its dense operands and results."""

    def __init__(self, name: str, inner: Target | None) -> None:
        super().__init__(name)
        self.inner, self.seen = inner, list[tuple[KernelCall, int, int]]()
        self.before: dict[KernelCall, Slots] = {}

    def bind(self, calls: Any) -> Bound:
        bound = (self.inner or CPU).bind(calls)
        launches = [self._counted(call, launch) for call, launch in zip(calls, bound.launches, strict=True)]
        return Bound(tuple(launches), bound.generated)

    def _counted(self, call: KernelCall, launch: Launch) -> Launch:
        def run(slots: Slots) -> None:
            self.before[call] = list(slots)
            reads = {s.at: slots[s.at] for s in call.reads if isinstance(s.value.type, TensorType)}
            read = sum(x.nbytes for x in reads.values() if is_dense(x))  # before the call: it may write over one
            launch(slots)
            made = [slots[s.at] for s in call.writes if isinstance(s.value.type, TensorType)]
            self.seen.append((call, read, sum(x.nbytes for x in made)))

        return run


@pytest.fixture
def counting() -> Any:
    target = targets.register_target(Counting("counting", CPU))
    yield target
    del targets._TARGETS["counting"]


def _world(name: str) -> tuple[gw.Graph, Tensor, nn.Module]:
    torch.manual_seed(0)
    if name not in TYPED:
        return random_graph(0), features(), LAYERS[name]() if name in LAYERS else make(name)
    graph = academic()
    types, relations = len(graph.node_types), len(graph.relations)
    model = (
        gw.nn.RGCN(IN, 8, 4, num_relations=relations)
        if name == "rgcn"
        else gw.nn.HGT(IN, 8, 4, num_node_types=types, num_relations=relations, heads=2)
    )
    return graph, features(0, graph.num_nodes), model


def _edges(name: str, graph: gw.Graph) -> EdgeInputs | None:
    """Features of the edges, for those that read them."""
    if name not in _WITH_EDGES:
        return None
    return EdgeInputs(attr=torch.randn(graph.num_edges, _EDGE_DIM, generator=torch.Generator().manual_seed(1)))


def _given(edges: EdgeInputs | None) -> dict[str, EdgeInputs]:
    """Keywords of a call."""
    return {} if edges is None else {"edge_weight": edges}


def _step(model: nn.Module, graph: gw.Graph, x: Tensor, target: str) -> dict[str, Tensor]:
    twin, x = copy.deepcopy(model).eval(), x.clone().requires_grad_()
    with gw.config(target=target):
        out = twin(graph, x)
        out.square().sum().backward()
    grads = {n: p.grad for n, p in twin.named_parameters() if p.grad is not None}
    return {"out": out.detach(), "x": x.grad, **grads}


@pytest.mark.parametrize("name", [*MODELS, *TYPED])
def test_the_reference_target_runs_every_model(name: str) -> None:
    """Nothing is registered for it: what a call computes is in the call."""
    graph, x, model = _world(name)
    fast, plain = (_step(model, graph, x, target) for target in ("cpu", "reference"))
    assert fast.keys() == plain.keys() and len(fast) > 2
    for key, expected in plain.items():
        torch.testing.assert_close(fast[key], expected, rtol=2e-4, atol=2e-5, msg=lambda m, key=key: f"{key}: {m}")


def test_an_unknown_target_is_one_line() -> None:
    graph, x, model = _world("gcn")
    with (
        gw.config(target="gpu"),
        pytest.raises(ConfigError, match="expected one of cpu, cuda, null, reference, got 'gpu'"),
    ):
        model(graph, x)


@pytest.mark.parametrize("name", ALL)
def test_bytes_of_a_plan_are_those_that_its_calls_touch(name: str, counting: Counting) -> None:
    graph, x, model = _world(name)
    edges = _edges(name, graph)
    with gw.config(target="counting"):
        x.requires_grad_()
        model(graph, x, **_given(edges)).square().sum().backward()
        (plan,) = model.function.plans()
        seen = list(counting.seen)
        sizes = measure_sizes(plan.compiled.program, model.arguments(graph, x, None, edges).named(), 0)
    planned = {
        call: tuple(sum(each * sizes.rows.get(rows, 1) for rows, each in moved.items()) for moved in call.moved())
        for call in (*plan.forward, *plan.backward)
    }
    ran = [item for item in seen if item[0] in planned]
    assert [call for call, _, _ in ran] == list(planned)  # each once, in this order
    for call, read, written in ran:
        assert planned[call] == (read, written), call.label
    assert sum(read + written for _, read, written in ran) > 1000


def _bytes(text: str, rows: dict[str, int]) -> int:
    """What a sum such as ``24*V + 192`` in a printed plan stands for."""
    parts = (part.split("*") for part in text.split(" + "))
    return sum(int(part[0]) * (rows[part[1]] if len(part) > 1 else 1) for part in parts)


@pytest.mark.parametrize("name", ALL)
def test_calls_and_bytes_of_a_printed_plan_are_those_that_the_null_target_counts(name: str) -> None:
    graph, x, model = _world(name)
    x.requires_grad_()
    edges = _edges(name, graph)
    with gw.config(target="null"), NULL.counting() as seen:
        out = model(graph, x, **_given(edges))
        out.square().sum().backward()
    (plan,) = model.function.plans()
    assert plan.text + "\n" == (GOLDEN / f"{name}.txt").read_text()  # as the CPU runs it
    rows = measure_sizes(plan.compiled.program, model.arguments(graph, x, None, edges).named(), 0).rows
    _, _, listed = plan.text.partition("forward:\n")
    lines = [line for line in listed.splitlines() if line != "backward:"]
    counted = [item for item in seen if item.call in {*plan.forward, *plan.backward}]  # not of what is computed once
    assert len(lines) == len(counted) > 2
    for line, (call, read, written) in zip(lines, counted, strict=True):
        found = re.search(r"= (\w+)\(.* reads (.+) writes (.+?)( in place.*| frees.*|)$", line)
        kernel, reads, writes, _ = found.groups()
        assert kernel == call.kernel
        assert (_bytes(reads, rows), _bytes(writes, rows)) == (read, written), line
    assert not out.any() and x.grad is not None and not x.grad.any()  # nothing was computed


@pytest.mark.parametrize("mode", ["full", "mini"])
def test_a_run_on_the_null_target_makes_every_call_of_its_plans(mode: str) -> None:
    """Training, evaluation and sampling as ever, without a kernel."""
    ds = gw.synthetic("cora", scale=0.1, seed=0)
    model = gw.nn.GCN(ds.num_features, 8, ds.num_classes)
    own = {"fanouts": (3, 3), "batch_size": 50} if mode == "mini" else {}
    with gw.config(target="null"), NULL.counting() as seen:
        trainer = gw.Trainer(model, ds, mode=mode, **own)
        history = trainer.fit(2)
    assert history[-1].loss == pytest.approx(math.log(ds.num_classes), rel=1e-4)  # of equal logits
    plans = model.function.plans() if mode == "full" else [trainer.staged_plan()[0].plan]
    (plan,) = (plan for plan in plans if plan.backward)
    times = Counter(item.call for item in seen)
    batches = 3 if mode == "full" else 2 * -(-len(ds.train_idx) // 50)  # one to prepare, and two epochs
    assert {times[call] for call in plan.backward} == {batches}


def _plan(name: str) -> Plan:
    graph, x, model = _world(name)
    model(graph, x.requires_grad_(), **_given(_edges(name, graph))).square().sum().backward()
    (plan,) = model.function.plans()
    return plan


@pytest.mark.parametrize("name", ALL)
def test_plans_are_as_recorded(name: str) -> None:
    """Delete a golden file to record it anew."""
    text, path = _plan(name).text + "\n", GOLDEN / f"{name}.txt"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", ["gcn", "gat", "rgcn", "hgt"])
def test_calls_survive_pickling(name: str, counting: Counting) -> None:
    """They print the same, and run to the same bits from the same slots."""
    graph, x, model = _world(name)
    with gw.config(target="counting"), torch.no_grad():
        model(graph, x)
    plan = model.function.plans()[-1]
    forward = plan.forward
    again: tuple[KernelCall, ...] = pickle.loads(pickle.dumps(forward))
    for old, new in zip(forward, again, strict=True):
        names = [{value: str(at) for at, value in enumerate(_values(call))} for call in (old, new)]
        assert old.text(names[0]) == new.text(names[1])
    slots, others = (list(counting.before[forward[0]]) for _ in range(2))
    pairs = zip(CPU.bind(forward).launches, CPU.bind(again).launches, strict=True)
    with torch.no_grad():
        for launch, other in pairs:
            launch(slots)
            other(others)
    assert all(torch.equal(a, b) for a, b in zip(slots, others, strict=True) if is_dense(a))
    assert torch.equal(slots[forward[-1].writes[0].at], others[again[-1].writes[0].at])


def _values(call: KernelCall) -> list[Any]:
    return [slot.value for slot in (*call.reads, *call.writes)]
