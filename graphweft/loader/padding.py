"""Batches of one shape: rows and edges padded up to bounds that a first epoch showed.

Comes in: a loader whose batches have blocks. Goes out: the same batches in buffers that keep addresses and shapes, as a
step that is captured once and replayed needs them; a batch beyond the bounds comes as it is, and is counted. Padding
rows have no edges: sums over edges spend nothing on them, and no row of the batch reads one. A step that is not
captured runs on the same buffers cut to the batch, where padding costs nothing at all. Called by loops.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from graphweft._errors import ConfigError
from graphweft._memory import empty
from graphweft.graph.block import Block, DrawnEdges
from graphweft.loader.batch import Batch
from graphweft.runtime.padded import Bounds
from graphweft.storage.feature import is_dense

_ACROSS_ROWS = (nn.BatchNorm1d, nn.SyncBatchNorm)


def sizes_of(batch: Batch) -> Bounds:
    """The sizes of a batch. Raises: ConfigError for one without blocks."""
    blocks = batch.blocks
    if not blocks:
        raise ConfigError("Padding: expected batches with blocks, got those of one graph for all layers")
    inner = tuple(reversed(blocks))
    return Bounds((batch.batch_size, *(block.num_src for block in inner)), tuple(block.num_edges for block in inner))


@dataclass(frozen=True)
class PaddedBatch:
    """A batch in the padding's buffers, which the next one overwrites.

    A step on ``blocks`` and ``x`` gives the rows of the batch what one without padding does, up to rounding where a
    kernel cuts its work by the number of rows; a step on :meth:`cut` has its bits.

    Attributes:
        rows: Seeds, whose outputs count, then nodes of all hops up to the first, the second and so on.
        blocks: One a layer, the farthest from the seeds first.
        x: Rows of the features, (bound, F).
        n_id: int64 (bound,) ids of the nodes, 0 in the padding.
        y: Labels of the seeds; None without.
    """

    rows: tuple[int, ...]
    blocks: tuple[Block, ...]
    x: Tensor
    n_id: Tensor
    y: Tensor | None

    @property
    def batch_size(self) -> int:
        """Number of seeds."""
        return self.rows[0]

    @property
    def num_nodes(self) -> int:
        """Number of nodes; rows of ``x`` and ``n_id`` beyond are padding."""
        return self.rows[-1]

    def cut(self) -> tuple[tuple[Block, ...], Tensor]:
        """Blocks and rows of features without the padding, over the same buffers."""
        ends = self.rows[::-1]
        blocks = (_cut(block, rows, cols) for block, cols, rows in zip(self.blocks, ends, ends[1:], strict=False))
        return tuple(blocks), self.x[: self.num_nodes]


class Padding:
    """Pads the batches of a loader from its second epoch on.

    Args:
        model: What will run on the batches.
        slack: Share by which bounds are larger than what the first epoch needed.

    Attributes:
        bounds: After the first epoch.
        padded: Batches that were padded.
        fallbacks: Batches that were beyond the bounds.

    Raises: ConfigError for a model that normalises over the rows of a batch, which padding would be part of.

    Example:
        >>> from graphweft.data.dataset import Dataset
        >>> from graphweft.graph.graph import Graph
        >>> from graphweft.loader.loader import Loader
        >>> graph, every = Graph([1, 2, 3, 0], [0, 0, 1, 2]), torch.arange(4)
        >>> ds = Dataset("four", graph, torch.eye(4), torch.tensor([0, 0, 1, 1]), every[:3], every[3:], every[:0], 2)
        >>> loader, padding = Loader(ds, fanouts=[2], batch_size=2), Padding(nn.Identity())
        >>> for epoch in range(2):
        ...     sizes = [tuple(batch.x.shape) for batch in padding(loader)]
        >>> sizes, padding.padded, padding.fallbacks
        ([(4, 4), (4, 4)], 2, 0)
    """

    def __init__(self, model: nn.Module, slack: float = 0.0) -> None:
        for name, module in model.named_modules():
            if isinstance(module, _ACROSS_ROWS):
                raise ConfigError(f"Padding: {name} of {type(model).__name__} cannot be combined with padding rows")
        if not (math.isfinite(slack) and slack >= 0):
            raise ConfigError(f"slack: expected a share >= 0, got {slack!r}")
        self.slack, self.padded, self.fallbacks = slack, 0, 0
        self.bounds: Bounds | None = None
        self._room: _Room | None = None

    def __call__(self, loader: Iterable[Batch]) -> Iterator[Batch | PaddedBatch]:
        """An epoch: the first one as it comes, later ones padded."""
        if self.bounds is not None:
            for batch in loader:
                yield self.pad(batch)
            return
        seen: Bounds | None = None
        for batch in loader:
            sizes = sizes_of(batch)
            seen = sizes if seen is None else seen.joined(sizes)
            yield batch
        if seen is not None:
            self.bounds = seen.widened(self.slack)

    def pad(self, batch: Batch) -> Batch | PaddedBatch:
        """The batch in the buffers; itself where it is beyond the bounds, or there are none yet."""
        if self.bounds is None or not self.bounds.holds(sizes_of(batch)):
            self.fallbacks += self.bounds is not None
            return batch
        if batch.x is None or not is_dense(batch.x):
            raise ConfigError("Padding: expected dense features, got none or sparse ones")
        if self._room is None:
            self._room = _Room(self.bounds, batch)
        self.padded += 1
        return self._room.filled(batch)

    def report(self) -> str:
        """One line: how many batches were padded, and the bounds.

        Example:
            >>> Padding(nn.Identity()).report()
            '0 batches padded, 0 beyond the bounds; no bounds yet'
        """
        bounds = "no bounds yet" if self.bounds is None else f"rows {self.bounds.rows}, edges {self.bounds.edges}"
        return f"{self.padded} batches padded, {self.fallbacks} beyond the bounds; {bounds}"


class _Room:
    """Buffers of one shape, which batches are written into one after the other."""

    def __init__(self, bounds: Bounds, batch: Batch) -> None:
        self._bounds = bounds
        nodes = bounds.rows[-1]
        self._x = empty((nodes, *batch.x.shape[1:]), batch.x.dtype).zero_()
        self._n_id = torch.zeros(nodes, dtype=torch.int64)
        self._nodes = 0  # rows of the last batch; those beyond are zero
        inner = list(reversed(batch.blocks))
        self._indptr = [torch.zeros(rows + 1, dtype=torch.int64) for rows in bounds.rows[:-1]]
        self._entries = [
            (empty((count,), block.drawn.indices.dtype), empty((count,), block.drawn.offsets.dtype))
            for count, block in zip(bounds.edges, inner, strict=True)
        ]

    def filled(self, batch: Batch) -> PaddedBatch:
        """The buffers with a batch in them."""
        count, x = batch.num_nodes, batch.x
        self._x[:count] = x
        self._x[count : self._nodes] = 0  # what is left of another batch may not be finite
        self._n_id[:count] = batch.n_id
        self._n_id[count:] = 0
        self._nodes = count
        inner = [self._block(hop, block) for hop, block in enumerate(reversed(batch.blocks))]
        labels = None if batch.y is None else batch.y[: batch.batch_size]
        return PaddedBatch(sizes_of(batch).rows, tuple(reversed(inner)), self._x, self._n_id, labels)

    def _block(self, hop: int, block: Block) -> Block:
        """A hop's block: its rows, then rows without edges; entries are as many as it has, of a buffer for the most."""
        drawn, indptr = block.drawn, self._indptr[hop]
        rows, first = block.num_dst, drawn.start
        indptr[: rows + 1] = drawn.indptr[drawn.first :] - first
        indptr[rows + 1 :] = indptr[rows]
        indices, offsets = (buffer[: block.num_edges] for buffer in self._entries[hop])
        indices[:] = drawn.indices[first:]
        offsets[:] = drawn.offsets[first:]
        columns = self._bounds.rows[hop + 1]
        padded = DrawnEdges(drawn.graph, self._n_id[:columns], indptr, indices, offsets)
        return Block.of(padded, columns, block.edge_norm)


def _cut(block: Block, rows: int, columns: int) -> Block:
    """The first rows of a padded block, with the first of its columns; the others have no entries."""
    drawn = block.drawn
    real = DrawnEdges(drawn.graph, drawn.n_id[:columns], drawn.indptr[: rows + 1], drawn.indices, drawn.offsets)
    return Block.of(real, columns, block.edge_norm)


__all__ = ["Bounds", "PaddedBatch", "Padding", "sizes_of"]
