"""Errors name options as the command line has them, and as Python has them in Python."""

from __future__ import annotations

import pytest

from graphweft._errors import ConfigError
from graphweft.cli import main
from graphweft.commands.flags import as_typed
from graphweft.train.spec import TrainSpec

FLAGS = {
    "mode": "--mode",
    "macro": "--macro",
    "accumulate": "--accumulate",
    "data": "--data",
    "nodes": "--nodes",
    "fanouts": "--fanouts",
    "train_eps": "--train-eps",
    "sampler": "--sampler",
}


@pytest.mark.parametrize(
    ("line", "typed"),
    [
        ("mode='mini' cannot be combined with macro", "--mode mini cannot be combined with --macro"),
        ("nodes and data cannot be combined with mode=full", "--nodes and --data cannot be combined with --mode full"),
        (
            "task=x cannot be combined with macro, accumulate or sampler",
            "task=x cannot be combined with --macro, --accumulate or --sampler",
        ),
        ("fanouts=(3, 2) cannot be combined with hops", "--fanouts 3,2 cannot be combined with hops"),
        ("train_eps=True cannot be combined with mode=a; b", "--train-eps cannot be combined with --mode a; b"),
        ("data='a b' cannot be combined with x, got mode=y", "--data 'a b' cannot be combined with x, got --mode y"),
        ("fanouts: expected 2 numbers", "--fanouts: expected 2 numbers"),
    ],
)
def test_options_become_flags(line: str, typed: str) -> None:
    assert as_typed(line, FLAGS) == typed


@pytest.mark.parametrize(
    "line",
    [
        "hops=2 cannot be combined with data in memory",
        "hops=2 cannot be combined with a sampler object",
        "hops=2 cannot be combined with macro and a store",
        "hops=2 cannot be combined with mode=None",
        "spec.toml:2:10: mode=mini cannot be combined with macro",
        "a store: gw.load(path, mode=mini) reads it",
        "a 'mode=mini' in a text",
        "expected NAME=VALUE, as mode=mini,full, got 'mode'",
        "mode=Mode(macro=1) and hops",
    ],
)
def test_other_words_stay(line: str) -> None:
    assert as_typed(line, FLAGS) == line


def test_python_keeps_its_spelling(capsys: pytest.CaptureFixture[str]) -> None:
    options = {"model": "gcn", "train_eps": True}
    with pytest.raises(ConfigError, match=r"^train_eps=True cannot be combined with model=gcn; it is for gin$"):
        TrainSpec(**options)
    assert main(["train", "--model", "gcn", "--train-eps"]) == 2
    line = "graphweft train: --train-eps cannot be combined with --model gcn; it is for gin\n"
    assert capsys.readouterr().err == line
