"""Link prediction from a store: the losses of memory bit for bit, and its scores."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import graphweft as gw
from graphweft._memory import lean_heap
from graphweft.loader.link_groups import LinkGroupLoader, share_of
from graphweft.train.link_metrics import hits_at, mean_reciprocal, ranks
from graphweft.train.link_task import MOST_SCORED, RANKED, STAGES, LinkTask, dots
from graphweft.train.needs_by_running import grown_while
from graphweft.train.stored_sizes import link_outputs

RUN = 64 << 20  # of a whole run
TABLE = 2_400_000  # about three quarters of the rows have room


@pytest.fixture(scope="module")
def ds() -> gw.Dataset:
    return gw.synthetic("default", scale=0.1, num_features=512)


@pytest.fixture(scope="module")
def folder(ds: gw.Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("link") / "store"
    gw.macro.prepare_store(ds, path, parts=4, method="hash")
    return path


def _trainer(ds: gw.Dataset, data: Any, kind: str = "SAGE", **more: Any) -> gw.Trainer:
    torch.manual_seed(0)
    model = getattr(gw.nn, kind)(ds.num_features, 16, 8, num_layers=2, dropout=0.2)
    options = {"mode": "mini", "task": "link", "fanouts": (4, 3), "batch_size": 32, "seed": 0, "restore_best": False}
    trainer = gw.Trainer(model, data, **{**options, **more})
    if more.get("memory") == RUN:
        trainer._batch.resize(TABLE)  # type: ignore[attr-defined]
    return trainer


def _losses(trainer: gw.Trainer) -> list[float]:
    return [record.loss for record in trainer.history]


@pytest.mark.parametrize("kind", ["SAGE", "GCN"])
def test_losses_are_those_of_memory_bit_for_bit(kind: str, ds: gw.Dataset, folder: Path) -> None:
    disk, memory = _trainer(ds, gw.macro.Store(folder), kind, memory=RUN), _trainer(ds, ds, kind)
    told, known = disk.fit(2), memory.fit(2)
    assert _losses(disk) == _losses(memory)
    weights = zip(disk.model.parameters(), memory.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in weights)
    assert told[-1].val_acc == pytest.approx(known[-1].val_acc, abs=1e-3)
    for name in ("val_mrr", "test_ap", "test_hits"):
        assert getattr(told[-1], name) == pytest.approx(getattr(known[-1], name), abs=5e-3)
    assert (told[-1].metrics["rows_read"] or 0) > 0  # not all rows have room


def test_an_interrupted_run_goes_on(ds: gw.Dataset, folder: Path, tmp_path: Path) -> None:
    whole = _trainer(ds, gw.macro.Store(folder), memory=RUN)
    whole.fit(3)
    _trainer(ds, gw.macro.Store(folder), memory=RUN, out=tmp_path / "run").fit(1)
    again = _trainer(ds, gw.macro.Store(folder), memory="72MB", out=tmp_path / "run")
    again.resume()
    again.fit(2)
    assert _losses(again) == _losses(whole)


def test_weights_of_the_training_graph_are_used(ds: gw.Dataset, tmp_path: Path) -> None:
    weight = torch.rand(ds.num_edges, generator=torch.Generator().manual_seed(0))
    gw.macro.prepare_store(replace(ds, edge_weight=weight), tmp_path / "s", parts=3, method="hash")
    disk = _trainer(ds, gw.macro.Store(tmp_path / "s"), memory=RUN)
    memory = _trainer(ds, gw.load(tmp_path / "s"))
    without = _trainer(ds, gw.load(tmp_path / "s"), edge_data="ignore")
    for trainer in (disk, memory, without):
        trainer.fit(1)
    assert _losses(disk) == _losses(memory) != _losses(without)
    assert torch.allclose(disk.predict(), memory.predict(), atol=1e-4)
    assert not torch.allclose(disk.predict(), without.predict(), atol=1e-2)


def test_pairs_of_a_group_are_its_training_edges_in_both_directions(ds: gw.Dataset, folder: Path) -> None:
    store = gw.macro.Store(folder)
    names = torch.cat([store.node_ids(number) for number in range(4)])
    edges = set(zip(*(ends.tolist() for ends in ds.graph.edges()), strict=True))
    loader = LinkGroupLoader(store, (4, 3), 64, True, 5, count=2)
    found: list[tuple[int, int]] = []
    for batch in loader:
        assert batch.edge_label_index is not None
        own = names[batch.group.n_id]
        src, dst = own[batch.n_id[batch.edge_label_index]]
        count = batch.batch_size
        rows = list(zip(src.tolist(), dst.tolist(), strict=True))
        assert set(rows[:count]) <= edges and not set(rows[count:]) & edges
        found += rows[:count]
        # neither a pair of the batch nor one that is held out passes a message, in whatever direction
        tails, heads = own[batch.n_id[batch.edge_index]]
        messages = set(zip(tails.tolist(), heads.tolist(), strict=True))
        assert not messages & {pair for a, b in rows[:count] for pair in ((a, b), (b, a))}
        place = torch.argsort(names)
        ids = place[tails].numpy(), place[heads].numpy()
        assert (share_of(*ids, store.num_nodes, 5) == 0).all()
    assert len(set(found)) == len(found) and {(b, a) for a, b in found} == set(found)
    part = torch.repeat_interleave(torch.arange(4), torch.tensor([p.nodes for p in store.manifest.parts]))
    of = torch.empty(ds.num_nodes, dtype=torch.int64)
    of[names] = part
    place = torch.argsort(names)
    known = [(a, b) for a, b in edges if a != b]
    ends = torch.tensor(known).T
    trained = share_of(place[ends[0]].numpy(), place[ends[1]].numpy(), store.num_nodes, 5) == 0
    groups = [set(group.parts) for group in loader.plan(0)]
    inside = [any({int(of[a]), int(of[b])} <= parts for parts in groups) for a, b in known]
    assert set(found) == {pair for pair, here, kept in zip(known, inside, trained, strict=True) if here and kept}


def test_links_train_in_groups_and_are_scored_on_the_whole_graph(ds: gw.Dataset, folder: Path, tmp_path: Path) -> None:
    store = gw.macro.Store(folder)
    options: dict[str, Any] = {"mode": "macro", "macro": "parts:2/4", "batch_size": 128}
    trainer = _trainer(ds, store, **options)
    told = trainer.fit(3)
    assert told[-1].loss < told[0].loss and told[-1].val_acc > 0.55
    src, dst = (ends.long() for ends in ds.graph.edges())
    names = torch.cat([store.node_ids(number) for number in range(4)])
    place = torch.argsort(names)
    kept = share_of(place[src].numpy(), place[dst].numpy(), store.num_nodes, 0) == 0
    left = ds.graph.edge_subgraph(torch.from_numpy(kept).nonzero().reshape(-1))
    known = trainer.model.eval()(left, ds.x).detach()
    assert torch.allclose(trainer.predict(), known, atol=1e-4)
    edges = set(zip(src.tolist(), dst.tolist(), strict=True))
    negative = trainer._batch._negative  # type: ignore[attr-defined]
    pairs = torch.stack(negative.pairs(torch.arange(500), seed=0, stage=1)).T.tolist()
    assert not {tuple(pair) for pair in pairs} & edges and all(a != b for a, b in pairs)
    tails = negative.tails(torch.arange(20), 30, seed=0, stage=1)
    assert not {(a, b) for a in range(20) for b in tails[a].tolist()} & edges
    first = _trainer(ds, store, out=tmp_path / "run", **options)
    first.fit(1)
    again = _trainer(ds, gw.macro.Store(folder), out=tmp_path / "run", **options)
    again.resume()
    again.fit(2)
    assert _losses(again) == _losses(trainer)


def test_a_budget_of_groups_is_that_of_the_whole_run(ds: gw.Dataset, folder: Path) -> None:
    store = gw.macro.Store(folder)
    options: dict[str, Any] = {"mode": "macro", "batch_size": 128}
    for macro in (None, "parts:2/4"):
        with pytest.raises(
            gw.errors.MemoryBudgetError, match=r"memory: expected at least \d+ MB .*, got 2 MB"
        ) as refused:
            _trainer(ds, store, memory="2MB", macro=macro, **options)
        trainer = _trainer(ds, store, memory=refused.value.least, macro=macro, **options)  # what it names is enough
        assert trainer.needs is not None and trainer.needs.evaluation > 2 * 4 * ds.num_nodes
        told = trainer.fit(1)
    free = _trainer(ds, gw.macro.Store(folder), macro="parts:2/4", **options).fit(1)
    assert told[-1].loss == free[-1].loss  # a budget changes no batch
    assert told[-1].val_acc == pytest.approx(free[-1].val_acc, abs=1e-3)


def test_too_little_memory_and_other_options_are_refused(ds: gw.Dataset, folder: Path) -> None:
    store = gw.macro.Store(folder)
    for options, text in (
        ({"memory": 100_000}, r"memory: expected at least \d+ MB for this run \(program .*\), got 100 KB"),
        ({"memory": RUN, "accumulate": 2}, "task='link' cannot be combined with macro, accumulate, sampler"),
    ):
        with pytest.raises(gw.errors.ConfigError, match=text):
            _trainer(ds, store, **options)


def test_a_budget_in_mode_mini_is_that_of_the_whole_run(ds: gw.Dataset, folder: Path) -> None:
    with pytest.raises(gw.errors.MemoryBudgetError, match="memory: expected at least") as refused:
        _trainer(ds, gw.macro.Store(folder), memory="2MB")
    trainer = _trainer(ds, gw.macro.Store(folder), memory=refused.value.least)  # what it names is enough
    told = trainer.fit(2)
    assert trainer.needs is not None and trainer.needs.step > 0 and trainer.needs.parameters > 0
    free = _trainer(ds, ds).fit(2)
    assert [record.loss for record in told] == [record.loss for record in free]
    assert told[-1].val_acc == pytest.approx(free[-1].val_acc, abs=1e-3)


@pytest.mark.own_process
@pytest.mark.parametrize("mode", ["macro", "mini"])
def test_what_scoring_takes_is_counted(mode: str, ds: gw.Dataset, folder: Path) -> None:
    more: dict[str, Any] = {"macro": "parts:2/4"} if mode == "macro" else {}
    trainer = _trainer(ds, gw.macro.Store(folder), mode=mode, **more)
    h = trainer.predict()
    batch: Any = trainer._batch
    held, beside = batch.counted if mode == "mini" else batch.evaluated_as().counted
    assert held >= 4 * h.numel()
    src, times = batch.split.test[0], 10 if mode == "macro" else 20  # far above what a heap keeps free
    store: Any = SimpleNamespace(num_nodes=ds.num_nodes, num_edges=times * ds.num_edges)
    store.edge_counts = batch.store.edge_counts
    known = link_outputs(trainer.model, batch.store, mode == "mini", batch.split)  # of the edges that are held out
    assert beside == max(known[1] - known[0], 0)
    counted = link_outputs(trainer.model, store, whole=mode == "mini")[1] - h.nbytes
    lean_heap()  # as within a budget: what is freed does not stay
    taken, _ = grown_while(partial(batch._rank, "test", h, src.repeat(times), torch.zeros(times * len(src))))
    pairs = 100 * min(times * len(src), MOST_SCORED)
    if mode == "macro":  # one pass over the structure draws all of them
        assert 8 * pairs < taken < counted < 1.5 * taken
    else:
        assert taken < counted < 8 * pairs


@pytest.mark.parametrize("mode", ["macro", "mini"])
def test_edges_are_ranked_as_all_at_once(mode: str, ds: gw.Dataset, folder: Path) -> None:
    more: dict[str, Any] = {"macro": "parts:2/4"} if mode == "macro" else {}
    trainer = _trainer(ds, gw.macro.Store(folder), mode=mode, **more)
    h, batch = torch.randn(ds.num_nodes, 8), trainer._batch
    assert isinstance(batch, LinkTask)
    src, dst = batch.split.test
    positive = dots(h, src, dst)
    batch._rank("test", h, src, positive)
    others = batch._negative.tails(src, 100, seed=0, stage=STAGES["test"])
    among = (h[src][:, None] * h[others]).sum(2)
    assert len(src) > RANKED // 100  # several times some
    assert batch.details["test_mrr"] == pytest.approx(mean_reciprocal(ranks(positive, among)), abs=1e-6)
    assert batch.details["test_hits"] == hits_at(10, positive, among)
    ends = torch.stack(ds.graph.edges()).long()
    edges = ends[0] * ds.num_nodes + ends[1]
    assert not torch.isin(src[:, None] * ds.num_nodes + others, edges).any() and not (others == src[:, None]).any()


def test_products_of_wide_rows_are_taken_some_at_a_time() -> None:
    h = torch.randn(1000, 512)
    src, dst = torch.randint(0, 1000, (2, 100_000))
    taken, found = grown_while(partial(dots, h, src, dst))
    assert taken < 4 << 20
    some = [0, 255, 256, 99_999]
    assert torch.allclose(found[some], (h[src[some]] * h[dst[some]]).sum(1), rtol=1e-4, atol=1e-4)


def test_a_graph_without_negatives_is_one_line(tmp_path: Path) -> None:
    src, dst = torch.cartesian_prod(torch.arange(30), torch.arange(30)).T
    ds = gw.Dataset("complete", gw.Graph(src, dst), torch.randn(30, 4), torch.zeros(30, dtype=torch.int64))
    store = gw.macro.prepare_store(ds, tmp_path / "complete", parts=2, method="range", memory="64MB")
    trainer = _trainer(ds, store, mode="macro", macro="parts:2/2", batch_size=64)
    with pytest.raises(gw.errors.DataError, match=r"^expected pairs of nodes without an edge to evaluate against"):
        trainer.evaluate("test")
