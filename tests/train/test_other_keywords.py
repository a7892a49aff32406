"""Keywords and optimisers of other trainers."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from standin import make_model, make_task

from graphweft._errors import ConfigError
from graphweft.train.other_keywords import _ANSWERS, _RENAMED
from graphweft.train.trainer import Trainer


def _trainer(**options: Any) -> Trainer:
    task = make_task()
    return Trainer(make_model(task, dropout=0.0), task, **options)


@pytest.mark.parametrize("name", [*_ANSWERS, *_RENAMED])
def test_a_keyword_of_other_trainers_is_answered_in_one_line(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^Trainer: .*{name}") as caught:
        _trainer(**{name: 1})
    assert "\n" not in str(caught.value) and "{" not in str(caught.value)
    own = inspect.signature(Trainer.__init__).parameters
    assert name not in own and _RENAMED.get(name, "lr") in own


def test_an_unknown_keyword_is_a_type_error_as_in_python() -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'patiense'; did you mean 'patience'\?"):
        _trainer(patiense=3)
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'qqq'$"):
        _trainer(qqq=3)


def test_an_optimizer_object_is_used_as_it_is() -> None:
    task = make_task()
    model, other = make_model(task, dropout=0.0), make_model(task, dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    trainer = Trainer(model, task, optimizer=optimizer, restore_best=False)
    assert trainer.optimizer is optimizer
    trainer.fit(5)
    plain = torch.optim.SGD(other.parameters(), lr=0.3, momentum=0.9)
    for _ in range(5):
        plain.zero_grad()
        logits = other(task.graph, task.x)[task.train_idx]
        torch.nn.functional.cross_entropy(logits, task.y[task.train_idx]).backward()  # type: ignore[no-untyped-call]
        plain.step()
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_optimizers_that_do_not_fit_are_told_in_one_line() -> None:
    task = make_task()
    model = make_model(task)
    sgd = torch.optim.SGD(model.parameters(), lr=0.3)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"optimizer": torch.optim.Adam}, "or an optimizer over model.parameters.., got the class Adam$"),
        ({"optimizer": 3}, "got int$"),
        ({"optimizer": torch.optim.LBFGS(model.parameters())}, "LBFGS is not supported"),
        ({"optimizer": torch.optim.SGD([torch.ones(1)], lr=1.0)}, "got one over other tensors"),
        ({"optimizer": sgd, "lr": 0.5}, "lr=0.5 cannot be combined with an optimizer object"),
        ({"optimizer": sgd, "weight_decay_on": "first"}, "weight_decay_on=first cannot be combined with an optimizer"),
        ({"optimizer": sgd, "weight_decay": 0.5}, "weight_decay=0.5 cannot be combined with"),
    ]
    for options, words in wrong:
        with pytest.raises(ConfigError, match=words):
            Trainer(model, task, **options)
