"""The TUDataset layout: ``<set>_A.txt``, ``_graph_indicator``, ``_graph_labels``, ``_node_labels``, and more.

Comes in: the folder. Goes out: a Dataset of many graphs in one block-diagonal graph, one label per graph. Called by
the registry.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphweft._errors import DataError
from graphweft.data.dataset import Dataset
from graphweft.data.readers.assemble import (
    Labels,
    ReadOptions,
    coo_graph,
    dense_features,
    labels,
    no_labels,
    random_split,
)
from graphweft.data.readers.files import list_folder, one_line
from graphweft.data.readers.npz import one_hot
from graphweft.data.readers.table import read_column, read_table

_SUFFIX = "_A.txt"


def is_tu(names: list[str]) -> bool:
    """A name ends in ``_A.txt`` and its set has a graph indicator."""
    return any(name.endswith(_SUFFIX) and f"{name[: -len(_SUFFIX)]}_graph_indicator.txt" in names for name in names)


def read_tu(folder: Path, options: ReadOptions) -> Dataset:
    """The set of graphs in a TU folder. Ids start at 1 in the files; class values become ids in ascending order.

    Raises: DataError naming the file at fault.
    """
    names = list_folder(folder)
    found = sorted(name[: -len(_SUFFIX)] for name in names if name.endswith(_SUFFIX))
    chosen = options.name if options.name in found else found[0] if len(found) == 1 else None
    if chosen is None:
        raise DataError(f"expected one TU set, got {one_line(', '.join(found), 80)}")
    path = {name[len(chosen) + 1 : -4]: folder / name for name in names if name.startswith(f"{chosen}_")}
    graph_of = read_column(path["graph_indicator"], np.int64)
    graph_ptr = _graph_ptr(graph_of)
    rows, num_graphs = len(graph_of), len(graph_ptr) - 1
    edges = read_table(path["A"], np.int64, columns=2) - 1
    src, dst = (torch.from_numpy(np.ascontiguousarray(edges[:, i])) for i in (0, 1))
    graph = coo_graph(src, dst, rows)
    if (graph_of[edges[:, 0]] != graph_of[edges[:, 1]]).any():
        raise DataError(f"{chosen}_A.txt: expected edges within graphs, got one between two")
    found_labels = no_labels(num_graphs)
    class_names: tuple[str, ...] = ()
    if "graph_labels" in path:
        found_labels, class_names = _classes(read_column(path["graph_labels"], np.int64), num_graphs)
    elif "graph_attributes" in path:
        found_labels = _values(
            f"{chosen}_graph_attributes.txt", read_table(path["graph_attributes"], np.float64), num_graphs
        )
    arrays, x = {}, None
    if "node_labels" in path:
        tags = read_table(path["node_labels"], np.int64)[:, 0]
        if len(tags) != rows:
            raise DataError(f"{chosen}_node_labels.txt: expected {rows} rows, one per node, got {len(tags)}")
        tags = tags - tags.min(initial=0 if not len(tags) else tags[0])
        arrays["node_tag"] = torch.from_numpy(tags)
        x = one_hot(f"{chosen}_node_labels.txt", tags)
    if "node_attributes" in path:
        x = dense_features(f"{chosen}_node_attributes.txt", read_table(path["node_attributes"], np.float64), rows)
    return Dataset(
        name=options.name or one_line(chosen, 80),
        graph=graph,
        x=x,
        y=found_labels.y,
        num_classes=found_labels.num_classes,
        task=found_labels.task,
        edge_features=_edge_features(chosen, path, len(edges)),
        graph_ptr=torch.from_numpy(graph_ptr),
        class_names=class_names,
        arrays=arrays,
        notes=() if x is not None else ("the source has no features",),
        **random_split(found_labels, options.seed).fields(),
    )


def _graph_ptr(graph_of: NDArray[Any]) -> NDArray[np.int64]:
    """Offsets of the graphs, whose nodes must come graph after graph, numbered from 1."""
    steps = np.diff(graph_of)
    if graph_of[0] != 1 or ((steps != 0) & (steps != 1)).any():
        raise DataError("graph_indicator: expected graphs 1, 2, 3, ... one after the other, got another order")
    counts = np.bincount(graph_of - 1)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _values(who: str, table: NDArray[Any], num_graphs: int) -> Labels:
    """Numbers to predict, one or several a graph."""
    if len(table) != num_graphs:
        raise DataError(f"{who}: expected {num_graphs} rows, one per graph, got {len(table)}")
    y = torch.from_numpy(table.astype(np.float32))
    return Labels(y.reshape(-1) if y.shape[1] == 1 else y, y.shape[1], "regression")


def _edge_features(chosen: str, path: dict[str, Path], num_edges: int) -> Tensor | None:
    """Attributes of the edges, then their labels, one-hot; None where the set has neither."""
    columns = []
    if "edge_attributes" in path:
        columns.append(torch.from_numpy(read_table(path["edge_attributes"], np.float64).astype(np.float32)))
    if "edge_labels" in path:
        tags = read_column(path["edge_labels"], np.int64)
        columns.append(one_hot(f"{chosen}_edge_labels.txt", tags - tags.min(initial=tags[0] if len(tags) else 0)))
    for column in columns:
        if len(column) != num_edges:
            name = f"{chosen}_edge_attributes.txt or {chosen}_edge_labels.txt"
            raise DataError(f"{name}: expected {num_edges} rows, one per edge, got {len(column)}")
    return torch.cat(columns, dim=1) if columns else None


def _classes(values: NDArray[Any], num_graphs: int) -> tuple[Labels, tuple[str, ...]]:
    if len(values) != num_graphs:
        raise DataError(f"graph_labels: expected {num_graphs} labels, one per graph, got {len(values)}")
    classes, ids = np.unique(values, return_inverse=True)
    return labels("graph_labels", ids.reshape(-1), num_graphs), tuple(str(int(value)) for value in classes)
