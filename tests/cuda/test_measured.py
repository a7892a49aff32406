"""What is measured of a device and kept: by a clock of its own, without a device."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import graphweft as gw
from graphweft._errors import ConfigError, FallbackWarning
from graphweft.graph.graph import Graph
from graphweft.measure import device_check
from graphweft.runtime.cuda import measured

HOST = torch.device("cpu")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> object:
    measured._read.cache_clear()
    with gw.config(cache_dir=tmp_path):
        yield tmp_path
    measured._read.cache_clear()


def test_what_is_measured_is_kept_and_decides(folder: Path) -> None:
    """The clock says that torch's product takes half as long from 64 columns on, and twice as long before."""
    runs: list[str] = []

    def clock(run: Callable[[], object], device: torch.device) -> float:
        width = run.args[1].shape[1]  # type: ignore[attr-defined]
        runs.append(run.func.__name__)  # type: ignore[attr-defined]
        if run.func is measured.csr_product:  # type: ignore[attr-defined]
            return 0.5 if width >= 64 else 2.0
        return 1.0

    found = measured.calibrate(HOST, clock, nodes=20)
    assert found == {16: 2.0, 32: 2.0, 64: 0.5, 128: 0.5, 256: 0.5} and runs == ["csr_product", "sum_edges"] * 5
    (file,) = folder.iterdir()
    assert file.name == "device-cpu.json" and measured.ratios(HOST) == found
    assert [measured.prefers_csr(HOST, width) for width in (1, 47, 49, 1000)] == [False, False, True, True]


def test_a_measurement_ends_after_its_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """No width is begun then; the nearest one that was measured stands for it."""
    ticks = itertools.count(0, 4)
    monkeypatch.setattr(measured.time, "monotonic", lambda: float(next(ticks)))
    found = measured.calibrate(HOST, lambda run, device: 1.0, seconds=9, nodes=20)
    assert list(found) == [16, 32, 64] and not measured.prefers_csr(HOST, 256)


@pytest.mark.parametrize("text", ["{", "[]", json.dumps({"version": 0, "csr": {}}), '{"version": 1, "csr": {"a": 1}}'])
def test_a_file_that_cannot_be_read_is_one_line_and_counts_as_none(folder: Path, text: str) -> None:
    (folder / "device-cpu.json").write_text(text)
    with pytest.warns(FallbackWarning, match=r"device-cpu\.json: expected a device's measurement.*--calibrate"):
        assert not measured.prefers_csr(HOST, 64)
    assert measured.ratios(HOST) == {}  # without another warning


def test_torchs_product_is_the_sum_over_edges() -> None:
    """Edges in an order of their own, parallel ones, rows without; against SciPy's rule in float64."""
    src, dst = torch.tensor([3, 0, 0, 2, 3, 3]), torch.tensor([1, 1, 1, 0, 4, 1])
    weight, x = torch.arange(1.0, 7.0), torch.arange(15.0).reshape(5, 3)
    made = measured.csr_product(Graph(src, dst, num_nodes=5), x, weight)
    wanted = torch.zeros(5, 3, dtype=torch.float64).index_add(0, dst, x.double()[src] * weight.double()[:, None])
    torch.testing.assert_close(made.double(), wanted)


def test_the_cpu_is_measured_without_a_device() -> None:
    with pytest.raises(ConfigError, match="device='cpu' cannot be combined with --calibrate"):
        device_check.calibrate("cpu")
