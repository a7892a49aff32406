"""Wrong use of losses, schedules, metrics, callbacks and loggers is one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from plain_loop import (
    Recorder,
    focal,
    plateau,
    seeded,
)
from standin import make_model, make_task
from torch import nn
from torch.optim import lr_scheduler

from graphweft._errors import ConfigError, UserCodeError
from graphweft.data.synthetic import synthetic
from graphweft.nn.sage import SAGE
from graphweft.train.trainer import Trainer


class NoEvent:
    def on_train_epoch_end(self) -> None: ...


LINES: list[tuple[dict[str, Any], str]] = [
    ({"loss": focal, "label_smoothing": 0.1}, "^label_smoothing=0.1 cannot be combined with loss=focal, which has"),
    ({"loss": focal, "class_weight": "balanced"}, "^class_weight=balanced cannot be combined with loss=focal"),
    ({"loss": 3}, r"^loss: expected a callable \(outputs, labels\) -> scalar, or one of .*, got int$"),
    ({"loss": nn.NLLLoss}, r"got the class NLLLoss; write NLLLoss\(\)$"),
    ({"loss": "mse"}, "^loss: expected one of cross_entropy, got 'mse'$"),
    ({"class_weight": [1, 2]}, "^class_weight: expected 3 numbers >= 0, one per class, got 1, 2$"),
    ({"class_weight": "even"}, "^class_weight: expected balanced, or a number per class"),
    ({"label_smoothing": 1.5}, "^label_smoothing: expected a finite number >= 0 and < 1, got 1.5$"),
    ({"scheduler": "plateau:2:1"}, "^scheduler: expected cosine:EPOCHS, .*, got 'plateau:2:1'$"),
    ({"scheduler": "cyclic"}, "^scheduler: expected one of cosine, linear, step, exponential, plateau, got 'cyclic'$"),
    ({"scheduler": 3}, "^scheduler: expected one of .* or a callable that makes one of the optimizer, got int$"),
    ({"scheduler": lambda o: 3}, "^scheduler: expected a callable that makes a scheduler, .* got int$"),
    ({"scheduler": lr_scheduler.StepLR}, "^scheduler: expected a callable that makes a scheduler, .*: 'step_size'$"),
    ({"scheduler": plateau("max"), "stop_on": "loss"}, "^scheduler: expected mode='min' for loss, where lower is"),
    ({"warmup": -1}, "^warmup: expected an integer from 0"),
    ({"clip": 0}, "^clip: expected a finite number > 0, got 0$"),
    ({"ema": 1}, "^ema: expected a finite number >= 0 and < 1, got 1$"),
    ({"metrics": "f1"}, "^metrics: expected one of accuracy, .*, got 'f1'$"),
    ({"metrics": "rmse"}, "^metrics: expected one of .* for classes, got 'rmse'$"),
    ({"metrics": lambda a, b: 0}, r"^metrics: expected a name for <lambda>, as in metrics=\{'mine': function\}$"),
    ({"metrics": {"acc": focal}}, "^metrics: expected another name than acc, which the history has"),
    ({"metrics": ["f1_macro", "f1_macro"]}, "^metrics: expected different names, got f1_macro twice"),
    ({"best": "f1"}, "^best: expected one of accuracy, loss, both, .*, got 'f1'$"),
    ({"best": "f1_macro", "stop_on": "loss"}, "^stop_on=loss cannot be combined with best=f1_macro"),
    ({"stop_on": "f1_macro"}, "got 'f1_macro'; best= names a metric$"),
    ({"callbacks": [NoEvent()]}, "^callbacks: expected objects with a method on_fit_start, .*, got NoEvent$"),
    ({"callbacks": Recorder}, "got the class Recorder$"),
    ({"loggers": "csv"}, "^loggers=csv cannot be combined with out=None; out='runs/a' names a folder$"),
    (
        {"loggers": object()},
        r"^loggers: expected one of csv, tensorboard, or an object with log_metrics\(.*, got object$",
    ),
]


@pytest.mark.parametrize(("options", "line"), LINES, ids=[line for _, line in LINES])
def test_wrong_use_is_one_line(options: dict[str, Any], line: str) -> None:
    task = make_task()
    with pytest.raises(ConfigError, match=line) as caught:
        Trainer(make_model(task), task, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "error", "line"),
    [
        ({"loss": lambda z, y: z}, ConfigError, r"^loss=<lambda>: expected a tensor with one number .*, got shape"),
        ({"loss": lambda z, y: torch.tensor(1.0)}, ConfigError, "expected a loss that follows from the outputs, got a"),
        (
            {"loss": nn.BCEWithLogitsLoss()},
            UserCodeError,
            r"^loss=BCEWithLogitsLoss: ValueError for outputs float32 \(",
        ),
        (
            {"metrics": {"bad": lambda z, y: 1 / 0}},
            UserCodeError,
            "^metrics: bad: ZeroDivisionError: division by zero$",
        ),
        ({"metrics": {"bad": lambda z, y: z}}, ConfigError, "^metrics: expected a number from bad, got Tensor$"),
    ],
)
def test_functions_that_fail_are_named(options: dict[str, Any], error: Any, line: str) -> None:
    task = make_task()
    with pytest.raises(error, match=line) as caught:
        Trainer(make_model(task), task, **options).fit(1)
    assert "\n" not in str(caught.value)


def test_a_state_that_a_checkpoint_cannot_hold_is_one_line(tmp_path: Path) -> None:
    class Holds(Recorder):
        def state_dict(self) -> dict[str, Any]:
            return {"a": [object()]}

    task = make_task()
    with pytest.raises(
        ConfigError, match=r"^callbacks: expected a state_dict of Holds with tensors, .*, got object in it$"
    ):
        Trainer(make_model(task), task, callbacks=Holds(), out=tmp_path).fit(1)


def test_losses_that_a_sampler_weighs_are_one_line() -> None:
    ds = synthetic("cora", scale=0.1, seed=2)
    trainer = Trainer(seeded(SAGE, ds), ds, mode="mini", sampler="saint-node", batch_size=50, loss=focal)
    with pytest.raises(ConfigError, match=r"^loss=focal cannot be combined with a sampler that weighs the losses"):
        trainer.fit(1)
