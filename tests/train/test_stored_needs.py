"""What is predicted of runs over small stores is what they take."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import graphweft as gw
from graphweft._budget import Budget
from graphweft._memory import POOL, lean_heap
from graphweft.data.stored import StoredDataset
from graphweft.train import stored_needs, stored_sizes
from graphweft.train.needs import Needs, RunBudget
from graphweft.train.needs_by_running import grown_while
from graphweft.train.part_inference import PartInference
from graphweft.train.target import Classes


def _trainer(mode: str, folder: Path) -> gw.Trainer:
    ds = gw.synthetic("default", scale=0.8, seed=0)
    store = gw.macro.prepare_store(ds, folder / "store", parts=4, method="hash")
    model = gw.nn.SAGE(store.num_features, 32, store.num_classes, num_layers=2)
    return gw.Trainer(model, store, mode=mode, memory="200MB", seed=0, fanouts=(5, 5), batch_size=128)


@pytest.mark.own_process
@pytest.mark.parametrize("mode", ["macro", "mini"])
def test_an_evaluation_takes_what_it_took_when_it_was_tried(mode: str, tmp_path: Path) -> None:
    trainer = _trainer(mode, tmp_path)
    needs = trainer.needs
    assert needs is not None
    trainer.fit(1)
    POOL.trim()
    taken, _ = grown_while(trainer._batch.evaluate)
    assert taken > 4 << 20  # otherwise nothing was measured
    assert 0.9 * taken < needs.evaluation < 1.25 * taken + (1 << 20)


@pytest.mark.own_process
def test_a_table_that_holds_all_rows_counts_no_more(tmp_path: Path) -> None:
    trainer = _trainer("mini", tmp_path)
    store, needs = trainer.ds.store, trainer.needs  # type: ignore[attr-defined]
    assert needs is not None
    rows = 4 * store.num_nodes * store.num_features
    assert rows < needs.kept < 1.5 * rows + (3 << 20)  # of 200 MB


@pytest.mark.parametrize("mode", ["macro", "mini"])
def test_an_evaluation_has_no_gradients_beside_it(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = _trainer(mode, tmp_path)
    batch, seen = trainer._batch, list[int]()

    def gradients() -> int:
        return sum(p.grad is not None for p in trainer.model.parameters())

    outputs = PartInference.outputs
    monkeypatch.setattr(PartInference, "outputs", lambda *given: seen.append(gradients()) or outputs(*given))
    batch.step()
    assert gradients()
    batch.evaluate()
    batch.step()
    batch.logits()
    assert seen == [0, 0]


def test_pieces_that_are_read_are_those_of_the_tile_that_is_taken(tmp_path: Path) -> None:
    """Not of the larger one that was tried before: what waits for the disk is as large."""
    trainer = _trainer("macro", tmp_path)
    batch: Any = trainer._batch
    assert batch.ds.store.piece == max(1 << 18, batch.inference.tiles.tile // 4)


def test_what_an_evaluation_compiles_leaves_less_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation that takes all that is left is tried again once it is known what it compiles."""
    compiled, asked = [5 << 20, 9 << 20, 9 << 20], list[int]()

    def needs(steps: Any, wanted: int, most: int, measured: int) -> int:
        asked.append(most)
        return max(most, 1 << 20)

    monkeypatch.setattr(stored_needs, "evaluation_needs", needs)
    monkeypatch.setattr(stored_needs, "_programs", lambda *given: compiled[len(asked) - 1])
    steps = SimpleNamespace(evaluated_as=lambda: SimpleNamespace(inference=None))
    budget: Any = object.__new__(RunBudget)
    budget._budget = Budget(64 << 20, 0)
    start = Needs(program=5 << 20, batches=1 << 20, step=2 << 20, trims=True)
    found = stored_needs._evaluated(steps, budget, start, 0)
    assert len(asked) == 1 and budget.fits(found)
    compiled[0] = 9 << 20
    asked.clear()
    found = stored_needs._evaluated(steps, budget, start, 0)
    assert len(asked) == 2 and 3 << 20 < asked[0] - asked[1] < 5 << 20
    assert found.program == 9 << 20 and budget.fits(found)
    compiled[1] = 20 << 20  # and more the second time
    asked.clear()
    found = stored_needs._evaluated(steps, budget, start, 0)
    assert asked[2:] == [0] and found.evaluation == 1 << 20


@pytest.mark.own_process
@pytest.mark.parametrize("columns", [2, 3, 47])
def test_what_scoring_takes_of_a_row_is_counted(columns: int) -> None:
    """Rows of two classes are sorted; of more nothing is copied, however many columns there are."""
    rows, target = torch.arange(100_000), Classes()
    outputs, y = torch.randn(len(rows), columns), torch.arange(len(rows)) % columns
    lean_heap()  # as within a budget: what is freed does not stay
    target.score(outputs, y, rows)  # compiles
    taken, _ = grown_while(partial(target.score, outputs, y, rows))
    counted = len(rows) * target.scored_row(columns)
    assert taken <= counted + (1 << 18) and counted <= 2 * taken + (1 << 20)


def test_the_least_that_is_named_for_groups_of_one_batch_counts_no_step_beside_what_reads_the_next(
    tmp_path: Path,
) -> None:
    """The next group is read once the only batch of this one is done."""
    ds = gw.synthetic("products", scale=0.01, seed=0)
    store = gw.macro.prepare_store(ds, tmp_path / "store", parts=8, method="hash")
    model = gw.nn.SAGE(store.num_features, 32, store.num_classes, num_layers=2)
    stored = StoredDataset(store)
    of = np.searchsorted(store.bounds, stored.row_ids[stored.train_idx].numpy(), "right") - 1
    seeds = int(np.bincount(of).max())
    one, two = (stored_sizes.least_beside(model, stored, (10, 10), size, 1) for size in (seeds, seeds - 1))
    assert one < two - (1 << 20)
    options: dict[str, Any] = {"mode": "macro", "fanouts": (10, 10), "batch_size": seeds, "seed": 0}
    with pytest.raises(gw.errors.MemoryBudgetError) as refused:
        gw.Trainer(model, store, memory="2MB", **options)
    gw.Trainer(model, store, memory=refused.value.least, **options)


def _classified(folder: Path, nodes: int, classes: int, columns: int, **more: Any) -> gw.macro.Store:
    """A store of a graph without communities."""
    rng = np.random.default_rng(0)
    graph, y = gw.Graph(*rng.integers(0, nodes, (2, 4 * nodes)), num_nodes=nodes), np.arange(nodes) % classes
    ds = gw.Dataset("classes", graph, rng.random((nodes, columns), np.float32), y, seed=0, **more)
    return gw.macro.prepare_store(ds, folder / "store", parts=8, method="hash")


def _rows_within(memory: int | str, store: Any, **options: Any) -> gw.Trainer:
    model = gw.nn.SAGE(store.num_features, 32, store.num_classes, num_layers=2, **options)
    return gw.Trainer(model, store, memory=memory, mode="mini", fanouts=(10, 10), batch_size=256, seed=0)


def _least_named(store: gw.macro.Store, **options: Any) -> int:
    with pytest.raises(gw.errors.MemoryBudgetError, match="memory: expected at least") as refused:
        _rows_within("2MB", store, **options)
    return refused.value.least


@pytest.mark.own_process
def test_the_least_that_sizes_name_has_no_copies_of_rows_that_are_read_where_they_lie(tmp_path: Path) -> None:
    """Unless some of their elements are dropped. What is named trains, and so does less, once a batch is measured."""
    store = _classified(tmp_path, 8_000, 4, 512)
    plain, dropped = (_least_named(store, dropout=dropout) for dropout in (0.0, 0.5))
    assert _rows_within(plain, store).fit(1)[-1].loss > 0 and _rows_within(dropped, store, dropout=0.5).needs
    tried = _rows_within("1GB", store)
    rows = stored_needs._drawn(tried._batch).rows
    assert rows > 3_500 and plain + 0.95 * 4 * rows * 512 <= dropped
    measured = stored_needs.rows_within(tried._batch, RunBudget("16MB", tried.ds)).needs
    assert measured is not None and measured.least < plain
    assert _rows_within(measured.least, store).fit(1)[-1].loss > 0


def test_the_least_that_sizes_name_counts_outputs_that_are_scored(tmp_path: Path) -> None:
    """There are more of them than of anything else, with many classes."""
    nodes, classes = 8_000, 300
    store = _classified(tmp_path, nodes, classes, 4)
    least = _least_named(store)
    assert least > (16 << 20) + 4 * nodes * classes
    assert _rows_within(least, store).needs is not None


@pytest.mark.parametrize("is_weighted", [False, True])
def test_a_step_counts_rows_that_its_batch_has_beside_the_table(
    is_weighted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches with weights of edges are not compiled with their draws, so their rows are taken out of the table."""
    more = {"edge_weight": torch.rand(16_000, generator=torch.Generator().manual_seed(0))} if is_weighted else {}
    store = _classified(tmp_path, 4_000, 4, 512, **more)
    steps: Any = _rows_within("1GB", store)._batch
    monkeypatch.setattr(steps, "gradients", lambda batch: None)  # a step that takes nothing
    found = stored_needs._drawn(steps)
    rows = 4 * 512 * found.rows if is_weighted else 0
    assert found.rows > 1_000 and rows <= found.step < rows + (1 << 20)


@pytest.mark.own_process
@pytest.mark.parametrize("mode", ["macro", "mini"])
def test_the_least_that_is_named_for_a_graph_with_communities_is_near_to_what_is_taken(
    mode: str, tmp_path: Path
) -> None:
    """A batch reaches fewer nodes than uniform draws say, and is drawn before it is refused."""
    nodes, rng = 20_000, np.random.default_rng(0)
    src = rng.integers(0, nodes, 10 * nodes)
    dst = np.where(rng.random(len(src)) < 0.9, src // 100 * 100 + rng.integers(0, 100, len(src)), src[::-1])
    x, y = rng.random((nodes, 128), np.float32), np.arange(nodes) % 4
    ds = gw.Dataset("communities", gw.Graph(src, dst, num_nodes=nodes), x, y, seed=0)
    store = gw.macro.prepare_store(ds, tmp_path / "store", parts=4, method="range")
    del ds, x
    options: dict[str, Any] = {"mode": mode, "fanouts": (10, 10, 10), "batch_size": 512, "seed": 0}

    def trained(memory: int | str) -> list[Any]:
        model = gw.nn.SAGE(128, 32, 4, num_layers=3)
        return gw.Trainer(model, store, memory=memory, **options).fit(1)

    with pytest.raises(gw.errors.MemoryBudgetError) as refused:
        trained("16MB")
    least = refused.value.least
    POOL.trim()
    taken, _ = grown_while(lambda: trained(least))
    assert taken <= least < 1.6 * taken
