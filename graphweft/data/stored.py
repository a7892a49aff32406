"""Stores as datasets: one that stays on disk, for training part by part, and one read back into memory.

Comes in: an opened store. Goes out: a :class:`StoredDataset`, which knows sizes, splits and their labels, or a
:class:`Dataset` in memory in the order of the source. Called by the trainer and by :func:`graphweft.data.load.load`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphweft._errors import DataError
from graphweft.data.dataset import REMEDY, Dataset
from graphweft.graph.graph import Graph
from graphweft.storage.store import Store
from graphweft.storage.store_format import DTYPES, SPLIT_BITS
from graphweft.storage.stored_structure import node_rows, read_edges


class StoredDataset(Dataset):
    """A dataset whose graph and features stay on disk.

    The rows of ``y`` are the nodes of the splits, by ascending id in the store; ``train_idx``, ``val_idx`` and
    ``test_idx`` are numbers of such rows. ``x`` has the width of the features and no rows.

    Args:
        store: The store.

    Attributes:
        store: The store.
        row_ids: int64 id in the store of the node that each row of ``y`` belongs to.

    Raises: DataError for a damaged store.

    Example:
        >>> import tempfile
        >>> from graphweft.data.prepare_store import prepare_store
        >>> from graphweft.data.synthetic import synthetic
        >>> ds = synthetic("default", scale=0.02)
        >>> stored = StoredDataset(prepare_store(ds, tempfile.mkdtemp() + "/store", parts=4))
        >>> stored.num_edges == ds.num_edges, len(stored.train_idx) == len(ds.train_idx), stored.x.shape
        (True, True, torch.Size([0, 64]))
    """

    store: Store
    row_ids: Tensor
    _has_types = False  # and no graph in memory

    def __init__(self, store: Store) -> None:
        manifest = store.manifest
        ids, y, bits = self._rows(store)
        fields: dict[str, Any] = {
            **{"store": store, "row_ids": ids, "name": store.name, "y": y, "task": manifest.task},
            "x": torch.empty(0, store.num_features) if store.num_features else None,
            **{f"{part}_idx": ((bits & bit) > 0).nonzero().reshape(-1) for part, bit in SPLIT_BITS.items()},
            **{"num_classes": manifest.num_classes, "class_names": manifest.class_names, "notes": manifest.notes},
            **dict.fromkeys(
                ["edge_weight", "edge_features", "target_type", "edge_label_index", "graph_ptr", "node_ids"]
            ),
            **{"edge_time": None, "encoding": None, "features": {}, "arrays": {}, "held_out": {}, "node_names": ()},
        }
        if store.has_weights:
            fields["edge_weight"] = torch.empty(0)  # which says that there are some; groups read theirs
        if store.types is not None:
            fields["target_type"] = store.types.target
        for key, value in fields.items():
            object.__setattr__(self, key, value)

    @staticmethod
    def _rows(store: Store) -> tuple[Tensor, Tensor, Tensor]:
        """Ids, labels and bits of the nodes of any split, ascending."""
        shape = store.manifest.shape
        columns = (0, shape.label_columns) if shape.label_columns else (0,)
        ids, labels = [torch.empty(0, dtype=torch.int64)], [torch.empty(columns, dtype=DTYPES[shape.label_dtype])]
        bits = [torch.empty(0, dtype=torch.uint8)]
        for number, start in enumerate(store.bounds[:-1].tolist()):
            split = store.block(number, "split")
            rows = split.nonzero().reshape(-1)
            ids.append(rows + start)
            bits.append(split[rows])
            labels.append(store.labels(number)[rows])
        return torch.cat(ids), torch.cat(labels), torch.cat(bits)

    @property
    def graph(self) -> Graph:
        """Not in memory. Raises: DataError."""
        raise DataError(
            f"{self.store.path}: expected a dataset in memory, got a store; gw.load(path) reads it into memory, "
            "mode macro trains on it"
        )

    @property
    def num_nodes(self) -> int:
        """Nodes of the graph."""
        return self.store.num_nodes

    @property
    def num_edges(self) -> int:
        """Directed edges of the graph."""
        return self.store.num_edges

    @property
    def num_rows(self) -> int:
        """Nodes, which predictions have a row for."""
        return self.store.num_nodes

    @property
    def feature_sparsity(self) -> float:
        """0: a store has dense features."""
        return 0.0

    def source_order(self) -> Tensor:
        """int64 (N,): the row that each node of the store had in the source."""
        return torch.cat([self.store.block(number, "node_ids") for number in range(len(self.store))])

    def deaf_types(self) -> list[str]:
        """None: there are no types."""
        return []

    def check_features(self) -> None:
        """There are node features. Raises: DataError."""
        if self.x is None:
            raise DataError(f"{self.name}: expected node features x in the store, got none; before it is made {REMEDY}")

    def check_trainable(self) -> None:
        """There are labels and features. Raises: DataError."""
        if self.num_classes == 0:
            raise DataError(f"{self.name}: expected labels to train on, got a store without")
        if self.labelled("train").numel() == 0:
            raise DataError(f"{self.name}: expected at least one training node with a label, got none")
        self.check_features()

    def __repr__(self) -> str:
        return f"StoredDataset({self.store!r})"


def read_store(store: Store) -> Dataset:
    """A store as a dataset in memory, nodes in the order of the source; edges by destination.

    Raises: DataError for a damaged store.

    Example:
        >>> import tempfile
        >>> from graphweft.data.prepare_store import prepare_store
        >>> from graphweft.data.synthetic import synthetic
        >>> ds = synthetic("default", scale=0.02)
        >>> again = read_store(prepare_store(ds, tempfile.mkdtemp() + "/store", parts=4))
        >>> torch.equal(again.x, ds.x), torch.equal(again.y, ds.y), torch.equal(again.val_idx, ds.val_idx)
        (True, True, True)
    """
    manifest, types = store.manifest, store.types
    graph, weight = read_edges(store)
    _, y, split = node_rows(store)
    where = torch.cat([store.block(number, "node_ids") for number in range(len(store))])
    x = torch.empty(store.num_nodes, store.num_features) if manifest.shape.num_features else None
    own: dict[str, Tensor] = {}
    if types is not None:
        named = zip(types.node_types, manifest.shape.type_widths, strict=bool(manifest.shape.type_widths))
        own = {n: torch.empty(len(types.layout.node_range(n)), width) for n, width in named if width}
    for region in store.feature_regions:
        rows, found = where[region.first : region.end], store.block(region.part, region.block).float()
        if x is not None:
            x[rows] = found
        elif types is not None:
            type_ = int(region.block.removeprefix("x."))
            own[types.node_types[type_]][rows - types.node_offsets[type_]] = found
    idx = {part: ((split & bit) > 0).nonzero().reshape(-1) for part, bit in SPLIT_BITS.items()}
    return Dataset(
        manifest.name,
        graph,
        x,
        y,
        train_idx=idx["train"],
        val_idx=idx["val"],
        test_idx=idx["test"],
        num_classes=manifest.num_classes,
        task=manifest.task,  # type: ignore[arg-type]
        edge_weight=weight,
        features=own,
        target_type=None if types is None else types.target,
        class_names=manifest.class_names,
        notes=manifest.notes,
    )
