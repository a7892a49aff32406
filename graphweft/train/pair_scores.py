"""Scores of pairs of nodes by the embeddings of a run for links.

Comes in: predictions that are embeddings, a table of pairs. Goes out: columns of that table's ends, the score and the
probability of an edge. Called by the command ``predict --pairs``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from graphweft._errors import ConfigError, DataError
from graphweft.data.columns import Column, Table, as_table
from graphweft.data.table_encoding import USUAL, Roles
from graphweft.train.link_task import dots
from graphweft.train.prediction import Predictions, beside


def pair_scores(made: Predictions, pairs: Any) -> dict[str, NDArray[Any]]:
    """Both ends as they are written, ``score`` (the product of their embeddings) and ``probability`` (its sigmoid).

    Args:
        made: Embeddings of links.
        pairs: A table, or a file, whose columns of ends are called as in the table of edges, or usually.

    Raises: ConfigError for a run that predicts no links; DataError for an end that is not among the nodes.

    Example:
        >>> from graphweft.data.dataset import Dataset
        >>> from graphweft.graph.graph import Graph
        >>> ds = Dataset("pair", Graph([0], [1]), node_ids=["ann", "bob"])
        >>> rows = torch.tensor([[1.0, 0.0], [2.0, 3.0]])
        >>> found = pair_scores(Predictions(ds, rows, rows, "link"), {"source": ["ann"], "target": ["bob"]})
        >>> found["score"].tolist()
        [2.0]
    """
    if made.label_task != "link":
        raise ConfigError(f"pairs: expected a run with embeddings, as of the task link or gae, got {made.label_task}")
    encoding = made.ds.encoding
    roles = Roles() if encoding is None else encoding.roles
    table = as_table("pairs", pairs, roles.texts("source", "target"))
    ends = [table.find(option, _name(option, getattr(roles, option), table)) for option in ("source", "target")]
    places = {str(one): row for row, one in enumerate(made.ids().tolist())}
    rows = [torch.from_numpy(_places(column, places)) for column in ends]
    score = dots(made.outputs, *rows)
    found = {column.name: made.ids()[at.numpy()] for column, at in zip(ends, rows, strict=True)}
    return beside(found, {"score": score.numpy(), "probability": score.sigmoid().numpy()})


def _name(option: str, given: str | None, table: Table) -> str:
    """The column of an end: as in the table of edges, or as such columns are called."""
    if given in table.raw:
        return str(given)
    return next((name for name in USUAL[option] if name in table.raw), given or option)


def _places(column: Column, places: dict[str, int]) -> NDArray[np.int64]:
    """Rows of the nodes. Raises: DataError."""
    texts = column.texts()
    unknown = next((row for row, text in enumerate(texts) if text not in places), None)
    if unknown is not None:
        raise DataError(f"{column.who}: expected ids of nodes, got {texts[unknown]!r} in row {unknown + 1}")
    return np.fromiter((places[text] for text in texts), np.int64, len(texts))


__all__ = ["pair_scores"]
