"""R-GCN and HGT (2 layers, 64 hidden) on typed graphs, all edges both ways, against their peers in one run.

    python benchmarks/training/typed.py aifb.npz rgcn --dgl-python /path/to/dgl/bin/python
    python benchmarks/training/typed.py rgcn --relations 4 16 64 128   # ours on random graphs, paired in one run
    python benchmarks/training/typed.py aifb.npz rgcn --relations 4 16 128 --split dst   # on the edges of a data set

One line per system. Losses are compared before anything is timed; an epoch is forward, loss, backward and update after
warm-up; memory is the peak resident set of the system's own process above what it held after its imports. A pair is a
relation and a node; every pair has a row that is multiplied by a matrix.

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
import torch
import typed_relations
from harness import RESULTS, BenchError, Result, figures, paired, show, stamp, write_csv

from graphweft.data.dataset import Dataset
from graphweft.data.load import load
from graphweft.graph.graph import Graph

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
    return _save_graph(folder, ds.name, ds, ds.graph.add_inverse_relations(), hidden)


def save_regrouped(folder: Path, ds: Dataset, relations: int, split: str, hidden: int) -> cases.Case:
    """The same edges under so many relations, inverses among them."""
    name = f"{ds.name} as {relations}, split by {split}"
    return _save_graph(folder, name, ds, typed_relations.regrouped(ds, relations, split), hidden)


def _save_graph(folder: Path, name: str, ds: Dataset, graph: Graph, hidden: int) -> cases.Case:
    arrays = {
        "edge_index": np.stack([end.numpy() for end in graph.edges()]),
        "edge_type": graph.edge_type().numpy(),
        "y": ds.y.numpy(),
        "train_idx": ds.labelled("train").numpy(),
    }
    return _save(folder, name, arrays, ds.num_classes, hidden)


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
    src, dst, kind = (torch.from_numpy(end) for end in (*case.array("edge_index"), case.array("edge_type")))
    about = {
        "graph": case.meta.name,
        "model": model,
        "num_nodes": case.meta.num_nodes,
        "num_edges": case.meta.num_edges,
        "num_relations": int(kind.max()) + 1,
        "num_pairs": typed_relations.num_pairs(src, dst, kind, case.meta.num_nodes),
    }
    return {**about, **figures(result, first)}


def main(given: list[str] | None = None) -> int:
    """Measures one graph and model; the exit status is 1 if a system failed or computes another loss."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", default="", help="a typed dataset's name or path")
    parser.add_argument("model", choices=("rgcn", "hgt"))
    parser.add_argument(
        "--relations", type=int, nargs="*", default=[], help="of ours alone; without data on random graphs"
    )
    parser.add_argument(
        "--split", choices=typed_relations.ENDS, default="dst", help="what tells parts of a relation apart"
    )
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
                ds = load(arguments.data) if arguments.data else None
                made = []
                for count in arguments.relations:
                    (folder / str(count)).mkdir()
                    if ds is None:
                        made.append(save_random(folder / str(count), count, arguments.hidden))
                    else:
                        made.append(save_regrouped(folder / str(count), ds, count, arguments.split, arguments.hidden))
                case, rows = made[0], measure_growth(made, arguments)
            else:
                case = save_file(folder, arguments.data, arguments.hidden)
                rows = measure(case, arguments)
        except BenchError as failure:
            sys.stderr.write(f"{arguments.model}: {failure}\n")
            return 1
    title = f"{arguments.model} on {case.meta.name}: {case.meta.num_nodes:,} nodes, {case.meta.num_edges:,} edges"
    columns = ("graph", "num_pairs", *COLUMNS) if arguments.relations else COLUMNS
    show(title, rows, columns)
    write_csv(arguments.out, [{**row, **stamp(arguments.threads)} for row in rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
