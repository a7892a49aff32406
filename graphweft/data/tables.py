"""A dataset from a table of nodes and a table of edges, as people have them.

Comes in: two tables, and which column is what. Goes out: the arguments of a :class:`Dataset`, with the
:class:`TableEncoding` that later tables are read with. Called by ``Dataset.from_tables``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphweft._errors import DataError
from graphweft.data.column_encoding import MAX_CATEGORIES
from graphweft.data.columns import Column, Table, as_table
from graphweft.data.readers.files import one_line
from graphweft.data.table_encoding import (
    UNKNOWN_IDS,
    Roles,
    TableEncoding,
    encode_features,
    encode_labels,
    fit_features,
    fit_labels,
)
from graphweft.graph.graph import Graph

_TASKS = ("classification", "multilabel", "regression")
_PARTS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


def dataset_arguments(
    nodes: Any,
    edges: Any,
    roles: Roles,
    *,
    max_categories: int = MAX_CATEGORIES,
    task: str | None = None,
    bidirected: bool = False,
    unknown_ids: str = "error",
    name: str | None = None,
    encoding: TableEncoding | None = None,
) -> dict[str, Any]:
    """The keywords of a :class:`Dataset` of two tables, see ``Dataset.from_tables``.

    Raises: DataError of one line for whatever does not fit.
    """
    roles = roles if encoding is None else encoding.roles
    if edges is None:
        raise DataError("edges: expected a table with a row for every edge, got None")
    if task not in (None, *_TASKS):
        raise DataError(f"task: expected {', '.join(_TASKS)}, got {task!r}")
    if unknown_ids not in UNKNOWN_IDS:
        raise DataError(f"unknown_ids: expected {' or '.join(UNKNOWN_IDS)}, got {unknown_ids!r}")
    node_table = None if nodes is None else as_table("nodes", nodes, roles.texts("id"))
    edge_table = as_table("edges", edges, roles.texts("source", "target"))
    if encoding is None:
        found_encoding, notes = _fit(node_table, edge_table, roles, max_categories, task)
        encoding = replace(found_encoding, bidirected=bool(bidirected), unknown_ids=unknown_ids)
        found = _assemble(node_table, edge_table, encoding)
    else:
        notes = _unused(encoding, node_table, edge_table)
        found = _assemble(node_table, edge_table, _without_labels(encoding, node_table, edge_table))
    found["encoding"] = encoding
    more = (*(node_table.notes if node_table else ()), *edge_table.notes, *notes)
    found["notes"] = (*more, *found["notes"], *_told(encoding))
    found["name"] = name or (node_table or edge_table).who.split(".")[0]
    return found


def _without_labels(encoding: TableEncoding, nodes: Table | None, edges: Table) -> TableEncoding:
    """The encoding for tables that need not have what is to be predicted. Raises: DataError for other columns."""
    roles = encoding.roles
    of_edges = encoding.of_edges
    present = edges.names if of_edges else () if nodes is None else nodes.names
    if roles.id is not None and nodes is None:
        raise DataError(f"nodes: expected a table with the column {roles.id!r}, as the first one had, got None")
    there = set(roles.labels) <= set(present)
    label, edge_label = (roles.label, roles.edge_label) if there else (None, None)
    split = roles.split if roles.split in present else None
    roles = replace(roles, label=label, edge_label=edge_label, split=split, drop=(), categories=())
    return replace(encoding, roles=roles.found_in(nodes, edges))


def _unused(encoding: TableEncoding, nodes: Table | None, edges: Table) -> tuple[str, ...]:
    """Notes of columns that the first tables did not have."""
    roles, notes = encoding.roles, []
    known = ((nodes, roles.of_nodes, encoding.nodes), (edges, roles.of_edges, encoding.edges))
    for table, named, columns in known:
        if table is not None and columns:
            used = {*named, *roles.drop, *(column.name for column in columns)}
            more = [repr(name) for name in table.names if name not in used]
            if more:
                notes.append(f"{table.who}: column {', '.join(more)} not used, as the first table had none such")
    return tuple(notes)


def _fit(
    nodes: Table | None, edges: Table, roles: Roles, max_categories: int, task: str | None
) -> tuple[TableEncoding, tuple[str, ...]]:
    """The encoding that these tables need, and notes."""
    roles = roles.found_in(nodes, edges)
    columns, notes = ((), ()) if nodes is None else fit_features(nodes, roles.of_nodes, roles, max_categories)
    edge_columns, more = fit_features(edges, roles.of_edges, roles, max_categories)
    encoding = TableEncoding(roles, columns, edge_columns, of_edges=roles.edge_label is not None)
    table = nodes if roles.edge_label is None else edges
    if table is not None and roles.labels:
        classes, kind, found = fit_labels([table.column(name) for name in roles.labels], task)
        encoding = replace(encoding, classes=classes, class_kind=kind, task=found)
    return encoding, (*notes, *more)


def _told(encoding: TableEncoding) -> tuple[str, ...]:
    """What became of the columns."""
    told = []
    for what, columns in (("node", encoding.nodes), ("edge", encoding.edges)):
        if columns:
            told.append(f"{what} features: {one_line(', '.join(map(str, columns)), 400)}")
    if encoding.task == "regression":
        told.append(f"the label {', '.join(encoding.roles.labels)} has numbers, so the task is regression")
    return tuple(told)


def _assemble(nodes: Table | None, edges: Table, encoding: TableEncoding) -> dict[str, Any]:
    """Graph, features, labels and split by an encoding that is complete."""
    roles = encoding.roles
    src, dst = (edges.find(option, getattr(roles, option)) for option in ("source", "target"))
    ids = None if nodes is None else nodes.find("id", roles.id)
    values, ends = _numbered(ids, src, dst, encoding.unknown_ids)
    kept = ((ends[0] >= 0) & (ends[1] >= 0)).nonzero().reshape(-1)
    notes: list[str] = []
    if kept.numel() == 0 < ends.shape[1]:
        who = "edges" if ids is None else ids.who
        raise DataError(f"{src.who}: expected edges between ids of {who}, got none among {ends.shape[1]:,} edges")
    if kept.numel() < ends.shape[1]:
        notes.append(f"{ends.shape[1] - kept.numel():,} edges have ends that are not among the nodes and are left out")
    keep = None if kept.numel() == ends.shape[1] else kept.numpy()
    x, told = (None, ()) if nodes is None else encode_features(nodes, encoding.nodes)
    rows, more = encode_features(edges, encoding.edges)
    weight = None if roles.weight is None else _numbers(edges.find("weight", roles.weight)).astype(np.float32)
    time = None if roles.time is None else _times(edges.find("time", roles.time))
    both = encoding.bidirected
    ends = ends if keep is None else ends[:, kept]
    ends = torch.cat([ends, ends.flip(0)], dim=1) if both else ends
    found: dict[str, Any] = {
        "graph": Graph(ends[0], ends[1], num_nodes=len(values)),
        "x": x,
        "node_ids": values,
        "edge_weight": _per_edge(weight, keep, both),
        "edge_features": _per_edge(rows, keep, both),
        "edge_time": _per_edge(time, keep, both),
        "notes": (*notes, *told, *more),
    }
    of_edges = encoding.of_edges
    table = edges if of_edges else nodes
    if table is not None and encoding.task is not None:
        found |= {"task": encoding.task, "num_classes": len(encoding.classes)}
        labels = encode_labels([table.column(name) for name in roles.labels], encoding, table.rows)
        found["y"] = labels if not of_edges or keep is None else labels[keep]
        if of_edges:
            found["edge_label_index"] = ends[:, : kept.numel()]
        if encoding.class_kind != "number":
            found["class_names"] = encoding.classes
        if roles.split is not None:
            found |= _split(table.column(roles.split), keep if of_edges else None)
    return found


def _per_edge(values: NDArray[Any] | None, keep: NDArray[np.int64] | None, both: bool) -> Tensor | None:
    """Rows of the edges that are kept, again for those that lead back."""
    if values is None:
        return None
    tensor = torch.from_numpy(values if keep is None else values[keep])
    return torch.cat([tensor, tensor]) if both else tensor


def _numbered(ids: Column | None, src: Column, dst: Column, unknown: str) -> tuple[NDArray[Any], Tensor]:
    """Ids of the nodes, int64 or texts, and node numbers (2, edges) of both ends, -1 for an id that no node has."""
    columns = [column for column in (ids, src, dst) if column is not None]
    for column in columns:
        if column.missing.any():
            raise DataError(
                f"{column.who}: expected an id in every row, got {int(column.missing.sum()):,} row(s) "
                f"without one, row {_first(column.missing)} the first"
            )
    keys = _keys(columns)
    if ids is None:
        every = dict.fromkeys(keys[0])
        every.update(dict.fromkeys(keys[1]))
        names = sorted(every)
    else:
        names = keys.pop(0)
        _check_once(ids, names)
    place = {name: number for number, name in enumerate(names)}
    ends = np.stack([np.fromiter((place.get(key, -1) for key in side), np.int64, len(side)) for side in keys])
    if ids is not None and unknown == "error" and (ends < 0).any():
        raise DataError(_unknown(ids, (src, dst), keys, ends))
    values = np.array(names, dtype=np.int64) if names and isinstance(names[0], int) else np.array(names, dtype=object)
    if not names:
        raise DataError(f"{columns[0].who}: expected at least one node, got none")
    return values, torch.from_numpy(ends)


def _keys(columns: Sequence[Column]) -> list[list[Any]]:
    """The ids of all columns, as integers where all of them are written as such, else as texts.

    Raises: DataError where one column has numbers and another texts that are none.
    """
    empty = [len(column.values) == 0 for column in columns]  # of either kind
    whole = [column.is_whole and not none for column, none in zip(columns, empty, strict=True)]
    if all(number or none for number, none in zip(whole, empty, strict=True)):
        return [column.values.astype(np.int64).tolist() for column in columns]
    texts = [column.texts() for column in columns]
    plain = [number or all(map(_is_integer, column)) for number, column in zip(whole, texts, strict=True)]
    if all(plain):
        return [[int(text) for text in column] for column in texts]
    if any(whole):
        number, other = columns[whole.index(True)], columns[plain.index(False)]
        raise DataError(
            f"{other.who}: expected ids of the kind of {number.who}, which has numbers, got {other.values[0]!r}; "
            "make texts of both (str)"
        )
    return texts


def _is_integer(text: str) -> bool:
    """A text that is written as an integer is written in one way: no sign or zeros that get lost."""
    return len(text) < 19 and text.isascii() and text.isdigit() and (text[0] != "0" or text == "0")


def _check_once(ids: Column, names: Sequence[Any]) -> None:
    """Raises: DataError with the first id that occurs twice."""
    if len(set(names)) == len(names):
        return
    seen: dict[Any, int] = {}
    count, first = 0, None
    for row, name in enumerate(names):
        if name in seen:
            count += 1
            first = first or (name, seen[name] + 1, row + 1)
        else:
            seen[name] = row
    name, one, two = first or ("", 0, 0)
    more = "" if count == 1 else f"; {count:,} rows repeat an id"
    raise DataError(f"{ids.who}: expected every id once, got {name!r} in rows {one} and {two}{more}")


def _unknown(ids: Column, ends: Sequence[Column], keys: list[list[Any]], found: NDArray[np.int64]) -> str:
    """What is said of ends that no node has."""
    side = 0 if (found[0] < 0).any() else 1
    row = int(np.flatnonzero(found[side] < 0)[0])
    lost, edges = int((found < 0).sum()), int((found < 0).any(axis=0).sum())
    ends_are = "1 end is" if lost == 1 else f"{lost:,} ends are"
    return (
        f"{ends[side].who}: expected ids of {ids.who}, got {keys[side][row]!r} in row {row + 1}; "
        f"{ends_are} unknown in {edges:,} of {found.shape[1]:,} edges; "
        "add the nodes, or leave these edges out with unknown_ids='drop' (--unknown-ids drop)"
    )


def _numbers(column: Column) -> NDArray[np.float64]:
    """Finite numbers without gaps. Raises: DataError."""
    if column.kind not in ("number", "boolean"):
        raise DataError(f"{column.who}: expected numbers, got {column.first(~column.missing)}")
    if column.missing.any():
        raise DataError(f"{column.who}: expected a number in every row, got none in row {_first(column.missing)}")
    values: NDArray[np.float64] = column.values.astype(np.float64)
    wrong = ~np.isfinite(values)
    if wrong.any():
        raise DataError(f"{column.who}: expected finite numbers, got {column.first(wrong)}")
    return values


def _times(column: Column) -> NDArray[Any]:
    """Times as int64 where they are whole, else float64; dates as seconds since 1970. Raises: DataError."""
    column = column.as_moments()
    if column.kind == "text":
        raise DataError(f"{column.who}: expected numbers, dates or times, got {column.first(~column.missing)}")
    if column.missing.any():
        raise DataError(f"{column.who}: expected a time in every row, got none in row {_first(column.missing)}")
    if column.kind == "number":
        return column.values
    whole = bool((column.values == np.floor(column.values)).all())
    return column.values.astype(np.int64) if whole else column.values


def _first(where: NDArray[np.bool_]) -> int:
    return int(np.flatnonzero(where)[0]) + 1


def _split(column: Column, keep: NDArray[np.int64] | None) -> dict[str, Tensor]:
    """Rows of the parts by their names, of those that are kept. Raises: DataError for another name."""
    texts = [text.lower() for text in column.texts()]
    wrong = next((text for text in texts if text and text not in _PARTS), None)
    if wrong is not None:
        raise DataError(f"{column.who}: expected train, val, test or nothing, got {wrong!r}")
    parts = np.array([_PARTS.get(text, "") for text in texts])
    parts = parts if keep is None else parts[keep]
    return {f"{part}_idx": torch.from_numpy(np.flatnonzero(parts == part)) for part in ("train", "val", "test")}
