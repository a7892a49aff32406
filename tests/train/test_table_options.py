"""Options of runs on tables."""

from __future__ import annotations

import pytest

from graphweft._errors import ConfigError
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
