"""The Planetoid layout: ``ind.<set>.{x,y,tx,ty,allx,ally,graph,test.index}`` in one folder.

Comes in: the folder. Goes out: a Dataset with the public split (the labelled rows of x, the next 500, the listed test
nodes). Test nodes that the lists skip, as in Citeseer, get empty features and no label. Called by the registry.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray

from graphweft._errors import DataError
from graphweft.data.dataset import Dataset
from graphweft.data.readers.assemble import Labels, ReadOptions, Split, both_directions, coo_graph, sparse_features
from graphweft.data.readers.files import one_line, read_bytes, text_lines
from graphweft.data.readers.pickle_subset import load_subset
from graphweft.data.readers.table import parse_table

_FILE = re.compile(r"ind\.(.+)\.(x|y|tx|ty|allx|ally|graph|test\.index)")
_NUM_VAL = 500
_LIMIT = 1 << 30


def set_name(file_name: str) -> str:
    """The set that a file of this layout belongs to."""
    match = _FILE.fullmatch(file_name)
    return match[1] if match else ""


def is_planetoid(names: list[str]) -> bool:
    """A name has the form ``ind.<set>.<part>``."""
    return any(_FILE.fullmatch(name) for name in names)


def planetoid_sets(names: list[str]) -> list[str]:
    """The sets whose graph file is among ``names``."""
    return sorted({set_name(name) for name in names if name.endswith(".graph")} - {""})


def read_planetoid(folder: Path, options: ReadOptions) -> Dataset:
    """The set ``options.name``, or the only one in the folder.

    Raises: DataError if there are several and none is named, a file is missing or damaged, or contradicts another.
    """
    name = options.name
    if name is None or not (folder / f"ind.{name}.graph").exists():
        found = planetoid_sets(sorted(path.name for path in folder.glob("ind.*.graph")))
        if len(found) != 1:
            listed = one_line(", ".join(found), 80) or "none"
            raise DataError(f"expected one Planetoid set, got {listed}; name one of its files, as in ind.cora.graph")
        name = found[0]
    parts = {part: _load(folder, name, part) for part in ("x", "y", "tx", "ty", "allx", "ally", "graph")}
    table = parse_table("test.index", text_lines(folder / f"ind.{name}.test.index"), np.int64, None)
    listed_test = table.reshape(-1)
    return _assemble(name, parts, listed_test)


def _load(folder: Path, name: str, part: str) -> Any:
    file_name = f"ind.{name}.{part}"
    try:
        found = load_subset(read_bytes(folder / file_name, _LIMIT))
    except DataError as error:
        text = str(error)
        raise DataError(text if file_name in text else f"{file_name}: {text}") from error
    wanted = dict if part == "graph" else np.ndarray if part.endswith("y") else scipy.sparse.csr_matrix
    if isinstance(found, np.ndarray) and wanted is scipy.sparse.csr_matrix and found.ndim == 2:
        found = scipy.sparse.csr_matrix(found)
    if not isinstance(found, wanted) or (isinstance(found, np.ndarray) and found.ndim != 2):
        raise DataError(f"{file_name}: expected a {wanted.__name__}, got a {type(found).__name__}")
    return found


def _assemble(name: str, parts: dict[str, Any], listed: NDArray[np.int64]) -> Dataset:
    """Graph, features and labels in node order; see the module's first lines."""
    known, tested = parts["allx"].shape[0], len(listed)
    _check_sizes(parts, listed)
    first, last = int(listed.min()), int(listed.max())
    num_nodes = last + 1
    if first != known or num_nodes - known > max(10 * tested, 1000):
        raise DataError(f"test.index: expected nodes from {known} on with few gaps, got {first} to {last}")
    width, classes = parts["allx"].shape[1], parts["ally"].shape[1]
    y = np.full(num_nodes, -1, np.int64)
    y[:known], y[listed] = _class_ids("ally", parts["ally"]), _class_ids("ty", parts["ty"])
    stacked = scipy.sparse.vstack([parts["allx"], parts["tx"]], format="csr")
    source = np.full(num_nodes, -1, np.int64)
    source[:known], source[listed] = np.arange(known), known + np.arange(tested)
    counts = np.where(source >= 0, np.diff(stacked.indptr)[source], 0)
    rows = stacked[source[source >= 0]]
    offsets = np.concatenate([[0], np.cumsum(counts)])
    x = sparse_features("x", offsets, rows.indices, rows.data, (num_nodes, width))
    src, dst = _neighbours(parts["graph"], num_nodes)
    graph = coo_graph(torch.from_numpy(src), torch.from_numpy(dst), num_nodes)
    labelled = parts["y"].shape[0]
    return Dataset(
        name=name,
        graph=graph,
        x=x,
        y=torch.from_numpy(y),
        num_classes=Labels(torch.from_numpy(y), classes, "classification").num_classes,
        notes=("both directions of each link; duplicates and self-loops of the source removed",),
        **Split(
            torch.arange(labelled),
            torch.arange(labelled, min(labelled + _NUM_VAL, known)),
            torch.from_numpy(np.sort(listed)),
        ).fields(),
    )


def _check_sizes(parts: dict[str, Any], listed: NDArray[np.int64]) -> None:
    rows = {part: parts[part].shape[0] for part in ("x", "y", "tx", "ty", "allx", "ally")}
    pairs = [("y", rows["y"], rows["x"]), ("ally", rows["ally"], rows["allx"]), ("ty", rows["ty"], rows["tx"])]
    pairs.append(("test.index", len(listed), rows["tx"]))
    for part, got, want in pairs:
        if got != want:
            raise DataError(f"{part}: expected {want} rows, got {got}")
    if rows["x"] > rows["allx"]:
        raise DataError(f"x: expected at most {rows['allx']} rows, as allx has, got {rows['x']}")
    for part, like in (("tx", "allx"), ("ty", "ally")):
        if parts[part].shape[1] != parts[like].shape[1]:
            raise DataError(f"{part}: expected {parts[like].shape[1]} columns, got {parts[part].shape[1]}")
    if len(np.unique(listed)) != len(listed):
        raise DataError("test.index: expected each node once, got one twice")


def _class_ids(who: str, one_hot: NDArray[Any]) -> NDArray[np.int64]:
    """The column of the one in each row, -1 for a row of zeros."""
    wrong = ((one_hot != 0) & (one_hot != 1)).any(axis=1) | ((one_hot != 0).sum(axis=1) > 1)
    if wrong.any():
        raise DataError(f"{who}: expected rows with at most one 1, got another at row {int(np.flatnonzero(wrong)[0])}")
    if not 1 <= one_hot.shape[1] <= 10_000:
        raise DataError(f"{who}: expected between 1 and 10000 classes, got {one_hot.shape[1]}")
    return np.where(one_hot.any(axis=1), one_hot.argmax(axis=1), -1).astype(np.int64)


def _neighbours(graph: dict[Any, Any], num_nodes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The neighbour lists as edges in both directions."""
    src: list[int] = []
    dst: list[int] = []
    for node, neighbours in graph.items():
        if type(node) is not int or type(neighbours) is not list:
            raise DataError("graph: expected a list of neighbours for each node id, got something else")
        src.extend([node] * len(neighbours))
        dst.extend(neighbours)
    for who, ids in (("node", src), ("neighbour", dst)):
        bad = next((i for i in ids if type(i) is not int or not 0 <= i < num_nodes), None)
        if bad is not None:
            raise DataError(f"graph: expected a {who} id in [0, {num_nodes}), got {one_line(str(bad), 40)}")
    return both_directions(np.array(src, np.int64), np.array(dst, np.int64), num_nodes, keep_loops=False)
