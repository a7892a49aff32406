"""One rank's part of a graph as a dataset: its own nodes, and what it borrows.

Comes in: the folder that ``graphweft partition --out`` wrote, and a number. Goes out: a :class:`PartDataset`. Called by
:mod:`graphweft.run`, once on every rank.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphweft._errors import DataError
from graphweft.data.dataset import REMEDY, Dataset
from graphweft.data.part_format import PartManifest, read_arrays, read_manifest
from graphweft.data.part_rows import PartRows
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.block import with_degrees
from graphweft.graph.graph import Graph
from graphweft.storage.feature import Features
from graphweft.storage.store_format import SPLIT_BITS


class PartDataset(Dataset):
    """What one rank has of a graph. Nodes are its own, then its ghosts, as they lie in the folder.

    ``graph`` has all edges into own nodes and none into ghosts, ``x`` the features of both, ``y`` the labels of own
    nodes; ``train_idx``, ``val_idx`` and ``test_idx`` are numbers of own nodes. ``num_nodes``, ``num_edges`` and
    ``num_rows`` are those of the whole graph.

    Args:
        path: The folder.
        number: Which part.

    Attributes:
        manifest: What the folder says of itself.
        owner: int64 (own + ghosts,) the part that owns each node.
        home: int64 (own + ghosts,) number of each node in its owner's part.
        ids: int64 (own + ghosts,) id of each node in the whole graph.
        checksum: Of the content of all parts.
        rows: The features in their file, which ``x`` is a view of.

    Raises: DataError for a damaged or unfinished folder.

    Example:
        >>> import tempfile
        >>> from graphweft.data.part_folder import write_parts
        >>> from graphweft.data.synthetic import synthetic
        >>> from graphweft.partitioning.partition import partition
        >>> ds = synthetic("default", scale=0.02)
        >>> out = write_parts(ds, partition(ds.graph, 2), tempfile.mkdtemp() + "/parts")
        >>> first, second = PartDataset(out, 0), PartDataset(out, 1)
        >>> first.graph.num_edges + second.graph.num_edges == ds.num_edges == first.num_edges
        True
    """

    manifest: PartManifest
    owner: Tensor
    home: Tensor
    ids: Tensor
    checksum: int
    rows: PartRows

    def __init__(self, path: str | os.PathLike[str], number: int) -> None:
        manifest = read_manifest(Path(path), number)
        arrays, rows = read_arrays(Path(path), manifest, number)
        own, ghosts = arrays["y"].shape[0], arrays["owner"].numel()
        nodes = own + ghosts
        last = arrays["indptr"][-1:].expand(ghosts)  # no edge leads into a ghost
        csc = Adjacency(torch.cat([arrays["indptr"], last]), arrays["indices"], None, nodes)
        graph = Graph.from_adjacency(csc)
        with_degrees(graph, arrays["degrees"])
        here = torch.full((own,), number)
        split = arrays["split"]
        fields: dict[str, Any] = {
            **{"manifest": manifest, "checksum": manifest.crc32, "ids": arrays["ids"], "graph": graph},
            "owner": torch.cat([here, arrays["owner"].long()]),
            "home": torch.cat([torch.arange(own), arrays["home"].long()]),
            **{"name": manifest.name, "y": arrays["y"], "task": manifest.task, "notes": manifest.notes},
            "rows": rows,
            "x": rows.table if manifest.num_features else None,
            **{f"{part}_idx": ((split & bit) > 0).nonzero().reshape(-1) for part, bit in SPLIT_BITS.items()},
            **{"num_classes": manifest.num_classes, "class_names": manifest.class_names},
            **dict.fromkeys(
                ["edge_weight", "edge_features", "target_type", "edge_label_index", "graph_ptr", "node_ids"]
            ),
            **{"edge_time": None, "encoding": None, "features": {}, "arrays": {}, "held_out": {}, "node_names": ()},
        }
        for key, value in fields.items():
            object.__setattr__(self, key, value)

    @property
    def num_nodes(self) -> int:
        """Nodes of the whole graph."""
        return self.manifest.num_nodes

    @property
    def num_edges(self) -> int:
        """Directed edges of the whole graph."""
        return self.manifest.num_edges

    @property
    def num_rows(self) -> int:
        """Nodes of the whole graph, which predictions have a row for."""
        return self.manifest.num_nodes

    def with_x(self, x: Features) -> PartDataset:
        """The same part with features in another layout."""
        made = copy.copy(self)
        object.__setattr__(made, "x", x)
        return made

    def check_features(self) -> None:
        """There are node features. Raises: DataError."""
        if self.x is None:
            raise DataError(f"{self.name}: expected node features x in the parts, got none; before that {REMEDY}")

    def check_trainable(self) -> None:
        """There are labels and features, on whichever rank. Raises: DataError."""
        if self.num_classes == 0 or not sum(entry.train for entry in self.manifest.parts):
            raise DataError(f"{self.name}: expected at least one training node with a label, got none")
        self.check_features()

    def __repr__(self) -> str:
        own = self.y.shape[0]
        return f"PartDataset({self.name!r}, {own} of {self.num_nodes} nodes, {self.graph.num_nodes - own} ghosts)"
