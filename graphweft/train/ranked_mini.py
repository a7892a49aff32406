"""Mini-batches that several ranks train on together.

Comes in: what :class:`MiniBatch` takes, and the ranks. Goes out: the same epochs. Of the batch that one process would
draw, every rank draws what its slices of the seeds reach, and runs forward and backward on that; gradients are summed
over slices, weighted so that the loss is the mean over the batch. The graph is replicated. Called by the trainer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from graphweft._trace import span
from graphweft.dist.ranks import Ranks, local_size
from graphweft.loader.batch import Batch, make_batch
from graphweft.loader.link import LinkLoader
from graphweft.loader.link_batch import make_link_batch
from graphweft.loader.loader import Loader
from graphweft.nn.module import CompiledModule
from graphweft.nn.stack import Stack
from graphweft.runtime.staged import PreparedBatch
from graphweft.sample.neighbor import NeighborSampler
from graphweft.sample.sampler import Sample
from graphweft.sample.share import BatchParts, subgraph_part
from graphweft.train.edge_data import EdgeData
from graphweft.train.full_batch import is_plain
from graphweft.train.inference import USUAL_TILE, infer
from graphweft.train.link_task import LinkTask
from graphweft.train.macro import MacroRun
from graphweft.train.mini_batch import MiniBatch
from graphweft.train.node_batches import NodeBatches
from graphweft.train.ranked_gradients import GradientRows, check_model, conflict
from graphweft.train.row_probe import check_rows_apart
from graphweft.train.setup import Setup

_LEAST_TILES = 8  # of an evaluation, so that the work of small graphs is shared, too
_STRIDE = 0x9E3779B97F4A7C15  # between the keys of slices


@dataclass(frozen=True)
class Piece:
    """A slice of a batch, ready for the model.

    Attributes:
        index: Which slice.
        share: Its terms of the mean loss over all of the batch's.
    """

    index: int
    share: float
    batch: Any


@dataclass(frozen=True)
class SharedBatch:
    """What a rank has of a batch: the ids of all seeds, and its own slices; those without a seed are left out."""

    seeds: Tensor
    pieces: tuple[Piece, ...]
    node_norm: None = None

    @property
    def batch_size(self) -> int:
        """Seeds on all ranks."""
        return self.seeds.numel()


def takes_blocks(model: nn.Module) -> bool:
    """Whether a model reads one graph a layer."""
    return isinstance(model, CompiledModule) or bool(getattr(model, "takes_blocks", False))


class SharedBatches(NodeBatches):
    """Batches whose seeds are those of one process, each rank making its own slices."""

    ranks: Ranks
    owner: RankedMiniBatch

    def make(self, places: Tensor, epoch: int) -> Any:
        """The slices of the seeds at ``places`` that belong to this rank."""
        drawing = _Drawing(self, self.seeds[places], epoch)
        pieces = []
        target, y = self.owner.target, self.owner.ds.y
        whole = target.weight(y[self.seeds[places]])
        for index in self.ranks.own_slices:
            first, last = self.ranks.bounds(places.numel(), index)
            if first < last:
                share = target.weight(y[self.seeds[places[first:last]]]) / max(whole, 1)
                pieces.append(Piece(index, share, drawing.piece(places, first, last)))
        return SharedBatch(self.seeds[places], tuple(pieces))


class _Drawing:
    """What the slices of a batch share: its seeds and draws."""

    def __init__(self, loader: SharedBatches, seeds: Tensor, epoch: int) -> None:
        assert isinstance(loader.sampler, NeighborSampler)  # as was checked
        self._loader, self._sampler, self._seeds, self._epoch = loader, loader.sampler, seeds, epoch

    def piece(self, places: Tensor, first: int, last: int) -> Batch | PreparedBatch:
        """Seeds ``first`` to ``last`` of the batch at ``places``, as the model takes them."""
        loader, seeds = self._loader, self._seeds[first:last]
        if loader.plan is not None:
            return loader.plan.prepare(seeds, (loader.seed, self._epoch), self._draw)
        if takes_blocks(loader.owner.model):
            part = self._parts.sample(seeds)
        else:
            part = subgraph_part(self._whole, torch.arange(first, last))
        return make_batch(part, loader.data, places[first:last])

    def _draw(self, _: NeighborSampler, seeds: Tensor, key: tuple[int, int, int], is_open: bool) -> Any:
        """In place of the sampler of a plan."""
        return self._parts.sample_open(seeds) if is_open else self._parts.sample(seeds)

    @cached_property
    def _parts(self) -> BatchParts:
        return BatchParts(self._sampler, self._seeds, (self._loader.seed, self._epoch, 0))

    @cached_property
    def _whole(self) -> Sample:
        return self._sampler.sample(self._seeds, seed=self._loader.seed, epoch=self._epoch)


class OverRanks(MiniBatch):
    """Steps whose batches are :class:`SharedBatch`, on all ranks together."""

    bytes_of_epoch = 0

    def __init__(self, setup: Setup) -> None:
        assert setup.ranks is not None  # by which the kind was chosen
        self.ranks = setup.ranks
        check_model(self.ranks, setup.model)
        super().__init__(setup)

    def use(self, edge_data: EdgeData) -> None:
        """As one process. Raises: ConfigError for a model whose rows depend on who else is in a batch."""
        super().use(edge_data)
        if not is_plain(self.model):
            check_rows_apart(self.ranks, self.model, self.x, edge_data)

    def identity(self) -> dict[str, Any]:
        """What decides the numbers."""
        ranks = self.ranks
        ordered = {"rank_reduce": "ordered", "slices": ranks.slices} if ranks.reduce == "ordered" else {}
        return {**super().identity(), **ordered}

    def step(self) -> Tensor:
        """As one process; bytes sent are counted."""
        before = self.ranks.bytes_sent
        loss = super().step()
        self.bytes_of_epoch = self.ranks.bytes_sent - before
        return loss

    def _train_on(self, batch: Any) -> Tensor:
        """One step of all ranks; the loss before it, shape ()."""
        self.ranks.at(f"epoch {self.loader.epoch + 1}, batch {self.batches_done}: forward and backward")
        self.model.train()
        base = int(torch.randint(2**62, ()))  # the same on every rank
        rows = self._layout.rows(len(self.ranks.own_slices))
        kept = [parameter.grad for parameter in self._layout.parameters]
        for piece in batch.pieces:
            for parameter in self._layout.parameters:
                parameter.grad = None
            torch.default_generator.manual_seed((base + piece.index * _STRIDE) & (2**63 - 1))
            loss = float(self._gradients(piece.batch))
            self._layout.write(rows[piece.index - self.ranks.own_slices.start], piece.share, loss)
        self.ranks.at(f"epoch {self.loader.epoch + 1}, batch {self.batches_done}: sum of gradients")
        total = self.ranks.sum_slices(rows)
        weight = batch.batch_size if self._accumulate > 1 else 1
        self._layout.put(total, weight, kept if self._pending else None)
        with span("update", "update"):
            self._update(batch.batch_size)
        return total[-1]

    @cached_property
    def _layout(self) -> GradientRows:
        return GradientRows(self.model)

    def logits(self) -> Tensor:
        """As one process, rows of every layer split over ranks where the model is a stack of layers."""
        self.ranks.at(f"epoch {self.loader.epoch + 1}: evaluation")
        if not isinstance(self.model, Stack):
            return super().logits()
        tiles = max(_LEAST_TILES, self.ranks.slices)
        tile = min(USUAL_TILE, max(1, -(-self.ds.num_nodes // tiles)))
        return infer(self.model, self.ds.graph, self.x, tile, edges=self.edge_data.inputs, ranks=self.ranks)


class RankedMiniBatch(OverRanks):
    """Mini-batches over ranks.

    Raises: ConfigError for what cannot be shared yet.
    """

    def _load(self) -> tuple[Loader | LinkLoader, MacroRun | None]:
        batch_size, seed = self.drawn.batch_size, self.seed
        if self.drawn.macro is not None:
            raise conflict(self.ranks, "macro", "no macro-batches")
        if self.drawn.prepare != "whole":
            raise conflict(self.ranks, f"prepare={self.drawn.prepare}", "prepare='whole'")
        if not isinstance(self.sampler, NeighborSampler):
            raise conflict(self.ranks, f"sampler={type(self.sampler).__name__}", "sampler='neighbor'")
        seeds = torch.unique(self.rows["train"], sorted=True)
        loader = SharedBatches(self._tables, seeds, None, batch_size, True, seed, sampler=self.sampler)
        loader.ranks, loader.owner = self.ranks, self
        loader.share_cores(local_size())
        if is_plain(self.model):
            loader.split_cores()
        return loader, None


class SharedLinks(LinkLoader):
    """Batches of edges that are those of one process, each rank making its own slices."""

    ranks: Ranks
    takes_blocks = True

    def make(self, places: Tensor, epoch: int) -> Any:
        """The slices of the edges at ``places`` that belong to this rank."""
        src, dst = self.src[places], self.dst[places]
        negative_src, negative_dst = self._draw(src, places, epoch)
        every, rows = torch.unique(torch.cat([src, negative_src, dst, negative_dst]), return_inverse=True)
        ends, pieces = rows.view(2, 2, places.numel()), []  # sources and destinations, of edges and of negatives
        assert isinstance(self.sampler, NeighborSampler)  # the only one of this task
        key, left = (self.seed, epoch, 0), self._left(src, dst)
        if self.takes_blocks:
            parts = BatchParts(self.sampler, every, key, left)
        else:
            whole = self.sampler.sample(every, seed=self.seed, epoch=epoch, exclude=left)
        for index in self.ranks.own_slices:
            first, last = self.ranks.bounds(places.numel(), index)
            if first < last:
                own, here = ends[:, :, first:last].flatten(1), slice(first, last)
                seeds, numbers = torch.unique(own, return_inverse=True)
                part = parts.sample(every[seeds]) if self.takes_blocks else subgraph_part(whole, seeds)
                batch = make_link_batch(part, self.data, places[here], None)
                self._label(batch, numbers[0], numbers[1], (src[here], dst[here]), places[here])
                pieces.append(Piece(index, (last - first) / places.numel(), batch))
        return SharedBatch(places, tuple(pieces))


class RankedLinkTask(OverRanks, LinkTask):
    """Link prediction over ranks."""

    def _loader(self, batch_size: int, seed: int, made: type[LinkLoader] = SharedLinks) -> LinkLoader:
        loader = super()._loader(batch_size, seed, made)
        assert isinstance(loader, SharedLinks)  # as it was asked for
        loader.ranks, loader.takes_blocks = self.ranks, takes_blocks(self.model)
        loader.share_cores(local_size())
        return loader
