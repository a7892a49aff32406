"""What ranks tell each other, alone and in groups."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from dist.rank_processes import run_case, run_ranks

from graphweft._errors import ConfigError, DataError, RankError
from graphweft.dist import launch
from graphweft.dist.board import Board
from graphweft.dist.launch import FOLDER
from graphweft.dist.preflight import difference, ready
from graphweft.dist.ranks import Ranks


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_hear_what_the_others_say(tmp_path: Path, size: int) -> None:
    run_case(tmp_path, size, "tell")
    assert all((tmp_path / f"done-{rank}").exists() for rank in range(size))


def test_slices_are_shared_whole_and_in_order() -> None:
    for size in range(1, 9):
        members = [Ranks(rank, size, "ordered") for rank in range(size)]
        assert [index for ranks in members for index in ranks.own_slices] == list(range(8))
    ranks = Ranks(0, 3)
    assert [ranks.bounds(10, index) for index in range(3)] == [(0, 3), (3, 6), (6, 10)]


def test_an_ordered_sum_has_the_bits_of_adding_one_after_the_other() -> None:
    rows = torch.randn(8, 333)
    wanted = torch.zeros(333)
    for row in rows:
        wanted = wanted + row
    assert torch.equal(Ranks(reduce="ordered").sum_slices(rows), wanted)


def test_bad_groups_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected one of any, ordered, got 'sorted'"):
        Ranks(reduce="sorted")
    with pytest.raises(ConfigError, match="cannot be combined with more than 8 ranks, got 9"):
        Ranks(0, 9, "ordered")


def test_a_rank_of_another_starter_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch systems set these two names as well."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("MASTER_ADDR", "MASTER_PORT", FOLDER):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=r"expected the environment that torchrun sets, got: .*MASTER_ADDR"):
        Ranks.join()


@pytest.mark.parametrize(("asked", "text"), [((3, 3), "got 3 on rank 0"), ((2, 3), "got 3 on rank 1")])
def test_other_ranks_than_were_started_are_refused_once(tmp_path: Path, asked: tuple[int, int], text: str) -> None:
    command = ["-m", "graphweft", "train", "--data", "cora", "--scale", "0.15", "--epochs", "1", "--quiet", "--ranks"]
    found = run_ranks(tmp_path, [[*command, str(count)] for count in asked])
    assert [status for status, _ in found] == [2, 2]
    lines = [line for _, said in found for line in said.splitlines() if "expected" in line]
    assert len(lines) == 1
    assert f"ranks: expected as many as were started, 2, {text}" in lines[0]


def test_a_difference_is_told_by_name_rank_and_host() -> None:
    same = ("a", None, {"seed": 0, "data": "x"})
    assert difference([same, same]) is None
    text = difference([same, same, ("c", None, {"seed": 0, "data": "y"})])
    assert text == "ranks: expected the same data on every rank, got x on rank 0 (a) and y on rank 2 (c)"
    assert "got nothing on rank 0" in str(difference([same, ("b", None, {"seed": 0, "data": "x", "more": 1})]))
    assert difference([same, ("b", "x.npz: expected a file", {})]) == "rank 1 (b): x.npz: expected a file"
    assert difference([("a", "no", {}), ("b", "no", {})]) == "no"


def test_one_rank_fails_as_one_process_does() -> None:
    def fail() -> int:
        raise DataError("x.npz: expected a file")

    with pytest.raises(DataError, match="expected a file"):
        ready(Ranks(), fail, lambda made: {})
    with pytest.raises(RankError), Ranks().guarded():
        raise RankError("rank 1 was lost")


@pytest.mark.parametrize("stopped", [True, False])
def test_silence_while_the_starter_was_stopped_is_no_loss(tmp_path: Path, stopped: bool) -> None:
    """Ctrl-Z for a minute ends no rank; a minute of silence under the starter's eyes does."""
    path, now = tmp_path / "board", time.monotonic
    Board.create(path, 1)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        watch = launch._Watch([child], tmp_path, [])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "monotonic", lambda: now() - 60)
            watch._board.beat(0)
        watch._awake = now() - 100
        watch._looked = now() - (60 if stopped else 0)
        watch._notice_stop()
        watch._look(0, child)
        assert watch._ended == ([] if stopped else [0])
    finally:
        child.kill()
        child.wait()
