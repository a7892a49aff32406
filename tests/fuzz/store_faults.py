"""Damaged stores, full disks and failing reads at random places. A script; ``test_stores.py`` runs a few of each.

    python tests/fuzz/store_faults.py --count 50 --seed 0

Every block kind is cut short and has bits flipped, at random bytes of random parts; whatever reads it afterwards has to
tell it in one line. Writes fail for lack of room at random calls while a store is prepared, and reads fail at random
calls while a model trains: one line each, and going on gives the result of a run that nothing happened to.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import random
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import graphweft as gw
from graphweft.storage.store_format import MANIFEST

PARTS, MEMORY = 4, 64 << 20
TABLE = 1 << 20  # bytes of rows and of batches ahead in mode "mini": less than all rows, which are read again


def trained(path: Path, mode: str, out: Path | None = None, epochs: int = 1, predicts: bool = False) -> list[float]:
    """Losses of a run, which goes on where one was begun in ``out``; ``predicts``: ids of the source are read too."""
    store = gw.macro.Store(path)
    torch.manual_seed(0)
    model: torch.nn.Module = gw.nn.SAGE(store.num_features, 8, store.num_classes, num_layers=2)
    if store.types is not None:
        model = gw.nn.RGCN(store.num_features, 8, store.num_classes, num_relations=len(store.types.relations))
    options: dict[str, Any] = {"fanouts": (4, 3), "batch_size": 32, "seed": 0, "memory": MEMORY}
    if mode == "macro":
        options["macro"] = f"parts:2/{PARTS}"
    trainer = gw.Trainer(model, store, mode=mode, out=out, **options)
    if mode == "mini":
        trainer._batch.resize(TABLE)  # type: ignore[attr-defined]
    if out is not None:
        trainer.resume()
    trainer.fit(epochs - trainer.epoch)
    if predicts:
        trainer.predict()
    return [record.loss for record in trainer.history]


READERS: dict[str, Callable[[Path], Any]] = {
    "verify": lambda path: gw.macro.Store(path).verify(),
    "load": gw.load,
    "macro": lambda path: trained(path, "macro", predicts=True),
    "mini": lambda path: trained(path, "mini"),
}


def told(step: Callable[[], Any]) -> str | None:
    """The one line of a step that fails; None of one that does not. Any other failure is passed on."""
    try:
        step()
    except gw.errors.DataError as failure:
        assert "\n" not in str(failure), failure
        return str(failure)
    return None


def damages(draw: random.Random, whole: Path, count: int) -> tuple[int, list[str]]:
    """How many damages were read, and those that nobody told."""
    silent, tried = [], 0
    names = [block.name for block in gw.macro.Store(whole).manifest.parts[0].blocks] + [MANIFEST]
    for turn in range(count):
        name, reader = names[turn % len(names)], draw.choice(sorted(READERS))
        copy = whole.with_name("damaged")
        shutil.copytree(whole, copy)
        entry = draw.choice(gw.macro.Store(whole).manifest.parts)
        file = copy / (MANIFEST if name == MANIFEST else entry.file)
        first = 0 if name == MANIFEST else entry.block(name).offset
        end = file.stat().st_size if name == MANIFEST else first + entry.block(name).nbytes
        at, how = draw.randrange(first, end), draw.choice(["cut", "flip"])
        content = bytearray(file.read_bytes())
        content[at] ^= 1 << draw.randrange(8)
        file.write_bytes(content[:at] if how == "cut" else content)
        tried += 1
        if told(lambda read=reader, path=copy: READERS[read](path)) is None:
            silent.append(f"{how} of {name} at byte {at} of {file.name}, read by {reader}")
        shutil.rmtree(copy)
    return tried, silent


@contextlib.contextmanager
def failing(name: str, number: int, code: int) -> Iterator[list[int]]:
    """The call ``number`` of a function of ``os`` fails, and all after it; yields how many there were."""
    former, calls = getattr(os, name), [0]

    def call(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] >= number:
            raise OSError(code, os.strerror(code))
        return former(*arguments)

    setattr(os, name, call)
    try:
        yield calls
    finally:
        setattr(os, name, former)


def full_disks(draw: random.Random, folder: Path, prepare: Callable[[Path], Any], count: int) -> list[str]:
    """Preparations that a full disk did not stop in one line, or that went on to another store."""
    wrong = []
    expected = str(prepare(folder / "known").manifest)
    with failing("pwrite", 1 << 60, 0) as calls:
        prepare(folder / "counted")
    for _ in range(count):
        out, name = folder / "full", draw.choice(["pwrite", "pwrite", "fdatasync"])
        number = draw.randrange(1, calls[0] + 1 if name == "pwrite" else calls[0] // 4)
        with failing(name, number, errno.ENOSPC):
            line = told(lambda path=out: prepare(path))
        if line is None and name == "pwrite":
            wrong.append(f"write {number} of {calls[0]} failed, and nobody told")
        if line is not None and "No space left" not in line:
            wrong.append(f"write {number} failed: {line}")
        if str(prepare(out).manifest if line is not None else gw.macro.Store(out).manifest) != expected:
            wrong.append(f"{name} {number} failed, and going on gave another store")
        gw.macro.Store(out).verify()
        shutil.rmtree(out)
    return wrong


def failing_reads(draw: random.Random, folder: Path, whole: Path, count: int) -> list[str]:
    """Runs that a failing read did not stop in one line, or that went on to other losses."""
    wrong = []
    for turn in range(count):
        mode, out = ("macro", "mini")[turn % 2], folder / "run"
        with failing("preadv", 1 << 60, 0) as calls:
            expected = trained(whole, mode, None, 2)
        number = draw.randrange(1, calls[0] + 1)
        with failing("preadv", number, errno.EIO):
            line = told(lambda kind=mode, run=out: trained(whole, kind, run, 2))
        if line is None or "Input/output error" not in line:
            wrong.append(f"{mode}: read {number} of {calls[0]} failed: {line}")
        if trained(whole, mode, out, 2) != expected:
            wrong.append(f"{mode}: read {number} of {calls[0]} failed, and going on gave other losses")
        shutil.rmtree(out)
    return wrong


def academic() -> gw.Dataset:
    """A typed graph with weights, of which one type has features and one has none."""
    rng = np.random.default_rng(0)
    sizes = {"author": 200, "paper": 300}
    ends = rng.integers(0, 200, 1500), rng.integers(0, 300, 1500)
    edges = {
        ("author", "writes", "paper"): ends,
        ("paper", "by", "author"): ends[::-1],
        ("paper", "cites", "paper"): rng.integers(0, 300, (2, 900)),
    }
    y = np.concatenate([np.full(200, -1), rng.integers(0, 4, 300)])
    x, weight = rng.random((300, 32), np.float32), rng.random(3900, np.float32)
    graph = gw.Graph.hetero(edges, sizes)
    return gw.Dataset("typed", graph, y=y, features={"paper": x}, edge_weight=weight, target_type="paper")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--typed", action="store_true", help="a typed graph with weights")
    options = parser.parse_args()
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as held:
        folder = Path(held)
        ds = academic() if options.typed else gw.synthetic("default", scale=0.05)
        warnings.simplefilter("ignore", gw.errors.DataWarning)  # R-GCN has no use for weights

        def prepare(out: Path) -> gw.macro.Store:
            return gw.macro.prepare_store(ds, out, parts=PARTS, memory="64MB", method="hash")

        whole = prepare(folder / "whole").path
        tried, wrong = damages(draw, whole, options.count)
        print(f"{tried} damages, {len(wrong)} silent", flush=True)
        found = full_disks(draw, folder, prepare, options.count)
        print(f"{options.count} full disks, {len(found)} wrong", flush=True)
        wrong += found
        found = failing_reads(draw, folder, whole, max(options.count // 2, 1))
        print(f"{max(options.count // 2, 1)} failing reads, {len(found)} wrong")
        wrong += found
    if wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
