"""Parts that stay in memory between epochs: fewer bytes, the same batches, whatever kind of store it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import graphweft as gw
from graphweft.loader.group_loader import GroupLoader
from graphweft.loader.groups import group_bytes, kept_bytes
from graphweft.loader.link_groups import LinkGroupLoader
from graphweft.sample.stages import Parts
from graphweft.storage.replacement import lru_misses, optimal_misses

PARTS, EPOCHS = 32, 6


@pytest.fixture(scope="module")
def ds() -> gw.Dataset:
    return gw.synthetic("default", scale=0.1, seed=0)


@pytest.fixture(scope="module")
def store(ds: gw.Dataset, tmp_path_factory: pytest.TempPathFactory) -> gw.macro.Store:
    folder = tmp_path_factory.mktemp("kept") / "store"
    return gw.macro.prepare_store(ds, folder, parts=PARTS, memory="64MB", method="hash")


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> gw.macro.Store:
    """Two types with columns of their own."""
    draw = torch.Generator().manual_seed(0)
    ends = torch.randint(0, 300, (2, 2000), generator=draw)
    relations = {("a", "to", "b"): (ends[0] % 200, ends[1]), ("b", "back", "a"): (ends[1], ends[0] % 200)}
    graph = gw.Graph.hetero(relations, {"a": 200, "b": 300})
    features = {"a": torch.randn(200, 6, generator=draw), "b": torch.randn(300, 4, generator=draw)}
    labels = torch.cat([torch.full((200,), -1), torch.arange(300) % 3])
    data = gw.Dataset("typed", graph, y=labels, features=features, target_type="b", seed=0)
    return gw.macro.prepare_store(
        data, tmp_path_factory.mktemp("kept") / "typed", parts=8, memory="64MB", method="hash"
    )


def loader_of(store: gw.macro.Store, **options: Any) -> GroupLoader:
    seeds = torch.from_numpy(store.split("train")[0])
    return GroupLoader(store, seeds, [3, 2], 16, True, 0, **options)


def epoch_bytes(loader: Any, store: gw.macro.Store) -> int:
    before = store.counts.nbytes
    for _ in loader:
        pass
    return store.counts.nbytes - before


def part_bytes(store: gw.macro.Store) -> int:
    """Bytes that a group reads of all parts."""
    names = ("split",) if store.types is not None else ("split", "node_ids")
    return sum(b.nbytes for part in store.manifest.parts for b in part.blocks if b.name not in names)


def test_a_fifth_less_is_read_than_by_lru_with_all_memory_of_the_run(store: gw.macro.Store) -> None:
    """A counting store against simulated caches that may fill what groups take as well."""
    count, keep = 1, 10
    loader, usual = loader_of(store, count=count, keep=keep), loader_of(store, count=count)
    # one group a part, all of which have training nodes, so that uses of parts are the groups
    kept = [[part for group in loader.plan(epoch) for part in group.parts] for epoch in range(EPOCHS)]
    plain = [[part for group in usual.plan(epoch) for part in group.parts] for epoch in range(EPOCHS)]
    assert all(sorted(order) == list(range(PARTS)) for order in [*kept, *plain])
    read = [epoch_bytes(loader, store) for _ in range(EPOCHS)]
    everything = [epoch_bytes(usual, store) for _ in range(EPOCHS)]
    assert min(everything) >= part_bytes(store)  # without, every epoch reads every part
    memory = 2 * count + keep
    lru = lru_misses([part for order in plain for part in order], memory) - PARTS
    ours = optimal_misses([part for order in kept for part in order], keep) - PARTS
    assert ours == (EPOCHS - 1) * (PARTS - keep)  # exact next use keeps what the loader keeps
    share = sum(read[1:]) / sum(everything[1:])
    assert share == pytest.approx(ours / PARTS / (EPOCHS - 1), rel=0.06)
    assert share <= 0.8 * lru / PARTS / (EPOCHS - 1)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_batches_are_those_of_a_loader_that_reads_everything(store: gw.macro.Store, count: int) -> None:
    """The same order with nothing in memory, since every epoch is read by another loader."""
    loader = loader_of(store, count=count, keep=6)
    seeds = torch.from_numpy(store.split("train")[0])
    most = sum(sorted(sum(b.nbytes for b in part.blocks) for part in store.manifest.parts)[-6:])
    for epoch in range(3):
        fresh = loader_of(store, count=count, keep=6)
        fresh.load_state_dict({**fresh.state_dict(), "epoch": epoch})
        assert torch.equal(
            torch.cat([group.places for group in loader.plan(epoch)]).sort().values, torch.arange(len(seeds))
        )
        for batch, other in zip(loader, fresh, strict=True):
            assert torch.equal(batch.x, other.x) and torch.equal(batch.y, other.y)
            assert torch.equal(batch.edge_index, other.edge_index)
            assert isinstance(loader.source, gw.macro.Store)
            assert loader.source.held.nbytes <= most
        assert loader.source.held.nbytes > 0


def test_typed_stores_and_links(typed: gw.macro.Store, store: gw.macro.Store) -> None:
    def alike(one: Any, other: Any) -> None:
        ours = [(batch.n_id.tolist(), batch.x.to_dense().tolist()) for batch in one]
        assert ours == [(batch.n_id.tolist(), batch.x.to_dense().tolist()) for batch in other]

    def links(keep: int) -> LinkGroupLoader:
        return LinkGroupLoader(store, [3, 2], 64, True, 0, count=4, keep=keep)

    def groups(keep: int) -> GroupLoader:
        return loader_of(typed, count=1, keep=keep)

    for make, data, keep, parts in ((groups, typed, 3, 8), (links, store, 8, PARTS)):
        loader: Any = make(keep)
        full = [epoch_bytes(loader, data)]
        for epoch in (1, 2):
            fresh: Any = make(keep)
            fresh.load_state_dict({**fresh.state_dict(), "epoch": epoch})
            before = data.counts.nbytes
            alike(loader, fresh)
            full.append(data.counts.nbytes - before)
        # both loaders together: one reads all, the other what it has not kept
        assert full[1] / full[0] - 1 == pytest.approx(1 - keep / parts, rel=0.1)


def test_a_store_trains_as_memory_does_and_goes_on(store: gw.macro.Store, ds: gw.Dataset) -> None:
    part = torch.empty(ds.num_nodes, dtype=torch.int64)
    for number in range(PARTS):
        part[store.part(number).node_ids] = number

    def trainer(data: Any, stages: Any, keep: int = 8) -> gw.Trainer:
        torch.manual_seed(0)
        model = gw.nn.SAGE(ds.num_features, 8, ds.num_classes, num_layers=2)
        return gw.Trainer(
            model, data, mode="macro", macro=gw.macro.Macro(stages, keep=keep), fanouts=(3, 2), batch_size=32, seed=0
        )

    disk, memory = trainer(store, "parts:4/32"), trainer(ds, Parts(part, 4))
    found = disk.fit(4)
    assert [r.loss for r in found] == [r.loss for r in memory.fit(4)]
    assert [r.val_loss for r in found] == [r.val_loss for r in memory.history]
    read = [r.metrics["bytes_read"] / r.metrics["bytes_needed"] for r in found]
    assert max(read[1:]) < 0.8 * read[0]
    first = trainer(store, "parts:4/32+keep:8", 0)
    first.fit(2)
    saved = first.state_dict()
    second = trainer(store, "parts:4/32")
    second.load_state_dict(saved)
    assert [r.loss for r in second.fit(2)][-2:] == [r.loss for r in found[2:]]
    with pytest.raises(gw.errors.CheckpointError, match="keep"):
        trainer(store, "parts:4/32", 7).load_state_dict(saved)


def test_the_budget_counts_kept_parts(store: gw.macro.Store, ds: gw.Dataset) -> None:
    needed = group_bytes(store, 2, keep=8)
    assert needed - group_bytes(store, 2) == kept_bytes(store, 8) > 0
    model = gw.nn.SAGE(ds.num_features, 8, ds.num_classes, num_layers=2)
    given: dict[str, Any] = {"mode": "macro", "macro": "parts:2/32+keep:8", "fanouts": (3, 2)}
    with pytest.raises(gw.errors.MemoryBudgetError, match="memory: expected at least") as refused:
        gw.Trainer(model, store, memory=needed, **given)
    assert refused.value.least > needed  # a run takes more than its groups
    assert gw.Trainer(model, store, memory=refused.value.least, **given).needs is not None
    with pytest.raises(gw.errors.ConfigError, match="keep: expected 0 to 16 of 32 parts in groups of 2, got 17"):
        gw.Trainer(model, store, mode="macro", macro="parts:2/32+keep:17", fanouts=(3, 2))
    with pytest.raises(gw.errors.ConfigError, match="keep cannot be combined with mode=mini"):
        gw.Trainer(model, ds, mode="mini", macro="parts:2/32+keep:2", fanouts=(3, 2))
    with pytest.raises(gw.errors.ConfigError, match="macro: expected keep:N"):
        gw.macro.Macro("parts:2/8+keep:many")
    assert "8 parts kept" in str(gw.plan(model, store, memory="64MB", macro="parts:2/32+keep:8", mode="macro"))
