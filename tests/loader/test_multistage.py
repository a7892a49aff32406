"""The multistage loader: contents, filtering, traffic against the model of the thesis, resume, threads."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from zoo import power_law_edges

import graphweft as gw
from graphweft.sample.multistage import Nest
from graphweft.sample.stages import Key, Whole
from graphweft.sample.working_set import flat_cost, reduction, staged_cost, structure_bytes, working_set


@pytest.fixture(scope="module")
def ds() -> gw.Dataset:
    return gw.synthetic("arxiv", scale=0.02, seed=1)


@pytest.fixture(scope="module")
def parts(ds) -> torch.Tensor:
    return gw.partition(ds.graph, 12).part


def stages(parts):
    return {
        "whole": gw.macro.Whole(),
        "large": gw.macro.LargeBatch(0.25),
        "parts": gw.macro.Parts(parts, 3),
        "three": [gw.macro.Parts(parts, 4), gw.macro.LargeBatch(300, (5, 5))],
        "nested": [gw.macro.LargeBatch(0.5), gw.macro.LargeBatch(300)],
    }


def load(ds, macro, **options):
    given = {"fanouts": (6, 4), "batch_size": 100, "shuffle": True, "seed": 3, "prefetch": 0, **options}
    return gw.macro.MultistageLoader(ds, macro=macro, **given)


def arrays(batch):
    parts = [batch.n_id, batch.edge_index, batch.e_id, batch.x, batch.y, batch.input_id]
    parts += [block.csc.indptr for block in batch.blocks] + [block.csc.indices for block in batch.blocks]
    return parts + ([] if batch.halo is None else [batch.halo])


def same(one, other) -> bool:
    pairs = zip(one, other, strict=True)
    return all(torch.equal(a, b) for x, y in pairs for a, b in zip(arrays(x), arrays(y), strict=True))


def test_the_identity_stage_is_the_plain_loader(ds) -> None:
    plain = gw.Loader(ds, fanouts=(6, 4), batch_size=100, shuffle=True, seed=3, prefetch=0)
    staged = load(ds, gw.macro.Whole())
    assert len(plain) == len(staged)
    for _ in range(2):
        for a, b in zip(plain, staged, strict=True):
            for left, right in ((a.n_id, b.n_id), (a.edge_index, b.edge_index), (a.x, b.x), (a.input_id, b.input_id)):
                assert torch.equal(left, right)


@pytest.mark.parametrize("kind", ["whole", "large", "parts", "three", "nested"])
def test_batches_hold_the_rows_of_their_nodes_and_every_seed_comes_once(ds, parts, kind) -> None:
    loader = load(ds, stages(parts)[kind])
    for _ in range(2):
        batches = list(loader)
        assert torch.equal(torch.cat([b.input_id for b in batches]).sort().values, torch.arange(ds.train_idx.numel()))
        for batch in batches:
            assert torch.equal(batch.x, ds.x[batch.n_id])
            assert torch.equal(batch.y, ds.y[batch.n_id])
        if kind not in ("parts", "three"):
            assert all(batch.halo is None for batch in batches)
            continue
        taken: dict[int, set[int]] = {}  # parts of a macro-batch: those of its seeds
        for batch in batches:
            taken.setdefault(batch.path[0], set()).update(parts[batch.n_id[: batch.batch_size]].tolist())
        for batch in batches:
            inside = torch.isin(parts[batch.n_id], torch.tensor(sorted(taken[batch.path[0]])))
            assert torch.equal(batch.halo, ~inside)


def test_batches_of_a_large_batch_are_full_exact_slices(ds) -> None:
    """J02, J03: macro-batches have whole batches, and a batch has every edge that the macro-batch has for it."""
    loader = load(ds, gw.macro.LargeBatch(0.13))
    batches = list(loader)
    assert [batch.batch_size for batch in batches[:-1]] == [100] * (len(batches) - 1)
    for batch in batches:
        level = batch.macro.level
        place = torch.full((ds.num_nodes,), -1)
        place[level.n_id] = torch.arange(level.n_id.numel())
        computed = batch.n_id[: batch.blocks[0].num_dst]
        assert batch.num_edges == int(level.graph.in_degrees()[place[computed]].sum())


@pytest.mark.parametrize("kind", ["large", "parts", "three"])
def test_filtering_keeps_what_is_touched_and_changes_nothing(ds, parts, kind) -> None:
    every, ahead = load(ds, stages(parts)[kind]), load(ds, stages(parts)[kind], ahead=True)
    touched: dict[tuple, tuple[set, set]] = {}
    macros = {}
    for a, b in zip(every, ahead, strict=True):
        assert same([a], [b])
        nodes, edges = touched.setdefault(b.path, (set(), set()))
        nodes |= set(b.n_id.tolist())
        edges |= set(b.e_id.tolist())
        macros[b.path] = b.macro
    innermost = 0
    for path, macro in macros.items():
        nodes, edges = touched[path]
        assert set(macro.level.n_id[macro.kept].tolist()) == nodes
        assert macro.x.shape[0] == len(nodes)
        assert macro.cost.features == 4 * ds.num_features * len(nodes)
        assert macro.cost.structure == 8 * len(nodes) + 4 * len(edges)
        innermost += macro.cost.features + macro.cost.structure
    assert ahead.traffic[-2].total == innermost
    assert ahead.traffic[-2].total <= every.traffic[-2].total
    if kind == "parts":
        assert ahead.traffic[0].total < 0.95 * every.traffic[0].total


def epoch_bytes(graph, seeds, stages, row_bytes, key):
    """Bytes read from every tier in an epoch, the whole graph's first, counted from structure alone.

    Stages that take everything add no tier.
    """
    nest = Nest(graph, seeds, stages)
    plan = nest.plan(key)
    kept = [depth for depth, stage in enumerate(nest.stages[:-1], 1) if not isinstance(stage, Whole)]
    totals = [0.0] * (len(kept) + 1)
    for tier, depth in enumerate(kept):
        for path in (path for path in plan.groups if len(path) == depth):
            level = nest.innermost(plan, path)
            totals[tier] += level.graph.num_nodes * row_bytes
            totals[tier] += structure_bytes(level.graph.num_nodes, level.graph.num_edges)
    for position in range(len(plan.batches)):
        sample = nest.batch(plan, position).sample
        totals[-1] += sample.num_nodes * row_bytes + structure_bytes(sample.num_nodes, sample.num_edges)
    return totals


@pytest.mark.parametrize("kind", ["large", "parts", "three"])
def test_traffic_is_what_the_structure_says(ds, parts, kind) -> None:
    loader = load(ds, stages(parts)[kind])
    list(loader)
    expected = epoch_bytes(ds.graph, loader.seeds, loader.stages, 4.0 * ds.num_features, Key(3, 0))
    assert [tier.total for tier in loader.traffic] == expected
    paths = [planned.path for planned in loader.plan(0).batches]
    groups = [len({path[:depth] for path in paths}) for depth in range(1, len(loader.traffic))]
    assert [tier.reads for tier in loader.traffic] == [*groups, len(paths)]


@pytest.mark.parametrize(("width", "high"), [(128, 50e9), (1, 1e9)])  # a row, and a node's structure, weigh most
def test_cost_formulas_and_reduction_hold_for_a_run(ds, width, high) -> None:
    """T02: formulas from working sets of other draws against the counters, within 10 %."""
    low, row, narrow = 1e9, 4.0 * width, replace(ds, x=ds.x[:, :width].contiguous())
    flat, staged = load(narrow, gw.macro.Whole()), load(narrow, gw.macro.LargeBatch(0.25))
    list(flat), list(staged)
    other = Key(77, 5)
    one = working_set(ds.graph, flat.seeds, flat.stages[-1], row, 8, other)
    macro = working_set(ds.graph, flat.seeds, staged.stages[0], row, 3, other)
    batches = len(flat)
    assert flat_cost(one.bytes, 1.0, low, high) == pytest.approx(flat.traffic[0].total / low / batches, rel=0.1)
    inner = staged.traffic[1].total / len(staged)
    measured = staged.traffic[0].total / low / len(staged) + staged.traffic[1].total / high / len(staged)
    per_macro = macro.seeds / 100
    assert staged_cost(inner, macro.bytes, per_macro, low, high) == pytest.approx(measured, rel=0.1)
    fall = staged.traffic[0].total / flat.traffic[0].total
    assert reduction(macro, one) == pytest.approx(fall, rel=0.1)
    assert fall < 0.8
    assert reduction(macro, one, 0.25) == pytest.approx(4 * reduction(macro, one))  # eq. 3.3: by the miss rate
    assert flat_cost(one.bytes, 0.25, low, high) == pytest.approx(one.bytes * (0.25 / low + 0.75 / high))


def rmat(scale, edges, seed):
    """Recursive matrix, quadrants 0.57, 0.19, 0.19, 0.05."""
    rng = np.random.default_rng(seed)
    src, dst = np.zeros(edges, np.int64), np.zeros(edges, np.int64)
    for _ in range(scale):
        quadrant = rng.choice(4, edges, p=[0.57, 0.19, 0.19, 0.05])
        src, dst = 2 * src + quadrant // 2, 2 * dst + quadrant % 2
    return gw.Graph(src, dst, num_nodes=2**scale).to_bidirected()


def sbm(count, size, seed):
    rng = np.random.default_rng(seed)
    n = count * size
    inside = rng.integers(0, n, 8 * n)
    src = np.concatenate([inside, rng.integers(0, n, n)])
    dst = np.concatenate([inside // size * size + rng.integers(0, size, inside.size), rng.integers(0, n, n)])
    return gw.Graph(src, dst, num_nodes=n).to_bidirected()


@pytest.mark.parametrize("graph", [rmat(12, 40_000, 1), sbm(40, 100, 2)], ids=["rmat", "sbm"])
def test_the_normalised_working_set_falls_with_the_batch_and_is_flat_for_parts(graph) -> None:
    """T03."""
    seeds = torch.arange(graph.num_nodes)
    sizes = (32, 128, 512, 2048)
    curve = [
        working_set(graph, seeds, gw.macro.LargeBatch(size, (10, 10)), 400.0, 4, Key(0, 0)).normalized for size in sizes
    ]
    assert all(after < before for before, after in itertools.pairwise(curve))
    assert curve[-1] < 0.5 * curve[0]
    part = gw.partition(graph, 32).part
    by_parts = [
        working_set(graph, seeds, gw.macro.Parts(part, b), 400.0, 32 // b, Key(0, 0)).normalized for b in (1, 2, 4)
    ]
    assert max(by_parts) < 1.5 * min(by_parts)
    assert max(by_parts) < curve[0]


@pytest.mark.parametrize("kind", ["large", "parts", "three"])
@pytest.mark.parametrize("ahead", [False, True])
def test_it_goes_on_at_any_batch(ds, parts, kind, ahead) -> None:
    macro = stages(parts)[kind]
    loader = load(ds, macro, ahead=ahead)
    list(loader)
    second = list(loader)
    for stop in (1, len(second) // 2, len(second) - 1):
        first = load(ds, macro, ahead=ahead)
        list(first)
        for _ in itertools.islice(first, stop):
            pass
        state = first.state_dict()
        assert state["position"] == stop
        again = load(ds, macro, ahead=ahead)
        again.load_state_dict(state)
        assert same(list(again), second[stop:])


@pytest.mark.parametrize("kind", ["large", "parts", "three"])
def test_the_same_for_any_workers_and_threads(ds, parts, kind) -> None:
    macro = stages(parts)[kind]
    expected = list(load(ds, macro))
    traffic = None
    for options in ({"workers": 1}, {"workers": 3, "prefetch": 8}, {"ahead": True, "workers": 4, "prefetch": 9}):
        loader = load(ds, macro, **{"prefetch": None, **options})
        assert same(list(loader), expected)
        if "ahead" not in options:
            assert traffic is None or traffic == loader.traffic
            traffic = loader.traffic


def test_the_next_macro_batch_is_staged_while_the_model_is_at_the_one_before(ds, parts, monkeypatch) -> None:
    made: list[tuple[int, ...]] = []
    second = threading.Event()
    whole = gw.macro.MultistageLoader._made

    def counted(self, epoch, plan, path):
        staged = whole(self, epoch, plan, path)
        made.append(path)
        if len(made) == 2:
            second.set()
        return staged

    monkeypatch.setattr(gw.macro.MultistageLoader, "_made", counted)
    loader = load(ds, gw.macro.Parts(parts, 3), prefetch=8, workers=1)
    of_first = sum(planned.path == loader.plan(0).batches[0].path for planned in loader.plan(0).batches)
    assert of_first < 8  # the queue reaches into the second macro-batch
    batches = iter(loader)
    first = next(batches)
    assert second.wait(60)  # the consumer has not let go of the first batch of the first macro-batch
    assert made[0] == first.path != made[1]
    assert same([first, *batches], load(ds, gw.macro.Parts(parts, 3)))


def test_few_macro_batches_and_plans_are_kept(ds, parts) -> None:
    loader = load(ds, gw.macro.Parts(parts, 1), batch_size=400)
    for _ in range(4):
        for _ in loader:
            assert len(loader._staged) <= 4 and len(loader._plans) <= 3


def test_a_probe_has_the_first_seeds_of_its_batch(ds, parts) -> None:
    loader = load(ds, gw.macro.Parts(parts, 3))
    planned, probe = loader.plan(0).batches[2], loader.probe(0, 2, 32)
    for batch in (probe.drawn, probe.inside, probe.exact):
        assert torch.equal(batch.n_id[: batch.batch_size], loader.seeds[planned.places[:32]])
    assert all(tier.total == 0 for tier in loader.traffic)  # nothing is counted


def test_a_state_of_other_stages_is_refused(ds, parts) -> None:
    state = load(ds, gw.macro.LargeBatch(0.25)).state_dict()
    with pytest.raises(gw.errors.CheckpointError, match="stages"):
        load(ds, gw.macro.LargeBatch(0.5)).load_state_dict(state)
    with pytest.raises(gw.errors.CheckpointError, match="stages"):
        load(ds, gw.macro.Parts(parts, 3)).load_state_dict(state)
    with pytest.raises(gw.errors.CheckpointError, match="without stages"):
        gw.Loader(ds, fanouts=(6, 4), batch_size=100, shuffle=True, seed=3).load_state_dict(state)
    with pytest.raises(gw.errors.CheckpointError, match="stages"):  # as many parts of other nodes
        load(ds, gw.macro.Parts(parts.flip(0), 3)).load_state_dict(load(ds, gw.macro.Parts(parts, 3)).state_dict())


def test_graphs_without_features_and_sparse_features() -> None:
    made = power_law_edges(300, 2000, seed=1)
    graph = gw.Graph(made.src, made.dst, num_nodes=300)
    loader = gw.macro.MultistageLoader(graph, torch.arange(300), (3, 3), 20, macro=gw.macro.LargeBatch(100), ahead=True)
    assert all(batch.x is None for batch in loader)
    x = torch.zeros(300, 6)
    x[torch.arange(300), torch.arange(300) % 6] = 1.0
    every = torch.arange(300)
    sparse = gw.Dataset("s", graph, gw.data.SparseFeatures.from_dense(x), every % 3, every, every[:0], every[:0], 3)
    for batch in gw.macro.MultistageLoader(sparse, None, (3, 3), 20, macro=gw.macro.LargeBatch(100), ahead=True):
        assert torch.equal(batch.x.to_dense(), x[batch.n_id])


def test_bad_options_are_one_clear_error(ds, parts) -> None:
    with pytest.raises(gw.errors.ConfigError, match="prefetch and workers, got weight"):
        gw.macro.MultistageLoader(ds, macro=gw.macro.Whole(), weight=None)
    loader = load(ds, gw.macro.Whole())
    next(iter(loader))
    with pytest.raises(gw.errors.ConfigError, match="between epochs"):
        loader.retune([gw.macro.LargeBatch(0.5)], (6, 4))
