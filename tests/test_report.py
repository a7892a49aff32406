"""The README's table and chart of measured ratios are what the result files say."""

from __future__ import annotations

import csv
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

COLUMNS = ["twin", "scale", "num_nodes", "num_edges", "hidden", "layers", "system", "times_ours", "memory_times_ours"]
STAMP = dict.fromkeys(("threads", "cores", "memory_gib", "level", "python", "torch"), "2") | {"processor": "some"}


@pytest.fixture(scope="module")
def report(root: Path) -> ModuleType:
    """benchmarks/report.py, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("benchmarks_report", root / "benchmarks" / "report.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def write(file: Path, rows: list[dict[str, object]]) -> None:
    with file.open("w", newline="", encoding="utf-8") as text:
        writer = csv.DictWriter(text, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def full_batch(system: str, times: float, day: int, note: str = "") -> dict[str, object]:
    values = ("toy", "1.0", 2_000, 1_500_000, 32, 3, system, times, 2.0)
    return {**dict(zip(COLUMNS, values, strict=True)), "note": note, "time": f"2026-01-{day:02}", **STAMP}


def test_the_readme_holds_the_table_of_the_result_files(report: ModuleType, root: Path) -> None:
    text = (root / "README.md").read_text(encoding="utf-8")
    assert report.insert(text, report.block(report.ratios())) == text, "run: python -m benchmarks report"


def test_every_number_of_the_table_is_a_quotient_of_a_file(report: ModuleType, root: Path) -> None:
    """Times are stored beside the quotient they give; the two are compared, by the csv module alone."""
    found = 0
    for ratio in report.ratios():
        if "epoch_ms" not in ratio.row:
            continue
        run = []
        for file in (root / "benchmarks" / "results").glob(f"{_family(ratio.part)}*.csv"):
            with file.open(newline="", encoding="utf-8") as text:
                run += [row for row in csv.DictReader(text) if row["time"] == ratio.row["time"]]
        case = ("twin", "graph", "model")
        run = [row for row in run if "epoch_ms" in row and all(row.get(name) == ratio.row.get(name) for name in case)]
        ours = next(row for row in run if row["times_ours"] == "1.0")
        assert ratio.times == pytest.approx(float(ratio.row["epoch_ms"]) / float(ours["epoch_ms"]), rel=0.01)
        found += 1
    assert found > 10


def _family(part: str) -> str:
    return {"full batch": "full_batch", "attention": "gat", "own layer": "user_functions"}.get(part, part)


def test_the_chart_in_the_docs_shows_the_numbers_of_the_table(report: ModuleType, root: Path) -> None:
    chart = (root / "docs" / "images" / "ratios.svg").read_text(encoding="utf-8")
    assert len(chart) < 100_000
    for ratio in report.ratios():
        assert f">{'&gt; ' if ratio.bound else ''}{report.shown(ratio.times)}</text>" in chart


def test_the_chart_is_the_same_each_time(report: ModuleType) -> None:
    found = report.ratios()
    assert report.chart(found) == report.chart(found)


def test_the_latest_row_of_a_case_counts_in_all_files_of_a_family(report: ModuleType, tmp_path: Path) -> None:
    write(tmp_path / "full_batch.csv", [full_batch("dgl", 3.0, 2), full_batch("default", 9.0, 1)])
    write(tmp_path / "full_batch-2.csv", [full_batch("dgl", 4.0, 3), full_batch("dgl", 5.0, 1)])
    write(tmp_path / "full_batch_other.csv", [full_batch("dgl", 6.0, 9)])
    found = list(report.read_epochs(tmp_path, report.EPOCHS[:1]))
    assert {ratio.peer: ratio.times for ratio in found} == {"PyTorch Geometric": 9.0, "DGL": 4.0}


def test_a_lower_bound_is_marked(report: ModuleType, tmp_path: Path) -> None:
    write(tmp_path / "full_batch.csv", [full_batch("dgl", 30.0, 2, "no epoch in 40 s, a lower bound")])
    text = report.table(list(report.read_epochs(tmp_path, report.EPOCHS[:1])))
    assert "| > 30 |" in text and "2 k nodes, 1.5 M edges" in text


def test_two_machines_are_told_apart(report: ModuleType, tmp_path: Path) -> None:
    other = {**full_batch("default", 9.0, 1), "processor": "another"}
    write(tmp_path / "full_batch.csv", [full_batch("dgl", 3.0, 2), other])
    text = report.table(list(report.read_epochs(tmp_path, report.EPOCHS[:1])))
    assert "2026-01-01 b to 2026-01-02 a" in text or "2026-01-01 a to 2026-01-02 b" in text
    assert "a some" in text or "b some" in text


def test_a_peer_that_did_not_run_has_no_line(report: ModuleType, tmp_path: Path) -> None:
    row = {"twin": "toy", "scale": "1.0", "fanouts": "5 5", "batch_size": "8", "num_nodes": 10, "num_edges": 20}
    row |= {"time": "2026-01-01", "note": "", **STAMP}
    rows = [
        {**row, "system": "each", "times_slower": "1.0", "peak_mib": "10"},
        {**row, "system": "dgl", "times_slower": "4.0", "peak_mib": "25"},
        {**row, "system": "pyg", "times_slower": "", "peak_mib": ""},
    ]
    write(tmp_path / "neighbor_sampling.csv", rows)
    found = list(report.read_batches(tmp_path, report.BATCHES[:1]))
    assert [(ratio.peer, ratio.times, ratio.memory) for ratio in found] == [("DGL", 4.0, 2.5)]


def test_a_peer_on_a_device_is_compared_within_its_run(report: ModuleType, tmp_path: Path) -> None:
    row = {"case": "gat", "data": "toy", "scale": "1.0", "edges": 2_500_000, "device": "a GPU", "note": "", **STAMP}
    rows = [
        {**row, "system": system, "ms": ms, "mb": mb, "time": f"2026-01-0{day}"}
        for system, ms, mb, day in (
            ("graphweft", 9.0, 1, 1), ("graphweft", 2.0, 100, 2), ("graphweft, own loop", 4.0, 50, 2),
            ("pyg edges", 9.0, 400, 2), ("pyg csr", 5.0, 150, 2),
        )
    ]  # fmt: skip
    write(tmp_path / "device_epochs.csv", rows)
    found = list(report.read_devices(tmp_path))
    assert [(r.peer, r.times, r.memory) for r in found] == [("PyTorch Geometric", 4.5, 4.0), ("CSR by hand", 2.5, 1.5)]
    assert "GAT 2 x 64, 8 heads, toy (2.5 M edges)" in report.table(found) and "a GPU" in report.table(found)


def test_a_readme_without_markers_is_refused(report: ModuleType) -> None:
    with pytest.raises(ValueError, match="once each and in this order"):
        report.insert("text", "new")


def test_the_benchmarks_readme_names_every_script_and_result_file(root: Path) -> None:
    folder = root / "benchmarks"
    text = (folder / "README.md").read_text(encoding="utf-8")
    scripts = [
        f for f in folder.glob("*/*.py") if "__main__" in f.read_text(encoding="utf-8") and "worker" not in f.name
    ]
    missing = [str(f.relative_to(folder)) for f in scripts if f"`{f.parent.name}/{f.name}`" not in text]
    families = {f.stem.rstrip("0123456789").rstrip("-") for f in (folder / "results").glob("*.csv")}
    missing += [family for family in families if f"`{family}.csv`" not in text]
    assert scripts and not missing
