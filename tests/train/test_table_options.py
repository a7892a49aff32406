"""Options of runs on tables."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from graphweft import cli
from graphweft._errors import ConfigError
from graphweft.run import complete
from graphweft.train.spec import TrainSpec

FILES = {"nodes": "users.csv", "edges": "transfers.csv"}


def test_tables_take_the_place_of_a_dataset() -> None:
    spec = TrainSpec(**FILES, label="a, b", drop="memo,,zip", id="user")
    arguments = spec.table_arguments()
    assert arguments["label"] == ("a", "b") and arguments["drop"] == ("memo", "zip") and arguments["categories"] == ()
    assert TrainSpec(**FILES, label="a").table_arguments()["label"] == "a"
    assert TrainSpec(**FILES).table_arguments()["label"] is None
    assert str(spec.folder) == "runs/users" and str(TrainSpec(edges="b.c/e.csv").folder) == "runs/e"


def test_only_what_was_said_is_kept() -> None:
    assert not {"nodes", "id", "max_categories"} & TrainSpec().identity().keys()
    found = TrainSpec(**FILES, bidirected=True).identity()
    assert {name: found[name] for name in (*FILES, "bidirected")} == {**FILES, "bidirected": True}
    assert "unknown_ids" not in found


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"id": "user"}, "id: expected tables with it"),
        ({"bidirected": True}, "bidirected: expected tables with it"),
        ({"nodes": "users.csv"}, "edges: expected the table of edges"),
        ({**FILES, "scale": 0.5}, "nodes and edges cannot be combined with scale"),
        ({**FILES, "data": "cora"}, "nodes and edges cannot be combined with data"),
        ({**FILES, "max_categories": 0}, "max_categories: expected an integer from 1"),
        ({**FILES, "unknown_ids": "x"}, "unknown_ids: expected one of error, drop"),
        ({"nodes": "", "edges": "e"}, "nodes: expected a text, not empty"),
    ],
)
def test_what_does_not_fit_is_one_line(given, line) -> None:
    with pytest.raises(ConfigError, match=line):
        TrainSpec(**given)


def _stars(folder: Path) -> list[str]:
    """Flags of two tables whose label is a whole number."""
    draw = np.random.default_rng(0)
    size = draw.normal(0, 1, 120)
    stars = np.rint(2 * size).astype(int)
    lines = [f"u{i},{s:.3f},{k}" for i, (s, k) in enumerate(zip(size, stars, strict=True))]
    (folder / "u.csv").write_text("\n".join(["user,size,stars", *lines]))
    ends = draw.integers(0, 120, (300, 2))
    (folder / "e.csv").write_text("\n".join(["source,target,kind", *(f"u{a},u{b},{int(a > b)}" for a, b in ends)]))
    return ["--nodes", str(folder / "u.csv"), "--edges", str(folder / "e.csv"), "--id", "user"]


def test_whole_numbers_are_values_where_the_task_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["train", *_stars(tmp_path), "--label", "stars", "--epochs", "30", "--quiet", "--threads", "1"]
    flags += ["--edge-data", "ignore", "--model", "sage", "--out", str(tmp_path / "run")]
    assert cli.main([*flags, "--task", "regression", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["metric"] == "RMSE" and summary["test_rmse_at_best_val"] < 1.5  # 2 is the deviation
    assert cli.main(["predict", str(tmp_path / "run"), "--out", str(tmp_path / "p.csv")]) == 0
    with (tmp_path / "p.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows[0].keys() == {"user", "prediction"} and len({row["prediction"] for row in rows}) > 60
    assert cli.main([*flags, "--label-task", "regression", "--resume", "--epochs", "31"]) == 0
    assert cli.main(["train", *_stars(tmp_path), "--label", "stars", "--task", "multilabel"]) == 2
    assert "expected several label columns for multilabel, got one" in capsys.readouterr().err


def test_the_task_of_edge_labels_may_be_said() -> None:
    spec = complete({**FILES, "edge_label": "amount", "task": "regression"})
    assert (spec.task, spec.label_task, spec.table_arguments()["task"]) == ("edge", "regression", "regression")
    with pytest.raises(ConfigError, match=r"task: expected nodes, and gw\.Dataset"):
        complete({"data": "cora", "task": "regression"})
