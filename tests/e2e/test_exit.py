"""A process that ends while batches are prepared ends as it would without them."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys, torch, graphweft as gw
graph = gw.Graph(torch.randint(0, 5000, (200000,)), torch.randint(0, 5000, (200000,)), num_nodes=5000)
kind = sys.argv[1]
if kind == "link":
    batches = iter(gw.LinkLoader(graph, fanouts=[10, 5], batch_size=200, prefetch=3))
else:
    subtasks = gw.Subtasks(2) if kind == "subtasks" else None
    batches = iter(gw.Loader(graph, range(5000), [10, 5], batch_size=50, prefetch=3, prepare=subtasks))
next(batches)
if sys.argv[2] == "fails":
    raise ValueError("the user's")
"""


@pytest.mark.parametrize("ends", ["well", "fails"])
@pytest.mark.parametrize("kind", ["neighbor", "subtasks", "link"])
def test_an_epoch_under_way_does_not_take_the_process_down(kind: str, ends: str) -> None:
    for _ in range(3):  # one run in two went down before
        command = [sys.executable, "-c", SCRIPT, kind, ends]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == (0 if ends == "well" else 1), done.stderr
        assert done.stderr.endswith("ValueError: the user's\n") if ends == "fails" else done.stderr == ""
