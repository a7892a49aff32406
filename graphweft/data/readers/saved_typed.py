"""Typed datasets as ``ds.save`` writes them: everything in the flat order that the dataset itself has.

Comes in: an open archive with ``relations``. Goes out: a Dataset equal to the one that was saved. Called by the
registry.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from graphweft._errors import DataError
from graphweft.data.dataset import Dataset
from graphweft.data.readers.archive import NpzArchive
from graphweft.data.readers.assemble import ReadOptions, as_ids, check_range, random_split
from graphweft.data.readers.files import node_limit
from graphweft.data.readers.npz import (
    edge_parts,
    read_encoding,
    read_features,
    read_labels,
    read_names,
    side_arrays,
)
from graphweft.data.readers.split import read_split
from graphweft.graph.graph import Graph
from graphweft.storage.feature import Features


def is_saved_typed(names: set[str]) -> bool:
    """The members include relations with their types."""
    return {"edge_index", "relations", "edge_offsets", "node_offsets", "node_type_names"} <= names


def read_saved_typed(archive: NpzArchive, options: ReadOptions) -> Dataset:
    """The dataset of the archive. Raises: DataError naming the member at fault."""
    types = read_names(archive, "node_type_names")
    node_offsets = _offsets(archive, "node_offsets", len(types))
    names = archive.array("relations", (None, 3), "US")
    relations = [(str(a), str(name), str(b)) for a, name, b in names.astype(str).tolist()]
    edges = as_ids("edge_index", archive.array("edge_index", (2, None))).long()
    edge_offsets = _offsets(archive, "edge_offsets", len(relations))
    num_nodes = node_offsets[-1]
    if num_nodes > node_limit(archive.size):
        raise DataError(
            f"node_offsets: expected a number that a file of {archive.size} bytes can mean, got {num_nodes}"
        )
    if edge_offsets[-1] != edges.shape[1]:
        raise DataError(f"edge_offsets: expected {edges.shape[1]} edges at the end, got {edge_offsets[-1]}")
    if len(set(relations)) != len(relations) or len(set(types)) != len(types):
        raise DataError("relations: expected distinct types and relations, got one twice")
    stretch = {name: range(a, b) for name, (a, b) in zip(types, pairwise(node_offsets), strict=True)}
    found: dict[tuple[str, str, str], tuple[Tensor, Tensor]] = {}
    for relation, (first, end) in zip(relations, pairwise(edge_offsets), strict=True):
        ends = []
        for side, kind in enumerate((relation[0], relation[2])):
            if kind not in stretch:
                raise DataError(f"relations: expected types among {', '.join(types)}, got {kind!r}")
            local = edges[side, first:end] - stretch[kind].start
            check_range("edge_index", local, len(stretch[kind]))
            ends.append(local)
        found[relation] = (ends[0], ends[1])
    graph = Graph.hetero(found, num_nodes={name: len(nodes) for name, nodes in stretch.items()})
    features: dict[str, Features] = {}
    for name, nodes in stretch.items():
        x = read_features(archive, f"x_{name}", len(nodes))
        if x is not None:
            features[name] = x
    labels = read_labels(archive, num_nodes)
    split = read_split(archive, labels, options) if labels.num_classes else random_split(labels, options.seed)
    target = str(archive.array("target_type", (), "U")) if "target_type" in archive else None
    if target is not None and target not in types:
        raise DataError(f"target_type: expected one of {', '.join(types)}, got {target!r}")
    return Dataset(
        name=options.name or "graph",
        graph=graph,
        x=read_features(archive, "x", num_nodes),
        y=labels.y,
        num_classes=labels.num_classes,
        task=labels.task,
        features=features,
        target_type=target,
        held_out=_held_out(archive, num_nodes, len(relations)),
        class_names=read_names(archive, "class_names"),
        node_names=read_names(archive, "node_names"),
        node_ids=as_ids("node_ids", archive.array("node_ids", (num_nodes,))).long() if "node_ids" in archive else None,
        arrays=side_arrays(archive),
        encoding=read_encoding(archive),
        **edge_parts(archive, graph.num_edges),
        **split.fields(),
    )


def _offsets(archive: NpzArchive, key: str, count: int) -> list[int]:
    """Offsets of ``count`` stretches. Raises: DataError."""
    offsets: list[int] = archive.array(key, (count + 1,), "iu").astype(np.int64).tolist()
    if offsets[0] != 0 or any(b < a for a, b in pairwise(offsets)):
        raise DataError(f"{key}: expected offsets that rise from 0, got {offsets[0]} to {offsets[-1]}")
    return offsets


def _held_out(archive: NpzArchive, num_nodes: int, relations: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Triples that the graph has not."""
    found = {}
    for key in archive.names():
        if key.startswith("held_out_edges_"):
            part = key.removeprefix("held_out_edges_")
            ends = as_ids(key, archive.array(key, (2, None))).long()
            kinds = torch.from_numpy(
                archive.array(f"held_out_relations_{part}", (ends.shape[1],), "iu").astype(np.int64)
            )
            check_range(key, ends, num_nodes)
            check_range(f"held_out_relations_{part}", kinds, relations)
            found[part] = (ends, kinds)
    return found
