"""Rows of features of a group of parts of a typed graph whose types have columns of their own.

Comes in: a store and numbers of parts. Goes out: :class:`TypedRows`, which makes the sparse rows of nodes of the group.
Called by :mod:`graphweft.loader.groups`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphweft.loader.group_layout import GroupLayout
from graphweft.loader.neighbours import Beside
from graphweft.storage.block_io import aligned_empty
from graphweft.storage.feature import SparseFeatures
from graphweft.storage.flat_rows import FlatRows, flat_rows_of
from graphweft.storage.gather import gather_rows
from graphweft.storage.store import Store


class TypedRows:
    """Features of a group, whose nodes are type after type, in a type part after part.

    Args:
        flat: Makes sparse rows.
        source: int64 (nodes,) rows that the nodes of the group had in the source.
        table: (n, widest) features of the nodes that have some, in their order.
    """

    def __init__(self, flat: FlatRows, source: Tensor, table: Tensor) -> None:
        self._flat, self._source, self._table = flat, source, table
        # types are few stretches of the group, so those with features before a node are soon counted
        is_stored = flat.is_stored(source)
        self._first = torch.cumsum(is_stored, 0, dtype=torch.int32).sub_(1)

    def rows(self, ids: Tensor) -> SparseFeatures:
        """(n, columns) features of nodes of the group."""
        names = self._source[ids]
        at = self._first[ids[self._flat.is_stored(names)]].long()
        own = gather_rows(self._table, at)
        assert isinstance(own, Tensor)  # a table is dense
        return self._flat.rows(names, own)


def typed_rows(
    store: Store, chosen: NDArray[np.int64], layout: GroupLayout, beside: Sequence[tuple[int, Beside]], names: Tensor
) -> TypedRows | None:
    """The rows of a group of parts, ascending, and of nodes besides; None where all nodes have the same columns.

    Args:
        store: The store.
        chosen: The parts.
        layout: Of the group.
        beside: What is in it besides, each with the place of its first id.
        names: int64 rows in the source of these nodes, in the order of ``layout.which``.

    Raises: DataError for a damaged store.
    """
    flat, widths, entries = flat_rows_of(store), store.manifest.shape.type_widths, store.manifest.parts
    if flat is None:
        return None
    of_parts = [store.node_ids(number) for number in chosen.tolist()]
    cuts = [np.concatenate([[0], np.cumsum(entries[number].types)]) for number in chosen.tolist()]
    sizes = np.diff(layout.node_offsets)
    table = aligned_empty((int(sizes[np.array(widths) > 0].sum()), store.row_width), store.feature_dtype)
    source, filled = [], 0
    for type_, width in enumerate(widths):
        for number, ids, cut in zip(chosen.tolist(), of_parts, cuts, strict=True):
            source.append(ids[int(cut[type_]) : int(cut[type_ + 1])])
            count = entries[number].types[type_]
            if width and count:
                store.own_features(number, type_, table[filled : filled + count])
                filled += count
        source.append(names[int(layout.besides[type_]) : int(layout.besides[type_ + 1])])
        for first, some in beside if width else ():
            which, _ = layout.besides_of(type_, first, first + len(some.ids))
            some.features_into(type_, some.places[which - first], table[filled : filled + len(which)])
            filled += len(which)
    return TypedRows(flat, torch.cat(source), table)


__all__ = ["TypedRows", "typed_rows"]
