"""Equal calls give equal bits: a few of the cases of ``same_bits.py``, which runs all models and modes."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch
from same_bits import CASES, FREE, differences, digest, free_memory, threads, turns

import graphweft

SOME = ["full GAT", "mini subtasks"]


@contextlib.contextmanager
def both(free: int, count: int) -> Iterator[None]:
    """So many bytes free, and so many threads."""
    with free_memory(free), threads(count):
        yield


@pytest.mark.filterwarnings("ignore")
def test_runs_repeat_bit_for_bit_after_others_whatever_is_free_and_for_any_number_of_threads() -> None:
    rounds = {f"with {n} threads": partial(both, free, n) for free, n in zip(FREE, (1, 3), strict=True)}
    assert differences(SOME, rounds) == []


@pytest.mark.filterwarnings("ignore")
def test_modes_and_tasks_repeat_bit_for_bit_with_little_memory_free_and_other_threads() -> None:
    found = differences(["auto", "loader", "link", "graphs"], {"with 3 threads": partial(both, FREE[0], 3)})
    assert found == []


@pytest.mark.parametrize("name", ["gat", "gcn", "rgcn"])
def test_two_graphs_in_turn_equal_each_alone(name: str) -> None:
    assert turns(name) == []


def test_the_cases_cover_all_modes_and_see_a_difference() -> None:
    modes = {name.split()[0] for name in CASES}
    assert modes >= {"call", "full", "mini", "macro", "auto", "memory", "loader", "link", "gae", "edges", "graphs"}
    one = torch.tensor([1.0, 2.0])
    assert digest([one]) == digest([one.clone()]) != digest([one.double()])
    assert digest({"a": one}) != digest({"a": torch.nextafter(one, one + 1)})
    with free_memory(FREE[0]):
        assert psutil.virtual_memory().available == FREE[0]
    with threads(3):
        assert torch.get_num_threads() == 3


def test_free_memory_is_asked_by_what_refuses_or_tells_alone() -> None:
    """Nothing that is decided reads it: ids, synthetic graphs and archives are refused, ``doctor`` tells."""
    allowed = {"_machine.py", "graph/ids.py", "data/synthetic.py", "data/readers/files.py"}
    allowed |= {"measure/doctor.py", "measure/bench.py"}
    root = Path(graphweft.__file__).parent
    words = re.compile(r"\b(free_memory|virtual_memory)\(")
    asked = {file.relative_to(root).as_posix() for file in root.rglob("*.py") if words.search(file.read_text())}
    assert asked == allowed
