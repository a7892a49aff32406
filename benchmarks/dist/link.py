"""Two ranks over a limited link between two network namespaces: line rate, bytes against the report, hidden exchange.

``python benchmarks/dist/link.py [--data ogbn-arxiv] [--scale 1.0] [--rate 1gbit]`` (as root, with iproute2) makes two
namespaces joined by a pair of virtual interfaces, each limited by a token bucket, writes a folder of parts, trains on
it with a rank of one thread in each, and appends rows to ``benchmarks/results/ranks_link.csv``. The ranks do not read
each other's memory. ``--delay MS`` adds as much to every sum over ranks. ``--kept`` is a folder for the parts of one
model and form of rows, so that a second call need not make them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import RESULTS, BenchError, show, stamp, write_csv

import graphweft as gw
from graphweft.data.part_dataset import PartDataset
from graphweft.data.part_folder import write_parts
from graphweft.data.synthetic import synthetic
from graphweft.train.ranked_full import exchange_of

COLUMNS = ("kind", "graph", "model", "ranks", "method", "value", "other", "ratio", "note")
_HOSTS, _PORT = ("10.78.0.1", "10.78.0.2"), "29611"
_BITS = 1e9
_MIB = (8, 16, 64)


def run(*words: str) -> None:
    """A command of iproute2. Raises: BenchError."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"{' '.join(words)}: {done.stderr.strip()}")


def namespaces(rate: str) -> list[str]:
    """Two of them, joined by a limited link; their names."""
    names = [f"gw{os.getpid()}{end}" for end in "ab"]
    ends = [f"v{os.getpid() % 10**6}{end}" for end in "ab"]
    for name in names:
        run("ip", "netns", "add", name)
    run("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
    for name, end, address in zip(names, ends, _HOSTS, strict=True):
        run("ip", "link", "set", end, "netns", name)
        run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", end)
        run("ip", "-n", name, "link", "set", end, "up")
        run("ip", "-n", name, "link", "set", "lo", "up")
        limited = ("tbf", "rate", rate, "burst", "256kb", "latency", "4ms")
        run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", end, "root", *limited)
    return names


def work(arguments: argparse.Namespace) -> None:
    """One rank: exchanges of known sizes, then epochs, in a line of JSON."""
    torch.set_num_threads(1)
    ranks = gw.dist.Ranks.join()
    ranks._near = None  # as on two hosts
    other = 1 - ranks.rank
    rates: dict[int, float] = {}
    for mib in _MIB:
        sent = [torch.zeros((mib << 20) * (r == other), dtype=torch.uint8) for r in range(2)]
        got, spent = [torch.zeros_like(part) for part in sent], []
        for _ in range(4):
            begun = time.perf_counter()
            ranks.exchange(sent, got)
            spent.append(time.perf_counter() - begun)
        rates[mib] = 8 * (mib << 20) / statistics.median(spent[1:]) / 1e6
    ds = PartDataset(arguments.parts, ranks.rank)
    torch.manual_seed(0)
    trainer = gw.Trainer(model_of(arguments, ds), ds, ranks=ranks, restore_best=False)
    waits = {"exchange": 0.0, "sum": 0.0}
    ranks.begin_exchange = timed(ranks.begin_exchange, waits, "exchange", 0.0)  # type: ignore[method-assign]
    ranks.begin_add_up = timed(ranks.begin_add_up, waits, "sum", arguments.delay / 1e3)  # type: ignore[method-assign]
    trainer.prepare()
    steps = trainer._batch
    steps.step()
    rows: list[dict[str, float]] = []
    for _ in range(arguments.epochs):
        before = dict(waits)
        begun = time.perf_counter()
        steps.step()
        rows.append({"wall": time.perf_counter() - begun, **{name: waits[name] - before[name] for name in waits}})
    told = trainer.exchanged()
    middle = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    print(json.dumps({**middle, "rates": rates, "bytes": told["bytes_sent_per_epoch"], "mine": steps.bytes_of_epoch}))
    ranks.leave()


def timed(begin: Callable[..., Any], waits: dict[str, float], name: str, delay: float) -> Callable[..., Any]:
    """``begin`` whose end counts the seconds that it waits, and comes ``delay`` seconds after it at the earliest."""

    def begun(*given: Any, **more: Any) -> Callable[[], None]:
        finish, earliest = begin(*given, **more), time.perf_counter() + delay

        def finished() -> None:
            start = time.perf_counter()
            finish()
            time.sleep(max(0.0, earliest - time.perf_counter()) if delay else 0.0)
            waits[name] += time.perf_counter() - start

        return finished

    return begun


def model_of(arguments: argparse.Namespace, ds: Any) -> Any:
    """The model that is trained."""
    return getattr(gw.nn, arguments.model.upper()).for_data(ds, arguments.hidden, num_layers=arguments.layers)


def parted(arguments: argparse.Namespace, folder: Path) -> tuple[Path, int, str]:
    """A folder of parts, made where it is not there yet; bytes that an epoch should send, and the method."""
    told = folder / "told.json"
    if not told.exists():
        ds = _two_communities() if arguments.data == "two-communities" else synthetic(arguments.data, arguments.scale)
        made = gw.partition(ds.graph, 2, arguments.method)
        epoch = exchange_of(model_of(arguments, ds), ds.labelled("train"), arguments.halo)
        write_parts(ds, made, folder / "parts")
        told.write_text(json.dumps([made.predict(epoch).bytes_sent, made.method]))
    sent, method = json.loads(told.read_text())
    return folder / "parts", sent, method


def _two_communities(half: int = 150_000, degree: int = 40, rim: int = 8_000) -> gw.Dataset:
    """Two random graphs, joined by edges of ``rim`` nodes of each: there is much to compute while ghosts travel."""
    draw = torch.Generator().manual_seed(0)
    count = half * degree // 2
    ends = []
    for first in (0, half):
        inside = (torch.randint(0, half, (count,), generator=draw) + first for _ in range(2))
        ends.append(tuple(inside))
    across = (torch.randint(0, rim, (4 * rim,), generator=draw) + first for first in (0, half))
    ends.append(tuple(across))
    name = torch.randperm(2 * half, generator=draw)
    src, dst = (name[torch.cat(one)] for one in zip(*ends, strict=True))
    y = torch.empty(2 * half, dtype=torch.int64)
    y[name] = torch.arange(2 * half) * 16 // (2 * half)
    graph = gw.Graph(torch.cat([src, dst]), torch.cat([dst, src]), num_nodes=2 * half)
    return gw.Dataset("two communities", graph, torch.randn(2 * half, 32, generator=draw), y)


def measure(arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Both ranks; rows of the table."""
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(arguments.kept or folder)
        kept.mkdir(parents=True, exist_ok=True)
        parts, predicted, method = parted(arguments, kept)
        names = namespaces(arguments.rate)
        try:
            running = [start(arguments, name, rank, parts) for rank, name in enumerate(names)]
            told = [process.communicate(timeout=500) for process in running]
        finally:
            for name in names:
                subprocess.run(["ip", "netns", "del", name], check=False)
    for process, (_, errors) in zip(running, told, strict=True):
        if process.returncode:
            raise BenchError(errors.strip()[-500:])
    found = [json.loads(out.splitlines()[-1]) for out, _ in told]
    rows = [("bytes", found[0]["bytes"], predicted, found[0]["bytes"] / predicted, "predicted")]
    for mib in _MIB:
        rate = min(one["rates"][str(mib)] for one in found)
        rows.append((f"exchange {mib} MiB, Mbit/s each way", rate, _BITS / 1e6, rate * 1e6 / _BITS, "other: line rate"))
    wire = max(one["mine"] for one in found) * 8 / _BITS
    wall, wait = (max(one[name] for one in found) for name in ("wall", "exchange"))
    compute = max(one["wall"] - one["exchange"] - one["sum"] for one in found)
    rows.append(("hidden share of the exchange", 1 - wait / wire, wire, wait, "other: wire seconds, ratio: waited"))
    bound = max(compute, wire)
    rows.append(("epoch s", wall, bound, (wall - 0.02) / bound, "other: max(compute, wire), ratio after 20 ms"))
    rows.append(("sums s", max(one["sum"] for one in found), arguments.delay / 1e3, 0.0, "other: added to each"))
    names_of = ("value", "other", "ratio", "note")
    shown = [{n: f"{v:.5g}" if isinstance(v, float) else v for n, v in zip(names_of, r[1:], strict=True)} for r in rows]
    named = {"graph": f"{arguments.data}@{arguments.scale}", "ranks": 2, "method": method}
    model = f"{arguments.model} {arguments.layers}x{arguments.hidden}"
    halo = "" if arguments.halo == "exact" else f", {arguments.halo} rows"
    return [{"kind": f"link {r[0]}{halo}", "model": model, **named, **s} for r, s in zip(rows, shown, strict=True)]


def start(arguments: argparse.Namespace, name: str, rank: int, parts: Path) -> subprocess.Popen[str]:
    """A rank in its namespace."""
    given = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    given |= {"MASTER_ADDR": _HOSTS[0], "MASTER_PORT": _PORT, "OMP_NUM_THREADS": "1"}
    interface = f"v{os.getpid() % 10**6}{'ab'[rank]}"
    words = ["ip", "netns", "exec", name, sys.executable, __file__, "--parts", str(parts)]
    for flag in ("model", "layers", "hidden", "epochs", "delay", "halo"):
        words += [f"--{flag}", str(getattr(arguments, flag))]
    environment = {**os.environ, **given, "GLOO_SOCKET_IFNAME": interface}
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def main() -> None:
    """Measures and appends rows; with ``--parts`` this is one of the ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="ogbn-arxiv")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--model", default="gcn")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--method", default="metis")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--halo", default="exact")
    parser.add_argument("--parts", default="")
    parser.add_argument(
        "--kept", default="", help="a folder for the parts of one model and halo, made where it is empty"
    )
    arguments = parser.parse_args()
    if arguments.parts:
        work(arguments)
        return
    rows = measure(arguments)
    show("two ranks over a limited link", rows, COLUMNS)
    mark = stamp(2)
    write_csv(RESULTS / "ranks_link.csv", [{**one, **mark} for one in rows])


if __name__ == "__main__":
    main()
