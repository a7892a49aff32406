"""Batches compiled with their sampler: equal to layer by layer and to the oracle, in every fused and unfused form."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from zoo import random_edges

from graphweft._config import config
from graphweft._memory import POOL
from graphweft.graph.graph import Graph
from graphweft.ir.interpret import interpret
from graphweft.ir.ops import STRUCTURE
from graphweft.nn.cgat import CGAT
from graphweft.nn.gat import GAT
from graphweft.nn.gcn import GCN
from graphweft.nn.gin import GIN
from graphweft.nn.sage import SAGE
from graphweft.nn.stack import Stack
from graphweft.passes.placement import Order
from graphweft.runtime import staged
from graphweft.runtime.cpu import functions
from graphweft.runtime.staged import ROWS_AHEAD, STRUCTURE_AHEAD, Choice
from graphweft.sample.neighbor import NeighborSampler
from graphweft.storage.feature import SparseFeatures

FANOUTS = [4, 3, 2]
MODELS: list[tuple[Any, dict[str, Any]]] = [
    (SAGE, {}),
    (SAGE, {"reduce": "max"}),
    (SAGE, {"norm": "batch", "residual": True}),
    (GCN, {}),
    (GCN, {"reduce": "mean", "norm": "layer"}),
    (GIN, {"train_eps": True}),
    (GIN, {}),
    (GAT, {"heads": 2}),
    (GAT, {"heads": 2, "v2": True}),
    (CGAT, {"heads": 2}),
]
FORMS = [
    ("", STRUCTURE_AHEAD),
    ("", ROWS_AHEAD),
    ("stages", STRUCTURE_AHEAD),
    ("stages", ROWS_AHEAD),
    ("stages,structure,fuse,placement", STRUCTURE_AHEAD),
    ("join", STRUCTURE_AHEAD),
]
KEY = (1, 2)


def world(nodes: int = 400, edges: int = 5000) -> tuple[Graph, Tensor, Tensor]:
    ends = random_edges(nodes, edges, seed=2)
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(nodes, 12, generator=generator)
    return Graph(ends.src, ends.dst, nodes), x, torch.randperm(nodes, generator=generator)[:30]


def model_of(kind: Any, **options: Any) -> Stack:
    torch.manual_seed(5)
    model: Stack = kind(12, 16, 8, num_layers=3, **options)
    return model.train()


def tensors_of(model: Stack) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def step(model: Stack, x: Any, graph: Graph, seeds: Tensor, slope: Tensor, form: Any = FORMS[0]) -> list[Tensor]:
    """The seeds' rows and all gradients, by one batch."""
    sampler, (disabled, ahead) = NeighborSampler(graph, FANOUTS), form
    with config(disabled_passes=disabled):
        plan = model.staged(sampler, x).compile(tensors_of(model), True, sampler.sample(seeds), Choice(ahead))
    outputs, pullback = plan.linearize(plan.prepare(seeds, KEY), tensors_of(model), 0)
    gradients = pullback(slope)
    return [outputs["out"], *(g for name, _ in model.named_parameters() if (g := gradients.get(name)) is not None)]


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize(("kind", "options"), MODELS, ids=str)
def test_every_form_agrees_with_the_oracle(kind: Any, options: dict[str, Any], form: Any) -> None:
    graph, x, seeds = world()
    model = model_of(kind, **options)
    slope = torch.randn(30, 8)
    got = step(model, x, graph, seeds, slope, form)
    function = model.staged(NeighborSampler(graph, FANOUTS), x)
    program = function.program(tensors_of(model), True)
    double = model.double()
    given = {"graph": graph, "x": x.double(), "seeds": seeds, "key": KEY, "seed": 0, **tensors_of(double)}
    out = double.staged(NeighborSampler(graph, FANOUTS), x.double()).program(tensors_of(double), True)
    assert len(out.values) == len(program.values)
    expected = interpret(out, given)["out"]
    expected.backward(slope.double())
    oracle = [expected.detach(), *(p.grad for p in double.parameters() if p.grad is not None)]
    assert len(got) == len(oracle)
    for mine, theirs in zip(got, oracle, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=2e-4, atol=2e-5 * float(1 + theirs.abs().max()))


@pytest.mark.parametrize(("kind", "options"), MODELS, ids=str)
def test_a_batch_agrees_with_the_layers_on_its_blocks(kind: Any, options: dict[str, Any]) -> None:
    graph, x, seeds = world()
    model = model_of(kind, **options)
    slope = torch.randn(30, 8)
    got = step(model, x, graph, seeds, slope)
    sample = NeighborSampler(graph, FANOUTS).sample(seeds, seed=KEY[0], epoch=KEY[1])
    out = model(sample.blocks, x[sample.n_id])
    out.backward(slope)
    for mine, theirs in zip(got, [out, *(p.grad for p in model.parameters())], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [SAGE, GCN, GIN])
def test_the_first_layer_copies_no_rows(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, x, seeds = world()
    copied: list[int] = []
    gather = functions.gather_rows

    def counting(table: Any, ids: Tensor) -> Any:
        rows = gather(table, ids)
        copied.append(rows.numel() * rows.element_size() if rows.dim() == 2 else 0)
        return rows

    monkeypatch.setattr(functions, "gather_rows", counting)
    step(model_of(kind), x, graph, seeds, torch.randn(30, 8))
    assert sum(copied) == 0
    sources = NeighborSampler(graph, FANOUTS).sample(seeds, seed=KEY[0], epoch=KEY[1]).num_nodes
    step(model_of(kind), x, graph, seeds, torch.randn(30, 8), FORMS[2])
    assert sum(copied) >= sources * x.shape[1] * 4


@pytest.mark.parametrize(("kind", "options"), [(GCN, {}), (GAT, {"heads": 2})], ids=str)
def test_a_first_layer_that_transforms_first_copies_no_rows(
    kind: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """J15: the product reads rows by index, forward and backward."""
    graph, x, seeds = world()
    copied: list[tuple[int, ...]] = []
    gather = functions.gather_rows
    watched = lambda table, ids: (copied.append(table.shape), gather(table, ids))[1]  # noqa: E731
    monkeypatch.setattr(functions, "gather_rows", watched)
    model, sampler = model_of(kind, **options), NeighborSampler(graph, FANOUTS)
    function, reference = model.staged(sampler, x), sampler.sample(seeds)
    names = sorted(function.compile(tensors_of(model), True, reference).plan.compiled.orders)
    for order in (Order.TRANSFORM, Order.AGGREGATE):
        copied.clear()
        choice = Choice(STRUCTURE_AHEAD, tuple((name, order) for name in names))
        plan = function.compile(tensors_of(model), True, reference, choice)
        outputs, pullback = plan.linearize(plan.prepare(seeds, KEY), tensors_of(model), 0)
        pullback(torch.ones_like(outputs["out"]))
        # attention reads rows twice when it aggregates first
        wanted = int(order is Order.AGGREGATE and kind is GAT)
        assert len(plan.gathered()) == copied.count(x.shape) == wanted


def test_the_peak_is_lower_by_the_rows_that_are_not_copied() -> None:
    ends = random_edges(200_000, 2_000_000, seed=2)
    graph, x = Graph(ends.src, ends.dst, 200_000), torch.randn(200_000, 64)
    torch.manual_seed(0)
    model, seeds = SAGE(64, 8, 4, num_layers=3), torch.arange(1000)
    sampler = NeighborSampler(graph, [15, 10, 5])
    sources = sampler.sample(seeds, seed=1, epoch=2).num_nodes
    peaks = []
    for disabled in ("stages", ""):
        with config(disabled_passes=disabled):
            plan = model.staged(sampler, x).compile(tensors_of(model), True, sampler.sample(seeds))
        POOL.trim()
        mapped = POOL.stats().mapped
        _, pullback = plan.linearize(plan.prepare(seeds, KEY), tensors_of(model), 0)
        pullback(torch.ones(1000, 4))
        peaks.append(POOL.stats().mapped - mapped)
    assert peaks[0] - peaks[1] > 0.8 * sources * 64 * 4


@pytest.mark.parametrize(("kind", "options"), MODELS, ids=str)
def test_no_structural_operation_is_left_to_the_model(kind: Any, options: dict[str, Any]) -> None:
    graph, x, seeds = world()
    model = model_of(kind, **options)
    sampler = NeighborSampler(graph, FANOUTS)
    plan = model.staged(sampler, x).compile(tensors_of(model), True, sampler.sample(seeds)).plan
    assert not [g.anchor for g in plan.compiled.groups if g.anchor is not None and g.anchor.op in STRUCTURE]


def test_a_batch_knows_how_long_its_first_stage_took(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, x, seeds = world()
    model, sampler, now = model_of(SAGE), NeighborSampler(graph, FANOUTS), [0.0]
    plan = model.staged(sampler, x).compile(tensors_of(model), True, sampler.sample(seeds))
    monkeypatch.setattr(staged, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def slowly(given: NeighborSampler, seeds: Tensor, key: tuple[int, int, int], is_open: bool) -> Any:
        now[0] += 5.0
        draw = given.sample_open if is_open else given.sample
        return draw(seeds, seed=key[0], epoch=key[1], stage=key[2])

    assert plan.prepare(seeds, KEY, slowly).seconds == now[0] == 5.0


@pytest.mark.parametrize("form", FORMS[:3], ids=str)
def test_bits_do_not_depend_on_threads(form: Any, threads_restored: None) -> None:
    graph, x, seeds = world(5000, 60_000)
    found = []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        found.append(step(model_of(SAGE), x, graph, seeds, torch.ones(30, 8), form))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_batches_prepared_by_many_threads_are_the_same() -> None:
    graph, x, _ = world()
    model, sampler = model_of(SAGE), NeighborSampler(graph, FANOUTS)
    plan = model.staged(sampler, x).compile(tensors_of(model), True, sampler.sample(torch.arange(20)))
    sets = [torch.arange(start, start + 20) for start in range(0, 400, 20)]
    expected = [plan.linearize(plan.prepare(s, KEY), tensors_of(model), 0)[0]["out"] for s in sets]
    got: list[Any] = [None] * len(sets)

    def work(first: int) -> None:
        for i in range(first, len(sets), 4):
            got[i] = plan.prepare(sets[i], KEY)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outs = [plan.linearize(batch, tensors_of(model), 0)[0]["out"] for batch in got]
    assert all(torch.equal(a, b) for a, b in zip(expected, outs, strict=True))


@pytest.mark.parametrize("kind", [SAGE, GCN])
def test_sparse_features_are_taken_in_the_first_stage(kind: Any) -> None:
    graph, x, seeds = world()
    x = torch.where(x > 0.5, x, 0.0)
    slope = torch.randn(30, 8)
    dense = step(model_of(kind), x, graph, seeds, slope)
    sparse = step(model_of(kind), SparseFeatures.from_dense(x), graph, seeds, slope)
    for a, b in zip(dense, sparse, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "form"), [(SAGE, FORMS[0]), (SAGE, FORMS[1]), (GAT, FORMS[0]), (GCN, FORMS[2])])
def test_dropout_is_drawn_by_the_seed_alone(kind: Any, form: Any) -> None:
    graph, x, seeds = world()
    model, sampler = model_of(kind, dropout=0.5), NeighborSampler(graph, FANOUTS)
    with config(disabled_passes=form[0]):
        plan = model.staged(sampler, x).compile(tensors_of(model), True, sampler.sample(seeds), Choice(form[1]))
    batch = plan.prepare(seeds, KEY)
    outs = [plan.linearize(batch, tensors_of(model), seed)[0]["out"] for seed in (7, 7, 8)]
    assert torch.equal(outs[0], outs[1]) and not torch.equal(outs[0], outs[2])


@pytest.mark.parametrize("own_loops", [False, True])
def test_the_sizes_of_a_batch_have_the_loops_that_layers_add(own_loops: bool) -> None:
    graph, x, seeds = world()
    if own_loops:
        graph = graph.add_self_loops()
    model = model_of(GAT, heads=2)
    sampler = NeighborSampler(graph, FANOUTS)
    plan = model.staged(sampler, x).compile(tensors_of(model), True, sampler.sample(seeds))
    drawn = sampler.sample(seeds, seed=KEY[0], epoch=KEY[1])
    rows = staged.batch_sizes(plan.plan.compiled.program, graph, x, drawn).rows
    looped = [value for value in plan.plan.compiled.program.values if value.get("loops") == "one"]
    assert looped
    for value in looped:
        block = drawn.blocks[-1 - value["hop"]]
        src, dst = block.csc.to_coo()[1], block.csc.to_coo()[0]
        assert rows[value.struct.edge] == int((src != dst).sum()) + block.num_dst
