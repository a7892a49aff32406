"""``graphweft train --mode mini --macro ...``: learns, reports, resumes with the same tensors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from graphweft import cli


def flags(out: Path, epochs: int, *more: str) -> list[str]:
    size = ["--data", "cora", "--scale", "0.2", "--model", "sage", "--layers", "2", "--hidden", "8", "--mode", "mini"]
    given = ["--fanouts", "5,5", "--batch-size", "10", "--epochs", str(epochs), "--out", str(out)]
    return ["train", *size, *given, "--seed", "1", "--quiet", *more]


@pytest.mark.parametrize("macro", ["large:1/3", "parts:2/8"])
def test_a_resumed_run_ends_with_the_same_tensors(macro, tmp_path) -> None:
    more = ("--macro", macro, "--quality", "0.1", "--accumulate", "2")
    assert cli.main(flags(tmp_path / "one", 4, *more)) == 0
    assert cli.main(flags(tmp_path / "two", 2, *more)) == 0
    assert cli.main(flags(tmp_path / "two", 4, *more, "--resume")) == 0
    one, two = (torch.load(tmp_path / name / "last.pt", weights_only=True) for name in ("one", "two"))
    assert all(torch.equal(one["model"][name], two["model"][name]) for name in one["model"])
    lines = (tmp_path / "two" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 4 and all(json.loads(line)["gradient_error"] > 0 for line in lines)


@pytest.mark.parametrize(
    "more", [["--macro", "large"], ["--quality", "0.1"], ["--macro", "parts:1/4", "--quality", "0"]]
)
def test_bad_flags_are_status_2_and_one_line(more, tmp_path, capsys) -> None:
    assert cli.main(flags(tmp_path, 1, *more)) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
