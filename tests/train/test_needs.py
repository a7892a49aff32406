"""Memory budgets of runs in memory: what is predicted, what is chosen, and that it holds."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from train.watched_pool import MB, Watched, make_model

import graphweft as gw
from graphweft._budget import Budget, lifted
from graphweft._memory import POOL, Pool, lean_heap
from graphweft.data.dataset import Dataset
from graphweft.ir.ops import Op
from graphweft.ir.residency import StructType
from graphweft.loader.fastest_choice import CoreSplit
from graphweft.passes.work import Sizes
from graphweft.runtime import rehearsal
from graphweft.runtime.constants import owning
from graphweft.runtime.footprint import footprint
from graphweft.runtime.machine import Machine
from graphweft.runtime.rehearsal import Run, arena_bytes, taken_by_epochs, taken_bytes
from graphweft.storage.feature import SparseFeatures
from graphweft.train import full_batch, mini_needs, needs_by_running
from graphweft.train.full_batch import FullBatch, is_recorded
from graphweft.train.inference import infer
from graphweft.train.macro import Macro
from graphweft.train.mini_batch import MiniBatch
from graphweft.train.mini_needs import (
    _batches_taken,
    _rehearsed,
    _tiled,
    _times_larger,
    _tried,
    _tried_tile,
    needs_within,
)
from graphweft.train.needs import Needs, RunBudget, data_bytes, loss_bytes, rehearsed
from graphweft.train.needs_by_running import PARTLY, Part, Taken, grown
from graphweft.train.strategies import mini_strategy, seconds_of, unlimited


@pytest.fixture(scope="module")
def ds() -> Dataset:
    return gw.synthetic("arxiv", scale=0.15, seed=0)


def test_an_evaluation_is_beside_the_batches_unless_free_memory_is_given_back() -> None:
    needs = Needs(data=100 * MB, batches=20 * MB, step=30 * MB, evaluation=40 * MB)
    assert replace(needs, trims=True).total < needs.total
    assert needs.text() == "data 100 MB, batches 20 MB, step 30 MB, evaluation 40 MB"


def test_what_planning_took_is_part_of_the_peak_and_of_no_budget(ds: Dataset) -> None:
    needs = Needs(data=100 * MB)
    more = replace(needs, planning=300 * MB)
    assert (more.total, more.least, more.fits(needs.least)) == (300 * MB, needs.least, True)
    assert more.text() == "data 100 MB, planning 300 MB" and replace(needs, planning=MB).text() == "data 100 MB"
    trainer = gw.Trainer(make_model("GCN", ds), ds, memory="4GB")
    assert trainer.needs is not None
    assert data_bytes(ds) - 8 * MB <= trainer.needs.planning <= data_bytes(ds) + 200 * MB


@pytest.mark.own_process
def test_the_terms_of_a_refusal_add_up_to_the_least_that_it_names(ds: Dataset) -> None:
    with pytest.raises(gw.errors.MemoryBudgetError) as caught:
        gw.Trainer(make_model("SAGE", ds), ds, memory=data_bytes(ds) + 10 * MB)
    units = {"KB": 1e-3, "MB": 1.0}
    terms = str(caught.value).partition("(")[2].partition(")")[0]
    total = sum(float(term.split()[-2]) * units[term.split()[-1]] for term in terms.split(", "))
    assert "spare" in terms and total == pytest.approx(caught.value.least / MB, abs=terms.count(",") + 1, rel=0.03)


def test_gradients_stay_until_the_next_step(ds: Dataset) -> None:
    batch = gw.Trainer(make_model("GCN", ds, 512), ds)._batch
    assert isinstance(batch, FullBatch)
    step, evaluation, _, sizes = batch.plans()
    weights = 4 * 512 * (ds.num_features + ds.num_classes)
    alone = rehearsal.taken_bytes(rehearsal.Run(evaluation, sizes))
    both = rehearsal.taken_bytes(
        rehearsal.Run(step, Sizes({**sizes.rows, "N": 1, "E": 1})), rehearsal.Run(evaluation, sizes)
    )
    assert alone + weights <= both + (2 << 20)  # the last huge page has room


@pytest.mark.parametrize("stride", [2, 5, 16])
def test_a_part_keeps_the_in_edges_of_its_nodes_and_their_rows(stride: int) -> None:
    ends = torch.randint(0, 500, (2, 4000), generator=torch.Generator().manual_seed(stride))
    graph, nodes = gw.Graph(*ends, num_nodes=500), torch.arange(0, 500, stride)
    part, e_id = needs_by_running._folded(graph, nodes, stride)
    assert torch.equal(part.in_degrees(), torch.bincount(ends[1], minlength=500)[nodes])
    assert bool((ends[1][e_id] % stride == 0).all())
    src, dst = part.edges()
    assert torch.equal(src, ends[0][e_id] // stride) and torch.equal(dst, ends[1][e_id] // stride)
    assert not part.is_symmetric
    both = gw.Graph(*torch.cat([ends, ends.flip(0)], 1), num_nodes=500)
    assert needs_by_running._folded(both, nodes, stride)[0].is_symmetric  # so that it has no other forms either


def test_a_part_tells_of_the_whole_at_most_and_the_nearer_the_larger_it_is() -> None:
    """From runs that take 9 MB and 40 MB times the share beside the pool, or 12 MB until the share takes more."""
    for taken in (lambda share: 9 + 40 * share, lambda share: max(12.0, 40 * share)):
        parts = [Part(share, Taken(0, int(taken(share) * MB))) for share in (1 / 16, 1 / 5, 1 / 2, 1.0)]
        told = [grown(part, 1.0).beside for part in parts]
        assert told == sorted(told, reverse=True) and told[-1] == pytest.approx(taken(1.0) * MB)


def test_regions_of_the_pool_grow_and_its_pages_do_not() -> None:
    """Two regions of a sixteenth of 32 MB, one after the other, and forms of the graph, in a page of 2 MB each."""
    size = 2 << 20
    part = Part(1 / 16, Taken(3 * size, 0), ((1, size), (1, 0), (2, size), (2, 0)), size // 8)
    assert grown(part, 1.0) == (16 * size + 16 * size // 8, 0)
    assert grown(part, 1 / 8) == (2 * size + 2 * size // 8, 0)
    assert grown(part, 1 / 16) == part.taken
    assert grown(part, 1.0, 1.5).pool == 1.5 * grown(part, 1.0).pool


@pytest.mark.filterwarnings("ignore::graphweft.errors.DenseFeaturesWarning")
@pytest.mark.parametrize("mode", ["full", "mini"])
def test_dense_rows_of_sparse_features_are_counted(mode: str) -> None:
    ds = gw.synthetic("pubmed", scale=0.1, seed=0)
    assert isinstance(ds.x, SparseFeatures)
    dense, given = 4 * ds.x.num_rows * ds.x.width, {} if mode == "full" else {"fanouts": (5, 5), "batch_size": 256}
    found = {}
    for kind in ("GCN", "NGCF"):
        trainer = gw.Trainer(make_model(kind, ds), ds, mode=mode, memory="4GB", **given)  # type: ignore[arg-type]
        assert trainer.needs is not None
        found[kind] = trainer.needs.structure
        if mode == "mini":
            assert "dense" not in vars(ds.x)  # a plan that is not taken leaves none behind
    assert found["GCN"] < dense <= found["NGCF"] < 2 * dense


def test_tensors_that_share_memory_count_once(ds: Dataset) -> None:
    csc = ds.graph.csc
    ids = 0 if csc.edge_ids is None else csc.edge_ids.nbytes
    assert isinstance(ds.x, torch.Tensor)
    some = ds.x.nbytes + ds.y.nbytes + csc.indices.nbytes + csc.indptr.nbytes + ids
    assert some <= data_bytes(ds) <= some + 3 * 8 * ds.num_nodes + ds.num_nodes
    assert data_bytes(replace(ds, arrays={"again": ds.x[:10]})) == data_bytes(ds)


@pytest.mark.own_process  # whose mappings continue each other: no other test has left holes between them
@pytest.mark.parametrize(("kind", "off"), [("GCN", 0.1), ("SAGE", 0.1), ("GIN", 0.2), ("GAT", 0.2)])
def test_the_pool_maps_for_a_step_what_was_predicted(
    kind: str, off: float, ds: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    lean_heap()  # as an earlier test may have made it
    # so wide that one mapping more or less, which the gaps of the process decide, is little
    trainer = gw.Trainer(make_model(kind, ds, hidden=256), ds)
    trainer.prepare()
    batch = trainer._batch
    assert isinstance(batch, FullBatch)
    monkeypatch.setattr(full_batch, "is_recorded", lambda step: False)  # call by call, as below
    whole = batch.needs(unlimited(ds))
    for name in ("_GAPS", "_ALIKE"):  # the pool's part alone
        monkeypatch.setattr(rehearsal, name, 0)
    monkeypatch.setattr(rehearsal._Heap, "_mapped", property(lambda heap: 0, lambda heap, size: None), raising=False)
    predicted = batch.needs(unlimited(ds))
    assert predicted.step < whole.step
    batch._tape = None
    pool = Pool()
    with POOL.within(pool):
        batch.step()
        batch.step()
    assert predicted.step == pytest.approx(pool.stats().mapped, rel=off)


@pytest.mark.parametrize(
    ("kind", "dropout"),
    [
        ("GCN", 0.5),
        ("SAGE", 0.0),
        ("GIN", 0.0),
        ("GIN", 0.5),
        ("GAT", 0.0),
        ("NGCF", 0.0),
        ("NGCF", 0.5),
        ("GCNII", 0.0),
    ],
)
def test_the_steps_that_are_recorded_are_those_that_are_expected_to_be(kind: str, dropout: float, ds: Dataset) -> None:
    """Also where torch computes some of it, whose results then lie in the tape's memory."""
    made: nn.Module = getattr(gw.nn, kind)(ds.num_features, 16, ds.num_classes, num_layers=2, dropout=dropout)
    trainer = gw.Trainer(made, ds)
    trainer.prepare()
    batch = trainer._batch
    assert isinstance(batch, FullBatch)
    assert is_recorded(batch.plans()[0]) == (batch._tape is not None)


def test_results_of_torch_in_a_recorded_step_lie_in_its_arena_and_pass_beside_it(
    ds: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of an evaluation come beside the whole arena."""
    trainer = gw.Trainer(gw.nn.NGCF(ds.num_features, 64, ds.num_classes, num_layers=3), ds)
    trainer.prepare()
    batch = trainer._batch
    assert isinstance(batch, FullBatch) and batch._tape is not None
    step, evaluation, _, sizes = batch.plans()
    assert any(map(step.interprets, step.backward))
    monkeypatch.setattr(rehearsal, "heap_is_lean", lambda: True)
    recorded = Run(step, sizes, loss_bytes(ds.num_nodes, ds.num_classes), is_taped=True)
    rows, arena = 64 * 4 * ds.num_nodes, batch._tape.arena.stats().mapped
    for taken in (taken_bytes(recorded), taken_bytes(recorded, Run(evaluation, sizes))):
        assert arena + rows <= taken <= 1.15 * (arena + rows)


@pytest.mark.parametrize("kind", ["GCN", "SAGE", "GIN", "NGCF", "GCNII"])
def test_the_arena_of_a_recorded_step_is_known_before_it_is_recorded(kind: str, ds: Dataset) -> None:
    """But for one of the sizes that are tried, each 6 % larger than the one before."""
    trainer = gw.Trainer(make_model(kind, ds), ds)
    trainer.prepare()
    batch = trainer._batch
    assert isinstance(batch, FullBatch) and batch._tape is not None
    step, _, wanted, sizes = batch.plans()
    rows = ds.num_nodes if wanted is None else wanted.numel()
    found = arena_bytes(Run(step, sizes, loss_bytes(rows, ds.num_classes), is_taped=True))
    assert found == pytest.approx(batch._tape.arena.stats().mapped, rel=0.065)


@pytest.mark.parametrize("kind", ["GCN", "SAGE", "GAT", "Transformer"])
def test_tiles_of_an_evaluation_take_what_was_predicted(
    kind: str, ds: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the most that a pool maps, gaps and the rows of two layers included."""
    model = make_model(kind, ds, hidden=128)
    mini = gw.Trainer(model, ds, mode="mini", fanouts=(5, 5), batch_size=256)._batch
    assert isinstance(mini, MiniBatch)
    mini.prepare()
    predicted, pool = _tiled(mini, model, 4096), Watched()
    with POOL.within(pool), monkeypatch.context() as patch:
        patch.setattr(POOL, "trim", pool.trim)
        infer(model, ds.graph, ds.x, 4096, trims=True)
    assert pool.stats().peak_lent < predicted
    assert 0.9 * pool.most < predicted < 1.35 * pool.most


@pytest.mark.own_process
def test_a_run_that_does_not_fit_is_refused_with_a_budget_that_does(ds: Dataset) -> None:
    with pytest.raises(
        gw.errors.MemoryBudgetError, match=r"^memory: expected at least \d+ MB .*data \d+ MB.*, got 30 MB$"
    ):
        gw.Trainer(make_model("GAT", ds), ds, memory="30MB")
    with pytest.raises(gw.errors.MemoryBudgetError) as caught:
        gw.Trainer(make_model("GAT", ds), ds, memory=data_bytes(ds) + 60 * MB)
    trainer = gw.Trainer(make_model("GAT", ds), ds, memory=caught.value.least + MB)
    assert len(trainer.fit(2)) == 2
    assert trainer.needs is not None
    assert trainer.needs.total <= caught.value.least + MB


def test_fewer_values_are_kept_where_memory_is_short(ds: Dataset) -> None:
    ds = replace(ds, x=torch.randn(ds.num_nodes, 256, generator=torch.Generator().manual_seed(0)))
    losses, kept, memory = [], [], 4096 * MB
    for _ in range(2):
        trainer = gw.Trainer(make_model("GCN", ds, 16), ds, memory=memory)
        assert trainer.needs is not None
        kept.append(trainer.needs.kept)
        memory = trainer.needs.running - 8 * MB
        losses.append([record.loss for record in trainer.fit(3)])
        del trainer  # with what it has kept
    assert kept[0] > kept[1]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("kind", ["GCN", "GCNII", "GAT"])
def test_no_step_makes_a_graph_again_where_memory_is_short(kind: str, ds: Dataset) -> None:
    batch = gw.Trainer(make_model(kind, ds), ds)._batch
    assert isinstance(batch, FullBatch)
    with gw.config(memory=1):
        step, evaluation, rows, _ = batch.plans()
    assert rows is not None
    for plan in (step, evaluation):
        made = {v for v in plan.compiled.program.values if isinstance(v.type, StructType) and v.op is not Op.GRAPH}
        assert made <= set(plan.compiled.hoisted)
    assert any(v.op is Op.TAKE_DST for v in step.compiled.program.values)  # the rows of training nodes


def test_a_roomy_budget_changes_no_bit(ds: Dataset) -> None:
    for mode, more in (("full", {}), ("mini", {"fanouts": (5, 5), "batch_size": 512})):
        losses = [
            [record.loss for record in gw.Trainer(make_model("SAGE", ds), ds, mode=mode, memory=memory, **more).fit(2)]  # type: ignore[arg-type]
            for memory in (None, "8GB")
        ]
        assert losses[0] == losses[1]


@pytest.mark.own_process
def test_mini_batches_keep_their_bits_and_are_prepared_less_far_ahead(ds: Dataset) -> None:
    given: dict[str, Any] = {"mode": "mini", "fanouts": (10, 10), "batch_size": 512}
    usual = gw.Trainer(make_model("SAGE", ds, 128), ds, memory="4GB", **given)
    assert usual.needs is not None
    with pytest.raises(gw.errors.MemoryBudgetError) as caught:
        gw.Trainer(make_model("SAGE", ds, 128), ds, memory=data_bytes(ds) + 20 * MB, **given)
    short = gw.Trainer(make_model("SAGE", ds, 128), ds, memory=caught.value.least, **given)
    assert short.needs is not None
    assert short.needs.total < usual.needs.total
    batch = short._batch
    assert isinstance(batch, MiniBatch)
    assert batch.budget is not None
    assert batch.budget.tile or batch.budget.trims or len(batch.loader.ways) < len(usual._batch.loader.ways)  # type: ignore[union-attr]
    losses, score = [record.loss for record in short.fit(2)], short.evaluate("val")  # before the other one takes more
    assert [record.loss for record in usual.fit(2)] == losses
    assert usual.evaluate("val") == pytest.approx(score, abs=2e-3)


@pytest.mark.own_process
@pytest.mark.parametrize("macro", ["large:1/4", "parts:2/8"])
def test_macro_batches_keep_their_bits_within_a_budget(macro: str, ds: Dataset) -> None:
    given: dict[str, Any] = {"mode": "mini", "macro": macro, "fanouts": (5, 5), "batch_size": 256}
    free, bound = (gw.Trainer(make_model("SAGE", ds), ds, memory=memory, **given) for memory in (None, "2GB"))
    assert bound.needs is not None and bound.needs.data > data_bytes(ds)  # with the macro-batches
    assert [record.loss for record in free.fit(2)] == [record.loss for record in bound.fit(2)]
    with pytest.raises(gw.errors.MemoryBudgetError) as caught:
        gw.Trainer(make_model("SAGE", ds), ds, memory=data_bytes(ds) + 10 * MB, **given)
    assert caught.value.least < bound.needs.least + 4 * MB
    assert len(gw.Trainer(make_model("SAGE", ds), ds, memory=caught.value.least, **given).fit(1)) == 1


@pytest.mark.own_process
def test_the_least_of_macro_batches_is_enough_where_it_leaves_room_for_another_evaluation() -> None:
    """The pass that computes hidden rows takes more than an evaluation of all nodes at once does."""
    ds = gw.synthetic("products", scale=0.05, seed=0)
    with pytest.raises(gw.errors.MemoryBudgetError) as caught:
        gw.Trainer(make_model("SAGE", ds), ds, mode="mini", macro="parts:2/8", memory="330MB")
    memory = caught.value.least + 16 * MB  # the process has grown since; values kept for an evaluation take 50 MB
    trainer = gw.Trainer(make_model("SAGE", ds), ds, mode="mini", macro="parts:2/8", memory=memory)
    assert trainer.needs is not None and trainer.needs.least <= memory


@pytest.mark.filterwarnings("ignore::graphweft.errors.DenseFeaturesWarning")
def test_what_passes_while_values_are_computed_once_is_counted() -> None:
    """The rows over the root of their degree, of which only the sums over edges are kept."""
    ds = gw.synthetic("pubmed", scale=0.1, seed=0)
    model = make_model("NGCF", ds).eval()
    with torch.no_grad(), owning(ds.x):
        arguments, pool = model.arguments(ds.graph, ds.x), Pool()
        found = footprint(*model.function.sized_plan(arguments))
        with POOL.within(pool):
            kept = model.function.hoist(arguments)
    stats = pool.stats()
    assert kept and found.making == pytest.approx(stats.peak_lent - stats.lent, rel=0.05)


def test_graphs_that_a_turned_one_is_made_of_are_counted() -> None:
    """The reverse of the in-edges of training nodes: these are taken for it anew, and sorting has its own memory."""
    ds = gw.synthetic("reddit", scale=0.01, seed=45)
    trainer = gw.Trainer(gw.nn.APPNP(ds.num_features, 16, ds.num_classes), ds)
    batch, pool = trainer._batch, Pool()
    assert isinstance(batch, FullBatch)
    step, _, _, sizes = batch.plans()
    turned = [item for item in step.hoisted if item.value.op is Op.REVERSE]
    edges = [sizes.rows[item.value.type.edge] for item in turned]  # type: ignore[union-attr]
    found = footprint(step, sizes)
    with POOL.within(pool):
        trainer.prepare()
    stats = pool.stats()
    assert turned and min(edges) < ds.graph.num_edges  # those of some nodes
    assert found.making >= stats.peak_lent - stats.lent + 2 * min(edges)
    assert batch.needs(unlimited(ds)).step >= found.making


def test_draws_that_nothing_hides_have_a_price_of_their_own(ds: Dataset) -> None:
    """Within a budget that leaves no room for batches ahead, and where the loader prepares each when it is asked."""
    mini = gw.Trainer(make_model("SAGE", ds), ds, mode="mini", fanouts=(5, 5), batch_size=256)._batch
    assert isinstance(mini, MiniBatch)
    mini.prepare()
    found = [mini.works(), mini.works_in([CoreSplit(0, 0)])]
    mini.loader.keep_ways([CoreSplit(0, 0)])
    found.append(mini.works())
    draws = [[work.kind for work, _ in works if work.kind.startswith("draw")] for works, _ in found]
    assert draws == [["draw"] * 2, ["draw in turn"] * 2, ["draw in turn"] * 2]  # the last batch has a size of its own
    machine = Machine.known()
    hidden = seconds_of(*found[0], machine.costs, machine.scale(torch.get_num_threads()))
    assert mini_strategy(mini, unlimited(ds), machine).seconds["sampling"] > hidden["sampling"]


def test_only_calls_that_are_not_replayed_cost_a_call(ds: Dataset) -> None:
    batch = gw.Trainer(make_model("SAGE", ds), ds)._batch
    dropped = gw.Trainer(gw.nn.SAGE(ds.num_features, 16, ds.num_classes, dropout=0.5), ds)._batch
    assert isinstance(batch, FullBatch)
    assert isinstance(dropped, FullBatch)
    counts = [[n for work, n in steps.works()[0] if work.kind == "call"] for steps in (batch, dropped)]
    plan = dropped.plans()[0]
    assert counts == [[0], [len(plan.forward) + len(plan.backward)]]


@pytest.mark.own_process
def test_auto_takes_mini_batches_where_a_full_batch_does_not_fit(ds: Dataset) -> None:
    full = gw.Trainer(make_model("GAT", ds), ds, mode="auto", memory="4GB")
    assert full.mode == "full"
    with pytest.raises(gw.errors.MemoryBudgetError) as caught:
        gw.Trainer(make_model("GAT", ds), ds, mode="full", memory=data_bytes(ds) + 50 * MB)
    small = gw.Trainer(
        make_model("GAT", ds), ds, mode="auto", fanouts=(4, 4), batch_size=64, memory=caught.value.least - 8 * MB
    )
    assert small.mode == "mini"
    assert len(small.fit(1)) == 1


def test_options_whose_memory_is_not_known_are_refused(ds: Dataset) -> None:
    for more, text in (
        ({"mode": "mini", "task": "link"}, "memory=1GB cannot be combined with task=link"),
        (
            {"mode": "mini", "macro": Macro("large:1/8", quality=0.5), "fanouts": (5, 5)},
            "memory=1GB cannot be combined with quality=0.5",
        ),
        ({"mode": "full", "fanouts": (5, 5), "memory": None}, "fanouts: expected mode mini as well, got mode 'full'"),
        ({"memory": "lots"}, "memory: expected a size such as 8GB or 512MB, got 'lots'"),
    ):
        given: dict[str, Any] = {"memory": "1GB", **more}
        with pytest.raises(gw.errors.ConfigError, match=f"^{text}"):
            gw.Trainer(make_model("SAGE", ds), ds, **given)


_MEASURED = """
import json, sys, threading, time
import torch
import graphweft as gw
from graphweft._budget import own_bytes
from graphweft._memory import POOL
from graphweft.train.needs import data_bytes
kind, mode, macro, memory = sys.argv[1:]
ds = gw.synthetic("products", scale=0.05, seed=0)
POOL.trim()
model = getattr(gw.nn, kind)(ds.num_features, 64, ds.num_classes, num_layers=2)
gw.Trainer  # its modules are no part of a run
floor, peak, done = own_bytes() - data_bytes(ds), 0, False
def watch():
    global peak
    while not done:
        peak = max(peak, own_bytes())
        time.sleep(0.001)
thread = threading.Thread(target=watch)
thread.start()
try:
    trainer = gw.Trainer(model, ds, mode=mode, memory=memory, macro=macro or None)
    trainer.fit(2)
    trainer.predict()
finally:
    done = True
    thread.join()
print(json.dumps([trainer.needs.total, peak - floor]))
"""


@pytest.mark.parametrize(
    ("kind", "mode", "macro", "memory"),
    [
        ("GAT", "full", "", 600),
        ("SAGE", "mini", "", 330),
        ("SAGE", "mini", "large:1/4", 450),
    ],
)
def test_the_peak_is_within_the_budget_and_near_what_was_predicted(
    kind: str, mode: str, macro: str, memory: int
) -> None:
    run = subprocess.run(
        [sys.executable, "-c", _MEASURED, kind, mode, macro, f"{memory}MB"], capture_output=True, text=True, check=True
    )
    predicted, measured = json.loads(run.stdout.splitlines()[-1])
    assert measured <= memory * MB
    assert predicted == pytest.approx(measured, rel=0.2)


@pytest.mark.own_process
def test_gaps_that_batches_leave_are_counted_where_steps_are_run_to_see() -> None:
    """Against the pool itself: batches differ in size, and one does not fit what the last gave back."""
    ds = gw.synthetic("arxiv", scale=0.1, seed=971)
    mini = gw.Trainer(make_model("NGCF", ds), ds, mode="mini", fanouts=(10, 10), batch_size=1024)._batch
    assert isinstance(mini, MiniBatch)
    mini.prepare()
    assert mini.staged_plan() is None
    batches = _batches_taken(mini)
    assert len({sum(batch.held) for batch in batches}) == len(batches) > 2
    POOL.trim()
    before, places = POOL.stats().mapped, torch.arange(mini.loader.num_items)
    for own in places.split(1024)[: len(batches)]:
        batch = mini.loader.make(own, 0)
        mini.optimizer.zero_grad(set_to_none=True)
        mini.gradients(batch)
        del batch
    taken = POOL.stats().mapped - before
    assert taken_by_epochs(batches, 0, 0).most == pytest.approx(taken, rel=0.15, abs=4 * MB)


@pytest.mark.own_process
def test_a_batch_that_has_no_room_is_not_trained_on_to_see_what_it_takes(
    ds: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an eighth of its seeds take, and how much larger the batch is, tell about as much.

    But for torch's own blocks, of which those below a megabyte stay in its heap.
    """
    mini = gw.Trainer(make_model("NGCF", ds), ds, mode="mini", fanouts=(10, 10), batch_size=1024)._batch
    assert isinstance(mini, MiniBatch)
    mini.prepare()
    seen, gradients = list[int](), mini.gradients

    def noted(batch: Any) -> Any:
        seen.append(batch.batch_size)
        return gradients(batch)

    monkeypatch.setattr(mini, "gradients", noted)
    (whole, count), most = _rehearsed(mini, 1024), max(seen)
    assert count == most == 1024
    seen.clear()
    POOL.trim()
    with Budget(int(sum(whole.held) + taken_bytes(whole.step)) // 2).enforced(), lifted():
        part, count = _rehearsed(mini, 1024)
    assert 2 <= max(seen) == count < 1024
    whole_step, part_step = (taken_bytes(replace(found.step, by_torch=0.0)) for found in (whole, part))
    assert 0.9 * whole_step < part_step < 2 * whole_step


@pytest.mark.own_process
def test_a_batch_that_reaches_the_nodes_that_its_part_does_is_made_to_see_how_much_larger_it_is() -> None:
    """In a room of five times what the part takes, with eight times as many seeds; inner layers of a step grow more.

    Torch's own blocks are left out: a part takes them from its heap, so it does not tell what the whole maps for them.
    """
    ds = gw.synthetic("reddit", scale=0.0122, seed=516)
    mini = gw.Trainer(make_model("NGCF", ds), ds, mode="mini", fanouts=(10, 10), batch_size=1024)._batch
    assert isinstance(mini, MiniBatch)
    mini.prepare()
    part = _tried(mini, 0, 128)
    taken = sum(part.held) + sum(part.making)
    with Budget(int(5 * taken)).enforced(), lifted():
        batch, step = _times_larger(mini, part, 8.0, 1024)
        assert 1 <= batch < step < 3
    whole = _tried(mini, 0, 1024)
    assert taken_bytes(replace(whole.step, by_torch=0)) <= PARTLY * step * taken_bytes(part.step)
    with Budget(int(taken / 2)).enforced(), lifted():
        assert all(1 <= times < 3 for times in _times_larger(mini, part, 8.0, 1024))  # by sizes alone


@pytest.mark.own_process
def test_what_torch_takes_in_a_step_beside_the_pool_is_counted() -> None:
    """Beside 4 MB of the pool that stay: 64 MB of torch's own that pass."""
    kept: list[torch.Tensor] = []

    def train(batch: torch.Tensor) -> None:
        kept.append(POOL.empty((4 << 20,), torch.uint8).fill_(1))
        torch.ones(16 << 20).sum()

    lean_heap()
    found = rehearsed(lambda: POOL.empty((1 << 20,), torch.uint8).fill_(1), train)
    assert found.held[0] == 1 << 20
    assert 60 * MB < found.step.by_torch < 75 * MB
    assert taken_bytes(found.step) - found.step.by_torch == pytest.approx(4 << 20, abs=2.5 * MB)


@pytest.mark.own_process
def test_the_least_of_a_full_batch_keeps_values_where_making_them_again_takes_more() -> None:
    ds = gw.synthetic("reddit", scale=0.0122, seed=516)
    with pytest.raises(gw.errors.MemoryBudgetError, match=r"kept 1\d MB") as caught:
        gw.Trainer(make_model("NGCF", ds), ds, memory=data_bytes(ds) + 12 * MB)
    trainer = gw.Trainer(make_model("NGCF", ds), ds, memory=caught.value.least)
    assert trainer.needs is not None and trainer.needs.kept > 10 * MB


@pytest.mark.own_process
def test_a_part_of_a_tile_tells_what_the_tile_takes() -> None:
    ds = gw.synthetic("arxiv", scale=0.5, seed=0)  # so large that a page more or less is little
    model = make_model("GAT", ds)
    mini = gw.Trainer(model, ds, mode="mini", fanouts=(5, 5), batch_size=256)._batch
    assert isinstance(mini, MiniBatch)
    mini.prepare()
    ids = torch.arange(16384)
    whole, part = _tried_tile(mini, model, ids), _tried_tile(mini, model, ids[::8].contiguous(), 8)
    assert 0.9 * whole < part < 1.5 * whole


def test_what_kernels_keep_of_a_step_lies_beside_an_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide features, whose weights' gradient packs them; an evaluation packs less, and trimming leaves these."""
    ds = gw.synthetic("reddit", scale=0.0219, seed=334)
    model = gw.nn.GAT(ds.num_features, 64, ds.num_classes, num_layers=2)
    mini = gw.Trainer(model, ds, mode="mini", batch_size=1024)._batch
    assert isinstance(mini, MiniBatch)
    budget = RunBudget(data_bytes(ds) + 35 * MB, ds)
    needs, _, _ = needs_within(mini, budget)
    assert needs.trims
    monkeypatch.setattr(mini_needs, "buffer_bytes", lambda run: 0)
    without, _, _ = needs_within(mini, budget)
    assert without.trims and 3 * MB < needs.evaluation - without.evaluation < 5 * MB
