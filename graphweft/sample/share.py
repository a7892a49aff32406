"""The part of a batch that some of its seeds reach.

Comes in: a sampler and the seeds of a whole batch, or its sample. Goes out: the sample that computes the rows of some
of these seeds from exactly the edges that the whole batch draws. Called where a batch is shared by ranks. A node draws
in the hop that first reaches it, which depends on all seeds of a batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphweft.graph.hops import mark
from graphweft.sample.neighbor import Ends, NeighborSampler
from graphweft.sample.sampler import OpenSample, Sample
from graphweft.sample.steps import SteppedDraw


class BatchParts:
    """A batch whose parts are drawn one by one, each without the rest of the batch.

    A part draws a node as the whole batch does once it is known which hop of the batch first reaches the node. The last
    hop that draws asks for the hops before it, so all but two are drawn for the whole batch: of two layers none.

    Args:
        sampler: Draws.
        seeds: Distinct node ids of the whole batch, int64.
        key: (seed, epoch, stage) of the draws.
        exclude: As :meth:`NeighborSampler.sample`, for the whole batch.

    Raises: IndexRangeError, ConfigError, as :meth:`NeighborSampler.sample`.

    Example:
        >>> from graphweft.graph.graph import Graph
        >>> sampler = NeighborSampler(Graph([1, 2, 3, 0], [0, 1, 2, 3]), [1, 1])
        >>> part = BatchParts(sampler, torch.tensor([0, 2])).sample(torch.tensor([2]))
        >>> part.n_id.tolist(), [block.num_edges for block in part.blocks]
        ([2, 3, 0], [2, 1])
    """

    def __init__(
        self,
        sampler: NeighborSampler,
        seeds: Tensor,
        key: tuple[int, int, int] = (0, 0, 0),
        exclude: Ends | None = None,
    ) -> None:
        self._sampler, self._key, self._exclude = sampler, key, exclude
        hops = len(sampler.fanouts)
        self._reached = [seeds] if hops > 1 else []  # by hop, all but the last two
        if hops > 2:
            with SteppedDraw(sampler, seeds, key, exclude=exclude) as whole:
                for hop in range(hops - 2):
                    whole.draw(hop, 0)
                    self._reached.append(whole.number(hop))

    def sample(self, seeds: Tensor) -> Sample:
        """The part of some seeds, numbered as any batch: these seeds, then what each hop adds, by ascending id."""
        drawn = self._sampler.draw_batch(seeds, self._key, False, self._exclude, self._reached)
        assert isinstance(drawn, Sample)  # as was asked for
        return drawn

    def sample_open(self, seeds: Tensor) -> OpenSample:
        """As :meth:`sample`, the last hop left open as :meth:`NeighborSampler.sample_open` does."""
        drawn = self._sampler.draw_batch(seeds, self._key, True, self._exclude, self._reached)
        assert isinstance(drawn, OpenSample)  # as was asked for
        return drawn


def subgraph_part(sample: Sample, seeds: Tensor) -> Sample:
    """The part of some seeds, int64 numbers in the batch, for a model that sees the batch as one graph.

    It has all from which drawn edges lead to these seeds. However deep the model is, and whatever it makes of
    in-degrees, rows of these seeds are those of the whole batch.
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
