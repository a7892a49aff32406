"""Compile time of user functions: a process that has never seen them, one that finds them in the cache, and warm.

    OMP_NUM_THREADS=2 python benchmarks/training/compile_time.py

``cold_s``: a new process with an empty cache folder, from the call to the first training step's end, C++ compilation
included; graphweft is imported before. Torch loads its tracer at the first call of a process that records something
(``tracer_s``, measured in a process of its own and contained in ``cold_s``). ``next_s``: the same in another process
with that folder, which records nothing. ``warm_ms``: in a process that is warmed up, the compiled call forgotten and
made again from the cache.
``step_ms``: the step when nothing is compiled, which the other columns contain.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from harness import RESULTS, environment, show, stamp, write_csv
from torch import Tensor

import graphweft as gw
from graphweft.nn import user_call

COLUMNS = ("function", "nodes", "edges", "cold_s", "tracer_s", "next_s", "warm_ms", "step_ms")
WIDTH = 16
TRACER = """
import time, torch, graphweft.nn.user_call
began = time.perf_counter()
import torch._dynamo
print(time.perf_counter() - began)
"""
SIZES = {"small": (2_000, 20_000), "large": (100_000, 1_000_000)}  # large ones get generated kernels


def functions(name: str) -> tuple[Any, Any, list[Tensor]]:
    """Message, reduce and parameters."""
    weight = torch.randn(WIDTH, WIDTH, requires_grad=True)
    score = torch.randn(2 * WIDTH, 1, requires_grad=True)

    def scored(edges: Any) -> dict[str, Tensor]:
        z = edges.src["h"] @ weight
        e = torch.nn.functional.leaky_relu(torch.cat([z, edges.dst["h"] @ weight], 1) @ score, 0.2)
        return {"m": z, "e": e}

    def plain(edges: Any) -> dict[str, Tensor]:
        return {"m": edges.src["h"] @ weight}

    def attended(nodes: Any) -> dict[str, Tensor]:
        return {"h": (torch.softmax(nodes.mailbox["e"], 1) * nodes.mailbox["m"]).sum(1)}

    def compared(nodes: Any) -> dict[str, Tensor]:
        e = nodes.mailbox["e"]
        margins = torch.relu(e.unsqueeze(2) - e.unsqueeze(1)).sum(2)
        return {"h": (torch.softmax(margins, 1) * nodes.mailbox["m"]).sum(1)}

    reduces = {"gcn": lambda nodes: {"h": nodes.mailbox["m"].mean(1)}, "gat": attended, "cgat": compared}
    return (plain if name == "gcn" else scored), reduces[name], [weight] + ([score] if name != "gcn" else [])


def worker(name: str, size: str) -> None:
    """Measures in this process and prints one line."""
    nodes, edges = SIZES[size]
    ends = torch.randint(0, nodes, (2, edges))
    graph, h = gw.Graph(ends[0], ends[1], num_nodes=nodes), torch.randn(nodes, WIDTH)
    message, reduce, leaves = functions(name)

    def step() -> float:
        start = time.perf_counter()
        out = gw.update_all(graph, message, reduce, ndata={"h": h})["h"]
        torch.autograd.grad(out.sum(), leaves)
        return time.perf_counter() - start

    first = step()
    warm = []
    for _ in range(5):
        step()
        user_call._CALLS.clear()
        warm.append(step())
    steps = [step() for _ in range(5)]
    print(json.dumps({"first": first, "warm": statistics.median(warm), "step": statistics.median(steps)}))


def measure(name: str, size: str, threads: int) -> dict[str, object]:
    """One function on one size of graph."""
    found = []
    with tempfile.TemporaryDirectory(prefix="graphweft-bench-") as folder:
        variables = {**environment(threads), "GRAPHWEFT_CACHE_DIR": folder}
        for _ in range(2):
            command = [sys.executable, __file__, "--worker", name, size]
            ran = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
            found.append(json.loads(ran.stdout.splitlines()[-1]))
    tracer = subprocess.run([sys.executable, "-c", TRACER], env=variables, capture_output=True, text=True, check=True)
    return {
        "function": name,
        "nodes": SIZES[size][0],
        "edges": SIZES[size][1],
        "cold_s": round(found[0]["first"], 3),
        "tracer_s": round(float(tracer.stdout), 3),
        "next_s": round(found[1]["first"], 3),
        "warm_ms": round(1e3 * found[1]["warm"], 1),
        "step_ms": round(1e3 * found[1]["step"], 1),
        **stamp(threads),
    }


def main(given: list[str] | None = None) -> int:
    """Measures every function."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS / "compile_time.csv")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args(given)
    if arguments.worker:
        worker(*arguments.worker)
        return 0
    rows = [measure(name, size, arguments.threads) for size in SIZES for name in ("gcn", "gat", "cgat")]
    show("compile time", rows, COLUMNS)
    write_csv(arguments.out, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
