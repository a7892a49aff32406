"""How one column of a table becomes columns of numbers, so that a later table of the same columns is encoded alike.

Comes in: a :class:`Column`. Goes out: a frozen :class:`ColumnEncoding` that is fitted to it, and float32 columns.
Called by the encoding of tables.

Numbers and moments are standardised: mean 0 and deviation 1 over the rows of the table that was fitted. A missing one
takes the mean, and a column of its own says so. Categories have a column each, in ascending order of their texts.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from graphweft._errors import DataError
from graphweft.data.columns import Column
from graphweft.data.readers.files import one_line

MAX_CATEGORIES = 64
_FEW_ROWS = 20  # below this a column of texts may be different in every row

Encoded = Literal["number", "datetime", "boolean", "category"]


@dataclass(frozen=True)
class ColumnEncoding:
    """The encoding of one column.

    Attributes:
        name: Of the column.
        kind: "number", "datetime" (seconds since 1970), "boolean" (0 or 1) or "category".
        mean: What is subtracted, and stands for a missing value; of booleans the share of true ones.
        scale: What is divided by; 1 for booleans and for columns of one value.
        flags: A column says where a value is missing.
        categories: Texts of the categories, a column each.

    Example:
        >>> from graphweft.data.columns import as_table
        >>> table = as_table("nodes", {"age": [20.0, 40.0, None], "land": ["de", "fr", "de"]})
        >>> age, land = (fit_column(table.column(name)) for name in table.names)
        >>> age.titles, age.encode(table.column("age"))[0].tolist()
        (('age', 'age missing'), [[-1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        >>> land.titles, land.encode(table.column("land"))[0].tolist()
        (('land=de', 'land=fr'), [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    """

    name: str
    kind: Encoded
    mean: float = 0.0
    scale: float = 1.0
    flags: bool = False
    categories: tuple[str, ...] = ()

    @property
    def titles(self) -> tuple[str, ...]:
        """Names of the columns that it makes."""
        own = tuple(f"{self.name}={value}" for value in self.categories) if self.kind == "category" else (self.name,)
        return (*own, f"{self.name} missing") if self.flags else own

    def encode(self, column: Column) -> tuple[NDArray[np.float32], str]:
        """Columns of ``column``, float32 (rows, titles), and a note of what the fitted table did not have.

        Raises: DataError where the column is of another kind than the one that was fitted, or not finite.
        """
        out = np.zeros((len(column.missing), len(self.titles)), np.float32)
        missing = column.missing
        if self.kind == "category":
            texts = column.texts()
            place = {text: index for index, text in enumerate(self.categories)}
            codes = np.fromiter((place.get(text, -1) for text in texts), np.int64, len(texts))
            rows = np.flatnonzero(codes >= 0)
            out[rows, codes[rows]] = 1.0
            new = (codes < 0) & ~missing
            note = ""
            if new.any():
                note = f"{column.who}: {_times(new)} not among the categories so far ({_first(texts, new)} the first)"
        else:
            values, note = self._numbers(column), ""
            out[:, 0] = np.where(missing, 0.0 if self.kind != "boolean" else self.mean, values)
        if self.flags:
            out[:, -1] = missing
        elif missing.any() and not note:
            stands = "nothing" if self.kind == "category" else "the mean"
            note = f"{column.who}: {_times(missing)} missing, which the fitted table had none of; {stands} stands there"
        return out, note

    def _numbers(self, column: Column) -> NDArray[np.float64]:
        """The values in the units of the features. Raises: DataError."""
        found = column.as_moments() if self.kind == "datetime" else column
        fits: bool = (
            found.kind == self.kind or (self.kind == "number" and found.kind == "boolean") or bool(found.missing.all())
        )
        if not fits and self.kind == "boolean" and found.kind == "number":
            fits = bool(np.isin(found.known, (0, 1)).all())
        if not fits:
            raise DataError(
                f"{column.who}: expected {_PLURAL[self.kind]}, got {found.first(~found.missing)} ({found.kind})"
            )
        if found.missing.all():
            return np.zeros(len(found.missing))
        _check_finite(found)
        values: NDArray[np.float64] = found.values.astype(np.float64)
        return values if self.kind == "boolean" else (values - self.mean) / self.scale

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**asdict(self), "categories": list(self.categories)}

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> ColumnEncoding:
        """The inverse of :meth:`to_dict`."""
        return cls(**{**state, "categories": tuple(state["categories"])})

    def __str__(self) -> str:
        flag = ", missing ones marked" if self.flags else ""
        if self.kind == "category":
            return f"{self.name} ({len(self.categories)} categories{flag})"
        return f"{self.name} ({self.kind}{flag})"


_PLURAL = {"number": "numbers", "datetime": "dates or times", "boolean": "booleans"}


def fit_column(
    column: Column, as_category: bool = False, max_categories: int = MAX_CATEGORIES
) -> ColumnEncoding | None:
    """The encoding of a column; None for one that says nothing, as it has no value.

    Args:
        column: The column.
        as_category: Encode numbers as categories too.
        max_categories: More texts than these, or texts that hardly repeat, are refused.

    Raises: DataError for texts that are too many to be categories, saying how to go on.
    """
    flags = bool(column.missing.any())
    if column.missing.all():
        return None
    if not (as_category or column.is_category):
        column = column.as_moments()
        if column.kind != "text":
            return _fit_numbers(column, flags)
    found = sorted(set(column.texts()) - {""})
    if column.is_whole:
        found.sort(key=int)
    rows = int((~column.missing).sum())
    rare = rows > _FEW_ROWS and 2 * len(found) > rows and not (as_category or column.is_category)
    if len(found) > max_categories or rare:
        raise DataError(_too_many(column, len(found), max_categories))
    return ColumnEncoding(column.name, "category", flags=flags, categories=tuple(found))


def _fit_numbers(column: Column, flags: bool) -> ColumnEncoding:
    _check_finite(column)
    known = column.known.astype(np.float64)
    mean, deviation = _moments(known)
    if column.kind == "boolean":
        return ColumnEncoding(column.name, "boolean", mean, 1.0, flags)
    kind: Encoded = "datetime" if column.kind == "datetime" else "number"
    return ColumnEncoding(column.name, kind, mean, deviation or 1.0, flags)


def _moments(known: NDArray[np.float64]) -> tuple[float, float]:
    """Mean and deviation; of numbers whose squares are too large for float64 by way of smaller ones."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(known.mean())
        deviation = float((known - mean).std())
    if math.isfinite(deviation):
        return mean, deviation
    scale = 4 * float(np.abs(known).max())
    part = known / scale
    return float(part.mean()) * scale, float((part - part.mean()).std()) * scale


def _too_many(column: Column, count: int, most: int) -> str:
    """Why a column of texts is refused, and how to go on."""
    name = column.name
    numbers = [text for text in column.texts() if text and not _is_number(text)]
    rows = len(column.missing)
    hint = ""
    if 0 < len(numbers) < rows // 2:
        hint = f"; most are numbers, the first that is none is {one_line(repr(numbers[0]), 40)}"
    return (
        f"{column.who}: expected numbers, or at most {most} categories that repeat, got {count:,} different texts in "
        f"{rows:,} rows{hint}; leave the column out with drop=[{name!r}] (--drop {name}), make numbers of it first, or "
        f"take it as categories with categories=[{name!r}], max_categories={count} "
        f"(--categories {name} --max-categories {count})"
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _check_finite(column: Column) -> None:
    """Raises: DataError with the first row that is not finite."""
    if column.values.dtype.kind == "f":
        wrong = ~np.isfinite(column.values) & ~column.missing
        if wrong.any():
            raise DataError(f"{column.who}: expected finite numbers, got {column.first(wrong)}")


def _times(where: NDArray[np.bool_]) -> str:
    count = int(where.sum())
    return f"{count:,} value is" if count == 1 else f"{count:,} values are"


def _first(texts: list[str], where: NDArray[np.bool_]) -> str:
    return one_line(repr(texts[int(np.flatnonzero(where)[0])]), 40)
