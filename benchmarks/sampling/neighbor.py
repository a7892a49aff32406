"""Neighbour sampling with renumbering, and with features, against the samplers of peers, paired in one run.

``python benchmarks/sampling/neighbor.py [--twin ogbn-products] [--scale 0.25] [--dgl-python PYTHON] [--pyg-python
PYTHON]``. Lines: ``each`` (one batch at a time, all threads on it), ``single`` (the same on one thread), ``ahead``
(batches in parallel), ``dgl``, ``graphbolt`` (DGL's other loader), ``pyg`` (NeighborLoader, which needs pyg-lib or
torch-sparse); with ``+x`` rows of features are gathered too. A peer that does not run has a line with the reason in its
note. Before timing, every system but ``pyg`` has shown that its blocks have min(in-degree, fan-out) edges per
destination, and all that their batches have as many distinct nodes as ours, within ten per cent: DGL draws anew for a
node in every hop, we once a batch. DGL runs fused on 64-bit ids (``dgl``) and unfused on 32-bit ids (``dgl-int32``);
fused on 32-bit ids its 2.1.0 loses nodes from batch to batch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import RESULTS, BenchError, Worker, closing, environment, interleave, show, stamp, warmed_up, write_csv

from graphweft.data.synthetic import synthetic

WORKER = Path(__file__).parent / "worker.py"
COLUMNS = ("system", "batches_per_s", "batch_ms", "spread", "batches", "times_slower", "nodes", "peak_mib")


def save(folder: Path, arguments: argparse.Namespace) -> tuple[int, int]:
    """Writes the case; number of nodes and edges."""
    ds = synthetic(arguments.twin, scale=arguments.scale)
    csc = ds.graph.csc
    generator = torch.Generator().manual_seed(0)
    seeds = ds.train_idx[torch.randperm(ds.train_idx.numel(), generator=generator)]
    x = ds.x if isinstance(ds.x, torch.Tensor) else torch.randn(ds.num_nodes, 128, generator=generator)
    for name, tensor in (("indptr", csc.indptr), ("indices", csc.indices), ("seeds", seeds), ("x", x)):
        np.save(folder / f"{name}.npy", tensor.numpy())
    case = {"fanouts": arguments.fanouts, "batch_size": arguments.batch_size, "threads": arguments.threads}
    (folder / "case.json").write_text(json.dumps(case))
    return ds.num_nodes, ds.num_edges


def measure(folder: Path, systems: list[str], arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Interleaved turns of all systems; rows of the table."""
    own = environment(arguments.threads)
    workers = [Worker(s, [python_of(s, arguments), str(WORKER), s, str(folder)], own) for s in systems]
    nodes: dict[str, float] = {}
    absent: dict[str, str] = {}

    def body() -> None:
        guess: dict[str, float] = {}
        for worker in workers:
            system = worker.system
            try:
                seen, guessed = warmed_up([worker], arguments.check_batches)
            except BenchError as failure:
                if is_own(system):
                    raise
                absent[system] = " ".join(str(failure).split())
                continue
            guess |= guessed
            nodes[system] = statistics.mean(seen[system])
            if abs(nodes[system] / nodes[systems[0]] - 1) > 0.10:
                raise BenchError(f"{system}: expected {nodes[systems[0]]:.0f} nodes a batch, got {nodes[system]:.0f}")
        running = [worker for worker in workers if worker.system in guess]
        interleave(running, arguments.rounds, arguments.turn, guess)
        for worker in running:
            worker.finish()

    closing(workers, body)
    best = min(w.result.median_ms for w in workers if is_own(w.system))
    return [row_of(w, best, nodes) if w.system in nodes else row_without(w.system, absent[w.system]) for w in workers]


def row_of(worker: Worker, best: float, nodes: Mapping[str, float]) -> dict[str, object]:
    """A line of the table; ``best`` is our median batch in milliseconds."""
    result = worker.result
    return {
        "system": worker.system,
        "batches_per_s": round(1e3 / result.median_ms, 1),
        "batch_ms": round(result.median_ms, 2),
        "spread": round(result.spread, 3),
        "batches": len(result.seconds),
        "times_slower": round(result.median_ms / best, 2),
        "nodes": round(nodes[worker.system]),
        "peak_mib": round(result.peak_above_start / 2**20, 1),
        "note": result.note,
    }


def row_without(system: str, why: str) -> dict[str, object]:
    """The line of a system that does not run here."""
    return {**dict.fromkeys(COLUMNS, ""), "system": system, "note": why}


def is_own(system: str) -> bool:
    """Whether it is this package."""
    return system.startswith(("each", "single", "ahead"))


def python_of(system: str, arguments: argparse.Namespace) -> str:
    """The interpreter that a system runs in."""
    if is_own(system):
        return sys.executable
    return str(arguments.pyg_python if system.startswith("pyg") else arguments.dgl_python)


def main() -> int:
    """Measures sampling alone, then with features."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--twin", default="ogbn-products")
    parser.add_argument("--scale", type=float, default=0.25)
    parser.add_argument("--fanouts", type=lambda text: [int(k) for k in text.split(",")], default=[15, 10, 5])
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--turn", type=float, default=0.4, help="seconds of counted batches in a turn")
    parser.add_argument("--check-batches", type=int, default=8)
    parser.add_argument("--dgl-python", default="", help="interpreter of an environment with DGL; empty: without DGL")
    parser.add_argument("--pyg-python", default="", help="the same with torch_geometric and pyg-lib or torch-sparse")
    parser.add_argument("--out", type=Path, default=RESULTS / "neighbor_sampling.csv")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="graphweft-bench-") as place:
        num_nodes, num_edges = save(Path(place), arguments)
        for extra in ("", "+x"):
            names = ["each", "single", "ahead", *(["dgl", "dgl-int32", "graphbolt"] if arguments.dgl_python else [])]
            names += ["pyg"] if arguments.pyg_python else []
            rows = measure(Path(place), [name + extra for name in names], arguments)
            head = {"twin": arguments.twin, "scale": arguments.scale, "num_nodes": num_nodes, "num_edges": num_edges}
            head |= {"fanouts": " ".join(map(str, arguments.fanouts)), "batch_size": arguments.batch_size}
            show(f"{arguments.twin} x {arguments.scale}: {num_nodes:,} nodes, {num_edges:,} edges", rows, COLUMNS)
            write_csv(arguments.out, [{**head, **row, **stamp(arguments.threads)} for row in rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
