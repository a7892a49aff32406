"""The part of a rank that trains from a folder of parts.

Comes in: a :class:`TrainSpec` and the ranks. Goes out: the rank's :class:`PartDataset`, where the spec names such a
folder. Called by :mod:`graphweft.run`.
"""

from __future__ import annotations

from pathlib import Path

from graphweft._errors import ConfigError, DataError
from graphweft.data.part_check import folder_of, is_parts, not_together
from graphweft.data.part_dataset import PartDataset
from graphweft.data.part_format import PartManifest, read_manifest
from graphweft.data.readers.files import is_file
from graphweft.dist.ranks import Ranks
from graphweft.storage.store_format import MANIFEST
from graphweft.train.spec import TYPED, TrainSpec

_USUAL = (("mode", "full"), ("task", "nodes"), ("features", None), ("normalize", "none"))


def read_part_of(spec: TrainSpec, ranks: Ranks) -> PartDataset | None:
    """The rank's part of the folder that ``spec`` names; None where that is no folder of parts.

    A machine needs the folders of its own ranks alone.

    Raises: DataError for a damaged folder; ConfigError for another number of ranks, and for options that parts cannot
        be combined with.
    """
    path = Path(spec.data)
    here = is_file(folder_of(path, ranks.rank) / MANIFEST)
    if spec.has_tables or spec.scale is not None or not (is_parts(path) or here):
        return None
    parts = len((_own_manifest(path, ranks.rank) if here else read_manifest(path)).parts)
    if parts != ranks.size:
        raise ConfigError(f"ranks: expected as many as {path} has parts, {parts}, got {ranks.size}")
    for name, usual in _USUAL:
        given = getattr(spec, name)
        if given != usual:
            raise ConfigError(f"{name}={given} cannot be combined with parts; expected {usual or 'none'}")
    if spec.model in TYPED:  # which read the inverse relations as well
        raise ConfigError(f"model={spec.model} cannot be combined with parts, which have no relations")
    ds = PartDataset(path, ranks.rank)
    ds.check_trainable()
    return ds


def _own_manifest(path: Path, rank: int) -> PartManifest:
    """The copy in the rank's own part; that of the whole folder, where it lies here as well, has to say the same."""
    own = read_manifest(path, rank)
    if (path / MANIFEST).exists():
        whole = read_manifest(path)
        if whole.crc32 != own.crc32:
            raise DataError(not_together(path, rank, own.crc32, whole.crc32))
    return own
