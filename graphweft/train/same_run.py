"""Whether a run is the one that a folder holds, and what its data are.

Comes in: configurations, datasets, seeds. Goes out: nothing or a CheckpointError; checksums. Called by the
trainer, by :mod:`graphweft.run` and by loaded runs.
"""

from __future__ import annotations

import zlib
from typing import Any

from graphweft._errors import CheckpointError
from graphweft.data.dataset import Dataset
from graphweft.data.part_dataset import PartDataset
from graphweft.storage.fingerprint import fingerprint


def check_same_run(folder: str, saved: dict[str, Any], config: dict[str, Any]) -> None:
    """Every option of ``config`` is as in the checkpoint.

    Raises: CheckpointError naming the first that is not.
    """
    for name, value in config.items():
        if name not in saved or saved[name] != value:
            raise CheckpointError(
                f"resume: expected {name} {saved.get(name)!r} as in the run that {folder} holds, got {value!r}; "
                "use another --out, or leave --resume out to start over"
            )


def data_checksum(ds: Dataset) -> int:
    """CRC-32 of labels, splits and sizes: notices that the data changed under a run; of parts that of all of them."""
    if isinstance(ds, PartDataset):
        return ds.checksum
    crc = zlib.crc32(f"{ds.num_features} {ds.num_classes} {ds.num_edges}".encode())
    for tensor in (ds.y, ds.train_idx, ds.val_idx, ds.test_idx):
        crc = zlib.crc32(tensor.numpy().tobytes(), crc)
    return crc


def content_checksum(ds: Dataset) -> str:
    """A mark of all that training reads: structure, features, labels, splits and values of edges."""
    if isinstance(ds, PartDataset):
        return f"{ds.checksum:08x}"
    csc = ds.graph.csc
    given: list[Any] = [csc.indptr, csc.indices, ds.x, ds.y, ds.train_idx, ds.val_idx, ds.test_idx]
    given += [getattr(ds, "edge_weight", None), getattr(ds, "edge_features", None)]
    marks = [None if item is None else fingerprint(item) for item in given]
    return f"{zlib.crc32(repr(marks).encode()):08x}"
