"""Who decays, against a loop over parameters in float64."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from standin import make_model, make_task
from torch import nn

from graphweft._errors import ConfigError
from graphweft.nn.graph_model import GraphModel
from graphweft.train.optimizer import first_layer, make_optimizer

DECAY = 0.1


@pytest.mark.parametrize(("where", "decayed"), [("first", {"layers.0.weight", "layers.0.bias"}), ("all", None)])
def test_weight_decay_acts_where_it_should(where: str, decayed: set[str] | None) -> None:
    model = make_model(make_task())
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = make_optimizer(model, "sgd", lr=0.5, weight_decay=DECAY, weight_decay_on=where)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        factor = 1 - 0.5 * DECAY if decayed is None or name in decayed else 1.0
        torch.testing.assert_close(parameter.detach(), before[name] * factor)


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_every_optimizer_lowers_a_quadratic(name: str) -> None:
    model = nn.Linear(3, 1)
    optimizer = make_optimizer(model, name, lr=0.05, weight_decay=0.0, weight_decay_on="all")
    x, losses = torch.randn(20, 3), []
    for _ in range(50):
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]


def test_first_layer_of_other_shapes() -> None:
    plain = nn.Linear(2, 2)
    assert first_layer(plain) is plain
    stack = nn.Sequential(nn.ReLU(), nn.Sequential(nn.Dropout(), plain), nn.Linear(2, 1))
    assert first_layer(stack) is plain


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected a model with parameters"):
        make_optimizer(nn.ReLU(), "adam", 0.1, 0.0, "first")
    with pytest.raises(ConfigError, match="expected one of adam, adamw, sgd, got 'lion'"):
        make_optimizer(nn.Linear(1, 1), "lion", 0.1, 0.0, "first")


def test_training_does_not_import_the_compiler_of_torch(root: Path) -> None:
    code = """
import sys
sys.path.insert(0, "tests")
from standin import make_model, make_task
from graphweft.train.trainer import Trainer
task = make_task()
trainer = Trainer(make_model(task), task)
trainer.fit(2)
trainer.load_state_dict(trainer.state_dict())
sys.exit("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def test_the_first_layer_of_a_stack_inside_a_model_decays() -> None:
    model = GraphModel(4, 8, 2, 3)
    first = make_optimizer(model, "adam", 0.1, 0.5, "first").param_groups[0]
    assert first["weight_decay"] == 0.5
    assert [id(p) for p in first["params"]] == [id(p) for p in model.encoder.layers[0].parameters()]  # type: ignore[union-attr, index]
