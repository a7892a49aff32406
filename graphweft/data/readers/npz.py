"""The ``.npz`` form: ``indptr, indices`` or ``edge_index``, ``x`` dense or CSR, ``y``, masks, ``graph_ptr``.

Comes in: an open archive. Goes out: a Dataset. Rows of ``indptr`` are sources of edges, and so is row 0 of
``edge_index``. Typed files go to ``typed_npz``.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphweft._errors import DataError
from graphweft.data.dataset import Dataset
from graphweft.data.graph_samples import GRAPH_ID
from graphweft.data.readers.archive import NpzArchive
from graphweft.data.readers.assemble import (
    MAX_CLASSES,
    Array,
    Labels,
    ReadOptions,
    as_ids,
    check_indptr,
    check_range,
    coo_graph,
    csr_graph,
    dense_features,
    labels,
    named,
    no_labels,
    sparse_features,
)
from graphweft.data.readers.files import ARRAYS_FLOOR, content_limit, node_limit, one_line
from graphweft.data.readers.split import read_split
from graphweft.data.table_encoding import TableEncoding
from graphweft.graph.graph import Graph
from graphweft.storage.feature import Features, SparseFeatures
from graphweft.storage.int8_features import Int8Features

_SIDE_ARRAYS = ("node_kind", "node_tag", "y_source", "fold", GRAPH_ID)
_PAIRS = "edge_label_index"
_ROW_KEYS = ("x", "node_ids", "node_tag")
_LABEL_KEYS = ("y", "train_mask", "val_mask", "test_mask")
_MAX_TAGS = 4096


def is_npz_form(names: set[str]) -> bool:
    """The members include a graph in the ``.npz`` form."""
    return "edge_index" in names or {"indptr", "indices"} <= names


def read_npz(archive: NpzArchive, options: ReadOptions) -> Dataset:
    """The dataset of an untyped ``.npz``.

    Raises: DataError naming the member at fault.
    """
    graph = _graph(archive)
    num_nodes = graph.num_nodes
    graph_ptr = as_ids("graph_ptr", archive.array("graph_ptr", (None,))).long() if "graph_ptr" in archive else None
    rows = num_nodes if graph_ptr is None else graph_ptr.numel() - 1
    pairs = torch.from_numpy(archive.array(_PAIRS, (2, None), "iu").astype(np.int64)) if _PAIRS in archive else None
    rows = rows if pairs is None else pairs.shape[1]
    notes: list[str] = []
    x = read_features(archive, "x", num_nodes)
    if x is None and "x_known_index" in archive:
        x = _known_features(archive, num_nodes, notes)
    if x is None and "node_tag" in archive:
        x = one_hot("node_tag", archive.array("node_tag", (num_nodes,), "iu"))
        notes.append("x is the one-hot node tag")
    if x is None:
        notes.append("the source has no features")
    found = read_labels(archive, rows)
    return Dataset(
        name=options.name or "graph",
        graph=graph,
        x=x,
        y=found.y,
        num_classes=found.num_classes,
        task=found.task,
        graph_ptr=graph_ptr,
        edge_label_index=pairs,
        encoding=read_encoding(archive),
        **edge_parts(archive, graph.num_edges),
        node_ids=as_ids("node_ids", archive.array("node_ids", (num_nodes,))).long() if "node_ids" in archive else None,
        class_names=read_names(archive, "class_names"),
        node_names=read_names(archive, "node_names"),
        arrays=side_arrays(archive),
        notes=tuple(notes),
        **read_split(archive, found, options).fields(),
    )


def _graph(archive: NpzArchive) -> Graph:
    """The graph of ``indptr, indices`` or of ``edge_index``."""
    declared = int(archive.array("num_nodes", (), "iu")) if "num_nodes" in archive else None
    if "format" in archive and str(archive.array("format", (), "SU").astype(str)) != "csr":
        raise DataError("format: expected a csr matrix, got another sparse format")
    if "indptr" in archive:
        return csr_graph(archive.array("indptr", (None,)), archive.array("indices", (None,)), declared)
    edges = as_ids("edge_index", archive.array("edge_index", (2, None)))
    return coo_graph(edges[0], edges[1], _count_nodes(archive, edges, declared))


def _count_nodes(archive: NpzArchive, edges: Tensor, declared: int | None) -> int:
    """Nodes of an ``edge_index`` file: as declared, or as most of its members have rows, or the largest id + 1."""
    if declared is None:
        keys = [*_ROW_KEYS, *(() if "graph_ptr" in archive or _PAIRS in archive else _LABEL_KEYS)]
        shapes = [(key, archive.header(key).shape) for key in keys if key in archive]
        masks = [shape for key, shape in shapes if shape and key.endswith("mask")]
        sizes = [shape[0] for key, shape in shapes if shape and not key.endswith("mask")]
        sizes += [
            next((n for n in shape if n in sizes), shape[-1]) for shape in masks
        ]  # (N,), (splits, N), (N, splits)
        if "x_shape" in archive:
            sizes.append(int(archive.array("x_shape", (2,), "iu")[0]))
        declared = max(sizes, key=lambda size: (sizes.count(size), size), default=None)
    count = declared if declared is not None else int(edges.max()) + 1 if edges.numel() else 0
    if not 0 <= count <= node_limit(archive.size):
        raise DataError(f"num_nodes: expected a number that a file of {archive.size} bytes can mean, got {count}")
    return count


def read_features(archive: NpzArchive, key: str, rows: int) -> Features | None:
    """Member ``x`` dense or in 8 bits, or its CSR parts; None where there is none of them.

    Raises: DataError.
    """
    if f"{key}_scale" in archive:
        return _int8_features(archive, key, rows)
    if key in archive:
        return dense_features(key, archive.array(key, (rows, None)), rows)
    if f"{key}_indptr" not in archive:
        return None
    return _csr_features(archive, key, rows)


def _int8_features(archive: NpzArchive, key: str, rows: int) -> Int8Features:
    """Levels with a scale and an offset a column."""
    levels = archive.array(key, (rows, None), "i")
    if levels.dtype != np.int8:
        raise DataError(f"{key}: expected int8 beside {key}_scale, got {levels.dtype}")
    columns = [archive.array(f"{key}_{name}", levels.shape[1:], "f").astype(np.float32) for name in ("scale", "offset")]
    return Int8Features(*map(torch.from_numpy, (levels, *columns)))


def _csr_features(archive: NpzArchive, key: str, rows: int) -> SparseFeatures:
    shape = [int(size) for size in archive.array(f"{key}_shape", (2,), "iu")]
    if shape[0] != rows:
        raise DataError(f"{key}_shape: expected {rows} rows, one per node, got {shape[0]}")
    indptr = archive.array(f"{key}_indptr", (rows + 1,), "iu")
    indices = archive.array(f"{key}_indices", (None,), "iu")
    data = archive.array(f"{key}_data", indices.shape) if f"{key}_data" in archive else None
    return sparse_features(key, indptr, indices, data, shape)


def _known_features(archive: NpzArchive, num_nodes: int, notes: list[str]) -> SparseFeatures:
    """Features that the source has for some nodes only, as rows of a whole matrix; the other rows are empty."""
    index = as_ids("x_known_index", archive.array("x_known_index", (None,))).long().numpy()
    if len(index) and (int(index.min()) < 0 or int(index.max()) >= num_nodes or len(np.unique(index)) != len(index)):
        raise DataError(f"x_known_index: expected distinct ids in [0, {num_nodes}), got others")
    known = _csr_features(archive, "x_known", len(index)).to_scipy().tocsr()
    counts = np.zeros(num_nodes + 1, np.int64)
    counts[index + 1] = np.diff(known.indptr)
    notes.append(f"the source has features for {len(index)} of {num_nodes} nodes; the rows of the others are empty")
    order = np.argsort(index, kind="stable")
    known = known[order]
    return sparse_features("x_known", np.cumsum(counts), known.indices, known.data, (num_nodes, known.shape[1]))


def one_hot(who: str, tags: Array) -> Tensor:
    """A float32 column per tag value from 0.

    Raises: DataError for negative or absurd tags.
    """
    if tags.size and (int(tags.min()) < 0 or int(tags.max()) >= _MAX_TAGS):
        raise DataError(f"{who}: expected tags in [0, {_MAX_TAGS}), got {int(tags.min())} to {int(tags.max())}")
    width = int(tags.max()) + 1 if tags.size else 1
    out = np.zeros((len(tags), width), np.float32)
    out[np.arange(len(tags)), tags.astype(np.int64)] = 1.0
    return torch.from_numpy(out)


def edge_parts(archive: NpzArchive, num_edges: int) -> dict[str, Any]:
    """Weights, features and times of edges, under the names of a Dataset's fields. Raises: DataError."""
    found: dict[str, Any] = {
        "edge_weight": _edge_rows(archive, "edge_weight", (num_edges,)),
        "edge_features": _edge_rows(archive, "edge_features", (num_edges, None)),
        "edge_time": None,
    }
    if "edge_time" in archive:
        times = archive.array("edge_time", (num_edges,), "iuf")
        found["edge_time"] = torch.from_numpy(times.astype(np.float64 if times.dtype.kind == "f" else np.int64))
    return found


def read_encoding(archive: NpzArchive) -> TableEncoding | None:
    """How tables became the features, where they did. Raises: DataError for a damaged text."""
    if "encoding" not in archive:
        return None
    try:
        return TableEncoding.from_dict(json.loads(str(archive.array("encoding", (), "U"))))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        text = one_line(f"{type(error).__name__}: {error}", 80)
        raise DataError(f"encoding: expected the encoding of tables, got a failure while reading ({text})") from None


def _edge_rows(archive: NpzArchive, key: str, shape: tuple[int | None, ...]) -> Tensor | None:
    if key not in archive:
        return None
    with np.errstate(over="ignore"):
        return torch.from_numpy(archive.array(key, shape).astype(np.float32))


def side_arrays(archive: NpzArchive) -> dict[str, Tensor]:
    """Further integer arrays that the file has beside the form's own."""
    return {
        key: torch.from_numpy(archive.array(key, (None,), "iu").astype(np.int64))
        for key in _SIDE_ARRAYS
        if key in archive
    }


def read_names(archive: NpzArchive, key: str) -> tuple[str, ...]:
    """A member of texts, or nothing where there is none of plain text."""
    return named(archive.array(key, (None,), "US")) if key in archive else ()


def read_labels(archive: NpzArchive, rows: int) -> Labels:
    """Member ``y`` with ``rows`` rows, or ``y_indptr`` and ``y_indices``; ``num_classes``, ``task`` where they are.

    Raises: DataError.
    """
    declared = int(archive.array("num_classes", (), "iu")) if "num_classes" in archive else None
    if "y" not in archive:
        return _csr_labels(archive, rows, declared) if "y_indptr" in archive else no_labels(rows)
    if "task" in archive and str(archive.array("task", (), "U")) == "regression":
        flat = len(archive.header("y").shape) == 1
        values = archive.array("y", (rows,) if flat else (rows, None), "f").astype(np.float32)
        return Labels(torch.from_numpy(values), 1 if flat else values.shape[1], "regression")
    return labels("y", archive.array("y"), rows, declared)


def _csr_labels(archive: NpzArchive, rows: int, declared: int | None) -> Labels:
    """Several labels a row as compressed rows of class ids."""
    if "y_indices" not in archive:
        raise DataError("y_indptr: expected y_indices beside it, got none")
    columns = as_ids("y_indices", archive.array("y_indices", (None,), "iu")).long()
    offsets = check_indptr("y_indptr", archive.array("y_indptr", (None,), "iu"), rows, columns.numel())
    if "y_shape" in archive:
        shape = archive.array("y_shape", (2,), "iu").astype(np.int64)
        if int(shape[0]) != rows:
            raise DataError(f"y_shape: expected {rows} rows, got {int(shape[0])}")
        declared = int(shape[1])
    width = int(columns.max()) + 1 if declared is None and columns.numel() else declared or 0
    if not 1 <= width <= MAX_CLASSES or 4 * rows * width > content_limit(archive.size, ARRAYS_FLOOR):
        raise DataError(f"y_indices: expected from 1 to {MAX_CLASSES} classes that fit the memory, got {width}")
    check_range("y_indices", columns, width)
    held = torch.ones(columns.numel(), dtype=torch.bool)
    if "y_data" in archive:
        values = archive.array("y_data", (columns.numel(),))
        if not np.isin(values, (0, 1)).all():
            raise DataError("y_data: expected 0 or 1 for each label, got another value")
        held = torch.from_numpy(values != 0)
    y = torch.zeros(rows, width)
    y[torch.repeat_interleave(torch.arange(rows), offsets.diff())[held], columns[held]] = 1.0
    return Labels(y, width, "multilabel")
