"""Batches prepared as subtasks: the sampler's own batches, bit for bit, and an order that keeps every rule."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from zoo import SQUARE, Case

from graphweft._errors import ConfigError, IndexRangeError
from graphweft.data.synthetic import synthetic
from graphweft.graph.graph import Graph
from graphweft.loader.loader import Loader
from graphweft.nn.sage import SAGE
from graphweft.runtime.tier import Tier
from graphweft.sample.layer_wise import LayerSampler
from graphweft.sample.neighbor import NeighborSampler
from graphweft.sample.sampler import Sample
from graphweft.schedule import subtasks as module
from graphweft.schedule.subtasks import Prepared, Subtasks
from graphweft.schedule.tasks import makespan, violations
from graphweft.storage.feature import SparseFeatures
from graphweft.train.trainer import Trainer

FANOUTS = [[3, 2], [15, 10, 5], [-1], [2, 4], [1, 3, 2], [-1, -1]]


@pytest.fixture(scope="module")
def graph() -> Graph:
    return synthetic("default", scale=0.2).graph


def _same(one: Any, two: Any) -> None:
    """Two samples with the same arrays."""
    assert torch.equal(one.n_id, two.n_id) and one.batch_size == two.batch_size
    for mine, other in zip(one.blocks, two.blocks, strict=True):
        assert (mine.num_src, mine.num_dst) == (other.num_src, other.num_dst)
        assert torch.equal(mine.csc.indptr, other.csc.indptr) and torch.equal(mine.csc.indices, other.csc.indices)
    if isinstance(one, Sample):
        assert torch.equal(one.edge_index, two.edge_index) and torch.equal(one.e_id, two.e_id)
        for mine, other in zip(one.blocks, two.blocks, strict=True):
            assert torch.equal(mine.e_id, other.e_id)


@pytest.mark.parametrize("fanouts", FANOUTS)
@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("tier", [False, True])
def test_the_same_batch_as_the_samplers(graph: Graph, fanouts: list[int], threads: int, tier: bool) -> None:
    sampler, x = NeighborSampler(graph, fanouts), torch.randn(graph.num_nodes, 7)
    with Subtasks(threads, chunk_rows=97, tier=Tier() if tier else None) as subtasks:
        for epoch in range(3):
            seeds = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(epoch))[:40]
            made = subtasks.prepare(sampler, seeds, (5, epoch, 0), x)
            expected = sampler.sample(seeds, seed=5, epoch=epoch)
            _same(made.sample, expected)
            assert made.x is not None and torch.equal(made.x, x[expected.n_id])
            assert violations(made.log) == []
            _check_order(made, len(fanouts))
            for structure, block in zip(made.structure, expected.blocks if tier else (), strict=True):
                assert torch.equal(structure.indptr, block.csc.indptr)
                assert torch.equal(structure.indices, block.csc.indices)


@pytest.mark.parametrize("fanouts", FANOUTS)
@pytest.mark.parametrize("parts", [1, 3])
def test_the_same_open_batch(graph: Graph, fanouts: list[int], parts: int) -> None:
    sampler = NeighborSampler(graph, fanouts)
    with Subtasks(2, parts=parts) as subtasks:
        seeds = torch.arange(0, graph.num_nodes, 7)
        _same(
            subtasks.sample(sampler, seeds, (1, 2, 3), is_open=True),
            sampler.sample_open(seeds, seed=1, epoch=2, stage=3),
        )


@pytest.mark.parametrize("case", SQUARE, ids=str)
def test_the_graph_zoo(case: Case) -> None:
    graph = case.graph()
    with Subtasks(2, chunk_rows=2, tier=Tier()) as subtasks:
        for fanouts, replace in (([2, 2], False), ([-1], False), ([3, 1], True)):
            sampler, seeds = NeighborSampler(graph, fanouts, replace), torch.arange(graph.num_nodes)
            made = subtasks.prepare(sampler, seeds, (0, 0, 0), torch.eye(graph.num_nodes))
            expected = sampler.sample(seeds)
            _same(made.sample, expected)
            assert made.x is not None and torch.equal(made.x, torch.eye(graph.num_nodes)[expected.n_id])


def test_weighted_draws(graph: Graph) -> None:
    weight = torch.rand(graph.num_edges, generator=torch.Generator().manual_seed(3))
    sampler = NeighborSampler(graph, [4, 3], weight=weight)
    with Subtasks(3) as subtasks:
        seeds = torch.arange(30)
        _same(subtasks.sample(sampler, seeds, (0, 1, 0)), sampler.sample(seeds, epoch=1))


def test_no_seed_and_every_seed(graph: Graph) -> None:
    sampler, x = NeighborSampler(graph, [3, 2]), torch.randn(graph.num_nodes, 3)
    with Subtasks(2, chunk_rows=64, tier=Tier()) as subtasks:
        for seeds in (torch.arange(0), torch.arange(graph.num_nodes)):
            made = subtasks.prepare(sampler, seeds, (0, 0, 0), x)
            _same(made.sample, sampler.sample(seeds))


def test_bad_seeds_are_refused_and_the_next_batch_is_right(graph: Graph) -> None:
    sampler = NeighborSampler(graph, [3, 2])
    with Subtasks(2) as subtasks:
        with pytest.raises(IndexRangeError, match=r"^sample: expected"):
            subtasks.sample(sampler, torch.tensor([graph.num_nodes]), (0, 0, 0))
        with pytest.raises(ConfigError, match="distinct seeds"):
            subtasks.sample(sampler, torch.tensor([1, 1]), (0, 0, 0))
        _same(subtasks.sample(sampler, torch.arange(9), (0, 0, 0)), sampler.sample(torch.arange(9)))
    for options in ({"threads": 0}, {"parts": 0}, {"chunk_rows": 0}, {"tier": "cpu"}):
        with pytest.raises(ConfigError):
            Subtasks(**options)  # type: ignore[arg-type]


def _check_order(made: Prepared, hops: int) -> None:
    """N12 and N13 by the names of the tasks: what a task says it waits for is no proof that it is enough."""
    begin = {ran.task.name: ran.begin for ran in made.log}
    end = {ran.task.name: ran.end for ran in made.log}
    for hop in range(hops):
        draws = [name for name in end if name.startswith(f"S{hop}.")]
        assert draws and max(end[name] for name in draws) <= begin[f"H{hop}"]  # drawn, then numbered
        assert end[f"H{hop}"] <= begin[f"R{hop}"]
        assert all(end[f"H{hop}"] <= begin[name] for name in end if name.startswith(f"S{hop + 1}."))
    assert all(end[f"H{hops - 1}"] <= begin[name] for name in end if name.startswith("T"))
    for one, two in itertools.combinations([name for name in end if name[0] in "HR"], 2):  # one at a time
        assert end[one] <= begin[two] or end[two] <= begin[one], f"{one} and {two}"


def _spans(made: Prepared, prefix: str) -> Iterator[tuple[float, float]]:
    return ((ran.begin, ran.end) for ran in made.log if ran.task.name.startswith(prefix))


def test_transfers_wait_for_sizes_and_chunks_take_turns(graph: Graph) -> None:
    """N12 and N14: no T before the last draw; chunk c is sent before chunk c + 2 is gathered; chunks in order."""
    sampler, x, tier = NeighborSampler(graph, [5, 5]), torch.randn(graph.num_nodes, 8), Tier()
    with Subtasks(3, chunk_rows=50, tier=tier) as subtasks:
        made = subtasks.prepare(sampler, torch.arange(60), (0, 0, 0), x)
    ends = {ran.task.name: ran.end for ran in made.log}
    begins = {ran.task.name: ran.begin for ran in made.log}
    chunks = sum(name.startswith("K.") for name in ends)
    assert chunks >= 4
    last_draw = max(end for _, end in _spans(made, "S1."))
    assert all(begin >= last_draw for begin, _ in _spans(made, "T"))
    for chunk in range(chunks - 2):
        assert ends[f"T.{chunk}"] <= begins[f"K.{chunk + 2}"]
    assert made.x is not None
    structure = sum(s.indptr.nbytes + s.indices.nbytes for s in made.structure)
    assert tier.bytes == made.x.nbytes + structure and tier.sends == chunks + 4


def test_lookup_and_renumbering_run_beside_the_next_draw(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    """N12 with sleeps: K and R of the first hop begin before the draw of the second has ended, and it pays."""
    steps = module.SteppedDraw
    draw, settle, number = steps.draw, steps.settle, steps.number
    gather = module.gather_rows_into

    def slowly(work: Any, seconds: float) -> Any:
        def run(*arguments: Any) -> Any:
            time.sleep(seconds)
            return work(*arguments)

        return run

    monkeypatch.setattr(steps, "draw", slowly(draw, 0.03))
    monkeypatch.setattr(steps, "settle", slowly(settle, 0.08))
    monkeypatch.setattr(steps, "number", slowly(number, 0.002))
    monkeypatch.setattr(module, "gather_rows_into", slowly(gather, 0.03))
    sampler, x = NeighborSampler(graph, [4, 3, 2]), torch.randn(graph.num_nodes, 4)
    with Subtasks(3, parts=3, chunk_rows=4096) as subtasks:
        made = subtasks.prepare(sampler, torch.arange(20), (0, 0, 0), x)
        _same(made.sample, sampler.sample(torch.arange(20)))
    _check_order(made, 3)
    for hop in range(2):
        ((begin, end),) = _spans(made, f"R{hop}")
        draws = list(_spans(made, f"S{hop + 1}."))
        assert begin < max(last for _, last in draws) and min(first for first, _ in draws) < end
    assert min(begin for begin, _ in _spans(made, "K.")) < max(end for _, end in _spans(made, "S2."))
    span, serial = makespan(made.log)
    assert span <= 0.7 * serial


def test_an_earlier_batch_has_a_lower_rank(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks: list[int] = []
    run = module.Executor.run
    monkeypatch.setattr(
        module.Executor, "run", lambda self, tasks, rank: (ranks.append(rank), run(self, tasks, rank))[1]
    )
    with Subtasks(2) as subtasks:
        for _ in range(4):
            subtasks.sample(NeighborSampler(graph, [2]), torch.arange(5), (0, 0, 0))
    assert ranks == sorted(set(ranks)) and len(ranks) == 4


def test_batches_overlap(graph: Graph) -> None:
    """Several batches at once are the same as one after the other."""
    sampler, x = NeighborSampler(graph, [5, 5, 3]), torch.randn(graph.num_nodes, 5)
    with Subtasks(2, chunk_rows=128, tier=Tier()) as subtasks, ThreadPoolExecutor(4) as pool:
        asked = [torch.arange(i, graph.num_nodes, 31) for i in range(12)]
        made = list(pool.map(lambda seeds: subtasks.prepare(sampler, seeds, (9, 9, 0), x), asked))
    for seeds, batch in zip(asked, made, strict=True):
        expected = sampler.sample(seeds, seed=9, epoch=9)
        _same(batch.sample, expected)
        assert batch.x is not None and torch.equal(batch.x, x[expected.n_id])


@pytest.mark.parametrize("options", [{"prefetch": 0}, {"prefetch": 3, "workers": 2}])
def test_a_loader_with_subtasks_has_the_same_batches(options: dict[str, Any]) -> None:
    ds = synthetic("default", scale=0.1)
    for x in (ds.x, SparseFeatures.from_dense(ds.x)):
        plain = Loader(ds, fanouts=[4, 3], batch_size=32, shuffle=True, seed=3, prefetch=0)
        with Subtasks(2, chunk_rows=40, tier=Tier()) as subtasks:
            ours = Loader(
                replace(ds, x=x), fanouts=[4, 3], batch_size=32, shuffle=True, seed=3, prepare=subtasks, **options
            )
            for _ in range(2):
                for one, two in zip(plain, ours, strict=True):
                    assert torch.equal(one.n_id, two.n_id) and torch.equal(one.edge_index, two.edge_index)
                    rows = two.x.to_dense() if isinstance(two.x, SparseFeatures) else two.x
                    assert torch.equal(one.x, rows)


def test_subtasks_are_for_neighbour_samplers() -> None:
    ds = synthetic("default", scale=0.1)
    with Subtasks(1) as subtasks, pytest.raises(ConfigError, match=r"^prepare: expected a neighbour sampler"):
        Loader(ds, sampler=LayerSampler(ds.graph, [8]), prepare=subtasks)


@pytest.mark.parametrize("model", ["staged", "by batch"])
def test_training_with_subtasks_has_the_same_bits(model: str) -> None:
    ds, states = synthetic("default", scale=0.1), []
    for prepare in ("whole", "subtasks"):
        torch.manual_seed(0)
        net = SAGE(ds.num_features, 8, ds.num_classes, num_layers=2)
        net = net if model == "staged" else _Wrapped(net)
        trainer = Trainer(net, ds, mode="mini", fanouts=(4, 3), batch_size=32, prepare=prepare)
        trainer.fit(epochs=2)
        states.append(trainer.model.state_dict())
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


class _Wrapped(torch.nn.Module):
    """A model that is called with the batch as a graph."""

    def __init__(self, net: SAGE) -> None:
        super().__init__()
        self.net = net

    def forward(self, graph: Graph, x: torch.Tensor) -> torch.Tensor:
        return self.net(graph, x)


@pytest.mark.parametrize(
    "options",
    [{"prepare": "half"}, {"prepare": "subtasks", "macro": "large:1/2"}, {"prepare": "subtasks", "sampler": "layer"}],
)
def test_what_subtasks_cannot_do_is_refused(options: dict[str, Any]) -> None:
    ds = synthetic("default", scale=0.1)
    with pytest.raises(ConfigError, match=r"^prepare(: expected|=.subtasks. cannot be combined)"):
        Trainer(SAGE(ds.num_features, 8, ds.num_classes), ds, mode="mini", **options)
