"""Stores under random budgets and random kills. A script; ``test_stores.py`` runs a few of each.

    python tests/fuzz/stores.py budgets --count 200 --seed 0
    python tests/fuzz/stores.py budgets --kinds weighted typed links --largest 40000
    python tests/fuzz/stores.py kills --count 50 --seed 0

``budgets`` draws a graph, a model and budgets, prepares a store, trains some epochs in mode macro and in mode
mini, predicts, and compares the memory that each step took with what it was given and what was predicted: anonymous
memory above that of the process before, the pages of the store's files that the system kept, and those of temporary
files. A run that is refused is given the least that it names, and has to keep to it; preparing, which may name less
than it needs, is given twice as much. A ``plain`` graph and one for ``links`` are in files; one whose edges are
``weighted`` and a ``typed`` one are datasets, and their preparing is not measured. ``kills`` kills preparing and
training at random moments, goes on, and compares the result with that of a run that nobody killed. Every step is a
forked child on one thread; the parent computes nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import graphweft as gw
from graphweft._memory import POOL
from graphweft.frontend.symbolic_sizes import Sizes
from graphweft.storage.store import is_store
from graphweft.train.trainer import Trainer  # its modules are no part of a run

Sizes()  # nor are those of torch that recording a user's function imports

_CACHESTAT = 451
_NEAR = 0.15  # of what was measured
_MOST_NAMED = 1.5  # times what is taken of the least budget that a refusal names
KINDS = ("plain", "weighted", "typed", "links")
_EPOCHS, _TRIED = 2, 26  # at least, and batches until every way of preparing them was tried: some hold more than others
_EVERY = 0.002  # seconds between two looks


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Cached(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("kept", "dirty", "writeback", "evicted", "recently"))


_libc = ctypes.CDLL(None, use_errno=True)


def kept_pages(folder: Path) -> int:
    """Bytes of a folder's files that the system keeps; 0 if it cannot tell."""
    total = 0
    for path in _files(folder):
        try:
            handle = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        found = _Cached()
        if _libc.syscall(_CACHESTAT, handle, ctypes.byref(_Range(0, 0)), ctypes.byref(found), 0) == 0:
            total += 4096 * found.kept
        os.close(handle)
    return int(total)


def _files(folder: Path) -> Iterator[Path]:
    try:
        yield from [path for path in folder.rglob("*") if path.is_file()]
    except OSError:
        return


def temporary_pages(folder: Path) -> int:
    """Bytes of files without a name that this process has open in ``folder``, which the system keeps; each file once.

    A file that is open several times has as many names here.
    """
    kept: dict[int, int] = {}
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = str(link.readlink())
            if target.startswith(str(folder)) and target.endswith("(deleted)"):
                found = _Cached()
                if _libc.syscall(_CACHESTAT, int(link.name), ctypes.byref(_Range(0, 0)), ctypes.byref(found), 0) == 0:
                    kept[link.stat().st_ino] = 4096 * found.kept
        except OSError:
            continue
    return sum(kept.values())


def anonymous() -> int:
    """Bytes of anonymous memory of this process."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return 1024 * int(status.split("RssAnon:")[1].split()[0])


class Peak:
    """The most that was seen while a block ran, above its beginning."""

    def __init__(self, folder: Path) -> None:
        POOL.trim()  # what was freed before is nobody's
        self._folder, self.most, self._start = folder, 0, anonymous()
        self.pages = 0  # of the most
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        turn = 0
        pages = 0
        while not self._ended.wait(_EVERY):
            if turn % 20 == 0:
                pages = kept_pages(self._folder) + temporary_pages(Path(tempfile.gettempdir()))
            turn += 1
            taken = anonymous() - self._start + pages
            if taken > self.most:
                self.most, self.pages = taken, pages

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


def trained(store: Path, mode: str, memory: int, out: Path | None, epochs: int = 1, macro: Any = None) -> list[Any]:
    """What makes the batches of a run, its losses and scores; it goes on where one was begun in ``out``."""
    opened = gw.macro.Store(store)
    torch.manual_seed(0)
    sizes = (opened.num_features, 8, opened.num_classes)
    if opened.types is None:
        model: torch.nn.Module = gw.nn.SAGE(*sizes, num_layers=2)
    else:
        model = gw.nn.RGCN(*sizes, num_relations=len(opened.types.relations), num_layers=2)
    options: dict[str, Any] = {"fanouts": (4, 3), "batch_size": 256, "seed": 0, "memory": memory, "macro": macro}
    trainer = gw.Trainer(model, opened, mode=mode, out=out, **options)
    if out is not None:
        trainer.resume()
    trainer.fit(epochs - trainer.epoch)
    return [trainer._batch.identity(), *([record.loss, record.val_acc] for record in trainer.history)]


def within(folder: Path, step: Callable[[], Any]) -> Callable[[], dict[str, Any]]:
    """A step that answers with the memory it took, or the least that would do where it is refused."""

    def measured() -> dict[str, Any]:
        told: dict[str, Any] = {}
        with Peak(folder) as peak:
            try:
                told["predicted"] = step()
            except gw.errors.MemoryBudgetError as refused:
                told |= {"least": refused.least, "words": str(refused)}
        return {**told, "peak": peak.most, "pages": peak.pages}

    return measured


def run_of(case: dict[str, Any], store: Path, mode: str, memory: int) -> dict[str, Any] | None:
    """Trains until every way of preparing batches was tried, and predicts within a budget; what was predicted."""
    opened = gw.macro.Store(store)
    torch.manual_seed(0)
    links, more = case["kind"] == "links", {}
    if opened.types is not None:
        more["num_relations"] = len(opened.types.relations)
        more |= {"num_node_types": len(opened.types.node_types)} if case["model"] == "HGT" else {}
    sizes = (opened.num_features, case["hidden"], case["hidden"] if links else opened.num_classes)
    model = getattr(gw.nn, case["model"])(*sizes, num_layers=case["layers"], dropout=case["dropout"], **more)
    options: dict[str, Any] = {"fanouts": (case["fanout"],) * case["layers"], "batch_size": case["batch_size"]}
    options |= {"task": "link"} if links else {}
    if mode == "macro" and case["neighbours"]:
        options["macro"] = gw.macro.Macro(None, neighbours=case["neighbours"])
    trainer = Trainer(model, opened, mode=mode, memory=memory, seed=0, **options)
    trainer.fit(max(_EPOCHS, trainer._batch.epochs_until(_TRIED)))
    with contextlib.suppress(gw.errors.MemoryBudgetError):  # results for all nodes may be larger than the budget
        trainer.predict()
    return None if trainer.needs is None else {"total": trainer.needs.total, "text": trainer.needs.text()}


_MODELS = {"plain": ["SAGE", "GCN", "GAT"], "weighted": ["SAGE", "GCN", "GIN"], "typed": ["RGCN", "HGT"]}


def random_run(draw: random.Random, kind: str) -> dict[str, Any]:
    """A model and its batches."""
    return {
        "kind": kind,
        "model": draw.choice(_MODELS.get(kind, ["SAGE", "GCN"])),
        "layers": draw.choice([2, 2, 3]),
        "hidden": draw.choice([8, 32, 64]),
        "dropout": draw.choice([0.0, 0.5]),
        "fanout": draw.choice([3, 5, 10]),
        "batch_size": draw.choice([64, 256, 1024]),
        "neighbours": 0.0 if kind == "links" else draw.choice([0.0, 0.25, 1.0]),
    }


def budget_case(draw: random.Random, folder: Path, largest: int, kind: str) -> list[dict[str, Any]]:
    """Budgets and peaks of preparing and training one graph."""
    files = forked_graph(folder, draw, largest)
    parts, dtype = draw.choice([4, 16, 48]), draw.choice(["float32", "float16", "bfloat16"])
    method, work = draw.choice(["auto", "multilevel", "hash", "range"]), folder / "work"
    work.mkdir()
    case = random_run(draw, kind)
    rows = []
    memory = int((8 << 20) * 2 ** draw.uniform(0, 2))
    is_dataset, types = kind in ("weighted", "typed"), draw.randint(2, 4) if kind == "typed" else 1

    def prepare() -> None:
        data = dataset_of(files, types) if is_dataset else files
        given = 1 << 30 if is_dataset else memory
        gw.macro.prepare_store(data, work / "store", parts=parts, memory=given, method=method, dtype=dtype)

    while True:
        status, told = forked(within(work, prepare))
        if status == 0:
            break
        if status != 2 or "memory" not in str(told):
            raise SystemExit(f"prepare with {memory:,} bytes: status {status}, {told}")
        memory *= 2
    if not is_dataset:
        rows.append({"step": "prepare", "memory": memory, "method": method, "parts": parts, **told})
    for mode in ("macro", "mini"):
        memory = int((8 << 20) * 2 ** draw.uniform(0, 3.5))
        for again in (False, True):
            status, told = forked(within(work, lambda: run_of(case, work / "store", mode, memory)))  # noqa: B023
            if status:
                raise SystemExit(f"{mode} with {memory:,} bytes: status {status}, {told}, {case}")
            rows.append({"step": mode, "memory": memory, "again": again, **case, **told})
            if "least" not in told:
                break
            memory = told["least"]
    return rows


def dataset_of(files: gw.macro.GraphFiles, types: int) -> gw.Dataset:
    """A written graph in memory: with weights, or with ``types`` types of nodes, each with columns of its own or none.

    Features of the first type, whose nodes have the labels, are as they were written.
    """
    (src, dst), x, y = np.load(files.edges), np.load(files.x), np.load(files.y)
    rng = np.random.default_rng(len(y))
    if types == 1:
        graph = gw.Graph(src, dst, num_nodes=len(y))
        return gw.Dataset("weighted", graph, x, y, edge_weight=rng.random(len(src), np.float32) + 0.1, seed=0)
    cuts = np.linspace(0, len(y), types + 1).astype(np.int64)
    of = [np.searchsorted(cuts, ends, "right") - 1 for ends in (src, dst)]
    edges = {}
    for a in range(types):
        for b in range(types):
            own = (of[0] == a) & (of[1] == b)
            edges[(f"t{a}", "to", f"t{b}")] = (src[own] - cuts[a], dst[own] - cuts[b])
    sizes = {f"t{a}": int(cuts[a + 1] - cuts[a]) for a in range(types)}
    features = {f"t{a}": x[cuts[a] : cuts[a + 1], : 4 * (types - a) if a else None] for a in range(types) if a != 1}
    labels = np.where(np.arange(len(y)) < cuts[1], y, -1)
    return gw.Dataset("typed", gw.Graph.hetero(edges, sizes), None, labels, features=features, target_type="t0", seed=0)


def forked_graph(folder: Path, draw: random.Random, largest: int) -> gw.macro.GraphFiles:
    """The files are written by a child, so that the parent stays small."""
    own = random.Random(draw.randrange(2**32))
    status, _ = forked(lambda: graph_in(folder, own, largest))
    if status:
        raise SystemExit(f"writing a graph: status {status}")
    paths = (folder / "edges.npy", folder / "x.npy", folder / "y.npy")
    return gw.macro.GraphFiles(*paths, bidirected=draw.random() < 0.5)


def budgets(
    count: int, seed: int, largest: int, first: int = 0, kinds: Sequence[str] = ("plain",)
) -> list[dict[str, Any]]:
    """Steps that took more than they were given, or were refused what they had asked for."""
    wrong, draw, ratios, leasts = [], random.Random(seed), list[float](), list[float]()
    for number in range(first + count):
        own = random.Random(draw.randrange(2**32))
        if number < first:
            continue
        with tempfile.TemporaryDirectory() as held:
            kind = kinds[number % len(kinds)]
            for row in budget_case(own, Path(held), largest, kind):
                predicted, is_refused = row.get("predicted"), "least" in row
                bad = row["peak"] > row["memory"] or (is_refused and row["again"])
                told = f"{row['words']}, {row['peak']:,} taken" if is_refused else f"{row['peak']:,} taken"
                if row.get("again") and not is_refused:
                    leasts.append(row["memory"] / row["peak"])
                    told += f", {leasts[-1]:.2f} of it named"
                if predicted:
                    ratios.append(predicted["total"] / row["peak"])
                    told += f", {ratios[-1]:.2f} of it predicted ({predicted['text']})"
                print(
                    f"{number} {kind} {row['step']}: {row['memory']:,} given, {told}{' WRONG' if bad else ''}",
                    flush=True,
                )
                if bad:
                    wrong.append({**row, "case": number})
    if ratios:
        near = sum(abs(1 - 1 / ratio) <= _NEAR for ratio in ratios)
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}, median {statistics.median(ratios):.2f}"
        print(f"predicted over measured {spread}; {near} of {len(ratios)} within 15 %")
    if leasts:
        spread = f"{min(leasts):.2f} to {max(leasts):.2f}, median {statistics.median(leasts):.2f}"
        near = sum(ratio <= _MOST_NAMED for ratio in leasts)
        print(f"named over measured {spread}; {near} of {len(leasts)} within {_MOST_NAMED}")
    return wrong


_PREPARE = "prepare"
_WIDE = "wide"  # a store of whose rows few have room, and whose parts keep few of their edges
# ways to train that are killed: mode, store, groups
_TRAININGS: dict[str, tuple[str, str, str | None]] = {
    "train": ("macro", f"whole-{_PREPARE}", "parts:2/8+reuse:2+keep:3+neighbours:0.5"),
    "mini": ("mini", f"whole-{_PREPARE}", None),
    "auto": ("auto", _WIDE, None),
    "neighbours": ("macro", _WIDE, "neighbours:auto"),
    "first": ("macro", f"whole-{_PREPARE}", "parts:2/8+first:whole"),
    "typed": ("macro", "typed", "parts:2/8"),
    "typed-mini": ("mini", "typed", None),
}
STEPS = (_PREPARE, *_TRAININGS)
_TIGHT = {"auto": 1.0, "neighbours": 1.5}  # those with little room: times the least that is named


def kills(count: int, seed: int, largest: int, what: Sequence[str] = ()) -> int:
    """How many kills hit a step under way; a difference ends the script. ``what``: steps, none for all."""
    draw, what = random.Random(seed), what or STEPS
    with tempfile.TemporaryDirectory() as held:
        folder = Path(held)
        files = forked_graph(folder, draw, largest)

        def prepare(out: Path, kind: str = "") -> Callable[[], Any]:
            options: dict[str, Any] = {"parts": 8, "memory": "1GB" if kind else "128MB"}
            options["method"] = "hash" if kind else "multilevel"
            data = partial(dataset_of, files, 3) if kind == "typed" else partial(_widened, files) if kind else None
            return lambda: str(gw.macro.prepare_store(data() if data else files, out, **options).manifest)

        hits = _killed(_PREPARE, prepare, folder, count if _PREPARE in what else 0, draw)
        for kind in {_TRAININGS[name][1] for name in what if name in _TRAININGS} & {"typed", _WIDE}:
            _done(f"prepare {kind}", prepare(folder / kind, kind))
        for name, (mode, store, macro) in _TRAININGS.items():
            if name not in what:
                continue
            run = partial(trained, folder / store, mode, epochs=4, macro=macro)
            memory = _tight(folder, run, _TIGHT[name]) if name in _TIGHT else 256 << 20

            def train(out: Path, run: Any = run, memory: int = memory) -> Callable[[], Any]:
                return lambda: run(memory=memory, out=out)

            hits += _killed(name, train, folder, count, draw, _brings if name == "neighbours" else None)
        return hits


def _done(name: str, step: Callable[[], Any]) -> Any:
    """What a step says that nobody kills."""
    status, told = forked(step)
    if status:
        raise SystemExit(f"{name}: status {status}, {told}")
    return told


def _widened(files: gw.macro.GraphFiles) -> gw.Dataset:
    """A written graph in memory, with 512 columns of features, so that groups are most of what a run needs."""
    (src, dst), y = np.load(files.edges), np.load(files.y)
    x = np.random.default_rng(len(y)).standard_normal((len(y), 512), np.float32)
    return gw.Dataset("wide", gw.Graph(src, dst, num_nodes=len(y)), x, y, seed=0)


def _brings(identity: dict[str, Any]) -> bool:
    """Whether groups of some of the parts bring neighbours of others."""
    group, _, parts = str(identity.get("group", "")).partition("/")
    return bool(identity.get("neighbours")) and group != parts


def _tight(folder: Path, run: Callable[..., Any], times: float) -> int:
    """So many times the least budget that would do."""
    refused = _done("a budget", within(folder, lambda: run(memory=1 << 20, out=None)))
    return int(times * refused["least"])


def _killed(
    name: str,
    step: Callable[[Path], Callable[[], Any]],
    folder: Path,
    count: int,
    draw: random.Random,
    is_meant: Callable[[dict[str, Any]], bool] | None = None,
) -> int:
    """Kills a step ``count`` times at random, goes on, and compares; how many kills hit.

    ``is_meant``: whether what makes the batches is what the kills are for.
    """
    begun, hits, whole = time.monotonic(), 0, folder / f"whole-{name}"
    expected = _done(name, step(whole))
    print(f"{name}: {expected if name == _PREPARE else expected[0]}"[:200], flush=True)
    if is_meant is not None and not is_meant(expected[0]):
        raise SystemExit(f"{name}: expected other batches to kill, got {expected[0]}")
    seconds = time.monotonic() - begun
    for number in range(count):
        out = folder / f"try-{name}"
        status, found, tries = 1, None, 0
        while status != 0:
            status, found = forked(step(out), None if tries >= 3 else draw.uniform(0, 1.1 * seconds))
            hits += status == -signal.SIGKILL
            if status == -signal.SIGKILL and name == _PREPARE and is_store(out):
                status, found = 0, str(gw.macro.Store(out).manifest)  # it was killed with all done
            tries += 1
            if status not in (0, -signal.SIGKILL):
                raise SystemExit(f"{name} after a kill: status {status}, {found}")
        if found is not None and found != expected:
            raise SystemExit(f"{name} {number}: expected {expected}, got {found}")
        print(f"{name} {number}: {tries} tries", flush=True)
        shutil.rmtree(out)
    return hits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["budgets", "kills"])
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="of budgets: cases that were run before")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=[], help="of kills; all")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=["plain"], help="of budgets, one after another")
    parser.add_argument("--largest", type=int, default=200_000, help="nodes")
    options = parser.parse_args()
    if options.what == "kills":
        print(f"{kills(options.count, options.seed, options.largest, options.steps)} kills hit")
        return
    over = budgets(options.count, options.seed, options.largest, options.first, options.kinds)
    print(f"{len(over)} steps over their budget")
    if over:
        raise SystemExit("\n".join(map(str, over)))


if __name__ == "__main__":
    main()
