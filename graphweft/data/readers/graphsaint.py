"""The GraphSAINT layout: ``adj_full.npz``, ``role.json``, and where given ``class_map.json`` and ``feats.npy``.

Comes in: the folder. Goes out: a Dataset; what the folder lacks is said in its notes. A class map of lists gives
several labels per node. Called by the registry.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphweft._errors import DataError
from graphweft.data.dataset import Dataset
from graphweft.data.readers.archive import NpzArchive, read_npy
from graphweft.data.readers.assemble import (
    Labels,
    ReadOptions,
    Split,
    csr_graph,
    dense_features,
    index_idx,
    labels,
    no_labels,
    random_split,
)
from graphweft.data.readers.files import open_regular, read_bytes, show
from graphweft.graph.graph import Graph

_ROLES = ("tr", "va", "te")


def is_graphsaint(names: list[str]) -> bool:
    """The folder has ``adj_full.npz``."""
    return "adj_full.npz" in names


def read_graphsaint(folder: Path, options: ReadOptions) -> Dataset:
    """The dataset of a GraphSAINT folder.

    Raises: DataError naming the file at fault.
    """
    graph = _graph(folder / "adj_full.npz")
    rows = graph.num_nodes
    notes = []
    x, found = None, no_labels(rows)
    if (folder / "feats.npy").exists():
        x = dense_features("feats.npy", read_npy(folder / "feats.npy"), rows)
    else:
        notes.append("feats.npy is missing: no features")
    if (folder / "class_map.json").exists():
        found = class_map(json_object(folder / "class_map.json"), rows)
    else:
        notes.append("class_map.json is missing: no labels")
    if (folder / "role.json").exists():
        split = _roles(json_object(folder / "role.json"), rows)
    else:
        notes.append("role.json is missing: a random split by seed")
        split = random_split(found, options.seed)
    default = folder.parent.name if folder.name == "raw" else folder.name
    return Dataset(
        name=options.name or show(default),
        graph=graph,
        x=x,
        y=found.y,
        num_classes=found.num_classes,
        task=found.task,
        notes=tuple(notes),
        **split.fields(),
    )


def _graph(path: Path) -> Graph:
    with open_regular(path) as file:
        archive = NpzArchive(file, path.name)
        if "format" in archive and str(archive.array("format", (), "SU").astype(str)) != "csr":
            raise DataError("adj_full.npz: expected a csr matrix, got another sparse format")
        rows, columns = (int(size) for size in archive.array("shape", (2,), "iu"))
        if rows != columns:
            raise DataError(f"adj_full.npz: expected a square adjacency, got {rows} x {columns}")
        return csr_graph(archive.array("indptr", (rows + 1,), "iu"), archive.array("indices", (None,), "iu"), rows)


def json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises: DataError for anything else."""
    try:
        found = json.loads(read_bytes(path, 2 << 30))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path.name}: expected JSON, got: {error}") from error
    if not isinstance(found, dict):
        raise DataError(f"{path.name}: expected an object, got a {type(found).__name__}")
    return found


def _roles(roles: dict[str, Any], rows: int) -> Split:
    parts = []
    for role in _ROLES:
        ids = roles.get(role)
        if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < rows for i in ids):
            raise DataError(f"role.json: expected a list {role!r} of ids in [0, {rows}), got something else")
        parts.append(index_idx(role, np.array(ids, np.int64), rows))
    return Split(*parts)


def class_map(classes: dict[str, Any], rows: int) -> Labels:
    """Class ids, or rows of 0 and 1, by node id."""
    if not classes:
        return no_labels(rows)
    several = isinstance(next(iter(classes.values())), list)
    width = len(next(iter(classes.values()))) if several else 1
    if several and not 1 <= width <= 10_000:
        raise DataError(f"class_map.json: expected between 1 and 10000 labels a node, got {width}")
    if several and len(classes) != rows:
        raise DataError(f"class_map.json: expected labels of {rows} nodes, got {len(classes)}")
    y: NDArray[Any] = np.zeros((rows, width), np.float32) if several else np.full(rows, -1, np.int64)
    seen = np.zeros(rows, bool)
    for key, value in classes.items():
        node = int(key) if key.isascii() and key.isdigit() and len(key) < 19 else -1
        if not 0 <= node < rows or seen[node]:
            raise DataError(f"class_map.json: expected each node id in [0, {rows}) once, got {show(key)!r}")
        seen[node] = True
        y[node] = _class_of(value, width, several, key)
    return labels("class_map.json", y, rows)


def _class_of(value: Any, width: int, several: bool, key: str) -> Any:
    if several:
        if not isinstance(value, list) or len(value) != width or not all(v in (0, 1) for v in value if type(v) is int):
            raise DataError(f"class_map.json: expected {width} zeros and ones for node {show(key)}, got something else")
        if any(type(v) not in (int, float, bool) for v in value):
            raise DataError(f"class_map.json: expected {width} zeros and ones for node {show(key)}, got something else")
        return value
    if type(value) is not int or not -1 <= value < 2**31:
        raise DataError(f"class_map.json: expected a class id for node {show(key)}, got something else")
    return value
