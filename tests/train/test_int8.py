"""Training over features in 8 bits: what batches read, what is refused, and that no whole float32 copy is made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import graphweft as gw
from graphweft._errors import ConfigError, DataError, DenseFeaturesWarning
from graphweft.storage.feature import SparseFeatures
from graphweft.storage.int8_features import Int8Features

MINI: dict[str, Any] = {"mode": "mini", "fanouts": (4, 4), "batch_size": 100}
MODELS = [gw.nn.SAGE, gw.nn.GCN, gw.nn.GAT, gw.nn.GIN]


def graph() -> gw.Dataset:
    return gw.synthetic("default", scale=0.05, seed=0)


def trained(ds: gw.Dataset, model: Any, **options: Any) -> gw.Trainer:
    torch.manual_seed(0)
    trainer = gw.Trainer(model(ds.num_features, 16, ds.num_classes, num_layers=2), ds, lr=0.01, **MINI, **options)
    trainer.fit(2)
    return trainer


@pytest.mark.parametrize("model", MODELS)
def test_a_run_has_the_losses_of_the_widened_features(model: Any) -> None:
    small = graph().with_int8_features()
    found = trained(small, model)
    assert isinstance(small.x, Int8Features)
    wanted = trained(replace(small, x=small.x.to_dense()), model)
    assert [r.loss for r in found.history] == pytest.approx([r.loss for r in wanted.history], rel=1e-5)
    assert torch.allclose(found.predict(probabilities=True), wanted.predict(probabilities=True), atol=1e-4)


def test_no_whole_float32_copy_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    small = graph().with_int8_features()
    assert isinstance(small.x, Int8Features)
    most = []
    take = Int8Features._read

    def read(self: Int8Features, ids: Any, count: int) -> torch.Tensor:
        most.append(count)
        return take(self, ids, count)

    monkeypatch.setattr(Int8Features, "_read", read)
    monkeypatch.setattr(Int8Features, "to_dense", None)
    monkeypatch.setattr("graphweft.train.mini_batch.USUAL_TILE", 64)
    nbytes = small.x.nbytes
    small = replace(small, train_idx=small.train_idx[:20])
    trainer = gw.Trainer(gw.nn.SAGE(small.num_features, 16, small.num_classes, num_layers=1), small, mode="mini",
                         fanouts=(2,), batch_size=10)  # fmt: skip
    trainer.fit(1)
    trainer.predict()
    assert most
    assert max(most) < small.num_nodes
    assert nbytes < 4 * small.num_nodes * small.num_features * 0.3


def test_the_same_bits_for_any_number_of_threads() -> None:
    small, before, found = graph().with_int8_features(), torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            found.append(trained(small, gw.nn.SAGE).predict(probabilities=True))
        finally:
            torch.set_num_threads(before)
    assert torch.equal(*found)


def test_the_option_stores_dense_features_and_leaves_sparse_ones() -> None:
    ds = graph()
    trainer = trained(ds, gw.nn.SAGE, precision="int8")
    assert isinstance(trainer.ds.x, Int8Features)
    assert isinstance(ds.x, torch.Tensor)
    assert not isinstance(ds.x, Int8Features)
    assert [r.loss for r in trainer.history] == [r.loss for r in trained(ds.with_int8_features(), gw.nn.SAGE).history]
    assert ds.x is not None
    sparse = replace(ds, x=SparseFeatures.from_dense(ds.x))
    with pytest.warns(
        gw.errors.DataWarning, match="precision int8 changes nothing, as sparse features stay as they are"
    ):
        assert isinstance(trained(sparse, gw.nn.SAGE, precision="int8").ds.x, SparseFeatures)
    assert sparse.with_int8_features() is sparse


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"mode": "full"}, "mode='full'; mode='mini' reads them"),
        ({"mode": "macro"}, "mode='macro'; mode='mini' reads them"),
        ({"mode": "mini", "macro": "large:1/4"}, "macro"),
        ({"mode": "mini", "memory": "1GB"}, "memory"),
        ({"mode": "mini", "task": "link"}, "task='link'"),
    ],
)
def test_what_does_not_read_them_says_so(options: dict[str, Any], what: str) -> None:
    small = graph().with_int8_features()
    model = gw.nn.SAGE(small.num_features, 16, small.num_classes, num_layers=2)
    with pytest.raises(ConfigError, match=f"features in int8 cannot be combined with {what}"):
        gw.Trainer(model, small, **options)


def test_a_plan_does_not_price_them() -> None:
    small = graph().with_int8_features()
    model = gw.nn.SAGE(small.num_features, 16, small.num_classes, num_layers=2)
    with pytest.raises(ConfigError, match="features in int8 cannot be combined with plan"):
        gw.plan(model, small)


def test_auto_takes_batches() -> None:
    small = graph().with_int8_features()
    model = gw.nn.SAGE(small.num_features, 16, small.num_classes, num_layers=2)
    assert gw.Trainer(model, small, mode="auto").mode == "mini"


def test_loaders_give_float32_rows() -> None:
    small = graph().with_int8_features()
    assert isinstance(small.x, Int8Features)
    batch = next(iter(gw.Loader(small, seeds=small.train_idx, fanouts=(4, 4), batch_size=20)))
    assert torch.equal(batch.x, small.x.to_dense()[batch.n_id])


def test_a_model_of_ones_own_trains_on_batches() -> None:
    class Own(torch.nn.Module):
        def __init__(self, inputs: int, classes: int) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(inputs, classes)

        def forward(self, graph: gw.Graph, x: torch.Tensor) -> torch.Tensor:
            summed = gw.update_all(
                graph,
                lambda edges: {"m": edges.src["h"]},
                lambda nodes: {"h": nodes.mailbox["m"].mean(1)},
                ndata={"h": self.linear(x)},
            )
            out: torch.Tensor = summed["h"]
            return out

    small = graph().with_int8_features()
    trainer = gw.Trainer(Own(small.num_features, small.num_classes), small, lr=0.05, **MINI)
    history = trainer.fit(3)
    assert history[-1].loss < history[0].loss
    assert 0 <= trainer.evaluate("test") <= 1


def test_a_model_called_directly_warns_of_dense_rows() -> None:
    small = graph().with_int8_features()
    assert isinstance(small.x, Int8Features)
    model = gw.nn.GCN(small.num_features, 8, small.num_classes).eval()
    with pytest.warns(DenseFeaturesWarning, match="Int8Features"):
        found = model(small.graph, small.x)
    assert torch.allclose(found, model(small.graph, small.x.to_dense()), atol=1e-5)


def test_files_keep_them(tmp_path: Path) -> None:
    small = graph().with_int8_features()
    assert isinstance(small.x, Int8Features)
    small.save(tmp_path / "small.npz")
    kept = gw.load(tmp_path / "small.npz").x
    assert isinstance(kept, Int8Features)
    assert torch.equal(kept.levels, small.x.levels)
    assert torch.equal(kept.scale, small.x.scale)
    assert torch.equal(kept.offset, small.x.offset)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    import numpy as np

    small = graph().with_int8_features()
    small.save(tmp_path / "small.npz")
    with np.load(tmp_path / "small.npz") as file:
        members = dict(file)
    np.savez(tmp_path / "wide.npz", **{**members, "x": members["x"].astype(np.int32)})
    with pytest.raises(DataError, match="x: expected int8 beside x_scale, got int32"):
        gw.load(tmp_path / "wide.npz")
    np.savez(tmp_path / "nan.npz", **{**members, "x_offset": members["x_offset"] * np.nan})
    with pytest.raises(DataError, match="expected offset finite, got nan at column 0"):
        gw.load(tmp_path / "nan.npz")


def test_features_that_are_not_finite_are_refused() -> None:
    ds = graph()
    assert ds.x is not None
    ds.x[3, 1] = float("nan")
    with pytest.raises(DataError, match="expected finite values, got nan at row 3, column 1"):
        ds.with_int8_features()


def test_types_and_stores_are_refused(tmp_path: Path) -> None:
    x = Int8Features.from_dense(torch.ones(2, 3))
    with pytest.raises(DataError, match="features of 'a': expected float32 or sparse features, got Int8Features"):
        gw.Dataset("typed", gw.Graph([0], [1]), features={"a": x})
    ds = graph()
    gw.macro.prepare_store(ds, tmp_path / "store", parts=2)
    model = gw.nn.SAGE(ds.num_features, 16, ds.num_classes, num_layers=2)
    with pytest.raises(ConfigError, match="precision='int8' cannot be combined with a store"):
        gw.Trainer(model, gw.macro.Store(tmp_path / "store"), mode="mini", precision="int8")  # type: ignore[arg-type]


def test_accuracy_stays_on_a_planted_graph() -> None:
    ds = gw.synthetic("default", scale=0.2, seed=0, homophily=0.8)
    scores: dict[str, list[float]] = {"float32": [], "int8": []}
    for precision, found in scores.items():
        for seed in range(3):
            torch.manual_seed(seed)
            model = gw.nn.SAGE.for_data(ds, hidden=32)
            trainer = gw.Trainer(model, ds, lr=0.01, seed=seed, eval_every=1000, precision=precision, mode="mini",
                                 fanouts=(5, 5), batch_size=200)  # fmt: skip
            trainer.fit(4)
            found.append(trainer.evaluate("test"))
    assert min(scores["float32"]) > 0.8
    assert abs(sum(scores["float32"]) - sum(scores["int8"])) / 3 <= 0.003
