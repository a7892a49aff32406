"""``--help`` of commands with many options: each under one heading, and examples whose flags exist."""

from __future__ import annotations

import re
import shlex

import pytest
import typer

from graphweft.cli import app, main
from graphweft.commands.help import COMMANDS, GROUPS, SWEEP_EXAMPLES, TRAIN_EXAMPLES

HEADS = ("Data", "Tables", "Model", "Training", "Batches", "Machine", "Output")


def _help(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main([command, "--help"]) == 0
    return capsys.readouterr().out


def test_no_option_has_two_headings() -> None:
    names = [name for group in GROUPS.values() for name in group]
    assert len(names) == len(set(names)) and set(GROUPS) == set(HEADS)


@pytest.mark.parametrize("command", ["train", "sweep", "plan"])
def test_options_stand_under_headings(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = _help(command, capsys)
    places = [told.index(f"\n{head}:\n") for head in HEADS]
    assert places == sorted(places)
    for flag, head in (("--data", "Data"), ("--label", "Tables"), ("--hidden", "Model"), ("--lr", "Training"),
                       ("--fanouts", "Batches"), ("--threads", "Machine"), ("--json", "Output")):  # fmt: skip
        before = told[: told.index(f"  {flag} ")]
        assert max(HEADS, key=lambda name: before.rfind(f"\n{name}:\n")) == head
    flags = re.findall(r"^  (--[a-z-]+)", told[places[0] :], flags=re.MULTILINE)
    assert len(flags) == len(set(flags))


@pytest.mark.parametrize(("command", "text"), [("train", TRAIN_EXAMPLES), ("sweep", SWEEP_EXAMPLES)])
def test_three_examples_whose_flags_are_known(command: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = _help(command, capsys)
    lines = [line.strip() for line in text.splitlines() if "graphweft " in line]
    assert len(lines) == 3 and all(line in told for line in lines)
    for line in lines:
        words = shlex.split(line)
        assert words[:2] == ["graphweft", command]
        assert all(f"  {word} " in told for word in words if word.startswith("--"))


def test_every_command_is_listed_with_a_whole_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    listed = {name: line for commands in COMMANDS.values() for name, line in commands.items()}
    assert set(listed) == set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    lines = [line.strip() for line in text.splitlines()]
    assert all(
        any(line.split()[:1] == [name] and line.endswith(said) for line in lines) for name, said in listed.items()
    )
    assert "..." not in text.partition("Training:")[2]
