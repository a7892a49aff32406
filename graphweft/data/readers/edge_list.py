"""Edge lists as text: SNAP files with ``#`` headers, and ``.csv``, ``.tsv``, ``.txt`` with source, target, weight.

Comes in: a path, gzip or not. Goes out: a Dataset without features or labels. Ids with gaps are renumbered in
ascending order and the old ones kept in ``node_ids``, unless the header says how many nodes there are. Called by the
registry.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import torch

from graphweft._errors import DataError
from graphweft.data.dataset import Dataset
from graphweft.data.readers.assemble import ReadOptions, Split, coo_graph, no_labels, whole_ids
from graphweft.data.readers.files import one_line, show, text_lines
from graphweft.data.readers.table import parse_table, split_head

_HEADER = re.compile(r"Nodes:\s*(\d{1,18})\s+Edges:\s*(\d{1,18})")
_WORD = re.compile(r"[A-Za-z_]\w*")


def read_edge_list(path: Path, options: ReadOptions) -> Dataset:
    """The graph of a text file of edges, one ``source target [weight]`` a line.

    Raises: DataError if a line is no edge, an id is negative, or the header promises more edges than there are.
    """
    head, body = split_head(text_lines(path), "#%")
    first = next(iter(body), None)
    if first is None:
        raise DataError(f"{show(path.name)}: expected edges, got none")
    delimiter = "," if "," in first else None
    cells = [cell.strip().strip('"') for cell in (first.split(delimiter) if delimiter else first.split())]
    if not 2 <= len(cells) <= 3:
        raise DataError(f"{show(path.name)}: expected two or three columns (source, target, weight), got {len(cells)}")
    titled = all(_WORD.fullmatch(cell) for cell in cells)
    lines = body if titled else itertools.chain([first], body)
    weight = None
    if len(cells) == 2:
        table = parse_table(show(path.name), lines, np.int64, delimiter)
        ends = table[:, 0], table[:, 1]
    else:
        record = parse_table(show(path.name), lines, np.float64, delimiter)
        ids = whole_ids(show(path.name), record[:, :2])
        ends = ids[:, 0], ids[:, 1]
        with np.errstate(over="ignore"):
            weight = record[:, 2].astype(np.float32)
    if table_width := (table.shape[1] if len(cells) == 2 else record.shape[1]) - len(cells):
        raise DataError(f"{show(path.name)}: expected {len(cells)} columns, got {len(cells) + table_width}")
    src, dst = ends
    if len(src) and min(int(src.min()), int(dst.min())) < 0:
        raise DataError(f"{show(path.name)}: expected ids from 0, got {min(int(src.min()), int(dst.min()))}")
    promise = next((match for line in head if (match := _HEADER.search(line))), None)
    if promise and int(promise[2]) > len(src):
        raise DataError(f"{show(path.name)}: expected {promise[2]} edges, as its header says, got {len(src)}")
    return _dataset(options, src, dst, weight, int(promise[1]) if promise else None)


def _dataset(
    options: ReadOptions, src: np.ndarray, dst: np.ndarray, weight: np.ndarray | None, promised: int | None
) -> Dataset:
    largest = max(int(src.max()), int(dst.max()))
    ids = np.unique(np.concatenate([src, dst]))
    notes = ["the source has no features", "the source has no labels"]
    node_ids = None
    if promised is not None and largest < promised <= 64 * len(ids) + 10_000_000:
        num_nodes = promised
    else:
        num_nodes = len(ids)
        if largest + 1 != num_nodes:
            node_ids = torch.from_numpy(ids)
            src, dst = np.searchsorted(ids, src), np.searchsorted(ids, dst)
            notes.append("ids of the source have gaps; node_ids keeps them")
    nothing = torch.empty(0, dtype=torch.int64)
    src, dst = np.ascontiguousarray(src), np.ascontiguousarray(dst)
    graph = coo_graph(torch.from_numpy(src), torch.from_numpy(dst), num_nodes)
    return Dataset(
        name=options.name or one_line("graph"),
        graph=graph,
        x=None,
        y=no_labels(num_nodes).y,
        num_classes=0,
        edge_weight=None if weight is None else torch.from_numpy(weight),
        node_ids=node_ids,
        notes=tuple(notes),
        **Split(nothing, nothing, nothing).fields(),
    )
