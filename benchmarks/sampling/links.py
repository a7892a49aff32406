"""Batches of edges to predict, with neighbourhoods and negatives, against DGL's edge prediction sampler, paired.

``python benchmarks/sampling/links.py [--twin ogbn-products] [--scale 0.05] [--dgl-python PYTHON]``. Lines: ``each``
(one batch at a time, all threads on it), ``ahead`` (batches in parallel), ``dgl``. A batch has ``--batch-size``
positives, as many uniform negatives, and messages without the positives and their reverses. Ours are exact: DGL's
negatives may be edges. Before timing, all have shown as many distinct nodes a batch as ours within ten per cent, and
ours that no excluded edge is in a batch and no negative an edge.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import paired_batches
from harness import RESULTS, show, stamp, write_csv
from neighbor import COLUMNS, row_of

from graphweft.data.synthetic import synthetic

WORKER = Path(__file__).parent / "links_worker.py"


def save(folder: Path, arguments: argparse.Namespace) -> tuple[int, int]:
    """Writes the case: a symmetric graph and its edges to predict, one direction of some pairs."""
    graph = synthetic(arguments.twin, scale=arguments.scale).graph.to_bidirected()
    src, dst = graph.edges()
    ids = (src < dst).nonzero().reshape(-1)
    ids = ids[torch.randperm(ids.numel(), generator=torch.Generator().manual_seed(0))[:500_000]]
    for name, tensor in (("src", src), ("dst", dst), ("targets", ids)):
        np.save(folder / f"{name}.npy", tensor.numpy())
    case = {"fanouts": arguments.fanouts, "batch_size": arguments.batch_size, "num_nodes": graph.num_nodes}
    (folder / "case.json").write_text(json.dumps({**case, "threads": arguments.threads}))
    return graph.num_nodes, graph.num_edges


def measure(folder: Path, systems: list[str], arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Interleaved turns of all systems; rows of the table."""
    pythons = {system: arguments.dgl_python if system == "dgl" else sys.executable for system in systems}
    workers, nodes = paired_batches.run(WORKER, folder, pythons, arguments)
    best = min(w.result.median_ms for w in workers if w.system != "dgl")
    return [row_of(worker, best, nodes) for worker in workers]


def main() -> int:
    """Measures one case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--twin", default="ogbn-products")
    parser.add_argument("--scale", type=float, default=0.05)
    parser.add_argument("--fanouts", type=lambda text: [int(k) for k in text.split(",")], default=[10, 5])
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turn", type=float, default=0.4, help="seconds of counted batches in a turn")
    parser.add_argument("--check-batches", type=int, default=4)
    parser.add_argument("--dgl-python", default="", help="interpreter of an environment with DGL; empty: without DGL")
    parser.add_argument("--out", type=Path, default=RESULTS / "link_batches.csv")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="graphweft-bench-") as place:
        num_nodes, num_edges = save(Path(place), arguments)
        rows = measure(Path(place), ["each", "ahead", *(["dgl"] if arguments.dgl_python else [])], arguments)
    head = {"twin": arguments.twin, "scale": arguments.scale, "num_nodes": num_nodes, "num_edges": num_edges}
    head |= {"fanouts": " ".join(map(str, arguments.fanouts)), "batch_size": arguments.batch_size}
    show(f"{arguments.twin} x {arguments.scale}: {num_nodes:,} nodes, {num_edges:,} edges", rows, COLUMNS)
    write_csv(arguments.out, [{**head, **row, **stamp(arguments.threads)} for row in rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
