"""A store that is trained on with all of it in memory: what is refused before it is read, and trains with the least."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import graphweft as gw
from graphweft.cli import main
from graphweft.data import stored


def test_a_budget_that_reading_uses_up_names_a_least_that_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = gw.synthetic("default", scale=0.3, seed=0)
    ds = replace(found, x=torch.randn(found.num_nodes, 1024, generator=torch.Generator().manual_seed(0)))
    store = gw.macro.prepare_store(ds, tmp_path / "store", parts=4, method="hash")
    command = [
        "train",
        "--data",
        str(store.path),
        "--mode",
        "full",
        "--model",
        "sage",
        "--hidden",
        "8",
        "--layers",
        "2",
    ]
    command += ["--quiet", "--epochs", "2", "--out", str(tmp_path / "run"), "--memory"]
    with monkeypatch.context() as patched:
        patched.setattr(stored, "read_edges", None)  # the store is not read
        assert main([*command, str(store.nbytes // 2)]) == 2
    words = capsys.readouterr().err
    assert words.count("\n") == 1 and "this run (program " in words
    least = re.search(r"expected at least (\d+) MB for this run", words)
    assert least is not None and 10**6 * int(least[1]) > store.nbytes
    assert main([*command, f"{least[1]}MB"]) == 0
