"""Training on groups of parts: from a store as from memory, every seed once, within memory, and exactly resumed."""

from __future__ import annotations

import gc
import resource
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch

import graphweft as gw
from graphweft.loader import group_loader
from graphweft.loader.group_loader import GroupLoader
from graphweft.loader.groups import group_bytes, parts_within, read_group
from graphweft.loader.parts import MemoryParts
from graphweft.train.part_inference import PartInference

PARTS = 8


@pytest.fixture(scope="module")
def ds() -> gw.Dataset:
    return gw.synthetic("default", scale=0.05)


@pytest.fixture(scope="module")
def part(ds: gw.Dataset) -> torch.Tensor:
    return gw.partition(ds.graph, PARTS).part


@pytest.fixture
def store(ds: gw.Dataset, part: torch.Tensor, tmp_path: Path) -> gw.macro.Store:
    return gw.macro.prepare_store(ds, tmp_path / "store", parts=PARTS, part=part, memory="64MB")


def _trainer(ds: gw.Dataset, data: Any, kind: str = "SAGE", **more: Any) -> gw.Trainer:
    torch.manual_seed(0)
    model = getattr(gw.nn, kind)(ds.num_features, 16, ds.num_classes, num_layers=2, dropout=0.2)
    options = {"mode": "macro", "fanouts": (5, 5), "batch_size": 32, "seed": 0, "restore_best": False, **more}
    return gw.Trainer(model, data, **options)


def _weights(trainer: gw.Trainer) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


@pytest.mark.parametrize("kind", ["SAGE", "GCN", "GAT"])
def test_a_store_trains_as_memory_does_bit_for_bit(
    kind: str, ds: gw.Dataset, part: torch.Tensor, store: gw.macro.Store
) -> None:
    disk, memory = _trainer(ds, store, kind, macro="parts:3/8"), _trainer(ds, ds, kind, macro=gw.macro.Parts(part, 3))
    told, known = disk.fit(3), memory.fit(3)
    assert [r.loss for r in told] == [r.loss for r in known]
    assert [r.val_acc for r in told] == [r.val_acc for r in known]
    assert all(torch.equal(a, b) for a, b in zip(_weights(disk), _weights(memory), strict=True))
    assert torch.equal(disk.predict(), memory.predict())
    assert told[-1].loss < told[0].loss


@pytest.mark.parametrize("kind", ["SAGE", "GCN", "GAT", "GIN"])
def test_evaluation_is_that_of_the_whole_graph(kind: str, ds: gw.Dataset, store: gw.macro.Store) -> None:
    trainer = _trainer(ds, store, kind, macro="parts:2/8")
    trainer.fit(1)
    whole = trainer.model.eval()(ds.graph, ds.x)
    found = trainer.predictions().outputs
    assert torch.allclose(found, whole, atol=1e-4, rtol=1e-4)
    score = (whole.argmax(1) == ds.y)[ds.test_idx].float().mean()
    assert trainer.evaluate("test") == pytest.approx(float(score), abs=2 / len(ds.test_idx))


def test_threads_do_not_change_the_result(ds: gw.Dataset, store: gw.macro.Store) -> None:
    former, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            trainer = _trainer(ds, store, macro="parts:2/8")
            trainer.fit(2)
            found.append(_weights(trainer))
    finally:
        torch.set_num_threads(former)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_every_seed_is_in_one_batch_and_edges_are_induced(workers: int, ds: gw.Dataset, store: gw.macro.Store) -> None:
    ids, _ = store.split("train")
    loader = GroupLoader(store, torch.from_numpy(ids), (-1,), 16, True, 3, count=2, workers=workers)
    source = torch.cat([store.block(number, "node_ids") for number in range(PARTS)])
    for _ in range(2):
        seen: list[int] = []
        orders = [planned.parts for planned in loader.plan(loader.epoch)]
        for batch in loader:
            seen += ids[batch.input_id.numpy()].tolist()
            assert torch.equal(batch.x, ds.x[_global(batch, source, store)])
        assert sorted(seen) == ids.tolist()
        assert sorted(number for parts in orders for number in parts) == list(range(PARTS))


def _global(batch: Any, source: torch.Tensor, store: gw.macro.Store) -> torch.Tensor:
    """Rows in the dataset of a batch's nodes."""
    spans = [np.arange(store.bounds[number], store.bounds[number + 1]) for number in batch._data.parts]
    return source[torch.from_numpy(np.concatenate(spans))[batch.n_id]]


def test_a_group_is_the_induced_graph(ds: gw.Dataset, store: gw.macro.Store) -> None:
    src, dst = (ends.numpy() for ends in ds.graph.edges())
    whole = scipy.sparse.coo_array((np.ones(len(src)), (dst, src)), shape=(ds.num_nodes,) * 2).tocsr()
    group = read_group(store, [6, 1, 3])
    nodes = torch.cat([store.block(number, "node_ids") for number in (1, 3, 6)]).numpy()
    mine_src, mine_dst = (ends.numpy() for ends in group.graph.edges())
    mine = scipy.sparse.coo_array((np.ones(len(mine_src)), (mine_dst, mine_src)), shape=(len(nodes),) * 2).tocsr()
    assert (mine != whole[nodes][:, nodes]).nnz == 0
    assert torch.equal(group.x, ds.x[torch.from_numpy(nodes)])
    assert torch.equal(group.y, ds.y[torch.from_numpy(nodes)])


def test_at_most_two_groups_are_in_memory(store: gw.macro.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    most = 0

    def counted(source: Any, parts: Any, hubs: Any) -> Any:
        nonlocal most
        group = read_group(source, parts, hubs)
        alive.add(group)
        most = max(most, len(alive))
        return group

    monkeypatch.setattr(group_loader, "read_group", counted)
    ids, _ = store.split("train")
    loader = GroupLoader(store, torch.from_numpy(ids), (3, 3), 8, True, 0, count=1, workers=2)
    for _ in range(2):
        for batch in loader:
            assert batch.batch_size > 0
            del batch
            time.sleep(0.02)  # a model at work: the next group is read while this one is in use
    assert most == 2
    gc.collect()
    assert len(alive) <= 1


def test_the_next_group_is_read_while_the_only_batch_of_one_is_in_use(
    store: gw.macro.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    read, seen = threading.Semaphore(0), list[int]()

    def counted(source: Any, parts: Any, hubs: Any) -> Any:
        seen.append(len(alive))  # before this one
        group = read_group(source, parts, hubs)
        alive.add(group)
        read.release()
        return group

    monkeypatch.setattr(group_loader, "read_group", counted)
    ids, _ = store.split("train")
    loader = GroupLoader(store, torch.from_numpy(ids), (3, 3), 10**6, True, 0, count=1)
    groups = len(loader)
    assert groups > 2
    held = []
    for number, batch in enumerate(loader):
        held[:] = [batch]  # as a loop holds it; the one before is let go
        wanted = 1 if number else 2  # of the first batch its own group as well
        for _ in range(wanted if number < groups - 1 else 0):
            assert read.acquire(timeout=20)
        del batch
    assert max(seen) == 1


def test_a_run_goes_on_in_the_middle_of_an_epoch(ds: gw.Dataset, store: gw.macro.Store, tmp_path: Path) -> None:
    whole = _trainer(ds, store, macro="parts:2/8")
    whole.fit(3)
    first = _trainer(ds, store, macro="parts:2/8", out=tmp_path / "run")
    first.fit(1)
    begun = iter(first._batch.loader)
    for _ in range(3):
        next(begun)
    begun.close()
    again = _trainer(ds, gw.macro.Store(store.path), macro="parts:2/8", out=tmp_path / "run")
    assert again.resume()
    again.fit(2)
    assert all(torch.equal(a, b) for a, b in zip(_weights(whole), _weights(again), strict=True))


def test_a_run_that_goes_on_takes_over_the_parts_of_a_group(
    ds: gw.Dataset, store: gw.macro.Store, tmp_path: Path
) -> None:
    whole = _trainer(ds, store, macro="parts:2/8")
    whole.fit(3)
    _trainer(ds, store, macro="parts:2/8", out=tmp_path / "run").fit(1)
    again = _trainer(ds, gw.macro.Store(store.path), memory="256MB", out=tmp_path / "run")
    assert again._batch.identity()["group"] == "8/8"  # as many as fit
    assert again.resume() and again._batch.identity()["group"] == "2/8"
    again.fit(2)
    assert all(torch.equal(a, b) for a, b in zip(_weights(whole), _weights(again), strict=True))
    other = _trainer(ds, store, macro="parts:4/8", out=tmp_path / "run")
    with pytest.raises(gw.errors.CheckpointError, match=r"^resume: expected group '2/8' .*got '4/8'"):
        other.resume()


def test_a_loader_goes_on_at_any_position(store: gw.macro.Store) -> None:
    ids, _ = store.split("train")

    def made() -> GroupLoader:
        return GroupLoader(store, torch.from_numpy(ids), (3, 3), 8, True, 5, count=3, workers=0)

    whole = [batch.n_id for batch in made()]
    for stop in (1, len(whole) // 2, len(whole) - 1):
        loader = made()
        turn = iter(loader)
        for _ in range(stop):
            next(turn)
        state = loader.state_dict()
        turn.close()
        fresh = made()
        fresh.load_state_dict(state)
        rest = [batch.n_id for batch in fresh]
        assert len(rest) == len(whole) - stop
        assert all(torch.equal(a, b) for a, b in zip(rest, whole[stop:], strict=True))


def test_the_budget_decides_how_many_parts_make_a_group(ds: gw.Dataset, store: gw.macro.Store) -> None:
    least, most = group_bytes(store, 1), group_bytes(store, PARTS)
    assert parts_within(store, least) == 1
    assert parts_within(store, most) == PARTS
    for count in range(1, PARTS):
        assert group_bytes(store, count) < group_bytes(store, count + 1)
    for macro, words in ((None, "one of 8 parts"), ("parts:4/8", "4 parts")):
        with pytest.raises(
            gw.errors.MemoryBudgetError, match=rf"memory: expected at least \d+ MB for groups of {words}, got 10 KB"
        ) as refused:
            _trainer(ds, store, memory=10**4, macro=macro)
        told = _trainer(ds, store, memory=refused.value.least, macro=macro)  # what it names is enough
        assert told.needs is not None and told.needs.total <= refused.value.least


def test_options_that_do_not_fit_are_told_in_one_line(ds: gw.Dataset, store: gw.macro.Store) -> None:
    for data, more, text in (
        (
            store,
            {"mode": "full", "fanouts": None, "batch_size": 1024},
            "mode: expected macro or mini for a store, got 'full'",
        ),
        (store, {"macro": "parts:2/16"}, "macro: expected parts:B/8 for a store of 8 parts, got parts:2/16"),
        (store, {"macro": "large:1/8"}, "macro: expected parts:B/P with mode macro"),
        (ds, {}, "macro: expected parts:B/P with mode macro on a dataset in memory, got None"),
        (
            store,
            {"sampler": "saint-node", "fanouts": None},
            "sampler=saint-node cannot be combined with mode=macro; use sampler=neighbor",
        ),
        (store, {"macro": gw.macro.Macro("parts:2/8", quality=0.1)}, "macro: expected neither quality nor refresh"),
    ):
        with pytest.raises(gw.errors.ConfigError, match=text):
            _trainer(ds, data, **more)


def test_a_full_disk_while_rows_are_kept_is_one_line(ds: gw.Dataset, part: torch.Tensor) -> None:
    """Room is taken before rows are written: writing past the end of a disk through a map ends the process."""
    source = MemoryParts(ds.graph, ds.x, ds.y, part, PARTS)
    model = gw.nn.SAGE(ds.num_features, 16, ds.num_classes)
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, former[1]))
    try:
        with pytest.raises(gw.errors.DataError, match=r"expected room for .* of hidden rows, got: File too large"):
            PartInference(model, source, 1 << 24, 2).outputs(np.arange(ds.num_nodes))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)


def test_values_of_edges_are_refused_unless_they_are_ignored(ds: gw.Dataset, part: torch.Tensor) -> None:
    weighted = replace(ds, edge_weight=torch.rand(ds.num_edges))
    options = {"kind": "GCN", "macro": gw.macro.Macro(gw.macro.Parts(part, 2))}
    with pytest.raises(gw.errors.ConfigError, match="mode=macro cannot be combined with edge_weight"):
        _trainer(ds, weighted, **options)
    trainer = _trainer(ds, weighted, edge_data="ignore", **options)
    assert trainer.fit(1)[-1].loss == _trainer(ds, ds, **options).fit(1)[-1].loss


def test_a_damaged_block_stops_training_in_one_line(ds: gw.Dataset, store: gw.macro.Store) -> None:
    entry = store.manifest.parts[2]
    file = store.path / entry.file
    held = bytearray(file.read_bytes())
    held[entry.block("indices").offset + 5] ^= 1
    file.write_bytes(held)
    with pytest.raises(gw.errors.DataError, match=r"part-00002.bin: expected the checksum .* of block indices"):
        _trainer(ds, gw.macro.Store(store.path), macro="parts:2/8").fit(1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_features_of_few_bits_train(dtype: str, ds: gw.Dataset, tmp_path: Path) -> None:
    store = gw.macro.prepare_store(ds, tmp_path / "s", parts=4, dtype=dtype)
    history = _trainer(ds, store, macro="parts:2/4").fit(3)
    assert history[-1].loss < history[0].loss


@pytest.mark.parametrize("kind", ["several labels", "values"])
def test_other_labels_train(kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 5)).astype(np.float32)
    y = (x[:, :3] > 0).astype(np.float32) if kind == "several labels" else x[:, 0]
    graph = gw.Graph(*rng.integers(0, 120, (2, 500)), num_nodes=120)
    ds = gw.Dataset("made", graph, x, y, task="multilabel" if kind == "several labels" else "regression")
    store = gw.macro.prepare_store(ds, tmp_path / "s", parts=4, method="hash")
    part = torch.cat([torch.full((store.part(i).num_nodes,), i) for i in range(4)])
    part = torch.empty(120, dtype=torch.int64).index_copy_(
        0, torch.cat([store.part(i).node_ids for i in range(4)]), part
    )
    disk, memory = _trainer(ds, store, macro="parts:2/4"), _trainer(ds, ds, macro=gw.macro.Parts(part, 2))
    assert [r.loss for r in disk.fit(3)] == [r.loss for r in memory.fit(3)]
    assert disk.history[-1].loss < disk.history[0].loss
    assert torch.equal(disk.predict(), memory.predict())


def test_a_model_of_ones_own_is_evaluated_group_by_group(ds: gw.Dataset, part: torch.Tensor) -> None:
    class Mean(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(ds.num_features, ds.num_classes)

        def forward(self, graph: gw.Graph, x: torch.Tensor) -> torch.Tensor:
            src, dst = graph.edges()
            total = torch.zeros_like(x).index_add_(0, dst.long(), x[src.long()])
            out: torch.Tensor = self.linear(x + total)
            return out

    source = MemoryParts(ds.graph, ds.x, ds.y, part, PARTS)
    model = Mean()
    every = PartInference(model, source, 1 << 24, PARTS).outputs(np.arange(ds.num_nodes))
    assert torch.allclose(every, model(ds.graph, ds.x)[source.order], atol=1e-4)
    trainer = gw.Trainer(model, ds, mode="macro", macro=gw.macro.Parts(part, 4), batch_size=64, fanouts=(5,))
    history = trainer.fit(3)
    assert history[-1].loss < history[0].loss
    assert trainer.predict().shape == (ds.num_nodes,)


def test_tiles_of_any_size_give_the_same_outputs(ds: gw.Dataset, store: gw.macro.Store) -> None:
    model = gw.nn.SAGE(ds.num_features, 8, ds.num_classes)
    wide = PartInference(model, store, 1 << 30, 1).outputs(np.arange(0, ds.num_nodes, 3))
    tight = PartInference(model, store, 1, 1).outputs(np.arange(0, ds.num_nodes, 3))
    assert torch.allclose(wide, tight, atol=1e-5)


def test_loaded_runs_of_a_store_predict_and_score(ds: gw.Dataset, store: gw.macro.Store, tmp_path: Path) -> None:
    trainer = _trainer(ds, store, macro="parts:2/8", out=tmp_path / "run", restore_best=True)
    trainer.fit(2)
    run = gw.load_run(tmp_path / "run", ds=store)
    assert torch.equal(run.predict(), trainer.predict())
    assert run.evaluate("test") == pytest.approx(trainer.evaluate("test"))


def test_groups_stay_within_the_budget(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import sys, threading, time
        import torch
        import graphweft as gw
        from graphweft.loader.group_loader import GroupLoader
        from graphweft.loader.groups import parts_within, read_group
        store, budget = gw.macro.Store(sys.argv[1]), int(sys.argv[2])
        def anonymous():
            for line in open("/proc/self/status"):
                if line.startswith("RssAnon"):
                    return 1024 * int(line.split()[1])
        seeds = torch.from_numpy(store.split("train")[0])
        loader = GroupLoader(store, seeds, (2,), 16, True, 0, count=parts_within(store, budget), workers=1)
        small = read_group(store, [0])  # what the first use of libraries takes is none of the budget's
        next(iter(GroupLoader(store, seeds, (2,), 16, True, 0, count=1, workers=1)))
        del small
        base = peak = anonymous()
        done = False
        def watch():
            global peak
            while not done:
                peak = max(peak, anonymous())
                time.sleep(0.0005)
        thread = threading.Thread(target=watch); thread.start()
        for _ in range(2):
            for batch in loader:
                del batch
        done = True; thread.join()
        print(loader.count, peak - base)
        """
    )
    rng = np.random.default_rng(0)
    nodes, width = 40_000, 1000
    np.save(tmp_path / "edges.npy", rng.integers(0, nodes, (2, 400_000)))
    np.save(tmp_path / "x.npy", rng.random((nodes, width), np.float32))
    np.save(tmp_path / "y.npy", rng.integers(0, 4, nodes))
    files = gw.macro.GraphFiles(tmp_path / "edges.npy", tmp_path / "x.npy", tmp_path / "y.npy")
    store = gw.macro.prepare_store(files, tmp_path / "s", parts=128, memory="64MB", method="hash")
    budget = 20 << 20
    assert store.nbytes > 7 * budget
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "s"), str(budget)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    count, peak = map(int, done.stdout.split())
    assert count >= 2
    assert peak <= budget + (2 << 20)  # and batches
