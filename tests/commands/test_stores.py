"""The commands that make, check and train on stores."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from graphweft.cli import main


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 150)
    np.save(tmp_path / "edges.npy", rng.integers(0, 150, (2, 900)))
    np.save(tmp_path / "x.npy", (rng.normal(size=(150, 4)) + np.eye(3, 4)[y] * 3).astype(np.float32))
    np.save(tmp_path / "y.npy", y)
    monkeypatch.chdir(tmp_path)
    return tmp_path


FILES = ["--edge-file", "edges.npy", "--x-file", "x.npy", "--y-file", "y.npy"]
TRAIN = [
    "train",
    "--data",
    "store",
    "--mode",
    "macro",
    "--model",
    "sage",
    "--fanouts",
    "4,4",
    "--batch-size",
    "16",
    "--quiet",
]


def test_prepare_inspect_train_resume_and_predict(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", *FILES, "--parts", "6", "--memory", "64MB", "--out", "store", "--json"]) == 0
    told = capsys.readouterr()
    made = json.loads(told.out)
    assert (made["nodes"], made["edges"], made["features"], made["parts"], made["method"]) == (
        150,
        900,
        4,
        6,
        "multilevel",
    )
    assert "writing parts: 6 of 6" in told.err
    assert main(["inspect", "store", "--verify"]) == 0
    assert "verified" in capsys.readouterr().out
    assert main([*TRAIN, "--epochs", "2", "--memory", "64MB", "--macro", "parts:2/6", "--out", "run"]) == 0
    assert main([*TRAIN, "--epochs", "4", "--memory", "64MB", "--macro", "parts:2/6", "--out", "run", "--resume"]) == 0
    assert main([*TRAIN, "--epochs", "4", "--memory", "64MB", "--macro", "parts:2/6", "--out", "whole", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["mode"] == "macro"
    again = [json.loads(line)["loss"] for line in Path("run/metrics.jsonl").read_text().splitlines()]
    whole = [json.loads(line)["loss"] for line in Path("whole/metrics.jsonl").read_text().splitlines()]
    assert again == whole
    assert main(["predict", "run", "--out", "p.csv"]) == 0
    assert len(Path("p.csv").read_text().splitlines()) == 151
    assert main(["evaluate", "run", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert scores["accuracy"] == pytest.approx(summary["test_acc_at_best_val"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["prepare", "--out", "s"], "expected --data or --edge-file, got none"),
        (["prepare", *FILES], "--out: expected a folder for the store, got none"),
        (["prepare", *FILES, "--data", "cora", "--out", "s"], "expected --data or --edge-file, got both"),
        (["prepare", "--data", "cora", "--x-file", "x.npy", "--out", "s"], "expected a file of edges with --x-file"),
        (["prepare", "--data", "cora", "--bidirected", "--out", "s"], "expected a file of edges with --bidirected"),
        (["prepare", *FILES, "--root", ".", "--out", "s"], "--root: expected --data with it, got --edge-file"),
        (["prepare", *FILES, "--out", "s", "--parts", "x"], "--parts: expected an integer, got 'x'"),
        (["prepare", *FILES, "--out", "s", "--parts", "999"], "--parts: expected an integer from 1 to the 150 nodes"),
        (["prepare", *FILES, "--out", "s", "--memory", "1MB"], "--memory: expected at least"),
        (["prepare", *FILES, "--out", "s", "--method", "none.npz"], "none.npz: expected the part of every node"),
        (["inspect", "none", "--verify"], "none: expected a store with manifest.json"),
        (["train", "--scale", "0.1", "--memory", "1MB"], ", got 1 MB"),
        (["train", "--memory", "lots"], "--memory: expected a size such as 8GB or 512MB, got 'lots'"),
        (["train", "--task", "link", "--memory", "1GB"], "--memory 1GB cannot be combined with --task link"),
        (["train", "--mode", "macro", "--macro", "large:1/8"], "--macro: expected parts:A/B with mode macro"),
        (["train", "--mode", "macro", "--model", "rgcn"], "--mode: expected full or mini for RGCN and data in memory"),
    ],
)
def test_bad_arguments_are_one_line(
    arguments: list[str], words: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    line = capsys.readouterr().err.strip().splitlines()
    assert words in line[-1]


@pytest.mark.own_process
def test_a_budget_that_reading_uses_up_names_no_least(capsys: pytest.CaptureFixture[str]) -> None:
    """Planning names one, which trains."""
    assert main(["train", "--memory", "1MB", "--quiet"]) == 2
    told = capsys.readouterr().err.strip().splitlines()[-1]
    assert re.search(
        r"--memory: expected more than the \d+ MB that are taken before this run is planned, got 1 MB", told
    )
    assert main(["plan", "--memory", "1MB"]) == 2
    least = re.search(r"expected at least (\d+) MB for this run", capsys.readouterr().err)
    assert least is not None
    assert main(["train", "--memory", f"{least[1]}MB", "--epochs", "2", "--quiet"]) == 0


def test_options_that_do_not_fit_a_store_are_one_line(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", *FILES, "--parts", "4", "--out", "store", "--quiet"]) == 0
    for more, words in (
        (["--memory", "10KB"], "--memory: expected at least"),
        (["--macro", "parts:2/8"], "--macro: expected parts:B/4 for a store of 4 parts, got parts:2/8"),
        (["--normalize", "row"], "--normalize: expected none with a store"),
        (["--sampler", "saint-node"], " cannot be combined with --sampler saint-node"),
    ):
        assert main([*TRAIN, *more, "--out", "bad"]) == 2
        assert words in capsys.readouterr().err
