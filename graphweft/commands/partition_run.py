"""``graphweft partition``: parts of a graph, what they cost, and the files that they go to.

Comes in: a :class:`TrainSpec` that names data and a model. Goes out: a report as plain numbers, and an ``.npz`` file or
a folder of parts. Called by the command.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from graphweft._errors import ConfigError
from graphweft._memory import lean_heap
from graphweft.data.dataset import Dataset, training_labels
from graphweft.data.part_folder import check_out, write_parts
from graphweft.data.stored_graph import StoredGraph
from graphweft.model_of_spec import make_model
from graphweft.nn.stack import Stack
from graphweft.nn.typed_stack import TypedStack
from graphweft.partitioning.partition import (
    Partition,
    check_choice,
    check_filled,
    partition,
    partition_bytes,
    usual_parts,
)
from graphweft.partitioning.report import Exchange
from graphweft.run import load_dataset, run_settings
from graphweft.storage.memory_size import shown_bytes
from graphweft.storage.store import Store, is_store
from graphweft.train.ranked_full import exchange_of
from graphweft.train.run_folder import check_folder
from graphweft.train.spec import TrainSpec

_OTHER_FILES = (".npy", ".csv", ".tsv", ".txt", ".json", ".pt", ".parquet")  # names of no folder that somebody means


def partition_run(spec: TrainSpec, parts: int | None, method: str, passes: int, out: Path | None) -> dict[str, Any]:
    """Partitions the graph that ``spec`` names, by the classes of its training nodes; what the partition costs.

    ``parts``: how many; None: as many as usual. ``out``: an ``.npz`` file for the part of every node, or a folder with
    one part a rank, for which the features of a store are read within ``spec.memory``.

    What the method takes at most is said on standard error before it starts.

    Raises: ConfigError or DataError for whatever the caller can set right; MissingPackageError.
    """
    as_folder = out is not None and out.suffix != ".npz"
    if out is not None and out.suffix.lower() in _OTHER_FILES:
        raise ConfigError(f"out: expected a file name ending in .npz, or a folder, got {out}")
    if out is not None:
        check_out(out) if as_folder else check_folder(out.parent)
    lean_heap()  # what is made and freed on the way is larger than a part
    with run_settings(spec):
        ds = StoredGraph(Store(spec.data)) if _is_stored(spec) else load_dataset(spec)
        epoch = _epoch(spec, ds)
        labels = training_labels(ds)
        k = usual_parts(ds.num_nodes) if parts is None else parts
        check_filled("parts", k, ds.num_nodes)
        check_choice(k, method, passes)  # before anything is said
        most = partition_bytes(ds.graph, k, method, 0 if labels is None else ds.num_classes)
        if sys.stderr is not None:
            held = shown_bytes(ds.graph.csc.indptr.nbytes + ds.graph.csc.indices.nbytes)
            sys.stderr.write(f"partition: {method} takes up to {shown_bytes(most)} beside the graph's {held}\n")
            sys.stderr.flush()
        start = time.perf_counter()
        made = partition(ds.graph, k, method, labels, passes=passes, seed=spec.seed, epoch=epoch)
        seconds = time.perf_counter() - start
        if out is not None:
            write_parts(ds, made, out, spec.memory) if as_folder else made.save(out)
        return _told(ds, made, seconds, epoch)


def _is_stored(spec: TrainSpec) -> bool:
    return not spec.has_tables and spec.scale is None and is_store(spec.data)


def _told(ds: Dataset, made: Partition, seconds: float, epoch: Exchange | None) -> dict[str, Any]:
    """The report as plain numbers."""
    sizes = {"num_nodes": ds.num_nodes, "num_edges": ds.num_edges, "parts": made.k}
    found: dict[str, Any] = {"dataset": ds.name, **sizes, "method": made.method, "seconds": seconds}
    found |= {"phase_seconds": dict(made.phases), **made.report.to_dict(), **made.predict(epoch).to_dict()}
    return found if made.comparison is None else {**found, "methods": made.comparison.to_dict()}


def _epoch(spec: TrainSpec, ds: Dataset) -> Exchange | None:
    """What an epoch of the spec's model exchanges; None where it could not be trained over ranks."""
    try:
        model = make_model(spec, ds)
    except ConfigError:
        return None
    if not isinstance(model, Stack) or isinstance(model, TypedStack):
        return None
    return exchange_of(model, ds.labelled("train"), spec.halo, getattr(ds, "x", None))
