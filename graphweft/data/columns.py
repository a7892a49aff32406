"""Columns of tables, whatever holds the table, as arrays of one of four kinds with the missing values marked.

Comes in: a DataFrame of pandas or polars, a table of pyarrow, a mapping from names to arrays, or a file. Goes out:
:class:`Table`, whose :class:`Column` are numbers, booleans, texts or moments. Called by the encoding of tables and by
``Dataset.from_tables``.
"""

from __future__ import annotations

import datetime
import difflib
import numbers
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from graphweft._errors import DataError
from graphweft.data.readers.files import one_line
from graphweft.data.table_files import from_stream, read_table

Kind = Literal["number", "boolean", "text", "datetime"]
_CATEGORY_TYPES = ("category", "Categorical", "Enum", "dictionary")  # how libraries call the type of a column


@dataclass(frozen=True, eq=False)
class Column:
    """One column.

    Attributes:
        who: Table and name, for messages.
        name: Its name.
        kind: "number", "boolean", "text" or "datetime".
        values: (rows,) int64 or float64 numbers, booleans, texts as objects, or seconds since 1970 (UTC) as float64;
            what stands where a value is missing says nothing.
        missing: (rows,) whether there is no value.
        is_category: The library says that it holds categories.
    """

    who: str
    name: str
    kind: Kind
    values: NDArray[Any]
    missing: NDArray[np.bool_]
    is_category: bool = False

    @property
    def known(self) -> NDArray[Any]:
        """The values that are there."""
        return self.values[~self.missing]

    @property
    def is_whole(self) -> bool:
        """Numbers without fractions."""
        if self.kind != "number" or self.values.dtype.kind == "i":
            return self.kind == "number"
        known = self.known
        return bool(np.isfinite(known).all() and (known == np.floor(known)).all())

    def texts(self) -> list[str]:
        """A text for every row, equal for equal values: ``7`` for 7 and 7.0; empty where missing."""
        if self.kind == "text":
            found: list[str] = self.values.tolist()
        elif self.kind == "boolean":
            found = [str(bool(value)) for value in self.values.tolist()]
        elif self.kind == "datetime":
            found = [datetime.datetime.fromtimestamp(value, datetime.UTC).isoformat() for value in self.values.tolist()]
        elif self.is_whole:
            found = list(map(str, np.where(self.missing, 0, self.values).astype(np.int64).tolist()))
        else:
            found = list(map(repr, self.values.astype(np.float64).tolist()))
        if self.missing.any():
            found = ["" if gone else text for text, gone in zip(found, self.missing.tolist(), strict=True)]
        return found

    def as_moments(self) -> Column:
        """Texts that are all dates or times in ISO 8601 as such; any other column as it is."""
        if self.kind != "text":
            return self
        try:
            seconds = [0.0 if text == "" else _seconds(text) for text in self.texts()]
        except ValueError:
            return self
        if self.missing.all():
            return self
        return Column(self.who, self.name, "datetime", np.array(seconds), self.missing, self.is_category)

    def first(self, where: NDArray[np.bool_]) -> str:
        """The first value of ``where``, and its row, for a message."""
        row = int(np.flatnonzero(where)[0])
        value = self.values[row]
        return f"{one_line(repr(value.item() if isinstance(value, np.generic) else value), 40)} in row {row + 1}"


@dataclass(frozen=True, eq=False)
class Table:
    """A table of named columns of one length.

    Attributes:
        who: How messages call it: "nodes", or the name of a file.
        raw: Its columns as they came.
        rows: Their length.
        notes: What was left out when it was read.
        index: Names of the index of a DataFrame, which is no column.
    """

    who: str
    raw: Mapping[str, Any]
    rows: int
    notes: tuple[str, ...] = ()
    index: tuple[str, ...] = ()
    _made: dict[str, Column] = field(default_factory=dict, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self.raw)

    def column(self, name: str) -> Column:
        """One column by its name. Raises: DataError for values that are no column."""
        if name not in self._made:
            self._made[name] = as_column(self.who, name, self.raw[name], self.rows)
        return self._made[name]

    def find(self, option: str, name: Any) -> Column:
        """The column that the option ``option`` names.

        Raises: DataError with the nearest name.

        Example:
            >>> as_table("nodes", {"user": [1, 2], "age": [30, 40]}).find("id", "usr")
            Traceback (most recent call last):
            graphweft._errors.DataError: id: expected a column of nodes, got 'usr'; did you mean 'user'?
        """
        if isinstance(name, str) and name in self.raw:
            return self.column(name)
        if name in self.index:
            raise DataError(f"{option}: expected a column of {self.who}, got its index {name!r}; use .reset_index()")
        raise DataError(f"{option}: expected a column of {self.who}, got {name!r}{nearest(str(name), self.names)}")


def nearest(name: str, names: Sequence[str]) -> str:
    """What a name that is none may have meant; else what there is.

    Example:
        >>> nearest("usr", ["user", "age"]), nearest("colour", ["user", "age"])
        ("; did you mean 'user'?", '; its columns are user, age')
    """
    lower = {known.lower(): known for known in names}
    near = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {lower[near[0]]!r}?"
    return f"; its columns are {one_line(', '.join(names), 200)}"


def as_table(who: str, source: Any, texts: Iterable[str] = ()) -> Table:
    """``source`` as a table.

    Args:
        who: How messages call it; a file is called by its name.
        source: A DataFrame, a table of pyarrow, a mapping from names to columns, or the path of a file.
        texts: Columns of a CSV file whose values are taken as they are written, such as ids.

    Raises: DataError for what is no table, and for columns of unequal lengths.

    Example:
        >>> as_table("nodes", {"user": ["u1", "u2"], "age": [31, None]}).column("age").missing.tolist()
        [False, True]
    """
    notes: tuple[str, ...] = ()
    if isinstance(source, Table):
        return source
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        who = one_line(path.name, 80)
        source, notes = read_table(path, tuple(texts))
    raw = _columns(who, source)
    sizes = {name: _length(who, name, values) for name, values in raw.items()}
    if not raw:
        raise DataError(f"{who}: expected a table with columns, got none")
    rows = next(iter(sizes.values()))
    for name, size in sizes.items():
        if size != rows:
            raise DataError(f"{who}: expected columns of one length, got {rows} in the first and {size} in {name!r}")
    held = getattr(getattr(source, "index", None), "names", None) or ()
    return Table(who, raw, rows, notes, tuple(name for name in held if isinstance(name, str)))


def _columns(who: str, source: Any) -> dict[str, Any]:
    """The columns of whatever holds a table, by name."""
    if isinstance(source, Mapping):
        return {str(name): source[name] for name in source}
    if hasattr(source, "column_names") and hasattr(source, "column"):  # pyarrow
        names, take = list(source.column_names), source.column
    elif hasattr(source, "columns") and hasattr(source, "__getitem__") and hasattr(source, "shape"):
        names, take = list(source.columns), source.__getitem__
    elif hasattr(source, "__arrow_c_stream__") or hasattr(source, "__dataframe__"):
        source = from_stream(source)
        names, take = list(source.columns), source.__getitem__
    else:
        raise DataError(
            f"{who}: expected a DataFrame, a mapping from names to columns, or a file, got {type(source).__name__}"
        )
    if len({str(name) for name in names}) != len(names):
        twice = next(name for name in names if [str(n) for n in names].count(str(name)) > 1)
        raise DataError(f"{who}: expected every column name once, got {str(twice)!r} twice")
    return {str(name): take(name) for name in names}


def _length(who: str, name: str, values: Any) -> int:
    if isinstance(values, str | bytes) or not hasattr(values, "__len__"):
        raise DataError(f"{who}: expected column {name!r} as one value a row, got {type(values).__name__}")
    return len(values)


def as_column(who: str, name: str, raw: Any, rows: int) -> Column:
    """``raw`` as a column of ``rows`` rows. Raises: DataError for values that are none of the four kinds."""
    of_column = f"{who}, column {name!r}"
    kind_name = str(getattr(raw, "dtype", getattr(raw, "type", "")))
    is_category = kind_name.startswith(_CATEGORY_TYPES)
    array = _array(of_column, raw)
    if array.shape != (rows,):
        raise DataError(f"{of_column}: expected one value a row, got shape {tuple(array.shape)}")
    nothing = np.zeros(rows, np.bool_)
    kind = array.dtype.kind
    if kind == "b":
        return Column(of_column, name, "boolean", array, nothing, is_category)
    if kind in "iu":
        fits = kind == "i" or not rows or int(array.max()) < 2**63
        return Column(of_column, name, "number", array.astype(np.int64 if fits else np.float64), nothing, is_category)
    if kind == "f":
        array = array.astype(np.float64)
        return Column(of_column, name, "number", array, np.isnan(array), is_category)
    if kind in "Mm":
        gone = np.isnat(array)
        seconds = _since_1970(array, gone)
        return Column(of_column, name, "datetime" if kind == "M" else "number", seconds, gone, is_category)
    if kind == "S":
        array = np.char.decode(array, "utf-8", "replace")
    if array.dtype.kind == "U":
        array = array.astype(object)
    if array.dtype.kind != "O":
        raise DataError(f"{of_column}: expected numbers, booleans, texts or times, got {array.dtype}")
    return _of_objects(of_column, name, array, is_category)


def _array(who: str, raw: Any) -> NDArray[Any]:
    """The values of a column as an array of any dtype."""
    if isinstance(raw, torch.Tensor):
        return raw.detach().cpu().numpy()
    zone = getattr(getattr(raw, "dtype", None), "tz", None)
    if zone is not None and hasattr(raw, "dt"):  # pandas gives objects for times with a zone
        raw = raw.dt.tz_convert("UTC").dt.tz_localize(None)
    if isinstance(raw, list | tuple):
        out = np.empty(len(raw), dtype=object)  # NumPy makes texts of what is mixed with texts
        out[:] = raw
        return out
    try:
        return np.asarray(raw.to_numpy()) if hasattr(raw, "to_numpy") else np.asarray(raw)
    except (ValueError, TypeError, RuntimeError):
        raise DataError(f"{who}: expected one value a row, got rows of unequal lengths or mixed kinds") from None


def _since_1970(array: NDArray[Any], gone: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Moments or durations in seconds; 0 where there is none."""
    unit = np.datetime_data(array.dtype)[0]
    if unit in ("Y", "M", "W", "D", "h", "m", "generic"):
        array = array.astype(f"{array.dtype.kind}8[s]")
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}.get(np.datetime_data(array.dtype)[0], 1)
    ticks = np.where(gone, 0, array.astype(np.int64))
    out: NDArray[np.float64] = ticks / per_second
    return out


def _of_objects(who: str, name: str, array: NDArray[Any], is_category: bool) -> Column:
    """Python objects as one of the four kinds."""
    items = array.tolist()
    gone = [_is_missing(item) for item in items]
    kinds = {type(item) for item, none in zip(items, gone, strict=True) if not none}
    wrong = next((kind for kind in kinds if issubclass(kind, list | tuple | dict | set | np.ndarray | bytes)), None)
    if wrong is not None:
        raise DataError(f"{who}: expected one value a row, got {wrong.__name__}; split it into columns first")
    missing = np.array(gone, dtype=np.bool_)
    values: Any
    kind: Kind
    if kinds and all(issubclass(kind, bool | np.bool_) for kind in kinds):
        kind, values = "boolean", np.array([not none and bool(i) for i, none in zip(items, gone, strict=True)])
    elif kinds and all(issubclass(kind, int | np.integer | bool) for kind in kinds):
        kind, values = "number", _integers([0 if none else int(i) for i, none in zip(items, gone, strict=True)])
    elif all(issubclass(kind, numbers.Real) or kind.__name__ == "Decimal" for kind in kinds):
        kind, values = "number", np.array([np.nan if none else float(i) for i, none in zip(items, gone, strict=True)])
    elif all(issubclass(kind, datetime.date) for kind in kinds):
        kind, values = "datetime", np.array([0.0 if none else _moment(i) for i, none in zip(items, gone, strict=True)])
    else:
        kind, values = "text", np.empty(len(items), dtype=object)
        values[:] = ["" if none else str(item) for item, none in zip(items, gone, strict=True)]
    return Column(who, name, kind, values, missing, is_category)


def _is_missing(item: Any) -> bool:
    """None, an empty text, NaN, or what a library has for it."""
    if item is None or type(item).__name__ in ("NAType", "NaTType"):
        return True
    return bool(item == "") if isinstance(item, str) else isinstance(item, float | np.floating) and bool(item != item)


def _integers(items: list[int]) -> NDArray[Any]:
    """int64 where they fit, else float64."""
    fits = all(-(2**63) <= item < 2**63 for item in items)
    return np.array(items, dtype=np.int64 if fits else np.float64)


def _moment(item: datetime.date) -> float:
    """Seconds since 1970; a time without a zone is UTC."""
    if not isinstance(item, datetime.datetime):
        item = datetime.datetime(item.year, item.month, item.day)
    return (item if item.tzinfo else item.replace(tzinfo=datetime.UTC)).timestamp()


def _seconds(text: str) -> float:
    """Seconds since 1970 of a text in ISO 8601. Raises: ValueError."""
    if "-" not in text[1:]:
        raise ValueError(text)  # digits alone are a number, not a date
    return _moment(datetime.datetime.fromisoformat(text.strip()))
