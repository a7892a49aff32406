"""Steps that are replayed for later batches: the same bits as steps that are not, and counts of either."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import graphweft as gw
from graphweft._errors import ConfigError
from graphweft.cli import main
from graphweft.data.synthetic import synthetic
from graphweft.runtime import dense
from graphweft.runtime.padded import Bounds
from graphweft.train import replayed
from graphweft.train.trainer import Trainer

DS = synthetic("arxiv", scale=0.01, seed=1)
MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "GCN": (gw.nn.GCN, {}),
    "SAGE": (gw.nn.SAGE, {}),
    "SAGE, dropout": (gw.nn.SAGE, {"dropout": 0.5, "residual": True}),
    "GAT": (gw.nn.GAT, {"heads": 2}),
    "GATv2": (gw.nn.GAT, {"heads": 2, "v2": True}),
    "GIN": (gw.nn.GIN, {}),
    "GIN, train_eps": (gw.nn.GIN, {"train_eps": True}),
    "SAGE, layer norm": (gw.nn.SAGE, {"norm": "layer"}),
}
IN_TORCH = ("SAGE, layer norm",)  # torch computes part of a step


def made(name: str, graphs: str = "on", **options: Any) -> Trainer:
    kind, more = MODELS[name]
    torch.manual_seed(5)
    model = kind(DS.num_features, 16, DS.num_classes, num_layers=2, **more)
    given = {"fanouts": (5, 3), "batch_size": 100, "seed": 3, "eval_every": 10, **options}
    return Trainer(model, DS, lr=0.01, mode="mini", cuda_graphs=graphs, **given)


def outcome(trainer: Trainer) -> tuple[list[Any], list[Tensor]]:
    return trainer.history["loss"], [t.clone() for t in trainer.model.state_dict().values()]


def same(one: Trainer, other: Trainer) -> bool:
    (losses, tensors), (others, wanted) = outcome(one), outcome(other)
    return losses == others and all(torch.equal(a, b) for a, b in zip(tensors, wanted, strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_training_with_replays_is_training_without(name: str) -> None:
    """Losses, and with them gradients, and parameters after four epochs, bit for bit."""
    plain, found = made(name, "off"), made(name)
    plain.fit(4)
    found.fit(4)
    assert same(plain, found)
    replayed_, fallbacks = found.history["replayed"], found.history["fallbacks"]
    per_epoch = len(found._batch.loader)  # type: ignore[attr-defined]
    assert replayed_[0] == fallbacks[0] == 0
    assert [a + b for a, b in zip(replayed_[1:], fallbacks[1:], strict=True)] == [per_epoch] * 3  # type: ignore[operator]
    if name in IN_TORCH:
        assert not any(replayed_) and "cannot be written down on cpu" in found.replays["refused"]
    else:
        assert sum(replayed_) >= 3 * (per_epoch - 2) and found.replays["launches"] <= (40 if name == "GAT" else 30)
    assert "replayed" not in plain.history[-1].values()


def test_rounded_products_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """In whole batches and in those of other sizes, with the bits of steps that run as they come."""
    monkeypatch.setattr(dense, "rounds_operands", lambda k, m: True)
    exact, plain, found = (
        made("SAGE", how, precision=p) for how, p in (("off", "float32"), ("off", "bf16"), ("on", "bf16"))
    )
    for trainer in (exact, plain, found):
        trainer.fit(3)
    assert same(plain, found) and not same(plain, exact)
    assert sum(found.history["replayed"]) >= 2 * (len(found._batch.loader) - 2)  # type: ignore[attr-defined]


def test_a_batch_beyond_the_bounds_runs_as_it_comes_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds below what the first epoch needed: some batches fit, others do not, and no bit is another."""

    def narrowed(all_: Bounds) -> Bounds:
        return Bounds((all_.rows[0], *(int(0.92 * n) for n in all_.rows[1:])), tuple(int(0.92 * n) for n in all_.edges))

    plain, found = made("SAGE", "off", batch_size=40), made("SAGE", batch_size=40)
    plain.fit(4)
    found.fit(1)
    replays = found._batch.replays  # type: ignore[attr-defined]
    assert replays.bounds is not None
    replays.bounds = narrowed(replays.bounds)
    sizes: list[tuple[Bounds, bool]] = []
    inner = replays._replay
    monkeypatch.setattr(
        replays, "_replay", lambda size, *rest: sizes.append((size, (out := inner(size, *rest)) is not None)) or out
    )
    found.fit(3)
    assert same(plain, found)
    fits = [size.rows[0] == 40 and replays.bounds.holds(size) for size, _ in sizes]
    assert fits == [was for _, was in sizes] and any(fits)
    assert sum(not size.rows[0] < 40 and not fit for (size, _), fit in zip(sizes, fits, strict=True)) > 0
    assert sum(found.history["fallbacks"]) == fits.count(False) and sum(found.history["replayed"]) == fits.count(True)


def test_a_run_that_is_taken_up_replays_the_same_batches(tmp_path: Path) -> None:
    whole, first, rest = (made("SAGE, dropout", out=tmp_path / part) for part in ("whole", "part", "part"))
    whole.fit(4)
    first.fit(2)
    assert rest.resume()
    rest.fit(2)
    assert same(whole, rest)
    for column in ("replayed", "fallbacks"):
        assert whole.history[column] == rest.history[column]


def test_parameters_that_move_and_other_settings_are_written_down_again() -> None:
    plain, found = made("SAGE", "off"), made("SAGE")
    for trainer in (plain, found):
        trainer.fit(2)
        layer = trainer.model.layers[0]
        layer.self_weight.data = layer.self_weight.data.clone()
        trainer.fit(1)
        layer.bias.requires_grad_(False)
        trainer.fit(2)
    assert same(plain, found) and found.history["replayed"][-1] > 0  # type: ignore[operator]


def test_a_replay_that_is_not_the_step_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first replay is compared with the step; one that differs leaves every batch as it comes."""
    inner = replayed.capture

    def wrong(*given: Any) -> Any:
        step = inner(*given)

        class Wrong:
            launches, exact, updates = 1, True, False

            def __call__(self, *args: Any) -> Any:
                loss, gradients = step(*args)  # type: ignore[misc]
                return loss, {k: None if g is None else g + 1e-6 for k, g in gradients.items()}

        return Wrong()

    monkeypatch.setattr(replayed, "capture", wrong)
    plain, found = made("SAGE", "off"), made("SAGE")
    plain.fit(3)
    found.fit(3)
    assert same(plain, found)
    assert not any(found.history["replayed"]) and "was not the step" in found.replays["refused"]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"mode": "full"},
            "cuda_graphs='on' cannot be combined with mode='full' where it takes all nodes at once on cpu",
        ),
        ({"macro": "large:1/4"}, "cuda_graphs='on' cannot be combined with macro"),
        ({"accumulate": 2}, "cuda_graphs='on' cannot be combined with accumulate"),
        ({"prepare": "subtasks"}, "cuda_graphs='on' cannot be combined with prepare"),
        ({"memory": "2GB"}, "cuda_graphs='on' cannot be combined with memory"),
        ({"task": "link"}, "cuda_graphs='on' cannot be combined with task=link"),
        ({"cuda_graphs": "yes"}, "cuda_graphs: expected one of auto, on, off, got 'yes'"),
    ],
)
def test_what_does_not_fit_is_one_line(options: dict[str, Any], line: str) -> None:
    model = gw.nn.SAGE(DS.num_features, 4, DS.num_classes)
    with pytest.raises(ConfigError) as caught:
        Trainer(model, DS, **{"mode": "mini", "cuda_graphs": "on", **options})
    assert str(caught.value) == line


def test_a_plan_of_full_batches_is_not_replayed_in_silence() -> None:
    ds = synthetic("default", scale=0.02)
    model = gw.nn.SAGE(ds.num_features, 8, ds.num_classes)
    with pytest.raises(ConfigError, match="cuda_graphs='on' cannot be combined with mode='auto' where"):
        Trainer(model, ds, mode="auto", cuda_graphs="on")
    assert Trainer(model, ds, mode="auto").mode == "full"


def test_models_whose_batches_cannot_be_padded_are_one_line() -> None:
    for model, why in (
        (gw.nn.GCN(DS.num_features, 4, DS.num_classes, norm="batch"), "normalisation takes statistics over the rows"),
        (torch.nn.Linear(DS.num_features, DS.num_classes), "is not compiled together with its sampler"),
    ):
        with pytest.raises(ConfigError, match=f"^cuda_graphs='on' cannot be combined with .*: .*{why}"):
            Trainer(
                Rows(model) if isinstance(model, torch.nn.Linear) else model, DS, mode="mini", cuda_graphs="on"
            ).fit(1)


class Rows(torch.nn.Module):
    """A model of a user's own."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return out


def test_the_command_says_what_was_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = "train --data arxiv --scale 0.01 --model sage --mode mini --fanouts 5,3 --batch-size 100 --epochs 3 --json"
    assert main([*given.split(), "--cuda-graphs", "on", "--out", str(tmp_path / "run")]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["cuda_graphs"]["launches"] > 0 and summary["cuda_graphs"]["rows"][0] == 100
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["replayed"] > 0 for line in lines] == [False, True, True] and "fallbacks" in lines[0]
