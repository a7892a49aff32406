"""Typed ``.npz`` files: nodes and edges of several types, features per node type, knowledge graphs of triples.

Comes in: an open archive with ``edge_type``. Goes out: a Dataset whose graph is typed and flat (nodes type after
type), with labels and split as ids of the flat graph. Called by the registry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from graphweft._errors import DataError
from graphweft.data.dataset import Dataset
from graphweft.data.readers.archive import NpzArchive
from graphweft.data.readers.assemble import (
    Labels,
    ReadOptions,
    Split,
    as_ids,
    check_range,
    index_idx,
    labels,
    no_labels,
    random_split,
    split_number,
)
from graphweft.data.readers.files import node_limit, one_line
from graphweft.data.readers.npz import read_features, read_labels, read_names, side_arrays
from graphweft.data.readers.split import read_split
from graphweft.graph.graph import Graph
from graphweft.storage.feature import Features

Relation = tuple[str, str, str]
_MAX_TYPES = 100_000


def is_typed(names: set[str]) -> bool:
    """The members are those of a typed graph."""
    return {"edge_index", "edge_type"} <= names or {"train_edge_index", "train_edge_type"} <= names


def read_typed_npz(archive: NpzArchive, options: ReadOptions) -> Dataset:
    """The dataset of a typed ``.npz``: several node types, one node type with relations, or triples.

    Raises: DataError naming the member at fault.
    """
    if "train_edge_index" in archive:
        return _read_triples(archive, options)
    edges = as_ids("edge_index", archive.array("edge_index", (2, None))).long()
    edge_type = archive.array("edge_type", (edges.shape[1],), "iu").astype(np.int64)
    read = _read_node_types if "node_type" in archive else _read_one_node_type
    ds = read(archive, edges, edge_type, options)
    names = _relation_names(archive, edge_type)
    return replace(ds, notes=(*ds.notes, *_without("edges", names, np.bincount(edge_type, minlength=len(names)))))


def _without(rows: str, names: Sequence[str], counts: np.ndarray) -> tuple[str, ...]:
    """A note on the types that have no edges, or no nodes; none where all have some."""
    empty = [name for name, count in zip(names, counts, strict=True) if not count]
    return (f"types without {rows}: {one_line(', '.join(empty), 80)}",) if empty else ()


def _relation_names(archive: NpzArchive, edge_type: np.ndarray) -> tuple[str, ...]:
    """Names of the relations, in either of two members, checked against the ids in use."""
    key = "relation_names" if "relation_names" in archive else "edge_type_names"
    names = read_names(archive, key) or tuple(
        str(i) for i in range(min(int(edge_type.max(initial=-1)) + 1, _MAX_TYPES))
    )
    if len(set(names)) != len(names):
        raise DataError(f"{key}: expected distinct names, got one twice")
    check_range("edge_type", torch.from_numpy(edge_type), len(names))
    return names


def _group(edge_type: np.ndarray, count: int) -> list[np.ndarray]:
    """Positions of the edges of each type, ascending."""
    order = np.argsort(edge_type, kind="stable")
    return np.split(order, np.searchsorted(edge_type[order], np.arange(1, count)))


def _read_one_node_type(archive: NpzArchive, edges: Tensor, edge_type: np.ndarray, options: ReadOptions) -> Dataset:
    """RDF graphs: one node type, many relations, labels on some nodes."""
    rows = archive.header("y").shape[0] if "y" in archive and archive.header("y").shape else None
    declared = int(archive.array("num_nodes", (), "iu")) if "num_nodes" in archive else rows
    num_nodes = declared if declared is not None else int(edges.max()) + 1 if edges.numel() else 0
    graph = _homogeneous(archive, edges, edge_type, num_nodes, "node")
    found = read_labels(archive, num_nodes)
    return Dataset(
        name=options.name or "graph",
        graph=graph,
        x=read_features(archive, "x", num_nodes),
        y=found.y,
        num_classes=found.num_classes,
        task=found.task,
        target_type="node",
        class_names=read_names(archive, "class_names"),
        arrays=side_arrays(archive),
        **read_split(archive, found, options).fields(),
    )


def _homogeneous(archive: NpzArchive, edges: Tensor, edge_type: np.ndarray, num_nodes: int, node_type: str) -> Graph:
    """A typed graph of one node type."""
    if not 0 <= num_nodes <= node_limit(archive.size):
        raise DataError(f"num_nodes: expected a number that a file of {archive.size} bytes can mean, got {num_nodes}")
    check_range("edge_index", edges, num_nodes)
    names = _relation_names(archive, edge_type)
    relations = {
        (node_type, name, node_type): (edges[0, torch.from_numpy(at)], edges[1, torch.from_numpy(at)])
        for name, at in zip(names, _group(edge_type, len(names)), strict=True)
    }
    return Graph.hetero(relations, num_nodes={node_type: num_nodes})


def _read_triples(archive: NpzArchive, options: ReadOptions) -> Dataset:
    """A knowledge graph: the graph holds the training triples, the others are held out."""
    parts: dict[str, tuple[Tensor, np.ndarray]] = {}
    for part in ("train", "valid", "test"):
        if f"{part}_edge_index" in archive:
            edges = as_ids(f"{part}_edge_index", archive.array(f"{part}_edge_index", (2, None))).long()
            kinds = archive.array(f"{part}_edge_type", (edges.shape[1],), "iu").astype(np.int64)
            parts[part] = (edges, kinds)
    largest = max((int(edges.max()) for edges, _ in parts.values() if edges.numel()), default=-1)
    num_nodes = int(archive.array("num_nodes", (), "iu")) if "num_nodes" in archive else largest + 1
    edges, kinds = parts.pop("train")
    graph = _homogeneous(archive, edges, kinds, num_nodes, "entity")
    held_out = {}
    for part, (held, held_kinds) in parts.items():
        check_range(f"{part}_edge_index", held, num_nodes)
        relations = torch.from_numpy(held_kinds)
        check_range(f"{part}_edge_type", relations, len(graph.relations))
        held_out["val" if part == "valid" else part] = (held, relations)
    found, nothing = no_labels(num_nodes), torch.empty(0, dtype=torch.int64)
    names = [name for _, name, _ in graph.relations]
    empty = _without("edges", names, np.bincount(kinds, minlength=len(names)))
    return Dataset(
        name=options.name or "graph",
        graph=graph,
        x=read_features(archive, "x", num_nodes),
        y=found.y,
        num_classes=0,
        target_type="entity",
        held_out=held_out,
        notes=("triples for link prediction: no node labels", *empty),
        **Split(nothing, nothing, nothing).fields(),
    )


def _read_node_types(archive: NpzArchive, edges: Tensor, edge_type: np.ndarray, options: ReadOptions) -> Dataset:
    """Several node types with features each, labels on one of them."""
    node_type = archive.array("node_type", (None,), "iu").astype(np.int64)
    names = read_names(archive, "node_type_names")
    if not names or len(set(names)) != len(names):
        raise DataError("node_type_names: expected distinct names of the node types, got none or one twice")
    check_range("node_type", torch.from_numpy(node_type), len(names))
    if (np.diff(node_type) < 0).any():
        raise DataError("node_type: expected the nodes type after type, got them mixed")
    counts = np.bincount(node_type, minlength=len(names))
    offsets = np.concatenate([[0], np.cumsum(counts)])
    check_range("edge_index", edges, len(node_type))
    graph = Graph.hetero(
        _relations(archive, edges, edge_type, node_type, names, offsets),
        num_nodes={name: int(count) for name, count in zip(names, counts, strict=True)},
    )
    features: dict[str, Features] = {}
    for name, count in zip(names, counts, strict=True):
        found = read_features(archive, f"x_{name}", int(count))
        if found is not None:
            features[name] = found
    target = int(archive.array("target_type", (), "iu")) if "target_type" in archive else 0
    if not 0 <= target < len(names):
        raise DataError(f"target_type: expected a number in [0, {len(names)}), got {target}")
    first, count = int(offsets[target]), int(counts[target])
    mine, split = _target_labels(archive, first, count, len(node_type), options)
    archive.leave_out("metapath_", "node_type_counts", "node_type_offsets")  # told below; they follow from node_type
    notes = _without("nodes", names, counts)
    if any(n.startswith("metapath_") for n in archive.names()):
        notes = (*notes, "meta-path graphs of the source are left out")
    return Dataset(
        name=options.name or "graph",
        graph=graph,
        x=read_features(archive, "x", len(node_type)),
        y=mine.y,
        num_classes=mine.num_classes,
        task=mine.task,
        features=features,
        target_type=names[target],
        class_names=read_names(archive, "class_names"),
        notes=notes,
        **split.fields(),
    )


def _relations(
    archive: NpzArchive,
    edges: Tensor,
    edge_type: np.ndarray,
    node_type: np.ndarray,
    names: tuple[str, ...],
    offsets: np.ndarray,
) -> dict[Relation, tuple[Tensor, Tensor]]:
    """Edges by (source type, name, target type), as ids within their types; a name may join several pairs of types."""
    src, dst = edges[0].numpy(), edges[1].numpy()
    edge_names = _relation_names(archive, edge_type)
    out: dict[Relation, tuple[Tensor, Tensor]] = {}
    for name, at in zip(edge_names, _group(edge_type, len(edge_names)), strict=True):
        pair = node_type[src[at]] * len(names) + node_type[dst[at]]
        for code in np.unique(pair):
            mine = at[pair == code]
            a, b = divmod(int(code), len(names))
            local = (torch.from_numpy(src[mine] - offsets[a]), torch.from_numpy(dst[mine] - offsets[b]))
            out[(names[a], name, names[b])] = local
    return out


def _target_labels(
    archive: NpzArchive, first: int, count: int, num_nodes: int, options: ReadOptions
) -> tuple[Labels, Split]:
    """Labels and split of the target type, as rows of the flat graph."""
    if "y" not in archive:
        return no_labels(num_nodes), random_split(no_labels(num_nodes), options.seed)
    found = labels("y", archive.array("y"), count)
    if found.task != "classification":
        raise DataError("y: expected one class id per node of the target type, got several labels")
    named_splits = [name.removeprefix("train_index_") for name in archive.names() if name.startswith("train_index_")]
    if named_splits:
        number = split_number(options.split, named_splits)
        archive.leave_out("train_index_", "val_index_", "test_index_")  # of the splits that were not asked for
        if not 0 <= number < len(named_splits):
            raise DataError(f"split: expected a number in [0, {len(named_splits)}), got {number}")
        suffix = named_splits[number]
        parts = (f"{part}_index_{suffix}" for part in ("train", "val", "test"))
        split = Split(*(index_idx(key, archive.array(key, (None,), "iu"), count) for key in parts))
    else:
        split = read_split(archive, found, options)
    y = torch.full((num_nodes,), -1, dtype=torch.int64)
    y[first : first + count] = found.y
    return Labels(y, found.num_classes, "classification"), Split(*(idx + first for idx in split))
