"""Link prediction: a model learns node embeddings whose dot products tell edges from other pairs.

Comes in: a model, an optimiser, the data. Goes out: the mean loss of an epoch over training edges, or scores on those
held out. Called by the trainer in the place of :class:`MiniBatch`, whose epochs, states and resumes it has. Embeddings
are evaluated from all neighbours in the training graph, so messages never pass over a held-out edge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from graphweft._errors import ConfigError, DataError
from graphweft._trace import span
from graphweft.data.dataset import Dataset, Part
from graphweft.data.link_split import split_links
from graphweft.loader.link import LinkLoader
from graphweft.loader.link_batch import LinkBatch
from graphweft.nn.stack import Stack
from graphweft.sample.negative import NegativeSampler
from graphweft.storage.feature import Features
from graphweft.storage.store import Store
from graphweft.train.edge_data import EdgeData
from graphweft.train.link_metrics import average_precision, mean_reciprocal, ranks, roc_auc, share_within
from graphweft.train.metrics import Evaluation, binary_cross_entropy
from graphweft.train.mini_batch import MiniBatch
from graphweft.train.named_metrics import measured
from graphweft.train.needs import trimmed
from graphweft.train.node_batches import Tables
from graphweft.train.own_loss import called, named
from graphweft.train.samplers import fitting_fanouts
from graphweft.train.setup import Drawn, Setup

HITS_AT = 10
RANKED_AMONG = 100  # destinations that are drawn for every held-out edge
MOST_SCORED = 10_000  # held-out edges that an evaluation looks at; they are in random order
STAGES = {"val": 1 << 33, "test": 1 << 34}  # key the negatives of evaluations apart from those of training
PIECE = 1 << 17  # numbers of rows that are multiplied at a time
RANKED = 1 << 15  # pairs that are ranked at a time


class LinkTask(MiniBatch):
    """Trains on ``batch_size`` edges at a time, each with one negative; the batch's edges are hidden from its messages.

    Splits, negatives and draws follow from ``seed``. Scores are areas under the ROC curve against as many uniform pairs
    that are no edge; :attr:`details` has mean reciprocal rank and hits at 10 among 100 destinations the source has no
    edge to, and the average precision.

    Raises: ConfigError for fan-outs that do not fit the model, DataError for a graph without edges to hold out.
    """

    seeds_are = "edges"

    def _set_up(self, setup: Setup) -> None:
        check_link(setup.drawn)
        ds = setup.ds
        if ds.graph.is_typed:
            raise ConfigError(
                "task=link cannot be combined with a graph of several types; gw.LinkLoader takes a relation"
            )
        self.split = split_links(ds.graph, seed=setup.seed)
        if self.split.val.shape[1] == 0 or self.split.test.shape[1] == 0:
            raise DataError(f"{ds.name}: expected enough edges to hold some out, got {ds.num_edges}")
        self._score_pairs(setup)
        self.ds, self._tables = self._training(ds, setup.x)
        self.fanouts = fitting_fanouts(setup.model, self.drawn.fanouts)
        self.loader = self._loader(self.drawn.batch_size, self.seed)
        self._negative = NegativeSampler(self.split.known)

    def _score_pairs(self, setup: Setup) -> None:
        """How pairs are scored: by the user's loss where there is one."""
        self._own = setup.loss if callable(setup.loss) else None
        self.details: dict[str, float | None] = {}  # of the last evaluation

    def _training(self, ds: Dataset, x: Features) -> tuple[Dataset, Any]:
        """The dataset over the training graph, and what batches are made from."""
        tables = Tables(self.split.graph, x, ds.y, ds.train_idx)
        return replace(ds, graph=self.split.graph, edge_weight=None, edge_features=None), tables

    def _loader(self, batch_size: int, seed: int, made: type[LinkLoader] = LinkLoader) -> LinkLoader:
        """Batches of training edges."""
        exclude = "both" if self.split.undirected else "target"
        given: dict[str, Any] = {"shuffle": True, "seed": seed, "known": self.split.known, "exclude": exclude}
        return made(self._tables, self.split.train, None, self.fanouts, batch_size, **given)

    @property
    def metric(self) -> str:
        """What the scores are."""
        return "ROC AUC"

    def use(self, edge_data: EdgeData) -> None:
        """As for nodes; rows of edges that are held out are not read."""
        super().use(edge_data.of_edges(self.split.kept))

    def evaluate(self) -> Evaluation:
        """Area under the ROC curve and loss on held-out edges; training edges are not scored."""
        self.let_gradients_go()
        with trimmed(self.budget):  # what batches took is given back before it, and the other way round
            return self._scored(self.logits())

    def _scored(self, h: Tensor) -> Evaluation:
        self.details = {}
        out: dict[Part, float | None] = {"train": None}
        more: dict[str, float | None] = {f"train_{one.name}": None for one in self.metrics}
        val_loss = None
        for name, pairs in (("val", self.split.val), ("test", self.split.test)):
            src, dst = pairs[:, :MOST_SCORED]
            key: dict[str, Any] = {"seed": self.seed, "stage": STAGES[name]}
            positive = dots(h, src, dst)
            negative = dots(h, *self._negative.pairs(torch.arange(src.numel()), **key))
            out["val" if name == "val" else "test"] = roc_auc(positive, negative)
            scores, labels = _together(positive, negative)
            if name == "val":
                val_loss = float(self._pair_loss(scores, labels))
            more |= measured(self.metrics, name, scores, labels.long())
            self.details[f"{name}_ap"] = average_precision(positive, negative)
            self._rank(name, h, src, positive)
        return Evaluation(out, val_loss, self.details, more)

    def _rank(self, name: str, h: Tensor, src: Tensor, positive: Tensor) -> None:
        """Ranks of held-out edges among other destinations, some at a time: the pairs are many."""
        tails = self._tails(name, src)
        places = torch.empty(src.numel(), dtype=torch.float64)
        step = RANKED // RANKED_AMONG
        for at in range(0, src.numel(), step):
            here = slice(at, min(at + step, src.numel()))
            among = dots(h, src[here].repeat_interleave(RANKED_AMONG), tails(here).reshape(-1))
            places[here] = ranks(positive[here], among.reshape(-1, RANKED_AMONG))
        self.details[f"{name}_mrr"] = mean_reciprocal(places)
        self.details[f"{name}_hits"] = share_within(HITS_AT, places)

    def _tails(self, name: str, src: Tensor) -> Callable[[slice], Tensor]:
        """What draws (n, RANKED_AMONG) destinations that some of the sources have no edge to."""
        key: dict[str, Any] = {"seed": self.seed, "stage": STAGES[name]}
        negative = self._negative
        return lambda here: negative.tails(src[here], RANKED_AMONG, keys=torch.arange(here.start, here.stop), **key)

    def refresh(self) -> bool:
        """Labels are edges: nothing that could change."""
        return False

    def identity(self) -> dict[str, Any]:
        """What decides the batches, for checkpoints."""
        return {**super().identity(), "task": "link"}

    def _pair_loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The loss of pairs, shape (): mean binary cross-entropy, or the user's."""
        if self._own is None:
            return binary_cross_entropy(scores, labels)
        return called(self._own, f"loss={named(self._own)}", scores, labels)

    def _train_on(self, batch: Any) -> Tensor:
        """One update; the loss before it, shape ()."""
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._gradients(batch)
        with span("update", "update"):
            self.optimizer.step()
        return loss

    def _gradients(self, batch: Any, weight: int = 1) -> Tensor:
        """Adds ``weight`` times the gradients of a batch's mean loss to those that are there; that loss, shape ()."""
        assert isinstance(batch, LinkBatch) and batch.edge_label_index is not None and batch.edge_label is not None
        with span("forward", "forward"):
            h = self._forward(batch)
        with span("loss", "loss"):
            src, dst = batch.edge_label_index
            logits = (torch.index_select(h, 0, src) * torch.index_select(h, 0, dst)).sum(1)
            loss = self._pair_loss(logits, batch.edge_label)
        with span("backward", "backward"):
            (loss if weight == 1 else loss * weight).backward()  # type: ignore[no-untyped-call]
        return loss.detach()


def check_link(drawn: Drawn) -> None:
    """Raises: ConfigError for options that link prediction does not have."""
    if drawn.macro is not None or drawn.accumulate > 1 or drawn.sampler != "neighbor" or drawn.prepare != "whole":
        raise ConfigError("task='link' cannot be combined with macro, accumulate, sampler or prepare")


def check_stored_links(model: nn.Module, store: Store) -> None:
    """Raises: ConfigError for a typed store, or a model that is no stack of layers."""
    if store.types is not None:
        raise ConfigError("task=link cannot be combined with a store of a typed graph")
    if not isinstance(model, Stack):
        raise ConfigError(
            f"task=link cannot be combined with a store and {type(model).__name__}, which is no stack of layers"
        )


def _together(positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
    """Scores of pairs and their labels, 1 for an edge."""
    labels = torch.cat([torch.ones_like(positive), torch.zeros_like(negative)])
    return torch.cat([positive, negative]), labels


def dots(h: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    """float32 (P,): dot products of rows ``src[i]`` and ``dst[i]``, ``PIECE`` numbers of each end at a time."""
    out = torch.empty(src.numel())
    step = max(PIECE // max(h.shape[1], 1), 1)
    for at in range(0, src.numel(), step):
        here = slice(at, at + step)
        out[here] = (h[src[here]] * h[dst[here]]).sum(1)
    return out
