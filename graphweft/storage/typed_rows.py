"""Sparse rows of a typed graph that stay dense: columns are those of :class:`FlatRows`, numbers lie in a table.

Comes in: nodes, and where their dense rows lie. Goes out: :class:`UncompressedRows`, features whose products run on the
dense rows, a piece at a time. Compressed rows, which take twice the bytes, are made only where something else than a
product asks for them. Called for batches from a store.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from graphweft import _native
from graphweft._memory import empty
from graphweft._native import declare
from graphweft._torch_private import wrapper_subclass
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.ids import Ids
from graphweft.graph.select import as_selection
from graphweft.storage.feature import SparseFeatures
from graphweft.storage.flat_rows import FlatRows

_count = declare("gw_flat_count")


class Piece(NamedTuple):
    """Dense rows of some nodes.

    Attributes:
        first: The first node, by its place among those that were asked for.
        table: float32 (rows, F), narrower rows end in zeros.
        place: int64 row of each node; anything for a node without features.
    """

    first: int
    table: Tensor
    place: Tensor


class RowSource(Protocol):
    """Where dense rows are."""

    def pieces(self, nodes: Tensor) -> Iterator[Piece]:
        """Rows of all ``nodes``, in order; a piece is as it is until the next one is asked for."""
        ...

    def entries(self, nodes: Tensor) -> Tensor | None:
        """int64 numbers of other values than zero of each row; None where nobody has counted them."""
        ...


class TableSource:
    """Rows in memory: that of node i is ``table[place[i]]``."""

    def __init__(self, table: Tensor, place: Tensor) -> None:
        self._table, self._place = table, place

    def pieces(self, nodes: Tensor) -> Iterator[Piece]:
        """All at once."""
        yield Piece(0, self._table, self._place[nodes].long())

    def entries(self, nodes: Tensor) -> Tensor | None:
        """Rows are counted by whoever multiplies them."""
        return None


class Entries(NamedTuple):
    """Of the compressed rows, and of the compressed columns: offsets, or numbers of entries after a zero."""

    rows: Tensor
    columns: Tensor


class UncompressedRows(SparseFeatures):
    """Rows ``flat.rows(ids, own)`` of nodes whose dense rows ``own`` come from a source.

    The source has to be as it is as long as this is read.

    Example:
        >>> flat = FlatRows((0, 2, 4), (0, 3))
        >>> table = torch.tensor([[5.0, 0.0, 6.0]])
        >>> UncompressedRows.of(flat, torch.tensor([1, 3]), TableSource(table, torch.zeros(4))).to_dense().tolist()
        [[0.0, 1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 5.0, 0.0, 6.0]]
    """

    flat: FlatRows
    ids: Tensor
    source: RowSource
    _counts: Entries | None  # entries of each row and column, after a zero

    @classmethod
    def of(cls, flat: FlatRows, ids: Tensor, source: RowSource) -> Self:
        """Rows of nodes, int64 (n,)."""
        found: Self = wrapper_subclass(cls, (ids.numel(), flat.width), dtype=torch.float32)
        found.flat, found.ids, found.source, found._counts = flat, ids, source, None
        return found

    @classmethod
    def _over(cls, adjacency: Adjacency, values: Tensor) -> Any:
        """What is made of them is compressed."""
        return SparseFeatures._over(adjacency, values)

    def pieces(self) -> Iterator[tuple[int, _native.FlatRows, tuple[Tensor, ...]]]:
        """The first node of each piece, what a kernel reads of it, and what holds that in memory.

        The first time entries are counted as they come, since reading them again may take long.
        """
        types, counts = self.flat.types(self.ids), None if self._counts is not None else self._zeros()
        for first, table, place in self.source.pieces(self.ids):
            of = types[first : first + len(place)]
            end = torch.cat(
                [of.diff().nonzero().reshape(-1) + 1, torch.tensor([len(of)] if len(of) else [], dtype=torch.int64)]
            )
            run = of[end - 1]
            width, start = self.flat.widths[run], self.flat.starts[run]
            alone = (self.flat.widths == 0)[of]
            if bool(alone.any()):
                place = torch.where(alone, self.flat.columns(self.ids[first : first + len(place)], of), place)
            held = (place.contiguous(), table, end, start, width)
            sizes = (held[0].data_ptr(), table.data_ptr(), table.shape[0], table.stride(0) if len(table) else 0)
            ends = (len(end), end.data_ptr(), start.data_ptr(), width.data_ptr())
            native = _native.FlatRows(len(place), *sizes, *ends)
            if counts is not None:
                _count(native, self.width, counts.rows[first + 1 :].data_ptr(), counts.columns[1:].data_ptr())
            yield first, native, held
        self._counts = self._counts or counts

    def _zeros(self) -> Entries:
        return Entries(*(torch.zeros(size + 1, dtype=torch.int64) for size in (self.num_rows, self.width)))

    @cached_property
    def entries(self) -> Entries:
        """Where compressed rows and columns begin, from the numbers of their entries."""
        if self._counts is None:
            for _ in self.pieces():
                pass
        assert self._counts is not None  # once all pieces were there
        return Entries(*(counts.cumsum(0) for counts in self._counts))

    @cached_property
    def row_offsets(self) -> Tensor:
        """Where compressed rows begin; of a source that knows its numbers of entries nothing is read for them."""
        types = self.flat.types(self.ids)
        stored = (self.flat.widths > 0)[types]
        known = None if self._counts is not None else self.source.entries(self.ids[stored])
        if known is None:
            return self.entries.rows
        counts = torch.ones(self.num_rows + 1, dtype=torch.int64)
        counts[0], counts[1:][stored] = 0, known
        return counts.cumsum_(0)

    @cached_property
    def _whole(self) -> SparseFeatures:
        """Compressed rows."""
        stored = self.ids[self.flat.is_stored(self.ids)]
        own = empty((stored.numel(), self.flat.stored_width), torch.float32)
        for first, table, place in self.source.pieces(stored):
            torch.index_select(table, 0, place, out=own[first : first + len(place)])
        return self.flat.rows(self.ids, own)

    @property
    def _adjacency(self) -> Adjacency:  # type: ignore[override]
        return self._whole.adjacency

    @property
    def _numbers(self) -> Tensor:  # type: ignore[override]
        return self._whole.values

    @property
    def shape(self) -> tuple[int, int]:  # type: ignore[override]
        """(n, F)."""
        size = torch.Size((self.ids.numel(), self.flat.width))
        return size  # type: ignore[return-value]  # a tuple of two

    @property
    def num_rows(self) -> int:
        """N."""
        return self.ids.numel()

    @property
    def width(self) -> int:
        """F."""
        return self.flat.width

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        """float32."""
        return torch.float32

    @property
    def nnz(self) -> int:
        """Number of non-zero values."""
        return int(self.row_offsets[-1])

    def take_rows(self, rows: Ids) -> SparseFeatures:
        """Rows ``rows[i]`` one after the other, from the same source."""
        ids = as_selection("SparseFeatures.take_rows", "row", rows, self.num_rows)
        return UncompressedRows.of(self.flat, self.ids[ids], self.source)

    def alias(self) -> SparseFeatures:
        """The same rows, with nothing kept beside them yet."""
        return UncompressedRows.of(self.flat, self.ids, self.source)


__all__ = ["Piece", "RowSource", "TableSource", "UncompressedRows"]
