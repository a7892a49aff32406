"""Mini-batches from a store: the bits of memory, within the budget, near the fewest reads, exactly resumed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graphweft as gw
from graphweft.data.stored_graph import StoredGraph
from graphweft.storage.block_file import BlockFile
from graphweft.storage.replacement import lru_misses, optimal_misses
from graphweft.storage.stored_structure import structure_bytes

MEMORY = 312_000  # about half of the features have room in it
RUN = "64MB"  # of a whole run, whose table of rows is then made smaller


@pytest.fixture(scope="module")
def ds() -> gw.Dataset:
    return gw.synthetic("default", scale=0.1)


@pytest.fixture(scope="module")
def folder(ds: gw.Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("disk") / "store"
    gw.macro.prepare_store(ds, path, parts=4, part=gw.partition(ds.graph, 4).part)
    return path


def _trainer(ds: gw.Dataset, data: Any, kind: str = "SAGE", **more: Any) -> gw.Trainer:
    torch.manual_seed(0)
    model = getattr(gw.nn, kind)(ds.num_features, 16, ds.num_classes, num_layers=2, dropout=0.2)
    options = {"mode": "mini", "fanouts": (4, 3), "batch_size": 8, "seed": 0, "restore_best": False, **more}
    trainer = gw.Trainer(model, data, **options)
    if options.get("memory") == RUN:
        kept = structure_bytes(trainer.ds.store)[0]
        trainer._batch.resize(MEMORY - kept - MEMORY // 8)
    return trainer


def _feed(loader: gw.Loader) -> Any:
    assert loader._feed is not None
    return loader._feed


def _weights(trainer: gw.Trainer) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("SAGE", {}),
        ("GCN", {}),
        ("GAT", {}),
        ("GIN", {}),
        ("SAGE", {"prepare": "subtasks", "accumulate": 3}),
        ("GCN", {"sampler": "saint-node", "fanouts": None}),
        ("SAGE", {"sampler": "layer", "fanouts": (40, 30)}),
    ],
)
def test_losses_are_those_of_memory_bit_for_bit(kind: str, more: dict[str, Any], ds: gw.Dataset, folder: Path) -> None:
    disk, memory = _trainer(ds, gw.macro.Store(folder), kind, memory=RUN, **more), _trainer(ds, ds, kind, **more)
    epochs = 1 if more or kind in ("GIN", "GAT") else 2
    told, known = disk.fit(epochs), memory.fit(epochs)
    assert [r.loss for r in told] == [r.loss for r in known]
    assert all(torch.equal(a, b) for a, b in zip(_weights(disk), _weights(memory), strict=True))
    assert torch.allclose(disk.predictions().outputs, memory.predictions().outputs, atol=1e-4)
    assert disk.evaluate("test") == pytest.approx(memory.evaluate("test"), abs=2 / len(ds.test_idx))


def test_a_model_of_plain_torch_and_half_features(ds: gw.Dataset, tmp_path: Path) -> None:
    class Mean(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(ds.num_features, ds.num_classes)

        def forward(self, graph: gw.Graph, x: torch.Tensor) -> torch.Tensor:
            src, dst = graph.edges()
            out: torch.Tensor = self.linear(x + torch.zeros_like(x).index_add_(0, dst, x[src]))
            return out

    gw.macro.prepare_store(ds, tmp_path / "s", parts=3, dtype="float16", method="hash")
    found = []
    both: list[Any] = [gw.macro.Store(tmp_path / "s"), gw.load(tmp_path / "s")]
    for data in both:
        torch.manual_seed(0)
        options: dict[str, Any] = {"memory": RUN} if isinstance(data, gw.macro.Store) else {}
        trainer = gw.Trainer(Mean(), data, mode="mini", fanouts=(3,), batch_size=16, eval_every=9, **options)
        found.append([record.loss for record in trainer.fit(2)])
    assert found[0] == found[1]


def test_a_loader_gives_the_batches_of_memory(ds: gw.Dataset, folder: Path) -> None:
    options: dict[str, Any] = {"fanouts": [4, 3], "batch_size": 8, "shuffle": True, "seed": 5}
    disk, memory = gw.Loader(gw.macro.Store(folder), memory=MEMORY, **options), gw.Loader(ds, **options)
    for _ in range(2):
        for mine, known in zip(disk, memory, strict=True):
            for name in ("n_id", "x", "y", "edge_index", "input_id"):
                assert torch.equal(getattr(mine, name), getattr(known, name)), name
    assert torch.equal(disk([3, 1]).x, memory([3, 1]).x)


def test_reads_are_near_the_optimum_and_memory_is_kept(ds: gw.Dataset, folder: Path) -> None:
    """Against Belady's optimum over the real string of uses, with room for as many rows."""
    store = gw.macro.Store(folder)
    loader = gw.Loader(store, fanouts=[4, 3], batch_size=8, shuffle=True, seed=1, memory=MEMORY)
    cache, uses = _feed(loader).cache, list[int]()
    assert cache.table.nbytes < MEMORY and cache.capacity < 0.6 * ds.num_nodes
    for _ in range(3):
        for batch in loader:
            uses += np.sort(batch.n_id.numpy()).tolist()
            assert cache.held <= cache.capacity
    counts, best = _feed(loader).counts, optimal_misses(uses, cache.capacity)
    assert counts.needed == len(uses)
    assert counts.read <= 1.5 * best
    assert counts.read <= 0.8 * lru_misses(uses, cache.capacity)
    assert counts.requests < counts.read


def test_rows_are_read_in_few_requests_where_they_fill_sectors(tmp_path: Path) -> None:
    """Bytes that are read, sectors and gaps included, against the optimum for rows of a sector each."""
    rng = np.random.default_rng(0)
    nodes, width = 600, 1024
    np.save(tmp_path / "edges.npy", rng.integers(0, nodes, (2, 3000)))
    np.save(tmp_path / "x.npy", rng.random((nodes, width), np.float32))
    np.save(tmp_path / "y.npy", rng.integers(0, 4, nodes))
    files = gw.macro.GraphFiles(tmp_path / "edges.npy", tmp_path / "x.npy", tmp_path / "y.npy")
    store = gw.macro.prepare_store(files, tmp_path / "s", parts=2, method="range")
    loader = gw.Loader(store, fanouts=[3], batch_size=16, shuffle=True, memory=1_200_000)
    uses = [node for _ in range(3) for batch in loader for node in np.sort(batch.n_id.numpy()).tolist()]
    counts, cache = _feed(loader).counts, _feed(loader).cache
    assert store.nbytes > cache.table.nbytes * 1.5
    assert counts.nbytes <= 1.5 * 4 * width * optimal_misses(uses, cache.capacity)


def test_what_an_epoch_read_is_in_the_history(ds: gw.Dataset, folder: Path, tmp_path: Path) -> None:
    trainer = _trainer(ds, gw.macro.Store(folder), memory=RUN, out=tmp_path / "run")
    told = {name: value or 0.0 for name, value in trainer.fit(1)[0].metrics.items()}
    assert told["bytes_needed"] == (told["row_hits"] + told["rows_read"]) * 4 * ds.num_features
    assert told["bytes_read"] >= 4 * ds.num_features * told["rows_read"] > 0 and told["read_requests"] > 0
    assert '"bytes_read": ' in (tmp_path / "run" / "metrics.jsonl").read_text()


def test_a_loaded_run_predicts_and_scores(ds: gw.Dataset, folder: Path, tmp_path: Path) -> None:
    trainer = _trainer(ds, gw.macro.Store(folder), memory=RUN, out=tmp_path / "run", restore_best=True)
    trainer.fit(1)
    run = gw.load_run(tmp_path / "run", ds=gw.macro.Store(folder))
    assert torch.equal(run.predict(), trainer.predict())
    assert run.evaluate("test") == pytest.approx(trainer.evaluate("test"))


def test_neither_memory_nor_threads_change_the_result(ds: gw.Dataset, folder: Path) -> None:
    former, found = torch.get_num_threads(), []
    try:
        for threads, memory in ((1, RUN), (2, "90MB"), (2, RUN)):
            torch.set_num_threads(threads)
            trainer = _trainer(ds, gw.macro.Store(folder), memory=memory)
            found.append(([r.loss for r in trainer.fit(2)], trainer.history[-1].metrics["bytes_read"]))
    finally:
        torch.set_num_threads(former)
    assert found[0] == found[2] and found[0][0] == found[1][0]


def test_an_interrupted_epoch_goes_on_with_the_same_bits(ds: gw.Dataset, folder: Path) -> None:
    whole = _trainer(ds, gw.macro.Store(folder), memory=RUN)
    whole.fit(3)

    class Stop:
        def on_batch_end(self, trainer: gw.Trainer, batch: int, loss: float) -> None:
            if trainer.epoch == 1 and batch == 4:
                self.state = trainer.state_dict()
                raise KeyboardInterrupt

    stop = Stop()
    first = _trainer(ds, gw.macro.Store(folder), memory=RUN, callbacks=[stop])
    with pytest.raises(KeyboardInterrupt):
        first.fit(3)
    again = _trainer(ds, gw.macro.Store(folder), memory="90MB", callbacks=[Stop()])
    again.load_state_dict(stop.state)
    again._loop.callbacks = whole._loop.callbacks
    again.fit(2)
    assert [r.loss for r in again.history] == [r.loss for r in whole.history]
    assert all(torch.equal(a, b) for a, b in zip(_weights(again), _weights(whole), strict=True))


@pytest.mark.parametrize("short", [False, True])
def test_a_read_that_fails_names_file_and_byte(
    short: bool, ds: gw.Dataset, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = gw.macro.Store(shutil.copytree(folder, tmp_path / "s"))
    trainer = _trainer(ds, store, memory=RUN)
    trainer.fit(1)
    sizes, opened = {path: path.stat().st_size for path in store.path.glob("part-*")}, BlockFile.__init__

    def unreadable(self: BlockFile, path: Path) -> None:
        opened(self, path)
        self.size = sizes[path]
        if not short:  # the system refuses to read what is open for writing alone
            other = os.open(path, os.O_WRONLY)
            os.dup2(other, self.handle)
            os.close(other)

    for path, size in sizes.items():
        os.truncate(path, 4096 if short else size)
    monkeypatch.setattr(BlockFile, "__init__", unreadable)
    text = r"expected \d+ bytes from .* truncated" if short else r"reading failed at byte \d+: Bad file descriptor"
    with pytest.raises(gw.errors.DataError, match=rf"part-\S*: .*{text}"):
        trainer.fit(1)


def test_a_changed_row_is_found_before_it_is_trained_on(ds: gw.Dataset, folder: Path, tmp_path: Path) -> None:
    store = gw.macro.Store(shutil.copytree(folder, tmp_path / "s"))
    entry = store.manifest.parts[1]
    file, at = store.path / entry.file, entry.block("x").offset + 100
    content = bytearray(file.read_bytes())
    content[at] ^= 4
    file.write_bytes(content)
    with pytest.raises(gw.errors.DataError, match=r"checksum .* of block x"):
        _trainer(ds, gw.macro.Store(store.path), memory=RUN).fit(1)


def test_too_little_memory_and_other_options_are_refused(ds: gw.Dataset, folder: Path) -> None:
    store = gw.macro.Store(folder)
    for options, text in (
        ({"memory": 100_000}, r"memory: expected at least \d+ MB for this run \(program .*\), got 100 KB"),
        ({"memory": RUN, "batch_size": 500}, r"memory: expected room for \d+ rows .* a smaller batch_size"),
        ({"memory": RUN, "macro": "large:1/2"}, "macro cannot be combined with mode=mini on a store"),
        ({"memory": RUN, "sampler": "shadow", "fanouts": None}, "sampler: expected one of .*, got shadow"),
        ({"mode": "full", "fanouts": None, "batch_size": None}, "mode: expected macro or mini for a store, got 'full'"),
    ):
        with pytest.raises(gw.errors.ConfigError, match=text):
            _trainer(ds, store, **options).fit(1)
    with pytest.raises(gw.errors.ConfigError, match=r"memory=1GB cannot be combined with data in memory"):
        gw.Loader(ds, memory="1GB")
    with pytest.raises(gw.errors.ConfigError, match="prefetch and workers cannot be combined with a store"):
        gw.Loader(store, prefetch=2)


def test_a_loader_keeps_to_its_memory(tmp_path: Path) -> None:
    """Anonymous memory while features of 8 times the budget are read; RssAnon, sampled."""
    program = textwrap.dedent(
        """
        import sys, threading, time
        import graphweft as gw
        def anonymous():
            for line in open("/proc/self/status"):
                if line.startswith("RssAnon"):
                    return 1024 * int(line.split()[1])
        def batches(path, memory):
            loader = gw.Loader(gw.macro.Store(path), fanouts=[2], batch_size=20, shuffle=True, memory=memory)
            for batch in loader:
                del batch
            return loader.disk.read
        batches(sys.argv[2], 10**6)  # what the first use of libraries takes is none of the budget's
        base = peak = anonymous()
        done = False
        def watch():
            global peak
            while not done:
                peak = max(peak, anonymous())
                time.sleep(0.0005)
        thread = threading.Thread(target=watch); thread.start()
        read = batches(sys.argv[1], int(sys.argv[3]))
        done = True; thread.join()
        print(read, peak - base)
        """
    )
    rng = np.random.default_rng(0)
    folders = []
    for nodes, width in ((5_000, 1024), (100, 4)):
        np.save(tmp_path / "edges.npy", rng.integers(0, nodes, (2, 5 * nodes)))
        np.save(tmp_path / "x.npy", rng.random((nodes, width), np.float32))
        np.save(tmp_path / "y.npy", rng.integers(0, 4, nodes))
        files = gw.macro.GraphFiles(tmp_path / "edges.npy", tmp_path / "x.npy", tmp_path / "y.npy")
        folders.append(str(tmp_path / str(nodes)))
        store = gw.macro.prepare_store(files, folders[-1], parts=max(nodes // 500, 1), memory="64MB", method="hash")
    budget = 2_500_000
    assert gw.macro.Store(folders[0]).nbytes > 8 * budget and store.num_nodes == 100
    command = [sys.executable, "-c", program, *folders, str(budget)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    read, peak = map(int, done.stdout.split())
    assert read > 2_000
    assert peak <= budget + 7 * (1 << 19)  # and the batch at hand, stacks and heaps of ten threads


def test_the_least_that_sizes_name_is_enough_once_it_is_measured(tmp_path: Path) -> None:
    rng, nodes = np.random.default_rng(0), 20_000
    graph = gw.Graph(*rng.integers(0, nodes, (2, 12 * nodes)), num_nodes=nodes)
    ds = gw.Dataset("wide", graph, rng.random((nodes, 4), np.float32), rng.integers(0, 4, nodes), seed=0)
    store = gw.macro.prepare_store(ds, tmp_path / "store", parts=8, method="hash")

    def made(memory: int) -> gw.Trainer:
        options: dict[str, Any] = {"mode": "mini", "fanouts": (5, 5), "batch_size": 256, "memory": memory}
        return gw.Trainer(gw.nn.GAT(4, 8, ds.num_classes, num_layers=2), gw.macro.Store(store.path), **options)

    with pytest.raises(gw.errors.MemoryBudgetError) as refused:
        made(10 << 20)
    assert made(refused.value.least).needs is not None


@pytest.mark.parametrize("task", ["nodes", "link"])
def test_a_refusal_of_a_weighted_store_reads_no_edges(task: str, ds: gw.Dataset, tmp_path: Path) -> None:
    weight = torch.rand(ds.num_edges, generator=torch.Generator().manual_seed(0))
    gw.macro.prepare_store(replace(ds, edge_weight=weight), tmp_path / "s", parts=4, method="hash")
    stored = StoredGraph(gw.macro.Store(tmp_path / "s"))
    model = gw.nn.SAGE(ds.num_features, 8, 8 if task == "link" else ds.num_classes, num_layers=2)
    options: dict[str, Any] = {"mode": "mini", "task": task, "fanouts": (3, 3), "batch_size": 32}
    with pytest.raises(gw.errors.MemoryBudgetError, match="memory: expected at least"):
        gw.Trainer(model, stored, memory="1MB", **options)
    assert stored._graph is None and stored.edge_weight is not None and not stored.edge_weight.numel()
    ends = zip(*(e.tolist() for e in stored.graph.edges()), stored.edge_weight.tolist(), strict=True)
    known = zip(*(e.tolist() for e in ds.graph.edges()), weight.tolist(), strict=True)
    assert sorted(ends) == sorted(known)  # both are read together
