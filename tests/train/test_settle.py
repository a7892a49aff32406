"""Decisions by measured time are made once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from graphweft import _config, planning
from graphweft.cost import CostModel
from graphweft.data.dataset import Dataset
from graphweft.graph.graph import Graph
from graphweft.nn.gcn import GCN
from graphweft.runtime import calibrate
from graphweft.storage.feature import SparseFeatures
from graphweft.train.settle import remember, settle_features, settle_model
from graphweft.train.trainer import Trainer


@pytest.fixture(autouse=True)
def cache(tmp_path: Path) -> Iterator[Path]:
    with _config.config(cache_dir=str(tmp_path), calibrate=False):
        yield tmp_path


def _never() -> str:
    raise AssertionError("nothing should be decided again")


def test_the_first_decision_stays(cache: Path) -> None:
    assert remember("what", lambda: "1.5", str.isprintable) == "1.5"
    assert remember("what", _never, str.isprintable) == "1.5"
    assert remember("other", lambda: "2", str.isprintable) == "2"
    assert len(list(cache.iterdir())) == 2


def test_a_process_that_was_overtaken_takes_the_other_decision() -> None:
    def slow() -> str:
        assert remember("what", lambda: "fast", str.isprintable) == "fast"
        return "slow"

    assert remember("what", slow, str.isprintable) == "fast"


def test_a_damaged_memory_is_replaced(cache: Path) -> None:
    remember("what", lambda: "12", str.isdigit)
    (file,) = cache.iterdir()
    for damage in (b"", b"\xff\xfe", b"x" * 100):
        file.write_bytes(damage)
        assert remember("what", lambda: "34", str.isdigit) == "34"
        assert file.read_text() == "34"


def test_a_cache_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with _config.config(cache_dir=str(tmp_path / "file" / "cache")):
        assert remember("what", lambda: "1", str.isdigit) == "1"


@pytest.mark.parametrize(("zeros", "sparse"), [(0.0, False), (0.45, False), (0.75, False), (0.85, True), (0.995, True)])
def test_features_take_the_path_of_their_sparsity(zeros: float, sparse: bool) -> None:
    x = torch.ones(100, 40)
    x.view(-1)[: round(zeros * 4000)] = 0
    kept = settle_features(x)
    assert isinstance(kept, SparseFeatures) == sparse
    torch.testing.assert_close(kept.to_dense() if sparse else kept, x, rtol=0, atol=0)


def test_a_run_within_a_budget_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that was never calibrated is not within a budget, as that takes memory; without one it is, once."""
    calls = list[int]()
    monkeypatch.setattr(calibrate, "calibrate", lambda: calls.append(1))
    x = torch.ones(6, 10)
    x[:, 1:] = 0  # 0.9 of them
    every = torch.arange(6)
    ds = Dataset("t", Graph([0, 1], [1, 2], num_nodes=6), x, every % 2, every[:2], every[2:4], every[4:], 2)
    with _config.config(calibrate=True):
        within = Trainer(GCN(10, 4, 2), ds, memory="1GB", progress=False)
        assert within.feature_path == "sparse" and not calls
        planning.plan(GCN(10, 4, 2), ds, memory="1GB")
        assert not calls
        Trainer(GCN(10, 4, 2), ds, progress=False)
        assert calls == [1]


def test_the_path_does_not_change_with_a_later_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(10, 10)
    x.view(-1)[:75] = 0
    assert not isinstance(settle_features(x), SparseFeatures)
    monkeypatch.setattr("graphweft.train.settle.calibrate.threshold", lambda: 0.6)
    assert not isinstance(settle_features(x), SparseFeatures)


def test_sparse_features_stay_sparse() -> None:
    x = SparseFeatures.from_dense(torch.ones(3, 3))
    assert settle_features(x) is x


def test_a_model_is_measured_once_for_all_processes() -> None:
    graph, x = Graph([0, 1, 2], [1, 2, 0]), torch.randn(3, 4)
    calls: list[int] = []

    def made() -> GCN:
        model = GCN(4, 8, 2)

        def step() -> None:
            calls.append(1)
            model(graph, x).sum().backward()

        settle_model(model, graph, x, None, step)
        return model

    first, second = made(), made()
    assert len(calls) == 1
    assert isinstance(first.function.cost_model, CostModel)
    assert first.function.cost_model.to_json() == second.function.cost_model.to_json()


@pytest.mark.parametrize(("share", "sparse"), [(0.62, False), (0.66, True)])
def test_near_ties_of_a_measured_threshold_stay_dense(
    share: float, sparse: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphweft.train.settle.calibrate.threshold", lambda: 0.6)
    monkeypatch.setattr("graphweft.train.settle.calibrate.is_calibrated", lambda: True)
    x = torch.ones(10, 100)
    x[:, : round(share * 100)] = 0.0
    with _config.config(cache_dir=str(tmp_path)):
        assert isinstance(settle_features(x), SparseFeatures) is sparse
