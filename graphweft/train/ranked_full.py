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

from graphweft._errors import ConfigError
from graphweft._trace import span
from graphweft.data.dataset import Part
from graphweft.data.part_dataset import PartDataset
from graphweft.dist.halo import Leftovers, over_ranks
from graphweft.dist.local_part import LocalPart
from graphweft.dist.ranks import Ranks
from graphweft.graph.block import Block
from graphweft.graph.graph import Graph
from graphweft.nn.stack import Stack
from graphweft.nn.typed_stack import TypedStack
from graphweft.partitioning.partition import partition
from graphweft.partitioning.report import Exchange
from graphweft.runtime.constants import Reference, owning
from graphweft.storage.gather import gather_rows
from graphweft.train.full_batch import SPLITS, FullBatch, evaluation
from graphweft.train.metrics import Evaluation
from graphweft.train.ranked_gradients import LayerSums, check_model
from graphweft.train.target import Classes

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
        if model.jumping == "cat":
            raise ConfigError(f"jumping=cat cannot be combined with ranks={ranks.size}; use jumping='last' or one rank")
        ranks.at("partitioning")
        self.part, self._ids = _placed(ranks, model, ds)
        own = self.part.own
        self._place = torch.full((ds.graph.num_nodes,), -1)
        self._place[own] = torch.arange(own.numel())
        self.bytes_of_epoch, self.ghosts, self._epoch = 0, self.part.ghosts.numel(), 0
        self._first: tuple[Reference, Any] | None = None
        self._all_ids: Tensor | None = None
        self._left = [Leftovers() for _ in model.layers]
        super().__init__(model, ds, *arguments, **options)
        self._sums = LayerSums(ranks, by_layer(model))
        self._stack = model

    def _take(self, rows: dict[Part, Tensor]) -> None:
        super()._take(rows)
        self._wanted = None
        train, place = rows["train"], self._place
        once = train.numel() == 0 or int(torch.bincount(train).max()) == 1
        places = place[train]
        self._mine = train[places >= 0]
        self._places = places[places >= 0]
        self._weight = self._total(self.target.weight(self.ds.y[self._mine]))
        # the last layer is computed for training nodes only, where each of them counts once
        self._last = self.part.restricted(train) if self.ranks.agreed(0 if once else 1) == 0 else None
        if self._last is not None:
            at = torch.full((self.ds.graph.num_nodes,), -1)
            at[self._last.targets] = torch.arange(self._last.targets.numel())
            self._places = at[self._mine]

    def _total(self, number: int) -> int:
        """The sum over ranks."""
        return self.ranks.total(number)

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
            logits = self._own_logits(self._last)
        gradient, loss = torch.zeros_like(logits), 0.0
        if self._mine.numel():
            labels = self.ds.y[self._mine]
            with span("loss", "loss"):
                found, by_row = self.target.loss(logits.detach()[self._places], labels)
            share = self.target.weight(labels) / max(self._weight, 1)
            gradient.index_add_(0, self._places, by_row * share)  # before it travels to other ranks
            loss = float(found) * share
        with span("backward", "backward"), self._sums.during_backward():
            logits.backward(gradient)  # type: ignore[no-untyped-call]
        self.ranks.at(f"full batch {self._epoch}: sum of losses")
        total = torch.tensor([loss])
        self.ranks.add_up(total)
        return total[0]

    def _own_logits(self, last: LocalPart | None = None) -> Tensor:
        """Logits of this rank's nodes; of the targets of ``last`` alone where that is given."""
        layers, first = len(self._stack.layers), self._features()
        last = None if layers == 1 else last
        with owning(first):
            rows = self._stack.run_layer(0, self.part.block, first, self.edge_data.inputs)
        for index in range(1, layers):
            part = self.part if last is None or index < layers - 1 else last
            left = self._left[index] if self.model.training and self.ranks.halo == "int8" else None
            rows = over_ranks(part, rows.contiguous(), functools.partial(self._layer, index), left)
        if layers == 1 and last is not None:
            return rows[self._place[last.targets]]
        return rows

    def _features(self) -> Any:
        """Features of own nodes and ghosts, gathered once, so that sums of them are computed once as well."""
        seen = Reference(self.x)
        if self._first is None or self._first[0] != seen:
            here = isinstance(self.ds, PartDataset)  # in this order already
            self._first = seen, self.x if here else gather_rows(self.x, self.part.n_id)
        return self._first[1]

    def _layer(self, index: int, block: Block, rows: Tensor) -> Tensor:
        return self._stack.run_layer(index, block, rows, self.edge_data.inputs)

    def logits(self) -> Tensor:
        """Logits of all nodes in evaluation mode, by id in the whole graph, each rank computing those of its own."""
        own = self._evaluated()
        if self._all_ids is None:
            ids = self.part.own if self._ids is None else self._ids[self.part.own]
            self._all_ids = self._of_all(ids)
        table = self._of_all(own)
        logits = torch.empty_like(table)
        logits[self._all_ids] = table
        return logits

    def _of_all(self, rows: Tensor) -> Tensor:
        """The rows of all ranks, rank by rank."""
        counts = [int(text) for text in self.ranks.texts(str(rows.shape[0]))]
        ends = [0, *itertools.accumulate(counts)]
        cuts = list(itertools.pairwise(ends))
        table = rows.new_empty(ends[-1], *rows.shape[1:])
        table[slice(*cuts[self.ranks.rank])] = rows
        self.ranks.gather_rows(table, cuts)
        return table

    def evaluate(self) -> Evaluation:
        """As one process. Of classes only counts and losses travel, of other labels the rows of the splits."""
        own = self._evaluated()
        y, place = self.ds.y, self._place
        mine = {name: ids[place[ids] >= 0] for name, ids in self.rows.items()}
        if isinstance(self.target, Classes) and not self.metrics and own.shape[1] != 2:
            return self._counted(own, mine)
        rows: dict[Part, Tensor] = {}
        outputs, labels, end = [], [], 0
        for name in SPLITS:
            outputs.append(self._of_all(own[place[mine[name]]]))
            labels.append(self._of_all(y[mine[name]]))
            rows[name] = torch.arange(end, end + labels[-1].shape[0])
            end += labels[-1].shape[0]
        return evaluation(self.target, torch.cat(outputs), torch.cat(labels), rows, self.metrics)

    def _counted(self, own: Tensor, mine: dict[Part, Tensor]) -> Evaluation:
        """Accuracies and the loss, from what each rank has of them."""
        found = torch.zeros(len(SPLITS), 3, dtype=torch.float64)  # rows, right ones, sum of losses
        for row, name in zip(found, SPLITS, strict=True):
            ids = mine[name]
            scored = self.target.score(own[self._place[ids]], self.ds.y[ids], torch.arange(ids.numel()))
            if scored.score is not None and scored.loss is not None:
                row += torch.tensor([1.0, scored.score, scored.loss], dtype=torch.float64) * ids.numel()
        self.ranks.add_up(found)
        told = {name: row.tolist() for name, row in zip(SPLITS, found, strict=True)}
        scores = {name: round(right) / rows if rows else None for name, (rows, right, _) in told.items()}
        rows, _, loss = told["val"]
        return Evaluation(scores, loss / rows if rows else None)

    def _evaluated(self) -> Tensor:
        """Logits of own nodes in evaluation mode."""
        self.ranks.at(f"full batch {self._epoch}: evaluation")
        self.model.eval()
        with torch.no_grad():
            return self._own_logits()


def by_layer(model: Stack) -> list[list[nn.Parameter]]:
    """Parameters of each layer with what follows it, then all others."""
    found: list[list[nn.Parameter]] = []
    known: set[nn.Parameter] = set()
    groups = [(layer, *model.norms[index : index + 1]) for index, layer in enumerate(model.layers)]
    for modules in (*groups, (model,)):
        own = [p for module in modules for p in module.parameters() if p not in known]
        known |= set(own)
        found += [own] if own else []
    return found


def exchange_of(model: Stack, train: Tensor, halo: str) -> Exchange:
    """What an epoch of ``model`` exchanges; ``train`` (n,) ids of the labelled training nodes."""
    layers = list(model.layers)
    widths = tuple(int(layer.in_features) for layer in layers)  # type: ignore[arg-type]
    products = tuple(a * b for a, b in itertools.pairwise([*widths, model.out_features]))
    trained = ([p for p in group if p.requires_grad] for group in by_layer(model))
    sums = tuple(sum(p.nbytes for p in group) for group in trained if group)
    once = train.numel() == 0 or int(torch.bincount(train).max()) == 1
    rows = train if once and len(layers) > 1 else None
    return Exchange(widths, products, (*sums, 4), rows, halo)


def owners(ranks: Ranks, graph: Graph, epoch: Exchange) -> Tensor:
    """int64 (num_nodes,): the rank of every node, in the parts that rank 0 predicts the shortest epoch with."""

    def make() -> bytes:
        return partition(graph, ranks.size, "auto", epoch=epoch).part.numpy().astype(np.int32).tobytes()

    data = ranks.from_first(make)
    return torch.frombuffer(bytearray(data or b"\0\0\0\0"), dtype=torch.int32)[: graph.num_nodes].long()


def _placed(ranks: Ranks, model: Stack, ds: Any) -> tuple[LocalPart, Tensor | None]:
    """This rank's part, and the ids in the whole graph of its nodes, where it has that part alone."""
    if isinstance(ds, PartDataset):
        return LocalPart(ranks, ds.graph, ds.owner, ds.home), ds.ids
    epoch = exchange_of(model, ds.labelled("train"), ranks.halo)
    return LocalPart(ranks, ds.graph, owners(ranks, ds.graph, epoch)), None
