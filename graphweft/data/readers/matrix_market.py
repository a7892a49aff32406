"""MatrixMarket coordinate files as graphs: entry (i, j) is an edge from i to j.

Comes in: a path, gzip or not. Goes out: a Dataset without features or labels. Called by the registry. SciPy's own
parser is not used: it takes sizes on trust, and stray bytes end the process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from graphweft._errors import DataError
from graphweft.data.dataset import Dataset
from graphweft.data.readers.assemble import ReadOptions, Split, coo_graph, no_labels, whole_ids
from graphweft.data.readers.files import file_size, node_limit, one_line, open_regular, show, text_lines
from graphweft.data.readers.table import parse_table, split_head

_COLUMNS = {"pattern": 2, "real": 3, "double": 3, "integer": 3}
_SYMMETRIES = ("general", "symmetric")


def read_matrix_market(path: Path, options: ReadOptions) -> Dataset:
    """The graph of a square sparse matrix; a symmetric one gives both directions.

    Raises: DataError for dense, complex or rectangular matrices, sizes that the file does not hold, or damage.
    """
    who = show(path.name)
    lines = text_lines(path)
    columns, symmetric = _banner(who, next(lines, ""))
    _, body = split_head(lines, "%")
    body = iter(body)
    with open_regular(path) as file:
        size = file_size(file)
    num_nodes, entries = _sizes(who, next(body, ""), size)
    table = parse_table(who, body, np.float64, None) if entries else np.empty((0, columns))
    if table.shape != (entries, columns):
        raise DataError(
            f"{who}: expected {entries} entries of {columns} columns, got {table.shape[0]} of {table.shape[1]}"
        )
    ids = whole_ids(who, table[:, :2]) - 1
    with np.errstate(over="ignore"):
        values = np.ones(entries, np.float32) if columns == 2 else table[:, 2].astype(np.float32)
    src, dst, values = _both(ids, values) if symmetric else (ids[:, 0], ids[:, 1], values)
    graph = coo_graph(torch.from_numpy(src.copy()), torch.from_numpy(dst.copy()), num_nodes)
    nothing = torch.empty(0, dtype=torch.int64)
    return Dataset(
        name=options.name or "graph",
        graph=graph,
        x=None,
        y=no_labels(num_nodes).y,
        num_classes=0,
        edge_weight=torch.from_numpy(values) if values.size and bool((values != 1).any()) else None,
        notes=("the source has no features", "the source has no labels"),
        **Split(nothing, nothing, nothing).fields(),
    )


def _banner(who: str, line: str) -> tuple[int, bool]:
    """Columns of an entry, and whether entries stand for both directions."""
    words = line.lower().split()
    if len(words) != 5 or words[:3] != ["%%matrixmarket", "matrix", "coordinate"]:
        raise DataError(f"{who}: expected the banner %%MatrixMarket matrix coordinate, got {one_line(line, 60)!r}")
    if words[3] not in _COLUMNS or words[4] not in _SYMMETRIES:
        kinds = "pattern, real or integer, general or symmetric"
        raise DataError(f"{who}: expected a matrix that is {kinds}, got {one_line(line, 60)!r}")
    return _COLUMNS[words[3]], words[4] == "symmetric"


def _sizes(who: str, line: str, size: int) -> tuple[int, int]:
    """Nodes and entries, as a file of ``size`` bytes can mean them."""
    cells = line.split()
    if len(cells) != 3 or not all(cell.isascii() and cell.isdigit() and len(cell) < 19 for cell in cells):
        raise DataError(f"{who}: expected a line of rows, columns and entries, got {one_line(line, 60)!r}")
    rows, columns, entries = (int(cell) for cell in cells)
    if rows != columns:
        raise DataError(f"{who}: expected a square matrix, got {rows} x {columns}")
    if not 1 <= rows <= node_limit(size):
        raise DataError(f"{who}: expected a number of rows that {size} bytes can mean, got {rows}")
    return rows, entries


def _both(ids: NDArray[Any], values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Entries and then, off the diagonal, their reverses."""
    off = ids[:, 0] != ids[:, 1]
    src = np.concatenate([ids[:, 0], ids[off, 1]])
    dst = np.concatenate([ids[:, 1], ids[off, 0]])
    return src, dst, np.concatenate([values, values[off]])
