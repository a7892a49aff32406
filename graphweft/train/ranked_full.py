"""Full batches over ranks: every rank computes the rows of its part and borrows the others' layer by layer.

Comes in: what :class:`FullBatch` takes, and the ranks. Goes out: the same losses and scores. Rows of ghosts are fetched
before every layer but the first, whose features are at hand; their gradients travel back; gradients of weights are
summed. Called by the trainer.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from graphweft._errors import ConfigError, MissingPackageError
from graphweft._trace import span
from graphweft.data.dataset import Part
from graphweft.dist.halo import over_ranks
from graphweft.dist.local_part import LocalPart
from graphweft.dist.ranks import Ranks
from graphweft.graph.block import Block
from graphweft.graph.graph import Graph
from graphweft.nn.stack import Stack
from graphweft.nn.typed_stack import TypedStack
from graphweft.partitioning.partition import partition
from graphweft.storage.gather import gather_rows
from graphweft.train.full_batch import FullBatch
from graphweft.train.ranked_gradients import LayerSums, check_model

_STRIDE = 0x9E3779B97F4A7C15  # between the keys of ranks


class RankedFullBatch(FullBatch):
    """Full batches over ranks; arguments as :class:`FullBatch`, and the ranks first.

    Raises: ConfigError for a model that is no stack of layers over one set of nodes.
    """

    def __init__(self, ranks: Ranks, model: nn.Module, ds: Any, *arguments: Any, **options: Any) -> None:
        self.ranks = ranks
        check_model(ranks, model)
        if not isinstance(model, Stack) or isinstance(model, TypedStack):
            raise ConfigError(
                f"mode=full cannot be combined with ranks={ranks.size} for {type(model).__name__}, which is no stack "
                "of layers over one set of nodes; use mode='mini' or one rank"
            )
        ranks.at("partitioning")
        owner = owners(ranks, ds.graph)
        self.part = LocalPart(ranks, ds.graph, owner)
        self._ids = torch.argsort(owner, stable=True)  # ids of all nodes, rank by rank
        ends = [0, *torch.bincount(owner, minlength=ranks.size).cumsum(0).tolist()]
        self._cuts = list(itertools.pairwise(ends))
        self._place = torch.full((ds.num_nodes,), -1)
        self._place[self.part.own] = torch.arange(self.part.own.numel())
        self.bytes_of_epoch, self.ghosts, self._epoch = 0, self.part.ghosts.numel(), 0
        super().__init__(model, ds, *arguments, **options)
        self._sums = LayerSums(ranks, _by_layer(model))
        self._stack = model

    def _take(self, rows: dict[Part, Tensor]) -> None:
        super()._take(rows)
        self._wanted = None
        places = self._place[rows["train"]]
        self._mine = rows["train"][places >= 0]
        self._places = places[places >= 0]

    def prepare(self) -> None:
        """Layers are compiled when they first run."""

    def step(self) -> Tensor:
        """As one process; bytes sent are counted."""
        before = self.ranks.bytes_sent
        loss = super().step()
        self.bytes_of_epoch = self.ranks.bytes_sent - before
        return loss

    def _gradients(self) -> Tensor:
        self._epoch += 1
        self.ranks.at(f"full batch {self._epoch}: forward and backward")
        self.model.train()
        base = int(torch.randint(2**62, ()))
        torch.default_generator.manual_seed((base + self.ranks.rank * _STRIDE) & (2**63 - 1))
        with span("forward", "forward"):
            logits = self._own_logits()
        gradient, loss = torch.zeros_like(logits), 0.0
        if self._mine.numel():
            labels = self.ds.y[self._mine]
            with span("loss", "loss"):
                found, by_row = self.target.loss(logits.detach()[self._places], labels)
            share = self.target.weight(labels) / max(self.target.weight(self.labels["train"]), 1)
            gradient.index_add_(0, self._places, by_row * share)  # before it travels to other ranks
            loss = float(found) * share
        with span("backward", "backward"), self._sums.during_backward():
            logits.backward(gradient)  # type: ignore[no-untyped-call]
        self.ranks.at(f"full batch {self._epoch}: sum of losses")
        total = torch.tensor([loss])
        self.ranks.add_up(total)
        return total[0]

    def _own_logits(self) -> Tensor:
        """Logits of this rank's nodes."""
        rows = self._stack.run_layer(0, self.part.block, gather_rows(self.x, self.part.n_id), self.edge_data.inputs)
        for index in range(1, len(self._stack.layers)):
            rows = over_ranks(self.part, rows.contiguous(), functools.partial(self._layer, index))
        return rows

    def _layer(self, index: int, block: Block, rows: Tensor) -> Tensor:
        return self._stack.run_layer(index, block, rows, self.edge_data.inputs)

    def logits(self) -> Tensor:
        """Logits of all nodes in evaluation mode, each rank computing those of its own."""
        self.ranks.at(f"full batch {self._epoch}: evaluation")
        self.model.eval()
        with torch.no_grad():
            own = self._own_logits()
            table = own.new_empty(self.ds.num_nodes, own.shape[1])
            table[slice(*self._cuts[self.ranks.rank])] = own[torch.argsort(self.part.own)]
            self.ranks.gather_rows(table, self._cuts)
            logits = torch.empty_like(table)
            logits[self._ids] = table
        return logits


def _by_layer(model: Stack) -> list[list[nn.Parameter]]:
    """Parameters of each layer with what follows it, then all others."""
    found: list[list[nn.Parameter]] = []
    known: set[nn.Parameter] = set()
    groups = [(layer, *model.norms[index : index + 1]) for index, layer in enumerate(model.layers)]
    for modules in (*groups, (model,)):
        own = [p for module in modules for p in module.parameters() if p not in known]
        known |= set(own)
        found += [own] if own else []
    return found


def owners(ranks: Ranks, graph: Graph) -> Tensor:
    """int64 (num_nodes,): the rank of every node, as rank 0 partitions the graph: by METIS where it is installed."""

    def make() -> bytes:
        try:
            made = partition(graph, ranks.size, "metis")
        except MissingPackageError:
            made = partition(graph, ranks.size, "gap")
        return made.part.numpy().astype(np.int32).tobytes()

    data = ranks.from_first(make)
    return torch.frombuffer(bytearray(data or b"\0\0\0\0"), dtype=torch.int32)[: graph.num_nodes].long()
