"""What features of 8 bits can be trained with.

Comes in: what a run is made of. Goes out: its mode, or one line for what does not read such features. Called by the
trainer. They are read by gathers of mini-batches on the CPU; all else would hold every row in float32.
"""

from __future__ import annotations

from typing import Any

from graphweft._errors import ConfigError
from graphweft.data.part_dataset import PartDataset
from graphweft.data.stored import StoredDataset
from graphweft.storage.int8_features import Int8Features
from graphweft.train.device import device_of
from graphweft.train.setup import Given

_WHO = "features in int8"


def check_int8_source(ds: Any) -> None:
    """Raises: ConfigError for features that are not in memory as a whole."""
    if isinstance(ds, StoredDataset | PartDataset):
        raise ConfigError("precision='int8' cannot be combined with a store or parts on disk; it is for data in memory")


def check_priced(ds: Any) -> None:
    """Raises: ConfigError for features that no plan prices."""
    if isinstance(getattr(ds, "x", None), Int8Features):
        raise ConfigError(f"{_WHO} cannot be combined with plan; ds.x.to_dense() widens them")


def mode_for_int8(given: Given) -> str:
    """The mode of a run: as given, but "mini" in the place of "auto" over features of 8 bits.

    Raises: ConfigError naming what cannot read them.
    """
    if not isinstance(getattr(given.ds, "x", None), Int8Features):
        return given.mode
    for is_so, what in (
        (
            given.mode not in ("auto", "mini"),
            f"mode={given.mode!r}; mode='mini' reads them, ds.x.to_dense() widens them",
        ),
        (given.task != "nodes", f"task={given.task!r}"),
        (device_of(given.model).type != "cpu", f"device={str(device_of(given.model))!r}"),
        (given.ranks.is_shared, "ranks"),
        (given.drawn.macro is not None, "macro"),
        (given.memory is not None, "memory"),
    ):
        if is_so:
            raise ConfigError(f"{_WHO} cannot be combined with {what}")
    return "mini"


__all__ = ["check_int8_source", "check_priced", "mode_for_int8"]
