"""Runs beside each other: several seeds, a grid of options, and their picture; wrong use is one line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import graphweft as gw
from graphweft.cli import main
from graphweft.commands import sweeping

SMALL = ["--data", "cora", "--scale", "0.05", "--hidden", "4", "--epochs", "3", "--quiet"]


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads_restored: None) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_several_seeds_have_the_numbers_of_single_runs(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(told(capsys, "train", *SMALL, "--seed", "4", "--seeds", "3", "--out", "many", "--json"))
    single = json.loads(told(capsys, "train", *SMALL, "--seed", "5", "--out", "one", "--json"))
    assert found["seeds"] == [4, 5, 6] and found["runs"][1]["loss"] == single["loss"]
    assert json.loads(Path("many/summary.json").read_text())["mean"] == found["mean"]
    for name in ("loss", "test_acc", "best_val_acc", "test_acc_at_best_val"):
        values = [one[name] for one in found["runs"]]
        assert found["mean"][name] == pytest.approx(np.mean(values))
        assert found["deviation"][name] == pytest.approx(np.std(values, ddof=1))
    assert not {"seed", "threads", "num_nodes"} & set(found["mean"])
    assert (Path("many/seed-5/last.pt").is_file(), gw.load_run("many/seed-5").options["seed"]) == (True, 5)
    table = told(capsys, "train", *SMALL, "--seed", "4", "--seeds", "3", "--out", "many", "--resume").splitlines()
    mean, deviation = (100 * found[name]["test_acc_at_best_val"] for name in ("mean", "deviation"))
    assert table[0] == "synthetic:cora@0.05, gcn: 3 seeds" and f"{mean:.1f} ± {deviation:.1f} %" in table[5]
    assert not Path("many/seed-4/earlier-1").exists()


GRID = ["--grid", "lr=0.1,0.001", "--grid", "residual=true,false", "--out", "grid"]


def test_a_sweep_trains_every_combination_once(
    inside: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = told(capsys, "sweep", *SMALL, *GRID, "--seeds", "2")
    with Path("grid/table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8 and {(row["lr"], row["residual"], row["seed"]) for row in rows} == {
        (lr, residual, seed) for lr in ("0.1", "0.001") for residual in ("True", "False") for seed in "01"
    }
    assert len(text.splitlines()) == 6 and text.splitlines()[0].split()[:2] == ["lr", "residual"]
    for row in rows:
        summary = json.loads((Path(row["folder"]) / "summary.json").read_text())
        assert float(row["best_val_acc"]) == summary["best_val_acc"]
        assert gw.load_run(row["folder"]).options["lr"] == float(row["lr"])
    found = json.loads(told(capsys, "sweep", *SMALL, *GRID, "--json"))["rows"]  # the first seed alone
    scores = [row["mean"]["best_val_acc"] for row in found]
    assert scores == sorted(scores, reverse=True) and all(row["deviation"]["loss"] is None for row in found)
    done: list[int] = []
    again = sweeping.run
    monkeypatch.setattr(sweeping, "run", lambda spec: done.append(spec.epochs) or again(spec))
    assert told(capsys, "sweep", *SMALL, *GRID, "--seeds", "2") == text and not done
    whole = gw.load_run("grid/lr=0.1,residual=True/seed-0").history["loss"]
    Path("grid/lr=0.1,residual=True/seed-0/last.pt").unlink()
    told(capsys, "sweep", *SMALL, *GRID, "--seeds", "2")
    assert len(done) == 1 and gw.load_run("grid/lr=0.1,residual=True/seed-0").history["loss"] == whole
    more = ["--epochs", "4"]
    assert told(capsys, "sweep", *SMALL, *GRID, *more) and len(done) == 5
    assert len(gw.load_run("grid/lr=0.001,residual=False/seed-0").history) == 4


def test_a_run_that_fails_leaves_the_others(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rates = ["--grid", "lr=0.01,1e30", "--optimizer", "sgd"]
    text = told(capsys, "sweep", *SMALL, *rates)
    assert "failed: lr=1e+30 seed 0: " in text and "1e+30  -" in text
    assert "finite" in refused(capsys, "sweep", *SMALL, "--grid", "lr=1e30,1e31", "--optimizer", "sgd", "--out", "no")


def test_rows_are_ranked_by_what_best_names() -> None:
    def row(name: str, best: str | None, **numbers: float) -> sweeping.Row:
        runs = [{"metric": "RMSE" if "best_val_rmse" in numbers else "accuracy", "seed": 0, "out": "x", **numbers}]
        return sweeping.Row({"model": name}, Path("x"), best, runs)

    rows = [row("a", "f1_macro", best_val_acc=0.9, best_val_f1_macro=0.2), row("b", "f1_macro", best_val_acc=0.1)]
    rows[1].runs[0]["best_val_f1_macro"] = 0.3
    assert [r.options["model"] for r in sorted(rows, key=sweeping.rank)] == ["b", "a"]
    errors = [
        row("a", None, best_val_rmse=2.0),
        row("b", None, best_val_rmse=1.0),
        sweeping.Row({"model": "c"}, Path()),
    ]
    assert [r.options["model"] for r in sorted(errors, key=sweeping.rank)] == ["b", "a", "c"]


def test_runs_are_drawn_and_listed(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, "train", *SMALL, "--seeds", "2", "--out", "runs/a")
    told(capsys, "train", *SMALL, "--seed", "0", "--out", "runs/a/seed-0")  # the first one moves to earlier-1
    Path("runs/table.csv").write_text("no run")
    lines = told(capsys, "plot", "runs/a", "runs/table.csv", "--out", "x.svg").splitlines()
    assert [line.split()[0] for line in lines] == ["run", "seed-0", "seed-1", "drawn"]
    text = Path("x.svg").read_text()
    assert text.startswith("<?xml") and text.count("<path") > 10
    found = json.loads(told(capsys, "plot", "runs/a/seed-1", "--json"))
    summary = json.loads(Path("runs/a/seed-1/summary.json").read_text())
    assert found["runs"][0]["test"] == summary["test_acc_at_best_val"] and found["metric"] == "accuracy"
    assert Path("plot.png").read_bytes().startswith(b"\x89PNG")
    folder = Path("runs/a/seed-1")
    figure = gw.load_run(folder).history.plot()
    assert figure.axes[0].get_legend() is not None and len(figure.axes[1].lines) >= 3
    gw.load_run(folder).history.plot("h.pdf")
    assert Path("h.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["sweep"], "--grid"),
        (["sweep", "--grid", "lr"], "expected NAME=VALUE,VALUE,..., as lr=0.01,0.005, got 'lr'"),
        (["sweep", "--grid", "rate=1,2"], "expected an option of train, as lr, hidden or model, got 'rate'"),
        (["sweep", "--grid", "seed=1,2"], "expected an option of a run, got seed; --seeds N is for it"),
        (["sweep", "--grid", "lr=0.1,x"], "--lr: expected a number, got 'x'"),
        (["sweep", "--grid", "lr=0.1,0.10"], "expected different values of lr, got 0.1,0.10"),
        (["sweep", "--grid", "lr=0.1", "--lr", "0.2"], "expected lr once, got it in --grid and as --lr"),
        (["sweep", "--grid", "residual=maybe"], "--residual: expected true or false, got 'maybe'"),
        (["sweep", "--grid", "model=gat", "--grid", "hidden=12", *SMALL[:4]], "a width that 8 heads divide, got 12"),
        (["sweep", "--grid", "lr=0.1", "--seeds", "0"], "--seeds: expected an integer from 1 to 1000000, got 0"),
        (["train", "--seeds", "x"], "--seeds: expected an integer, got 'x'"),
        (["train", "--seeds", "2", "--ranks", "2"], "--seeds 2 cannot be combined with --ranks 2; leave one out"),
        (["plot", "none"], "none: expected the folder of a run, with last.pt in it, got none"),
        (["plot", "none", "--out", "x.txt"], "--out: expected a file name ending in .png, .svg or .pdf, got 'x.txt'"),
    ],
)
def test_wrong_use_is_one_line(
    inside: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    assert line in refused(capsys, *arguments)
