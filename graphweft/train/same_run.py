"""Whether a run is the one that a folder holds, and what makes its draws its own.

Comes in: configurations, datasets, seeds. Goes out: nothing or a CheckpointError; checksums and keys. Called by the
trainer, by :mod:`graphweft.run` and by loaded runs.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from graphweft._errors import CheckpointError
from graphweft.data.dataset import Dataset
from graphweft.data.part_dataset import PartDataset
from graphweft.storage.fingerprint import fingerprint


@contextmanager
def randomness(key: int) -> Iterator[None]:
    """Random draws in the block follow from ``key``; the caller's generator does not notice."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(key)
        yield


def epoch_key(seed: int, epoch: int) -> int:
    """A 63-bit seed for one epoch (SplitMix64 over both).

    Example:
        >>> epoch_key(0, 1) == epoch_key(0, 1), epoch_key(0, 1) == epoch_key(1, 0)
        (True, False)
    """
    mask = 2**64 - 1
    key = 0
    for word in (seed, epoch):
        key = (key + word + 0x9E3779B97F4A7C15) & mask
        key = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & mask
        key = ((key ^ (key >> 27)) * 0x94D049BB133111EB) & mask
        key ^= key >> 31
    return key >> 1


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
