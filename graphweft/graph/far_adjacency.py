"""An adjacency whose arrays were made on a device, with copies in host memory where somebody asks for them.

Comes in: an :class:`Adjacency` on a device. Goes out: the same for code that reads host memory, which waits for a copy,
and for code that runs on the device, which does not. Made by samplers that draw there.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch

from graphweft.graph.adjacency import Adjacency
from graphweft.graph.ids import index_dtype


class FarAdjacency(Adjacency):
    """See the module.

    Attributes:
        far: The arrays on the device.

    Example:
        >>> far = Adjacency(torch.tensor([0, 2]), torch.tensor([1, 0]), None, 2)
        >>> FarAdjacency(far).transpose().indptr.tolist()
        [0, 1, 2]
    """

    far: Adjacency

    def __init__(self, far: Adjacency) -> None:
        object.__setattr__(self, "far", far)
        object.__setattr__(self, "num_cols", far.num_cols)

    @cached_property
    def indptr(self) -> torch.Tensor:
        """In host memory."""
        return self.far.indptr.cpu()

    @cached_property
    def indices(self) -> torch.Tensor:
        """In host memory."""
        return self.far.indices.cpu()

    @cached_property
    def edge_ids(self) -> torch.Tensor | None:
        """In host memory."""
        return None if self.far.edge_ids is None else self.far.edge_ids.cpu()

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.far.num_rows

    @property
    def num_edges(self) -> int:
        """Number of entries."""
        return self.far.num_edges

    @property
    def is_wide(self) -> bool:
        """Whether indices are int64."""
        return self.far.is_wide

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self.far.nbytes

    def to(self, device: torch.device) -> Adjacency:
        """The arrays on the device; copies on another one."""
        return self.far if self.far.indptr.device == device else super().to(device)

    def transpose(self, *, edge_ids: bool = True) -> Adjacency:
        """As of arrays in host memory, entry for entry, made on the device."""
        far, there = self.far, self.far.indptr.device
        columns, order = far.indices.sort(stable=True)
        with_ids = edge_ids and far.num_edges > 0
        dtype = index_dtype(far.num_rows, far.num_cols, far.num_edges, with_ids)
        dtype = torch.int64 if far.is_wide else dtype
        numbers = torch.arange(far.num_cols + 1, device=there)
        indptr = torch.searchsorted(columns.long(), numbers)
        indices = self.rows()[order].to(dtype)
        ids = order if far.edge_ids is None else far.edge_ids[order]
        return FarAdjacency(Adjacency(indptr, indices, ids.to(dtype) if with_ids else None, far.num_rows))

    def rows(self) -> torch.Tensor:
        """int64 (entries,), on the device: the row of every entry."""
        far = self.far
        numbers = torch.arange(far.num_rows, device=far.indptr.device)
        return torch.repeat_interleave(numbers, far.indptr.diff(), output_size=far.num_edges)

    def with_last(self, columns: torch.Tensor) -> Adjacency:
        """One more entry at the end of every row, int (rows,) on the device; without edge ids."""
        far = self.far
        numbers = torch.arange(far.num_rows + 1, device=far.indptr.device)
        indptr = far.indptr + numbers
        out = far.indices.new_empty(far.num_edges + far.num_rows)
        out[torch.arange(far.num_edges, device=out.device) + self.rows()] = far.indices
        out[indptr[1:] - 1] = columns.to(out.dtype)
        return FarAdjacency(Adjacency(indptr, out, None, far.num_cols))

    def __getstate__(self) -> dict[str, Any]:
        return {"far": self.far.to(torch.device("cpu")), "num_cols": self.num_cols}


__all__ = ["FarAdjacency"]
