"""Datasets: what one is, where it comes from, and how it is kept.

Comes in: a name or a path. Goes out: a validated :class:`graphweft.data.dataset.Dataset`. The trainer and the command
line call :func:`graphweft.data.load.load`; files of any layout pass through ``readers``, which trust nothing they
read.
"""

from typing import TYPE_CHECKING

from graphweft._namespace import lazy

if TYPE_CHECKING:
    from graphweft.storage.feature import SparseFeatures as SparseFeatures
    from graphweft.storage.int8_features import Int8Features as Int8Features

__all__ = ["Int8Features", "SparseFeatures"]

if not TYPE_CHECKING:
    __getattr__ = lazy(
        __name__,
        {"Int8Features": "graphweft.storage.int8_features", "SparseFeatures": "graphweft.storage.feature"},
    )
