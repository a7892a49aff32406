"""Folders of parts: what is in them against sets, training from them against one process, damage, budgets."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from dist.rank_cases import (
    dataset,
    full_trainer,
    looped_dataset,
    looped_trainer,
    model_of,
    part_model,
    state_of,
    uneven_dataset,
    uneven_trainer,
)
from dist.rank_processes import run_case, run_ranks

import graphweft as gw
from graphweft._errors import ConfigError, DataError, RankError
from graphweft.cli import main
from graphweft.data.part_check import ARRAYS, folder_of, why_not
from graphweft.data.part_dataset import PartDataset
from graphweft.data.part_folder import write_parts
from graphweft.data.part_format import PartManifest, read_manifest
from graphweft.data.prepare_store import prepare_store
from graphweft.dist.launch import launch
from graphweft.dist.ranks import Ranks
from graphweft.partitioning import multilevel
from graphweft.partitioning.partition import partition
from graphweft.storage.store_format import MANIFEST
from graphweft.train.part_data import read_part_of
from graphweft.train.spec import TrainSpec


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Neighbours stand together, as in parts of a large graph."""
    ds = dataset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multilevel, "WORTH_ORDERING", 0)
        patch.setattr(multilevel, "CELL", 16)
        return write_parts(ds, partition(ds.graph, 3, "gap"), tmp_path_factory.mktemp("parts") / "out")


def test_parts_hold_what_sets_say(folder: Path) -> None:
    ds = dataset()
    part = partition(ds.graph, 3, "gap").part
    src, dst = (end.tolist() for end in ds.graph.edges())
    degrees = ds.graph.loopless.in_degrees().float()
    for number in range(3):
        found = PartDataset(folder, number)
        own = found.y.shape[0]
        ids = found.ids
        assert set(ids[:own].tolist()) == set((part == number).nonzero().reshape(-1).tolist())
        assert int((ids[1:own] < ids[: own - 1]).sum()) > 1  # interior and boundary by id would descend once
        ghosts = {s for s, d in zip(src, dst, strict=True) if part[d] == number and part[s] != number}
        assert set(ids[own:].tolist()) == ghosts and len(ids) == own + len(ghosts)
        assert torch.equal(found.owner, part[ids].long())
        assert torch.equal(found.x, ds.x[ids]) and torch.equal(found.y, ds.y[ids[:own]])
        for name in ("train", "val", "test"):
            assert set(ids[found.idx(name)].tolist()) == set(ds.idx(name).tolist()) & set(ids[:own].tolist())
        a, b = found.graph.edges()
        edges = sorted(zip(ids[a].tolist(), ids[b].tolist(), strict=True))
        assert edges == sorted((s, d) for s, d in zip(src, dst, strict=True) if part[d] == number)
        for other in range(3):
            there = found.owner == other
            assert torch.equal(PartDataset(folder, other).ids[found.home[there]], ids[there])
        assert torch.equal(found.graph.loopless.in_degrees()[:own].float(), degrees[ids[:own]])


def test_a_store_gives_the_parts_of_its_dataset(tmp_path: Path) -> None:
    ds = dataset()
    store = prepare_store(ds, tmp_path / "store", parts=5)
    made = partition(ds.graph, 2, "random")
    first = write_parts(ds, made, tmp_path / "a")
    second = write_parts(store, made, tmp_path / "b", memory="17MB")  # some rows at a time
    for number in range(2):
        a, b = PartDataset(first, number), PartDataset(second, number)
        assert torch.equal(a.x, b.x) and torch.equal(a.ids, b.ids) and torch.equal(a.y, b.y)
    with pytest.raises(ConfigError, match="memory: expected at least"):
        write_parts(store, made, tmp_path / "c", memory="1MB")
    with pytest.raises(ConfigError, match="out: expected a folder that does not exist yet"):
        write_parts(ds, made, tmp_path / "a")
    assert not (tmp_path / "c").exists()


@pytest.mark.slow
def test_training_from_parts_has_the_losses_of_one_process(folder: Path, tmp_path: Path) -> None:
    run_case(tmp_path, 3, "parts", str(folder), "GCN", "GAT")
    for name in ("GCN", "GAT"):
        trainer = full_trainer(name, None)
        trainer.fit(4)
        wanted = state_of(trainer)
        for rank in range(3):
            state = torch.load(tmp_path / f"{name}-{rank}.pt", weights_only=True)
            assert state["losses"] == pytest.approx(wanted["losses"], rel=1e-5)
            assert state["val_loss"] == pytest.approx(wanted["val_loss"], rel=1e-5)
            assert state["test_acc"] == pytest.approx(wanted["test_acc"])
            assert torch.equal(state["predicted"], wanted["predicted"])


@pytest.mark.parametrize("name", ["GCN", "SAGE", "GIN", "NormedSAGE"])
def test_ranks_that_give_their_features_up_have_the_losses_of_one_process(
    folder: Path, tmp_path: Path, name: str
) -> None:
    """The sums that stay are those of the features, not of the zeros in their place; norms read features anew."""
    run_case(tmp_path, 3, "parts", str(folder), f"{name}-released")
    trainer = gw.Trainer(part_model(name, dataset()), dataset(), restore_best=False, lr=0.02, seed=3)
    trainer.fit(4)
    wanted = state_of(trainer)
    for rank in range(3):
        state = torch.load(tmp_path / f"{name}-released-{rank}.pt", weights_only=True)
        assert (state["held"] == 4) == (not name.startswith("Normed"))
        assert state["losses"] == pytest.approx(wanted["losses"], rel=1e-5)
        assert state["val_loss"] == pytest.approx(wanted["val_loss"], rel=1e-5)
        assert torch.equal(state["predicted"], wanted["predicted"])


def test_a_part_is_refused_where_it_would_pass_for_a_graph(folder: Path, tmp_path: Path) -> None:
    """Other modes, and other numbers of ranks; a single part is a graph, whose rows come back by their ids."""
    ds = PartDataset(folder, 0)
    model = model_of("SAGE", dataset())
    for options, text in (
        ({"mode": "mini"}, "mode=mini cannot be combined with parts; expected full"),
        ({"task": "link", "mode": "mini"}, "mode=mini cannot be combined with parts"),
        ({}, "ranks: expected as many as small has parts, 3, got 1"),
    ):
        with pytest.raises(ConfigError, match=text):
            gw.Trainer(model, ds, **options)  # type: ignore[arg-type]
    whole = dataset()
    made = partition(whole.graph, 1, "random")
    single = PartDataset(write_parts(whole, made, tmp_path / "one"), 0)
    found = gw.Trainer(model, single).predictions().outputs
    assert torch.allclose(found, model.eval()(whole.graph, whole.x), atol=1e-5)


def test_a_rank_without_training_nodes_goes_along(tmp_path: Path) -> None:
    """Its rows have no gradients of their own; those of other ranks' nodes still come to it, and leave it."""
    names = ("GCN", "SAGE", "GAT", "user")
    run_case(tmp_path, 2, "uneven", str(tmp_path / "parts"), *names)
    for name in names:
        trainer = uneven_trainer(name, uneven_dataset()[0], None)
        trainer.fit(4)
        for rank in range(2):
            losses = torch.load(tmp_path / f"{name}-{rank}.pt", weights_only=True)["losses"]
            assert losses == pytest.approx(trainer.history["loss"], rel=1e-5), name


def test_degrees_of_ghosts_count_their_self_loops(tmp_path: Path) -> None:
    """For a GCN that adds no self-loops, on a graph that has some: own in-edges do not tell those of ghosts."""
    run_case(tmp_path, 2, "looped", str(tmp_path / "parts"))
    trainer = looped_trainer(looped_dataset(), None)
    trainer.fit(4)
    for rank in range(2):
        losses = torch.load(tmp_path / f"looped-{rank}.pt", weights_only=True)["losses"]
        assert losses == pytest.approx(trainer.history["loss"], rel=1e-5)


def test_damage_is_named(folder: Path, tmp_path: Path) -> None:
    ds = dataset()
    out = write_parts(ds, partition(ds.graph, 2, "random"), tmp_path / "out")
    file = folder_of(out, 1) / ARRAYS
    held = bytearray(file.read_bytes())
    held[5] ^= 1
    file.write_bytes(held)
    with pytest.raises(DataError, match="checksum"):
        PartDataset(out, 1)
    file.write_bytes(bytes(held[:8000]))
    with pytest.raises(DataError, match="truncated"):
        PartDataset(out, 1)
    file.unlink()
    with pytest.raises(DataError, match="expected the arrays of part 1"):
        PartDataset(out, 1)
    text = (out / MANIFEST).read_text()
    (out / MANIFEST).write_text(text.replace('"num_nodes": ', '"num_nodes": 1'))
    with pytest.raises(DataError, match="damaged"):
        read_manifest(out)
    (out / MANIFEST).write_text("{")
    with pytest.raises(DataError, match="manifest"):
        read_manifest(out)


def test_the_manifest_of_the_folder_is_read_by_every_rank(folder: Path, tmp_path: Path) -> None:
    """Any flipped byte, any length and any missing key is an error, whichever rank reads; without it parts suffice."""
    out = tmp_path / "out"
    shutil.copytree(folder, out)
    whole = (out / MANIFEST).read_bytes()
    spec = TrainSpec(data=str(out))
    for place in range(len(whole)):
        held = bytearray(whole)
        held[place] ^= 1 << place % 8
        (out / MANIFEST).write_bytes(held)
        with pytest.raises(DataError):
            read_manifest(out)
    for length in range(0, len(whole) - 1, 97):
        (out / MANIFEST).write_bytes(whole[:length])
        for rank in range(3):
            with pytest.raises(DataError, match="manifest"):
                read_part_of(spec, Ranks(rank, 3))
    other = write_parts(dataset(), partition(dataset().graph, 3, "random"), tmp_path / "other")
    (out / MANIFEST).write_bytes((other / MANIFEST).read_bytes())
    with pytest.raises(DataError, match="not written together"):
        read_part_of(spec, Ranks(1, 3))
    (out / MANIFEST).unlink()
    found = read_part_of(spec, Ranks(1, 3))
    assert found is not None and found.y.shape[0] == read_manifest(folder).parts[1].own


def test_manifests_are_checked_against_their_schema(folder: Path) -> None:
    """Texts with a checksum that is right, and a key or a count that is not."""
    text = (folder / MANIFEST).read_text()

    def read(change: Callable[[dict[str, Any]], object]) -> None:
        held = json.loads(text)
        change(held)
        del held["crc32"]
        crc = zlib.crc32(json.dumps(held, sort_keys=True).encode())
        PartManifest.from_json(json.dumps({**held, "crc32": crc}), "here")

    read(lambda held: None)
    plain = json.loads(text)
    for name in set(plain) - {"crc32"}:
        with pytest.raises(DataError, match="here: expected"):
            read(lambda held, name=name: held.pop(name))  # type: ignore[misc]
    for name in plain["parts"][0]:
        with pytest.raises(DataError, match="here: expected"):
            read(lambda held, name=name: held["parts"][1].pop(name))  # type: ignore[misc]
    for name in ("num_nodes", "num_edges", "num_features", "num_classes"):
        for wrong in ("7", -1, 2.5, None, *([plain[name] + 1] if name != "num_classes" else [])):
            with pytest.raises(DataError, match="here: expected"):
                read(lambda held, name=name, wrong=wrong: held.update({name: wrong}))  # type: ignore[misc]
    for name in ("shape", "dtype", "offset", "name", "crc32"):
        with pytest.raises(DataError, match="here: expected"):
            read(lambda held, name=name: held["parts"][1]["blocks"][0].update({name: "x32"}))  # type: ignore[misc]


def test_a_damaged_manifest_of_the_folder_ends_all_with_one_line_of_status_2(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(folder, out)
    held = bytearray((out / MANIFEST).read_bytes())
    held[held.index(b'"num_nodes": ') + 13] ^= 1
    (out / MANIFEST).write_bytes(held)
    words = ["-m", "graphweft", "train", "--data", str(out), "--quiet", "--epochs", "1", "--out", str(tmp_path / "run")]
    ended = run_ranks(tmp_path / "group", [words] * 3)
    assert [status for status, _ in ended] == [2, 2, 2]
    assert "the file is damaged" in ended[0][1] and str(out / MANIFEST) in ended[0][1]
    assert len(ended[0][1].splitlines()) == 1 and ended[1][1] == ended[2][1] == ""


def test_models_of_relations_are_refused_on_parts(folder: Path) -> None:
    for name in ("rgcn", "hgt"):
        with pytest.raises(ConfigError, match=f"model={name} cannot be combined with parts"):
            read_part_of(TrainSpec(data=str(folder), model=name), Ranks(1, 3))


def test_wrong_counts_and_missing_parts_are_one_line_of_status_2(folder: Path, tmp_path: Path) -> None:
    command = ["-m", "graphweft", "train", "--data", str(folder), "--quiet", "--epochs", "1"]
    ended = run_ranks(tmp_path / "group", [[*command, "--out", str(tmp_path / "run")]] * 2)
    assert [status for status, _ in ended] == [2, 2]
    assert "expected as many as" in ended[0][1] and len(ended[0][1].splitlines()) == 1 and ended[1][1] == ""


def test_a_damaged_part_of_one_rank_ends_all_with_one_line_of_status_2(tmp_path: Path) -> None:
    ds = dataset()
    out = write_parts(ds, partition(ds.graph, 2, "random"), tmp_path / "parts")
    command = [
        "-m",
        "graphweft",
        "train",
        "--data",
        str(out),
        "--quiet",
        "--epochs",
        "1",
        "--out",
        str(tmp_path / "run"),
    ]
    file = folder_of(out, 1) / ARRAYS
    held = bytearray(file.read_bytes())
    held[5] ^= 1
    file.write_bytes(held)
    for text in ("checksum", "expected the arrays of part 1"):
        ended = run_ranks(tmp_path / text[:5], [command] * 2)
        assert [status for status, _ in ended] == [2, 2]
        assert "rank 1" in ended[0][1] and text in ended[0][1] and len(ended[0][1].splitlines()) == 1
        assert ended[1][1] == ""
        file.unlink(missing_ok=True)


def test_who_starts_ranks_says_what_they_would_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every damage that a rank finds, in its words; the command ends without waiting for the ranks."""
    ds = dataset()
    out = write_parts(ds, partition(ds.graph, 2, "random"), tmp_path / "parts")
    assert why_not(out, 2) == "" == why_not(tmp_path, 2)
    assert "expected as many as" in why_not(out, 3)
    file, whole = folder_of(out, 1) / ARRAYS, (out / MANIFEST).read_bytes()
    held = bytearray(file.read_bytes())
    for block in read_manifest(out).parts[1].blocks:
        wrong = bytearray(held)
        wrong[block.offset + block.nbytes - 1] ^= 4
        file.write_bytes(wrong)
        with pytest.raises(DataError) as failure:
            PartDataset(out, 1)
        assert why_not(out, 2) == str(failure.value)
    file.write_bytes(held[:8000])
    assert "truncated" in why_not(out, 2)
    file.unlink()
    assert "expected the arrays of part 1" in why_not(out, 2)
    file.write_bytes(held)
    for text in (whole.replace(b"random", b"metis"), whole[:-7], b"{}"):
        (out / MANIFEST).write_bytes(text)
        assert "damaged" in why_not(out, 2) or text == b"{}"
    (out / MANIFEST).write_bytes(whole)
    copy, other = folder_of(out, 1) / MANIFEST, write_parts(ds, partition(ds.graph, 2, "gap"), tmp_path / "other")
    for text in (whole.replace(b"random", b"metis"), whole[:-7], (other / MANIFEST).read_bytes()):
        copy.write_bytes(text)
        with pytest.raises(DataError) as failure:
            read_part_of(TrainSpec(data=str(out)), Ranks(1, 2))
        assert why_not(out, 2) == str(failure.value).partition(" (")[0]
    copy.write_bytes(whole)
    file.write_bytes(wrong)
    monkeypatch.setattr("graphweft.dist.launch._start", _silent)
    with pytest.raises(RankError, match="the file is damaged") as refused:
        launch([], 2, check=lambda: why_not(out, 2))
    assert refused.value.status == 2


def _silent(arguments: Any, rank: int, size: int, folder: Path) -> Any:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])


def test_the_command_writes_parts_and_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--data", "cora", "--scale", "0.1", "--parts", "2", "--method", "auto", "--model", "sage"]
    assert main(["partition", *flags, "--out", str(tmp_path / "parts"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    manifest = read_manifest(tmp_path / "parts")
    assert [info.ghosts for info in manifest.parts] == report["ghosts"]
    assert sum(info.own for info in manifest.parts) == report["num_nodes"]
    chosen = [held for held in report["methods"].values() if "predicted_epoch_seconds" in held]
    assert report["predicted_epoch_seconds"] == min(held["predicted_epoch_seconds"] for held in chosen)
    assert main(["train", "--data", str(tmp_path / "parts"), "--out", str(tmp_path / "run")]) == 2
    assert "--ranks: expected as many as" in capsys.readouterr().err
    assert main(["partition", *flags]) == 0
    assert "seconds an epoch" in capsys.readouterr().out
    assert gw.partition(dataset().graph, 2, "hierarchical").phases
