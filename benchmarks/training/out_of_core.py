"""Training from disk against training in memory: seconds of an epoch, bytes read, peak memory, accuracy.

    python benchmarks/training/out_of_core.py --scale 0.25 --hidden 256 --epochs 3
    python benchmarks/training/out_of_core.py --scale 0.02 --hidden 16 --epochs 1 --out /dev/null   # a try

A twin of ogbn-products is prepared as stores, one of parts made by ``--method`` and one of random parts. ``--memory``
is the budget of groups and of mapped pages, an eighth of the data unless it is given. Every way then trains GraphSAGE
in a process of its own: ``memory`` draws mini-batches from the graph in memory; ``mapped`` the same with features in a
memory map, of which no more pages than the budget stay (a thread looks every 10 ms), dropped before every epoch;
``exact`` reads the rows of the same batches from the store, with room for a half or an eighth of the features (refused
where a batch alone needs more); ``groups`` is mode macro, without and with hubs, each group once or twice (``reuse``),
with a quarter of the parts kept between epochs (``keep``, which wants more ``--memory`` than an eighth of the data),
or on random parts. The first epoch does not count, nor the last, which ends with an evaluation. Peaks are above what
the process held after ``import graphweft``. Preparation and ways can be
separate commands with the same ``--folder``: ``--only prepare`` and ``--only train``. Appends to
results/out_of_core.csv.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import RESULTS, show, stamp, write_csv

import graphweft as gw

WAYS = (
    "memory",
    "mapped",
    "exact 1/2",
    "exact 1/8",
    "groups",
    "groups reuse",
    "groups hubs",
    "groups random",
    "groups keep",
)
COLUMNS = (
    "way",
    "epoch_s",
    "ratio",
    "mb_read",
    "mb_needed",
    "kb_per_request",
    "wait_s",
    "peak_mb",
    "loss",
    "test_acc",
    "note",
)
HUBS = 8  # a share of the budget


def peak() -> int:
    """Bytes: the most that the process had in memory since the start, or since it was last told to forget."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def source(options: argparse.Namespace) -> gw.Dataset:
    """The graph, with dense features."""
    return gw.synthetic("ogbn-products", scale=options.scale, homophily=0.3, seed=0)


def size_of(ds: gw.Dataset) -> int:
    """Bytes of features and structure."""
    return 4 * ds.num_nodes * ds.num_features + 4 * ds.graph.num_edges + 8 * ds.num_nodes


def prepare(options: argparse.Namespace) -> dict[str, Any]:
    """Writes the stores and the file that is mapped."""
    ds = source(options)
    budget = options.memory or max(size_of(ds) // 8, 8 << 20)
    told: dict[str, Any] = {"budget": budget, "size": size_of(ds)}
    for method in (options.method, "random"):
        begun = time.perf_counter()
        gw.macro.prepare_store(ds, options.folder / method, parts=options.parts, memory="4GB", method=method)
        told[f"{method}_s"] = round(time.perf_counter() - begun, 1)
        told["stored"] = gw.macro.Store(options.folder / method).nbytes
    assert isinstance(ds.x, torch.Tensor)
    ds.x.numpy().tofile(options.folder / "x.bin")
    if any(way.startswith("exact") for way in options.ways):
        needs = trainer_of(options, "exact 1/1", {**told, "rest": 1 << 36})[0].needs
        assert needs is not None
        told["rest"] = needs.total - needs.kept  # all but the table of rows
    return told


def trainer_of(options: argparse.Namespace, way: str, told: dict[str, Any]) -> tuple[gw.Trainer, Watch]:
    """A run of one way."""
    kind, _, more = way.partition(" ")
    drawing = {"fanouts": options.fanouts, "batch_size": options.batch, "seed": 0, "eval_every": 10**6}
    data: Any
    given: dict[str, Any]
    if kind in ("memory", "mapped"):
        data, given = source(options), {"mode": "mini"}
        if kind == "mapped":
            data = replace(data, x=Mapped(options.folder / "x.bin", told["budget"]).table(tuple(data.x.shape)))
    else:
        data = gw.macro.Store(options.folder / ("random" if more == "random" else options.method))
        features = 4 * data.num_nodes * data.num_features
        if kind == "exact":
            books = 50 * data.num_nodes
            table = features / int(more.partition("/")[2]) * 1.5 + books  # and buffers of reads
            given = {"mode": "mini", "memory": int(1.05 * told["rest"] + table)}
        else:
            hubs = told["budget"] // HUBS if more == "hubs" else None
            macro = (
                gw.macro.Macro(None, hubs=hubs, reuse=2 if more == "reuse" else 1)
                if more in ("hubs", "reuse")
                else None
            )
            given = {"mode": "macro", "memory": told["budget"], "macro": macro}
    torch.manual_seed(0)
    sizes = (data.num_features, options.hidden, data.num_classes)
    model = gw.nn.SAGE(*sizes, num_layers=len(options.fanouts), dropout=0.5)
    watch = Watch(data if isinstance(data, gw.macro.Store) else None)
    return gw.Trainer(model, data, lr=0.003, restore_best=False, callbacks=[watch], **given, **drawing), watch


class Mapped:
    """Features in a memory map of which no more than ``most`` bytes stay in memory."""

    def __init__(self, path: Path, most: int) -> None:
        self._handle = os.open(path, os.O_RDONLY)
        self._pages = mmap.mmap(self._handle, 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
        self._most, self._code = most, mapped_bytes()
        threading.Thread(target=self._watch, daemon=True).start()
        MAPS.append(self)

    def table(self, shape: tuple[int, ...]) -> torch.Tensor:
        """The whole map."""
        return torch.frombuffer(self._pages, dtype=torch.float32).view(shape)

    def drop(self) -> None:
        """The process and the system forget all pages."""
        self._pages.madvise(mmap.MADV_DONTNEED)
        os.posix_fadvise(self._handle, 0, 0, os.POSIX_FADV_DONTNEED)

    def begin(self) -> None:
        """Drops all pages; what is mapped then is code."""
        self.drop()
        self._code = mapped_bytes()

    def _watch(self) -> None:
        while True:
            time.sleep(0.01)
            if mapped_bytes() > self._most + self._code:
                self.drop()


MAPS: list[Mapped] = []


def mapped_bytes() -> int:
    """Bytes of files that this process has mapped and touched."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return 1024 * int(status.split("RssFile:")[1].split()[0])


class Watch:
    """Seconds, bytes and requests of epochs, seen from between them."""

    def __init__(self, store: gw.macro.Store | None) -> None:
        self._store = store
        self.marks: list[tuple[int, int]] = []
        self.records: list[Any] = []
        self.most = 0

    def on_epoch_start(self, trainer: gw.Trainer, epoch: int) -> None:
        """Counts so far; the peak, before an evaluation adds to it."""
        counts = None if self._store is None else self._store.counts
        self.marks.append((0, 0) if counts is None else (counts.nbytes, counts.requests))
        self.most = peak()
        for one in MAPS:
            one.begin()

    def on_epoch_end(self, trainer: gw.Trainer, record: Any) -> None:
        """One more."""
        self.records.append(record)


def child(options: argparse.Namespace) -> dict[str, Any]:
    """Trains one way."""
    torch.set_num_threads(options.threads)
    told = json.loads((options.folder / "told.json").read_text(encoding="utf-8"))
    start = peak()
    trainer, watch = trainer_of(options, options.child, told)
    trainer.fit(options.epochs + 2)
    counted = watch.records[1:-1]
    seconds = [record.epoch_seconds for record in counted]
    metrics = [record.metrics for record in counted]
    named = all("read_requests" in found for found in metrics)
    read, requests = (after - before for after, before in zip(watch.marks[-1], watch.marks[1], strict=True))
    needed = 0 if read == 0 else sum(found.get("bytes_needed", told["stored"]) for found in metrics)
    if named:
        read, requests = (int(sum(found[name] for found in metrics)) for name in ("bytes_read", "read_requests"))
    return {
        "way": options.child,
        "epoch_s": round(statistics.median(seconds), 3),
        "mb_read": round(read / options.epochs / 1e6, 1),
        "mb_needed": round(needed / options.epochs / 1e6, 1),
        "kb_per_request": round(read / requests / 1e3) if requests else "",
        "wait_s": round(statistics.median(found.get("wait_seconds", 0.0) for found in metrics), 3),
        "peak_mb": round((watch.most - start) / 1e6, 1),
        "loss": round(counted[-1].loss, 4),
        "test_acc": round(100 * trainer.evaluate("test"), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=0.25)
    parser.add_argument("--parts", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--fanouts", type=int, nargs="+", default=[15, 10, 5])
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", type=int, help="bytes; an eighth of the data")
    parser.add_argument("--method", default="multilevel", help="what makes the parts")
    parser.add_argument("--only", choices=("prepare", "train"), help="one half; a folder is needed")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--folder", type=Path, help="where files are written; a temporary folder")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=RESULTS / "out_of_core.csv")
    options = parser.parse_args()
    if options.child == "prepare":
        print(json.dumps(prepare(options)))
        return
    if options.child:
        try:
            print(json.dumps(child(options)))
        except gw.errors.GraphWeftError as refused:
            print(json.dumps({"way": options.child, "note": str(refused)}))
        return
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        command = [sys.executable, __file__, *sys.argv[1:], "--folder", str(folder), "--child"]
        if options.only != "train":
            folder.mkdir(parents=True, exist_ok=True)
            told = answer([*command, "prepare"])
            (folder / "told.json").write_text(json.dumps(told), encoding="utf-8")
            print(told)
        if options.only == "prepare":
            return
        told = json.loads((folder / "told.json").read_text(encoding="utf-8"))
        rows = [answer([*command, way]) for way in options.ways]
        base = next((row.get("epoch_s") for row in rows if row["way"] == "memory"), told.get("memory_s"))
        if base and options.only == "train":  # for the ways of a later command
            (folder / "told.json").write_text(json.dumps({**told, "memory_s": base}), encoding="utf-8")
    for row in rows:
        row["ratio"] = round(row["epoch_s"] / base, 3) if base and "epoch_s" in row else ""
    rows = [{column: row.get(column, "") for column in COLUMNS} for row in rows]
    case = {
        "scale": options.scale,
        "hidden": options.hidden,
        "parts": options.parts,
        "method": options.method,
        "budget_mb": round(told["budget"] / 1e6),
    }
    show(f"products twin {options.scale}, data {told['size'] / 1e6:.0f} MB", rows, COLUMNS)
    write_csv(options.out, [{**case, **row, **stamp(options.threads)} for row in rows])


def answer(command: list[str]) -> dict[str, Any]:
    """The last line of a child, as JSON."""
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        raise SystemExit(f"{command[-1]}: expected exit status 0, got {made.returncode}\n{made.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(made.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
