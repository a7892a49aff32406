"""What a user selects: ids, boolean masks, slices.

Comes in: a selection of nodes or edges. Goes out: int64 ids in range. Called by Graph and SparseFeatures.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from graphweft._errors import ShapeError
from graphweft._torch_private import plainly
from graphweft.graph.ids import as_ids, require_ids


@plainly
def as_selection(who: str, name: str, value: Any, bound: int) -> torch.Tensor:
    """int64 ids in [0, bound): ``value`` itself, the places where a mask holds, or the range of a slice.

    Raises: ShapeError for a mask of another length; IndexRangeError with the position of the first bad id.

    Example:
        >>> as_selection("Graph.take_dst", "dst", torch.tensor([True, False, True]), 3)
        tensor([0, 2])
    """
    if isinstance(value, slice):
        chosen = range(bound)[value]
        return torch.arange(chosen.start, chosen.stop, chosen.step)
    if isinstance(value, list) and value and all(isinstance(item, bool) for item in value):
        value = np.array(value)
    if isinstance(value, np.ndarray) and value.dtype == np.bool_:
        value = torch.from_numpy(value)
    if isinstance(value, torch.Tensor) and value.dtype == torch.bool:
        if value.shape != (bound,):
            raise ShapeError(f"{who}: expected a mask of {bound} {name} entries, got shape {tuple(value.shape)}")
        return value.cpu().nonzero().reshape(-1)
    ids = as_ids(who, f"{name} ids", value)
    require_ids(who, name, ids, bound)
    return ids.long()
