"""Nested stages: identity, exact slices, halos against sets, every seed once, ids and edges of the whole graph."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from zoo import SQUARE, Case, power_law_edges

import graphweft as gw
from graphweft.loader.group_loader import GroupLoader
from graphweft.loader.groups import read_group
from graphweft.loader.parts import MemoryParts
from graphweft.sample.multistage import Nest
from graphweft.sample.neighbor import NeighborSampler
from graphweft.sample.stages import Key, LargeBatch, Parts, Whole


@pytest.fixture(scope="module")
def graph() -> gw.Graph:
    made = power_law_edges(600, 6000, seed=7)
    return gw.Graph(made.src, made.dst, num_nodes=600)


def everything(sample):
    """All arrays of a sample."""
    parts = [sample.n_id, sample.edge_index, sample.e_id]
    for block in sample.blocks:
        parts += [block.csc.indptr, block.csc.indices, block.e_id]
    return [part.long() for part in parts]


def same(one, other) -> bool:
    return all(torch.equal(a, b) for a, b in zip(everything(one), everything(other), strict=True))


def reached(graph, seeds, hops, rows=None):
    """Nodes and edges within so many hops against the edges; ``rows``: nodes whose in-edges exist. By sets."""
    src, dst = (t.tolist() for t in graph.edges())
    into: dict[int, list[tuple[int, int]]] = {}
    for e, (u, v) in enumerate(zip(src, dst, strict=True)):
        into.setdefault(v, []).append((u, e))
    nodes, edges, front = set(seeds), set(), set(seeds)
    for _ in range(hops):
        new = set()
        for v in front:
            if rows is not None and v not in rows:
                continue
            for u, e in into.get(v, []):
                edges.add(e)
                if u not in nodes:
                    new.add(u)
        nodes |= new
        front = new
    return nodes, edges


@pytest.mark.parametrize("shuffle", [False, True])
def test_an_identity_first_stage_is_a_single_stage_bit_for_bit(graph, shuffle) -> None:
    seeds = torch.arange(0, 600, 3)
    loader = gw.Loader(graph, seeds, (4, 3), 32, shuffle=shuffle, seed=11, prefetch=0)
    for stages in ([Whole()], [Whole(), Whole()]):
        nest = Nest(graph, seeds, [*stages, LargeBatch(32, (4, 3))])
        for epoch in range(2):
            plan = nest.plan(Key(11, epoch, shuffle=shuffle))
            single = list(loader)
            assert len(plan.batches) == len(single)
            for position, batch in enumerate(single):
                assert torch.equal(plan.batches[position].places, batch.input_id)
                assert same(nest.batch(plan, position).sample, batch._sample)
        loader = gw.Loader(graph, seeds, (4, 3), 32, shuffle=shuffle, seed=11, prefetch=0)


@pytest.mark.parametrize("case", SQUARE, ids=str)
def test_a_wide_second_stage_is_an_exact_slice(case: Case) -> None:
    graph = case.graph()
    if not graph.num_nodes:
        return
    seeds = torch.arange(graph.num_nodes)
    nest = Nest(graph, seeds, [LargeBatch(5, (3, 2)), LargeBatch(2, (-1, -1))])
    most = int(graph.in_degrees().max()) if graph.num_edges else 1
    wide = Nest(graph, seeds, [LargeBatch(5, (3, 2)), LargeBatch(2, (max(most, 1),) * 2)])
    plan = nest.plan(Key(3, 0))
    for position, planned in enumerate(plan.batches):
        level = nest.innermost(plan, planned.path)
        macro_ids = level.n_id.tolist()
        batch = nest.batch(plan, position)
        local_nodes, local_edges = reached(level.graph, planned.within.tolist(), 2)
        assert set(batch.sample.n_id.tolist()) == {macro_ids[i] for i in local_nodes}
        assert batch.sample.num_edges == len(local_edges)
        src, dst = graph.edges()
        ends = batch.sample.edge_index
        assert torch.equal(src[batch.sample.e_id], batch.sample.n_id[ends[0]])
        assert torch.equal(dst[batch.sample.e_id], batch.sample.n_id[ends[1]])
        assert same(batch.sample, wide.batch(plan, position).sample)


def test_the_whole_neighbourhood_through_two_stages_is_that_of_one(graph) -> None:
    seeds = torch.arange(0, 600, 7)
    nest = Nest(graph, seeds, [LargeBatch(30, (-1, -1)), LargeBatch(10, (-1, -1))])
    plan = nest.plan(Key(0, 0))
    for position, planned in enumerate(plan.batches):
        nodes, edges = reached(graph, seeds[planned.places].tolist(), 2)
        sample = nest.batch(plan, position).sample
        assert set(sample.n_id.tolist()) == nodes
        assert set(sample.e_id.tolist()) == edges and sample.num_edges == len(edges)


@pytest.mark.parametrize("case", SQUARE, ids=str)
def test_parts_take_their_halo_and_nothing_beyond(case: Case) -> None:
    graph = case.graph()
    n = graph.num_nodes
    if not n:
        return
    part = torch.arange(n) % 4
    seeds = torch.arange(0, n, 2)
    nest = Nest(graph, seeds, [Parts(part, 2), LargeBatch(3, (-1, -1, -1))])
    plan = nest.plan(Key(5, 1))
    pairs = list(zip(case.src.tolist(), case.dst.tolist(), strict=True))
    for position, planned in enumerate(plan.batches):
        level = nest.innermost(plan, planned.path)
        chosen = set(nest.stages[0].chosen(planned.path[0], plan.keys[()]).tolist())
        inner = {v for v in range(n) if int(part[v]) in chosen}
        halo = {u for u, v in pairs if v in inner and u not in inner}
        assert set(level.n_id[~level.halo].tolist()) == inner
        assert set(level.n_id[level.halo].tolist()) == halo
        assert level.graph.num_edges == sum(v in inner for _, v in pairs)
        assert int(level.graph.in_degrees()[level.halo].sum()) == 0
        batch = nest.batch(plan, position)
        nodes, edges = reached(graph, seeds[planned.places].tolist(), 3, rows=inner)
        assert set(batch.sample.n_id.tolist()) == nodes
        assert set(batch.sample.e_id.tolist()) == edges
        assert set(batch.sample.n_id[batch.halo].tolist()) == nodes & halo


def test_parts_of_parts_stop_at_both_halos(graph) -> None:
    outer, inner = torch.arange(600) % 3, torch.arange(600) % 7
    seeds = torch.arange(0, 600, 4)
    nest = Nest(graph, seeds, [Parts(outer, 2), Parts(inner, 3), LargeBatch(20, (-1, -1))])
    plan = nest.plan(Key(5, 0))
    for position, planned in enumerate(plan.batches):
        taken = torch.ones(600, dtype=torch.bool)
        for depth, part in enumerate((outer, inner)):
            taken &= torch.isin(part, nest.stages[depth].chosen(planned.path[depth], plan.keys[planned.path[:depth]]))
        batch = nest.batch(plan, position)
        rows = set(taken.nonzero().reshape(-1).tolist())
        nodes, edges = reached(graph, seeds[planned.places].tolist(), 2, rows=rows)
        assert set(batch.sample.n_id.tolist()) == nodes and set(batch.sample.e_id.tolist()) == edges
        assert torch.equal(batch.halo, ~taken[batch.sample.n_id])


@pytest.mark.parametrize(
    "stages",
    [
        [LargeBatch(40, (3, 3)), LargeBatch(8, (-1, -1))],
        [LargeBatch(80, (4, 4)), LargeBatch(40, (3, 3)), LargeBatch(8, (2, 2))],
        [Parts(torch.arange(600) % 12, 3), LargeBatch(40, (3, 3)), LargeBatch(8, (2, 2))],
        [Whole(), Parts(torch.arange(600) % 12, 5), LargeBatch(8, (2, 2))],
    ],
    ids=["two", "three", "parts", "whole_parts"],
)
def test_every_seed_once_an_epoch_and_edges_are_the_graphs(graph, stages) -> None:
    seeds = torch.arange(1, 600, 2)
    nest = Nest(graph, seeds, stages)
    src, dst = graph.edges()
    orders = []
    for epoch in range(2):
        plan = nest.plan(Key(9, epoch))
        orders.append(torch.cat([batch.places for batch in plan.batches]))
        assert torch.equal(torch.sort(orders[-1]).values, torch.arange(seeds.numel()))
        for position, planned in enumerate(plan.batches):
            sample = nest.batch(plan, position).sample
            assert torch.equal(sample.n_id[: sample.batch_size], seeds[planned.places])
            assert sample.n_id.unique().numel() == sample.num_nodes
            assert torch.equal(src[sample.e_id], sample.n_id[sample.edge_index[0]])
            assert torch.equal(dst[sample.e_id], sample.n_id[sample.edge_index[1]])
            assert sample.e_id.unique().numel() == sample.num_edges
            for block in sample.blocks:
                assert torch.equal(src[block.e_id], block.src_ids[block.csc.indices.long()])
                assert int(block.in_degrees().max()) <= max(stages[-1].fanouts) or -1 in stages[-1].fanouts
    assert not torch.equal(*orders)


@pytest.mark.parametrize("stage", [LargeBatch(30, (2,)), Parts(torch.arange(600) % 10, 2)], ids=["large", "parts"])
def test_seeds_are_in_any_batch_with_the_same_chance(graph, stage) -> None:
    seeds = torch.arange(0, 600, 10) + torch.arange(60) % 10
    nest = Nest(graph, seeds, [stage, LargeBatch(10, (1,))])
    epochs, first = 400, np.zeros(60)
    for epoch in range(epochs):
        first[nest.plan(Key(2, epoch)).batches[0].places.numpy()] += 1
    assert stats.chisquare(first).pvalue > 1e-4 or isinstance(stage, Parts)
    share = first / epochs
    assert abs(share - 1 / 6).max() < 0.09


def test_a_second_stage_with_smaller_fanouts_draws_uniformly() -> None:
    # a seed with 6 in-edges: 4 drawn by the first stage, 2 of them by the second: each edge with chance 1 / 3
    graph = gw.Graph([1, 2, 3, 4, 5, 6], [0] * 6, num_nodes=7)
    nest = Nest(graph, torch.tensor([0]), [LargeBatch(1, (4,)), LargeBatch(1, (2,))])
    counts = np.zeros(6)
    for epoch in range(1200):
        sample = nest.batch(nest.plan(Key(1, epoch)), 0).sample
        assert sample.num_edges == 2
        counts[sample.e_id.numpy()] += 1
    assert stats.chisquare(counts).pvalue > 1e-4


def test_groups_and_epochs_draw_apart() -> None:
    """Seeds 0 and 1, a macro-batch each, share node 2 of six in-edges: what one draws of them tells nothing of both."""
    graph = gw.Graph([2, 2, 3, 4, 5, 6, 7, 8], [0, 1, 2, 2, 2, 2, 2, 2], num_nodes=9)
    nest = Nest(graph, torch.tensor([0, 1]), [LargeBatch(1, (-1, -1)), LargeBatch(1, (1, 1))])
    table = np.zeros((6, 6))
    for epoch in range(1080):
        plan = nest.plan(Key(3, epoch, shuffle=False))
        table[tuple(int(nest.batch(plan, place).sample.e_id.max()) - 2 for place in range(2))] += 1
    assert stats.chisquare(table.reshape(-1)).pvalue > 1e-4


def test_the_same_for_any_number_of_threads(graph) -> None:
    before = torch.get_num_threads()
    nest = Nest(graph, torch.arange(600), [Parts(torch.arange(600) % 6, 2), LargeBatch(50, (5, 5))])
    plan = nest.plan(Key(4, 0))
    try:
        found = []
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            found.append([nest.batch(plan, i).sample for i in range(4)])
    finally:
        torch.set_num_threads(before)
    assert all(same(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


def _drawn(sample, names=None) -> set[tuple[int, int, int]]:
    """Block by block the edges between ids of the whole graph."""
    ids = sample.n_id if names is None else names[sample.n_id]
    return {
        (hop, int(ids[src]), int(ids[dst]))
        for hop, block in enumerate(sample.blocks)
        for src, dst in zip(*(ends.tolist() for ends in block.edges()), strict=True)
    }


@pytest.fixture(scope="module")
def islands() -> tuple[gw.Graph, torch.Tensor]:
    """Six graphs without edges between them, and which of them a node is in; rows list their sources ascending."""
    rng = np.random.default_rng(0)
    island = torch.from_numpy(rng.permutation(np.arange(240) % 6))
    src = torch.from_numpy(rng.integers(0, 240, 20_000))
    dst = torch.from_numpy(rng.integers(0, 240, 20_000))
    inside = island[src] == island[dst]
    ends = torch.unique(torch.stack([dst[inside], src[inside]]), dim=1)
    return gw.Graph(ends[1], ends[0], num_nodes=240), island


def test_a_node_draws_in_a_part_what_it_draws_in_the_whole_graph(islands) -> None:
    """Draws go by ids of the whole graph: parts that no edge leaves change nothing but the numbers."""
    graph, island = islands
    seeds = torch.arange(0, 240, 3)
    nest = Nest(graph, seeds, [Parts(island, 2), LargeBatch(9, (3, 2))])
    plan = nest.plan(Key(8, 2))
    whole, before = NeighborSampler(graph, (3, 2)), set()
    for place, planned in enumerate(plan.batches):
        key = plan.keys[planned.path]
        found = _drawn(nest.batch(plan, place).sample)
        assert found == _drawn(whole.sample(seeds[planned.places], seed=8, epoch=2, stage=key.stage))
        before |= found
    assert len(before) > 200
    other = [_drawn(whole.sample(seeds[planned.places], seed=8, epoch=2, stage=0)) for planned in plan.batches]
    assert set().union(*other) != before  # another stage draws apart


@pytest.mark.parametrize("count", [1, 4, 6])
def test_groups_of_parts_draw_as_one_group_of_all(islands, count: int) -> None:
    graph, island = islands
    source = MemoryParts(graph, torch.eye(240), torch.arange(240), island, 6)
    seeds = torch.arange(0, 240, 5)
    renumbered = read_group(source, range(6))
    assert torch.equal(renumbered.n_id, torch.arange(240))
    whole = NeighborSampler(renumbered.graph, (3, 2))
    for again, reuse in ((0, 1), (1, 2)):
        loader = GroupLoader(source, seeds, (3, 2), 7, True, 5, count=count, reuse=reuse, prefetch=0, workers=0)
        plan = loader.plan(0)
        batches = list(loader)
        turns = [group for group in plan if group.key.stage == again]
        assert turns
        for group in turns:
            count_of, every = -(-group.places.numel() // 7), []
            for batch in batches[group.first : group.first + count_of]:
                ids = seeds[batch.input_id]
                every.append(batch.input_id)
                expected = whole.sample(ids, seed=5, epoch=0, stage=again)
                names = read_group(source, group.parts).n_id
                assert _drawn(batch._sample, names) == _drawn(expected)
            assert torch.equal(torch.cat(every), group.places)
            sizes = [len(some) for some in every]
            assert max(sizes) <= min(7, min(sizes) + 1)


def test_graphs_of_a_level_sample_as_the_level_does(graph) -> None:
    nest = Nest(graph, torch.arange(100), [LargeBatch(50, (4, 4)), LargeBatch(10, (2, 2))])
    plan = nest.plan(Key(0, 0))
    level = nest.innermost(plan, (0,))
    key = plan.keys[(0,)]
    direct = key.sample(NeighborSampler(level.graph, (2, 2), names=level.n_id), torch.arange(10))
    assert torch.equal(level.n_id[direct.n_id], nest.batch(plan, 0).sample.n_id)


@pytest.mark.parametrize(
    "make",
    [
        lambda: LargeBatch(0),
        lambda: LargeBatch(1.5),
        lambda: LargeBatch(True),
        lambda: LargeBatch(4, (0,)),
        lambda: Parts(torch.tensor([0, -1]), 1),
        lambda: Parts(torch.tensor([[0], [1]]), 1),
        lambda: Parts(torch.tensor([0, 1]), 0),
        lambda: Nest(gw.Graph([0], [1]), torch.arange(1), [LargeBatch(0.5, (1,))]),
        lambda: Nest(gw.Graph([0], [1]), torch.arange(1), []),
    ],
)
def test_bad_stages_are_one_clear_error(make) -> None:
    with pytest.raises(gw.errors.ConfigError):
        make()
