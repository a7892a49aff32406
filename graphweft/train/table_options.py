"""Options of runs on a node table and an edge table: files, and which column is what.

Comes in: keyword arguments. Goes out: a frozen :class:`TableOptions`, the first part of every ``TrainSpec``. Imports no
torch, so that ``graphweft --help`` is quick.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from graphweft._errors import ConfigError
from graphweft.train.option_table import option, split_names

given = partial(option, resume="given")


@dataclass(frozen=True)
class TableOptions:
    """Two tables in the place of a dataset; see ``Dataset.from_tables``."""

    # fmt: off
    nodes: str | None = given(None, "FILE", "Table of nodes, .csv or .parquet, instead of --data.", "")
    edges: str | None = given(None, "FILE", "Table of edges.", "")
    id: str | None = given(None, "COLUMN", "nodes: ids of the nodes.", "id")
    source: str | None = given(None, "COLUMN", "edges: ids of the sources.", "source")
    target: str | None = given(None, "COLUMN", "edges: ids of the targets.", "target")
    label: str | None = given(None, "COLUMN,...", "nodes: columns to predict.", "")
    edge_label: str | None = given(None, "COLUMN,...", "edges: columns to predict, with --task edge.", "")
    label_task: str | None = given(None, "", "Task of labels that can mean several.", "by their values",
        choices=("classification", "multilabel", "regression"))
    weight: str | None = given(None, "COLUMN", "edges: weights.", "")
    time: str | None = given(None, "COLUMN", "edges: times.", "")
    split: str | None = given(None, "COLUMN", "In the labels' table: train, val, test or nothing.",
        "60/20/20 at random")
    drop: str | None = given(None, "COLUMN,...", "Columns to ignore.", "")
    categories: str | None = given(None, "COLUMN,...", "Columns of numbers to treat as categories.", "")
    max_categories: int = given(64, "N", "Largest number of categories of a text column.", least=1, most=10**6)
    bidirected: bool = given(False, "--bidirected/--directed", "Add the reverse of every edge.")
    unknown_ids: str = given("error", "", "For edges with an end that is not in the table of nodes.",
        choices=("error", "drop"))
    # fmt: on

    @property
    def has_tables(self) -> bool:
        """The data are tables."""
        return self.nodes is not None or self.edges is not None

    def check_tables(self, others: dict[str, bool]) -> None:
        """The options fit together; ``others`` are options by name that tables cannot be combined with, if given.

        Raises: ConfigError.
        """
        named = [field.name for field in fields(TableOptions) if getattr(self, field.name) != field.default]
        if not self.has_tables:
            if named:
                raise ConfigError(f"{named[0]}: expected tables with it (--nodes FILE --edges FILE), got none")
            return
        if self.edges is None:
            raise ConfigError("edges: expected the table of edges beside that of nodes, got none")
        for name, is_given in others.items():
            if is_given:
                raise ConfigError(f"nodes and edges cannot be combined with {name}")

    def table_arguments(self) -> dict[str, Any]:
        """The keywords of ``Dataset.from_tables``."""
        names = [field.name for field in fields(TableOptions)]
        found = {name: getattr(self, name) for name in names}
        found["task"] = found.pop("label_task")
        for name in ("drop", "categories"):
            found[name] = split_names(found[name])
        for name in ("label", "edge_label"):
            labels = split_names(found[name])
            found[name] = labels[0] if len(labels) == 1 else labels or None
        return found
