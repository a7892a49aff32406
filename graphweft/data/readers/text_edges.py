"""Lines of text as edges whose ends are called by numbers or by texts.

Comes in: the rows of an edge list, cell by cell. Goes out: both ends as integers, or as node numbers with names, and
weights. Called by the reader of edge lists where a table of plain numbers is not what the file holds.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphweft._errors import DataError
from graphweft.data.readers.assemble import whole_ids
from graphweft.data.readers.files import one_line

_LONGEST = 1000  # characters of an id; a longer one is no id
_TITLES = {
    "source": "source src from fromnodeid from_id from_node source_id src_id u node1 node_1 head sender",
    "target": "target tgt dst dest destination to tonodeid to_id to_node target_id dst_id v node2 node_2 tail receiver",
}
_SOURCES, _TARGETS = (frozenset(titles.split()) for titles in _TITLES.values())
_INDEX = ("", "unnamed: 0", "index", "id", "edge_id")


class Columns(NamedTuple):
    """Which columns of a file are read.

    Attributes:
        delimiter: Between cells; None: blanks.
        width: Columns of the file.
        titles: Titles of all columns; empty for a file without.
        source, target, weight: Their positions; no weight is -1.
        notes: What was decided.
    """

    delimiter: str | None
    width: int
    titles: tuple[str, ...]
    source: int
    target: int
    weight: int
    notes: tuple[str, ...]

    @property
    def taken(self) -> tuple[int, ...]:
        """Positions of the columns that are read, in the order source, target, weight."""
        both = (self.source, self.target)
        return both if self.weight < 0 else (*both, self.weight)


class TextEdges(NamedTuple):
    """Edges of a file; ``names`` is empty where ids are numbers."""

    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    weight: NDArray[np.float32] | None
    names: tuple[str, ...]
    notes: tuple[str, ...]


def cells_of(line: str, delimiter: str | None) -> list[str]:
    """The cells of one line, without quotes and blanks around them.

    Example:
        >>> cells_of('"a, b", 2', ","), cells_of("1  2", None)
        (['a, b', '2'], ['1', '2'])
    """
    if delimiter is None:
        return [cell.strip('"') for cell in line.split()]
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter, skipinitialspace=True))]
    except (csv.Error, StopIteration):
        return [cell.strip() for cell in line.split(delimiter)]


def delimiter_of(line: str) -> str | None:
    """The delimiter of a line: a semicolon (whose files may have decimal commas), comma, tab, or blanks (None)."""
    return next((mark for mark in ";,\t" if mark in line), None)


def is_number(cell: str) -> bool:
    """Whether a cell is one number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def choose_columns(who: str, first: str) -> Columns:
    """What the first line says about the columns; its cells are titles where none of them is a number.

    Raises: DataError for fewer than two columns, or more than those of an edge.
    """
    delimiter = delimiter_of(first)
    cells = cells_of(first, delimiter)
    width = len(cells)
    titles = () if any(map(is_number, cells)) else tuple(cells)
    low = [title.lower() for title in titles]
    left = list(range(width))
    notes: list[str] = []
    if width > 2 and low and low[0] in _INDEX and (low[0] in _INDEX[:2] or _named(low[1:3])):
        left.pop(0)
        notes.append("the first column, an index, is left out")
    sources, targets = ([at for at in left if low and low[at] in known] for known in (_SOURCES, _TARGETS))
    source, target = (sources[0], targets[0]) if len(sources) == len(targets) == 1 else (*left, 0, 0)[:2]
    rest = [at for at in left if at not in (source, target)]
    if not 2 <= len(left) <= 3:
        named = f" ({one_line(', '.join(titles), 80)})" if titles else ""
        tables = "or give tables (--nodes and --edges, gw.Dataset.from_tables)"
        remedy = f"; write a file of these columns alone, {tables}" if len(left) > 3 else ""
        raise DataError(
            f"{who}: expected two or three columns (source, target, weight), got {len(left)}{named}{remedy}"
        )
    weight = rest[0] if rest else -1
    if rest and titles and not low[weight].startswith(("w", "value")):
        notes.append(f"the column {one_line(titles[weight], 40)!r} is read as the weight")
    return Columns(delimiter, width, titles, source, target, weight, tuple(notes))


def _named(low: list[str]) -> bool:
    """Titles of a source and a target."""
    return any(title in _SOURCES for title in low) and any(title in _TARGETS for title in low)


def read_text_edges(who: str, lines: Iterable[str], columns: Columns) -> TextEdges:
    """The edges of ``lines``, the first one included; ids are all numbers (also as 0.0), or texts.

    Raises: DataError for a row of another width, an empty cell, weights that are no numbers, or ids of both kinds.
    """
    rows = list(_rows(who, lines, columns))
    notes = list(columns.notes)
    titled = bool(columns.titles) and _is_title(rows, columns)
    if columns.titles and not titled:
        notes = ["the first line was read as an edge"]
    edges = rows[titled:]
    if not edges:
        raise DataError(f"{who}: expected edges, got none")
    ends = [[row[at] for row in edges] for at in (columns.source, columns.target)]
    weight = None if columns.weight < 0 else _weights(who, [row[columns.weight] for row in edges], columns)
    numbers = _whole(who, ends)
    if numbers is not None:
        return TextEdges(*numbers, weight, (), tuple(notes))
    _require_texts(who, ends)
    names = sorted({*ends[0], *ends[1]})
    number = {name: at for at, name in enumerate(names)}
    src, dst = (np.fromiter(map(number.__getitem__, side), np.int64, len(side)) for side in ends)
    notes.append("ids of the source are texts; node_names keeps them")
    if titled:
        notes.append(f"the first line was read as titles: {one_line(', '.join(columns.titles), 80)}")
    return TextEdges(src, dst, weight, tuple(names), tuple(notes))


def _rows(who: str, lines: Iterable[str], columns: Columns) -> Iterator[list[str]]:
    """Cells of the lines that are no comments, decoded."""
    for at, line in enumerate(line for line in lines if line.strip() and line.lstrip()[0] not in "#%"):
        cells = cells_of(_decoded(line), columns.delimiter)
        if len(cells) != columns.width:
            raise DataError(f"{who}: expected {columns.width} columns, got {len(cells)} at row {at}")
        for position in columns.taken:
            cell = cells[position]
            if not cell and not (at == 0 and columns.titles):
                raise DataError(f"{who}: expected a value in every cell, got an empty one at row {at}")
            if len(cell) > _LONGEST:
                raise DataError(f"{who}: expected ids of at most {_LONGEST} characters, got {len(cell)} at row {at}")
        yield cells


def _decoded(line: str) -> str:
    """A line that was read byte by byte, as UTF-8 where it is."""
    try:
        return line.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return line


def _is_title(rows: list[list[str]], columns: Columns) -> bool:
    """Whether a first line of texts over rows of texts is one of titles: known ones, or no id of the others."""
    first = [rows[0][at] for at in (columns.source, columns.target)]
    if _named([cell.lower() for cell in first]) or (columns.weight >= 0 and not is_number(rows[0][columns.weight])):
        return True
    ids = {row[at] for row in rows[1:] for at in (columns.source, columns.target)}
    return bool(ids) and (not any(cell in ids for cell in first) or all(map(is_number, ids)))


def _weights(who: str, cells: list[str], columns: Columns) -> NDArray[np.float32]:
    if columns.delimiter == ";":  # decimal commas
        cells = [cell.replace(",", ".") for cell in cells]
    at = next((at for at, cell in enumerate(cells) if not is_number(cell)), None)
    if at is not None:
        raise DataError(
            f"{who}: expected numbers in the third column, the weight, got {one_line(cells[at], 40)!r} at edge {at}; "
            "a file of source and target alone has none"
        )
    with np.errstate(over="ignore"):
        return np.array(cells, dtype=np.float64).astype(np.float32)


def _whole(who: str, ends: list[list[str]]) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Both ends as integers; None where some are no numbers."""
    try:
        table: NDArray[Any] = np.array([[int(cell) for cell in side] for side in ends], dtype=np.int64)
    except (ValueError, OverflowError):
        try:
            floats = np.array([[float(cell) for cell in side] for side in ends])
        except ValueError:
            return None
        table = whole_ids(who, floats.T).T
    return table[0], table[1]


def _require_texts(who: str, ends: list[list[str]]) -> None:
    """Raises: DataError where most ids are numbers, so that the others are damaged."""
    numeric = sum(is_number(cell) for side in ends for cell in side)
    if numeric >= len(ends[0]):
        at = next(i for i, pair in enumerate(zip(*ends, strict=True)) if not all(map(is_number, pair)))
        bad = next(side[at] for side in ends if not is_number(side[at]))
        raise DataError(
            f"{who}: expected ids that are all numbers or all texts, got {one_line(bad, 40)!r} at edge {at}"
        )
