"""Losses, schedules, updates, metrics and loggers by flags of ``graphweft train``."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from run_files import assert_same_run

from graphweft.cli import main
from graphweft.data.synthetic import synthetic
from graphweft.loaded_run import load_run
from graphweft.nn.gcn import GCN
from graphweft.train.trainer import Trainer

DATA = ("--data", "cora", "--scale", "0.1", "--hidden", "8", "--threads", "1", "--quiet")
FLAGS = (
    *("--class-weight", "balanced", "--label-smoothing", "0.1", "--scheduler", "cosine", "--warmup", "2"),
    *("--clip", "0.5", "--clip-value", "0.1", "--ema", "0.9", "--metrics", "roc_auc,accuracy"),
    *("--best", "f1_macro", "--logger", "csv"),
)
OPTIONS: dict[str, Any] = {
    **{"class_weight": "balanced", "label_smoothing": 0.1, "scheduler": "cosine", "warmup": 2, "clip": 0.5},
    **{"clip_value": 0.1, "ema": 0.9, "metrics": ["roc_auc", "accuracy"], "best": "f1_macro"},
}


def _trained(out: Path, *more: str) -> int:
    return main(["train", *DATA, "--out", str(out), *more])


def test_flags_are_the_trainers_keywords(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _trained(tmp_path, "--epochs", "8", *FLAGS) == 0
    told = capsys.readouterr().out
    ds = synthetic("cora", scale=0.1, seed=0)
    torch.manual_seed(0)
    trainer = Trainer(GCN(ds.num_features, 8, ds.num_classes, num_layers=2), ds, **OPTIONS)
    history = trainer.fit(8)
    run = load_run(tmp_path)
    assert run.history["loss"] == history["loss"] and run.history["val_f1_macro"] == history["val_f1_macro"]
    assert run.history.best is not None and run.history.best.epoch == history.best.epoch  # type: ignore[union-attr]
    assert torch.equal(run.predict(), trainer.predict())
    assert all(name in told for name in ("f1_macro of the last epoch: ", "roc_auc of the last epoch: "))
    summary = json.loads((tmp_path / "summary.json").read_text())
    best = f"at the best validation f1_macro, {summary['best_val_f1_macro']:.4g} in epoch {summary['best_epoch']}"
    assert f"{best}: test accuracy {100 * summary['test_acc_at_best_val']:.1f} %" in told
    assert summary["best_val_f1_macro"] == history.best.metrics["val_f1_macro"]  # type: ignore[union-attr]
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 9


def test_a_resumed_command_takes_the_options_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    timed = ("--scheduler", "cosine:8", *(flag for flag in FLAGS if flag not in ("--scheduler", "cosine")))
    assert _trained(whole, "--epochs", "8", *timed) == 0
    assert _trained(parts, "--epochs", "3", *timed) == 0
    assert main(["train", "--out", str(parts), "--resume", "--epochs", "8", "--quiet", "--threads", "1"]) == 0
    assert (parts / "metrics.jsonl").read_text().count("\n") == 8
    assert_same_run(whole, parts)
    capsys.readouterr()
    assert main(["train", "--out", str(parts), "--resume", "--epochs", "9", "--ema", "0.5"]) == 2
    assert "--resume: expected ema 0.9 as in the run that" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (("--loss", "hinge"), "--loss: expected one of cross_entropy, "),
        (("--loss", "mse"), "--loss: expected one of cross_entropy, got 'mse'"),
        (("--class-weight", "1,a"), "--class-weight: expected balanced, or a number per class as 1,2.5, got '1,a'"),
        (("--class-weight", "1,2"), "--class-weight: expected 7 numbers >= 0, one per class, got 1, 2"),
        (("--scheduler", "step:0"), "--scheduler: expected cosine:EPOCHS, "),
        (("--metrics", "rmse"), "--metrics: expected one of accuracy, "),
        (("--best", "val_f1"), "--best: expected one of accuracy, loss, both, "),
        (("--best", "f1_macro", "--stop-on", "both"), "--stop-on both cannot be combined with --best f1_macro"),
        (("--clip", "x"), "--clip: expected a number, got 'x'"),
        (("--logger", "wandb"), "--logger: expected one of csv, tensorboard, got 'wandb'"),
    ],
)
def test_wrong_flags_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], line: str
) -> None:
    assert _trained(tmp_path, *flags) == 2
    told = capsys.readouterr().err
    assert line in told and told.count("\n") == 1


@pytest.mark.slow
def test_a_killed_command_with_a_schedule_and_averages_ends_with_the_same_tensors(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    command = ["train", "--data", "arxiv", "--scale", "0.02", "--model", "sage"]
    command += ["--mode", "mini", "--fanouts", "6,4", "--batch-size", "16", "--hidden", "16", "--epochs", "3"]
    command += ["--dropout", "0.2", "--quiet", *FLAGS]
    assert main([*command, "--out", str(whole)]) == 0
    started, last = [sys.executable, "-m", "graphweft", *command], killed / "last.pt"
    for wait in (0.0, 0.1, 0.2):
        before = last.stat().st_mtime if last.exists() else 0.0
        child = subprocess.Popen([*started, "--out", str(killed), "--resume"], stderr=subprocess.DEVNULL)
        begun = time.monotonic()
        while time.monotonic() - begun < 60 and child.poll() is None:
            if last.exists() and last.stat().st_mtime > before:
                break
            time.sleep(0.01)
        time.sleep(wait)
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert main([*command, "--out", str(killed), "--resume"]) == 0
    assert_same_run(whole, killed)
    assert load_run(killed).history["val_f1_macro"] == load_run(whole).history["val_f1_macro"]
