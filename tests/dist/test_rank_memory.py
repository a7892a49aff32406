"""What a rank holds: the structure of its part once, features until their sums are there, rows while they are read."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
import torch
from dist.rank_processes import run_case
from zoo import power_law_edges

import graphweft as gw
from graphweft._errors import GraphWeftError
from graphweft._memory import POOL
from graphweft.data.part_dataset import PartDataset
from graphweft.data.part_folder import write_parts
from graphweft.data.synthetic import synthetic
from graphweft.dist.halo import pieces_over_ranks
from graphweft.dist.local_part import LocalPart
from graphweft.dist.ranks import Ranks
from graphweft.runtime.constants import once
from graphweft.train import ranked_full
from graphweft.train.full_batch import FullBatch
from graphweft.train.ranked_full import RankedFullBatch
from graphweft.train.ranked_tape import RankedStep


def test_a_part_that_is_read_alone_lends_its_structure(tmp_path: Path) -> None:
    ds = synthetic("cora", scale=0.2)
    path = write_parts(ds, gw.partition(ds.graph, 1), tmp_path / "parts")
    read = PartDataset(path, 0)
    part = LocalPart(Ranks(), read.graph, read.owner, read.home)
    assert part.block.csc.indices.data_ptr() == read.graph.csc.indices.data_ptr()


@pytest.mark.parametrize("splits", [False, True])
def test_edges_of_a_part_are_those_of_the_graph(splits: bool) -> None:
    """Ids of edges by brute force, for parts whose nodes are in another order than the graph's."""
    src, dst, nodes = power_law_edges(60, 400, seed=2)
    graph = gw.Graph(src, dst, num_nodes=nodes)
    wanted = torch.randperm(nodes, generator=torch.Generator().manual_seed(1))[:20]
    whole = LocalPart(Ranks(), graph, torch.zeros(nodes, dtype=torch.int64), splits=splits, first=wanted)
    for part in (whole, whole.restricted(wanted)):
        rows, columns = part.targets.tolist(), part.n_id.tolist()
        csc = part.block.csc
        found = [
            (columns[int(column)], rows[row])
            for row in range(len(rows))
            for column in csc.indices[int(csc.indptr[row]) : int(csc.indptr[row + 1])]
        ]
        edges = list(zip(src.tolist(), dst.tolist(), strict=True))
        assert [edges[edge] for edge in part.block.e_id.tolist()] == found
        assert sorted(part.block.e_id.tolist()) == [e for e, (_, to) in enumerate(edges) if to in set(rows)]


@pytest.mark.parametrize("name", ["GCN", "SAGE"])
def test_features_are_given_up_once_they_are_summed(name: str) -> None:
    """Losses of three steps and scores are those of one process; the numbers are gone, the shape is there."""
    losses, scores = [], []
    for kind in ("whole", "part"):
        ds = synthetic("arxiv", scale=0.01)
        assert isinstance(ds.x, torch.Tensor)
        torch.manual_seed(0)
        model = getattr(gw.nn, name).for_data(ds, 8)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        made = (model, ds, ds.x, optimizer, False)
        steps = FullBatch(*made) if kind == "whole" else RankedFullBatch(Ranks(), *made)
        steps.prepare()
        steps.refresh()
        losses.append([float(steps.step()) for _ in range(3)])
        scores.append(steps.evaluate().scores)
        if kind == "part":
            assert ds.x.shape[0] == ds.num_nodes and ds.x.untyped_storage().nbytes() == 4
            assert steps.logits().shape == (ds.num_nodes, ds.num_classes)
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert scores[1] == pytest.approx(scores[0])


def test_features_stay_where_a_step_reads_them() -> None:
    """Dropout draws other features in every step."""
    ds = synthetic("arxiv", scale=0.01)
    assert isinstance(ds.x, torch.Tensor)
    before = ds.x.clone()
    model = gw.nn.GCN.for_data(ds, 8, dropout=0.5)
    steps = RankedFullBatch(Ranks(), model, ds, ds.x, torch.optim.SGD(model.parameters(), lr=0.1), False)
    steps.prepare()
    assert torch.equal(ds.x, before) and bool(steps.step().isfinite())


def test_calls_that_come_once_keep_no_input_that_is_not_read_again() -> None:
    src, dst, nodes = power_law_edges(60, 400, seed=2)
    graph = gw.Graph(src, dst, num_nodes=nodes)
    wide = torch.randn(nodes, 16, generator=torch.Generator().manual_seed(0))
    layer = gw.nn.GCNConv(16, 16)
    exact = wide.clone().requires_grad_()
    layer(graph, exact).square().sum().backward()
    wanted, layer.weight.grad = layer.weight.grad, None
    leaf = wide.clone().requires_grad_()
    rows = leaf * 1.0
    with once():
        out = layer(graph, rows)
    kept = weakref.ref(rows)
    del rows
    gc.collect()
    sums = out.square().sum()
    sums.backward(retain_graph=True)
    assert exact.grad is not None and leaf.grad is not None and wanted is not None
    assert torch.allclose(leaf.grad, exact.grad, atol=1e-5) and torch.allclose(layer.weight.grad, wanted, atol=1e-4)
    assert kept() is None
    with pytest.raises(GraphWeftError, match="one backward pass"):
        sums.backward()


def test_a_layer_runs_without_the_own_rows_that_lie_in_its_table() -> None:
    src, dst, nodes = power_law_edges(20_000, 60_000, seed=2)
    part = LocalPart(Ranks(), gw.Graph(src, dst, num_nodes=nodes), torch.zeros(nodes, dtype=torch.int64), splits=False)
    before, lent = POOL.stats().lent, []

    def run(block: gw.Graph, table: torch.Tensor) -> torch.Tensor:
        lent.append(POOL.stats().lent - before)
        return table * 2

    given = [POOL.empty((nodes, 16)).fill_(3.0)]
    assert POOL.stats().lent - before == POOL.rounded(given[0].nbytes) > 0
    with torch.no_grad():
        pieces = pieces_over_ranks(part, given.pop(), run, splits=False)
    assert lent == [POOL.rounded(nodes * 16 * 4)] and torch.equal(pieces[0], torch.full((nodes, 16), 6.0))


def test_evaluations_over_epochs_take_no_more_memory(tmp_path: Path) -> None:
    """Bytes of pool and arena stay as they are after the first epoch; no message is held once it was read."""
    run_case(tmp_path, 2, "evaluated", "GCN", "SAGE")
    for name in ("GCN", "SAGE"):
        for rank in range(2):
            found = torch.load(tmp_path / f"{name}-{rank}.pt", weights_only=True)
            assert found.shape == (6, 6) and bool((found[:, 3] > 0).all())  # steps are recorded
            assert found[1:].unique(dim=0).shape[0] == 1, found
            assert bool((found[:, 4] == 1).all()) and bool((found[:, 5] == 0).all())


def test_a_step_that_cannot_be_recorded_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ranks, "adds_in_memory", lambda ranks, nbytes: True)  # as ranks of one host
    ds = synthetic("cora", scale=0.2)
    model = gw.nn.GCN.for_data(ds, 8)
    steps = RankedFullBatch(Ranks(), model, ds, ds.x, torch.optim.SGD(model.parameters(), lr=0.1), True)
    steps.refresh()
    last, tried = steps._last, []
    assert last is not None
    loss = steps.target.recorded(ds.y[steps._mine], None)
    made = RankedStep.of(model, [steps.part, last], steps._features(), steps.edge_data.inputs, loss)
    assert made is not None
    steps._share = 1.0
    monkeypatch.setattr(steps, "_made_step", lambda: made)
    monkeypatch.setattr(made, "record", lambda: tried.append(1))  # None: torch computed on the way
    losses = [float(steps.step()) for _ in range(3)]
    assert tried == [1] and losses[0] > losses[1] > losses[2]


def test_an_evaluation_scores_rows_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """Piece by piece without a copy of the logits; scores and loss are those of plain torch."""
    ds = synthetic("cora", scale=0.2)
    model = gw.nn.SAGE.for_data(ds, 8)
    steps = RankedFullBatch(Ranks(), model, ds, ds.x, torch.optim.SGD(model.parameters(), lr=0.1), True)
    steps.refresh()
    own, score, given = steps._evaluated(), steps.target.score, []

    def watched(outputs: torch.Tensor, y: torch.Tensor, rows: torch.Tensor) -> object:
        given.append((outputs.data_ptr(), rows.numel()))
        return score(outputs, y, rows)

    monkeypatch.setattr(ranked_full, "_SCORED", 20)
    monkeypatch.setattr(steps.target, "score", watched)
    monkeypatch.setattr(steps, "_evaluated", lambda: own)
    found = steps.evaluate()
    assert {place for place, _ in given} == {own.data_ptr()} and max(rows for _, rows in given) == 20
    logits = torch.empty_like(own).index_copy_(0, steps.part.own, own)
    for name in ("train", "val", "test"):
        ids = ds.labelled(name)
        assert found.scores[name] == pytest.approx(float((logits[ids].argmax(1) == ds.y[ids]).double().mean()))
    ids = ds.labelled("val")
    wanted = torch.nn.functional.cross_entropy(logits[ids].double(), ds.y[ids])
    assert found.val_loss == pytest.approx(float(wanted), rel=1e-6)


def test_a_step_holds_one_table_of_sources_at_a_time(tmp_path: Path) -> None:
    """Bytes that a recorded step has at once: a layer's table, rows that travel, and own rows of two layers.

    Rows of a table are scaled where they lie, a table is free once it is summed, and gradients that come home are added
    in the table that they are for. Structure is kept once in either order: self-loops are no edges of a copy.
    """
    run_case(tmp_path, 2, "memory")
    for rank in range(2):
        found = torch.load(tmp_path / f"memory-{rank}.pt", weights_only=True)
        rows = 4 * found["hidden"]
        table, own, lent = (rows * found[name] for name in ("sources", "own", "lent"))
        assert table + own < found["peak"] <= 1.02 * (table + lent + 3 * own), found
        assert found["edges"] == found["part_edges"] and found["paused"] == 0
