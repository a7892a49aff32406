"""The OGB layout: ``edge.csv.gz``, ``num-node-list.csv.gz`` and companions in ``raw``, splits beside it.

Comes in: the folder that holds ``edge.csv.gz``. Goes out: a Dataset: one graph with node labels, one with links to
predict, or a set of graphs as one block-diagonal graph with a label each. Called by the registry.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from graphweft._errors import DataError
from graphweft.data.dataset import Dataset
from graphweft.data.readers.assemble import (
    Labels,
    ReadOptions,
    Split,
    coo_graph,
    dense_features,
    index_idx,
    labels,
    no_labels,
    random_split,
)
from graphweft.data.readers.files import file_size, list_folder, node_limit, one_line, open_regular
from graphweft.data.readers.table import read_column, read_table

# Sets whose files hold each link once though it goes both ways, as the publisher's own table says.
_UNDIRECTED = ("ogbg-mol", "ogbg-ppa", "ogbn-products", "ogbn-proteins", "ogbl-ddi", "ogbl-ppa", "ogbl-collab")
_PARTS = ("train", "valid", "test")


def is_ogb(names: list[str]) -> bool:
    """The folder has OGB's edge and node-count files, or marks of its typed layout."""
    return {"edge.csv.gz", "num-node-list.csv.gz"} <= set(names) or "triplet-type-list.csv.gz" in names


def read_ogb(raw: Path, options: ReadOptions) -> Dataset:
    """The dataset of an OGB folder.

    Raises: DataError naming the file at fault; typed sets are not supported.
    """
    names = list_folder(raw)
    if "triplet-type-list.csv.gz" in names:
        raise DataError("expected an OGB set with one node type, got a typed one, which is not supported yet")
    folder = raw.parent if raw.name == "raw" else raw
    name = options.name or one_line(folder.name, 80)
    nodes = read_column(raw / "num-node-list.csv.gz", np.int64)
    links = read_column(raw / "num-edge-list.csv.gz", np.int64)
    graph_ptr, edge_ptr = _offsets("num-node-list", nodes, raw), _offsets("num-edge-list", links, raw)
    if len(nodes) != len(links):
        raise DataError(f"num-edge-list: expected {len(nodes)} counts, one per graph, got {len(links)}")
    edges = read_table(raw / "edge.csv.gz", np.int64, columns=2)
    edges = _place(edges, graph_ptr, edge_ptr, nodes, links)
    values = read_table(raw / "edge-feat.csv.gz", np.float64) if "edge-feat.csv.gz" in names else None
    if values is not None and len(values) != len(edges):
        raise DataError(f"edge-feat: expected {len(edges)} rows, one per edge, got {len(values)}")
    if any(known.lower().replace("_", "-").startswith(_UNDIRECTED) for known in (name, folder.name)):
        edges = np.stack([edges, edges[:, ::-1]], axis=1).reshape(-1, 2)  # each link, then its reverse
        values = None if values is None else np.repeat(values, 2, axis=0)
    rows = int(graph_ptr[-1])
    x = (
        dense_features("node-feat", read_table(raw / "node-feat.csv.gz", np.float64), rows)
        if "node-feat.csv.gz" in names
        else None
    )
    many = len(nodes) > 1 or "graph-label.csv.gz" in names
    found = _labels(raw, names, len(nodes) if many else rows, many)
    src, dst = (torch.from_numpy(np.ascontiguousarray(edges[:, i])) for i in (0, 1))
    split, notes = _split(folder, found, options)
    if x is None:
        notes.append("the source has no features")
    return Dataset(
        name=name,
        graph=coo_graph(src, dst, rows),
        x=x,
        y=found.y,
        num_classes=found.num_classes,
        task=found.task,
        edge_features=None if values is None else torch.from_numpy(values.astype(np.float32)),
        graph_ptr=torch.from_numpy(graph_ptr) if many else None,
        notes=tuple(notes),
        **split.fields(),
    )


def _offsets(who: str, counts: NDArray[Any], raw: Path) -> NDArray[np.int64]:
    """Where each graph's rows start."""
    with open_regular(raw / f"{who}.csv.gz") as file, open_regular(raw / "edge.csv.gz") as edges:
        bound = node_limit(file_size(file) + file_size(edges))
    if (
        len(counts) == 0
        or int(counts.min()) < 0
        or int(counts.max()) > bound
        or int(counts.sum(dtype=np.float64)) > bound
    ):
        span = f"{int(counts.min(initial=0))} to {int(counts.max(initial=0))}"
        raise DataError(f"{who}: expected counts that the folder can hold, got {span}")
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _place(
    edges: NDArray[Any],
    graph_ptr: NDArray[np.int64],
    edge_ptr: NDArray[np.int64],
    nodes: NDArray[Any],
    links: NDArray[Any],
) -> NDArray[Any]:
    """Edges as ids of the block-diagonal graph, each checked against its own graph."""
    if len(edges) != int(edge_ptr[-1]):
        raise DataError(f"edge: expected {int(edge_ptr[-1])} edges, as num-edge-list says, got {len(edges)}")
    bound = np.repeat(nodes, links)[:, None]
    wrong = ((edges < 0) | (edges >= bound)).any(axis=1)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise DataError(f"edge: expected ids in [0, {int(bound[at, 0])}), got {edges[at].tolist()} at edge {at}")
    placed: NDArray[Any] = edges + np.repeat(graph_ptr[:-1], links)[:, None]
    return placed


def _labels(raw: Path, names: list[str], rows: int, many: bool) -> Labels:
    """Class ids, 0/1 columns, or values where the labels are fractions."""
    file_name = "graph-label.csv.gz" if many else "node-label.csv.gz"
    if file_name not in names:
        return no_labels(rows)
    table = read_table(raw / file_name, np.float64)
    if len(table) != rows:
        raise DataError(f"{file_name}: expected {rows} labels, got {len(table)}")
    present = table[~np.isnan(table)]
    if not np.isfinite(present).all():
        raise DataError(f"{file_name}: expected finite labels, got an infinity")
    if (present != np.floor(present)).any():
        y = torch.from_numpy(table.astype(np.float32))
        return Labels(y, y.shape[1], "regression")
    if table.shape[1] == 1:
        return labels(file_name, np.where(np.isnan(table), -1, table), rows)
    if np.isnan(table).any():  # some labels of a row are unknown
        if ((present != 0) & (present != 1)).any():
            raise DataError(f"{file_name}: expected 0, 1 or nothing in each column, got another value")
        return Labels(torch.from_numpy(table.astype(np.float32)), table.shape[1], "multilabel")
    return labels(file_name, table, rows)


def _split(folder: Path, found: Labels, options: ReadOptions) -> tuple[Split, list[str]]:
    """The split the folder has (the only one, or the one named), else one at random by seed."""
    rows = found.y.shape[0]
    place = folder / "split"
    kinds = [k for k in list_folder(place) if (place / k / "train.csv.gz").exists()] if place.is_dir() else []
    if not kinds:
        notes = (
            ["the source has no labels"] if found.num_classes == 0 else ["the source has no split: 60/20/20 by seed"]
        )
        return random_split(found, options.seed), notes
    kind = kinds[0] if options.split is None else str(options.split)
    if kind not in kinds:
        raise DataError(f"split: expected one of {one_line(', '.join(kinds), 80)}, got {one_line(kind, 40)!r}")
    if found.num_classes == 0:
        return random_split(found, options.seed), ["the source has no labels"]
    parts = (read_column(place / kind / f"{part}.csv.gz", np.int64) for part in _PARTS)
    return Split(*(index_idx(f"split/{kind}/{part}", ids, rows) for part, ids in zip(_PARTS, parts, strict=True))), []
