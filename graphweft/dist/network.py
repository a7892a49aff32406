"""How fast the ranks at hand hear each other.

Comes in: the ranks. Goes out: latency and bandwidth of every pair, and of an all-to-all, by the transport that training
uses. Called by ``graphweft doctor --network``.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from graphweft.dist.ranks import Ranks

_PINGS, _TURNS = 50, 5
_BYTES = 4 << 20


def main(as_json: bool = False) -> None:
    """Measures and, on rank 0, prints a line a pair, or one JSON object."""
    ranks = Ranks.join()
    with ranks.guarded():
        found = measure(ranks)
        if ranks.is_first:
            sys.stdout.write("".join(f"{line}\n" for line in ([json.dumps(found)] if as_json else lines(found))))
            sys.stdout.flush()


def measure(ranks: Ranks) -> dict[str, Any]:
    """Medians, on every rank those of rank 0: seconds one way of 8 bytes, bytes a second each way of 4 MiB.

    Example:
        >>> measure(Ranks())["ranks"], measure(Ranks())["pairs"]
        (1, [])
    """
    hosts = ranks.texts(ranks.host)
    pairs = []
    for a in range(ranks.size):
        for b in range(a + 1, ranks.size):
            ranks.at(f"measuring between ranks {a} and {b}")
            mine = [0.0, 0.0]
            if ranks.rank in (a, b):
                other = b if ranks.rank == a else a
                latency = _seconds(lambda other=other: _swap(ranks, {other: 8}), _PINGS)  # type: ignore[misc]
                whole = _seconds(lambda other=other: _swap(ranks, {other: _BYTES}), _TURNS)  # type: ignore[misc]
                mine = [latency, _BYTES / whole]
            said = json.loads(ranks.texts(json.dumps(mine))[a])
            pairs.append({"ranks": [a, b], "latency_seconds": said[0], "bytes_per_second": said[1]})
    ranks.at("measuring all to all")
    others = {rank: _BYTES for rank in range(ranks.size) if rank != ranks.rank}
    together = json.loads(ranks.texts(json.dumps(_seconds(lambda: _swap(ranks, others), _TURNS)))[0])
    return {
        "ranks": ranks.size,
        "hosts": hosts,
        "pairs": pairs,
        "all_to_all_bytes_per_second": len(others) * _BYTES / together if others else None,
    }


def lines(found: dict[str, Any]) -> list[str]:
    """What was measured, for people."""
    if not found["pairs"]:
        return ["one rank: nothing to measure; use --ranks P, or torchrun"]
    hosts = found["hosts"]
    made = []
    for pair in found["pairs"]:
        a, b = pair["ranks"]
        speed = f"{1e6 * pair['latency_seconds']:.0f} us, {1e-6 * pair['bytes_per_second']:.0f} MB/s each way"
        made.append(f"rank {a} ({hosts[a]}) - rank {b} ({hosts[b]}): {speed}")
    return [*made, f"all to all: {1e-6 * found['all_to_all_bytes_per_second']:.0f} MB/s sent by a rank"]


def _swap(ranks: Ranks, sizes: dict[int, int]) -> None:
    """So many bytes to and from other ranks."""
    sent = [torch.zeros(sizes.get(rank, 0), dtype=torch.uint8) for rank in range(ranks.size)]
    ranks.exchange(sent, [torch.empty_like(part) for part in sent])


def _seconds(act: Callable[[], None], times: int) -> float:
    """Median, after one that does not count."""
    act()
    taken = []
    for _ in range(times):
        begun = time.perf_counter()
        act()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken)
