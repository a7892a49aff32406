"""Groups that are gone through several times: every seed so often, other draws each time, no more bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import graphweft as gw
from graphweft.cli import main
from graphweft.loader.group_loader import GroupLoader
from graphweft.sample.stages import Parts
from graphweft.train.options import split_macro


@pytest.fixture(scope="module")
def ds() -> gw.Dataset:
    return gw.synthetic("default", scale=0.05, seed=0)


@pytest.fixture(scope="module")
def store(ds: gw.Dataset, tmp_path_factory: pytest.TempPathFactory) -> gw.macro.Store:
    return gw.macro.prepare_store(ds, tmp_path_factory.mktemp("reuse") / "store", parts=6, memory="64MB")


def loader_of(store: gw.macro.Store, **options: Any) -> GroupLoader:
    seeds = torch.from_numpy(store.split("train")[0])
    return GroupLoader(store, seeds, [3, 2], 16, True, 0, count=2, **options)


@pytest.mark.parametrize("reuse", [1, 2, 4])
def test_every_seed_is_in_so_many_batches_and_groups_are_read_once(store: gw.macro.Store, reuse: int) -> None:
    once, loader = loader_of(store), loader_of(store, reuse=reuse)
    seeds = torch.from_numpy(store.split("train")[0])
    for epoch in range(2):
        plan, single = loader.plan(epoch), once.plan(epoch)
        places = torch.cat([group.places for group in plan])
        assert torch.equal(torch.bincount(places, minlength=len(seeds)), torch.full((len(seeds),), reuse))
        assert [group.parts for group in plan[::reuse]] == [group.parts for group in single]
        assert all(torch.equal(a.places, b.places) for a, b in zip(plan[::reuse], single, strict=True))
        assert [group.number for group in plan] == [i // reuse for i in range(len(plan))]
        assert len({(group.number, group.key) for group in plan}) == len(plan)  # nodes of other groups draw apart
        before, expected = store.counts.nbytes, len(loader)
        batches = list(loader)
        read = store.counts.nbytes - before
        assert len(batches) == expected == reuse * len(list(once))
        assert store.counts.nbytes - before == 2 * read


def test_the_same_bits_for_any_preparation_and_after_an_interruption(store: gw.macro.Store) -> None:
    def drawn(loader: GroupLoader, most: int | None = None) -> list[Any]:
        found = []
        for batch in loader:
            found.append((batch.y.tolist(), batch.edge_index.tolist()))
            if len(found) == most:
                break
        return found

    whole = drawn(loader_of(store, reuse=3, prefetch=0))
    assert drawn(loader_of(store, reuse=3, prefetch=4, workers=2)) == whole
    half = len(whole) // 2
    first = loader_of(store, reuse=3)
    assert drawn(first, half) == whole[:half]
    second = loader_of(store, reuse=3)
    second.load_state_dict(first.state_dict())
    assert drawn(second) == whole[half:]
    with pytest.raises(gw.errors.CheckpointError):
        loader_of(store, reuse=2).load_state_dict(first.state_dict())


def test_a_store_trains_as_memory_does(store: gw.macro.Store, ds: gw.Dataset) -> None:
    part = torch.empty(ds.num_nodes, dtype=torch.int64)
    for number in range(6):
        part[store.part(number).node_ids] = number
    losses = []
    for data, stages in ((store, "parts:2/6"), (ds, Parts(part, 2))):
        torch.manual_seed(0)
        model = gw.nn.SAGE(ds.num_features, 8, ds.num_classes, num_layers=2)
        macro = gw.macro.Macro(stages, reuse=2)
        trainer = gw.Trainer(model, data, mode="macro", macro=macro, fanouts=(3, 2), batch_size=32)
        losses.append([record.loss for record in trainer.fit(2)])
    assert losses[0] == losses[1]


def test_the_command_keeps_reuse_with_the_run(
    store: gw.macro.Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["train", "--data", str(store.path), "--model", "sage", "--layers", "2", "--hidden", "8"]
    common += ["--fanouts", "3,2", "--mode", "macro", "--memory", "64MB", "--json", "--out", str(tmp_path / "run")]
    run = [*common, "--macro", "parts:2/6+reuse:3"]
    assert main([*run, "--epochs", "1"]) == 0
    told = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert told[0]["bytes_needed"] <= told[0]["bytes_read"] <= 1.5 * told[0]["bytes_needed"]
    assert told[0]["read_seconds"] > 0 and told[0]["wait_seconds"] >= 0
    capsys.readouterr()
    assert main([*run, "--epochs", "2", "--resume"]) == 0
    assert main([*common, "--macro", "parts:2/6", "--epochs", "3", "--resume"]) == 2
    assert "reuse" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("parts:2/8+reuse:3", ("parts:2/8", None, 3, 0, 0.0)),
        ("parts:2/8+reuse:3+hubs:1MB", ("parts:2/8", "1MB", 3, 0, 0.0)),
        ("reuse:2", (None, None, 2, 0, 0.0)),
        ("parts:2/8+keep:3", ("parts:2/8", None, 1, 3, 0.0)),
        ("large:1/8", ("large:1/8", None, 1, 0, 0.0)),
    ],
)
def test_texts(text: str, expected: tuple[str | None, str | None, int, int, float]) -> None:
    assert tuple(split_macro(text)) == (*expected, "group")


def test_what_is_refused(ds: gw.Dataset, store: gw.macro.Store) -> None:
    model = gw.nn.SAGE(ds.num_features, 8, ds.num_classes, num_layers=2)
    for wrong in (0, 5, True, "2"):
        with pytest.raises(gw.errors.ConfigError, match="reuse: expected an integer from 1 to 4, got"):
            gw.macro.Macro("parts:1/2", reuse=wrong)  # type: ignore[arg-type]
    with pytest.raises(gw.errors.ConfigError, match="macro: reuse cannot be combined with mode=mini"):
        gw.Trainer(model, ds, mode="mini", macro=gw.macro.Macro("parts:1/2", reuse=2), fanouts=(3, 2))
    with pytest.raises(gw.errors.ConfigError, match=r"expected reuse:N with N from 1 to 4, got 'parts:1/2\+reuse:x'"):
        gw.macro.Macro("parts:1/2+reuse:x")
    assert main(["train", "--data", str(store.path), "--mode", "mini", "--macro", "parts:1/2+reuse:2"]) == 2
