"""Typed graphs and weighted edges from a store: the bits of memory, and the scores of the whole graph."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stored_kinds import academic

import graphweft as gw
from graphweft.data.flat_features import with_flat_features
from graphweft.data.stored_graph import StoredGraph
from graphweft.loader.group_loader import GroupLoader
from graphweft.loader.groups import read_group
from graphweft.loader.hubs import influence, pin_hubs
from graphweft.run import run
from graphweft.storage.piece_rows import least_piece_memory
from graphweft.train.batch_estimate import batch_estimate
from graphweft.train.spec import TrainSpec

PARTS, MEMORY = 4, 1_200_000  # about half of the rows have room


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("typed") / "store"
    gw.macro.prepare_store(academic(), path, parts=PARTS, memory="64MB", method="hash")
    return path


def _model(kind: str, features: int, **more: Any) -> Any:
    torch.manual_seed(0)
    options = {"num_relations": 6, "num_layers": 2, "dropout": 0.2, **more}
    if kind == "HGT":
        options |= {"num_node_types": 4, "heads": 2}
    return getattr(gw.nn, kind)(features, 16, 3, **options)


def _trainer(kind: str, data: Any, features: int, mode: str = "mini", **more: Any) -> gw.Trainer:
    options = {"fanouts": (3, 3), "batch_size": 16, "seed": 0, "restore_best": False, **more}
    return gw.Trainer(_model(kind, features), data, mode=mode, **options)


def _same(one: gw.Trainer, other: gw.Trainer) -> bool:
    weights = zip(one.model.parameters(), other.model.parameters(), strict=True)
    losses = [[record.loss for record in trainer.history] for trainer in (one, other)]
    return losses[0] == losses[1] and all(torch.equal(a, b) for a, b in weights)


def _least_that_trains(least: int, trainer: Callable[[int], gw.Trainer]) -> int:
    """The least budget that refusals name: by sizes at first, then perhaps by what was measured. It trains."""
    for _ in range(3):
        try:
            assert trainer(least).fit(1)[-1].loss > 0
            return least
        except gw.errors.MemoryBudgetError as refused:
            assert refused.least > least
            least = refused.least
    pytest.fail(f"no run within the {least} bytes that refusals named")


@pytest.mark.parametrize("kind", ["RGCN", "HGT"])
def test_losses_of_a_typed_store_are_those_of_memory_bit_for_bit(kind: str, folder: Path) -> None:
    store, ds = gw.macro.Store(folder), gw.load(folder)
    disk = _trainer(kind, store, store.num_features, memory="64MB")
    disk._batch.resize(3 * MEMORY // 4)  # not all rows have room
    memory = _trainer(kind, ds, store.num_features)
    told = disk.fit(3)
    memory.fit(3)
    assert _same(disk, memory)
    assert told[-1].loss < told[0].loss
    assert (told[-1].metrics["bytes_read"] or 0) > 0  # not all rows have room
    assert torch.allclose(disk.predictions().outputs, memory.predictions().outputs, atol=1e-4)
    assert disk.evaluate("test") == pytest.approx(memory.evaluate("test"), abs=2 / 80)


@pytest.mark.parametrize("kind", ["RGCN", "HGT"])
def test_rows_in_pieces_give_the_losses_of_memory_bit_for_bit(kind: str, folder: Path) -> None:
    store = gw.macro.Store(folder)
    disk, memory = (
        _trainer(kind, data, store.num_features, **more)
        for data, more in ((store, {"memory": "64MB"}), (gw.load(folder), {}))
    )
    disk._batch.resize(least_piece_memory(store), True)
    disk._batch.loader._feed._rows.rows = 37
    told = disk.fit(3)
    memory.fit(3)
    assert _same(disk, memory)
    read = [record.metrics for record in told]
    nodes = [
        int(((batch.n_id >= 240) & (batch.n_id < 680)).sum()) for batch in memory._batch.loader
    ]  # of the fourth epoch
    row = 4 * 640
    assert 1.8 * sum(nodes) < read[2]["rows_read"] < 2.2 * sum(nodes)  # once for each product
    assert read[0]["rows_read"] > read[2]["rows_read"]  # entries of rows were counted
    assert read[2]["bytes_needed"] == row * read[2]["rows_read"] and read[2]["bytes_read"] >= read[2]["bytes_needed"]
    assert disk.evaluate("test") == pytest.approx(memory.evaluate("test"), abs=2 / 80)


def test_batches_whose_rows_do_not_fit_are_read_in_pieces(tmp_path: Path) -> None:
    """Rows of one batch take most of the budget of the run."""
    papers, width, ids = 4000, 8192, np.arange(4000)
    rng = np.random.default_rng(0)
    cited = rng.integers(0, papers, papers * 3)
    graph = gw.Graph.hetero(
        {("paper", "cites", "paper"): (cited, np.tile(ids, 3)), ("venue", "of", "paper"): (ids % 7, ids)},
        {"paper": papers, "venue": 7},
    )
    y = np.full(papers + 7, -1)
    y[:papers] = ids % 3
    x = {"paper": torch.from_numpy(rng.standard_normal((papers, width), np.float32))}
    splits = {"train_idx": ids[:512], "val_idx": ids[512:600], "test_idx": ids[600:700]}
    ds = gw.Dataset("wide", graph, None, y, features=x, target_type="paper", num_classes=3, **splits)
    store = gw.macro.prepare_store(ds, tmp_path / "s", parts=4, memory="400MB", method="hash")

    def trainer(data: Any, **more: Any) -> gw.Trainer:
        torch.manual_seed(0)
        model = gw.nn.RGCN(store.num_features, 8, 3, num_relations=2, num_layers=2)
        given: dict[str, Any] = {"mode": "mini", "fanouts": (3, 3), "batch_size": 256, "seed": 0}
        return gw.Trainer(model, data, restore_best=False, **given, **more)

    memory = trainer(gw.load(tmp_path / "s"))  # before there is a budget, which counts all that comes
    known = memory.fit(1)[-1].loss
    batch = next(iter(memory._batch.loader))
    assert 4 * width * int((batch.n_id < papers).sum()) > 60_000_000
    disk = trainer(store, memory="100MB")
    assert disk.fit(1)[-1].loss == known
    assert disk._batch._disk.pieces and disk._batch.loader.disk.nbytes > 0
    large = trainer(store, memory="400MB")
    large.fit(0)
    assert not large._batch._disk.pieces
    told = {
        budget: str(gw.plan(disk.model, store, budget, mode="mini", fanouts=(3, 3), batch_size=256))
        for budget in ("100MB", "400MB")
    }
    assert "rows of features in pieces" in told["100MB"] and "rows of features from disk" in told["400MB"]
    assert _least_that_trains(20_000_000, lambda memory: trainer(store, memory=memory)) < 100_000_000


def test_a_loader_gives_the_typed_batches_of_memory(folder: Path) -> None:
    options: dict[str, Any] = {"fanouts": [3, 2], "batch_size": 16, "shuffle": True, "seed": 5}
    disk, memory = gw.Loader(gw.macro.Store(folder), memory=MEMORY, **options), gw.Loader(gw.load(folder), **options)
    known = gw.load(folder).features
    for mine, other in zip(disk, memory, strict=True):
        for name in ("n_id", "y", "edge_index", "e_id"):
            assert torch.equal(getattr(mine, name), getattr(other, name)), name
        papers = mine["paper"].n_id
        at = ((mine.n_id >= 240) & (mine.n_id < 600)).nonzero().reshape(-1)
        rows = mine.x.to_dense()[at]
        assert torch.equal(rows[:, 240:880], known["paper"][papers])
        assert not rows[:, :240].any() and not rows[:, 880:].any()


@pytest.mark.parametrize("kind", ["GCN", "SAGE"])
def test_weights_of_a_store_are_used_as_those_of_memory(kind: str, tmp_path: Path) -> None:
    ds = gw.synthetic("default", scale=0.05)
    gw.macro.prepare_store(
        replace(ds, edge_weight=torch.rand(ds.num_edges)), tmp_path / "s", parts=PARTS, method="hash"
    )
    store, again = gw.macro.Store(tmp_path / "s"), gw.load(tmp_path / "s")

    def trainer(data: Any, **more: Any) -> gw.Trainer:
        torch.manual_seed(0)
        model = getattr(gw.nn, kind)(ds.num_features, 16, ds.num_classes, num_layers=2)
        options = {"mode": "mini", "fanouts": (4, 3), "batch_size": 32, "seed": 0, "restore_best": False}
        return gw.Trainer(model, data, **options, **more)

    disk, memory, without = (trainer(store, memory="64MB"), trainer(again), trainer(again, edge_data="ignore"))
    for one in (disk, memory, without):
        one.fit(2)
    assert _same(disk, memory) and not _same(disk, without)
    assert torch.allclose(disk.predictions().outputs, memory.predictions().outputs, atol=1e-4)


def _by_relation(ds: gw.Dataset, names: torch.Tensor, graph: gw.Graph, weights: torch.Tensor | None) -> list[Any]:
    """Edges of a graph by relation, with ends in the numbers of the source."""
    src, dst = (names[ends.long()].tolist() for ends in graph.edges())
    held = [0.0] * len(src) if weights is None else weights.tolist()
    rows = list(zip(src, dst, held, strict=True))
    return [sorted(rows[a:b]) for a, b in itertools.pairwise(graph.layout.edge_offsets)]


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("with_hubs", [False, True])
def test_a_typed_group_is_the_induced_graph(with_hubs: bool, weights: bool, tmp_path: Path) -> None:
    ds = academic(weights)
    store = gw.macro.prepare_store(ds, tmp_path / "s", parts=PARTS, method="hash")
    names = torch.cat([store.node_ids(number) for number in range(PARTS)])
    seeds = torch.isin(names, ds.train_idx).nonzero().reshape(-1)
    hubs = pin_hubs(store, seeds, 2, 100_000) if with_hubs else None
    group = read_group(store, [3, 1], hubs)
    source = names[group.n_id]
    inside = torch.zeros(ds.num_nodes, dtype=torch.bool)
    inside[source] = True
    of_parts = torch.cat([store.node_ids(n) for n in (1, 3)])
    if hubs is None:
        assert torch.equal(source.sort().values, of_parts.sort().values)
    else:
        pinned = names[torch.from_numpy(hubs.ids)]
        assert hubs.nbytes <= 100_000 and not torch.isin(pinned, of_parts).all()
        assert torch.equal(source.sort().values, torch.cat([of_parts, pinned]).unique())
    src, dst = ds.graph.edges()
    kept = (inside[src.long()] & inside[dst.long()]).nonzero().reshape(-1)
    known = ds.graph.edge_subgraph(kept)
    of_known = None if ds.edge_weight is None else ds.edge_weight[kept]
    expected = _by_relation(ds, torch.arange(ds.num_nodes), known, of_known)
    assert _by_relation(ds, source, group.graph, group.edge_weight) == expected
    assert group.graph.node_types == ds.graph.node_types and torch.equal(group.y, ds.y[source])
    for at in range(4):  # nodes are type after type
        a, b = group.graph.layout.node_offsets[at : at + 2]
        first, end = ds.graph.layout.node_offsets[at : at + 2]
        assert ((source[a:b] >= first) & (source[a:b] < end)).all()
    assert torch.equal(group.rows(torch.arange(len(source))).to_dense(), with_flat_features(ds).x.to_dense()[source])


@pytest.mark.parametrize("kind", ["RGCN", "HGT"])
def test_a_typed_store_trains_in_groups(kind: str, folder: Path, tmp_path: Path) -> None:
    store, ds = gw.macro.Store(folder), gw.load(folder)
    options: dict[str, Any] = {"mode": "macro", "macro": "parts:2/4"}
    trainer = _trainer(kind, store, store.num_features, **options)
    told = trainer.fit(6)
    assert told[-1].loss < 0.7 * told[0].loss
    x = with_flat_features(ds).x
    known = trainer.model.eval()(ds.graph, x).detach()
    assert torch.allclose(trainer.predictions().outputs, known, atol=1e-4)  # every in-edge of the whole graph
    right = (known[ds.test_idx].argmax(1) == ds.y[ds.test_idx]).double().mean()
    assert trainer.evaluate("test") == pytest.approx(float(right))
    first = _trainer(kind, store, store.num_features, out=tmp_path / "run", **options)
    first.fit(2)
    again = _trainer(kind, gw.macro.Store(folder), store.num_features, out=tmp_path / "run", **options)
    again.resume()
    again.fit(4)
    assert _same(again, trainer)


def test_influence_in_a_typed_graph_is_the_dense_power(folder: Path) -> None:
    """SPEC H13: a walk takes a relation that leads to its node, then an in-edge of that."""
    store, ds = gw.macro.Store(folder), gw.load(folder)
    names = torch.cat([store.node_ids(number) for number in range(PARTS)])
    seeds = torch.isin(names, ds.train_idx).nonzero().reshape(-1)
    walks = torch.zeros(ds.num_nodes, ds.num_nodes, dtype=torch.float64)
    known = torch.zeros(ds.num_nodes, dtype=torch.float64)
    src, dst = (ends.long() for ends in ds.graph.edges())
    for a, b in itertools.pairwise(ds.graph.layout.edge_offsets):
        counts = torch.zeros_like(walks).index_put_((dst[a:b], src[a:b]), torch.ones(b - a).double(), accumulate=True)
        some = counts.sum(1) > 0
        walks[some] += counts[some] / counts[some].sum(1, keepdim=True)
        known += some
    walks = torch.where(known[:, None] > 0, walks / known[:, None].clamp(min=1), torch.eye(ds.num_nodes).double())
    lazy = (torch.eye(ds.num_nodes).double() + walks) / 2
    expected = torch.zeros(ds.num_nodes, dtype=torch.float64)
    expected[ds.train_idx] = 1.0
    for _ in range(2):
        expected = expected @ lazy
    assert (known > 1).any()  # nodes that several relations lead to
    assert torch.allclose(torch.from_numpy(influence(store, seeds, 2)), expected[names])


@pytest.mark.parametrize("kind", ["RGCN", "HGT"])
def test_typed_groups_have_hubs(kind: str, folder: Path, tmp_path: Path) -> None:
    """With all nodes as hubs a group has the whole graph, and its batches all the neighbours of memory's."""
    store, ds = gw.macro.Store(folder), gw.load(folder)
    options: dict[str, Any] = {"fanouts": (-1, -1), "batch_size": 1000}
    one = _trainer(kind, store, store.num_features, "macro", macro="parts:1/4+hubs:8MB", **options)
    assert len(one._batch.hubs.ids) > ds.num_nodes // 4
    batch = next(iter(one._batch.loader))
    one.model.eval()
    known = one.model(ds.graph, with_flat_features(ds).x).detach()
    names = torch.cat([store.node_ids(number) for number in range(PARTS)])
    rows = names[batch.data.n_id[batch.n_id[: batch.batch_size]]]
    seeds = torch.isin(names, ds.train_idx).nonzero().reshape(-1)
    reached = influence(store, seeds, 2) - influence(store, seeds, 2, inside=True) > 1e-9
    assert reached.sum() == len(one._batch.hubs.ids)  # all that the layers read of other parts
    assert torch.allclose(one.model(batch.blocks, batch.x), known[rows], atol=1e-4)
    some = _trainer(kind, store, store.num_features, "macro", macro="parts:2/4+hubs:100KB", out=tmp_path / "run")
    told = some.fit(6)
    assert told[-1].loss < 0.7 * told[0].loss


def test_groups_have_hubs_with_weights(tmp_path: Path) -> None:
    ds = gw.synthetic("default", scale=0.05)
    weight = torch.rand(ds.num_edges, generator=torch.Generator().manual_seed(0))
    store = gw.macro.prepare_store(replace(ds, edge_weight=weight), tmp_path / "s", parts=PARTS, method="hash")
    torch.manual_seed(0)
    model = gw.nn.GCN(ds.num_features, 16, ds.num_classes, num_layers=2)
    options: dict[str, Any] = {"mode": "macro", "macro": "parts:1/4+hubs:20KB", "fanouts": (-1, -1), "seed": 0}
    trainer = gw.Trainer(model, store, batch_size=1000, **options)
    group = next(iter(trainer._batch.loader)).data
    names = torch.cat([store.node_ids(number) for number in range(PARTS)])[group.n_id]
    assert len(group.n_id) > max(len(store.node_ids(number)) for number in range(PARTS))
    src, dst = (ends.long() for ends in ds.graph.edges())
    known = torch.zeros(ds.num_nodes, ds.num_nodes).index_put_((dst, src), weight, accumulate=True)
    src, dst = (ends.long() for ends in group.graph.edges())
    found = torch.zeros(len(names), len(names)).index_put_((dst, src), group.edge_weight, accumulate=True)
    assert torch.allclose(found, known[names][:, names])
    assert trainer.fit(1)[-1].loss > 0


@pytest.mark.parametrize("hubs", [None, 100_000])
def test_every_seed_of_a_typed_store_is_in_one_batch(hubs: int | None, folder: Path) -> None:
    store, ds = gw.macro.Store(folder), gw.load(folder)
    source = torch.cat([store.node_ids(number) for number in range(PARTS)])
    seeds = torch.isin(source, ds.train_idx).nonzero().reshape(-1)
    pinned = None if hubs is None else pin_hubs(store, seeds, 2, hubs)
    loader = GroupLoader(store, seeds, [2, 2], 16, True, 3, count=2, hubs=pinned)
    for _ in range(2):
        found = []
        for batch in loader:
            names = source[batch.data.n_id[batch.n_id[: batch.batch_size]]]
            assert torch.equal(source[seeds[batch.input_id]], names)
            found += names.tolist()
        assert sorted(found) == ds.train_idx.tolist()


@pytest.mark.parametrize("kind", ["GCN", "SAGE"])
def test_groups_use_the_weights_of_a_store(kind: str, tmp_path: Path) -> None:
    ds = gw.synthetic("default", scale=0.05)
    weight = torch.rand(ds.num_edges, generator=torch.Generator().manual_seed(0))
    store = gw.macro.prepare_store(replace(ds, edge_weight=weight), tmp_path / "s", parts=PARTS, method="hash")

    def trainer(**more: Any) -> gw.Trainer:
        torch.manual_seed(0)
        model = getattr(gw.nn, kind)(ds.num_features, 16, ds.num_classes, num_layers=2)
        options = {"mode": "macro", "macro": "parts:2/4", "fanouts": (4, 3), "batch_size": 32, "seed": 0}
        made = gw.Trainer(model, store, restore_best=False, **options, **more)
        made.fit(2)
        return made

    weighted, without = trainer(), trainer(edge_data="ignore")
    assert [r.loss for r in weighted.history] != [r.loss for r in without.history]
    for one, given in ((weighted, weight), (without, None)):
        known = one.model.eval()(ds.graph, ds.x, edge_weight=given).detach()
        assert torch.allclose(one.predictions().outputs, known, atol=1e-4)


def test_models_and_stores_that_do_not_fit_are_told(folder: Path, tmp_path: Path) -> None:
    store = gw.macro.Store(folder)
    plain = gw.macro.prepare_store(gw.synthetic("default", scale=0.02), tmp_path / "plain", parts=2)
    for mode in ("mini", "macro"):
        with pytest.raises(
            gw.errors.ConfigError, match=r"model: expected gw\.nn\.RGCN or HGT for a store of a typed graph, got SAGE"
        ):
            gw.Trainer(gw.nn.SAGE(store.num_features, 8, 3), store, mode=mode)
        with pytest.raises(
            gw.errors.ConfigError, match="model: expected one without types for a store without types, got RGCN"
        ):
            gw.Trainer(_model("RGCN", 64), plain, mode=mode)
        with pytest.raises(gw.errors.ConfigError, match="RGCN without in_features cannot be combined with a store"):
            gw.Trainer(gw.nn.RGCN(None, 8, 3, num_relations=6, num_nodes=store.num_nodes), store, mode=mode)


@pytest.mark.parametrize("kind", ["RGCN", "SAGE"])
def test_mapped_features_give_the_losses_of_memory(kind: str, folder: Path, tmp_path: Path) -> None:
    if kind == "SAGE":
        folder = gw.macro.prepare_store(gw.synthetic("default", scale=0.05), tmp_path / "s", parts=3).path
    store, found = gw.macro.Store(folder), []
    for mode, data in (("mapped", store), ("mini", gw.load(folder))):
        torch.manual_seed(0)
        model = _model(kind, store.num_features) if kind == "RGCN" else gw.nn.SAGE(64, 16, 8, num_layers=2)
        options: dict[str, Any] = {"fanouts": (3, 3), "batch_size": 16, "seed": 0, "restore_best": False}
        trainer = gw.Trainer(model, data, mode=mode, **options)
        trainer.fit(2)
        found.append(trainer)
    assert _same(*found)
    assert (found[0].history[-1].metrics["rows_read"] or 0) > 0
    with pytest.raises(gw.errors.ConfigError, match="mode=mapped cannot be combined with memory=1GB"):
        gw.Trainer(found[0].model, store, mode="mapped", memory="1GB", fanouts=(3, 3))
    with pytest.raises(gw.errors.ConfigError, match="mode=mapped cannot be combined with data in memory"):
        gw.Trainer(found[0].model, gw.load(folder), mode="mapped", fanouts=(3, 3))


@pytest.mark.parametrize("mode", ["macro", "mini", "mapped"])
def test_the_command_trains_on_a_typed_store(mode: str, folder: Path, tmp_path: Path) -> None:
    memory = None if mode == "mapped" else "64MB"
    spec = {"data": str(folder), "mode": mode, "memory": memory, "fanouts": "3,3", "batch_size": 32, "epochs": 2}
    told = run(TrainSpec(model="rgcn", out=str(tmp_path / mode), **spec))
    assert (told["epochs"], told["dataset"]) == (2, "academic") and told["test_acc_at_best_val"] > 0.4
    with pytest.raises(gw.errors.ConfigError, match="model: expected rgcn or hgt for a typed store, got sage"):
        run(TrainSpec(model="sage", out=str(tmp_path / "other"), **spec))


def test_groups_tell_which_edges_they_leave_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = gw.macro.Store(folder)
    graph, part = gw.load(folder).graph, np.empty(store.num_nodes, np.int64)
    for number in range(PARTS):
        part[store.node_ids(number).numpy()] = number
    src, dst = graph.edges()
    there, ends = np.isin(part[dst.numpy()], (0, 2)), np.isin(part[src.numpy()], (0, 2))
    relation = np.repeat(np.arange(6), np.diff(store.types.edge_offsets))
    wanted = [np.bincount(relation[taken], minlength=6).tolist() for taken in (there, there & ends)]
    assert read_group(store, [0, 2]).edges.tolist() == wanted

    trainer = _trainer("RGCN", store, store.num_features, "macro", macro=f"parts:1/{PARTS}", progress=True)
    record = trainer.fit(2)[-1]
    shown = capsys.readouterr().err
    assert 0 < record.metrics["edges_kept"] < 0.8
    assert shown.count(f"groups of 1 of {PARTS} parts keep {record.metrics['edges_kept']:.0%} of the edges, of ") == 1
    whole = _trainer("RGCN", store, store.num_features, "macro", macro=f"parts:{PARTS}/{PARTS}", progress=True)
    assert whole.fit(1)[-1].metrics["edges_kept"] == 1.0
    assert "of the edges" not in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["RGCN", "HGT"])
def test_a_refusal_by_sizes_reads_no_structure(kind: str, folder: Path) -> None:
    ds = StoredGraph(gw.macro.Store(folder))
    with pytest.raises(gw.errors.MemoryBudgetError, match="memory: expected at least"):
        _trainer(kind, ds, ds.num_features, memory="1MB")
    assert ds._graph is None
    assert ds.graph.is_typed and ds._graph is not None  # which reads it


def test_a_type_of_a_store_that_receives_no_edge_is_told(tmp_path: Path) -> None:
    ids = torch.arange(40)
    graph = gw.Graph.hetero({("paper", "by", "author"): (ids, ids % 10)}, {"author": 10, "paper": 40})
    y = torch.cat([torch.full((10,), -1), ids % 3])
    ds = gw.Dataset("by", graph, None, y, features={"paper": torch.eye(40)}, target_type="paper", seed=0)
    store = gw.macro.prepare_store(ds, tmp_path / "s", parts=2, method="hash")
    model = gw.nn.RGCN(store.num_features, 8, 3, num_relations=1)
    with pytest.warns(gw.errors.DataWarning, match="nodes of type 'paper' have the labels and receive no edge"):
        gw.Trainer(model, store, mode="mini", fanouts=(3, 3), memory="64MB")


def test_the_least_of_typed_groups_counts_rows_as_they_are_stored(tmp_path: Path) -> None:
    """The model has a column for every author; no row is so wide."""
    papers, authors = 2_000, 20_000
    ids = torch.arange(authors)
    edges = {("author", "writes", "paper"): (ids, ids % papers), ("paper", "by", "author"): (ids % papers, ids)}
    graph = gw.Graph.hetero(edges, {"author": authors, "paper": papers})
    y = torch.cat([torch.full((authors,), -1), ids[:papers] % 3])
    x = {"paper": torch.randn(papers, 4, generator=torch.Generator().manual_seed(0))}
    ds = gw.Dataset("wide", graph, None, y, features=x, target_type="paper", seed=0)
    store = gw.macro.prepare_store(ds, tmp_path / "s", parts=2, memory="200MB", method="hash")

    def trainer(memory: int) -> gw.Trainer:
        torch.manual_seed(0)
        model = gw.nn.RGCN(store.num_features, 8, 3, num_relations=2, num_layers=2)
        return gw.Trainer(model, store, mode="macro", fanouts=(5, 5), batch_size=256, seed=0, memory=memory)

    assert store.num_features > authors and _least_that_trains(1_000_000, trainer) < 80_000_000


def test_every_relation_draws_as_many_in_what_sizes_say_of_a_batch() -> None:
    """Against draws by NumPy: distinct nodes that a batch reaches in a typed graph of even degrees."""
    rng, types, nodes, degree, fanouts, seeds = np.random.default_rng(0), 3, 4_000, 6, (2, 2), 100
    count, reached = types * nodes, np.arange(seeds)
    for fanout in fanouts:  # each node draws so many of the sources of every relation into it
        kinds = rng.permuted(np.tile(np.arange(degree), (len(reached) * types, 1)), axis=1)[:, :fanout]
        keys = (np.repeat(reached, types) * types + np.tile(np.arange(types), len(reached)))[:, None] * degree + kinds
        drawn = np.random.default_rng(1).integers(0, nodes, count * types * degree)[keys.ravel()]
        of = np.repeat(np.tile(np.arange(types), len(reached)), fanout)
        reached = np.union1d(reached, of * nodes + drawn)
    model = gw.nn.HGT(8, 16, 3, num_relations=types * types, num_node_types=types)
    found = batch_estimate(model, 8, fanouts, seeds, count, count * types * degree, types)
    assert found.rows == pytest.approx(len(reached), rel=0.1)
    assert batch_estimate(model, 8, fanouts, seeds, count, count * types * degree).rows < 0.5 * len(reached)
