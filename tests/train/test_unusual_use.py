"""A trainer in surroundings that are rare: the numbers of any other, or one line that says what was expected."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import graphweft as gw

MINI: dict[str, Any] = {"mode": "mini", "fanouts": (2, 2), "batch_size": 30}


@pytest.fixture(scope="module")
def ds() -> gw.Dataset:
    return gw.synthetic("default", scale=0.02, seed=0)


def _trainer(ds: gw.Dataset, **options: Any) -> gw.Trainer:
    torch.manual_seed(0)
    model = gw.nn.GCN.for_data(ds, hidden=8, dropout=0.5)
    return gw.Trainer(model, ds, **{"seed": 0, "restore_best": False, **options})


def _weights(trainer: gw.Trainer) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


def _alike(a: gw.Trainer, b: gw.Trainer) -> bool:
    return all(torch.equal(x, y) for x, y in zip(_weights(a), _weights(b), strict=True))


@pytest.mark.parametrize("options", [{}, MINI], ids=["full", "mini"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_callers_mode_of_autograd_changes_nothing(ds: gw.Dataset, mode: Callable[[], Any], options: Any) -> None:
    wanted = _trainer(ds, **options).fit(2)["loss"]
    with mode():
        assert _trainer(ds, **options).fit(2)["loss"] == wanted
        assert not torch.is_grad_enabled()
    assert wanted[0] != wanted[1]


@pytest.mark.parametrize("options", [{}, MINI], ids=["full", "mini"])
def test_trainers_in_threads_draw_what_each_would_alone(ds: gw.Dataset, options: Any) -> None:
    wanted, trainers = _trainer(ds, **options).fit(6)["loss"], [_trainer(ds, **options) for _ in range(3)]
    state = torch.default_generator.get_state()
    threads = [threading.Thread(target=trainer.fit, args=(6,)) for trainer in trainers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [trainer.history["loss"] == wanted for trainer in trainers] == [True] * 3
    assert torch.equal(torch.default_generator.get_state(), state)


class _Fails:
    """Raises after some batch of the run."""

    def __init__(self, at: int, failure: BaseException) -> None:
        self.at, self.failure, self.seen = at, failure, 0

    def on_batch_end(self, trainer: gw.Trainer, batch: int, loss: float) -> None:
        self.seen += 1
        if self.seen == self.at:
            raise self.failure


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("at", [1, 3, 4, 6])
@pytest.mark.parametrize("failure", [KeyError("mine"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_an_epoch_that_a_callback_left_goes_on_with_its_next_batch(
    ds: gw.Dataset, failure: BaseException, at: int, accumulate: int
) -> None:
    whole = _trainer(ds, **MINI, accumulate=accumulate)
    whole.fit(3)
    left = _trainer(ds, **MINI, accumulate=accumulate, callbacks=[_Fails(at, failure)])
    with pytest.raises(type(failure)):
        left.fit(3)
    left.fit(3 - left.epoch)
    assert left.history["loss"] == whole.history["loss"] and _alike(left, whole)


def test_a_batch_whose_step_failed_is_taken_again(ds: gw.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, left = _trainer(ds, **MINI), _trainer(ds, **MINI)
    whole.fit(2)
    steps, train_on = [0], left._batch._train_on

    def third_fails(batch: Any) -> Any:
        steps[0] += 1
        if steps[0] == 3:
            raise MemoryError
        return train_on(batch)

    monkeypatch.setattr(left._batch, "_train_on", third_fails)
    with pytest.raises(MemoryError):
        left.fit(2)
    left.fit(2)
    assert left.history["loss"] == whole.history["loss"] and _alike(left, whole)


def test_one_fit_at_a_time(ds: gw.Dataset) -> None:
    class Nested:
        def on_epoch_end(self, trainer: gw.Trainer, record: Any) -> None:
            trainer.fit(1)

    trainer = _trainer(ds, callbacks=[Nested()])
    with pytest.raises(gw.errors.ConfigError, match=r"^fit: expected one fit of a trainer at a time, got a second"):
        trainer.fit(2)
    assert len(_trainer(ds).fit(1)) == 1


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_a_trainer_is_not_copied_and_says_what_is(ds: gw.Dataset, copied: Callable[[Any], Any]) -> None:
    trainer = _trainer(ds)
    trainer.fit(1)
    with pytest.raises(TypeError, match=r"^Trainer: expected no copy .* load_state_dict\(trainer\.state_dict\(\)\)$"):
        copied(trainer)


@pytest.mark.parametrize("options", [{}, {"ema": 0.9}, {**MINI, "accumulate": 3}, {"scheduler": "cosine:9"}], ids=str)
def test_two_trainers_of_one_state_share_nothing(ds: gw.Dataset, options: dict[str, Any]) -> None:
    first = _trainer(ds, **options)
    first.fit(2)
    second = gw.Trainer(copy.deepcopy(first.model), ds, seed=0, restore_best=False, **options)
    second.load_state_dict(first.state_dict())
    first.fit(2)
    second.fit(2)
    assert first.history["loss"] == second.history["loss"] and _alike(first, second)


_FORKED = """
import os, time, torch
import graphweft as gw

torch.set_num_threads(4)
ds = gw.synthetic("default", scale=0.05, seed=0)

def losses():
    torch.manual_seed(0)
    return gw.Trainer(gw.nn.GCN.for_data(ds, hidden=8, dropout=0.5), ds, seed=0).fit(2)["loss"]

wanted, child = losses(), os.fork()
if not child:
    os._exit(int(losses() != wanted))
for _ in range(600):
    done, status = os.waitpid(child, os.WNOHANG)
    if done:
        break
    time.sleep(0.1)
else:
    os.kill(child, 9)
    raise SystemExit("the child still waits after a minute")
raise SystemExit(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_process_trains_with_the_same_numbers() -> None:
    done = subprocess.run([sys.executable, "-c", _FORKED], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class _Answers(nn.Module):
    """A model of a user's own with another result than logits."""

    def __init__(self, columns: int, made: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.made = nn.Linear(columns, 8), made

    def forward(self, graph: Any, x: torch.Tensor) -> Any:
        return self.made(self.layer(x))


@pytest.mark.parametrize(
    "use", [lambda trainer: trainer.fit(1), lambda trainer: trainer.evaluate("test")], ids=["fit", "score"]
)
@pytest.mark.parametrize(
    ("made", "kind"), [(lambda h: (h, h), "tuple"), (lambda h: None, "NoneType")], ids=["tuple", "none"]
)
def test_what_is_no_tensor_of_logits_is_one_line(ds: gw.Dataset, made: Any, kind: str, use: Any) -> None:
    trainer = gw.Trainer(_Answers(ds.num_features, made), ds)
    with pytest.raises(gw.errors.ShapeError, match=f"^model: expected logits as one tensor, got {kind}$"):
        use(trainer)


def test_numbers_of_numpy_are_numbers(ds: gw.Dataset) -> None:
    wanted = _trainer(ds, lr=0.5, patience=3).fit(2)["loss"]
    found = _trainer(ds, lr=np.float32(0.5), patience=np.int16(3), seed=np.uint8(0)).fit(np.int64(2))["loss"]
    assert found == wanted
    model = gw.nn.GCN(np.int64(4), np.int32(8), np.array([2])[0])
    assert model.made_with == ((4, 8, 2), {})
    with pytest.raises(gw.errors.ConfigError, match=r"SGConv: expected hops >= 1, got .*; int\(hops\) is one$"):
        gw.nn.SGConv(4, 2, hops=np.int64(3))


WRONG: dict[str, tuple[Callable[[gw.Dataset], Any], str]] = {
    "ranks": (lambda ds: _trainer(ds, ranks=2), r"^ranks: expected gw\.dist\.Ranks, got int; .* starts processes$"),
    "out": (lambda ds: _trainer(ds, out=3), "^out: expected a path, got int$"),
    "trace": (lambda ds: _trainer(ds, trace=True), "^trace: expected a path, got bool$"),
    "config": (lambda ds: _trainer(ds, config=["a"]), "^config: expected a dict, got list$"),
    "an object in config": (lambda ds: _trainer(ds, config={"a": [object()]}), "^config: .*, got object in it$"),
    "a tensor in config": (lambda ds: _trainer(ds, config={"a": torch.ones(2)}), "^config: .*, got Tensor in it$"),
    "an object in remember": (lambda ds: _trainer(ds, remember={"a": {1, 2}}), "^remember: .*, got set in it$"),
    "no memory": (
        lambda ds: gw.Trainer(gw.nn.GCN.for_data(ds, hidden=4).to("meta"), ds),
        "^model: expected parameters with values, got parameters on the device meta",
    ),
    "no state": (
        lambda ds: _trainer(ds).load_state_dict(None),
        "^checkpoint: expected a state as a dict, got NoneType",
    ),
    "double": (
        lambda ds: gw.Trainer(gw.nn.GCN.for_data(ds, hidden=4).double(), ds).fit(1),
        r"got torch\.float32; use x\.to\(torch\.float64\) or model\.to\(torch\.float32\)$",
    ),
    "a list of rows": (
        lambda ds: gw.nn.GCN.for_data(ds, 4)(ds.graph, ds.x, rows=[0]),
        "expected int32 .* ids, got list$",
    ),
    "dropout as text": (
        lambda ds: gw.nn.GCN.for_data(ds, 4, dropout="0.5"),
        r"expected dropout in \[0, 1\), got '0\.5'$",
    ),
    "a factor without end": (
        lambda ds: _trainer(ds, scheduler="exponential:inf"),
        "^scheduler: expected cosine:EPOCHS, ",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_use_is_one_line(ds: gw.Dataset, name: str) -> None:
    call, text = WRONG[name]
    with pytest.raises(gw.errors.GraphWeftError, match=text) as caught:
        call(ds)
    assert "\n" not in str(caught.value)


def test_what_is_remembered_can_be_read_again(ds: gw.Dataset, tmp_path: Path) -> None:
    class Counts:
        most = np.float64(0.25)

        def on_fit_end(self, trainer: gw.Trainer) -> None: ...

        def state_dict(self) -> dict[str, Any]:
            return {"most": self.most}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.most = state["most"]

    told = {"rate": np.float64(0.5), "sizes": (np.int64(3),)}
    _trainer(ds, out=tmp_path, config=told, remember=told, callbacks=[Counts()]).fit(1)
    again = _trainer(ds, out=tmp_path, config=told, remember=told, callbacks=[counts := Counts()])
    counts.most = None
    assert again.resume() and counts.most == 0.25
