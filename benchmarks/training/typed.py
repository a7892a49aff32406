"""R-GCN and HGT (2 layers, 64 hidden) on typed graphs, all edges both ways, against their peers in one run.

    python benchmarks/training/typed.py aifb.npz rgcn --dgl-python /path/to/dgl/bin/python
    python benchmarks/training/typed.py rgcn --relations 4 16 64 128   # ours on random graphs, paired in one run

One line per system. Losses are compared before anything is timed; an epoch is forward, loss, backward and update after
warm-up; memory is the peak resident set of the system's own process above what it held after its imports.

PyTorch Geometric's HGTConv is left out but with ``--pyg``: without pyg-lib the backward pass of its HeteroLinear copies
the rows of all edges once per relation and head, and one epoch on aifb takes more than a minute.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import case as cases
import numpy as np
from harness import RESULTS, BenchError, Result, figures, paired, show, stamp, write_csv

from graphweft.data.load import load

WORKER = Path(__file__).with_name("worker.py")
COLUMNS = ("system", "epoch_ms", "spread", "times_ours", "peak_mib", "memory_times_ours", "prepare_s")
NODES, EDGES, CLASSES = 20_000, 200_000, 4  # of the random graph


def _save(folder: Path, name: str, arrays: dict[str, np.ndarray], classes: int, hidden: int) -> cases.Case:
    nodes, edges = len(arrays["y"]), arrays["edge_index"].shape[1]
    sizes = {"num_nodes": nodes, "num_edges": edges, "num_features": nodes, "num_classes": classes}
    form = {"sparsity": 1.0 - 1.0 / nodes, "has_dense": False, "has_sparse": False, "own_form": "sparse"}
    meta = cases.Meta(name=name, hidden=hidden, layers=2, lr=0.01, **sizes, **form)
    for key, array in arrays.items():
        np.save(folder / f"{key}.npy", array)
    (folder / "meta.json").write_text(json.dumps(asdict(meta)), encoding="utf-8")
    return cases.Case(folder, meta)


def save_file(folder: Path, path: str, hidden: int) -> cases.Case:
    """A typed dataset of one node type, with every relation's inverse."""
    ds = load(path)
    graph = ds.graph.add_inverse_relations()
    arrays = {
        "edge_index": np.stack([end.numpy() for end in graph.edges()]),
        "edge_type": graph.edge_type().numpy(),
        "y": ds.y.numpy(),
        "train_idx": ds.labelled("train").numpy(),
    }
    return _save(folder, ds.name, arrays, ds.num_classes, hidden)


def save_random(folder: Path, relations: int, hidden: int, nodes: int = NODES, edges: int = EDGES) -> cases.Case:
    """Random edges, every one of a random relation."""
    rng = np.random.default_rng(0)
    arrays = {
        "edge_index": rng.integers(0, nodes, (2, edges)),
        "edge_type": np.sort(rng.integers(0, relations, edges)),
        "y": rng.integers(0, CLASSES, nodes),
        "train_idx": np.arange(nodes // 10),
    }
    return _save(folder, f"random {relations} relations", arrays, CLASSES, hidden)


def measure(case: cases.Case, arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Reference check, then interleaved turns; rows for the table."""
    peers = {} if arguments.alone else {"pyg": sys.executable, "dgl": arguments.dgl_python}
    if arguments.model == "hgt" and not arguments.pyg:
        peers.pop("pyg", None)
    pythons = {f"{arguments.model}-{s}": p for s, p in {"graphweft": sys.executable, **peers}.items() if p}
    commands = {system: [python, str(WORKER), system, str(case.folder)] for system, python in pythons.items()}
    results = paired(commands, **_turns(arguments))
    return [_row(case, arguments.model, result, results[0]) for result in results]


def measure_growth(given: list[cases.Case], arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Ours on several graphs, interleaved; ratios are those to the first."""
    system = f"{arguments.model}-graphweft"
    commands = {case.meta.name: [sys.executable, str(WORKER), system, str(case.folder)] for case in given}
    results = paired(commands, **_turns(arguments), tolerance=math.inf)
    rows = [_row(case, arguments.model, result, results[0]) for case, result in zip(given, results, strict=True)]
    return [{**row, "system": system} for row in rows]


def _turns(arguments: argparse.Namespace) -> dict[str, Any]:
    return {"threads": arguments.threads, "rounds": arguments.rounds, "turn_seconds": arguments.turn}


def _row(case: cases.Case, model: str, result: Result, first: Result) -> dict[str, object]:
    about = {
        "graph": case.meta.name,
        "model": model,
        "num_nodes": case.meta.num_nodes,
        "num_edges": case.meta.num_edges,
        "num_relations": int(case.array("edge_type").max()) + 1,
    }
    return {**about, **figures(result, first)}


def main(given: list[str] | None = None) -> int:
    """Measures one graph and model; the exit status is 1 if a system failed or computes another loss."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", default="", help="a typed dataset's name or path")
    parser.add_argument("model", choices=("rgcn", "hgt"))
    parser.add_argument("--relations", type=int, nargs="*", default=[], help="random graphs instead, of ours alone")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turn", type=float, default=0.5, help="seconds of counted epochs in a turn")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--alone", action="store_true", help="without peers")
    parser.add_argument("--pyg", action="store_true", help="with PyTorch Geometric's HGTConv, too")
    parser.add_argument("--dgl-python", default="", help="interpreter of an environment with DGL; empty: without DGL")
    parser.add_argument("--out", type=Path, default=RESULTS / "typed.csv")
    arguments = parser.parse_args(given)
    with tempfile.TemporaryDirectory(prefix="graphweft-bench-") as name:
        folder = Path(name)
        try:
            if arguments.relations:
                made = []
                for count in arguments.relations:
                    (folder / str(count)).mkdir()
                    made.append(save_random(folder / str(count), count, arguments.hidden))
                case, rows = made[0], measure_growth(made, arguments)
            else:
                case = save_file(folder, arguments.data, arguments.hidden)
                rows = measure(case, arguments)
        except BenchError as failure:
            sys.stderr.write(f"{arguments.model}: {failure}\n")
            return 1
    title = f"{arguments.model} on {case.meta.name}: {case.meta.num_nodes:,} nodes, {case.meta.num_edges:,} edges"
    columns = ("graph", *COLUMNS) if arguments.relations else COLUMNS
    show(title, rows, columns)
    write_csv(arguments.out, [{**row, **stamp(arguments.threads)} for row in rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
