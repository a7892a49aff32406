"""Ranks against one process on one host: epochs, losses, memory, bytes against the report, exchanges, halos, parts.

``python benchmarks/dist/host.py KIND [--data ogbn-arxiv] [--scale 1.0] ...`` appends rows to
``benchmarks/results/ranks_host.csv``; KIND is cost, prediction, same, memory, exchange, halo or parts. Ranks are
processes of one thread each; turns of both sides alternate. The losses of both sides have to agree, to 1e-5 in full
batches, before a row is written. ``--kept`` is a folder for partitions, so that a second call need not make them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dist.rank_cases import as_ranks
from harness import RESULTS, BenchError, show, stamp, write_csv

import graphweft as gw
from graphweft.data.dataset import training_labels
from graphweft.data.synthetic import synthetic
from graphweft.dist.board import Board
from graphweft.partitioning.partition import Partition
from graphweft.partitioning.report import HALO
from graphweft.train import ranked_full
from graphweft.train.ranked_full import exchange_of

COLUMNS = ("kind", "graph", "model", "ranks", "method", "value", "other", "ratio", "note")
Row = dict[str, object]


def command(*words: str) -> dict[str, Any]:
    """``graphweft WORDS --json``: its answer."""
    done = subprocess.run(
        [sys.executable, "-m", "graphweft", *words, "--json"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BenchError(done.stderr.strip()[-300:])
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def losses(folder: Path) -> list[float]:
    """Of every epoch of a run."""
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def data_of(arguments: argparse.Namespace) -> list[str]:
    return ["--data", arguments.data, *(["--scale", str(arguments.scale)] if arguments.scale else [])]


def model_of(arguments: argparse.Namespace) -> list[str]:
    flags = ["--model", arguments.model, "--layers", str(arguments.layers), "--hidden", str(arguments.hidden)]
    return [*flags, "--mode", arguments.mode, *(["--fanouts", "10,10"] if arguments.mode == "mini" else [])]


def differ(a: list[float], b: list[float], bound: float = 1e-5) -> float:
    """The largest relative difference of losses. Raises: BenchError above ``bound``."""
    most = max(abs(x - y) / abs(x) for x, y in zip(a, b, strict=True))
    if most > bound:
        raise BenchError(f"losses differ by {most:.1e}")
    return most


def cost(arguments: argparse.Namespace) -> list[Row]:
    """Median epochs of two ranks and of one process with two threads, in turns, on parts that were made before."""
    ds = synthetic(arguments.data, scale=arguments.scale, seed=0)
    made = parted(arguments, ds, arguments.method)
    seconds, told = timed(arguments, ds, {"one": None, "two": made})
    apart = differ(told["one"], told["two"], 1e-5 if arguments.mode == "full" else 1e-4)  # an update a batch
    one, two = seconds["one"], seconds["two"]
    return [row(f"cost {arguments.mode}", arguments, 2, made.method, two, one, two / one, f"losses within {apart:.0e}")]


def prediction(arguments: argparse.Namespace) -> list[Row]:
    """Median epochs of two ranks on the parts of every method, in turns, against what the report predicts."""
    ds = synthetic(arguments.data, scale=arguments.scale, seed=0)
    model = getattr(gw.nn, arguments.model.upper()).for_data(ds, arguments.hidden, num_layers=arguments.layers)
    epoch = exchange_of(model, ds.labelled("train"), "exact", ds.x)
    made = {}
    for method in arguments.methods.split(","):
        try:
            made[method] = parted(arguments, ds, method)
        except gw.errors.GraphError as failure:
            print(f"{method}: {failure}", file=sys.stderr)
    if arguments.turns == 0:  # partitions alone
        return []
    seconds, told = timed(arguments, ds, made)
    for losses in told.values():
        differ(next(iter(told.values())), losses)
    found = {method: one.predict(epoch) for method, one in made.items()}
    places = [sorted(made, key=order) for order in (lambda name: seconds[name], lambda name: found[name].seconds)]
    rows = []
    for method, one in found.items():
        terms = f"compute {1e3 * max(one.compute):.1f}, halo {1e3 * max(one.halo):.1f} ms"
        note = f"measured, predicted; place {places[0].index(method) + 1}, {places[1].index(method) + 1}; {terms}"
        rows.append(
            row("prediction", arguments, 2, method, seconds[method], one.seconds, seconds[method] / one.seconds, note)
        )
    return rows


def parted(arguments: argparse.Namespace, ds: gw.Dataset, method: str) -> Partition:
    """Two parts, from the folder of partitions where they are there."""
    if arguments.kept is None:
        return gw.partition(ds.graph, 2, method, training_labels(ds))
    file = Path(arguments.kept) / f"{arguments.data}-{arguments.scale}-{method}.npz"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        gw.partition(ds.graph, 2, method, training_labels(ds)).save(file)
    return Partition.load(file, ds.graph)


def timed(
    arguments: argparse.Namespace, ds: gw.Dataset, parts: dict[str, Partition | None]
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Median epochs and losses of ranks on these parts, in turns; None: one process."""
    seconds: dict[str, list[float]] = {name: [] for name in parts}
    told: dict[str, list[float]] = {}
    for _ in range(arguments.turns):
        for name, made in parts.items():
            ranked_full.owners = lambda ranks, graph, epoch, made=made: made.part.long()
            ranks, folder = 1 if made is None else made.k, Path(tempfile.mkdtemp())
            Board.create(folder / "board", ranks)
            if as_ranks(ranks, folder, partial(_epochs, arguments, ds, folder)):
                raise BenchError("a process failed")
            answer = json.loads((folder / "answer").read_text())
            seconds[name].append(answer["seconds"])
            told[name] = answer["losses"]
    return {name: statistics.median(found) for name, found in seconds.items()}, told


def _epochs(arguments: argparse.Namespace, ds: gw.Dataset, folder: Path) -> None:
    """Trains; the first rank leaves the median epoch and all losses."""
    ranks = gw.dist.Ranks.join()
    torch.set_num_threads(2 if ranks.size == 1 else 1)
    torch.manual_seed(0)
    model = getattr(gw.nn, arguments.model.upper()).for_data(ds, arguments.hidden, num_layers=arguments.layers)
    drawn = {} if arguments.mode == "full" else {"fanouts": (10,) * arguments.layers}
    options = {"mode": arguments.mode, "eval_every": arguments.epochs, "restore_best": False, **drawn}
    history = gw.Trainer(model, ds, ranks=ranks, **options).fit(arguments.epochs)
    if ranks.is_first:
        middle = statistics.median(history["epoch_seconds"][1:])
        (folder / "answer").write_text(json.dumps({"seconds": middle, "losses": history["loss"]}))
    ranks.leave()


def same(arguments: argparse.Namespace) -> list[Row]:
    """Losses of ten epochs for 1 to 4 ranks."""
    rows, told = [], {}
    with tempfile.TemporaryDirectory() as name:
        for ranks in (1, 2, 3, 4):
            out = Path(name) / str(ranks)
            flags = ["--epochs", "10", "--eval-every", "10", "--out", str(out), "--threads", "2", "--quiet"]
            answer = command(
                "train",
                *data_of(arguments),
                *model_of(arguments),
                *flags,
                *(["--ranks", str(ranks)] if ranks > 1 else []),
            )
            told[ranks] = losses(out)
            apart = differ(told[1], told[ranks])
            rows.append(
                row("same", arguments, ranks, "auto", told[ranks][-1], told[1][-1], apart, f"test {answer['test_acc']}")
            )
    return rows


def memory(arguments: argparse.Namespace) -> list[Row]:
    """Peak of a rank that reads its part alone, above a bare import, against one process; bytes against the report."""
    with tempfile.TemporaryDirectory() as name:
        parts = Path(name) / "parts"
        flags = [*data_of(arguments), "--parts", "4", "--model", arguments.model, "--layers", str(arguments.layers)]
        flags += ["--hidden", str(arguments.hidden), "--method", arguments.method]
        report = command("partition", *flags, "--out", str(parts))
        train = [*model_of(arguments), "--epochs", "3", "--threads", "4", "--quiet"]
        one = command("train", *data_of(arguments), *train, "--out", f"{name}/one")
        many = command("train", "--data", str(parts), "--ranks", "4", *train, "--out", f"{name}/many")
    bare = float(
        subprocess.run(
            [sys.executable, "-c", "import graphweft.run, psutil; print(psutil.Process().memory_info().rss / 2**20)"],
            capture_output=True, text=True, check=True,
        ).stdout
    )  # fmt: skip
    mine, whole = many["peak_rss_mb"] - bare, one["peak_rss_mb"] - bare
    sent, predicted = many["bytes_sent_per_epoch"], report["predicted_bytes_per_epoch"]
    return [
        row("memory MiB", arguments, 4, report["method"], mine, whole, mine / whole, f"bare import {bare:.0f} MiB"),
        row("bytes", arguments, 4, report["method"], sent, predicted, sent / predicted, "sent, predicted"),
    ]


def exchange(arguments: argparse.Namespace) -> list[Row]:
    """CPU time of an exchange between two ranks against a copy of the bytes, with and without sockets."""
    found = Path(tempfile.mkdtemp())
    Board.create(found / "board", 2)

    def act() -> None:
        ranks = gw.dist.Ranks.join()
        near, rows = ranks._near, []
        for mib in (1, 8, 64):
            count = 100 if mib == 1 else 40 if mib == 8 else 10
            sent = [torch.zeros((mib << 20) * (r != ranks.rank), dtype=torch.uint8) for r in range(2)]
            got = [torch.zeros_like(part) for part in sent]
            a, b = (torch.zeros(mib << 20, dtype=torch.uint8) for _ in range(2))
            spent: dict[str, list[float]] = {"copy": [], "same host": [], "gloo": []}
            for name in list(spent) * arguments.turns:
                ranks._near = near if name == "same host" else None
                turn = partial(b.copy_, a) if name == "copy" else partial(ranks.exchange, sent, got)
                turn()
                begun = time.process_time()
                for _ in range(count):
                    turn()
                spent[name].append((time.process_time() - begun) / count)
                ranks.texts("")
            ranks._near = near
            middle = {name: statistics.median(values) for name, values in spent.items()}
            for name in ("same host", "gloo"):
                values = (1e3 * middle[name], 1e3 * middle["copy"], middle[name] / middle["copy"])
                rows.append(row(f"exchange {mib} MiB, CPU ms", arguments, 2, name, *values, "other: one copy"))
        if ranks.is_first:
            (found / "rows").write_text(json.dumps(rows))
        ranks.leave()

    if as_ranks(2, found, act):
        raise BenchError("a rank failed")
    rows: list[Row] = json.loads((found / "rows").read_text())
    return [{**one, "graph": "", "model": ""} for one in rows]


def halo(arguments: argparse.Namespace) -> list[Row]:
    """Test accuracy at the best validation epoch with shorter rows, over seeds; bytes against those of exact rows."""
    rows, found, sent = [], dict[str, list[float]](), dict[str, float]()
    with tempfile.TemporaryDirectory() as name:
        for seed in range(3):
            for form in HALO:
                flags = ["--epochs", str(arguments.epochs), "--seed", str(seed), "--dropout", "0.5", "--ranks", "2"]
                flags += ["--weight-decay", "5e-4", "--weight-decay-on", "first", "--threads", "2", "--quiet"]
                flags += ["--halo", form, "--out", f"{name}/{form}-{seed}"]
                answer = command("train", *data_of(arguments), *model_of(arguments), *flags)
                found.setdefault(form, []).append(answer["test_acc_at_best_val"])
                sent[form] = answer["bytes_sent_per_epoch"]
    exact = statistics.mean(found["exact"])
    for form, scores in found.items():
        mean = statistics.mean(scores)
        note = f"test accuracy, 3 seeds; bytes of exact rows over these {sent['exact'] / sent[form]:.2f}"
        rows.append(row("halo accuracy", arguments, 2, form, mean, exact, mean - exact, note))
    return rows


_PARTS = """
import sys, time, torch, graphweft as gw
torch.set_num_threads(2)
method, nodes, entries, k = sys.argv[1], *map(int, sys.argv[2:])
draw = torch.Generator().manual_seed(0)
half, size = entries // 2, 1000
src = (torch.rand(half, generator=draw) ** 2 * nodes).long()
near = src // size * size + torch.randint(0, size, (half,), generator=draw)
dst = torch.where(torch.rand(half, generator=draw) < 0.8, near, torch.randint(0, nodes, (half,), generator=draw))
graph = gw.Graph(torch.cat([src, dst]), torch.cat([dst, src]), num_nodes=nodes)
held = graph.csc.indptr.nbytes + graph.csc.indices.nbytes
gw.partition(gw.Graph([0, 1], [1, 0]), 2, method)
del src, dst, near
open("/proc/self/clear_refs", "w").write("5")
before = int(open("/proc/self/statm").read().split()[1]) * 4096
begun = time.perf_counter()
made = gw.partition(graph, k, method)
seconds = time.perf_counter() - begun
peak = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(seconds, peak - before, held, made.report.cut / graph.num_edges)
"""


def parts(arguments: argparse.Namespace) -> list[Row]:
    """Seconds and memory of partitioning 1 M nodes with 10 M entries into 8, and the share of edges that are cut."""
    rows = []
    for method in ("gap", "multilevel", "metis"):
        words = [sys.executable, "-c", _PARTS, method, "1000000", "10000000", "8"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchError(done.stderr.strip()[-300:])
        seconds, peak, size, cut = map(float, done.stdout.split())
        note = f"seconds; other: bytes beside the graph's {size / 1e6:.0f} MB, ratio: to those; cut {cut:.4f}"
        made = row("partition 1 M nodes, 10 M entries", arguments, 8, method, seconds, peak, peak / size, note)
        rows.append({**made, "graph": "planted communities", "model": ""})
    return rows


def row(kind: str, arguments: argparse.Namespace, ranks: int, method: str, *values: object) -> Row:
    """One row of the table."""
    named = {"value": values[0], "other": values[1], "ratio": values[2], "note": values[3]}
    shown = {name: f"{held:.5g}" if isinstance(held, float) else held for name, held in named.items()}
    model = f"{arguments.model} {arguments.layers}x{arguments.hidden}"
    return {
        "kind": kind,
        "graph": f"{arguments.data}@{arguments.scale}",
        "model": model,
        "ranks": ranks,
        "method": method,
        **shown,
    }


def main() -> None:
    """Measures one kind and appends its rows."""
    kinds = {"cost": cost, "memory": memory, "exchange": exchange, "same": same, "halo": halo, "parts": parts}
    kinds |= {"prediction": prediction}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("--data", default="ogbn-arxiv")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--model", default="gcn")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--mode", default="full")
    parser.add_argument("--method", default="gap")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--methods", default="metis,multilevel,components,greedy,gap,random")  # of prediction
    parser.add_argument("--kept")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = kinds[arguments.kind](arguments)
    show(f"ranks on one host: {arguments.kind}", rows, COLUMNS)
    mark = stamp(2)
    write_csv(RESULTS / "ranks_host.csv", [{**one, **mark} for one in rows])


if __name__ == "__main__":
    main()
