"""A few runs under random budgets; ``budgets.py`` runs as many as are asked for."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fuzz.budgets import MODELS, MODES, random_case

import graphweft as gw
from graphweft.runtime.rehearsal import taken_bytes
from graphweft.train.edge_data import EdgeData
from graphweft.train.needs_by_running import evaluation_run, run_bytes

FIRST = 0  # the cases from here on


def test_a_few_runs_keep_to_their_budgets() -> None:
    command = [sys.executable, "-m", "fuzz.budgets", "--count", "2", "--first", str(FIRST), "--seed", "0"]
    folder = Path(__file__).parents[1]
    places = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": places}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=300, env=environment, cwd=folder
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert re.search(r"2 cases, \d refused, 0 wrong", done.stdout)


def test_cases_cover_modes_and_models() -> None:
    draw = random.Random(0)
    cases = [random_case(draw) for _ in range(100)]
    assert {case["mode"] for case in cases} == set(MODES)
    assert {case["model"] for case in cases} == set(MODELS)
    assert {case["share"] < 1 for case in cases} == {True, False}


@pytest.mark.parametrize("room", [1 << 40, 150 << 20, 1])  # the whole graph is run, or parts, or one part
@pytest.mark.parametrize("stored", [1, 4])
def test_the_memory_of_code_that_only_running_shows_grows_with_nodes_and_edges(stored: int, room: int) -> None:
    """A model that holds so many rows of 64 numbers for every edge, and one for every node."""

    class Holds(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))

        def forward(self, graph: gw.Graph, x: torch.Tensor) -> torch.Tensor:
            rows = [torch.ones(graph.num_edges, 64) * self.weight for _ in range(stored)]
            return x * self.weight + sum(r.sum() for r in rows)

    ds = gw.synthetic("arxiv", scale=0.1, seed=0)
    assert ds.x is not None
    expected = 256 * stored * ds.num_edges + 4 * 128 * ds.num_nodes
    run, forms = evaluation_run(Holds(), ds, ds.x, EdgeData(), room)
    found = taken_bytes(run) + forms
    most = expected + 256 * ds.num_edges  # the ones beside their product
    assert 0.8 * expected <= found <= 2.2 * most + 8e6  # a busy machine measures up to 1.9 times as much
    assert run_bytes(Holds(), ds, ds.x, EdgeData(), room).total >= 0.8 * expected
