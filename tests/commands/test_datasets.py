"""The commands that show datasets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fraud import write_fraud

import graphweft as gw
from graphweft.cli import main

TABLES = "--nodes users.csv --edges transfers.csv --id user --source sender --target receiver --label fraud"


def test_inspect_shows_what_python_finds(tmp_path, monkeypatch, capsys) -> None:
    write_fraud(tmp_path)
    monkeypatch.chdir(tmp_path)
    roles = {"id": "user", "source": "sender", "target": "receiver", "label": "fraud"}
    found = gw.inspect(gw.Dataset.from_tables("users.csv", "transfers.csv", **roles))
    assert main(["inspect", *TABLES.split(), "--plot", "look.svg"]) == 0
    assert capsys.readouterr().out.splitlines() == [*found.lines(), "drawn in look.svg"]
    assert b"<svg" in Path("look.svg").read_bytes()[:1000]
    assert main(["inspect", *TABLES.split(), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found.to_dict()
    assert main(["inspect", "cora", "--scale", "0.1"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "synthetic:cora@0.1"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["inspect"], "DATA: expected the name or path of a dataset, or --nodes and --edges, got none"),
        (["inspect", "coora"], "coora: expected a known name or an existing path, got neither; did you mean cora?"),
        (
            ["inspect", "cora", "--scale", "0.1", "--plot", "x.bmp"],
            "plot: expected a file name ending in .png, .svg or",
        ),
    ],
)
def test_wrong_use_is_one_line(arguments, line, capsys) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert line in error and error.count("\n") == 1


def test_data_lists_names_and_what_is_at_hand(shared_data, capsys) -> None:
    assert main(["data", "--root", str(shared_data)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "task", "graphs", "nodes", "edges", "features", "classes", "at", "hand"]
    (cora,) = [line for line in lines if line.startswith("cora ")]
    assert cora.split()[:7] == ["cora", "nodes", "1", "2,708", "10,556", "1,433", "7"] and "ind.cora" in cora
    assert any(line.startswith("reddit ") and line.endswith("by hand") for line in lines)
    assert main(["data", "--json"]) == 0
    assert {one["name"] for one in json.loads(capsys.readouterr().out)} >= {"cora", "reddit", "enzymes"}
