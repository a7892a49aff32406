"""Nodes that parts bring: selection against an absorbing chain, groups against induced graphs, budgets, same bits."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from parted import PARTS, assert_each_seed_is_in_one_batch, matrix_of, seeds_of
from stored_kinds import academic

import graphweft as gw
from graphweft.cli import main
from graphweft.data.flat_features import with_flat_features
from graphweft.loader.group_loader import GroupLoader
from graphweft.loader.groups import group_bytes, parts_within, read_group
from graphweft.loader.hubs import PartWalk, pin_hubs
from graphweft.loader.neighbours import Neighbours, exits, most_read
from graphweft.loader.parts import MemoryParts
from graphweft.train.options import split_macro


@pytest.fixture(scope="module")
def store(ds: gw.Dataset, part: torch.Tensor, tmp_path_factory: pytest.TempPathFactory) -> gw.macro.Store:
    return gw.macro.prepare_store(ds, tmp_path_factory.mktemp("brought") / "store", parts=PARTS, part=part)


def _absorbed(walk: np.ndarray, first: int, end: int, seeds: np.ndarray, steps: int) -> np.ndarray:
    """Mass on every node after a lazy walk that ends where it leaves the part."""
    lazy = np.eye(len(walk))
    lazy[first:end] = (lazy[first:end] + walk[first:end]) / 2
    begin = np.zeros(len(walk))
    begin[seeds] = 1.0
    found: np.ndarray = begin @ np.linalg.matrix_power(lazy, steps)
    return found


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_exits_are_what_an_absorbing_chain_has(steps: int, ds: gw.Dataset, source: MemoryParts) -> None:
    matrix = matrix_of(ds, source).toarray()
    degrees = matrix.sum(1)
    walk = np.where(degrees[:, None] > 0, matrix / np.maximum(degrees, 1)[:, None], np.eye(ds.num_nodes))
    seeds = seeds_of(ds, source).numpy()
    for number, (first, end) in enumerate(itertools.pairwise(source.bounds.tolist())):
        own = seeds[(seeds >= first) & (seeds < end)]
        ids, mass = exits(PartWalk(source, number), own, steps)
        found = np.zeros(ds.num_nodes)
        found[ids] = mass
        expected = _absorbed(walk, first, end, own, steps)
        expected[first:end] = 0.0
        assert np.allclose(found, expected, atol=1e-12)
        assert (steps == 0) == (found.sum() == 0)


def test_exits_of_a_typed_graph_take_a_relation_first(tmp_path: Path) -> None:
    ds = academic()
    store = gw.macro.prepare_store(ds, tmp_path / "s", parts=4, method="hash")
    names = torch.cat([store.node_ids(number) for number in range(4)]).numpy()
    src, dst = (ends.numpy() for ends in ds.graph.edges())
    walk, known = np.zeros((ds.num_nodes,) * 2), np.zeros(ds.num_nodes)
    for a, b in itertools.pairwise(ds.graph.layout.edge_offsets):
        counts = np.zeros_like(walk)
        np.add.at(counts, (dst[a:b], src[a:b]), 1.0)
        some = counts.sum(1) > 0
        walk[some] += counts[some] / counts[some].sum(1, keepdims=True)
        known += some
    walk = np.where(known[:, None] > 0, walk / np.maximum(known, 1)[:, None], np.eye(ds.num_nodes))[names][:, names]
    seeds = np.flatnonzero(np.isin(names, ds.train_idx.numpy()))
    for number, (first, end) in enumerate(itertools.pairwise(store.bounds.tolist())):
        own = seeds[(seeds >= first) & (seeds < end)]
        ids, mass = exits(PartWalk(store, number), own, 2)
        expected = _absorbed(walk, first, end, own, 2)
        assert np.allclose(mass, expected[ids], atol=1e-12)
        assert mass.sum() == pytest.approx(len(own) - expected[first:end].sum())


@pytest.mark.parametrize("share", [0.1, 0.5, 16])
def test_a_part_brings_the_nodes_of_most_mass(
    share: float, ds: gw.Dataset, source: MemoryParts, store: gw.macro.Store
) -> None:
    seeds = seeds_of(ds, source)
    chosen, degrees = most_read(source, seeds, 2, share)
    stored, same = most_read(store, seeds, 2, share)
    assert np.array_equal(degrees, matrix_of(ds, source).sum(1)) and np.array_equal(same, degrees)
    cuts = np.searchsorted(seeds.numpy(), source.bounds)
    for number, (ids, other) in enumerate(zip(chosen, stored, strict=True)):
        assert np.array_equal(ids, other)
        own = seeds[int(cuts[number]) : int(cuts[number + 1])].numpy()
        reached, mass = exits(PartWalk(source, number), own, 2)
        ranked = sorted(zip(-mass[mass > 0], reached[mass > 0], strict=True))
        most = int(share * (source.bounds[number + 1] - source.bounds[number]))
        assert ids.tolist() == sorted(id_ for _, id_ in ranked[:most])
        assert len(ids) == min(most, len(ranked)) > 0


def _nodes(source: Any, found: Neighbours, parts: list[int]) -> np.ndarray:
    """Nodes of a group in the numbers of the source: those of the parts first."""
    inside = np.concatenate([np.arange(source.bounds[i], source.bounds[i + 1]) for i in parts])
    brought = np.concatenate([some.ids for some in found.beside(np.array(parts))])
    assert len(np.unique(brought)) == len(brought)  # each once
    return np.concatenate([inside, brought[~np.isin(brought, inside)]])


@pytest.mark.parametrize("kind", ["store", "memory"])
def test_a_group_has_the_edges_that_parts_and_neighbours_induce(
    kind: str, ds: gw.Dataset, source: MemoryParts, store: gw.macro.Store
) -> None:
    whole, seeds = matrix_of(ds, source), seeds_of(ds, source)
    data: Any = store if kind == "store" else source
    found = Neighbours(data, seeds, 2, 0.3)
    chosen, _ = most_read(source, seeds, 2, 0.3)
    group = read_group(data, [6, 1, 3], found)
    nodes = _nodes(source, found, [1, 3, 6])
    inside = np.concatenate([np.arange(source.bounds[i], source.bounds[i + 1]) for i in (1, 3, 6)])
    assert set(nodes.tolist()) == {*inside.tolist(), *np.concatenate([chosen[i] for i in (1, 3, 6)]).tolist()}
    assert np.array_equal(group.n_id.numpy(), nodes) and len(nodes) > len(inside)
    src, dst = (ends.numpy() for ends in group.graph.edges())
    mine = scipy.sparse.coo_array((np.ones(len(src)), (dst, src)), shape=(len(nodes),) * 2).tocsr()
    assert (mine != whole[nodes][:, nodes]).nnz == 0
    rows = source.order[torch.from_numpy(nodes)]
    assert torch.equal(group.x, ds.x[rows]) and torch.equal(group.y, ds.y[rows])
    assert mine[len(inside) :].nnz > 0  # neighbours have in-edges, too
    kept = np.asarray(group.edges).sum(1)
    assert kept.tolist() == [whole[inside].nnz, whole[inside][:, nodes].nnz]


@pytest.mark.parametrize("weights", [False, True])
def test_a_typed_group_is_the_graph_that_parts_and_neighbours_induce(weights: bool, tmp_path: Path) -> None:
    """Types have columns of their own, or none."""
    ds = academic(weights)
    store = gw.macro.prepare_store(ds, tmp_path / "s", parts=4, method="hash")
    names = torch.cat([store.node_ids(number) for number in range(4)])
    seeds = torch.isin(names, ds.train_idx).nonzero().reshape(-1)
    found = Neighbours(store, seeds, 2, 0.4)
    group = read_group(store, [3, 1], found)
    of_parts = torch.cat([store.node_ids(n) for n in (1, 3)])
    rows = names[group.n_id]
    brought = torch.from_numpy(np.concatenate([some.ids for some in found.beside(np.array([1, 3]))]))
    assert torch.equal(rows.sort().values, torch.cat([of_parts, names[brought]]).unique())
    assert len(rows) > len(of_parts)
    offsets = ds.graph.layout.edge_offsets
    for at, (a, b) in enumerate(itertools.pairwise(offsets)):
        assert _dense(group.graph, group.edge_weight, at, len(rows)) == pytest.approx(
            _dense(ds.graph, ds.edge_weight, at, ds.num_nodes)[rows][:, rows]
        ), (a, b)
    assert torch.equal(group.y, ds.y[rows])
    assert torch.equal(group.rows(torch.arange(len(rows))).to_dense(), with_flat_features(ds).x.to_dense()[rows])
    loader = GroupLoader(store, seeds, [2, 2], 16, True, 3, count=2, neighbours=found)
    seen = []
    for batch in loader:
        own = names[batch.data.n_id[batch.n_id[: batch.batch_size]]]
        assert torch.equal(names[seeds[batch.input_id]], own)
        seen += own.tolist()
    assert sorted(seen) == ds.train_idx.tolist()


def _dense(graph: gw.Graph, weight: torch.Tensor | None, relation: int, nodes: int) -> np.ndarray:
    """(nodes, nodes) edges of a relation into rows, by weight where there is one."""
    a, b = graph.layout.edge_offsets[relation : relation + 2]
    src, dst = (ends[a:b].numpy() for ends in graph.edges())
    values = np.ones(b - a) if weight is None else weight[a:b].numpy().astype(np.float64)
    found: np.ndarray = scipy.sparse.coo_array((values, (dst, src)), shape=(nodes, nodes)).toarray()
    return found


def test_only_nodes_of_the_parts_are_seeds_and_each_once(
    ds: gw.Dataset, source: MemoryParts, store: gw.macro.Store
) -> None:
    seeds = seeds_of(ds, source)
    loader = GroupLoader(store, seeds, (3,), 16, True, 3, count=2, neighbours=Neighbours(store, seeds, 1, 1.0))
    assert_each_seed_is_in_one_batch(loader, seeds, ds.y[source.order])


def _trainer(ds: gw.Dataset, data: Any, **more: Any) -> gw.Trainer:
    torch.manual_seed(0)
    model = gw.nn.SAGE(ds.num_features, 16, ds.num_classes, num_layers=2, dropout=0.2)
    given = {"mode": "macro", "fanouts": (5, 5), "batch_size": 32, "seed": 0, "restore_best": False, **more}
    return gw.Trainer(model, data, **given)


def test_with_all_that_seeds_read_a_batch_of_one_layer_is_that_of_memory(
    ds: gw.Dataset, store: gw.macro.Store, source: MemoryParts
) -> None:
    torch.manual_seed(0)
    model = gw.nn.SAGE(ds.num_features, 16, ds.num_classes, num_layers=1)
    given: dict[str, Any] = {"fanouts": (-1,), "batch_size": 1000, "seed": 0}
    trainer = gw.Trainer(model, store, mode="macro", macro="parts:1/8+neighbours:16", **given)
    known = model.eval()(ds.graph, ds.x).detach()
    seeds = seeds_of(ds, source)
    for batch in trainer._batch.loader:
        rows = source.order[seeds[batch.input_id]]
        assert torch.allclose(model(batch.blocks, batch.x)[: batch.batch_size], known[rows], atol=1e-5)


def test_a_store_trains_as_memory_does_bit_for_bit(ds: gw.Dataset, part: torch.Tensor, store: gw.macro.Store) -> None:
    former, runs = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            runs.append(_trainer(ds, store, macro="parts:2/8+neighbours:0.5"))
            runs[-1].fit(2)
    finally:
        torch.set_num_threads(former)
    memory = _trainer(ds, ds, macro=gw.macro.Macro(gw.macro.Parts(part, 2), neighbours=0.5))
    plain = _trainer(ds, store, macro="parts:2/8")
    memory.fit(2)
    plain.fit(2)
    losses = [[r.loss for r in trainer.history] for trainer in (*runs, memory, plain)]
    assert losses[0] == losses[1] == losses[2] != losses[3]
    assert torch.equal(runs[0].predict(), memory.predict())
    kept = [trainer.history[-1].metrics["edges_kept"] for trainer in (runs[0], plain)]
    assert kept[0] > kept[1] + 0.05


def test_the_run_goes_on_only_with_the_same_share(ds: gw.Dataset, store: gw.macro.Store, tmp_path: Path) -> None:
    brought, out = "parts:2/8+neighbours:0.5", tmp_path / "run"
    whole = _trainer(ds, store, macro=brought).fit(3)
    _trainer(ds, store, macro=brought, out=out).fit(1)
    resumed = _trainer(ds, store, macro=brought, out=out)
    assert resumed.resume() and resumed.fit(2)[-1].loss == whole[-1].loss
    for other in ("parts:2/8", "parts:2/8+neighbours:0.25"):
        with pytest.raises(gw.errors.GraphWeftError, match="neighbours"):
            _trainer(ds, store, macro=other, out=out).resume()


def test_bytes_of_neighbours_are_told(ds: gw.Dataset, store: gw.macro.Store) -> None:
    trainer, plain = _trainer(ds, store, macro="parts:2/8+neighbours:0.5"), _trainer(ds, store, macro="parts:2/8")
    told, without = trainer.fit(2)[-1].metrics, plain.fit(2)[-1].metrics
    brought = trainer._batch.neighbours.sizes
    row = ds.num_features * 4 + 8 + 16
    expected = brought.nodes * row + brought.entries * 4
    assert np.all(np.abs(brought.nbytes - expected) < 32)  # columns begin at multiples of eight bytes
    assert told["bytes_needed"] - without["bytes_needed"] == brought.nbytes.sum()
    more = told["bytes_read"] - without["bytes_read"]
    assert brought.nbytes.sum() <= more <= brought.nbytes.sum() + PARTS * 4 * 4096  # whole sectors
    plan = gw.plan(trainer.model, store, memory="64MB", macro="parts:2/8+neighbours:0.5", mode="macro")
    assert ", with neighbours of " in str(plan)
    assert plan.strategy.disk == store.nbytes + brought.nbytes.sum()


def test_neighbours_count_in_the_budget(ds: gw.Dataset, store: gw.macro.Store) -> None:
    seeds = torch.from_numpy(store.split("train")[0])
    found = Neighbours(store, seeds, 2, 1.0).sizes
    most = np.sort(found.group_bytes(8))[-2:].sum()
    assert group_bytes(store, 2, brought=found) - group_bytes(store, 2) > most
    assert parts_within(store, group_bytes(store, 3, brought=found), brought=found) == 3
    needed = group_bytes(store, 2, brought=found)
    with pytest.raises(gw.errors.MemoryBudgetError, match="memory: expected at least") as refused:
        _trainer(ds, store, macro="parts:2/8+neighbours:1", memory=needed)
    assert refused.value.least > needed  # a run takes more than its groups
    trainer = _trainer(ds, store, macro="parts:2/8+neighbours:1", memory=refused.value.least)
    assert trainer.fit(1)[-1].loss > 0
    with pytest.raises(gw.errors.MemoryBudgetError, match="fewer neighbours"):
        parts_within(store, 1000, brought=found)


def test_parts_without_training_nodes_bring_none(ds: gw.Dataset, source: MemoryParts) -> None:
    seeds = seeds_of(ds, source)
    found = Neighbours(source, seeds[seeds < int(source.bounds[2])], 2, 1.0)
    assert (found.sizes.nodes[:2] > 0).all() and not found.sizes.nodes[2:].any()
    plain = read_group(source, [4, 5])
    assert torch.equal(read_group(source, [4, 5], found).graph.csc.indices, plain.graph.csc.indices)


def test_a_full_disk_is_one_line(ds: gw.Dataset, store: gw.macro.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(gw.errors.DataError, match=r"neighbours: expected room on the disk .* No space left") as caught:
        _trainer(ds, store, macro="parts:2/8+neighbours:0.5")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("macro", "mode", "told"),
    [
        (
            "parts:2/8+neighbours:many",
            "macro",
            "macro: expected neighbours:SHARE with a share of a part's nodes or auto, got",
        ),
        ("parts:2/8+neighbours:-1", "macro", "macro: expected neighbours:SHARE"),
        ("parts:2/8+neighbours:1e400", "macro", "macro: expected neighbours:SHARE"),
        ("parts:2/8+neighbours:17", "macro", "neighbours: expected a finite number >= 0 and <= 16, got 17"),
        ("parts:2/8+neighbours:1+hubs:1MB", "macro", "macro: hubs=1MB cannot be combined with neighbours=1"),
        ("parts:2/8+neighbours:1", "mini", "neighbours cannot be combined with mode=mini"),
    ],
)
def test_wrong_neighbours_are_one_line(macro: str, mode: str, told: str, ds: gw.Dataset, store: gw.macro.Store) -> None:
    with pytest.raises(gw.errors.ConfigError, match=told) as caught:
        _trainer(ds, store if mode == "macro" else ds, mode=mode, macro=macro)
    assert "\n" not in str(caught.value)
    assert main(["train", "--data", str(store.path), "--mode", mode, "--macro", macro, "--epochs", "1"]) == 2


def test_what_else_is_refused(ds: gw.Dataset, source: MemoryParts, store: gw.macro.Store) -> None:
    for wrong in (True, "1", float("nan")):
        with pytest.raises(gw.errors.ConfigError, match="neighbours: expected a finite number >= 0 and <= 16, got"):
            gw.macro.Macro("parts:1/2", neighbours=wrong)  # type: ignore[arg-type]
    model = gw.nn.SAGE(ds.num_features, 8, 8, num_layers=2)
    with pytest.raises(
        gw.errors.ConfigError, match="task=link cannot be combined with hubs, reuse, neighbours or first"
    ):
        gw.Trainer(model, store, mode="macro", task="link", macro="parts:2/8+neighbours:1", fanouts=(3, 2))
    seeds = seeds_of(ds, source)
    hubs, found = pin_hubs(source, seeds, 1, 30_000), Neighbours(source, seeds, 1, 1.0)
    with pytest.raises(gw.errors.ConfigError, match="GroupLoader: hubs cannot be combined with neighbours"):
        GroupLoader(source, seeds, (3,), count=2, hubs=hubs, neighbours=found)


def test_texts() -> None:
    assert tuple(split_macro("parts:2/8+neighbours:0.5+keep:2")) == ("parts:2/8", None, 1, 2, 0.5, "group")
    assert gw.macro.Macro("parts:2/8+neighbours:1").neighbours == 1.0
    assert gw.macro.Macro(None, neighbours=0.5).neighbours == 0.5


def test_a_store_without_features_has_neighbours(ds: gw.Dataset, part: torch.Tensor, tmp_path: Path) -> None:
    bare = gw.macro.prepare_store(replace(ds, x=None), tmp_path / "s", parts=PARTS, part=part)
    seeds = torch.from_numpy(bare.split("train")[0])
    group = read_group(bare, [2, 5], Neighbours(bare, seeds, 2, 0.5))
    assert group.x is None and group.graph.num_edges > read_group(bare, [2, 5]).graph.num_edges


@pytest.mark.parametrize(("count", "reuse"), [(1, 1), (3, 1), (2, 3), (PARTS, 1)])
def test_no_group_has_more_batches_than_are_counted(
    count: int, reuse: int, ds: gw.Dataset, source: MemoryParts
) -> None:
    loader = GroupLoader(source, seeds_of(ds, source), [2], 8, True, 5, count=count, reuse=reuse)
    seen = 0
    for epoch in range(8):
        batches = dict.fromkeys((group.number for group in loader.plan(epoch)), 0)
        for group in loader.plan(epoch):
            batches[group.number] += -(-len(group.nodes) // 8)
        seen = max(seen, *batches.values())
    assert seen <= loader.most_batches() <= seen + 2 * reuse
