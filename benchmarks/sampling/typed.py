"""Sampling by relation on a typed graph, nodes numbered by type, against DGL's sampler, paired in one run.

``python benchmarks/sampling/typed.py [--scale 0.1] [--dgl-python PYTHON]``. The graph is random, with the types,
relations and sizes of ogbn-mag and popular nodes as such graphs have them; inverses are relations too. Numbers of
distinct nodes are compared before anything is timed: DGL draws anew for a node in every hop, we once a batch.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import paired_batches
from harness import RESULTS, show, stamp, write_csv
from neighbor import COLUMNS, row_of

WORKER = Path(__file__).parent / "typed_worker.py"
OWN = ("sampled", "views", "layers")
TYPES = {"paper": 736_389, "author": 1_134_649, "institution": 8_740, "field": 59_965}  # of ogbn-mag
RELATIONS = {
    ("author", "writes", "paper"): 7_145_660,
    ("paper", "cites", "paper"): 5_416_271,
    ("author", "affiliated", "institution"): 1_043_998,
    ("paper", "about", "field"): 7_505_078,
}


def save(folder: Path, arguments: argparse.Namespace) -> tuple[int, int]:
    """Writes the case; number of nodes and edges."""
    rng = np.random.default_rng(0)
    counts = {name: max(8, int(count * arguments.scale)) for name, count in TYPES.items()}
    relations, total = [], 0
    for (src, name, dst), edges in RELATIONS.items():
        number = int(edges * arguments.scale)
        ends = [(counts[kind] * rng.random(number) ** power).astype(np.int64) for kind, power in ((src, 1), (dst, 2))]
        for relation, pair in (((src, name, dst), ends), ((dst, f"inverse {name}", src), ends[::-1])):
            for end, ids in zip(("src", "dst"), pair, strict=True):
                np.save(folder / f"{end}{len(relations)}.npy", ids)
            relations.append(relation)
        total += 2 * number
    np.save(folder / "seeds.npy", rng.permutation(counts["paper"])[: counts["paper"] // 2])
    case = {"fanouts": arguments.fanouts, "batch_size": arguments.batch_size, "target": "paper"}
    (folder / "case.json").write_text(json.dumps({**case, "num_nodes": counts, "relations": relations}))
    return sum(counts.values()), total


def measure(folder: Path, systems: list[str], arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Interleaved turns of all systems; rows of the table, ratios to our ``layers``."""
    pythons = {system: sys.executable if system in OWN else arguments.dgl_python for system in systems}
    workers, nodes = paired_batches.run(WORKER, folder, pythons, arguments)
    layers = next(worker.result.median_ms for worker in workers if worker.system == "layers")
    return [row_of(worker, layers, nodes) for worker in workers]


def main() -> int:
    """Measures one graph."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=0.1, help="of ogbn-mag's nodes and edges")
    parser.add_argument("--fanouts", type=lambda text: [int(k) for k in text.split(",")], default=[10, 10])
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--turn", type=float, default=0.4, help="seconds of counted batches in a turn")
    parser.add_argument("--check-batches", type=int, default=6)
    parser.add_argument("--dgl-python", default="", help="interpreter of an environment with DGL; empty: without DGL")
    parser.add_argument("--out", type=Path, default=RESULTS / "typed_sampling.csv")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="graphweft-bench-") as place:
        num_nodes, num_edges = save(Path(place), arguments)
        systems = [*OWN, *(("dgl", "dgl-int32") if arguments.dgl_python else ())]
        rows = measure(Path(place), systems, arguments)
        head = {"graph": "ogbn-mag shape", "scale": arguments.scale, "num_nodes": num_nodes, "num_edges": num_edges}
        head |= {"fanouts": " ".join(map(str, arguments.fanouts)), "batch_size": arguments.batch_size}
        show(f"typed graph x {arguments.scale}: {num_nodes:,} nodes, {num_edges:,} edges", rows, COLUMNS)
        write_csv(arguments.out, [{**head, **row, **stamp(arguments.threads)} for row in rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
