"""More parts than nodes are refused where a part without nodes is of no use."""

from __future__ import annotations

from pathlib import Path

import pytest

import graphweft as gw
from graphweft import cli

SMALL = ["--data", "cora", "--scale", "0.05"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["partition", *SMALL, "--parts", "1000"], "parts: expected at most one for each of the 135 nodes, got 1,000"),
        (["partition", *SMALL, "--parts", "136"], "parts: expected at most one for each of the 135 nodes, got 136"),
        (
            ["train", *SMALL, "--mode", "macro", "--macro", "parts:2/1000", "--epochs", "1"],
            "macro: parts: expected at most one for each of the 135 nodes, got 1,000",
        ),
        (
            ["train", *SMALL, "--mode", "mini", "--macro", "parts:2/1000", "--epochs", "1"],
            "macro: parts: expected at most one for each of the 135 nodes, got 1,000",
        ),
        (
            ["explain", *SMALL, "--mode", "macro", "--macro", "parts:2/1000"],
            "macro: parts: expected at most one for each of the 135 nodes, got 1,000",
        ),
    ],
)
def test_more_parts_than_nodes(
    words: list[str],
    expected: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == 2
    assert expected in capsys.readouterr().err


def test_a_part_for_every_node(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["partition", *SMALL, "--parts", "135", "--method", "random", "--json"]) == 0
    assert '"parts": 135' in capsys.readouterr().out
    assert gw.partition(gw.Graph([0], [1]), 5).k == 5  # some of which are empty
