"""The child process of one sampler: obeys the harness as ``training/worker.py`` does; an "epoch" is one batch.

``python worker.py SYSTEM FOLDER``; FOLDER holds ``indptr.npy, indices.npy, seeds.npy, x.npy`` and ``case.json``. The
"loss" of a batch is its number of distinct nodes, which must agree between samplers up to chance. Systems: ``each`` and
``ahead`` are ours, one batch at a time with all threads or batches in parallel; ``dgl`` and
``dgl-int32``. ``+x`` gathers features.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import traceback
from pathlib import Path
from types import SimpleNamespace

import numpy as np


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    return 0


def _check_degrees(block, degrees, ids, fanout) -> None:
    """Every destination drew exactly min(in-degree, fan-out) edges."""
    drawn = np.asarray(block.in_degrees())
    if not (drawn == np.minimum(degrees[np.asarray(ids)], fanout)).all():
        raise SystemExit("refcheck failed: a destination has another number of in-edges")


def build_own(folder: Path, way: str, with_x: bool):
    """``run(batches)`` -> (nodes, seconds) of each."""
    import torch

    from graphweft._memory import empty
    from graphweft.graph.adjacency import Adjacency
    from graphweft.graph.graph import Graph
    from graphweft.loader.loader import Loader

    def load(name):
        array = torch.from_numpy(np.load(folder / f"{name}.npy"))
        return empty(tuple(array.shape), array.dtype).copy_(array)

    case = json.loads((folder / "case.json").read_text())
    indptr = load("indptr")
    graph = Graph.from_adjacency(Adjacency(indptr, load("indices"), None, indptr.numel() - 1))
    seeds = torch.from_numpy(np.load(folder / "seeds.npy"))
    ds = SimpleNamespace(graph=graph, x=load("x"), y=torch.zeros(graph.num_nodes), train_idx=seeds) if with_x else graph
    options = {"prefetch": 0} if way == "each" else {"prefetch": 2 * case["threads"], "workers": case["threads"]}
    loader = Loader(ds, seeds, case["fanouts"], case["batch_size"], shuffle=True, **options)
    first = next(iter(Loader(graph, seeds, case["fanouts"], case["batch_size"], prefetch=0)))
    for block, fanout in zip(reversed(first.blocks), case["fanouts"], strict=True):
        _check_degrees(block, graph.in_degrees().numpy(), block.dst_ids, fanout)

    def run(count):  # nothing is prepared before the clock runs, nor between turns
        nodes, begun = [], time.perf_counter()
        while len(nodes) < count:
            for batch in loader:
                if batch.batch_size == loader.batch_size:
                    nodes.append(batch.num_nodes)
                if len(nodes) == count:
                    taken = time.perf_counter() - begun
                    break
        return nodes, [taken / count] * count

    return run, f"graphweft, {loader.way}"


def build_dgl(folder: Path, way: str, with_x: bool):
    """As :func:`build_own`."""
    import dgl
    import torch

    case = json.loads((folder / "case.json").read_text())
    indptr, indices = (torch.from_numpy(np.load(folder / f"{n}.npy")) for n in ("indptr", "indices"))
    kind = torch.int32 if way == "dgl-int32" else torch.int64
    seeds = torch.from_numpy(np.load(folder / "seeds.npy")).to(kind)
    graph = dgl.graph(("csc", (indptr.to(kind), indices.to(kind), torch.empty(0, dtype=kind))), idtype=kind)
    graph = graph.formats(["csc"])
    x = torch.from_numpy(np.load(folder / "x.npy")) if with_x else None
    fused = kind == torch.int64
    sampler = dgl.dataloading.NeighborSampler(case["fanouts"][::-1], fused=fused)  # DGL lists the input layer's first
    _, _, blocks = sampler.sample(graph, seeds[: case["batch_size"]])
    for block, fanout in zip(reversed(blocks), case["fanouts"], strict=True):
        _check_degrees(block, np.diff(indptr.numpy()), block.dstdata[dgl.NID], fanout)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(seeds.numel(), generator=generator)
    place = 0

    def run(count):
        nonlocal place, order
        nodes, begun = [], time.perf_counter()
        for _ in range(count):
            if place + case["batch_size"] > order.numel():
                order, place = torch.randperm(seeds.numel(), generator=generator), 0
            batch = seeds[order[place : place + case["batch_size"]]]
            place += case["batch_size"]
            inputs, _, _ = sampler.sample(graph, batch)
            if x is not None:
                x[inputs.long()]
            nodes.append(inputs.numel())
        return nodes, [(time.perf_counter() - begun) / count] * count

    return run, f"dgl {dgl.__version__}, torch {torch.__version__}"


def main() -> int:
    """Serves until standard input ends."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    system, _, extra = sys.argv[1].partition("+")
    run, note = None, ""
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = {}
            if order["order"] == "prepare":
                gc.collect()
                start, began = _status("VmRSS"), time.perf_counter()
                build = build_dgl if system.startswith("dgl") else build_own
                run, note = build(Path(sys.argv[2]), system, extra == "x")
                held = _status("VmRSS") - start
                answer = {"seconds": time.perf_counter() - began, "start_bytes": start, "input_bytes": held}
            elif order["order"] == "run":
                nodes, seconds = run(order["epochs"])
                answer = {"losses": nodes, "seconds": seconds}
            elif order["order"] == "finish":
                answer = {"peak_bytes": _status("VmHWM"), "note": note}
        except Exception:
            traceback.print_exc()
            answer = {"error": traceback.format_exc().splitlines()[-1]}
        out.write(json.dumps(answer) + "\n")
        out.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
