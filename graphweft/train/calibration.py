"""The profile of this machine, measured by training small models: every kind of kernel, and what surrounds kernels.

Comes in: nothing. Goes out: a :class:`Machine`, kept in the cache folder. Called by ``graphweft doctor --calibrate``.
Coefficients are fitted to single kernels first (:mod:`graphweft.runtime.calibrate`) and then to whole epochs of both
modes, so that they hold for what a plan predicts: epochs; those of joining parts of a store, to groups of some.
"""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from graphweft._memory import POOL
from graphweft.cost import Works, join_work
from graphweft.data.dataset import Dataset
from graphweft.data.prepare_store import prepare_store
from graphweft.data.synthetic import synthetic
from graphweft.loader.fastest_choice import CoreSplit
from graphweft.loader.groups import read_group
from graphweft.nn.gat import GAT
from graphweft.nn.gcn import GCN
from graphweft.nn.gin import GIN
from graphweft.nn.module import CompiledModule
from graphweft.nn.sage import SAGE
from graphweft.runtime import calibrate
from graphweft.runtime.machine import Machine
from graphweft.storage.store import Store
from graphweft.train.trainer import Trainer

Sample = tuple[Works, float]

_MODELS = (GCN, SAGE, GIN, GAT)
# twins, their scale, the hidden width of each model, its layers
_GRAPHS = (
    ("cora", 0.3, (16, 32, 64, 32), 2),
    ("cora", 1.0, (16, 256, 32, 64), 2),
    ("pubmed", 0.3, (64, 16, 256, 128), 2),
    ("arxiv", 0.05, (64, 32, 256, 64), 3),
    ("products", 0.01, (128, 64, 16, 16), 2),
    ("flickr", 0.1, (32, 128, 16, 128), 2),
    ("reddit", 0.03, (32, 256, 64, 64), 3),
    ("pubmed", 0.6, (256, 16, 64, 16), 3),
    ("arxiv", 0.15, (32, 128, 64, 32), 2),
    ("products", 0.017, (16, 32, 64, 128), 2),
)
_BATCHES = (256, 1024)  # in turn
_EPOCHS = 5
_SETTLED, _MOST = 26, 8  # batches after which the way of preparing them is settled; epochs for that at most
_WEIGHT = 0.2  # of what the kernels alone say
_DISK_BYTES = 64 << 20
# twins whose parts are joined to groups, and their scales: most of it are edges, rows, or both
_STORES = (("reddit", 0.01), ("flickr", 0.1), ("arxiv", 0.1))
_PARTS, _GROUPS, _JOINS = 8, (1, 4, 8), 3  # of a store, of its groups, and times that each group is made
_SECONDS = 38.0  # after which no further case is begun


def measure() -> Machine:
    """Measures this machine with the present number of threads, under a minute, and remembers the result."""
    begun = time.perf_counter()
    kernels = calibrate.calibrate().model
    samples: list[Sample] = []
    for (ds, model), size in zip(_cases(), itertools.cycle(_BATCHES)):
        if time.perf_counter() - begun > _SECONDS:
            break
        samples += [*_epochs(ds, model, "full"), *_epochs(ds, model, "mini", size)]
        if size == _BATCHES[0]:  # as within a budget that leaves no room for batches ahead
            samples += _epochs(ds, model, "mini", _BATCHES[-1], [CoreSplit(0, 0)])
        POOL.trim()
    for name, scale in _STORES:
        with tempfile.TemporaryDirectory() as folder:
            made = synthetic(name, scale=scale, seed=0)
            store = prepare_store(made, Path(folder) / "store", parts=_PARTS, method="hash")
            samples += [joining(store, count) for count in _GROUPS]
    costs = kernels.fit_sums(samples, _WEIGHT)
    errors = [abs(sum(n * costs.seconds(work) for work, n in works) / seconds - 1) for works, seconds in samples]
    found = Machine.known(costs=costs, error=statistics.mean(errors), disk_bytes_per_second=_disk_speed())
    found.remember()
    return found


def _cases() -> Iterator[tuple[Dataset, CompiledModule]]:
    """Models on graphs, one after the other; graphs that fit caches and one that does not."""
    for name, scale, widths, layers in _GRAPHS:
        ds = synthetic(name, scale=scale, seed=0)
        for kind, width in zip(_MODELS, widths, strict=True):
            yield ds, kind(ds.num_features, width, ds.num_classes, num_layers=layers)


def _epochs(
    ds: Dataset, model: CompiledModule, mode: str, batch_size: int = 0, ways: Sequence[CoreSplit] = ()
) -> list[Sample]:
    """What an epoch does, and its median seconds; empty where that cannot be told.

    ``ways``: how batches are prepared; none: as usual. Evaluations in between are not timed, but what they leave in the
    caches is as in any other run.
    """
    drawn: dict[str, Any] = {"batch_size": batch_size} if mode == "mini" else {}
    trainer = Trainer(model, ds, mode=mode, order="given", **drawn)
    steps = trainer._batch
    if ways:
        steps.keep_ways(ways)
    trainer.prepare()
    found = steps.works()
    if found is None:
        return []
    works, walks = found
    if epochs := steps.epochs_until(_SETTLED):
        trainer.fit(min(_MOST, epochs))
    begun = trainer.epoch
    records = list(trainer.fit(_EPOCHS if mode == "full" else 2))[max(begun, 1) :]
    seconds = statistics.median(record.epoch_seconds for record in records)
    known = walks / torch.get_num_threads()
    return [(works, seconds - known)] if seconds > known else []


def joining(store: Store, count: int) -> Sample:
    """What joining the first ``count`` parts of a store to a group does, and its seconds: their blocks are in memory.

    Example:
        >>> store = prepare_store(synthetic("default", scale=0.02), tempfile.mkdtemp() + "/store", parts=4)
        >>> [(work, count)], seconds = joining(store, 4)
        >>> work == join_work(store.num_edges, store.nbytes), count, seconds > 0
        (True, 1.0, True)
    """
    parts, source = tuple(range(count)), store.holding()
    source.held.hold(frozenset(parts), parts)
    read_group(source, parts)  # from disk
    taken = []
    for _ in range(_JOINS):
        begun = time.perf_counter()
        read_group(source, parts)
        taken.append(time.perf_counter() - begun)
    entries = store.manifest.parts[:count]
    work = join_work(sum(entry.edges for entry in entries), sum(entry.nbytes for entry in entries))
    return [(work, 1.0)], min(taken)


def _disk_speed() -> float:
    """Bytes a second of reading a file that is not in the page cache."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "probe"
        path.write_bytes(os.urandom(1 << 20) * (_DISK_BYTES >> 20))
        with path.open("rb", buffering=0) as file:
            os.fsync(file.fileno())
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            start = time.perf_counter()
            while file.read(1 << 22):
                pass
            return _DISK_BYTES / max(time.perf_counter() - start, 1e-9)


__all__ = ["measure"]
