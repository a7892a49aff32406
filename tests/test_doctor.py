from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from graphweft import _native
from graphweft._config import config
from graphweft.measure import doctor


def _found(topic: str) -> doctor.Finding:
    return next(finding for finding in doctor.report() if finding.topic == topic)


def test_report_states_what_is_in_use() -> None:
    assert _found("torch").finding == torch.__version__
    assert _found("kernel level").finding.startswith(_native.LEVEL)
    assert f"{torch.get_num_threads()} threads" in _found("threads").finding


def test_report_names_the_one_openmp_runtime() -> None:
    finding = _found("OpenMP")
    assert len(doctor.mapped_openmp()) == 1
    assert finding.finding == doctor.mapped_openmp()[0]
    assert not finding.advice


def test_a_cache_that_cannot_be_written_gets_advice(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("not a folder")
    with config(cache_dir=str(blocker / "cache")):
        finding = _found("cache")
    assert "not writable" in finding.finding
    assert "GRAPHWEFT_CACHE_DIR" in finding.advice


def test_looking_makes_no_folder(tmp_path: Path) -> None:
    with config(cache_dir=str(tmp_path / "cache"), data_dir=str(tmp_path / "data")):
        findings = doctor.report()
    assert list(tmp_path.iterdir()) == []
    assert any("not made yet, writable" in finding.finding for finding in findings)


def test_no_compiler_is_said_with_advice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    finding = _found("C++ compiler")
    assert finding.finding == "none found"
    assert "install" in finding.advice


def test_json_is_one_line_with_every_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(json=True) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["topic"] for row in rows] == [finding.topic for finding in doctor.report()]
    assert all(set(row) == {"topic", "finding", "advice"} for row in rows)


def test_the_table_shows_topics_and_advice(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert doctor.main() == 0
    text = capsys.readouterr().out
    assert "kernel level" in text
    assert "OpenMP" in text
