"""A graph's nodes in parts. Not called after its public name, ``gw.partition``, which a module would shadow."""

from typing import TYPE_CHECKING

from graphweft._namespace import lazy

if TYPE_CHECKING:
    from graphweft.partitioning.partition import Partition as Partition

__all__ = ["Partition"]

if not TYPE_CHECKING:
    __getattr__ = lazy(__name__, {"Partition": "graphweft.partitioning.partition"})
