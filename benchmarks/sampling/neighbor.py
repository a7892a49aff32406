"""Neighbour sampling with renumbering, and with features, against DGL's sampler, paired in one run.

``python benchmarks/sampling/neighbor.py [--twin ogbn-products] [--scale 0.25] [--dgl-python PYTHON]``. Lines: ``each``
(one batch at a time, all threads on it), ``ahead`` (batches in parallel), ``dgl``; with ``+x`` feature rows are
gathered too. Before timing, every system has shown that its blocks have min(in-degree, fan-out) edges per destination,
and that its batches have as many distinct nodes as ours, within ten per cent: DGL draws anew for a node in every hop,
we once a batch. DGL runs fused on 64-bit ids (``dgl``) and unfused on 32-bit ids (``dgl-int32``); fused on 32-bit ids
its 2.1.0 loses nodes from batch to batch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
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
    pythons = {system: arguments.dgl_python if system.startswith("dgl") else sys.executable for system in systems}
    workers = [Worker(s, [pythons[s], str(WORKER), s, str(folder)], own) for s in systems]
    nodes: dict[str, float] = {}

    def body() -> None:
        seen, guess = warmed_up(workers, arguments.check_batches)
        nodes.update({system: statistics.mean(counts) for system, counts in seen.items()})
        for system, count in nodes.items():
            if abs(count / nodes[systems[0]] - 1) > 0.10:
                raise BenchError(f"{system}: expected {nodes[systems[0]]:.0f} distinct nodes a batch, got {count:.0f}")
        interleave(workers, arguments.rounds, arguments.turn, guess)
        for worker in workers:
            worker.finish()

    closing(workers, body)
    best = min(w.result.median_ms for w in workers if not w.system.startswith("dgl"))
    return [
        {
            "system": w.system,
            "batches_per_s": round(1e3 / w.result.median_ms, 1),
            "batch_ms": round(w.result.median_ms, 2),
            "spread": round(w.result.spread, 3),
            "batches": len(w.result.seconds),
            "times_slower": round(w.result.median_ms / best, 2),
            "nodes": round(nodes[w.system]),
            "peak_mib": round(w.result.peak_above_start / 2**20, 1),
            "note": w.result.note,
        }
        for w in workers
    ]


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
    parser.add_argument("--out", type=Path, default=RESULTS / "neighbor_sampling.csv")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="graphweft-bench-") as place:
        num_nodes, num_edges = save(Path(place), arguments)
        for extra in ("", "+x"):
            systems = [
                f"{name}{extra}" for name in ("each", "ahead", *(["dgl", "dgl-int32"] if arguments.dgl_python else []))
            ]
            rows = measure(Path(place), systems, arguments)
            head = {"twin": arguments.twin, "scale": arguments.scale, "num_nodes": num_nodes, "num_edges": num_edges}
            head |= {"fanouts": " ".join(map(str, arguments.fanouts)), "batch_size": arguments.batch_size}
            show(f"{arguments.twin} x {arguments.scale}: {num_nodes:,} nodes, {num_edges:,} edges", rows, COLUMNS)
            write_csv(arguments.out, [{**head, **row, **stamp(arguments.threads)} for row in rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
