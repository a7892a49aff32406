"""Edges dealt to parts, and those of one part compressed, by parallel counting sorts.

Comes in: ends of edges in the numbers of the source; then pairs of a part in those of the store. Goes out: pairs by
part; then offsets and ascending sources. Called by the modules that sort more edges than fit into memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphweft._distinct import Ids
from graphweft._native import declare

_deal = declare("gw_deal_edges")
_compress = declare("gw_compress_pairs")

Pairs = NDArray[np.signedinteger[Any]]


def dealt(
    src: Ids,
    dst: Ids,
    part: NDArray[np.integer[Any]],
    new_id: Pairs | None,
    parts: int,
    dtype: np.dtype[np.signedinteger[Any]],
) -> tuple[Pairs, Ids]:
    """(n, 2) new ids of destination and source, part after part of the destination; (parts + 1,) where parts begin.

    Edges of a part keep their order. ``new_id`` None: ids stay. Ids are in range; parts are of an unsigned type.

    Example:
        >>> part = np.array([1, 0], np.uint8)
        >>> pairs, cuts = dealt(np.array([0, 1]), np.array([0, 1]), part, None, 2, np.dtype("int32"))
        >>> pairs.tolist(), cuts.tolist()
        ([[1, 1], [0, 0]], [0, 1, 2])
    """
    src, dst = np.ascontiguousarray(src, np.int64), np.ascontiguousarray(dst, np.int64)
    pairs, cuts = np.empty((len(dst), 2), dtype), np.empty(parts + 1, np.int64)
    ids = None if new_id is None else new_id.ctypes.data
    given = (src.ctypes.data, dst.ctypes.data, len(dst), part.ctypes.data, part.dtype.itemsize)
    _deal(*given, ids, int(pairs.dtype.itemsize == 8), parts, cuts.ctypes.data, pairs.ctypes.data)
    return pairs, cuts


def compressed(pairs: Pairs, first: int, rows: int, once: bool = False) -> tuple[Ids, Pairs]:
    """Offsets (rows + 1,) and ascending sources of pairs (n, 2) whose destinations are in [first, first + rows).

    ``once``: equal pairs become one, and pairs of equal ends none.

    Example:
        >>> pairs = np.array([[7, 3], [6, 6], [7, 1], [7, 3]], np.int32)
        >>> [found.tolist() for found in compressed(pairs, 6, 2)]
        [[0, 1, 4], [6, 1, 3, 3]]
        >>> [found.tolist() for found in compressed(pairs, 6, 2, once=True)]
        [[0, 0, 2], [1, 3]]
    """
    indptr, sources = np.empty(rows + 1, np.int64), np.empty(len(pairs), pairs.dtype)
    wide, given = int(pairs.dtype.itemsize == 8), (pairs.ctypes.data, len(pairs), first, rows)
    _compress(*given, wide, int(once), indptr.ctypes.data, sources.ctypes.data)
    return indptr, sources[: int(indptr[-1])]


__all__ = ["compressed", "dealt"]
