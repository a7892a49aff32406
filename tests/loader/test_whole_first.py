"""A first layer that reads the whole graph in groups of parts: rows against SciPy, batches against memory, runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from parted import PARTS, matrix_of

import graphweft as gw
from graphweft.cli import main
from graphweft.loader.parts import MemoryParts
from graphweft.loader.whole_first import WithJoint
from graphweft.train.joint_rows import with_joint_rows

MODELS: list[tuple[str, dict[str, Any]]] = [
    *(("SAGE", {"reduce": reduce}) for reduce in ("mean", "sum", "max")),
    ("GCN", {}),
    ("GCN", {"reduce": "mean"}),
    ("GIN", {}),
]


@pytest.fixture(scope="module")
def store(ds: gw.Dataset, part: torch.Tensor, tmp_path_factory: pytest.TempPathFactory) -> gw.macro.Store:
    return gw.macro.prepare_store(ds, tmp_path_factory.mktemp("whole") / "store", parts=PARTS, part=part)


def _model(ds: gw.Dataset, kind: str = "SAGE", **more: Any) -> Any:
    torch.manual_seed(0)
    return getattr(gw.nn, kind)(ds.num_features, 16, ds.num_classes, **{"num_layers": 2, **more})


def _trainer(ds: gw.Dataset, data: Any, macro: Any, model: Any = None, **more: Any) -> gw.Trainer:
    given = {"mode": "macro", "fanouts": (5, 5), "batch_size": 32, "seed": 0, "restore_best": False, **more}
    return gw.Trainer(model or _model(ds, dropout=0.2), data, macro=macro, **given)


def _dense(ds: gw.Dataset, source: MemoryParts) -> np.ndarray:
    return source.feature_rows(np.arange(ds.num_nodes)).double().numpy()


@pytest.mark.parametrize("reduce", ["mean", "sum", "max"])
@pytest.mark.parametrize("kind", ["store", "memory"])
def test_joint_rows_are_those_of_all_in_edges(
    kind: str, reduce: str, ds: gw.Dataset, source: MemoryParts, store: gw.macro.Store
) -> None:
    matrix, x = matrix_of(ds, source), _dense(ds, source)
    degrees = matrix.sum(1)
    expected = matrix @ x
    if reduce == "mean":
        expected = expected / np.maximum(degrees, 1)[:, None]
    elif reduce == "max":
        rows = [x[matrix[[i]].indices].max(0) if degrees[i] else np.zeros(x.shape[1]) for i in range(len(x))]
        expected = np.stack(rows)
    data: Any = store if kind == "store" else source
    found = with_joint_rows(_model(ds, reduce=reduce), data, 1 << 25, None)
    assert torch.equal(found.has_any, torch.from_numpy(degrees > 0))
    for number in range(PARTS):
        own = slice(*source.bounds[number : number + 2].tolist())
        out = torch.full((own.stop - own.start, 2 * x.shape[1]), float("nan"))
        found.features_into(number, out)
        assert np.allclose(out.numpy(), np.concatenate([x[own], expected[own]], 1), atol=1e-5)
        ids = np.arange(own.start, own.stop, 3)
        assert torch.equal(found.feature_rows(ids), out[ids - own.start])
    loops = matrix.diagonal()
    assert np.array_equal(found.degrees.numpy(), degrees - loops)


@pytest.mark.parametrize(("kind", "more"), MODELS)
def test_the_first_layer_of_a_batch_is_that_of_the_whole_graph(
    kind: str, more: dict[str, Any], ds: gw.Dataset, store: gw.macro.Store
) -> None:
    model = _model(ds, kind, **more)
    trainer = _trainer(ds, store, "parts:2/8+first:whole", model)
    known = model.eval().embed(ds.graph, ds.x, layer=0).detach()
    names = torch.cat([store.node_ids(number) for number in range(PARTS)])
    seen = 0
    for batch in trainer._batch.loader:
        rows = names[batch.data.n_id[batch.n_id]]
        found = model.run_layer(0, batch.blocks[0], batch.x)
        assert torch.allclose(found, known[rows], atol=1e-5)
        assert len(batch.blocks) == 2 and batch.blocks[1].num_src == len(found)
        seen += batch.batch_size
    assert seen == ds.train_idx.numel()


def test_with_all_parts_and_edges_a_batch_is_that_of_memory_and_of_scipy(
    ds: gw.Dataset, store: gw.macro.Store, source: MemoryParts
) -> None:
    model = _model(ds)
    trainer = _trainer(ds, store, "parts:8/8+first:whole", model, fanouts=(-1, -1))
    matrix, h = matrix_of(ds, source), _dense(ds, source)
    walk = scipy.sparse.diags(1 / np.maximum(matrix.sum(1), 1)) @ matrix
    for index, layer in enumerate(model.layers):
        weights = [w.detach().double().numpy() for w in (layer.neighbor_weight, layer.self_weight, layer.bias)]
        h = walk @ h @ weights[0] + h @ weights[1] + weights[2]
        h = np.maximum(h, 0) if index == 0 else h
    known = model.eval()(ds.graph, ds.x).detach()[source.order]
    assert np.allclose(known.numpy(), h, atol=1e-5)
    for batch in trainer._batch.loader:
        ids = batch.data.n_id[batch.n_id[: batch.batch_size]]
        found = model(batch.blocks, batch.x)[: batch.batch_size].detach()
        assert np.allclose(found.numpy(), h[ids.numpy()], atol=1e-5)


@pytest.mark.parametrize("macro", ["parts:2/8+first:whole", "parts:1/8+neighbours:1+first:whole"])
def test_a_store_trains_as_memory_does_on_any_threads(
    macro: str, ds: gw.Dataset, part: torch.Tensor, store: gw.macro.Store
) -> None:
    former, runs = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            runs.append(_trainer(ds, store, macro).fit(2))
    finally:
        torch.set_num_threads(former)
    count, brought = (1, 1.0) if "neighbours" in macro else (2, 0.0)
    given = gw.macro.Macro(gw.macro.Parts(part, count), neighbours=brought, first="whole")
    memory = _trainer(ds, ds, given).fit(2)
    plain = _trainer(ds, store, macro.replace("+first:whole", "")).fit(2)
    losses = [[record.loss for record in history] for history in (*runs, memory, plain)]
    assert losses[0] == losses[1] != losses[3]
    assert losses[2] == pytest.approx(losses[0], rel=1e-5)  # sums in slices of other sizes
    assert runs[0][-1].loss < runs[0][0].loss


def test_gradients_reach_the_first_layer(ds: gw.Dataset, store: gw.macro.Store) -> None:
    trainer = _trainer(ds, store, "parts:2/8+first:whole", _model(ds))
    before = trainer.model.layers[0].neighbor_weight.detach().clone()
    trainer.fit(1)
    assert not torch.equal(before, trainer.model.layers[0].neighbor_weight)


def test_bytes_of_joint_rows_are_told(ds: gw.Dataset, store: gw.macro.Store) -> None:
    trainer, plain = _trainer(ds, store, "parts:2/8+first:whole"), _trainer(ds, store, "parts:2/8")
    told, without = trainer.fit(2)[-1].metrics, plain.fit(2)[-1].metrics
    more = 4 * ds.num_nodes * ds.num_features
    assert told["bytes_needed"] - without["bytes_needed"] == more
    assert told["bytes_read"] - without["bytes_read"] >= more
    assert told["edges_kept"] == without["edges_kept"]
    plan = gw.plan(_model(ds), store, mode="macro", macro="parts:2/8+first:whole")
    assert plan.strategy.disk == store.nbytes + more
    assert plan.strategy.batches == "groups of 2 of 8 parts, the first layer on all edges"


def test_the_run_goes_on_only_in_the_same_way(ds: gw.Dataset, store: gw.macro.Store, tmp_path: Path) -> None:
    macro, out = "parts:2/8+first:whole", tmp_path / "run"
    whole = _trainer(ds, store, macro).fit(3)
    _trainer(ds, store, macro, out=out).fit(1)
    resumed = _trainer(ds, store, macro, out=out)
    assert resumed.resume() and resumed.fit(2)[-1].loss == whole[-1].loss
    with pytest.raises(gw.errors.GraphWeftError, match="first"):
        _trainer(ds, store, "parts:2/8", out=out).resume()


def test_joint_rows_count_in_the_budget(ds: gw.Dataset, store: gw.macro.Store) -> None:
    with pytest.raises(gw.errors.MemoryBudgetError, match="memory: expected at least") as refused:
        _trainer(ds, store, "parts:4/8+first:whole", memory=1 << 20)
    trainer = _trainer(ds, store, "parts:4/8+first:whole", memory=int(1.5 * refused.value.least))
    assert isinstance(trainer._batch._source, WithJoint)
    assert trainer.fit(1)[-1].loss > 0


def test_wrong_uses_are_one_line(ds: gw.Dataset, store: gw.macro.Store, tmp_path: Path) -> None:
    whole = "parts:2/8+first:whole"
    for model in (_model(ds, "GAT", heads=2), _model(ds, "SAGE", reduce="pool"), _model(ds, num_layers=1)):
        given = {"fanouts": (3,) * len(model.layers)}
        with pytest.raises(gw.errors.ConfigError, match="macro: first=whole cannot be combined with") as caught:
            _trainer(ds, store, whole, model, **given)
        assert "\n" not in str(caught.value)
    for macro, told in (
        ("parts:2/8+first:all", "macro: first: expected one of group, whole, got 'all'"),
        ("parts:2/8+keep:1+first:whole", "macro: keep=1 cannot be combined with first=whole"),
    ):
        with pytest.raises(gw.errors.ConfigError, match=told):
            _trainer(ds, store, macro)
        assert main(["train", "--data", str(store.path), "--mode", "macro", "--macro", macro, "--epochs", "1"]) == 2
    with pytest.raises(gw.errors.ConfigError, match="first cannot be combined with mode=mini"):
        _trainer(ds, ds, whole, mode="mini")
    with pytest.raises(
        gw.errors.ConfigError, match="task=link cannot be combined with hubs, reuse, neighbours or first"
    ):
        gw.Trainer(_model(ds), store, mode="macro", task="link", macro=whole, fanouts=(3, 2))
    ds = gw.Dataset("weighted", ds.graph, ds.x, ds.y, edge_weight=np.ones(ds.num_edges, np.float32), seed=0)
    weighted = gw.macro.prepare_store(ds, tmp_path / "weighted", parts=PARTS)
    with pytest.raises(gw.errors.ConfigError, match="macro: first=whole cannot be combined with edge_weight"):
        _trainer(ds, weighted, whole)
