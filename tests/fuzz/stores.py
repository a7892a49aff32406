"""Stores under random budgets and random kills. A script; ``test_stores.py`` runs a few of each.

    python tests/fuzz/stores.py budgets --count 200 --seed 0
    python tests/fuzz/stores.py kills --count 50 --seed 0

``budgets`` draws a graph in files and a budget, prepares a store, trains an epoch in mode macro and one in mode mini,
and compares the memory that each step took with what it was given: anonymous memory above that of the process before,
and the pages of the files that the system kept. A budget that is refused is doubled. ``kills`` kills preparing and
training at random moments, goes on, and compares the result with that of a run that nobody killed. Every step is a
forked child on one thread; the parent computes nothing.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import graphweft as gw
from graphweft.storage.store import is_store

_CACHESTAT = 451
_ALLOWED = 24 << 20  # bytes beside the budget: batches, model and optimiser, compiled code, what the allocator keeps
_EVERY = 0.002  # seconds between two looks


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Cached(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("kept", "dirty", "writeback", "evicted", "recently"))


_libc = ctypes.CDLL(None, use_errno=True)


def kept_pages(folder: Path) -> int:
    """Bytes of a folder's files that the system keeps, without those that wait for the disk; 0 if it cannot tell."""
    total = 0
    for path in _files(folder):
        try:
            handle = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        found = _Cached()
        if _libc.syscall(_CACHESTAT, handle, ctypes.byref(_Range(0, 0)), ctypes.byref(found), 0) == 0:
            total += 4096 * (found.kept - found.dirty - found.writeback)
        os.close(handle)
    return int(total)


def _files(folder: Path) -> Iterator[Path]:
    try:
        yield from [path for path in folder.rglob("*") if path.is_file()]
    except OSError:
        return


def anonymous() -> int:
    """Bytes of anonymous memory of this process."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return 1024 * int(status.split("RssAnon:")[1].split()[0])


class Peak:
    """The most that was seen while a block ran, above its beginning."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.most, self._start = folder, 0, anonymous()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        turn = 0
        pages = 0
        while not self._ended.wait(_EVERY):
            if turn % 20 == 0:
                pages = kept_pages(self._folder)
            turn += 1
            self.most = max(self.most, anonymous() - self._start + pages)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def forked(step: Callable[[], Any], kill_after: float | None = None) -> tuple[int, Any]:
    """Exit status and answer of a step in a child of its own; killed after some seconds where that is wanted."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 0
        try:
            os.close(reading)
            torch.set_num_threads(1)
            os.write(writing, json.dumps(step()).encode())
        except gw.errors.GraphWeftError as failure:
            os.write(writing, json.dumps(str(failure)).encode())
            status = 2
        except BaseException as failure:
            print(f"{type(failure).__name__}: {failure}", file=sys.stderr)
            status = 1
        os._exit(status)
    os.close(writing)
    if kill_after is not None:
        ended = time.monotonic() + kill_after
        while time.monotonic() < ended and os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            time.sleep(0.001)
        os.kill(child, signal.SIGKILL)
    with os.fdopen(reading, "rb") as file:
        told = file.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, json.loads(told) if told else None


def graph_in(folder: Path, draw: random.Random, largest: int) -> None:
    """Writes a random graph: communities in random order."""
    nodes = int(largest * draw.uniform(0.1, 1.0))
    rng = np.random.default_rng(draw.randrange(2**32))
    edges, width = nodes * draw.randint(2, 12), draw.choice([4, 16, 64, 128])
    name, size = rng.permutation(nodes), draw.randint(20, 400)
    src = rng.integers(0, nodes, edges)
    inside = np.minimum(src // size * size + rng.integers(0, size, edges), nodes - 1)
    dst = np.where(rng.random(edges) < draw.uniform(0.3, 0.95), inside, rng.integers(0, nodes, edges))
    np.save(folder / "edges.npy", np.stack([name[src], name[dst]]))
    table = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (nodes, width))
    for first in range(0, nodes, 4096):
        table[first : first + 4096] = rng.standard_normal((min(4096, nodes - first), width), np.float32)
    table.flush()
    labels = np.empty(nodes, np.int64)
    labels[name] = np.arange(nodes) // size % draw.randint(2, 9)
    np.save(folder / "y.npy", labels)


def trained(store: Path, mode: str, memory: int, out: Path | None, epochs: int = 1, macro: Any = None) -> list[float]:
    """Losses of a run, which goes on where one was begun in ``out``."""
    opened = gw.macro.Store(store)
    torch.manual_seed(0)
    model = gw.nn.SAGE(opened.num_features, 8, opened.num_classes, num_layers=2)
    options: dict[str, Any] = {"fanouts": (4, 3), "batch_size": 256, "seed": 0, "memory": memory, "macro": macro}
    trainer = gw.Trainer(model, opened, mode=mode, out=out, **options)
    if out is not None:
        trainer.resume()
    trainer.fit(epochs - trainer.epoch)
    return [record.loss for record in trainer.history]


def warm(folder: Path) -> None:
    """Runs the code of both modes on a small store, so that libraries, threads and the heap are there before."""
    store = folder / "warm"
    if not store.exists():
        gw.macro.prepare_store(gw.synthetic("default", scale=0.05), store, parts=4, memory="64MB")
    for mode in ("macro", "mini"):
        trained(store, mode, 64 << 20, None)


def within(folder: Path, memory: int, step: Callable[[int], Any]) -> Callable[[], Any]:
    """A step that answers with the memory it took."""

    def measured() -> int:
        warm(folder.parent)
        with Peak(folder) as peak:
            step(memory)
        return peak.most

    return measured


def budget_case(draw: random.Random, folder: Path, largest: int) -> list[dict[str, Any]]:
    """Budgets and peaks of preparing and training one graph."""
    files = forked_graph(folder, draw, largest)
    parts, dtype = draw.choice([4, 16, 48]), draw.choice(["float32", "float16", "bfloat16"])
    method, work = draw.choice(["auto", "multilevel", "hash", "range"]), folder / "work"
    work.mkdir()

    def prepare(memory: int) -> None:
        gw.macro.prepare_store(files, work / "store", parts=parts, memory=memory, method=method, dtype=dtype)

    def train(mode: str) -> Callable[[int], Any]:
        return lambda memory: trained(work / "store", mode, memory, None)

    rows = []
    for name, step in (("prepare", prepare), ("macro", train("macro")), ("mini", train("mini"))):
        memory = int((4 << 20) * 2 ** draw.uniform(0, 2))
        while True:
            status, told = forked(within(work, memory, step))
            if status == 0:
                break
            if status != 2 or "memory" not in str(told):
                raise SystemExit(f"{name} with {memory:,} bytes: status {status}, {told}")
            memory *= 2
        rows.append({"step": name, "memory": memory, "peak": told, "method": method, "parts": parts})
    return rows


def forked_graph(folder: Path, draw: random.Random, largest: int) -> gw.macro.GraphFiles:
    """The files are written by a child, so that the parent stays small."""
    own = random.Random(draw.randrange(2**32))
    status, _ = forked(lambda: graph_in(folder, own, largest))
    if status:
        raise SystemExit(f"writing a graph: status {status}")
    paths = (folder / "edges.npy", folder / "x.npy", folder / "y.npy")
    return gw.macro.GraphFiles(*paths, bidirected=draw.random() < 0.5)


def budgets(count: int, seed: int, largest: int) -> list[dict[str, Any]]:
    """Steps that took more than they were given and ``_ALLOWED``."""
    over, draw = [], random.Random(seed)
    for number in range(count):
        with tempfile.TemporaryDirectory() as held:
            for row in budget_case(draw, Path(held), largest):
                extra = row["peak"] - row["memory"]
                print(
                    f"{number} {row['step']}: {row['memory']:,} given, {row['peak']:,} taken, {row['method']}",
                    flush=True,
                )
                if extra > _ALLOWED:
                    over.append({**row, "case": number})
    return over


def kills(count: int, seed: int, largest: int) -> int:
    """How many kills hit a step under way; a difference ends the script."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as held:
        folder = Path(held)
        files = forked_graph(folder, draw, largest)

        def prepare(out: Path) -> Callable[[], Any]:
            return lambda: str(
                gw.macro.prepare_store(files, out, parts=8, memory="128MB", method="multilevel").manifest
            )

        def train(out: Path) -> Callable[[], Any]:
            return lambda: trained(folder / "whole", "macro", 64 << 20, out, 4, "parts:2/8+reuse:2")

        hits = 0
        for step, whole in ((prepare, folder / "whole"), (train, folder / "run")):
            begun = time.monotonic()
            status, expected = forked(step(whole))
            seconds = time.monotonic() - begun
            if status:
                raise SystemExit(f"{step.__name__}: status {status}, {expected}")
            for number in range(count):
                out = folder / f"try-{step.__name__}"
                status, found, tries = 1, None, 0
                while status != 0:
                    last = tries >= 3
                    status, found = forked(step(out), None if last else draw.uniform(0, 1.1 * seconds))
                    hits += status == -signal.SIGKILL
                    if status == -signal.SIGKILL and step is prepare and is_store(out):
                        status, found = 0, str(gw.macro.Store(out).manifest)  # it was killed with all done
                    tries += 1
                    if status not in (0, -signal.SIGKILL):
                        raise SystemExit(f"{step.__name__} after a kill: status {status}, {found}")
                if found is not None and found != expected:
                    raise SystemExit(f"{step.__name__} {number}: expected {expected}, got {found}")
                print(f"{step.__name__} {number}: {tries} tries", flush=True)
                shutil.rmtree(out)
        return hits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["budgets", "kills"])
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--largest", type=int, default=200_000, help="nodes")
    options = parser.parse_args()
    if options.what == "kills":
        print(f"{kills(options.count, options.seed, options.largest)} kills hit")
        return
    over = budgets(options.count, options.seed, options.largest)
    print(f"{len(over)} steps over their budget")
    if over:
        raise SystemExit("\n".join(map(str, over)))


if __name__ == "__main__":
    main()
