"""The part of a batch that some of its seeds reach.

Comes in: the sample of a whole batch. Goes out: the sample that computes the rows of seeds ``first`` to ``last`` from
exactly the edges that the whole batch drew. Called where a batch is shared by ranks. A node draws in the hop that first
reaches it, which depends on all seeds of a batch, so every rank draws the batch and keeps its own part.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphweft.graph.block import Block, DrawnEdges, OpenBlock
from graphweft.graph.hops import mark
from graphweft.sample.sampler import OpenSample, Sample


def share_of(sample: Sample | OpenSample, first: int, last: int) -> Sample | OpenSample:
    """The seeds from ``first`` up to ``last``, and of every block the rows that they need.

    Nodes are numbered as in any batch: these seeds, then what each hop adds, by ascending id. An open block stays open.
    ``edge_index`` of the result has the edges of the blocks' rows, those of the whole batch.

    Example:
        >>> from graphweft.graph.graph import Graph
        >>> from graphweft.sample.neighbor import NeighborSampler
        >>> whole = NeighborSampler(Graph([1, 2, 3, 0], [0, 1, 2, 3]), [1, 1]).sample([0, 2])
        >>> part = share_of(whole, 1, 2)
        >>> part.n_id.tolist(), [block.num_edges for block in part.blocks]
        ([2, 3, 0], [2, 1])
    """
    return part_of(sample, torch.arange(first, last))


def part_of(sample: Sample | OpenSample, seeds: Tensor) -> Sample | OpenSample:
    """As :func:`share_of`, of any of the seeds: int64 (n,) numbers in the batch, each once."""
    numbers = _Numbers(sample.n_id, seeds)
    made: list[tuple[Tensor, Tensor, Tensor | None, int]] = []
    for block in reversed(sample.blocks):
        if isinstance(block, OpenBlock):
            indptr, places = _rows(block.csc.indptr, numbers.kept)
            made.append((indptr, block.csc.indices[places], None, 0))
            continue
        drawn = block.drawn
        indptr, places = _rows(drawn.indptr, numbers.kept)
        indices = numbers.of(drawn.indices[places])
        made.append((indptr, indices, drawn.offsets[places], numbers.kept.numel()))
    n_id, graph = sample.n_id[numbers.kept], sample.blocks[-1].source
    blocks: list[Block | OpenBlock] = []
    for indptr, indices, offsets, sources in made:
        if offsets is None:
            blocks.append(OpenBlock.over(graph, n_id, indptr, indices))
        else:
            blocks.append(Block.of(DrawnEdges(graph, n_id, indptr, indices, offsets), sources))
    if isinstance(sample, OpenSample):
        return OpenSample(n_id, seeds.numel(), tuple(reversed(blocks)))
    widest = blocks[-1]
    assert isinstance(widest, Block)  # only an open sample has open blocks
    closed = tuple(block for block in reversed(blocks) if isinstance(block, Block))
    return Sample(n_id, seeds.numel(), closed, (widest.drawn,))


def subgraph_part(sample: Sample, seeds: Tensor) -> Sample:
    """As :func:`part_of` for a model that sees the batch as one graph: all from which drawn edges lead to the seeds.

    However deep the model is, and whatever it makes of in-degrees, rows of these seeds are those of the whole batch.
    """
    (src, dst), e_id = sample.edge_index, sample.e_id
    counts = torch.bincount(dst, minlength=sample.num_nodes)
    by_dst = torch.argsort(dst, stable=True)
    indptr = torch.zeros(sample.num_nodes + 1, dtype=torch.int64)
    torch.cumsum(counts, 0, out=indptr[1:])
    numbers, done = _Numbers(sample.n_id, seeds), 0
    entries: list[Tensor] = []
    while done < numbers.kept.numel():
        _, places = _rows(indptr, numbers.kept[done:])
        done = numbers.kept.numel()
        entries.append(by_dst[places])
        numbers.of(src[entries[-1]])
    edges = torch.cat(entries)
    return GivenEdges(
        sample.n_id[numbers.kept], seeds.numel(), numbers.of(src[edges]), numbers.of(dst[edges]), e_id[edges]
    )


class GivenEdges(Sample):
    """A batch without blocks whose edges are given."""

    def __init__(self, n_id: Tensor, batch_size: int, src: Tensor, dst: Tensor, e_id: Tensor) -> None:
        super().__init__(n_id, batch_size, (), ())
        self._edge_index, self._e_id = torch.stack([src.long(), dst.long()]), e_id
        mark(self._edge_index, self._hops(self._edge_index))

    @property
    def num_edges(self) -> int:
        """Edges of the batch."""
        return self.e_id.numel()


class _Numbers:
    """Numbers of a part of a batch's nodes: ``kept`` are their numbers in the whole batch, in order."""

    def __init__(self, n_id: Tensor, kept: Tensor) -> None:
        self._n_id, self.kept = n_id, kept
        self._number = torch.full((n_id.numel(),), -1, dtype=torch.int32)
        self._number[kept] = torch.arange(kept.numel(), dtype=torch.int32)

    def of(self, named: Tensor) -> Tensor:
        """int32 numbers of nodes of the whole batch, any of them new."""
        named = named.long()
        new = torch.unique(named[self._number[named] < 0])
        new = new[torch.argsort(self._n_id[new])]
        self._number[new] = torch.arange(self.kept.numel(), self.kept.numel() + new.numel(), dtype=torch.int32)
        self.kept = torch.cat([self.kept, new])
        return self._number[named]


def _rows(indptr: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Offsets of some rows put together, and the places of their entries."""
    counts = indptr[rows + 1] - indptr[rows]
    made = torch.zeros(rows.numel() + 1, dtype=torch.int64)
    torch.cumsum(counts, 0, out=made[1:])
    places = torch.arange(int(made[-1])) + torch.repeat_interleave(indptr[rows] - made[:-1], counts)
    return made, places
