"""Traces of whole runs: valid Chrome JSON, spans that nest, times that add up, and the same bits as without."""

from __future__ import annotations

import itertools
import json
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

from graphweft import _trace
from graphweft._errors import ConfigError
from graphweft._trace import Recorder
from graphweft.cli import main
from graphweft.data.synthetic import synthetic
from graphweft.nn.sage import SAGE
from graphweft.schedule.verdict import self_times, verdict
from graphweft.train.trainer import Trainer

MODES: dict[str, dict[str, Any]] = {
    "full": {"mode": "full"},
    "mini": {"mode": "mini", "fanouts": (4, 3), "batch_size": 64},
    "macro": {"mode": "mini", "fanouts": (4, 3), "batch_size": 64, "macro": "large:1/2"},
    "layer": {"mode": "mini", "batch_size": 64, "sampler": "layer", "fanouts": (64, 64)},
}


def _trainer(mode: str, **options: Any) -> Trainer:
    ds = synthetic("default", scale=0.05)
    torch.manual_seed(0)
    return Trainer(SAGE(ds.num_features, 16, ds.num_classes, num_layers=2), ds, **MODES[mode], **options)


def _ticking() -> Any:
    """A clock that moves by one second a look, whoever looks."""
    counter, lock = itertools.count(), threading.Lock()

    def look() -> float:
        with lock:
            return float(next(counter))

    return look


@pytest.mark.parametrize("mode", MODES)
def test_a_trace_is_what_chrome_reads(mode: str, tmp_path: Path) -> None:
    trainer = _trainer(mode, trace=tmp_path / "trace.json")
    trainer.fit(epochs=2)
    document = json.loads((tmp_path / "trace.json").read_text())
    events = document["traceEvents"]
    rows = {event["tid"] for event in events if event["ph"] == "M" and event["name"] == "thread_name"}
    for event in (event for event in events if event["ph"] != "M"):
        assert event["ph"] == "X" and event["ts"] >= 0 and event["dur"] >= 0
        assert isinstance(event["name"], str) and isinstance(event["cat"], str) and isinstance(event["args"], dict)
        assert event["pid"] == 1 and event["tid"] in rows
    found = defaultdict(int)
    for event in events:
        found[event.get("cat")] += 1
    wanted = {"epoch", "forward", "backward", "loss", "update", "evaluate", "kernel"}
    wanted |= set() if mode == "full" else {"prepare", "sample" if mode != "layer" else "lookup"}
    assert wanted <= set(found) and found["epoch"] == 2 and found["evaluate"] == 2
    assert trainer.verdict is not None and document["otherData"]["verdict"] == trainer.verdict.text


@pytest.mark.parametrize("mode", MODES)
def test_spans_nest_on_every_thread(mode: str, tmp_path: Path) -> None:
    trainer = _trainer(mode, trace=tmp_path / "trace.json")
    trainer.fit(epochs=2)
    assert trainer._tracing.recorder is not None
    by_thread = defaultdict(list)
    for item in trainer._tracing.recorder.spans:
        by_thread[item.thread].append(item)
    for spans in by_thread.values():
        for one, two in itertools.combinations(sorted(spans, key=lambda s: (s.begin, -s.end))[:400], 2):
            apart = one.end <= two.begin
            inside = one.begin <= two.begin and two.end <= one.end
            assert apart or inside, f"{one} and {two} overlap"


@pytest.mark.parametrize("mode", ["full", "mini"])
def test_spans_add_up_to_the_epochs(mode: str, tmp_path: Path) -> None:
    """By a clock that counts its readings: what stages take and what is left over make the epoch, to the last tick."""
    trainer = _trainer(mode, trace=tmp_path / "trace.json")
    trainer._tracing.recorder = Recorder(clock=_ticking())
    trainer.fit(epochs=2)
    spans = trainer._tracing.recorder.spans
    epochs = [item for item in spans if item.stage == "epoch"]
    main = [item for item in spans if item.thread == epochs[0].thread]
    parts = [
        (item.stage, seconds)
        for item, seconds, around in self_times(main)
        if item.stage == "epoch" or any(outer.stage == "epoch" for outer in around)
    ]
    total = sum(item.seconds for item in epochs)
    assert sum(seconds for _, seconds in parts) == total
    found = verdict(spans)
    assert found is not None and sum(found.shares.values()) + found.waiting == pytest.approx(1.0)


@pytest.mark.parametrize("mode", ["full", "mini", "macro"])
def test_a_trace_changes_no_bit(mode: str, tmp_path: Path) -> None:
    plain, traced = _trainer(mode), _trainer(mode, trace=tmp_path / "trace.json")
    plain.fit(epochs=3)
    traced.fit(epochs=3)
    assert plain.verdict is None
    for name, tensor in plain.model.state_dict().items():
        assert torch.equal(tensor, traced.model.state_dict()[name]), name


def test_hops_are_told_apart(tmp_path: Path) -> None:
    trainer = _trainer("mini", trace=tmp_path / "trace.json")
    trainer.fit(epochs=1)
    names = {event["name"] for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]}
    assert {"hop 1", "hop 2"} <= names


def test_nothing_is_recorded_without_a_recorder() -> None:
    assert _trace.active() is None
    assert _trace.span("draw", "sample", hop=1) is _trace.span("number", "renumber")


def test_a_failed_run_leaves_its_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = _trainer("mini", trace=tmp_path / "trace.json")

    def fail(*_: object) -> float:
        raise RuntimeError("broken")

    trainer.prepare()
    monkeypatch.setattr(trainer._batch, "_loss", fail)
    with pytest.raises(RuntimeError, match="broken"):
        trainer.fit(epochs=1)
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert _trace.active() is None


def test_only_so_many_spans_are_kept() -> None:
    recorder = Recorder(most=2)
    for _ in range(5):
        recorder.add("draw", "sample", 0.0, 1.0, {})
    assert len(recorder.spans) == 2 and recorder.dropped == 3


def test_threads_of_one_name_are_rows_of_their_own() -> None:
    recorder, both = Recorder(), threading.Barrier(2)

    def work() -> None:
        both.wait(60)
        recorder.add("draw", "sample", 0.0, 1.0, {})
        both.wait(60)

    threads = [threading.Thread(target=work, name="twin") for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(item.thread for item in recorder.spans) == ["twin", "twin#2"]


def test_a_thread_that_is_being_started_has_no_row_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a thread has no number; looking for a free name went on for ever."""
    waiting = threading.Thread(target=len)
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.current_thread(), waiting])
    assert waiting.ident is None
    recorder = Recorder()
    recorder.add("draw", "sample", 0.0, 1.0, {})
    assert recorder.spans[0].thread == threading.current_thread().name


def test_a_bad_path_is_refused_at_once(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing" / "trace.json"):
        with pytest.raises(ConfigError, match=r"^trace: expected a file"):
            _trainer("full", trace=path)


def test_the_command_writes_it_and_says_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "trace.json"
    words = [
        "train",
        "--scale",
        "0.05",
        "--epochs",
        "2",
        "--out",
        str(tmp_path / "run"),
        "--trace",
        str(file),
        "--quiet",
    ]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "bound by " in said and str(file) in said
    assert main([*words, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["verdict"].startswith("bound by ") and summary["trace"] == str(file)
    assert json.loads(file.read_text())["otherData"]["verdict"] == summary["verdict"]
