"""``graphweft train --ranks``: results, stops, lost ranks and resumes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from dist.rank_processes import SMALL, run_ranks, start_command, wait_until
from run_files import assert_same_run, lines

from graphweft.cli import main
from graphweft.dist.board import Board


def finish(process: subprocess.Popen[str]) -> dict[str, object]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert len(out.splitlines()) == 1  # rank 0 alone answers
    answer: dict[str, object] = json.loads(out)
    return answer


def ranks_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The ranks of a command, by number."""
    children = psutil.Process(process.pid).children()
    return sorted(children, key=lambda child: int(child.environ()["RANK"]))


def alive(process: subprocess.Popen[str]) -> list[int]:
    """Process ids of the ranks of a command that run."""
    children = psutil.Process(process.pid).children()
    return [child.pid for child in children if child.status() != psutil.STATUS_ZOMBIE]


def logged(folder: Path) -> int:
    file = folder / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def test_ranks_leave_the_run_of_one_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--epochs", "2", "--json"]
    assert main(["train", *SMALL, *options, "--out", str(tmp_path / "one")]) == 0
    one = json.loads(capsys.readouterr().out)
    two = finish(start_command(*options, "--ranks", "2", "--out", str(tmp_path / "two")))
    assert two["ranks"] == 2 and isinstance(two["bytes_sent_per_epoch"], int) and two["bytes_sent_per_epoch"] > 0
    assert set(two) - set(one) == {"ranks", "bytes_sent_per_epoch"}
    for mine, other in zip(lines(tmp_path / "one"), lines(tmp_path / "two"), strict=True):
        assert list(mine) == list(other)
        assert mine["loss"] == pytest.approx(other["loss"], rel=1e-5)
        assert mine["val_loss"] == pytest.approx(other["val_loss"], rel=1e-5)
    a, b = (torch.load(tmp_path / name / "last.pt", weights_only=True)["model"] for name in ("one", "two"))
    for name, tensor in a.items():
        torch.testing.assert_close(b[name], tensor, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_killed_rank_ends_the_command_and_a_resume_on_other_ranks_has_the_same_bits(tmp_path: Path) -> None:
    options = ["--rank-reduce", "ordered", "--dropout", "0.2", "--json", "--epochs", "30"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    process = start_command(*options, "--ranks", "2", "--out", str(cut))
    wait_until(lambda: logged(cut) >= 2 and (cut / "last.pt").exists())
    victim = ranks_of(process)[1]
    begun = time.monotonic()
    victim.send_signal(signal.SIGKILL)
    _, err = process.communicate(timeout=300)
    assert time.monotonic() - begun < 60
    assert process.returncode == 1
    assert f"rank 1 (process {victim.pid}) was ended by SIGKILL, in phase: epoch" in err and len(err.splitlines()) == 1
    assert not psutil.pid_exists(victim.pid) and logged(cut) < 30
    finish(start_command(*options, "--ranks", "3", "--resume", "--out", str(cut)))
    assert main(["train", *SMALL, *options, "--out", str(whole)]) == 0
    assert_same_run(whole, cut)


@pytest.mark.slow
def test_lost_ranks_are_started_again_and_end_with_the_same_bits(tmp_path: Path) -> None:
    options = ["--rank-reduce", "ordered", "--dropout", "0.2", "--json", "--epochs", "12"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    process = start_command(*options, "--ranks", "2", "--max-restarts", "2", "--out", str(cut))
    for rank, epochs in ((1, 2), (0, 6)):
        wait_until(lambda epochs=epochs: logged(cut) >= epochs and (cut / "last.pt").exists())
        victim = ranks_of(process)[rank]
        victim.send_signal(signal.SIGKILL)
        wait_until(lambda victim=victim: victim.pid not in alive(process) and len(alive(process)) == 2)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0 and json.loads(out)["epochs"] == 12
    told = [line for line in err.splitlines() if "restarting" in line]
    assert len(told) == 2 and all("SIGKILL" in line and "from the last checkpoint" in line for line in told)
    assert main(["train", *SMALL, *options, "--out", str(whole)]) == 0
    assert_same_run(whole, cut)


def test_restarts_are_refused_where_nothing_is_started(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *SMALL, "--max-restarts", "2"]) == 2
    assert "--max-restarts: expected --ranks 2 or more with it, got none" in capsys.readouterr().err
    assert main(["train", *SMALL, "--halo", "fp8"]) == 2
    assert "halo: expected one of exact, bf16, int8, stale, sampled, got 'fp8'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_killed_while_it_starts_ends_the_command(tmp_path: Path, rank: int) -> None:
    process = start_command("--ranks", "2", "--epochs", "5000", "--out", str(tmp_path))
    wait_until(lambda: len(psutil.Process(process.pid).children()) == 2)
    ranks_of(process)[rank].kill()
    _, err = process.communicate(timeout=300)
    assert process.returncode == 1 and f"rank {rank} (process" in err and "SIGKILL" in err
    assert len(err.splitlines()) == 1


@pytest.mark.slow
def test_a_signal_stops_all_ranks_after_the_same_epoch(tmp_path: Path) -> None:
    process = start_command("--ranks", "2", "--epochs", "100000", "--out", str(tmp_path))
    wait_until(lambda: logged(tmp_path) >= 2)
    children = ranks_of(process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "stopped after epoch" in err and "--ranks 2" in err and len(err.splitlines()) == 1
    assert torch.load(tmp_path / "last.pt", weights_only=True)["epoch"] == logged(tmp_path)
    assert not any(child.is_running() for child in children)


@pytest.mark.slow
def test_ranks_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    process = start_command("--ranks", "2", "--epochs", "100000", "--out", str(tmp_path))
    wait_until(lambda: logged(tmp_path) >= 1)
    children = ranks_of(process)
    process.kill()
    process.communicate()
    wait_until(lambda: not any(child.is_running() for child in children), 20)


def command_of(*options: str) -> list[str]:
    """Ranks of mode full talk to each other while they make their trainers."""
    small = ["--data", "cora", "--scale", "0.15", "--hidden", "8", "--quiet"]
    return ["-m", "graphweft", "train", *small, "--epochs", "1", *options]


@pytest.mark.parametrize(
    ("option", "values", "text"),
    [
        ("--mode", ("full", "mini"), "expected the same mode on every rank, got full on rank 0"),
        ("--seed", ("0", "1"), "expected the same seed on every rank, got 0 on rank 0"),
        ("--data", ("cora", "no-such-set"), "rank 1 ("),
    ],
)
def test_unequal_ranks_are_refused_by_rank_0(tmp_path: Path, option: str, values: tuple[str, str], text: str) -> None:
    out = ["--out", str(tmp_path / "run")]
    ended = run_ranks(tmp_path / "group", [command_of(option, value, *out) for value in values])
    assert [status for status, _ in ended] == [2, 2]
    assert text in ended[0][1] and len(ended[0][1].splitlines()) == 1
    assert ended[1][1] == "" and not (tmp_path / "run").exists()


def test_more_ranks_than_slices_are_refused_before_they_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *SMALL, "--ranks", "9", "--rank-reduce", "ordered"]) == 2
    err = capsys.readouterr().err
    assert (
        "--rank-reduce ordered cannot be combined with more than 8 ranks, got 9" in err and len(err.splitlines()) == 1
    )


def test_bad_options_are_refused_once(tmp_path: Path) -> None:
    ended = start_command("--ranks", "2", "--lr", "-1", "--out", str(tmp_path))
    _, err = ended.communicate(timeout=300)
    assert ended.returncode == 2 and len(err.splitlines()) == 1 and "--lr: expected" in err
    ended = start_command("--ranks", "2", "--norm", "batch", "--out", str(tmp_path))
    _, err = ended.communicate(timeout=300)
    assert (
        ended.returncode == 2 and len(err.splitlines()) == 1 and "--norm batch cannot be combined with --ranks 2" in err
    )


@pytest.mark.slow
def test_torchrun_starts_ranks_and_survivors_name_the_lost_one(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "graphweft", "train", *SMALL, "--epochs", "100000", "--out", str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: logged(tmp_path) >= 2)
    ranks_of(process)[1].kill()
    _, err = process.communicate(timeout=300)
    assert process.returncode != 0
    ours = [line for line in err.splitlines() if line.startswith("graphweft train: rank")]
    assert len(ours) == 1 and ours[0].startswith("graphweft train: rank 1 on ") and "was lost in epoch" in ours[0]


def test_a_board_cuts_long_texts(tmp_path: Path) -> None:
    Board.create(tmp_path / "board", 2)
    board = Board(tmp_path / "board", 2)
    board.set_phase(0, "x" * 5000)
    board.set_failure(0, "first\nsecond")
    assert board.phase(0) == "x" * 1019 and board.failure(0) == "first second" and board.phase(1) == ""
    assert board.silent_seconds(0) is None
    board.beat(0)
    silent = board.silent_seconds(0)
    assert silent is not None and silent < 60


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--mode", "macro", "--macro", "parts:2/8"], "--mode macro cannot be combined with --ranks 2"),
        (["--class-weight", "balanced"], "--class-weight cannot be combined with --ranks 2"),
        (["--halo", "bf16", "--ranks", "1"], "--halo: expected --ranks 2 or more with it, got one process"),
        (["--halo", "bf16", "--mode", "mini"], "--halo bf16 cannot be combined with --mode mini"),
        (["--rank-reduce", "ordered"], "--mode full cannot be combined with --rank-reduce ordered"),
    ],
)
def test_ranks_are_not_started_for_what_they_cannot_train(
    options: list[str], text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphweft.cli.launch", lambda *_: pytest.fail("ranks were started"))
    assert main(["train", "--data", "cora", "--scale", "0.15", "--ranks", "2", *options]) == 2
    err = capsys.readouterr().err
    assert text in err and len(err.splitlines()) == 1


def test_more_ranks_than_processors_start_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["train", *SMALL, "--ranks", "4096"], ["doctor", "--network", "--ranks", "4096"]):
        assert main(words) == 2
        told = capsys.readouterr().err
        assert "ranks: expected at most " in told and "got 4096; torchrun takes any number" in told


def test_more_ranks_than_nodes_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ends = np.array([[0, 1], [1, 0]])
    np.savez(tmp_path / "two.npz", edge_index=ends, x=np.eye(2, dtype=np.float32), y=np.array([0, 1]), train_idx=[0, 1])
    words = [
        "train",
        "--data",
        str(tmp_path / "two.npz"),
        "--ranks",
        "3",
        "--epochs",
        "1",
        "--out",
        str(tmp_path / "r"),
    ]
    assert main(words) == 2
    assert "ranks: expected at most one for each of the 2 nodes, got 3" in capfd.readouterr().err


def test_a_rank_that_ends_may_be_silent_for_longer(tmp_path: Path) -> None:
    Board.create(tmp_path / "board", 2)
    board = Board(tmp_path / "board", 2)
    board.beat(0)
    assert 0 <= (board.silent_seconds(0) or 0.0) < 60
    board.end(0, 1000.0)
    board.beat(0)  # of the thread, which may be at it
    silent = board.silent_seconds(0)
    assert silent is not None and silent < -900
    assert board.silent_seconds(1) is None
