"""Peak memory of a full-batch GCN as edges grow and nodes stay: GraphWeft, and PyTorch Geometric on an edge list.

    python benchmarks/training/edge_growth.py --degrees 10 50 200
    python benchmarks/training/edge_growth.py --systems gat-model ngcf-model   # other models of ours
    python benchmarks/training/edge_growth.py --typed rgcn hgt --nodes 20000   # ours, 8 relations, 64 hidden

A kernel that gathers a row per edge grows with edges times features; one that does not grows with the graph alone. The
column that matters is ``peak_above_inputs_mib``: what training took beyond graph and features.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import case as cases
import typed
from harness import RESULTS, Worker, closing, environment, show, stamp, warmed_up, write_csv

from graphweft import _config
from graphweft.data.synthetic import synthetic

WORKER = Path(__file__).with_name("worker.py")
RELATIONS, HIDDEN = 8, 64  # of typed graphs
COLUMNS = ("system", "degree", "num_edges", "input_mib", "peak_mib", "peak_above_inputs_mib")


def measure(case: cases.Case, system: str, degree: int, threads: int) -> dict[str, object]:
    """Memory of one system after a few epochs."""
    worker = Worker(system, [sys.executable, str(WORKER), system, str(case.folder)], environment(threads))

    def body() -> None:
        warmed_up([worker], 3)
        worker.finish()

    closing([worker], body)
    result = worker.result
    return {
        "system": system,
        "degree": degree,
        "num_nodes": case.meta.num_nodes,
        "num_edges": case.meta.num_edges,
        "num_features": case.meta.num_features,
        "hidden": case.meta.hidden,
        "input_mib": round(result.input_bytes / 2**20, 1),
        "peak_mib": round(result.peak_above_start / 2**20, 1),
        "peak_above_inputs_mib": round((result.peak_above_start - result.input_bytes) / 2**20, 1),
        **stamp(threads),
    }


def main(given: list[str] | None = None) -> int:
    """Measures every degree asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=50_000)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--degrees", type=int, nargs="+", default=[10, 20, 50, 100, 200])
    parser.add_argument("--typed", nargs="+", default=[], choices=("rgcn", "hgt"), help="typed models of ours instead")
    parser.add_argument("--systems", nargs="+", default=["graphweft", "pyg-default"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS / "edge_growth.csv")
    arguments = parser.parse_args(given)
    rows = []
    for degree in arguments.degrees if arguments.typed else ():
        with tempfile.TemporaryDirectory(prefix="graphweft-bench-") as folder:
            sizes = (arguments.nodes, degree * arguments.nodes)
            case = typed.save_random(Path(folder), RELATIONS, HIDDEN, *sizes)
            certified = {
                "certificates": _config.current().certify
            }  # they hold small graphs' rows in float64 for a moment
            found = [measure(case, f"{name}-graphweft", degree, arguments.threads) for name in arguments.typed]
            rows += [{**row, **certified} for row in found]
    for degree in () if arguments.typed else arguments.degrees:
        ds = synthetic(
            "default", num_nodes=arguments.nodes, num_edges=degree * arguments.nodes, num_features=arguments.features
        )
        with tempfile.TemporaryDirectory(prefix="graphweft-bench-") as folder:
            case = cases.save(Path(folder), ds, hidden=32, layers=3, lr=0.01, seed=0)
            del ds
            rows += [measure(case, system, degree, arguments.threads) for system in arguments.systems]
    show("memory as edges grow", rows, COLUMNS)
    write_csv(arguments.out, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
