"""The gnn-benchmark layout: one ``.npz`` with ``adj_*`` and ``attr_*`` CSR parts and ``labels``.

Comes in: an open archive. Goes out: a Dataset with the links as stored, no split of its own. Called by the registry.
"""

from __future__ import annotations

import numpy as np
import torch

from graphweft._errors import DataError
from graphweft.data.dataset import Dataset
from graphweft.data.readers.archive import NpzArchive
from graphweft.data.readers.assemble import (
    ReadOptions,
    csr_graph,
    dense_features,
    labels,
    no_labels,
    random_split,
    sparse_features,
)
from graphweft.data.readers.npz import read_names
from graphweft.storage.feature import Features


def is_gnn_benchmark(names: set[str]) -> bool:
    """The members include a CSR adjacency named ``adj_*``."""
    return {"adj_indptr", "adj_indices", "adj_shape"} <= names


def read_gnn_benchmark(archive: NpzArchive, options: ReadOptions) -> Dataset:
    """The dataset of a gnn-benchmark archive; pickled name lists in it are left alone.

    Raises: DataError naming the member at fault.
    """
    rows, columns = (int(size) for size in archive.array("adj_shape", (2,), "iu"))
    if rows != columns:
        raise DataError(f"adj_shape: expected a square adjacency, got {rows} x {columns}")
    indptr = archive.array("adj_indptr", (rows + 1,), "iu")
    indices = archive.array("adj_indices", (None,), "iu")
    graph = csr_graph(indptr, indices, rows)
    weight = archive.array("adj_data", indices.shape) if "adj_data" in archive else None
    weighted = weight is not None and weight.size > 0 and bool((weight != 1).any())
    found = labels("labels", archive.array("labels"), rows) if "labels" in archive else no_labels(rows)
    x: Features | None = None
    if "attr_indptr" in archive:
        shape = [int(size) for size in archive.array("attr_shape", (2,), "iu")]
        if shape[0] != rows:
            raise DataError(f"attr_shape: expected {rows} rows, one per node, got {shape[0]}")
        entries = archive.array("attr_indices", (None,), "iu")
        data = archive.array("attr_data", entries.shape) if "attr_data" in archive else None
        x = sparse_features("attr", archive.array("attr_indptr", (rows + 1,), "iu"), entries, data, shape)
    elif "attr_matrix" in archive:
        x = dense_features("attr_matrix", archive.array("attr_matrix", (rows, None)), rows)
    names = archive.header("class_names").dtype.kind in "US" if _is_plain(archive, "class_names") else False
    return Dataset(
        name=options.name or "graph",
        graph=graph,
        x=x,
        y=found.y,
        num_classes=found.num_classes,
        task=found.task,
        edge_weight=torch.from_numpy(weight.astype(np.float32)) if weighted and weight is not None else None,
        class_names=read_names(archive, "class_names") if names else (),
        notes=() if x is not None else ("the source has no features",),
        **random_split(found, options.seed).fields(),
    )


def _is_plain(archive: NpzArchive, key: str) -> bool:
    """The member is there and holds no pickled objects."""
    if key not in archive:
        return False
    try:
        archive.header(key)
    except DataError:
        return False
    return True
