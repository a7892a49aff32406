"""Rows that a layer of an inference reads: features of a source of parts, or hidden rows of the layer before.

Comes in: ascending ids of nodes. Goes out: their rows, at places of a tensor. Called by inference over parts.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from graphweft._distinct import Ids
from graphweft.loader.parts import PartSource
from graphweft.train.node_set import NodeSet
from graphweft.train.tiles import HiddenRows


class RowTable(Protocol):
    """Rows of nodes."""

    @property
    def width(self) -> int:
        """Columns."""

    @property
    def dtype(self) -> torch.dtype:
        """As they lie there."""

    @property
    def is_far(self) -> bool:
        """Whether reading them is a request of the disk."""

    @property
    def piece(self) -> int:
        """Bytes that are read at a time."""

    @property
    def count(self) -> int:
        """Rows."""

    def ids(self, first: int, end: int) -> Ids:
        """Nodes of the rows ``first`` to ``end``, ascending."""

    def places(self, ids: Ids) -> Ids:
        """Rows of some nodes."""

    def fill(self, ids: Ids, out: Tensor, at: Tensor) -> None:
        """Rows of ascending ids as rows ``at`` of ``out``."""

    def let_go(self) -> None:
        """The system keeps none of their pages."""


class _EveryNode:
    """What is alike in tables of all nodes that keep nothing themselves."""

    def ids(self, first: int, end: int) -> Ids:
        """Nodes of the rows ``first`` to ``end``: every node has one."""
        return np.arange(first, end)

    def places(self, ids: Ids) -> Ids:
        """Rows of some nodes."""
        return ids

    def let_go(self) -> None:
        """Nothing is kept."""


class FeatureTable(_EveryNode):
    """Features of a source. Attributes as of :class:`RowTable`."""

    def __init__(self, source: PartSource, is_far: bool, piece: int) -> None:
        self._source, self.is_far, self.piece = source, is_far, piece
        self.width, self.dtype, self.count = source.num_features, source.feature_dtype, int(source.bounds[-1])

    def fill(self, ids: Ids, out: Tensor, at: Tensor) -> None:
        """Rows of ascending ids as rows ``at`` of ``out``."""
        self._source.feature_rows_into(ids, out, at)


class BlankTable(_EveryNode):
    """Zeros in the place of hidden rows that are still to come, to try what a tile takes. Attributes as of a table."""

    dtype, is_far = torch.float32, False

    def __init__(self, width: int, features: RowTable) -> None:
        self.width, self.piece, self.count = width, features.piece, features.count

    def fill(self, ids: Ids, out: Tensor, at: Tensor) -> None:
        """Zeros."""
        out.index_fill_(0, at, 0.0)


class HiddenTable:
    """Hidden rows of some nodes. Attributes as of :class:`RowTable`."""

    dtype = torch.float32

    def __init__(self, rows: HiddenRows, nodes: NodeSet, piece: int) -> None:
        self._rows, self._nodes, self.piece = rows, nodes, piece
        self.width, self.is_far, self.count = rows.rows.shape[1], rows.is_filed, nodes.count

    def ids(self, first: int, end: int) -> Ids:
        """Nodes of the rows ``first`` to ``end``, ascending."""
        return self._nodes.at(first, end)

    def places(self, ids: Ids) -> Ids:
        """Rows of some nodes."""
        return self._nodes.places(ids)

    def fill(self, ids: Ids, out: Tensor, at: Tensor) -> None:
        """Rows of ascending ids as rows ``at`` of ``out``."""
        self._rows.fill(self._nodes.places(ids), out, at, self.piece)

    def let_go(self) -> None:
        """The system keeps none of a file's pages."""
        self._rows.let_go()


__all__ = ["BlankTable", "FeatureTable", "HiddenTable", "RowTable"]
