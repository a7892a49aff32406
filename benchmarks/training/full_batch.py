"""Full-batch GCN: GraphWeft against PyTorch Geometric, a hand-written torch.sparse GCN and DGL, in one run per twin.

    python benchmarks/training/full_batch.py corafull reddit --dgl-python /path/to/dgl/bin/python
    python benchmarks/training/full_batch.py all --scale 0.01 --rounds 2        # does everything work?

One line per twin and system: ``graphweft``; ``default`` (GCNConv on an edge list, dense features where they fit);
``best`` (the fastest of GCNConv and a hand-written product on CSR tensors, with dense or sparse features); ``dgl`` (the
fastest of GraphConv with dense or sparse features); ``tuned`` (the fastest of the hand-written product and GraphConv
when the transpose of sparse features is made beforehand, by hand); ``program`` (``by_hand.cpp``, a program in C++ that
was written for three layers of these widths alone). ``--lines`` chooses among them. Candidates are tried for three
epochs, the fastest stays. An epoch is forward, loss, backward and update after warm-up; memory is the peak resident set
of the system's own process above what it held after its imports, input included.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import case as cases
from harness import (
    RESULTS,
    BenchError,
    Worker,
    closing,
    environment,
    fastest,
    interleave,
    refcheck,
    show,
    stamp,
    warmed_up,
    write_csv,
)  # fmt: skip

from graphweft.data.synthetic import synthetic

TWINS: dict[str, dict[str, Any]] = {
    "corafull": {},
    "physics": {},
    "amazon-computers": {},
    "ppi": {},
    "nell": {"nonzeros_per_row": 48},
    "flickr": {},
    "ogbn-arxiv": {"bidirected": True},
    "reddit": {"scale": 0.25},
    "ogbn-products": {"scale": 0.25},
}
WORKER = Path(__file__).with_name("worker.py")
REFERENCE_EPOCHS = 3
LINES = ("default", "best", "dgl", "tuned", "program")
COLUMNS = ("twin", "system", "form", "epoch_ms", "spread", "times_ours", "peak_mib", "memory_times_ours", "prepare_s")


def _candidates(meta: cases.Meta, asked: Sequence[str], with_dgl: bool) -> dict[str, list[str]]:
    """For every line of the table the systems that compete for it."""
    forms = [form for form, there in (("", meta.has_dense), ("-sparse", meta.has_sparse)) if there]
    lines = {"graphweft": ["graphweft"], "default": ["pyg-default"]}
    lines["best"] = [f"{system}{form}" for system in ("pyg-csr", "csr") for form in forms]
    if with_dgl:
        lines["dgl"] = [f"dgl{form}" for form in forms]
    if meta.has_sparse:
        lines["tuned"] = ["csr-tuned", *(["dgl-tuned"] if with_dgl else [])]
    lines["program"] = [f"by-hand{forms[-1]}"]
    return {line: systems for line, systems in lines.items() if line == "graphweft" or line in asked}


def measure(name: str, case: cases.Case, arguments: argparse.Namespace) -> list[dict[str, object]]:
    """One twin: candidates, reference check, interleaved turns; rows for the table."""
    lines = _candidates(case.meta, arguments.lines, bool(arguments.dgl_python))
    own_environment = environment(arguments.threads)

    def start(system: str) -> Worker:
        python = arguments.dgl_python if system.startswith("dgl") else sys.executable
        return Worker(system, [python, str(WORKER), system, str(case.folder)], own_environment)

    chosen: dict[str, Worker] = {}
    losses: dict[str, list[float]] = {}
    guess: dict[str, float] = {}

    def body() -> None:
        first = start("graphweft")  # settles what is measured once per machine and graph, and kept in the cache
        started.append(first)
        warmed_up([first], 1)
        first.close()
        for line, systems in lines.items():
            workers = [start(system) for system in systems]
            started.extend(workers)
            seen, seconds = warmed_up(workers, REFERENCE_EPOCHS)
            losses.update(seen)
            guess.update(seconds)
            chosen[line] = fastest(workers, seconds)
        refcheck(losses, "graphweft")
        interleave(list(chosen.values()), arguments.rounds, arguments.turn, guess)
        for worker in chosen.values():
            worker.finish()

    started: list[Worker] = []
    closing(started, body)
    return _rows(name, case.meta, chosen, arguments.scale)


def _rows(name: str, meta: cases.Meta, chosen: dict[str, Worker], scale: float) -> list[dict[str, object]]:
    ours = chosen["graphweft"].result
    rows: list[dict[str, object]] = []
    for line, worker in chosen.items():
        result = worker.result
        rows.append(
            {
                "twin": name,
                "scale": scale,
                "num_nodes": meta.num_nodes,
                "num_edges": meta.num_edges,
                "num_features": meta.num_features,
                "sparsity": round(meta.sparsity, 5),
                "hidden": meta.hidden,
                "layers": meta.layers,
                "system": line,
                "form": result.system,
                "epoch_ms": round(result.median_ms, 3),
                "spread": round(result.spread, 3),
                "epochs": len(result.seconds),
                "times_ours": round(result.median_ms / ours.median_ms, 2),
                "peak_mib": round(result.peak_above_start / 2**20, 1),
                "input_mib": round(result.input_bytes / 2**20, 1),
                "memory_times_ours": round(result.peak_above_start / max(ours.peak_above_start, 1), 2),
                "prepare_s": round(result.prepare_seconds, 3),
                "note": result.note,
            }
        )
    return rows


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("twins", nargs="+", help=f"'all', or of {', '.join(TWINS)}")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the twin's own scale")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--turn", type=float, default=0.5, help="seconds of counted epochs in a turn")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dgl-python", default="", help="interpreter of an environment with DGL; empty: without DGL")
    parser.add_argument("--lines", nargs="+", choices=LINES, default=list(LINES), help="beside GraphWeft's own")
    parser.add_argument("--out", type=Path, default=RESULTS / "full_batch.csv")
    arguments = parser.parse_args(given)
    unknown = [twin for twin in arguments.twins if twin != "all" and twin not in TWINS]
    if unknown:
        parser.error(f"unknown twin {', '.join(unknown)}; expected 'all' or of {', '.join(TWINS)}")
    return arguments


def _twins(asked: Iterable[str]) -> list[str]:
    return list(TWINS) if "all" in asked else list(asked)


def main(given: list[str] | None = None) -> int:
    """Measures the twins asked for; the exit status is 1 if a system failed on one."""
    arguments = _arguments(given)
    failed = False
    for name in _twins(arguments.twins):
        options = dict(TWINS[name])
        scale = options.pop("scale", 1.0) * arguments.scale
        ds = synthetic(name, scale=scale, seed=arguments.seed, **options)
        with tempfile.TemporaryDirectory(prefix="graphweft-bench-") as folder:
            case = cases.save(
                Path(folder), ds, hidden=arguments.hidden, layers=arguments.layers, lr=arguments.lr,
                seed=arguments.seed,
            )  # fmt: skip
            del ds
            try:
                rows = measure(name, case, arguments)
            except BenchError as failure:
                sys.stderr.write(f"{name}: {failure}\n")
                failed = True
                continue
        show(f"{name}: {case.meta.num_nodes:,} nodes, {case.meta.num_edges:,} edges", rows, COLUMNS)
        write_csv(arguments.out, [{**row, **stamp(arguments.threads)} for row in rows])
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
