"""The command line: exit status, one line for every bad input, and what goes to which stream."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from graphweft import cli
from graphweft._errors import NativeError

SMALL = ["--data", "cora", "--scale", "0.05", "--epochs", "3", "--threads", "1"]


def _npz(path: Path, **changes: Any) -> Path:
    """A graph of six nodes in the .npz form; None leaves a key out."""
    content: dict[str, Any] = {
        "edge_index": np.array([[0, 1, 2, 3, 4, 5], [1, 0, 3, 2, 5, 4]]),
        "x": np.eye(6, dtype=np.float32),
        "y": np.array([0, 0, 1, 1, 0, 1]),
        **changes,
    }
    np.savez(path, **{name: value for name, value in content.items() if value is not None})
    return path


def _fails(capsys: pytest.CaptureFixture[str], *arguments: str | Path, status: int = 2) -> str:
    """The one line on standard error of a call that must fail."""
    assert cli.main([str(a) for a in arguments]) == status
    out, err = capsys.readouterr()
    assert out == "" and err.endswith("\n") and err.count("\n") == 1, (out, err)
    assert "Traceback" not in err
    return err.rstrip("\n")


BAD_FLAGS = [
    ("--data", ""), ("--data", "no-such-set"), ("--data", "x" * 300),
    ("--data", "/no/such/file.npz"), ("--data", "/dev/null"),
    ("--data", "/"), ("--root", ""), ("--scale", "0"), ("--scale", "x"), ("--scale", "nan"), ("--model", "mlp"),
    ("--layers", "0"), ("--layers", "1.5"), ("--layers", ""), ("--hidden", "-1"), ("--hidden", "1e3"),
    ("--epochs", "-3"), ("--epochs", "0"),
    ("--epochs", "many"), ("--epochs", "9" * 30), ("--lr", "nan"), ("--lr", "inf"), ("--lr", "-0.1"), ("--lr", "0"),
    ("--lr", "fast"), ("--lr", "1e999"), ("--optimizer", "lion"), ("--dropout", "1"), ("--dropout", "-0.5"),
    ("--dropout", "half"), ("--scheduler", "exponential:inf"),
    ("--scheduler", "step:3:nan"), ("--weight-decay", "-1"), ("--weight-decay", "x"), ("--weight-decay-on", "some"),
    ("--normalize", "column"), ("--norm", "group"), ("--reduce", "median"), ("--mode", "partial"), ("--mode", "macro"),
    ("--mode", "quick"), ("--seed", "-1"), ("--seed", "1.0"), ("--seed", str(2**70)), ("--threads", "-1"),
    ("--threads", "two"), ("--threads", "1000000"), ("--patience", "-1"), ("--eval-every", "0"), ("--out", ""),
    ("--out", "/dev/null"), ("--out", "/proc/run"), ("--out", "/dev/null/deeper"),
]  # fmt: skip


@pytest.mark.parametrize(("flag", "value"), BAD_FLAGS, ids=[f"{flag}={value}"[:40] for flag, value in BAD_FLAGS])
def test_a_bad_value_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: str, value: str
) -> None:
    monkeypatch.chdir(tmp_path)
    others = [] if flag == "--data" else SMALL
    line = _fails(capsys, "train", *others, flag, value)
    assert line.startswith("graphweft train: ")
    assert "expected" in line or "No such" in line, line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["tarin"], ["train", "--epoks", "3"], ["train", "--epochs"], ["train", "cora"], ["train", "--json=yes"],
        ["--json"], ["train", "-x"], ["train", "--", "y"], ["doctor", "now"], ["explain", "--epochs", "3"],
        ["explain", "--model", "mlp"], ["explain", "--data", "/no/such"], ["explain", "--hidden", "900000000"],
        ["bench", "--rounds", "0"], ["bench", "--epochs", "x"], ["bench", "--model", "mlp"], ["bench", "--lr", "-1"],
        ["bench", "--out", "/dev/null/x.csv"], ["bench", "--layers", "none"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_bad_argument_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert _fails(capsys, *arguments).startswith("graphweft")


BAD_FILES: dict[str, Any] = {
    "empty": lambda p: p.write_bytes(b""),
    "noise": lambda p: p.write_bytes(bytes(range(256)) * 20),
    "half a zip": lambda p: p.write_bytes(_npz(p.with_suffix(".x.npz")).read_bytes()[:400]),
    "no labels": lambda p: _npz(p, y=None),
    "short labels": lambda p: _npz(p, y=np.array([0, 1])),
    "unlabelled": lambda p: _npz(p, y=np.full(6, -1)),
    "no training label": lambda p: _npz(p, y=np.array([-1, 0, 1, 1, 0, 1]), **_masks([0], [1, 2], [3, 4])),
    "short mask": lambda p: _npz(p, **{**_masks([0], [1], [2]), "train_mask": np.ones(4, dtype=bool)}),
    "ids out of range": lambda p: _npz(p, edge_index=np.array([[0, 1], [1, 66]])),
    "negative ids": lambda p: _npz(p, edge_index=np.array([[0, 1], [1, -1]])),
    "short features": lambda p: _npz(p, x=np.eye(4, dtype=np.float32)),
    "nan features": lambda p: _npz(p, x=np.full((6, 6), np.nan, dtype=np.float32)),
    "objects": lambda p: _npz(p, x=np.array([{}] * 6, dtype=object)),
    "fifo": lambda p: os.mkfifo(p),
    "empty folder": lambda p: p.mkdir(),
    "dangling link": lambda p: p.symlink_to("nowhere"),
}


def _masks(train: list[int], val: list[int], test: list[int]) -> dict[str, Any]:
    made = {}
    for name, idx in (("train", train), ("val", val), ("test", test)):
        made[f"{name}_mask"] = np.isin(np.arange(6), idx)
    return made


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_bad_file_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str) -> None:
    path = tmp_path / "graph.npz"
    BAD_FILES[kind](path)
    start = time.monotonic()
    line = _fails(capsys, "train", "--data", path, "--epochs", "1", "--out", tmp_path / "out")
    assert line.startswith("graphweft train: ") and "graph" in line and "expected" in line, line
    assert time.monotonic() - start < 20
    assert not (tmp_path / "out").exists()


def test_a_model_larger_than_the_machine(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = _fails(capsys, "train", *SMALL, "--hidden", "900000000", "--out", tmp_path / "out")
    assert line.startswith("graphweft train: --hidden: expected a model that fits") and "GiB" in line


def test_json_is_the_last_line_and_progress_goes_to_stderr(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["train", *SMALL, "--out", str(tmp_path / "run"), "--json"]) == 0
    out, err = capsys.readouterr()
    summary = json.loads(out.splitlines()[-1], parse_constant=pytest.fail)
    assert out.count("\n") == 1 and "epoch 3/3" in err
    needed = {
        "dataset", "model", "mode", "num_nodes", "num_edges", "num_features", "num_classes", "epochs",
        "prepare_seconds", "epoch_seconds_median", "peak_rss_mb", "feature_path", "train_acc", "val_acc", "test_acc",
        "test_acc_at_best_val",
    }  # fmt: skip
    assert needed <= summary.keys()
    assert summary["epochs"] == 3 and summary["mode"] == "full" and summary["threads"] == 1
    names = {file.name for file in (tmp_path / "run").iterdir()}
    assert {"last.pt", "best.pt", "metrics.jsonl", "summary.json", "curves.png"} <= names


def test_without_json_the_answer_is_for_people(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["train", *SMALL, "--out", str(tmp_path / "run"), "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "synthetic:cora@0.05: 135 nodes" in out and f"in {tmp_path / 'run'}: best.pt" in out


def test_the_last_of_a_repeated_flag_wins(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flags = ["--epochs", "9", "--epochs", "bad", "--epochs", "2", "--json", "--no-json", "--json", "--model", "gin"]
    assert cli.main(["train", *SMALL, *flags, "--model", "sage", "--out", str(tmp_path / "run"), "--quiet"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["epochs"], summary["model"]) == (2, "sage")


def test_resume_takes_what_is_not_given_from_the_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "run"), "--quiet", "--json"]
    assert cli.main(["train", *SMALL, "--hidden", "8", "--layers", "3", *out]) == 0
    assert cli.main(["train", "--resume", "--epochs", "5", *out]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (summary["hidden"], summary["layers"], summary["epochs"]) == (8, 3, 5)
    assert (summary["dataset"], summary["resumed_after_epoch"]) == ("synthetic:cora@0.05", 3)


@pytest.mark.parametrize("options", [{"hops": 3, "alpha": 0.2}, {"precision": "bf16"}, {"edge_data": "ignore"}])
def test_resume_takes_options_of_some_models_from_the_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, options: dict[str, Any]
) -> None:
    out = ["--out", str(tmp_path / "run"), "--quiet", "--json"]
    flags = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    assert cli.main(["train", *SMALL, "--model", "appnp", *flags, *out]) == 0
    assert cli.main(["train", "--resume", "--epochs", "5", *out]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["resumed_after_epoch"] == 3
    saved = torch.load(tmp_path / "run" / "last.pt", weights_only=True)["config"]
    assert {name: saved[name] for name in options} == options


@pytest.mark.parametrize("flags", [["--hidden", "16"], ["--seed", "4"], ["--data", "citeseer"], ["--model", "sage"]])
def test_resume_of_another_configuration(capsys: pytest.CaptureFixture[str], tmp_path: Path, flags: list[str]) -> None:
    out = ["--out", str(tmp_path / "run"), "--quiet"]
    assert cli.main(["train", *SMALL, *out]) == 0
    capsys.readouterr()
    line = _fails(capsys, "train", *SMALL, *flags, *out, "--resume")
    assert "resume: expected" in line and flags[0].strip("-") in line and flags[1] in line


def test_resume_from_a_damaged_checkpoint(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = ["--out", str(tmp_path), "--quiet"]
    assert cli.main(["train", *SMALL, *out]) == 0
    capsys.readouterr()
    (tmp_path / "last.pt").write_bytes(b"PK\x03\x04 nothing")
    assert "last.pt: expected a whole checkpoint" in _fails(capsys, "train", *SMALL, *out, "--resume")


def test_explain_tells_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "--data", "cora", "--scale", "0.05", "--layers", "3", "--model", "sage"]) == 0
    out, err = capsys.readouterr()
    assert err == "" and out.startswith("SAGE on 135 nodes") and "-- prediction --" in out
    assert "layers.2.neighbor_weight" in out and "kernels forward" in out.splitlines()[3] and "-- traced --" not in out


def test_explain_tells_the_batches_that_training_runs(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--data", "cora", "--scale", "0.05", "--model", "sage", "--mode", "mini"]
    assert cli.main(["explain", *flags, "--batch-size", "4", "--fanouts", "3,2"]) == 0
    out, err = capsys.readouterr()
    assert err == "" and "batches of 4 nodes" in out and "prepared for every batch" in out
    assert cli.main(["explain", *flags, "--full"]) == 0
    out, _ = capsys.readouterr()
    assert "-- traced --" in out and "sample(" in out


def test_bench_answers_with_a_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    flags = ["--scale", "0.02", "--hidden", "8", "--rounds", "2", "--epochs", "2", "--threads", "1"]
    assert cli.main(["bench", *flags, "--out", str(tmp_path / "rows.csv")]) == 0
    out, err = capsys.readouterr()
    assert err == "" and "graphweft" in out and "GCN 3 x 8" in out
    assert (tmp_path / "rows.csv").read_text().count("\n") == 4


def test_help_is_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        [],
        ["--help"],
        ["train", "--help"],
        ["train", "-h"],
        ["doctor", "--help"],
        ["bench", "--help"],
        ["--version"],
    ):
        assert cli.main(arguments) == 0
        out, err = capsys.readouterr()
        assert out and not err


def test_help_does_not_wait_for_torch(root: Path) -> None:
    code = (
        "import sys; from graphweft.cli import main; status = main(['train', '--help']); "
        "sys.exit(status or 9 * ('torch' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, check=False)
    assert done.returncode == 0


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("failure", "status", "words"),
    [
        (RuntimeError("two\nlines"), 1, "internal error, RuntimeError: two lines (GRAPHWEFT_DEBUG=1 shows where)"),
        (NativeError("core: broken"), 1, "internal error, NativeError: core: broken"),
        (MemoryError(), 1, "not enough memory; try a smaller --hidden"),
        (PermissionError(13, "Permission denied", "/x/y"), 2, "/x/y: Permission denied"),
        (OSError(28, "No space left on device"), 1, "graphweft train: No space left on device"),
        (KeyboardInterrupt(), 130, "stopped; the last checkpoint is kept"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_failure_is_one_line(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    failure: BaseException,
    status: int,
    words: str,
) -> None:
    def fail(*_: Any) -> Any:
        warnings.warn("something was odd", stacklevel=1)
        raise failure

    monkeypatch.setattr(cli, "_train", fail)
    assert words in _fails(capsys, "train", status=status)


def test_debug_shows_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHWEFT_DEBUG", "1")
    monkeypatch.setattr(cli, "_train", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["train"])


def test_warnings_are_one_line_each_and_said_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def warn(*_: Any) -> list[str]:
        for _ in range(3):
            warnings.warn("two\nlines", stacklevel=1)
        return ["done"]

    monkeypatch.setattr(cli, "_train", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert cli.main(["train"]) == 0
    out, err = capsys.readouterr()
    assert out == "done\n" and err == "graphweft: warning: UserWarning: two lines\n"


def _file_of(tmp_path: Path, **labels: object) -> Path:
    """A graph of 60 nodes with features and the given labels."""
    rng = np.random.default_rng(0)
    edges, x = rng.integers(0, 60, (2, 300)), rng.random((60, 4), dtype=np.float32)
    np.savez(tmp_path / "some.npz", edge_index=edges, x=x, num_nodes=60, **labels)  # type: ignore[arg-type]
    return tmp_path / "some.npz"


def test_values_are_trained_and_shown_as_values(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    y = np.random.default_rng(1).random((60, 2), dtype=np.float32) * 50
    file = _file_of(tmp_path, y=y, task=np.str_("regression"))
    flags = ["train", "--data", str(file), "--epochs", "3", "--threads", "1", "--lr", "0.1"]
    flags += ["--out", str(tmp_path / "run")]
    assert cli.main(flags) == 0
    out, err = capsys.readouterr()
    assert "2 values a node" in out and "RMSE of the last epoch: train " in out and "R2 of the last epoch" in out
    assert "accuracy" not in out and "RMSE  train " in err and "%" not in out
    assert cli.main([*flags, "--json", "--quiet"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["metric"] == "RMSE" and summary["train_acc"] is None and summary["constant_guess_acc"] is None
    assert (summary["test_r2_at_best_val"] < 0) is ("the mean of the test values, given to every row" in out)
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    best = min(records, key=lambda record: record["val_rmse"])
    assert (summary["best_val_rmse"], summary["test_rmse_at_best_val"]) == (best["val_rmse"], best["test_rmse"])
    assert summary["test_mae"] == records[-1]["test_mae"] and summary["val_rmse"] == records[-1]["val_rmse"]


def test_a_frequent_class_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    node, parts = np.arange(60), ("train", "val", "test")
    masks: dict[str, object] = {f"{part}_mask": node % 3 == i for i, part in enumerate(parts)}
    flags = ["train", "--data", str(tmp_path / "some.npz"), "--epochs", "3", "--threads", "1", "--quiet"]
    flags += ["--out", str(tmp_path / "run")]
    for every, share in ((10, 0.9), (2, 0.5)):
        _file_of(tmp_path, y=(node % every == 0).astype(np.int64), **masks)
        assert cli.main([*flags, "--json"]) == 0
        summary = json.loads(capsys.readouterr().out)
        assert summary["constant_guess_acc"] == share and 0 <= summary["test_auc"] <= 1
        assert cli.main(flags) == 0
        out = capsys.readouterr().out
        assert (
            "ROC AUC of the last epoch: train " in out and f"ROC AUC {100 * summary['test_auc_at_best_val']:.1f}" in out
        )
        told = f"the most frequent training class, given to every node, scores {100 * share:.1f} %" in out
        assert told is (share > 0.7)
