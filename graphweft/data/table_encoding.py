"""What the columns of a node table and an edge table mean, and how they become numbers.

Comes in: the user's words for columns and the two tables. Goes out: a frozen :class:`TableEncoding` that fits them,
which a run keeps and later tables are read with. Called by :mod:`graphweft.data.tables`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphweft._errors import DataError
from graphweft.data.column_encoding import ColumnEncoding, fit_column
from graphweft.data.columns import Column, Table, nearest

UNKNOWN_IDS = ("error", "drop")
USUAL = {  # how such columns are called where nothing is said
    "id": ("id", "node", "node_id"),
    "source": ("source", "src", "from", "sender"),
    "target": ("target", "dst", "destination", "to", "receiver"),
}


@dataclass(frozen=True)
class Roles:
    """Which columns are what, as the user says.

    Attributes:
        id: Column of the node table that names a node.
        source: Column of the edge table with the node that an edge leaves.
        target: Column of the edge table with the node that an edge enters.
        label: Column, or several, of the node table to be predicted.
        edge_label: Column, or several, of the edge table to be predicted, in the place of ``label``.
        weight: Column of the edge table.
        time: Column of the edge table.
        split: Column with train, val or test, of the table that has the labels.
        drop: Columns of either table that are left out.
        categories: Columns of either table whose numbers are categories.

    Raises: DataError for values in the place of a name.
    """

    id: str | None = None
    source: str | None = None
    target: str | None = None
    label: str | tuple[str, ...] | None = None
    weight: str | None = None
    time: str | None = None
    split: str | None = None
    drop: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    edge_label: str | tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for option in ("id", "source", "target", "weight", "time", "split"):
            given = getattr(self, option)
            if given is not None and not isinstance(given, str | int):
                got = type(given).__name__
                raise DataError(f"{option}: expected the name of a column, got {got}; put it into the table")

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns to be predicted."""
        named = self.label if self.edge_label is None else self.edge_label
        return (named,) if isinstance(named, str) else named or ()

    @property
    def told(self) -> tuple[str, ...]:
        """Columns with labels and split, of one table."""
        return (*self.labels, *(() if self.split is None else (self.split,)))

    def texts(self, *options: str) -> tuple[str, ...]:
        """Columns whose values are kept as a file has them written."""
        return tuple(
            name for option in options for name in ([getattr(self, option)] if getattr(self, option) else USUAL[option])
        )

    @property
    def of_nodes(self) -> tuple[str, ...]:
        """Columns of the node table that are no features."""
        told = self.told if self.edge_label is None else ()
        return tuple(name for name in (self.id, *told) if name is not None)

    @property
    def of_edges(self) -> tuple[str, ...]:
        """Columns of the edge table that are no features."""
        told = () if self.edge_label is None else self.told
        return tuple(name for name in (self.source, self.target, self.weight, self.time, *told) if name is not None)

    def found_in(self, nodes: Table | None, edges: Table) -> Roles:
        """The same with the usual names of the tables where nothing was said.

        Raises: DataError for a name that no column has, with the nearest one.
        """
        if self.label is not None and self.edge_label is not None:
            raise DataError("label cannot be combined with edge_label; a dataset predicts nodes or edges")
        ident, of_edges = self.id, self.edge_label is not None
        table = edges if of_edges else nodes
        if table is not None:
            for name in self.told:
                table.find("split" if name == self.split else "edge_label" if of_edges else "label", name)
        if nodes is not None:
            ident = _usual("id", ident, nodes)
        elif ident is not None or (self.told and not of_edges):
            name = "id" if ident is not None else "label" if self.labels else "split"
            raise DataError(f"{name}: expected nodes, the table that has this column, got edges only")
        for option in ("weight", "time"):
            if getattr(self, option) is not None:
                edges.find(option, getattr(self, option))
        every = tuple(dict.fromkeys((*(nodes.names if nodes else ()), *edges.names)))
        for option in ("drop", "categories"):
            for name in getattr(self, option):
                if name not in every:
                    raise DataError(f"{option}: expected a column of either table, got {name!r}{nearest(name, every)}")
        source, target = (_usual(option, getattr(self, option), edges) for option in ("source", "target"))
        found = replace(self, id=ident, source=source, target=target)
        for names in (found.of_nodes, found.of_edges):
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise DataError(f"{twice!r}: expected one meaning for a column, got it named twice")
        found._check_features([(() if nodes is None else nodes.names, found.of_nodes), (edges.names, found.of_edges)])
        return found

    def _check_features(self, tables: Sequence[tuple[Sequence[str], Sequence[str]]]) -> None:
        """Columns to drop, and those of categories, would be features of a table, given names and those that are none.

        Raises: DataError.
        """
        for option, left_out in (("drop", ()), ("categories", self.drop)):
            for name in getattr(self, option):
                if any(name in names and name not in (*others, *left_out) for names, others in tables):
                    continue
                given = {one.name: getattr(self, one.name) for one in fields(self) if one.name != option}
                named = {role: held if isinstance(held, tuple) else (held,) for role, held in given.items()}
                role = next(role for role, held in named.items() if name in held)
                raise DataError(f"{role}={name!r} cannot be combined with {option}={name!r}")


def as_names(names: str | Sequence[str]) -> tuple[str, ...]:
    """One name, or several."""
    return (names,) if isinstance(names, str) else tuple(names)


def _usual(option: str, name: str | None, table: Table) -> str:
    """The column that was named, or one that is called as such columns are."""
    if name is not None:
        table.find(option, name)
        return name
    found = next((known for known in USUAL[option] if known in table.raw), None)
    if found is None:
        raise DataError(f"{option}: expected the name of a column of {table.who}{nearest('', table.names)}")
    return found


@dataclass(frozen=True)
class TableEncoding:
    """How two tables become a dataset; a later pair of tables is read with the same one.

    Attributes:
        roles: Which columns are what.
        nodes: Encodings of the columns of the node table that are features, in order.
        edges: The same of the edge table.
        classes: Texts of the classes in the order of their ids; of several label columns their names.
        class_kind: What the label column holds: "text", "integer", "boolean", or "columns" where there are several;
            "number" for values.
        task: "classification", "multilabel" or "regression"; None without labels.
        bidirected: Every edge also leads back.
        unknown_ids: "error", or "drop" leaves out edges whose ends are not in the node table.
        of_edges: What is predicted are edges.
    """

    roles: Roles
    nodes: tuple[ColumnEncoding, ...] = ()
    edges: tuple[ColumnEncoding, ...] = ()
    classes: tuple[str, ...] = ()
    class_kind: str = "text"
    task: str | None = None
    bidirected: bool = False
    unknown_ids: str = "error"
    of_edges: bool = False

    @property
    def titles(self) -> tuple[str, ...]:
        """Names of the columns of the node features."""
        return tuple(title for column in self.nodes for title in column.titles)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        encodings = {name: [column.to_dict() for column in getattr(self, name)] for name in ("nodes", "edges")}
        return {**asdict(self), "roles": asdict(self.roles), **encodings}

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> TableEncoding:
        """The inverse of :meth:`to_dict`, also after JSON."""
        roles: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in state["roles"].items()}
        encodings = {name: tuple(map(ColumnEncoding.from_dict, state[name])) for name in ("nodes", "edges")}
        return cls(**{**state, "roles": Roles(**roles), "classes": tuple(state["classes"]), **encodings})


def fit_features(
    table: Table, taken: Sequence[str], roles: Roles, max_categories: int
) -> tuple[tuple[ColumnEncoding, ...], tuple[str, ...]]:
    """Encodings of all columns but those ``taken`` and dropped, and notes of those that say nothing."""
    found, notes = [], []
    for name in table.names:
        if name in taken or name in roles.drop:
            continue
        made = fit_column(table.column(name), name in roles.categories, max_categories)
        if made is None:
            notes.append(f"{table.who}: column {name!r} has no value, so it is left out")
        else:
            found.append(made)
    return tuple(found), tuple(notes)


def encode_features(
    table: Table, columns: Sequence[ColumnEncoding]
) -> tuple[NDArray[np.float32] | None, tuple[str, ...]]:
    """float32 (rows, titles) of the columns side by side, None for none; and notes.

    Raises: DataError for a column that the table lacks, with the nearest name, or that is of another kind.
    """
    if not columns:
        return None, ()
    width = sum(len(column.titles) for column in columns)
    out, notes, first = np.empty((table.rows, width), np.float32), [], 0
    for column in columns:
        values, note = column.encode(table.find(f"column {column.name}", column.name))
        out[:, first : first + values.shape[1]] = values
        first += values.shape[1]
        notes += [note] if note else []
    return out, tuple(notes)


def fit_labels(columns: Sequence[Column], task: str | None) -> tuple[tuple[str, ...], str, str]:
    """Classes, kind and task of the label columns.

    Raises: DataError where the values fit no task, or not the one that was asked for.
    """
    if len(columns) != 1:
        zero_or_one = all(c.kind == "boolean" or bool(np.isin(c.known, (0, 1)).all()) for c in columns)
        _check_numbers(columns)
        found = task or ("multilabel" if zero_or_one else "regression")
        if found == "classification" or (found == "multilabel" and not zero_or_one):
            raise DataError(f"label: expected 0 or 1 in every one of {len(columns)} columns for the task {found}")
        return tuple(column.name for column in columns), "columns", found
    (column,) = columns
    if column.missing.all():
        raise DataError(f"{column.who}: expected a label in some row, got none")
    if task == "multilabel":
        raise DataError("task: expected several label columns for multilabel, got one")
    if task == "regression" or (task is None and column.kind == "number" and not column.is_whole):
        _check_numbers(columns)
        return (column.name,), "number", "regression"
    if column.kind not in ("text", "boolean") and not column.is_whole:
        raise DataError(f"{column.who}: expected classes, got {column.first(~column.missing)}; task='regression' fits")
    names = set(column.texts()) - {""}
    if len(names) == 1:
        raise DataError(f"{column.who}: expected at least two classes, got {min(names)!r} in every row with a label")
    if column.kind == "number":
        if task is None and len(names) > _MANY_CLASSES:
            raise DataError(
                f"{column.who}: expected a few classes, got {len(names):,} different whole numbers; say "
                "task='regression' for values or task='classification' for classes (--task)"
            )
        return tuple(sorted(names, key=int)), "integer", "classification"
    if 2 * len(names) > int((~column.missing).sum()) > _MANY_CLASSES:
        raise DataError(f"{column.who}: expected classes that repeat, got {len(names):,} different texts")
    return tuple(sorted(names)), "text" if column.kind == "text" else "boolean", "classification"


_MANY_CLASSES = 50


def _check_numbers(columns: Sequence[Column]) -> None:
    for column in columns:
        if column.kind not in ("number", "boolean"):
            raise DataError(f"{column.who}: expected numbers, got {column.first(~column.missing)}")
        wrong = ~np.isfinite(column.values.astype(np.float64)) & ~column.missing
        if wrong.any():
            raise DataError(f"{column.who}: expected finite numbers, got {column.first(wrong)}")


def encode_labels(columns: Sequence[Column], encoding: TableEncoding, rows: int) -> NDArray[Any]:
    """Class ids with -1 for none, int64 (rows,); or numbers with NaN for none, float32, as the task has them.

    Without label columns no row has a label.

    Raises: DataError for a class that the encoding does not know.
    """
    if encoding.task != "classification":
        _check_numbers(columns)
        values = np.full((rows, len(encoding.classes)), np.nan, np.float32)
        for index, column in enumerate(columns):
            values[:, index] = np.where(column.missing, np.nan, column.values.astype(np.float64))
        return values if encoding.class_kind == "columns" else values[:, 0]
    if not columns:
        return np.full(rows, -1, np.int64)
    (column,) = columns
    texts = column.texts()
    place = {text: index for index, text in enumerate(encoding.classes)} | {"": -1}
    unknown = next((text for text in texts if text not in place), None)
    if unknown is not None:
        known = ", ".join(encoding.classes[:10])
        raise DataError(f"{column.who}: expected a class among {known}, got {unknown!r}")
    return np.fromiter((place[text] for text in texts), np.int64, rows)
