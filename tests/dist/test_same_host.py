"""Messages out of another rank's memory: two ranks as threads of one process, ranks that end or do not come."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from graphweft.dist import same_host
from graphweft.dist.same_host import SameHost

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="reads the memory of processes of Linux"
)


@pytest.fixture(autouse=True)
def few_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as the tables of these tests have, so that they are used again."""
    monkeypatch.setattr(same_host, "_SLOTS", 4)


def pair(pids: tuple[int, int], timeout: float = 60.0) -> tuple[SameHost, SameHost]:
    table = np.zeros((2, 2, 10), dtype=np.int64)
    return SameHost(0, pids, table, timeout), SameHost(1, pids, table, timeout)


@pytest.mark.parametrize("kept", [False, True])
def test_messages_arrive_whole_and_in_order(kept: bool) -> None:
    ranks = pair((os.getpid(), os.getpid()))
    generator = torch.Generator().manual_seed(0)
    sizes = [0, 1, 3, 4096, 100_001, 0, 7, 7, 7, 7, 7, 7]
    rounds = [[torch.randn(size + rank, 3, generator=generator) for rank in range(2)] for size in sizes]
    got: list[list[torch.Tensor]] = [[], []]

    def run(rank: int) -> None:
        other = 1 - rank
        for messages in rounds:
            sent, into = [torch.empty(0)] * 2, [torch.empty(0)] * 2
            sent[other], into[other] = messages[rank], torch.empty_like(messages[other])
            if rank == 0:  # no contiguous rows on either side
                sent[1] = messages[0].repeat(1, 2)[:, :3]
                into[1] = torch.empty(messages[1].shape[0], 6)[:, :3]
            ranks[rank].begin(sent, into, kept)()
            got[rank].append(into[other])

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for rank in range(2):
        assert len(got[rank]) == len(rounds)
        for found, messages in zip(got[rank], rounds, strict=True):
            assert torch.equal(found, messages[1 - rank])
    assert all(len(held) <= 4 for rank in ranks for held in rank._held)


def test_sums_are_equal_on_both_sides_whatever_the_order_of_their_ends() -> None:
    """Seven sums under way at once, more than messages may be; the last is asked for first, others never."""
    pids, tables = (os.getpid(), os.getpid()), np.zeros((2, 2, 2, 10), dtype=np.int64)
    ranks = [SameHost(rank, pids, tables[0], 60.0, tables[1]) for rank in range(2)]
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(2, 5 + size, generator=generator) for size in range(7)]
    found = [[rows[rank].clone() for rows in given] for rank in range(2)]

    def run(rank: int) -> None:
        ends = [ranks[rank].begin_sum(tensor) for tensor in found[rank]]
        ends[-1]()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for rank in range(2):
        assert all(torch.equal(sum_, rows[0] + rows[1]) for sum_, rows in zip(found[rank], given, strict=True))
    assert not ranks[0].adds(torch.empty(1 << 19))


def test_a_rank_that_does_not_come_is_named() -> None:
    first, _ = pair((os.getpid(), os.getpid()), timeout=0.3)
    finish = first.begin([torch.empty(0), torch.ones(2)], [torch.empty(0), torch.empty(2)], False)
    with pytest.raises(RuntimeError, match="Timed out waiting for rank 1"):
        finish()


def test_a_rank_that_has_ended_is_named() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    first, _ = pair((os.getpid(), gone.pid))
    with pytest.raises(RuntimeError, match="rank 1 has ended"):
        first.begin([torch.empty(0), torch.empty(0)], [torch.empty(0), torch.empty(2)], False)()


def test_other_sizes_are_refused() -> None:
    first, second = pair((os.getpid(), os.getpid()))
    second.begin([torch.ones(3), torch.empty(0)], [torch.empty(0), torch.empty(0)], True)
    with pytest.raises(RuntimeError, match="expected 8 bytes of rank 1, got 12"):
        first.begin([torch.empty(0), torch.empty(0)], [torch.empty(0), torch.empty(2)], True)()
