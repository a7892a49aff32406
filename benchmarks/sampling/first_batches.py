"""The first batches of a loader against those after them: what trials of ways and first touches of memory cost.

``python benchmarks/sampling/first_batches.py [--twin ogbn-products] [--scale 0.25] [--batches 50]``.
Every way runs in a process of its own: ``tried`` (what a loader does when nothing is said), then each of the ways that
it tries. A row has batches a second of the first ``--batches`` and of as many after them, the MiB that the memory pool
mapped and the page faults in each, and how many batches went by under every way. Rounds are interleaved; the row of a
way is that of the round with the median rate of its first batches.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import RESULTS, BenchError, environment, show, stamp, write_csv

from graphweft._memory import POOL
from graphweft.data.synthetic import synthetic
from graphweft.loader.fastest_choice import CoreSplit
from graphweft.loader.loader import Loader

COLUMNS = (
    "way",
    "first_per_s",
    "next_per_s",
    "first_over_next",
    "first_mib",
    "next_mib",
    "first_faults",
    "next_faults",
)
WAYS = {"in place": CoreSplit(0, 0), "1 worker": CoreSplit(1, 2), "2 workers": CoreSplit(2, 4)}


def _half(source, loader: Loader, count: int, under: dict[str, int]) -> dict[str, float]:
    """So many batches: seconds, mapped MiB and page faults; notes the way of each."""
    mapped, faults = POOL.stats().mapped, resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    begun = time.perf_counter()
    for _ in range(count):
        batch = next(source)
        if batch.x is None:
            raise BenchError("first_batches: expected features")
        way = f"{loader.way.workers} workers"
        under[way] = under.get(way, 0) + 1
    seconds = time.perf_counter() - begun
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    return {"seconds": seconds, "mib": (POOL.stats().mapped - mapped) / 2**20, "faults": faults}


def child(arguments: argparse.Namespace) -> int:
    """Runs one way and prints its two halves as JSON."""
    ds = synthetic(arguments.twin, scale=arguments.scale)
    loader = Loader(ds, fanouts=arguments.fanouts, batch_size=arguments.batch_size, shuffle=True)
    if len(loader) < 2 * arguments.batches:
        raise BenchError(f"first_batches: expected {2 * arguments.batches} batches in an epoch, got {len(loader)}")
    if arguments.child != "tried":
        loader.keep_ways([WAYS[arguments.child]])
    under: dict[str, int] = {}
    source = iter(loader)
    first = _half(source, loader, arguments.batches, under)
    second = _half(source, loader, arguments.batches, under)
    sys.stdout.write(json.dumps({"first": first, "next": second, "under": under}) + "\n")
    return 0


def measure(way: str, arguments: argparse.Namespace) -> dict[str, object]:
    """One row. Raises: BenchError when the process fails."""
    command = [sys.executable, __file__, *sys.argv[1:], "--child", way]
    shared = environment(arguments.threads, pin=False)
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=shared)
    if done.returncode:
        raise BenchError(f"first_batches {way}: {done.stderr.strip().splitlines()[-1]}")
    found = json.loads(done.stdout.splitlines()[-1])
    first, then = found["first"], found["next"]
    return {
        "way": way,
        "first_per_s": round(arguments.batches / first["seconds"], 2),
        "next_per_s": round(arguments.batches / then["seconds"], 2),
        "first_over_next": round(then["seconds"] / first["seconds"], 3),
        **{f"{half}_mib": round(found[half]["mib"], 1) for half in ("first", "next")},
        **{f"{half}_faults": found[half]["faults"] for half in ("first", "next")},
        "under": " ".join(f"{name}:{count}" for name, count in found["under"].items()),
    }


def main() -> int:
    """Measures every way in interleaved rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--twin", default="ogbn-products")
    parser.add_argument("--scale", type=float, default=0.25)
    parser.add_argument("--fanouts", type=int, nargs="+", default=[15, 10, 5])
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=RESULTS / "first_batches.csv")
    arguments = parser.parse_args()
    if arguments.child:
        return child(arguments)
    names = ["tried", *WAYS]
    rows: dict[str, list[dict[str, object]]] = {name: [] for name in names}
    for turn in range(arguments.rounds):
        first = turn % len(names)
        for name in (*names[first:], *names[:first]):
            rows[name].append(measure(name, arguments))
    table = [sorted(found, key=lambda row: row["first_per_s"])[(len(found) - 1) // 2] for found in rows.values()]
    show(f"{arguments.twin} x {arguments.scale}, batches of {arguments.batch_size}", table, COLUMNS)
    head = {"twin": arguments.twin, "scale": arguments.scale, "batch_size": arguments.batch_size}
    write_csv(arguments.out, [{**head, "rounds": arguments.rounds, **row, **stamp(arguments.threads)} for row in table])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
