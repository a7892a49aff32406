"""How a dataset shows itself in a notebook.

Comes in: a dataset. Goes out: a table of what it holds. A base of :class:`graphweft.data.dataset.Dataset`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from graphweft import _html
from graphweft.storage.feature import kind_of

_KINDS = {"regression": "values", "multilabel": "labels"}
_MOST = 12  # names of classes that are shown


class ShownAsTable:
    """Sizes, labels, split and notes, for notebooks."""

    _has_types: ClassVar[bool] = True  # whether the graph, in memory, may have types

    def _repr_html_(self) -> str:
        return _html.facts(f"{type(self).__name__} {self.name}", _rows(self))  # type: ignore[attr-defined]


def _rows(ds: Any) -> list[tuple[str, str]]:
    """Names and texts of the table."""
    width = None if ds.x is None else f"{ds.num_features:,} {kind_of(ds.x)}"
    types, relations = (ds.graph.node_types, ds.graph.relations) if _is_typed(ds) else ((), ())
    rows = [
        ("graphs", f"{ds.num_rows:,}" if ds.graph_ptr is not None else None),
        ("nodes", f"{ds.num_nodes:,}"),
        ("edges", f"{ds.num_edges:,}"),
        ("node types", ", ".join(types) or None),
        ("relations", ", ".join("-".join(name) for name in relations) or None),
        ("features", width or ("by node type" if ds.features else "none")),
        ("edge weights", "yes" if ds.edge_weight is not None else None),
        ("edge features", None if ds.edge_features is None else f"{ds.edge_features.shape[1]:,}"),
        ("edge times", "yes" if ds.edge_time is not None else None),
        ("task", ds.task if ds.num_classes else "none"),
        (_KINDS.get(ds.task, "classes"), _classes(ds)),
        ("split", ", ".join(f"{part} {ds.idx(part).numel():,}" for part in ("train", "val", "test"))),
        *(("note", text) for text in ds.notes),
    ]
    return [(name, text) for name, text in rows if text is not None]


def _is_typed(ds: Any) -> bool:
    return ds._has_types and bool(ds.graph.is_typed)


def _classes(ds: Any) -> str:
    """How many, and their names where the source has them."""
    names = ds.class_names
    more = ", ..." if len(names) > _MOST else ""
    return f"{ds.num_classes:,}" + (f" ({', '.join(map(str, names[:_MOST]))}{more})" if names else "")
