"""A process that ends while batches are prepared ends as it would without them."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

# One process reads the package; every case is a child of it, which ends as any interpreter does.
SCRIPT = """
import json, os, sys, torch, graphweft as gw
gw.Graph, gw.Loader, gw.LinkLoader, gw.schedule.Subtasks
statuses = []
for number, (kind, ends) in enumerate(json.loads(sys.argv[2])):
    child = os.fork()
    if child == 0:
        break
    statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
else:
    print(json.dumps(statuses))
    sys.exit()
os.dup2(os.open(f"{sys.argv[1]}/{number}", os.O_WRONLY | os.O_CREAT), 2)
graph = gw.Graph(torch.randint(0, 5000, (200000,)), torch.randint(0, 5000, (200000,)), num_nodes=5000)
if kind == "link":
    batches = iter(gw.LinkLoader(graph, fanouts=[10, 5], batch_size=200, prefetch=3))
else:
    subtasks = gw.schedule.Subtasks(2) if kind == "subtasks" else None
    batches = iter(gw.Loader(graph, range(5000), [10, 5], batch_size=50, prefetch=3, prepare=subtasks))
next(batches)
if ends == "fails":
    raise ValueError("the user's")
"""
CASES = list(itertools.product(("neighbor", "subtasks", "link"), ("well", "fails")))
TIMES = 3  # one run in two went down before


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[tuple[int, str]]]:
    """Exit status and standard error of every run of every case."""
    folder, runs = tmp_path_factory.mktemp("ended"), CASES * TIMES
    command = [sys.executable, "-c", SCRIPT, str(folder), json.dumps(runs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    found: dict[tuple[str, str], list[tuple[int, str]]] = {case: [] for case in CASES}
    for number, (case, status) in enumerate(zip(runs, json.loads(done.stdout), strict=True)):
        found[case].append((status, Path(folder / str(number)).read_text()))
    return found


@pytest.mark.parametrize(("kind", "ends"), CASES)
def test_an_epoch_under_way_does_not_take_the_process_down(
    kind: str, ends: str, ended: dict[tuple[str, str], list[tuple[int, str]]]
) -> None:
    assert len(ended[kind, ends]) == TIMES
    for status, errors in ended[kind, ends]:
        assert status == (0 if ends == "well" else 1), errors
        assert errors.endswith("ValueError: the user's\n") if ends == "fails" else errors == ""
