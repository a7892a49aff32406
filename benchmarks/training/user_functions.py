"""Layers written as user functions: compiled, on the reference executor, and on DGL, in one run.

    python benchmarks/training/user_functions.py ogbn-arxiv gat --dgl-python /path/to/dgl/bin/python
    python benchmarks/training/user_functions.py ppi gcn --scale 0.01 --rounds 2        # does everything work?

Two layers, 64 hidden; the functions are those of ``user_layers.py`` in all systems, with the transforms outside of
them; in ``layer`` they stand in the ``forward`` of message-passing modules, ``whole`` has all of the layer in the
functions. ``gat`` (8 heads) stands beside the built-in model in the same training loop, ``gat-module``, and as the
trainer runs it, ``gat-graphweft``; ``times_module`` is the median over rounds of a system's turn over the module's,
with its quartiles. Losses are compared before anything is timed; an epoch is forward, loss, backward and update after
warm-up; memory is the peak resident set of the system's own process above what it held after its imports.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import case as cases
from harness import RESULTS, BenchError, figures, paired, show, stamp, write_csv

from graphweft.data.synthetic import synthetic

WORKER = Path(__file__).with_name("worker.py")
COLUMNS = ("system", "epoch_ms", "spread", "epochs", "times_ours", "peak_mib", "times_module", "quartiles", "prepare_s")


def measure(case: cases.Case, arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Reference check, then interleaved turns; rows for the table."""
    own = f"{arguments.model}-user"
    pythons = {own: sys.executable, f"{own}-layer": sys.executable, f"{own}-whole": sys.executable}
    if arguments.model == "gat":
        pythons |= {"gat-module": sys.executable, "gat-graphweft": sys.executable}
    if not arguments.alone:
        pythons |= {f"{own}-reference": sys.executable, f"{own}-dgl": arguments.dgl_python}
    commands = {s: [python, str(WORKER), s, str(case.folder)] for s, python in pythons.items() if python}
    options = {"threads": arguments.threads, "rounds": arguments.rounds, "turn_seconds": arguments.turn}
    results = paired(commands, reference_epochs=arguments.reference_epochs, **options)
    about = {
        "twin": case.meta.name,
        "scale": arguments.scale,
        "model": arguments.model,
        "num_nodes": case.meta.num_nodes,
        "num_edges": case.meta.num_edges,
    }
    by_name = {result.system: result for result in results}
    module = by_name.get("gat-module", results[0])
    rows = []
    for result in results:
        low, middle, high = result.ratio_to(module)
        ratio = {"times_module": round(middle, 3), "quartiles": f"{low:.3f} to {high:.3f}", "rounds": len(result.turns)}
        rows.append({**about, **figures(result, results[0]), **ratio})
    return rows


def main(given: list[str] | None = None) -> int:
    """Measures one model on one twin; the exit status is 1 if a system failed or computes another loss."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("twin")
    parser.add_argument("model", choices=("gcn", "gat", "cgat", "distance"))
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turn", type=float, default=0.5, help="seconds of counted epochs in a turn")
    parser.add_argument("--reference-epochs", type=int, default=3, help="epochs whose losses are compared")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--alone", action="store_true", help="without reference executor and DGL")
    parser.add_argument("--dgl-python", default="", help="interpreter of an environment with DGL; empty: without DGL")
    parser.add_argument("--out", type=Path, default=RESULTS / "user_functions.csv")
    arguments = parser.parse_args(given)
    options = {"bidirected": True} if arguments.twin == "ogbn-arxiv" else {}
    ds = synthetic(arguments.twin, scale=arguments.scale, seed=0, **options)
    with tempfile.TemporaryDirectory(prefix="graphweft-bench-") as folder:
        case = cases.save(Path(folder), ds, hidden=64, layers=2, lr=0.005, seed=0)
        del ds
        try:
            rows = measure(case, arguments)
        except BenchError as failure:
            sys.stderr.write(f"{arguments.twin}: {failure}\n")
            return 1
    title = f"user {arguments.model} on {case.meta.name}: {case.meta.num_nodes:,} nodes, {case.meta.num_edges:,} edges"
    show(title, rows, COLUMNS)
    write_csv(arguments.out, [{**row, **stamp(arguments.threads)} for row in rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
