"""Node-link JSON with arrays beside it: GraphSAGE's files of PPI and Reddit, and the parts of PPI with whole graphs.

Comes in: a folder. Goes out: a Dataset of nodes. Called by the registry. Two layouts: ``ppi-G.json``,
``ppi-feats.npy``, ``ppi-class_map.json`` and, where ids are no places, ``ppi-id_map.json`` (Hamilton et al., 2017); and
for each of train, valid and test ``train_graph.json``, ``train_feats.npy``, ``train_labels.npy`` and
``train_graph_id.npy`` (the zip file that PyTorch Geometric and DGL fetch), whose nodes are those of several graphs.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from graphweft._errors import DataError
from graphweft.data.dataset import Dataset
from graphweft.data.graph_samples import GRAPH_ID
from graphweft.data.readers.archive import read_npy
from graphweft.data.readers.assemble import ReadOptions, Split, both_directions, coo_graph, dense_features, labels
from graphweft.data.readers.files import show
from graphweft.data.readers.graphsaint import class_map, json_object

_PARTS = ("train", "valid", "test")
_ARRAYS = ("feats", "labels", "graph_id")


def is_graphsage(names: list[str]) -> bool:
    """The folder has a ``-G.json`` with its ``-class_map.json``."""
    return len(_prefixes(names)) > 0


def _prefixes(names: list[str]) -> list[str]:
    held = set(names)
    return sorted(name[:-7] for name in held if name.endswith("-G.json") and f"{name[:-7]}-class_map.json" in held)


def is_parts(names: list[str]) -> bool:
    """The folder has graphs, features and labels of all three parts."""
    return all(f"{part}_graph.json" in names and f"{part}_labels.npy" in names for part in _PARTS)


def read_graphsage(folder: Path, options: ReadOptions) -> Dataset:
    """The dataset of a folder in GraphSAGE's layout: nodes marked ``test`` and ``val``, all others for training.

    Edges count in both directions. Raises: DataError naming the file at fault.
    """
    prefixes = _prefixes([path.name for path in folder.iterdir()])
    wanted = prefixes if options.name is None else [prefix for prefix in prefixes if prefix == options.name]
    if len(wanted) != 1:
        raise DataError(f"expected one set, got {', '.join(map(show, prefixes))}; name= says which")
    prefix = wanted[0]
    file = f"{prefix}-G.json"
    nodes, src, dst, _ = _node_link(folder / file)
    place = _places(folder / f"{prefix}-id_map.json", nodes)
    rows = len(nodes)
    roles = np.zeros(rows, np.int64)
    for node, row in zip(nodes, place.tolist(), strict=True):
        roles[row] = 2 if node.get("test") is True else 1 if node.get("val") is True else 0
    ends = both_directions(place[src], place[dst], rows)
    table = folder / f"{prefix}-feats.npy"
    x = dense_features(table.name, read_npy(table), rows) if table.exists() else None
    known = {str(node.get("id")): int(row) for node, row in zip(nodes, place, strict=True)}
    found = class_map(_by_row(json_object(folder / f"{prefix}-class_map.json"), known, prefix), rows)
    split = Split(*(torch.from_numpy(np.flatnonzero(roles == role)) for role in range(3)))
    graph = coo_graph(torch.from_numpy(ends[0]), torch.from_numpy(ends[1]), rows)
    notes = () if x is not None else (f"{prefix}-feats.npy is missing: no features",)
    labelled = {"y": found.y, "num_classes": found.num_classes, "task": found.task}
    return Dataset(options.name or prefix, graph, x, **labelled, notes=notes, **split.fields())  # type: ignore[arg-type]


def read_parts(folder: Path, options: ReadOptions) -> Dataset:
    """The nodes of all graphs of the three parts, with the number of each node's graph as the array ``graph_id``.

    Edges are those of the file. Raises: DataError naming the file at fault.
    """
    tables: dict[str, list[NDArray[Any]]] = {name: [] for name in _ARRAYS}
    sources: list[NDArray[np.int64]] = []
    targets: list[NDArray[np.int64]] = []
    counts: list[int] = []
    for part in _PARTS:
        nodes, src, dst, directed = _node_link(folder / f"{part}_graph.json")
        first, rows = sum(counts), len(nodes)
        if any(node.get("id") != number for number, node in enumerate(nodes)):
            raise DataError(f"{part}_graph.json: expected nodes with ids 0 to {rows - 1} in order, got others")
        src, dst = (src, dst) if directed else both_directions(src, dst, rows)
        sources.append(src + first)
        targets.append(dst + first)
        for name in _ARRAYS:
            tables[name].append(_table(folder / f"{part}_{name}.npy", rows))
        counts.append(rows)
    total, ends = sum(counts), np.cumsum([0, *counts])
    graph = coo_graph(torch.from_numpy(np.concatenate(sources)), torch.from_numpy(np.concatenate(targets)), total)
    owner = np.concatenate(tables["graph_id"]).astype(np.int64)
    split = Split(*(torch.arange(int(a), int(b)) for a, b in itertools.pairwise(ends)))
    found = labels("labels", _joined("labels", tables["labels"]), total)
    default = folder.parent.name if folder.name == "raw" else folder.name
    return Dataset(
        name=options.name or show(default),
        graph=graph,
        x=dense_features("feats", _joined("feats", tables["feats"]), total),
        y=found.y,
        num_classes=found.num_classes,
        task=found.task,
        arrays={GRAPH_ID: torch.from_numpy(np.unique(owner, return_inverse=True)[1])},
        **split.fields(),
    )


def _table(path: Path, rows: int) -> NDArray[Any]:
    """An array with a row per node. Raises: DataError."""
    if not path.exists():
        raise DataError(f"{path.name}: expected the file beside the graphs, got none")
    found = read_npy(path)
    if found.ndim == 0 or found.shape[0] != rows or found.dtype.kind not in "iufb":
        raise DataError(f"{path.name}: expected numbers of {rows} nodes, got {found.dtype} of shape {found.shape}")
    return found


def _joined(name: str, parts: list[NDArray[Any]]) -> NDArray[Any]:
    """All parts, one under the other. Raises: DataError for unlike widths."""
    if len({part.shape[1:] for part in parts}) > 1:
        widths = ", ".join(str(part.shape[1:]) for part in parts)
        raise DataError(f"{name}: expected rows of one shape in all parts, got {widths}")
    return np.concatenate(parts)


def _node_link(path: Path) -> tuple[list[dict[str, Any]], NDArray[np.int64], NDArray[np.int64], bool]:
    """Nodes, ends of the edges as places among them, and whether edges have a direction. Raises: DataError."""
    found = json_object(path)
    nodes, links = found.get("nodes"), found.get("links", found.get("edges"))
    if not isinstance(nodes, list) or not isinstance(links, list) or not all(isinstance(n, dict) for n in nodes):
        raise DataError(f"{path.name}: expected node-link data with lists nodes and links, got something else")
    ends = np.empty((len(links), 2), np.int64)
    for number, link in enumerate(links):
        pair: Any = (link.get("source"), link.get("target")) if isinstance(link, dict) else (None, None)
        if not all(type(end) is int and 0 <= end < len(nodes) for end in pair):
            raise DataError(
                f"{path.name}: expected link {number} between places in [0, {len(nodes)}), got something else"
            )
        ends[number] = pair
    return nodes, ends[:, 0].copy(), ends[:, 1].copy(), found.get("directed") is True


def _places(path: Path, nodes: list[dict[str, Any]]) -> NDArray[np.int64]:
    """The row of every node: by the map of ids where there is one, else its place. Raises: DataError."""
    rows = np.arange(len(nodes))
    if not path.exists():
        return rows
    given = json_object(path)
    found = [given.get(str(node.get("id"))) for node in nodes]
    if not all(type(row) is int for row in found) or sorted(found) != rows.tolist():  # type: ignore[type-var]
        raise DataError(f"{path.name}: expected a row in [0, {len(nodes)}) for each node once, got something else")
    return np.array(found, np.int64)


def _by_row(classes: dict[str, Any], rows: dict[str, int], prefix: str) -> dict[str, Any]:
    """The class map by row. Raises: DataError for a node that the graph has not."""
    unknown = next((key for key in classes if key not in rows), None)
    if unknown is not None:
        raise DataError(f"{prefix}-class_map.json: expected ids of nodes of the graph, got {show(unknown)!r}")
    return {str(rows[key]): value for key, value in classes.items()}
