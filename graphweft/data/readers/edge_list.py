"""Edge lists as text: SNAP files with ``#`` headers, and ``.csv``, ``.tsv``, ``.txt`` with source, target, weight.

Comes in: a path, gzip or not. Goes out: a Dataset without features or labels. Ids with gaps are renumbered in
ascending order and the old ones kept in ``node_ids``, unless the header says how many nodes there are; ids that are
texts are numbered in ascending order and kept in ``node_names``. Called by the registry.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from graphweft._distinct import distinct
from graphweft._errors import DataError
from graphweft.data.dataset import Dataset
from graphweft.data.readers.assemble import ReadOptions, Split, coo_graph, no_labels, whole_ids
from graphweft.data.readers.files import one_line, show, text_lines
from graphweft.data.readers.table import parse_table, split_head
from graphweft.data.readers.text_edges import Columns, TextEdges, choose_columns, read_text_edges

_FEW_ROWS = 1000
_LOOKED_AT = _FEW_ROWS + 2
_INTEGERS = re.compile(r"[\s\d,;+-]*")
_HEADER = re.compile(r"Nodes:\s*(\d{1,18})\s+Edges:\s*(\d{1,18})")


def read_edge_list(path: Path, options: ReadOptions) -> Dataset:
    """The graph of a text file of edges, one ``source target [weight]`` a line.

    Raises: DataError if a line is no edge, an id is negative, or the header promises more edges than there are.
    """
    who = show(path.name)
    head, body = split_head(text_lines(path), "#%")
    first = next(iter(body), None)
    if first is None:
        raise DataError(f"{who}: expected edges, got none")
    columns = choose_columns(who, first)
    try:
        edges = _numbers(who, body if columns.titles else itertools.chain([first], body), columns)
    except DataError as failure:
        edges = _texts(path, who, columns, failure)
    src, dst = edges.src, edges.dst
    if len(src) and min(int(src.min()), int(dst.min())) < 0:
        raise DataError(f"{who}: expected ids from 0, got {min(int(src.min()), int(dst.min()))}")
    promise = next((match for line in head if (match := _HEADER.search(line))), None)
    if promise and int(promise[2]) > len(src):
        raise DataError(f"{who}: expected {promise[2]} edges, as its header says, got {len(src)}")
    return _dataset(options, edges, int(promise[1]) if promise else None)


def _numbers(who: str, lines: Iterable[str], columns: Columns) -> TextEdges:
    """Edges of a table of numbers, at the speed of NumPy. Raises: DataError where it is none."""
    if columns.weight < 0 and columns.width == 2:
        table = parse_table(who, lines, np.int64, columns.delimiter, quoted=True)
        ends, weight = table, None
    else:
        table = parse_table(who, lines, np.float64, columns.delimiter, quoted=True)
    if table.shape[1] != columns.width:
        raise DataError(f"{who}: expected {columns.width} columns, got {table.shape[1]}")
    if table.dtype != np.int64:
        ends = whole_ids(who, table[:, [columns.source, columns.target]])
        with np.errstate(over="ignore"):
            weight = None if columns.weight < 0 else table[:, columns.weight].astype(np.float32)
    else:
        ends = table[:, [columns.source, columns.target]]
    return TextEdges(ends[:, 0], ends[:, 1], weight, (), (*columns.notes, *_counted(table, columns)))


def _counted(table: np.ndarray, columns: Columns) -> tuple[str, ...]:
    """A note where the sources are 0, 1, 2, ... and a third column holds whole numbers: it may be an index."""
    if columns.titles or columns.weight < 0 or len(table) < 3:
        return ()
    counts = bool((table[:, 0] == np.arange(len(table))).all()) and bool((table[:, 2] == np.floor(table[:, 2])).all())
    return ("the first column counts the lines; if it is an index, write the file without it",) if counts else ()


def _texts(path: Path, who: str, columns: Columns, failure: DataError) -> TextEdges:
    """Edges cell by cell.

    Raises: DataError: ``failure`` where the file begins as a table of numbers, so that one of many rows is damaged;
    else what the cells lack.
    """
    _, body = split_head(text_lines(path), "#%")
    start = list(itertools.islice(body, bool(columns.titles), _LOOKED_AT))
    if len(start) > _FEW_ROWS and all(_INTEGERS.fullmatch(line) for line in start[:_FEW_ROWS]):
        raise failure
    return read_text_edges(who, text_lines(path), columns)


def _dataset(options: ReadOptions, edges: TextEdges, promised: int | None) -> Dataset:
    src, dst, weight = edges.src, edges.dst, edges.weight
    largest = max(int(src.max()), int(dst.max()))
    ids = distinct(np.concatenate([src, dst]))
    notes = ["the source has no features", "the source has no labels", *edges.notes]
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
        node_names=edges.names,
        notes=tuple(notes),
        **Split(nothing, nothing, nothing).fields(),
    )
