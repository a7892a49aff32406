"""Whether a checkpoint belongs to the run at hand.

Comes in: what is kept of a run and what is asked for now; a dataset. Goes out: an error, or a checksum. Called by the
trainer and by :mod:`graphweft.run`.
"""

from __future__ import annotations

import zlib
from typing import Any

from graphweft._errors import CheckpointError
from graphweft.data.dataset import Dataset
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
    """CRC-32 of labels, splits and sizes: notices that the data changed under a run."""
    crc = zlib.crc32(f"{ds.num_features} {ds.num_classes} {ds.num_edges}".encode())
    for tensor in (ds.y, ds.train_idx, ds.val_idx, ds.test_idx):
        crc = zlib.crc32(tensor.numpy().tobytes(), crc)
    return crc


def content_checksum(ds: Dataset) -> str:
    """A mark of all that training reads: structure, features, labels, splits and values of edges."""
    csc = ds.graph.csc
    given: list[Any] = [csc.indptr, csc.indices, ds.x, ds.y, ds.train_idx, ds.val_idx, ds.test_idx]
    given += [getattr(ds, "edge_weight", None), getattr(ds, "edge_features", None)]
    marks = [None if item is None else fingerprint(item) for item in given]
    return f"{zlib.crc32(repr(marks).encode()):08x}"
