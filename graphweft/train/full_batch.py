"""One epoch over the whole graph: forward, loss, backward, update; and one evaluation.

Comes in: a model called ``model(graph, x)``, an optimiser and the data. Goes out: the loss, or scores by split.
Called by the trainer, which times exactly :meth:`FullBatch.step` as the epoch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from graphweft._errors import DataError, ShapeError
from graphweft.train.metrics import score
from graphweft.train.task import NodeTask

SPLITS = ("train", "val", "test")


class FullBatch:
    """Trains a model on all nodes at once; only nodes with a known label count.

    Labels of shape (N,) are classes (cross-entropy), of shape (N, C) several per node (binary cross-entropy).

    Raises: DataError when no training node has a label.
    """

    def __init__(self, model: nn.Module, ds: NodeTask, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.ds, self.optimizer = model, ds, optimizer
        self.rows = {
            name: _labelled(ds.y, idx)
            for name, idx in zip(SPLITS, (ds.train_idx, ds.val_idx, ds.test_idx), strict=True)
        }
        self.labels = {name: ds.y[rows] for name, rows in self.rows.items()}
        if self.rows["train"].numel() == 0:
            raise DataError(f"{ds.name}: expected at least one training node with a label, got none")

    def step(self) -> Tensor:
        """One update of the parameters; the training loss before it, shape ()."""
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        logits = self.model(self.ds.graph, self.ds.x)
        loss = self._loss(logits)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.detach()

    def logits(self) -> Tensor:
        """Logits of all nodes in evaluation mode, shape (N, C)."""
        self.model.eval()
        with torch.inference_mode():
            logits: Tensor = self.model(self.ds.graph, self.ds.x)
        return logits

    def scores(self) -> dict[str, float | None]:
        """Score of every split after one forward pass."""
        logits = self.logits()
        return {name: score(logits[rows], self.labels[name]) for name, rows in self.rows.items()}

    def _loss(self, logits: Tensor) -> Tensor:
        rows, labels = self.rows["train"], self.labels["train"]
        expected = (self.ds.y.shape[0], self.ds.num_classes)
        if tuple(logits.shape) != expected:
            raise ShapeError(f"model: expected logits of shape {expected}, got {tuple(logits.shape)}")
        if labels.dim() == 1:
            return functional.cross_entropy(logits[rows], labels)
        return functional.binary_cross_entropy_with_logits(logits[rows], labels)


def _labelled(y: Tensor, idx: Tensor) -> Tensor:
    """The rows of a split whose label is known."""
    idx = idx.to(torch.int64)
    return idx[y[idx] >= 0] if y.dim() == 1 else idx
