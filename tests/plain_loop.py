"""A plain loop of torch, and what it is compared with: options of the trainer and the same by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from graphweft.data.dataset import Dataset
from graphweft.data.synthetic import synthetic
from graphweft.train.trainer import Trainer

EPOCHS = 12
WEIGHT = torch.tensor([1.0, 0.25, 3.0])
LAST: dict[str, Any] = {"restore_best": False}


def focal(logits: Tensor, labels: Tensor) -> Tensor:
    """A loss that torch does not have."""
    single = functional.cross_entropy(logits, labels, reduction="none")
    return ((1 - torch.exp(-single)) ** 2 * single).mean()


def balanced(labels: Tensor, classes: int) -> Tensor:
    counts = np.bincount(labels.numpy(), minlength=classes)
    return torch.from_numpy((labels.numel() / (classes * counts)).astype(np.float32))


def warm(optimizer: torch.optim.Optimizer, after: Callable[[Any], Any]) -> Any:
    rising = lr_scheduler.LinearLR(optimizer, start_factor=1 / 4, total_iters=3)
    return lr_scheduler.SequentialLR(optimizer, [rising, after(optimizer)], milestones=[3])


class Loop:
    """A plain loop over the whole graph, as a user of torch writes it."""

    def __init__(self, model: nn.Module, ds: Any, **given: Any) -> None:
        self.model, self.ds = model, ds
        self.loss: Callable[[Tensor, Tensor], Tensor] = given.get("loss", functional.cross_entropy)
        self.optimizer = given.get("optimizer", torch.optim.Adam)(model.parameters(), lr=0.05)
        self.scheduler = given["scheduler"](self.optimizer) if "scheduler" in given else None
        self.clip, self.clip_value, self.rows = given.get("clip"), given.get("clip_value"), given.get("rows", {})
        decay = given.get("ema")
        self.average = None if decay is None else AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
        self.losses: list[float] = []
        self.rates: list[float] = []
        self.best: tuple[float, dict[str, Tensor]] = (-1.0, {})

    @property
    def evaluated(self) -> nn.Module:
        return self.model if self.average is None else self.average.module

    def step(self, logits: Tensor, labels: Tensor) -> float:
        self.optimizer.zero_grad()
        loss = self.loss(logits, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        if self.clip_value is not None:
            nn.utils.clip_grad_value_(self.model.parameters(), self.clip_value)
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        if self.average is not None:
            self.average.update_parameters(self.model)
        return float(loss.detach())

    def epoch(self) -> float:
        train = self.ds.train_idx
        self.model.train()
        logits = self.model(self.ds.graph, self.ds.x, **self.rows)
        return self.step(logits if self.rows else logits[train], self.ds.y[train])

    def run(self, epochs: int = EPOCHS, score: Callable[[Tensor, Tensor], float] | None = None) -> Loop:
        val = self.ds.val_idx
        for _ in range(epochs):
            self.rates.append(self.optimizer.param_groups[0]["lr"])
            self.losses.append(self.epoch())
            self.evaluated.eval()
            with torch.no_grad():
                logits = self.evaluated(self.ds.graph, self.ds.x)[val]
            if score is not None:
                found = score(logits, self.ds.y[val])
                if found > self.best[0]:
                    self.best = found, copy.deepcopy(self.evaluated.state_dict())
            if isinstance(self.scheduler, lr_scheduler.ReduceLROnPlateau):
                accuracy = float((logits.argmax(1) == self.ds.y[val]).double().mean())
                loss = float(self.loss(logits, self.ds.y[val]))
                self.scheduler.step(accuracy if self.scheduler.mode == "max" else loss)
            elif self.scheduler is not None:
                self.scheduler.step()
        return self


def same(a: nn.Module | dict[str, Tensor], b: nn.Module | dict[str, Tensor]) -> bool:
    left, right = (one.state_dict() if isinstance(one, nn.Module) else one for one in (a, b))
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def numpy_f1(logits: Tensor, labels: Tensor) -> float:
    """Macro F1 over the classes that are there or predicted."""
    said, there = logits.argmax(1).numpy(), labels.numpy()
    found = []
    for c in np.union1d(said, there):
        hits = np.sum((said == c) & (there == c))
        found.append(2 * hits / (np.sum(said == c) + np.sum(there == c)))
    return float(np.mean(found))


cosine = lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)  # noqa: E731
plateau = lambda mode: lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, mode, patience=1)  # noqa: E731
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "callable": ({"loss": focal}, {"loss": focal}),
    "module": (
        {"loss": nn.CrossEntropyLoss(WEIGHT, label_smoothing=0.1)},
        {"loss": nn.CrossEntropyLoss(WEIGHT, label_smoothing=0.1)},
    ),
    "weights": ({"class_weight": WEIGHT.tolist()}, {"loss": nn.CrossEntropyLoss(WEIGHT)}),
    "smoothing": ({"label_smoothing": 0.2}, {"loss": nn.CrossEntropyLoss(label_smoothing=0.2)}),
    "clip": ({"loss": focal, "clip": 0.05}, {"loss": focal, "clip": 0.05}),
    "clip_value": ({"loss": focal, "clip_value": 0.01}, {"loss": focal, "clip_value": 0.01}),
    "cosine": ({"loss": focal, "scheduler": cosine}, {"loss": focal, "scheduler": cosine}),
    "cosine by name": ({"loss": focal, "scheduler": "cosine"}, {"loss": focal, "scheduler": cosine}),
    "linear by name": (
        {"loss": focal, "scheduler": "linear"},
        {"loss": focal, "scheduler": lambda o: lr_scheduler.LinearLR(o, 1.0, 0.0, EPOCHS)},
    ),
    "step by name": (
        {"loss": focal, "scheduler": "step:5:0.5"},
        {"loss": focal, "scheduler": lambda o: lr_scheduler.StepLR(o, 5, 0.5)},
    ),
    "exponential by name": (
        {"loss": focal, "scheduler": "exponential:0.9"},
        {"loss": focal, "scheduler": lambda o: lr_scheduler.ExponentialLR(o, 0.9)},
    ),
    "several steps": (
        {"loss": focal, "scheduler": lambda o: lr_scheduler.MultiStepLR(o, [3, 7])},
        {"loss": focal, "scheduler": lambda o: lr_scheduler.MultiStepLR(o, [3, 7])},
    ),
    "plateau of the score": (
        {"loss": focal, "scheduler": "plateau:1"},
        {"loss": focal, "scheduler": plateau("max")},
    ),
    "plateau of the loss": (
        {"loss": focal, "scheduler": plateau("min")},
        {"loss": focal, "scheduler": plateau("min")},
    ),
    "warm-up": (
        {"loss": focal, "warmup": 3},
        {"loss": focal, "scheduler": lambda o: lr_scheduler.LinearLR(o, 1 / 4, total_iters=3)},
    ),
    "warm-up and cosine": (
        {"loss": focal, "warmup": 3, "scheduler": "cosine"},
        {
            "loss": focal,
            "scheduler": lambda o: warm(o, lambda o: lr_scheduler.CosineAnnealingLR(o, EPOCHS - 3)),
        },
    ),
    "averages": ({"loss": focal, "ema": 0.8}, {"loss": focal, "ema": 0.8}),
    "all": (
        {"class_weight": "balanced", "label_smoothing": 0.1, "clip": 0.5, "ema": 0.9, "warmup": 3, "scheduler": cosine},
        {
            "loss": "balanced",
            "clip": 0.5,
            "ema": 0.9,
            "scheduler": lambda o: warm(o, cosine),
        },
    ),
}


def seeded(kind: Any, ds: Dataset, **options: Any) -> Any:
    torch.manual_seed(3)
    return kind(ds.num_features, 8, ds.num_classes, **options)


def degrees() -> Dataset:
    ds = synthetic("default", scale=0.02, seed=0)
    degrees = ds.graph.in_degrees().float() / 10
    return Dataset("degrees", ds.graph, ds.x, degrees, ds.train_idx, ds.val_idx, ds.test_idx, 1, task="regression")


class Recorder:
    """Notes every call, and keeps a count in checkpoints."""

    def __init__(self, last: int = 10**9) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.count, self._last = 0, last

    def on_fit_start(self, trainer: Trainer) -> None:
        self.calls.append(("fit_start", trainer.epoch))

    def on_epoch_start(self, trainer: Trainer, epoch: int) -> None:
        self.calls.append(("epoch_start", epoch))

    def on_batch_end(self, trainer: Trainer, batch: int, loss: float) -> None:
        self.count += 1
        self.calls.append(("batch_end", batch))

    def on_epoch_end(self, trainer: Trainer, record: Any) -> bool:
        self.calls.append(("epoch_end", record.epoch))
        assert record is trainer.history[-1]
        return record.epoch < self._last

    def on_fit_end(self, trainer: Trainer) -> None:
        self.calls.append(("fit_end", trainer.epoch))

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "some": torch.arange(self.count)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert torch.equal(state["some"], torch.arange(state["count"]))
        self.count = state["count"]
