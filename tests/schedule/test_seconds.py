"""Seconds of a run: sums over them are those of the spans, and a run from a store leaves a table of them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import graphweft as gw
from graphweft._trace import Span
from graphweft.schedule.seconds import by_second, seconds_table


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_lost_between_seconds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ends = np.sort(rng.uniform(0, 7, (40, 2)), axis=1)
    kinds = [("read", "reader"), ("epoch", "main"), ("wait", "main"), ("wait", "worker"), ("evaluate", "main")]
    spans = []
    for begin, end in ends:
        stage, thread = kinds[int(rng.integers(len(kinds)))]
        spans.append(Span("s", stage, float(begin), float(end), thread, {"bytes": int(rng.integers(1000))}))
    spans.append(Span("epoch", "epoch", 0.0, 7.0, "main", {}))
    rows = by_second(spans)
    assert [row.second for row in rows] == list(range(7))

    def total(stage: str, thread: str) -> float:
        return sum(span.seconds for span in spans if (span.stage, span.thread) == (stage, thread))

    read = sum(span.details["bytes"] for span in spans if span.stage == "read")
    assert sum(row.bytes_read for row in rows) == pytest.approx(read)
    assert sum(row.reading for row in rows) == pytest.approx(total("read", "reader"))
    assert sum(row.waiting for row in rows) == pytest.approx(total("wait", "main"))
    assert sum(row.evaluating for row in rows) == pytest.approx(total("evaluate", "main"))
    assert by_second([]) == [] and len(seconds_table(rows).splitlines()) == 8


@pytest.mark.parametrize("mode", ["macro", "mini"])
def test_a_run_from_a_store_leaves_a_table(mode: str, tmp_path: Path) -> None:
    ds = gw.synthetic("default", scale=0.05)
    store = gw.macro.prepare_store(ds, tmp_path / "store", parts=6, memory="64MB")
    torch.manual_seed(0)
    model = gw.nn.SAGE(ds.num_features, 8, ds.num_classes, num_layers=2)
    options = {"fanouts": (3, 2), "batch_size": 32, "memory": "64MB"}
    options |= {"macro": "parts:2/6"} if mode == "macro" else {}
    trainer = gw.Trainer(model, store, mode=mode, trace=tmp_path / "trace.json", **options)  # type: ignore[arg-type]
    if mode == "mini":
        trainer._batch.resize(1 << 20)  # type: ignore[attr-defined]  # rows are read again
    history = trainer.fit(2)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["name"] for event in events if event["ph"] == "C"} == {"disk, MB/s", "utilisation"}
    reads = [event["args"]["bytes"] for event in events if event.get("cat") == "read"]
    with (tmp_path / "trace.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert sum(int(row["bytes_read"]) for row in rows) == pytest.approx(sum(reads), abs=len(rows))
    told = sum(record.metrics["bytes_read"] or 0.0 for record in history)
    assert sum(reads) == told if mode == "macro" else sum(reads) >= told > 0  # rows of the next epoch are read ahead
