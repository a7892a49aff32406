"""``prepare_store``: a graph of any size as a store on disk, within a memory budget.

Comes in: a dataset, its name or path, or files larger than memory. Goes out: an opened :class:`Store`. Called by users
and by ``graphweft prepare``.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphweft._checks import as_integer
from graphweft._errors import ConfigError, DataError
from graphweft._memory import POOL, lean_heap
from graphweft.data.dataset import Dataset
from graphweft.data.edge_runs import least_to_sort
from graphweft.data.graph_files import FilesInput, GraphFiles
from graphweft.data.load import load
from graphweft.data.store_build import Build, Told, build_bytes, finish, part_dtype
from graphweft.data.store_input import DatasetInput, StoreInput
from graphweft.data.store_writes import opened, settle, write_all, write_json
from graphweft.data.stored_rows import sorted_rows
from graphweft.graph.graph import Graph
from graphweft.partitioning.multilevel import ENTRY_BYTES, multilevel, multilevel_bytes
from graphweft.partitioning.partition import METHODS, partition, usual_parts
from graphweft.sample.hashed import hashed
from graphweft.storage.block_io import array_bytes
from graphweft.storage.memory_size import memory_bytes, shown_bytes
from graphweft.storage.store import Store, kind_of, partial_of
from graphweft.storage.store_format import FEATURE_DTYPES, KEY, MANIFEST, Shape

ASSIGNMENTS = ("auto", *METHODS, "range", "hash")
_LEAST_WORK = 8 << 20  # bytes to read and sort with
# of code and small objects that the first preparation of a process brings, and of heaps of five threads, each of which
# keeps up to a megabyte of what was freed
_PROGRAM = 7 << 20
_GRAPH_BYTES = (112, 104)  # bytes of a node and an edge while a graph is made of files and partitioned
_ROW_BYTES = 16  # of a node while rows are read from a file: offset and label
_LEAST_ROWS = 64 << 20  # bytes to sort rows and to keep the graph between clusters with
_VERSION = 4
_PIECE = 1 << 15  # nodes at a time: with what their hashes are made of, a megabyte


def prepare_store(
    data: Dataset | GraphFiles | str | os.PathLike[str],
    out: str | os.PathLike[str],
    parts: int | None = None,
    memory: int | str | None = None,
    *,
    part: Any = None,
    method: str = "auto",
    dtype: str = "float32",
    root: str | os.PathLike[str] | None = None,
    seed: int = 0,
    progress: Told | None = None,
) -> Store:
    """Writes a store and opens it.

    A dataset, also one given by name or path, is read into memory; :class:`GraphFiles` are streamed. ``memory`` bounds
    the arrays that the build allocates. The folder ``out`` appears when the store is complete. After an interruption, a
    call with the same arguments resumes the build.

    Args:
        data: The data to store: one graph, with or without types.
        out: Folder of the store; it must not exist.
        parts: Number of parts; None: 64, or as many as nodes where these are fewer.
        memory: Bytes, or a text such as "2GB"; None: a quarter of the machine's memory.
        part: (N,) part of every node, in place of a method.
        method: "multilevel" cuts few edges and balances the labels of training nodes over the parts. If the structure
            does not fit in memory, it reads the structure repeatedly from a temporary file. "gap", "metis" and "random"
            need the structure in memory. "range" takes consecutive nodes and "hash" scattered nodes. "auto" is
            "multilevel", or "hash" for a budget below about 100 bytes per node.
        dtype: Dtype of the features on disk: "float32", "float16" or "bfloat16".
        root: Folder of named datasets.
        seed: Seed of partitions and of random splits.
        progress: Called with the name of the current step, the amount done, and the total amount if it is known.

    Raises: ConfigError, DataError. For a budget that is too small, the message names the smallest sufficient one.

    Example:
        >>> import tempfile
        >>> from graphweft.data.synthetic import synthetic
        >>> ds = synthetic("default", scale=0.02)
        >>> store = prepare_store(ds, tempfile.mkdtemp() + "/store", parts=4, memory="64MB")
        >>> store.manifest.method, len(store)
        ('multilevel', 4)
    """
    folder = Path(out)
    if os.path.lexists(folder):
        raise ConfigError(f"out: expected a folder that does not exist yet, got {folder}, which is {kind_of(folder)}")
    if dtype not in FEATURE_DTYPES:
        raise ConfigError(f"dtype: expected one of {', '.join(FEATURE_DTYPES)}, got {dtype!r}")
    if method not in ASSIGNMENTS:
        raise ConfigError(f"method: expected one of {', '.join(ASSIGNMENTS)}, got {method!r}")
    if part is not None and method != "auto":
        raise ConfigError(f"method={method} cannot be combined with part, which is an assignment; give one of them")
    budget = memory_bytes(memory)
    if memory is not None:
        lean_heap()  # otherwise arrays that were freed stay in the heaps of threads, as much again as is in use
    source = _input(data, root, seed)
    count = _checked_parts(parts, source.num_nodes)
    held = build_bytes(source.num_nodes, count) + source.resident
    least = held + max(_LEAST_WORK, _PROGRAM + least_to_sort(count, source.num_edges or 0) * 4 // 3)
    if budget < least:
        raise ConfigError(
            f"memory: expected at least {shown_bytes(least)} for {source.num_nodes:,} nodes, got {shown_bytes(budget)}"
        )
    given = None if part is None else _given_part(part, count, source.num_nodes)
    labels = source.labels
    index = "int32" if source.num_nodes < 2**31 else "int64"
    relations = 0 if source.types is None else len(source.types.relations)
    more = (source.has_weights, source.type_widths, relations)
    shape = Shape(source.num_features, dtype, index, labels.dtype, labels.columns, *more)
    key = {
        **{"version": _VERSION, "parts": count, "method": method, "dtype": dtype, "seed": seed},
        **{"part": None if given is None else zlib.crc32(array_bytes(given)), "source": source.identity()},
    }
    with _begun(partial_of(folder), key) as partial:
        if not (partial / MANIFEST).is_file():
            told = progress or _quiet
            assigned, made_by = _assignment(source, count, given, method, seed, budget, partial, told)
            if memory is not None:
                POOL.trim()  # what the partitioner has freed would lie beside the rows
            work = (budget - held - _PROGRAM) * 3 // 4  # the rest is for what lies between
            Build(source, assigned, count, shape, partial, work, told).run(made_by)
        finish(partial, folder)
    return Store(folder)


def read_part(path: str | os.PathLike[str]) -> Tensor:
    """The part of every node from a file: ``.npy``, or ``.npz`` as :meth:`gw.partitioning.Partition.save` writes it.

    Raises: DataError for another file.
    """
    try:
        held = np.load(Path(path), allow_pickle=False)
        return torch.from_numpy(np.asarray(held if isinstance(held, np.ndarray) else held["part"]).astype(np.int64))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as failure:
        raise DataError(f"{path}: expected the part of every node as .npy or .npz, got: {failure}") from None


def _quiet(what: str, done: int, total: int | None) -> None:
    """No progress is wanted."""


def _input(data: Any, root: Any, seed: int) -> StoreInput:
    if isinstance(data, GraphFiles):
        return FilesInput(data)
    return DatasetInput(data if isinstance(data, Dataset) else load(data, root=root, seed=seed))


def _checked_parts(parts: Any, nodes: int) -> int:
    """The number asked for, or the usual one. Raises: ConfigError."""
    count = usual_parts(nodes) if parts is None else as_integer(parts)
    if count is None or not 1 <= count <= max(nodes, 1):
        raise ConfigError(f"parts: expected an integer from 1 to the {nodes:,} nodes, got {parts!r}")
    return count


@contextlib.contextmanager
def _begun(partial: Path, key: dict[str, Any]) -> Iterator[Path]:
    """The temporary folder: that of an earlier try with the same arguments, or an empty one; for this process alone.

    Raises: DataError for a folder that cannot be written, or that another process writes.
    """
    text = json.dumps(key, sort_keys=True, default=str)
    try:
        partial.mkdir(parents=True, exist_ok=True)
        lock = os.open(partial, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as failure:
        raise DataError(f"{partial}: expected a folder that can be written, got: {failure.strerror}") from None
    try:
        _claim(lock, partial, json.loads(text))
        yield partial
    finally:
        os.close(lock)


def _claim(lock: int, partial: Path, key: Any) -> None:
    """Locks the folder, and empties it where it was begun with another key. Raises: DataError."""
    mark = partial / KEY
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if mark.is_file() and _held(mark) == key:
            return
        for path in partial.iterdir():
            path.unlink()
    except BlockingIOError:
        raise DataError(f"{partial}: expected one preparation at a time, got another one under way") from None
    except OSError as failure:
        raise DataError(f"{partial}: expected a folder that can be written, got: {failure.strerror}") from None
    write_json(mark, key)


def _held(mark: Path) -> Any:
    """What the folder was begun with; None where that cannot be read."""
    try:
        return json.loads(mark.read_text(encoding="utf-8"))
    except ValueError:
        return None


def _assignment(
    source: StoreInput,
    parts: int,
    given: NDArray[np.integer] | None,
    method: str,
    seed: int,
    budget: int,
    partial: Path,
    told: Told,
) -> tuple[NDArray[np.integer], str]:
    """The part of every node, kept for a build that goes on; and what made it."""
    kind = np.dtype(part_dtype(parts))
    for file in partial.glob("assignment-*.npy"):
        found = _read_assignment(file, source.num_nodes)
        if found is not None:
            return found, file.stem.removeprefix("assignment-")
    chosen = "given" if given is not None else method
    fits, left = _fits(source, budget), _left_for_rows(source, parts, budget)
    if chosen == "auto":
        chosen = "multilevel" if fits or left >= _LEAST_ROWS else "hash"
    if chosen == "multilevel" and not fits and left < _LEAST_ROWS:
        least = shown_bytes(budget + (_LEAST_ROWS - left) * 4 // 3)
        raise ConfigError(f"memory: expected at least {least} for method multilevel, got {shown_bytes(budget)}")
    if chosen in METHODS and chosen != "multilevel" and not fits:
        raise ConfigError(
            f"method: expected multilevel, range or hash, or part=, for a structure larger than the memory, "
            f"got {method!r}"
        )
    told("assigning nodes to parts", 0, source.num_nodes)
    if given is not None:
        made = given
    elif chosen in METHODS and fits:
        graph = _graph_of(source)
        labels = source.training_labels() if chosen in ("gap", "multilevel") else None
        made = partition(graph, parts, chosen, labels, seed=seed).part.numpy().astype(kind)
    elif chosen == "multilevel":
        made = _from_rows(source, parts, seed, left, partial, told).astype(kind)
    else:
        made = _by_number(source.num_nodes, parts, chosen, seed, kind)
    told("assigning nodes to parts", source.num_nodes, source.num_nodes)
    fresh = partial / "assignment.new"
    held = io.BytesIO()
    np.save(held, made)
    with opened(fresh, fresh=True) as handle:
        write_all(handle, fresh, held.getbuffer(), 0)
        settle(handle, fresh)
    fresh.replace(partial / f"assignment-{chosen}.npy")
    return made, chosen


def _left_for_rows(source: StoreInput, parts: int, budget: int) -> int:
    """Bytes that are left for sorting where rows are read from a file."""
    held = multilevel_bytes(source.num_nodes, parts, source.labels.num_classes) + _ROW_BYTES * source.num_nodes
    return (budget - _PROGRAM - held - source.resident) * 3 // 4


def _from_rows(
    source: StoreInput, parts: int, seed: int, memory: int, partial: Path, told: Told
) -> NDArray[np.integer[Any]]:
    """Parts by the multilevel method, from a file of sorted rows."""
    total = None if source.num_edges is None else (1 if source.both_ways else 2) * source.num_edges
    rows = sorted_rows(source, partial, memory // 2, lambda count: told("sorting rows", count, total))
    labels = source.training_labels()
    made = multilevel(rows, parts, labels, seed=seed, most_entries=max(memory // 2 // ENTRY_BYTES, 1024))
    rows.remove()
    return made.numpy()


def _read_assignment(file: Path, nodes: int) -> NDArray[np.integer] | None:
    """What an earlier try has kept; None where a crash of the machine left half of it."""
    try:
        found: NDArray[np.integer] = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return found if found.shape == (nodes,) else None


def _by_number(nodes: int, parts: int, method: str, seed: int, kind: np.dtype[Any]) -> NDArray[np.integer]:
    """Consecutive nodes, or scattered ones."""
    made = np.empty(nodes, kind)
    for first in range(0, nodes, _PIECE):
        ids = np.arange(first, min(first + _PIECE, nodes))
        numbers = ids * parts // nodes if method == "range" else hashed(ids, seed) % np.uint64(parts)
        made[first : first + len(ids)] = numbers
    return made


def _given_part(given: Any, parts: int, nodes: int) -> NDArray[np.integer]:
    """Raises: ConfigError for parts that do not fit."""
    array = given.numpy() if isinstance(given, Tensor) else np.asarray(given)
    if array.shape != (nodes,) or array.dtype.kind not in "iu":
        raise ConfigError(f"part: expected {nodes} integers, one per node, got {array.dtype} of shape {array.shape}")
    if nodes and (int(array.min()) < 0 or int(array.max()) >= parts):
        wrong = int(array[(array < 0) | (array >= parts)][0])
        raise ConfigError(f"part: expected numbers in [0, {parts}), got {wrong}; parts={wrong + 1} has room for it")
    return np.ascontiguousarray(array, part_dtype(parts))


def _fits(source: StoreInput, budget: int) -> bool:
    """Whether the structure can be partitioned in memory within the budget."""
    if source.graph is not None:
        return True
    if source.num_edges is None:
        return False
    taken = _GRAPH_BYTES[0] * source.num_nodes + _GRAPH_BYTES[1] * source.num_edges
    return taken + source.resident + _PROGRAM < budget


def _graph_of(source: StoreInput) -> Graph:
    """The structure in memory."""
    if source.graph is not None:
        return source.graph
    chunks = list(source.edges(1 << 22))
    src = np.concatenate([np.empty(0, np.int64), *(chunk.src for chunk in chunks)])
    dst = np.concatenate([np.empty(0, np.int64), *(chunk.dst for chunk in chunks)])
    return Graph(torch.from_numpy(src), torch.from_numpy(dst), num_nodes=source.num_nodes)
