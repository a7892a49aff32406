"""``graphweft partition``."""

from __future__ import annotations

import json
import re
import tracemalloc

import numpy as np
import pytest

from graphweft import cli
from graphweft.commands import partition_run
from graphweft.graph.graph import Graph
from graphweft.partitioning.partition import partition, partition_bytes


def test_partition_answers_with_its_report(capsys, tmp_path) -> None:
    flags = ["--data", "cora", "--scale", "0.1", "--parts", "4", "--out", str(tmp_path / "parts.npz"), "--json"]
    assert cli.main(["partition", *flags]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["parts"] == 4 and report["method"] == "gap" and 0 <= report["cut_share"] <= 1
    with np.load(tmp_path / "parts.npz") as file:
        assert file["part"].shape == (report["num_nodes"],)


def test_the_most_memory_is_said_before_the_method_starts(capsys, monkeypatch) -> None:
    said: list[str] = []

    def watched(*given, **more):
        said.append(capsys.readouterr().err)
        return partition(*given, **more)

    monkeypatch.setattr(partition_run, "partition", watched)
    assert cli.main(["partition", "--data", "cora", "--scale", "0.1", "--method", "multilevel"]) == 0
    assert re.fullmatch(r"partition: multilevel takes up to [\d.]+ .?B beside the graph's [\d.]+ .?B\n", said[0])


def test_multilevel_takes_no_more_than_it_says() -> None:
    """NumPy's arrays, which are nearly all that it makes, as Python traces them."""
    draw = np.random.default_rng(0)
    nodes = 30_000
    src = draw.integers(0, nodes, 10 * nodes)
    graph = Graph(src, draw.integers(0, nodes, src.size), num_nodes=nodes).to_bidirected()
    assert graph.is_symmetric
    tracemalloc.start()
    partition(graph, 4, "multilevel")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < partition_bytes(graph, 4, "multilevel") < 4 * peak


@pytest.mark.parametrize("flags", [["--parts", "0"], ["--parts", "x"], ["--method", "best"], ["--passes", "0"]])
def test_bad_flags_are_status_2_and_one_line(flags, capsys) -> None:
    assert cli.main(["partition", "--data", "cora", "--scale", "0.1", *flags]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and flags[0][2:] in lines[0]
