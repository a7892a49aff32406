"""MatrixMarket coordinate files as graphs: entry (i, j) is an edge from i to j.

Comes in: a path, gzip or not. Goes out: a Dataset without features or labels. The size line is checked against the
file before SciPy parses the rest. Called by the registry.
"""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import BinaryIO

import numpy as np
import scipy.io
import scipy.sparse
import torch

from graphweft._errors import DataError
from graphweft.data.dataset import Dataset
from graphweft.data.readers.assemble import ReadOptions, Split, coo_graph, no_labels
from graphweft.data.readers.files import (
    BoundedReader,
    content_limit,
    file_size,
    node_limit,
    one_line,
    open_regular,
    show,
)

_FIELDS = ("pattern", "real", "integer", "double")
_SYMMETRIES = ("general", "symmetric")
_MAX_HEAD = 1 << 20


def read_matrix_market(path: Path, options: ReadOptions) -> Dataset:
    """The graph of a square sparse matrix; a symmetric one gives both directions.

    Raises: DataError for dense, complex or rectangular matrices, sizes that the file cannot hold, or damage.
    """
    who = show(path.name)
    with open_regular(path) as file:
        _check_head(who, file)
        file.seek(0)
        stream = io.BufferedReader(BoundedReader(file, who))
        matrix = scipy.io.mmread(stream)
    if not scipy.sparse.issparse(matrix):
        raise DataError(f"{who}: expected a sparse matrix, got a dense one")
    coo = matrix.tocoo()
    num_nodes = int(coo.shape[0])
    src, dst = (torch.from_numpy(np.ascontiguousarray(ids, dtype=np.int64)) for ids in (coo.row, coo.col))
    with np.errstate(over="ignore"):
        values = np.asarray(coo.data).astype(np.float32)
    nothing = torch.empty(0, dtype=torch.int64)
    return Dataset(
        name=options.name or "graph",
        graph=coo_graph(src, dst, num_nodes),
        x=None,
        y=no_labels(num_nodes).y,
        num_classes=0,
        edge_weight=torch.from_numpy(values) if values.size and bool((values != 1).any()) else None,
        notes=("the source has no features", "the source has no labels"),
        **Split(nothing, nothing, nothing).fields(),
    )


def _check_head(who: str, file: BinaryIO) -> None:
    """Banner and size line say what is supported and what the file can hold."""
    size = file_size(file)
    packed = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    source = gzip.GzipFile(fileobj=file) if packed else file
    head = source.read(_MAX_HEAD)[:_MAX_HEAD].decode("latin-1").split("\n")
    banner = head[0].lower().split()
    if len(banner) != 5 or banner[0] != "%%matrixmarket" or banner[1:3] != ["matrix", "coordinate"]:
        raise DataError(
            f"{who}: expected the banner %%MatrixMarket matrix coordinate ..., got {one_line(head[0], 60)!r}"
        )
    if banner[3] not in _FIELDS or banner[4] not in _SYMMETRIES:
        raise DataError(
            f"{who}: expected pattern, real or integer, general or symmetric, got {one_line(head[0], 60)!r}"
        )
    line = next((text for text in head[1:] if text.strip() and not text.startswith("%")), "")
    cells = line.split()
    if len(cells) != 3 or not all(cell.isascii() and cell.isdigit() and len(cell) < 19 for cell in cells):
        raise DataError(f"{who}: expected a line of rows, columns and entries, got {one_line(line, 60)!r}")
    rows, columns, entries = (int(cell) for cell in cells)
    if rows != columns:
        raise DataError(f"{who}: expected a square matrix, got {rows} x {columns}")
    unpacked = content_limit(size) if packed else size
    if not 1 <= rows <= node_limit(size) or entries * 4 > unpacked + 4:
        raise DataError(f"{who}: expected sizes that {size} bytes can hold, got {rows} rows and {entries} entries")
