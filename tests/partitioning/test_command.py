"""``graphweft partition``."""

from __future__ import annotations

import json

import numpy as np
import pytest

from graphweft import cli


def test_partition_answers_with_its_report(capsys, tmp_path) -> None:
    flags = ["--data", "cora", "--scale", "0.1", "--parts", "4", "--out", str(tmp_path / "parts.npz"), "--json"]
    assert cli.main(["partition", *flags]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["parts"] == 4 and report["method"] == "gap" and 0 <= report["cut_share"] <= 1
    with np.load(tmp_path / "parts.npz") as file:
        assert file["part"].shape == (report["num_nodes"],)


@pytest.mark.parametrize("flags", [["--parts", "0"], ["--parts", "x"], ["--method", "best"], ["--passes", "0"]])
def test_bad_flags_are_status_2_and_one_line(flags, capsys) -> None:
    assert cli.main(["partition", "--data", "cora", "--scale", "0.1", *flags]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and flags[0][2:] in lines[0]
