"""The loader: what batches hold, order, resume, threads, failures, memory."""

from __future__ import annotations

import gc
import io
import json
import subprocess
import sys
import threading
import time
import weakref
import zlib
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from scipy import stats
from torch import Tensor
from zoo import random_edges

from graphweft._errors import CheckpointError, ConfigError, IndexRangeError
from graphweft.data.dataset import Dataset
from graphweft.graph.graph import Graph
from graphweft.loader.batch import Batch
from graphweft.loader.loader import Loader
from graphweft.storage.feature import SparseFeatures

WAYS = [{"prefetch": 0}, {"prefetch": 1}, {"prefetch": 3, "workers": 2}, {"prefetch": 8, "workers": 4}, {}]


def dataset(sparse: bool = False, nodes: int = 500, edges: int = 6000) -> Dataset:
    ends = random_edges(nodes, edges, seed=0)
    graph = Graph(ends.src, ends.dst, nodes)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(nodes, 20, generator=generator)
    y = torch.randint(0, 5, (nodes,), generator=generator)
    order = torch.randperm(nodes, generator=generator)
    kept = SparseFeatures.from_dense(torch.where(x > 0.5, x, 0.0)) if sparse else x
    third = nodes // 3
    return Dataset("random", graph, kept, y, order[:third], order[third : 2 * third], order[2 * third :], 5)


def pieces(batch: Batch) -> list[Tensor]:
    x = batch.x.to_dense() if isinstance(batch.x, SparseFeatures) else batch.x
    blocks = [t for block in batch.blocks for t in (block.csc.indptr, block.csc.indices, block.e_id)]
    return [batch.n_id, batch.edge_index, batch.e_id, x, batch.y, batch.input_id, *blocks]  # type: ignore[list-item]


def same(one: list[list[Tensor]], other: list[list[Tensor]]) -> bool:
    return len(one) == len(other) and all(
        len(a) == len(b) and all(torch.equal(s, t) for s, t in zip(a, b, strict=True))
        for a, b in zip(one, other, strict=True)
    )


def epochs(loader: Loader, count: int) -> list[list[Tensor]]:
    return [pieces(batch) for _ in range(count) for batch in loader]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_batches_hold_the_rows_of_their_nodes(sparse: bool, way: dict[str, Any]) -> None:
    ds = dataset(sparse)
    src, dst = ds.graph.edges()
    x = ds.x.to_dense() if isinstance(ds.x, SparseFeatures) else ds.x
    loader = Loader(ds, fanouts=(4, 3), batch_size=32, **way)
    assert len(loader) == 6
    seen = []
    for batch in loader:
        mine = batch.x.to_dense() if isinstance(batch.x, SparseFeatures) else batch.x
        assert torch.equal(mine, x[batch.n_id]) and torch.equal(batch.y, ds.y[batch.n_id])
        assert torch.equal(batch.n_id[: batch.batch_size], loader.seeds[batch.input_id])
        assert torch.equal(src[batch.e_id], batch.n_id[batch.edge_index[0]])
        assert torch.equal(dst[batch.e_id], batch.n_id[batch.edge_index[1]])
        assert batch.num_sampled_nodes[0] == batch.batch_size and sum(batch.num_sampled_nodes) == batch.num_nodes
        seen.append(batch.n_id[: batch.batch_size])
    assert torch.equal(torch.cat(seen), ds.train_idx)  # without shuffle: the order of the seeds


def test_every_way_of_preparing_gives_the_same_batches(threads_restored: None) -> None:
    ds = dataset()
    runs = []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        runs += [epochs(Loader(ds, fanouts=(5, 3), batch_size=7, shuffle=True, seed=3, **way), 2) for way in WAYS]
    assert all(same(runs[0], other) for other in runs[1:])


def test_the_way_settles_on_the_fastest() -> None:
    ds = dataset(nodes=3000)
    loader = Loader(ds, fanouts=(3,), batch_size=10)
    list(loader)
    assert loader._fastest.settled


def test_shuffling_visits_every_seed_once_in_any_order_equally() -> None:
    ds = dataset()
    loader = Loader(ds, seeds=torch.arange(6), fanouts=(1,), batch_size=6, shuffle=True)
    orders = [tuple(loader.order(epoch).tolist()) for epoch in range(36_000)]
    assert all(sorted(order) == list(range(6)) for order in orders[:50])
    counts: dict[tuple[int, ...], int] = {}
    for order in orders:
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 720
    assert stats.chisquare(list(counts.values())).pvalue > 1e-4
    batches = list(loader)
    assert torch.equal(batches[0].input_id, loader.order(0))


def test_variance_of_a_batch_falls_with_its_size() -> None:
    """Means over shuffled batches vary as 1 / B: slope -1 on log-log axes (finite-population factor taken out)."""
    values = torch.randn(4096, dtype=torch.float64)
    ds = dataset(nodes=4096, edges=10)
    loader = Loader(ds, seeds=torch.arange(4096), fanouts=(1,), shuffle=True)
    sizes = torch.tensor([8, 16, 32, 64, 128, 256])
    variance = []
    for size in sizes.tolist():
        means = torch.cat([values[loader.order(epoch)].view(-1, size).mean(1) for epoch in range(20)])
        variance.append(means.var() / (1 - size / 4096))
    slope = stats.linregress(sizes.double().log().numpy(), torch.stack(variance).log().numpy()).slope
    assert abs(slope + 1) < 0.1


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("stop", [0, 1, 5, 11, 12, 17, 24])
def test_a_state_goes_on_at_the_next_batch(way: dict[str, Any], stop: int) -> None:
    ds = dataset()
    options: dict[str, Any] = {"fanouts": (4, 2), "batch_size": 15, "shuffle": True, "seed": 9}
    whole = epochs(Loader(ds, **options), 3)
    first, state = Loader(ds, **options, **way), None
    done = 0
    if stop == 0:
        state = first.state_dict()
    while state is None:
        for _ in first:
            done += 1
            if done == stop:
                state = first.state_dict()
                break
    file = io.BytesIO()
    torch.save(state, file)
    assert len(file.getvalue()) < 8192
    file.seek(0)
    again = Loader(ds, **options, prefetch=2)
    again.load_state_dict(torch.load(file, weights_only=True))
    left = epochs(again, 3 - (stop - 1) // 12 if stop else 3)
    assert same(left, whole[stop:])


CHILD = """
import sys, json, torch, zlib
sys.path[:0] = json.loads(sys.argv[1])
from loader.test_loader import dataset, pieces
from graphweft.loader.loader import Loader
loader = Loader(dataset(), fanouts=(4, 2), batch_size=15, shuffle=True, seed=9, prefetch=3)
loader.load_state_dict(torch.load(sys.argv[2], weights_only=True))
torch.set_num_threads(1)
for _ in range(2):
    for batch in loader:
        print(zlib.crc32(b"".join(t.contiguous().numpy().tobytes() for t in pieces(batch))))
"""


def test_a_new_process_goes_on_with_the_same_bits(tmp_path: Path, root: Path) -> None:
    loader = Loader(dataset(), fanouts=(4, 2), batch_size=15, shuffle=True, seed=9)
    expected = []
    for epoch in range(2):
        for place, batch in enumerate(loader):
            if epoch == 0 and place == 4:
                torch.save(loader.state_dict(), tmp_path / "state.pt")
            elif epoch > 0 or place > 4:
                expected.append(zlib.crc32(b"".join(t.contiguous().numpy().tobytes() for t in pieces(batch))))
    path = json.dumps([str(root / "tests")])
    command = [sys.executable, "-c", CHILD, path, str(tmp_path / "state.pt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert [int(line) for line in done.stdout.split()] == expected


def test_a_state_of_another_loader_is_refused() -> None:
    ds = dataset()
    state = Loader(ds, fanouts=(4,), batch_size=15).state_dict()
    others: list[dict[str, Any]] = [{"batch_size": 16}, {"fanouts": (5,)}, {"seed": 1}, {"seeds": ds.val_idx}]
    for other in (*others, {"shuffle": True}, {"drop_last": True}):
        with pytest.raises(CheckpointError, match="expected a state with"):
            Loader(ds, **{"fanouts": (4,), "batch_size": 15, **other}).load_state_dict(state)
    with pytest.raises(CheckpointError, match="got 0 and 99"):
        Loader(ds, fanouts=(4,), batch_size=15).load_state_dict({**state, "position": 99})


def test_an_epoch_left_early_is_followed_by_the_next() -> None:
    loader = Loader(dataset(), fanouts=(2,), batch_size=50, shuffle=True)
    first = next(iter(loader))
    second = next(iter(loader))
    assert loader.epoch == 1 and not torch.equal(first.input_id, second.input_id)
    assert torch.equal(second.input_id, loader.order(1)[:50])


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_sizes_at_the_edges(way: dict[str, Any]) -> None:
    ds = dataset()
    assert [b.batch_size for b in Loader(ds, seeds=range(5), fanouts=(2,), batch_size=99, **way)] == [5]
    assert [b.batch_size for b in Loader(ds, seeds=range(5), fanouts=(2,), batch_size=2, **way)] == [2, 2, 1]
    assert [b.batch_size for b in Loader(ds, seeds=range(5), fanouts=(2,), batch_size=2, drop_last=True, **way)] == [
        2,
        2,
    ]
    assert list(Loader(ds, seeds=[], fanouts=(2,), **way)) == []
    assert list(Loader(Graph([], [], 0), seeds=[], fanouts=(2,), **way)) == []
    alone = Loader(Graph([], [], 3), seeds=[2, 0], fanouts=(2, 2), **way)
    assert [(b.n_id.tolist(), b.edge_index.tolist(), b.x, b.y) for b in alone] == [([2, 0], [[], []], None, None)]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"seeds": [0, 500]}, IndexRangeError, "expected seed ids in [0, 500), got 500 at position 1"),
        ({"seeds": [3, 1, 3]}, ConfigError, "expected distinct seeds, got 3 at positions 0 and 2"),
        ({"fanouts": (5, 0)}, ConfigError, "expected fanouts >= 1, or -1 for all, got 0 at position 1"),
        ({"batch_size": 0}, ConfigError, "expected batch_size as an integer >= 1, got 0"),
        ({"prefetch": -1}, ConfigError, "expected prefetch as an integer"),
        ({"workers": -1}, ConfigError, "expected workers as an integer"),
        ({"seed": -1}, ConfigError, "expected seed as an integer"),
    ],
)
def test_bad_options_are_one_line(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as failure:
        Loader(dataset(), **options)
    assert text in str(failure.value) and "\n" not in str(failure.value)


def _threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("graphweft-loader")]


def test_a_failure_in_the_background_surfaces_where_its_batch_would(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Loader(dataset(), fanouts=(2,), batch_size=10, prefetch=3, workers=2)
    sample = loader.sampler.sample

    def fails(seeds: Tensor, **key: int) -> Any:
        if seeds[0] == loader.seeds[30]:
            raise IndexRangeError("sample: made to fail")
        return sample(seeds, **key)

    monkeypatch.setattr(loader.sampler, "sample", fails)
    seen = []
    with pytest.raises(IndexRangeError, match=r"^sample: made to fail$"):
        for batch in loader:
            seen.append(batch.batch_size)
    assert seen == [10, 10, 10]
    assert _threads() == []


def test_an_abandoned_iterator_ends_its_threads() -> None:
    iterator = iter(Loader(dataset(), fanouts=(2,), batch_size=1, prefetch=4, workers=3))
    next(iterator)
    assert len(_threads()) == 3
    del iterator
    gc.collect()
    assert _threads() == []


def test_the_batch_before_is_free_while_the_next_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Loader(dataset(), fanouts=(2,), batch_size=50, prefetch=0)
    make, made, alive = loader.make, list[weakref.ref[Batch]](), list[int]()

    def watched(*given: Any) -> Batch:
        alive.append(sum(batch() is not None for batch in made))
        batch = make(*given)
        made.append(weakref.ref(batch))
        return batch

    monkeypatch.setattr(loader, "make", watched)
    for batch in loader:
        del batch
    assert alive == [0] * len(loader) and len(alive) > 2


def test_no_more_batches_lie_ready_than_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Loader(dataset(), fanouts=(2,), batch_size=1, prefetch=4, workers=2)
    made = []
    sample = loader.sampler.sample
    monkeypatch.setattr(loader.sampler, "sample", lambda *a, **k: (made.append(1), sample(*a, **k))[1])
    iterator = iter(loader)
    for taken in range(1, 6):
        next(iterator)
        time.sleep(0.05)
        assert len(made) <= taken + 4
    del iterator


@pytest.mark.slow
@pytest.mark.parametrize("way", [{"prefetch": 0}, {"prefetch": 3, "workers": 2}], ids=str)
def test_nothing_leaks_in_ten_thousand_batches(way: dict[str, Any]) -> None:
    loader = Loader(dataset(nodes=3000, edges=60_000), fanouts=(5, 5), batch_size=100, shuffle=True, **way)
    process = psutil.Process()

    def run(batches: int) -> int:
        done = 0
        while done < batches:
            for batch in loader:
                done += 1
                assert batch.num_edges
        gc.collect()
        return process.memory_info().rss

    before = run(1000)
    assert run(10_000) - before < 8 << 20


def test_a_pyg_model_trains_from_it_unchanged() -> None:
    nn = pytest.importorskip("torch_geometric.nn")
    ds = dataset()
    model = nn.GraphSAGE(20, 16, 2, 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    loader = Loader(ds, fanouts=(10, 10), batch_size=64, shuffle=True)
    losses = []
    for _ in range(15):
        for batch in loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size])  # type: ignore[index]
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    assert sum(losses[-3:]) < 0.7 * sum(losses[:3])


def test_full_neighbours_give_a_pyg_model_its_full_graph_output() -> None:
    nn = pytest.importorskip("torch_geometric.nn")
    ds = dataset()
    model = nn.GraphSAGE(20, 16, 2, 5).eval()
    with torch.no_grad():
        whole = model(ds.x, torch.stack(ds.graph.edges()))
        for batch in Loader(ds, fanouts=(-1, -1), batch_size=50):
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            assert torch.allclose(out, whole[batch.n_id[: batch.batch_size]], atol=1e-5)
