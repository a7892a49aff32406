"""Options of runs on a node table and an edge table: files, and which column is what.

Comes in: keyword arguments. Goes out: a frozen :class:`TableOptions`, the first part of every ``TrainSpec``. Imports no
torch, so that ``graphweft --help`` is quick.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from graphweft._errors import ConfigError
from graphweft.train.options import check_choice, check_integer

UNKNOWN_IDS = ("error", "drop")


@dataclass(frozen=True)
class TableOptions:
    """Two tables in the place of a dataset; see ``Dataset.from_tables``.

    Attributes:
        nodes: File of the node table.
        edges: File of the edge table.
        id: Column of the node table that names a node.
        source: Column of the edge table with the node that an edge leaves.
        target: Column of the edge table with the node that an edge enters.
        label: Column of the node table to be predicted, or several with commas between them.
        edge_label: Column of the edge table to be predicted, in the place of ``label``, or several with commas.
        weight: Column of the edge table with weights.
        time: Column of the edge table with times.
        split: Column with train, val or test, of the table that has the labels.
        drop: Columns of either table that are left out, with commas between them.
        categories: Columns whose numbers are categories, with commas between them.
        max_categories: The most categories of a column.
        bidirected: Every edge also leads back.
        unknown_ids: "error", or "drop" leaves out edges whose ends are not in the node table.
    """

    nodes: str | None = None
    edges: str | None = None
    id: str | None = None
    source: str | None = None
    target: str | None = None
    label: str | None = None
    edge_label: str | None = None
    weight: str | None = None
    time: str | None = None
    split: str | None = None
    drop: str | None = None
    categories: str | None = None
    max_categories: int = 64
    bidirected: bool = False
    unknown_ids: str = "error"

    @property
    def has_tables(self) -> bool:
        """The data are tables."""
        return self.nodes is not None or self.edges is not None

    def check_tables(self, others: dict[str, bool]) -> None:
        """The options fit together; ``others`` are options by name that tables cannot be combined with, if given.

        Raises: ConfigError.
        """
        check_integer("max_categories", self.max_categories, 1, 10**6)
        check_choice("unknown_ids", self.unknown_ids, UNKNOWN_IDS)
        named = [field.name for field in fields(TableOptions) if getattr(self, field.name) != field.default]
        if not self.has_tables:
            if named:
                raise ConfigError(f"{named[0]}: expected tables with it (--nodes FILE --edges FILE), got none")
            return
        if self.edges is None:
            raise ConfigError("edges: expected the table of edges beside that of nodes, got none")
        for name, given in others.items():
            if given:
                raise ConfigError(f"nodes and edges cannot be combined with {name}")

    def table_arguments(self) -> dict[str, Any]:
        """The keywords of ``Dataset.from_tables``."""
        names = [field.name for field in fields(TableOptions)]
        found = {name: getattr(self, name) for name in names}
        for name in ("drop", "categories"):
            found[name] = split_names(found[name])
        for name in ("label", "edge_label"):
            labels = split_names(found[name])
            found[name] = labels[0] if len(labels) == 1 else labels or None
        return found

    def table_identity(self) -> dict[str, Any]:
        """The options that are not as they are without the user's doing."""
        return {f.name: getattr(self, f.name) for f in fields(TableOptions) if getattr(self, f.name) != f.default}


def split_names(text: str | None) -> tuple[str, ...]:
    """Names with commas between them.

    Example:
        >>> split_names("memo, zip"), split_names(None)
        (('memo', 'zip'), ())
    """
    return () if text is None else tuple(name.strip() for name in text.split(",") if name.strip())
