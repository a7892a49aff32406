"""Mini-batches over ranks against one process: the same batches, the same parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from dist.rank_cases import dataset, link_state, link_trainer, model_of, state_of, trainer_of
from dist.rank_processes import run_case

import graphweft as gw
from graphweft._errors import ConfigError
from graphweft.dist.ranks import Ranks
from graphweft.loader import epochs

MODELS = ("SAGE", "GCN", "GAT", "GIN", "user")


def alone(name: str, ranks: Ranks | None = None, **options: Any) -> dict[str, Any]:
    trainer = trainer_of(name, ranks, **options)
    trainer.fit(2)
    return state_of(trainer)


def assert_close(a: dict[str, Any], b: dict[str, Any], bound: float = 1e-5) -> None:
    for name, tensor in a["model"].items():
        torch.testing.assert_close(b["model"][name], tensor, rtol=0, atol=bound, msg=name)
    for name in ("losses", "val_loss"):
        assert a[name] == pytest.approx(b[name], rel=bound)


def assert_same_bits(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert all(torch.equal(tensor, b["model"][name]) for name, tensor in a["model"].items())
    assert all(a[name] == b[name] for name in ("losses", "val_loss", "test_acc"))
    assert torch.equal(a["predicted"], b["predicted"])


@pytest.mark.parametrize("name", MODELS)
def test_ordered_slices_of_one_rank_train_as_whole_batches(name: str) -> None:
    assert_close(alone(name), alone(name, Ranks(reduce="ordered")))


@pytest.mark.parametrize("options", [{"accumulate": 3}, {"batch_size": 3}, {"weight_decay": 0.01, "optimizer": "sgd"}])
def test_ordered_slices_work_with_other_options(options: dict[str, Any]) -> None:
    assert_close(alone("SAGE", **options), alone("SAGE", Ranks(reduce="ordered"), **options))


def test_labels_that_are_known_in_part_weigh_as_in_one_batch() -> None:
    def train(ranks: Ranks | None) -> dict[str, Any]:
        ds = dataset()
        y = torch.randn(ds.num_nodes, 3, generator=torch.Generator().manual_seed(5))
        y[torch.rand(y.shape, generator=torch.Generator().manual_seed(6)) < 0.6] = torch.nan
        parts = (ds.train_idx, ds.val_idx, ds.test_idx)
        values = gw.Dataset("values", ds.graph, ds.x, y, *parts, task="regression")
        torch.manual_seed(0)
        model = gw.nn.SAGE(ds.num_features, 8, 3)
        given = {"mode": "mini", "fanouts": (3, 3), "batch_size": 17, "ranks": ranks, "restore_best": False}
        trainer = gw.Trainer(model, values, **given)  # type: ignore[arg-type]
        trainer.fit(2)
        return {"model": dict(model.state_dict()), "losses": trainer.history["loss"], "val_loss": []}

    assert_close(train(None), train(Ranks(reduce="ordered")))


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_train_as_one_process(tmp_path: Path, size: int) -> None:
    names = [f"{name}:{reduce}" for name in ("SAGE", "user") for reduce in ("any", "ordered")]
    names += ["GCN:any", "GAT:ordered", "degree:any"]
    run_case(tmp_path, size, "train", *names)
    for text in names:
        name, reduce = text.split(":")
        states = [torch.load(tmp_path / f"{name}-{reduce}-{rank}.pt", weights_only=True) for rank in range(size)]
        for state in states[1:]:  # no rank goes its own way
            assert_same_bits(states[0], state)
        assert_close(alone(name), states[0])
        if reduce == "ordered":
            assert_same_bits(alone(name, Ranks(reduce="ordered")), states[0])
        loader = trainer_of(name, None)._batch.loader
        seeds = [loader.seeds[loader.order(epoch)].split(17) for epoch in range(2)]
        wanted = sorted([epoch, *ids.tolist()] for epoch in range(2) for ids in seeds[epoch])
        assert all(state["seeds"] == wanted for state in states)
        parameters = sum(tensor.numel() for tensor in states[0]["model"].values())
        assert states[0]["bytes"] >= 2 * (size - 1) * 4 * parameters * len(seeds[0]) - 64 * len(seeds[0])


def test_ranks_of_one_host_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that prepare batches, and those left to the model, are tried up to a rank's part of the processors."""
    monkeypatch.setattr(epochs, "processors", lambda: 8)
    for ranks, most in (("1", 8), ("4", 2), ("8", 1), ("16", 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        for made in (trainer_of, link_trainer):
            ways = made("SAGE", Ranks(reduce="ordered"))._batch.loader.ways
            assert max(way.workers for way in ways) == most
            assert all(way.model + way.workers <= most for way in ways if way.model)


def test_what_cannot_be_shared_is_refused_with_a_remedy() -> None:
    ds, two = dataset(), Ranks(0, 2)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"mode": "mini", "sampler": "shadow"}, "sampler=ShadowSampler cannot be combined with ranks=2"),
        ({"mode": "mini", "macro": "large:1/2"}, "macro cannot be combined with ranks=2; use no macro-batches"),
        (
            {"mode": "mini", "prepare": "subtasks"},
            "prepare=subtasks cannot be combined with ranks=2; use prepare='whole'",
        ),
        ({"mode": "macro", "macro": "parts:1/2"}, "mode=macro cannot be combined with ranks=2; use mode='mini'"),
    ]
    for options, text in cases:
        with pytest.raises(ConfigError, match=text):
            gw.Trainer(model_of("SAGE", ds), ds, ranks=two, **options)
    with pytest.raises(ConfigError, match="norm=batch cannot be combined with ranks=2; use norm='layer'"):
        gw.Trainer(model_of("SAGE", ds, norm="batch"), ds, mode="mini", ranks=two)


@pytest.mark.parametrize(("size", "names"), [(2, ["SAGE:ordered"]), (3, ["SAGE:any", "user:any"])])
def test_link_prediction_is_that_of_one_process(tmp_path: Path, size: int, names: list[str]) -> None:
    """Batches, negatives and the edges that messages do without; with ordered sums the same bits as one rank."""
    run_case(tmp_path, size, "links", *names)
    for text in names:
        name, reduce = text.split(":")
        trainer = link_trainer(name, None if reduce == "any" else Ranks(reduce="ordered"))
        trainer.fit(2)
        wanted = link_state(trainer)
        for rank in range(size):
            state = torch.load(tmp_path / f"{name}-{reduce}-{rank}.pt", weights_only=True)
            for column in ("loss", "val_loss", "test_acc"):
                assert state[column] == pytest.approx(wanted[column], rel=1e-5), (text, column)
            for key, numbers in wanted["model"].items():
                torch.testing.assert_close(state["model"][key], numbers, rtol=0, atol=1e-5)
                assert reduce == "any" or torch.equal(state["model"][key], numbers), key
