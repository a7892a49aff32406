"""The heterophilous graphs: ``node_features``, ``node_labels``, ``edges`` and ten mask rows in one ``.npz``.

Comes in: an open archive. Goes out: a Dataset with each link in both directions (but for a set whose name says
``directed``) and the split that the caller chose, the first by default. Called by the registry.
"""

from __future__ import annotations

import torch

from graphweft._errors import DataError
from graphweft.data.dataset import Dataset
from graphweft.data.readers.archive import NpzArchive
from graphweft.data.readers.assemble import (
    ReadOptions,
    Split,
    as_ids,
    both_directions,
    check_range,
    coo_graph,
    dense_features,
    labels,
    mask_idx,
    random_split,
    split_number,
)


def is_heterophilous(names: set[str]) -> bool:
    """The members include ``node_features`` and ``edges``."""
    return {"node_features", "node_labels", "edges"} <= names


def read_heterophilous(archive: NpzArchive, options: ReadOptions) -> Dataset:
    """The dataset of a heterophilous archive.

    Raises: DataError naming the member at fault.
    """
    x_shape = archive.header("node_features").shape
    if len(x_shape) != 2:
        raise DataError(f"node_features: expected a matrix, got shape {x_shape}")
    rows = x_shape[0]
    edges = as_ids("edges", archive.array("edges", (None, 2), "iu")).long()
    check_range("edges", edges, rows)
    src, dst = edges[:, 0].contiguous(), edges[:, 1].contiguous()
    if "directed" not in (options.name or ""):
        src, dst = (torch.from_numpy(ids) for ids in both_directions(src.numpy(), dst.numpy(), rows))
    found = labels("node_labels", archive.array("node_labels"), rows)
    parts = [f"{part}_masks" for part in ("train", "val", "test")]
    if all(key in archive for key in parts):
        number = split_number(options.split)
        split = Split(*(mask_idx(key, archive.array(key), rows, number) for key in parts))
    else:
        split = random_split(found, options.seed)
    return Dataset(
        name=options.name or "graph",
        graph=coo_graph(src, dst, rows),
        x=dense_features("node_features", archive.array("node_features", (rows, None)), rows),
        y=found.y,
        num_classes=found.num_classes,
        task=found.task,
        **split.fields(),
    )
