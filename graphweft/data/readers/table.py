"""Tables of numbers in text: comma-separated, tab-separated or with blanks.

Comes in: lines of text. Goes out: one NumPy matrix, or a DataError that names the row. Used by the readers of text
layouts.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphweft._errors import DataError
from graphweft.data.readers.files import one_line, show, text_lines


def parse_table(
    who: str, lines: Iterable[str], dtype: type[np.generic], delimiter: str | None = ",", quoted: bool = False
) -> NDArray[Any]:
    """The rows of ``lines`` as a (rows, columns) matrix of ``dtype``; blank lines and ``#`` comments are left out.

    With ``quoted`` cells may stand in double quotes.

    Raises: DataError if a cell is no number of that type, rows differ in width or there is none.

    Example:
        >>> parse_table("t", ["0,1", "2,3"], np.int64).tolist()
        [[0, 1], [2, 3]]
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # an integer written as 1.5 is a warning in NumPy, and so is no data
            return np.loadtxt(
                lines, dtype=dtype, delimiter=delimiter, comments="#", ndmin=2, quotechar='"' if quoted else None
            )
    except DataError:  # of the lines themselves, and a ValueError too
        raise
    except UserWarning:
        raise DataError(f"{who}: expected rows of numbers, got none") from None
    except (ValueError, DeprecationWarning, OverflowError) as error:
        raise DataError(
            f"{who}: expected rows of {np.dtype(dtype)} numbers, got: {one_line(str(error), 120)}"
        ) from error


def read_table(
    path: Path, dtype: type[np.generic], columns: int | None = None, delimiter: str | None = ","
) -> NDArray[Any]:
    """A whole file as a matrix, gzip or not.

    Raises: DataError as :func:`parse_table`, or if there are not ``columns`` columns.
    """
    table = parse_table(show(path.name), text_lines(path), dtype, delimiter)
    if columns is not None and table.shape[1] != columns:
        raise DataError(f"{show(path.name)}: expected {columns} columns, got {table.shape[1]}")
    return table


def read_column(path: Path, dtype: type[np.generic]) -> NDArray[Any]:
    """A file of one number a line as a vector."""
    return read_table(path, dtype, columns=1).reshape(-1)


def split_head(lines: Iterable[str], is_head: str) -> tuple[list[str], Iterable[str]]:
    """The leading lines that are blank or start with one of the characters ``is_head``, and the rest of the lines."""
    iterator = iter(lines)
    head: list[str] = []
    for line in iterator:
        text = line.strip()
        if text and text[0] not in is_head:
            return head, itertools.chain([line], iterator)
        if len(head) < 1000:
            head.append(text)
    return head, []
