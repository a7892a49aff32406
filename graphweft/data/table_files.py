"""Tables in files: CSV and Parquet, read with pandas.

Comes in: a path. Goes out: columns by name, and notes of what was left out. Called by the columns of tables. pandas is
an extra, and so is pyarrow, which Parquet needs: ``pip install graphweft[tables]``.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from graphweft._errors import DataError, GraphWeftError, MissingPackageError
from graphweft.data.readers.files import one_line, open_regular, show

SUFFIXES = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz", ".parquet", ".pq")
_SEPARATORS = (",", ";", "\t", "|")
_HEAD = 1 << 16
_MISSING = (  # what stands for a missing value, where a column holds no ids
    *("", "NA", "N/A", "n/a", "#N/A", "<NA>", "nan", "NaN", "-nan", "-NaN", "NULL", "null", "None"),
    *("#NA", "#N/A N/A", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
)
_INDEX = "Unnamed: 0"  # how pandas calls an index that was written without a name


def read_table(path: Path, texts: Sequence[str] = ()) -> tuple[Any, tuple[str, ...]]:
    """The table in a file as a DataFrame, and what a reader should know of it.

    Args:
        path: ``.csv``, ``.tsv`` or ``.txt`` (also ``.gz``) with a line of titles, or ``.parquet``.
        texts: Columns of a CSV file whose values are kept as they are written: "007" and "NA" are no numbers.

    Raises: DataError of one line; MissingPackageError without pandas, or without pyarrow for Parquet.
    """
    name = path.name.lower()
    if not name.endswith(SUFFIXES):
        raise DataError(f"{show(path)}: expected a table as .csv, .tsv or .parquet, got another suffix")
    pandas = pandas_for(f"{show(path)}: reading it")
    with open_regular(path) as file:
        try:
            if name.endswith((".parquet", ".pq")):
                return pandas.read_parquet(file, engine="pyarrow"), ()
            return _read_csv(pandas, file, name.endswith(".gz"), texts)
        except ImportError:
            text = f"{show(path)}: reading Parquet needs pyarrow (pip install graphweft[tables])"
            raise MissingPackageError(text) from None
        except GraphWeftError as error:
            raise DataError(f"{show(path)}: {error}") from None
        except UnicodeDecodeError:
            raise DataError(f"{show(path)}: expected a text in UTF-8, got another encoding") from None
        except MemoryError:
            raise
        except Exception as error:  # pandas raises many kinds; the file is what is wrong
            raise DataError(f"{show(path)}: expected an undamaged table, got: {one_line(str(error), 160)}") from None


def from_stream(source: Any) -> Any:
    """A DataFrame of what gives its columns by the Arrow or the interchange protocol. Raises: MissingPackageError."""
    pandas = pandas_for(f"{type(source).__name__}: reading it as a table")
    if hasattr(source, "__arrow_c_stream__"):
        return pandas.DataFrame.from_arrow(source)
    return pandas.api.interchange.from_dataframe(source)


def pandas_for(what: str) -> Any:
    """The module pandas. Raises: MissingPackageError that says what needs it."""
    try:
        import pandas
    except ImportError:
        raise MissingPackageError(f"{what} needs pandas (pip install graphweft[tables])") from None
    return pandas


def _check_titles(first: Any) -> None:
    """Raises: DataError for a name that two columns have, of which pandas would call the later one otherwise."""
    titles = [title for title in first.iloc[0] if title]
    twice = next((title for at, title in enumerate(titles) if title in titles[:at]), None)
    if twice is not None:
        raise DataError(f"expected different names of columns, got {twice!r} twice")


def _read_csv(pandas: Any, file: BinaryIO, packed: bool, texts: Sequence[str]) -> tuple[Any, tuple[str, ...]]:
    """A table of texts with titles; the separator is the one that is most frequent in the titles."""
    with gzip.open(file) if packed else file as stream:
        start = stream.read(_HEAD)
        stream.seek(0)
        title = start.split(b"\n", 1)[0].decode("utf-8-sig")
        separator = max(_SEPARATORS, key=lambda mark: (title.count(mark), -_SEPARATORS.index(mark)))
        if not title.strip():
            raise DataError("expected a first line with the names of the columns, got an empty one")
        how: dict[str, Any] = {"sep": separator, "encoding": "utf-8-sig", "skipinitialspace": True, "index_col": False}
        columns = list(pandas.read_csv(stream, nrows=0, **how).columns)
        stream.seek(0)
        _check_titles(pandas.read_csv(stream, nrows=1, header=None, dtype=str, keep_default_na=False, **how))
        stream.seek(0)
        frame = pandas.read_csv(
            stream,
            dtype={name: str for name in columns if name in texts},
            keep_default_na=False,
            na_values={name: [] if name in texts else _MISSING for name in columns},
            low_memory=False,
            **how,
        )
    if _INDEX in frame and np.array_equal(frame[_INDEX].to_numpy(), np.arange(len(frame))):
        return frame.drop(columns=[_INDEX]), (f"the first column counts the rows, so it is left out ({_INDEX})",)
    return frame, ()
