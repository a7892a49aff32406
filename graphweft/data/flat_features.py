"""Features of all nodes of a typed graph in one sparse matrix.

Comes in: a dataset with features per node type, or none. Goes out: the same with ``x``: every type has columns of its
own, and a node of a type without features has one column for itself alone. So one matrix of weights holds the
projection of every type and an embedding of every node without features. Called by the trainer and by runs.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from graphweft._errors import DataError
from graphweft.data.dataset import Dataset
from graphweft.storage.feature import SparseFeatures


def with_flat_features(ds: Dataset) -> Dataset:
    """``ds`` itself where it has ``x`` or no types; else with ``x`` of one block of columns per node type.

    Shape: x (nodes, columns): a type with features (n, F) has F columns, one without has n.

    Raises: DataError where features of a type have another number of rows than nodes.
    """
    if ds.x is not None or not ds.graph.is_typed:
        return ds
    layout, first = ds.graph.layout, 0
    counts, columns, values = [], [], []
    for name in layout.node_types:
        nodes = len(layout.node_range(name))
        per_row, own_columns, own_values, width = _rows(ds, name, nodes)
        counts.append(per_row)
        columns.append(own_columns + first)
        values.append(own_values)
        first += width
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), torch.cat(counts).cumsum(0)])
    narrow = torch.int32 if first < 2**31 else torch.int64
    x = SparseFeatures(indptr, torch.cat(columns).to(narrow), torch.cat(values), (ds.num_nodes, first))
    return replace(ds, x=x)


def _rows(ds: Dataset, name: str, nodes: int) -> tuple[Tensor, Tensor, Tensor, int]:
    """Entries per row, their columns and values, and the number of columns of one node type."""
    found = ds.features.get(name)
    if found is None:
        return torch.ones(nodes, dtype=torch.int64), torch.arange(nodes), torch.ones(nodes), nodes
    sparse = found if isinstance(found, SparseFeatures) else SparseFeatures.from_dense(found)
    if sparse.num_rows != nodes:
        raise DataError(f"features of {name!r}: expected {nodes} rows, one per node, got {sparse.num_rows}")
    return sparse.indptr[1:] - sparse.indptr[:-1], sparse.indices.long(), sparse.values, sparse.width
