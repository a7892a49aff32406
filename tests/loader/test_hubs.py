"""Hubs: influence against dense powers, budgets, and groups whose edges are those that parts and hubs induce."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from parted import PARTS, assert_each_seed_is_in_one_batch, matrix_of, seeds_of

import graphweft as gw
from graphweft.loader.group_loader import GroupLoader
from graphweft.loader.groups import group_bytes, parts_within, read_group
from graphweft.loader.hubs import influence, pin_hubs
from graphweft.loader.parts import MemoryParts


@pytest.fixture(scope="module")
def store(ds: gw.Dataset, part: torch.Tensor, tmp_path_factory: pytest.TempPathFactory) -> gw.macro.Store:
    return gw.macro.prepare_store(ds, tmp_path_factory.mktemp("hubs") / "store", parts=PARTS, part=part, memory="64MB")


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("laziness", [0.0, 0.3])
def test_influence_is_the_dense_power(steps: int, laziness: float, ds: gw.Dataset, source: MemoryParts) -> None:
    """SPEC H13, H14: walks from all training nodes at once; the sum over the parts' own walks is the same."""
    matrix = matrix_of(ds, source).toarray()
    degrees = matrix.sum(1)
    walk = np.where(degrees[:, None] > 0, matrix / np.maximum(degrees, 1)[:, None], np.eye(ds.num_nodes))
    lazy = np.linalg.matrix_power((laziness * np.eye(ds.num_nodes) + (1 - laziness) * walk).T, steps)
    seeds = seeds_of(ds, source)
    begin = np.zeros(ds.num_nodes)
    begin[seeds.numpy()] = 1
    found = influence(source, seeds, steps, laziness)
    assert np.allclose(found, lazy @ begin, atol=1e-10)
    assert found.sum() == pytest.approx(len(seeds))
    cuts = np.searchsorted(seeds.numpy(), source.bounds)
    by_part = [influence(source, seeds[a:b], steps, laziness) for a, b in itertools.pairwise(cuts)]
    assert np.allclose(sum(by_part), found, atol=1e-10)


def _across(source: MemoryParts, seeds: torch.Tensor, steps: int = 2) -> np.ndarray:
    """Mass of walks from the seeds of every part alone on the nodes of other parts, and of those that came back."""
    found = np.zeros(int(source.bounds[-1]))
    inside = influence(source, seeds, steps, inside=True)
    for first, end in itertools.pairwise(source.bounds.tolist()):
        own = influence(source, seeds[(seeds >= first) & (seeds < end)], steps)
        own[first:end] -= inside[first:end]
        found += own
    return found


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_influence_inside_is_the_dense_power_of_the_edges_within_parts(
    steps: int, ds: gw.Dataset, source: MemoryParts
) -> None:
    matrix = matrix_of(ds, source).toarray()
    degrees = matrix.sum(1)
    part = np.repeat(np.arange(PARTS), np.diff(source.bounds))
    within = np.where(part[:, None] == part, matrix, 0.0)
    walk = np.where(degrees[:, None] > 0, within / np.maximum(degrees, 1)[:, None], np.eye(ds.num_nodes))
    start = np.zeros(ds.num_nodes)
    start[seeds_of(ds, source).numpy()] = 1.0
    lazy = np.linalg.matrix_power(((np.eye(ds.num_nodes) + walk) / 2).T, steps)
    found = influence(source, seeds_of(ds, source), steps, inside=True)
    assert np.allclose(found, lazy @ start, atol=1e-12)


@pytest.mark.parametrize("budget", [5_000, 20_000, 100_000])
def test_hubs_are_the_most_influential_nodes_within_the_budget(
    budget: int, ds: gw.Dataset, source: MemoryParts, store: gw.macro.Store
) -> None:
    seeds = seeds_of(ds, source)
    hubs, stored = pin_hubs(source, seeds, 2, budget), pin_hubs(store, seeds, 2, budget)
    assert hubs.nbytes <= budget
    assert np.array_equal(hubs.ids, stored.ids) and np.array_equal(hubs.sources, stored.sources)
    assert torch.equal(hubs.x, stored.x) and torch.equal(hubs.y, stored.y)
    mass = _across(source, seeds)
    costs = ds.num_features * 4 + 8 + 16 + 4 * np.diff(matrix_of(ds, source).indptr)
    left = np.setdiff1d(np.flatnonzero((mass > 1e-9) & (costs <= budget // 8)), hubs.ids)
    assert len(left) == 0 or mass[left].max() <= mass[hubs.ids].min()
    assert hubs.nbytes + costs[left[np.argmax(mass[left])]] > budget if len(left) else True
    assert hubs.covered == pytest.approx(mass[hubs.ids].sum() / mass.sum())
    assert torch.equal(hubs.x, ds.x[source.order[torch.from_numpy(hubs.ids)]])


def test_a_group_has_the_edges_that_parts_and_hubs_induce(
    ds: gw.Dataset, source: MemoryParts, store: gw.macro.Store
) -> None:
    whole = matrix_of(ds, source)
    hubs = pin_hubs(source, seeds_of(ds, source), 2, 20_000)
    group = read_group(store, [6, 1, 3], hubs)
    inside = np.concatenate([np.arange(source.bounds[i], source.bounds[i + 1]) for i in (1, 3, 6)])
    nodes = np.concatenate([inside, np.setdiff1d(hubs.ids, inside)])
    assert len(nodes) > len(inside)
    src, dst = (ends.numpy() for ends in group.graph.edges())
    mine = scipy.sparse.coo_array((np.ones(len(src)), (dst, src)), shape=(len(nodes),) * 2).tocsr()
    assert (mine != whole[nodes][:, nodes]).nnz == 0
    rows = source.order[torch.from_numpy(nodes)]
    assert torch.equal(group.x, ds.x[rows]) and torch.equal(group.y, ds.y[rows])
    without = read_group(store, [6, 1, 3])
    kept, all_of = mine[: len(inside)].nnz, whole[inside].nnz
    assert without.graph.num_edges < kept <= all_of


def test_only_nodes_of_the_parts_are_seeds_and_each_once(
    ds: gw.Dataset, source: MemoryParts, store: gw.macro.Store
) -> None:
    seeds = seeds_of(ds, source)
    hubs = pin_hubs(source, seeds, 1, 30_000)
    loader = GroupLoader(store, seeds, (3,), 16, True, 3, count=2, hubs=hubs)
    assert_each_seed_is_in_one_batch(loader, seeds, ds.y[source.order])


def _trainer(ds: gw.Dataset, data: Any, **more: Any) -> gw.Trainer:
    torch.manual_seed(0)
    model = gw.nn.SAGE(ds.num_features, 16, ds.num_classes, num_layers=2, dropout=0.2)
    return gw.Trainer(model, data, mode="macro", fanouts=(5, 5), batch_size=32, seed=0, restore_best=False, **more)


def test_a_store_trains_as_memory_does_bit_for_bit(ds: gw.Dataset, part: torch.Tensor, store: gw.macro.Store) -> None:
    disk = _trainer(ds, store, macro="parts:2/8+hubs:20KB")
    memory = _trainer(ds, ds, macro=gw.macro.Macro(gw.macro.Parts(part, 2), hubs=20_000))
    plain = _trainer(ds, store, macro="parts:2/8")
    told, known, other = disk.fit(2), memory.fit(2), plain.fit(2)
    assert [r.loss for r in told] == [r.loss for r in known] != [r.loss for r in other]
    assert torch.equal(disk.predict(), memory.predict())


def test_the_run_goes_on_only_with_the_same_hubs(ds: gw.Dataset, store: gw.macro.Store, tmp_path: Path) -> None:
    with_hubs, out = "parts:2/8+hubs:20KB", tmp_path / "run"
    whole = _trainer(ds, store, macro=with_hubs).fit(2)
    _trainer(ds, store, macro=with_hubs, out=out).fit(1)
    resumed = _trainer(ds, store, macro=with_hubs, out=out)
    assert resumed.resume() and resumed.fit(1)[-1].loss == whole[-1].loss
    with pytest.raises(gw.errors.GraphWeftError, match="hubs"):
        _trainer(ds, store, macro="parts:2/8", out=out).resume()


def test_hubs_count_in_the_budget(ds: gw.Dataset, store: gw.macro.Store) -> None:
    hubs = 30_000
    assert group_bytes(store, 2, hubs=hubs) - group_bytes(store, 2) >= 3 * hubs
    assert parts_within(store, group_bytes(store, 3, hubs=hubs), hubs=hubs) == 3
    trainer = _trainer(ds, store, macro="hubs:30KB", memory="64MB")
    assert trainer.fit(1)[-1].loss > 0
    plan = gw.plan(trainer.model, store, memory="64MB", macro="parts:2/8+hubs:30KB", mode="macro")
    assert "hubs" in str(plan)


@pytest.mark.parametrize(
    ("macro", "mode", "told"),
    [
        ("parts:2/8+hubs:much", "macro", "hubs: expected a size such as 8GB or 512MB, got 'much'"),
        ("parts:2/8+hubs:10", "macro", "hubs: expected at least"),
        ("parts:2/8+hubs:1MB", "mini", "hubs cannot be combined with mode=mini"),
        ("hubs:1GB", "macro", "memory: expected at least"),
    ],
)
def test_wrong_hubs_are_one_line(macro: str, mode: str, told: str, ds: gw.Dataset, store: gw.macro.Store) -> None:
    data = store if mode == "macro" else ds
    torch.manual_seed(0)
    model = gw.nn.SAGE(ds.num_features, 16, ds.num_classes, num_layers=2)
    with pytest.raises(gw.errors.ConfigError, match=told) as caught:
        gw.Trainer(model, data, mode=mode, macro=macro, memory="64MB" if mode == "macro" else None)
    assert "\n" not in str(caught.value)
