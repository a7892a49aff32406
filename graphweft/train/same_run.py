"""Whether a run is the one that a folder holds, and what its data are.

Comes in: configurations and datasets. Goes out: nothing or a CheckpointError; checksums. Called by the trainer, by
:mod:`graphweft.run` and by loaded runs.
"""

from __future__ import annotations

import zlib
from typing import Any

from torch import Tensor

from graphweft._errors import CheckpointError
from graphweft.data.dataset import Dataset
from graphweft.data.part_dataset import PartDataset
from graphweft.data.stored import StoredDataset
from graphweft.storage.fingerprint import fingerprint

INPUTS = "inputs_checksum"  # older checkpoints have none, nor have runs on parts


def check_same_run(folder: str, saved: dict[str, Any], config: dict[str, Any]) -> None:
    """Every option of ``config`` is as in the checkpoint.

    Raises: CheckpointError naming the first that is not.
    """
    for name, value in config.items():
        if name == INPUTS:
            if len({saved.get(name), value} - {None}) > 1:
                raise CheckpointError(
                    f"resume: expected the features and edges of the run that {folder} holds, got others; "
                    "use another --out, or leave --resume out to start over"
                )
        elif name not in saved or saved[name] != value:
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
    return _mark([*_inputs(ds), ds.y, ds.train_idx, ds.val_idx, ds.test_idx])


def with_inputs(config: dict[str, Any] | None, ds: Dataset, is_kept: Any) -> dict[str, Any]:
    """``config`` of a run on ``ds``, where it ``is_kept`` in a folder, or ``config`` asks, with a mark of its inputs.

    These are features and edges. Memory is read once. A store has checksums of its own, and :func:`data_checksum` of
    parts says all.
    """
    if not (is_kept or INPUTS in (config or {})) or isinstance(ds, PartDataset):
        return config or {}
    mark = f"{ds.store.manifest.crc32:08x}" if isinstance(ds, StoredDataset) else _mark(_inputs(ds))
    return {**(config or {}), INPUTS: mark}


def _inputs(ds: Dataset) -> list[Any]:
    """What a model may read, of labels and splits apart."""
    csc, by_type = getattr(ds.graph, "csc", None), getattr(ds, "features", {})  # a model of one's own may read others
    structure = [ds.graph] if csc is None else [csc.indptr, csc.indices, csc.edge_ids]
    named = ("edge_weight", "edge_features", "edge_time", "edge_label_index", "graph_ptr")
    return [
        *structure,
        ds.x,
        *(getattr(ds, name, None) for name in named),
        *(by_type[kind] for kind in sorted(by_type)),
    ]


def _mark(given: list[Any]) -> str:
    marks = [fingerprint(item) if isinstance(item, Tensor) else None for item in given]
    return f"{zlib.crc32(repr(marks).encode()):08x}"


__all__ = ["INPUTS", "check_same_run", "content_checksum", "data_checksum", "with_inputs"]
