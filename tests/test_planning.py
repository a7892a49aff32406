"""The command ``plan`` and ``gw.plan`` over names, specs and stores."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import graphweft as gw
from graphweft.cli import main
from graphweft.passes.certificate import Certifier

_SMALL = ["--data", "cora", "--scale", "0.2", "--hidden", "16"]


def test_the_command_tells_what_auto_does(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["plan", *_SMALL, "--model", "gat", "--memory", "2GB", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert main(["train", *_SMALL, "--model", "gat", "--memory", "2GB", "--mode", "auto", "--epochs", "3", "--quiet",
                 "--out", str(tmp_path / "run"), "--json"]) == 0  # fmt: skip
    summary = json.loads(capsys.readouterr().out)
    assert summary["mode"] == told["mode"] == "full"
    assert summary["predicted_epoch_seconds"] == pytest.approx(told["predicted_epoch_seconds"], rel=0.5)
    assert summary["measured_epoch_seconds"] > 0 and summary["measured_mb"] >= 0
    assert [other["mode"] for other in told["others"]] == ["mini", "macro"]
    assert main(["train", *_SMALL, "--out", str(tmp_path / "run"), "--resume", "--epochs", "4", "--quiet"]) == 0


def test_a_run_that_auto_made_mini_is_resumed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    ds = gw.synthetic("arxiv", scale=0.1)
    file = replace(ds, train_idx=ds.train_idx[:8]).save(tmp_path / "few.npz")
    given = ["train", "--data", str(file), "--fanouts", "2,2", "--layers", "2", "--batch-size", "8",
             "--hidden", "128"]  # fmt: skip
    more = ["--mode", "auto", "--out", str(tmp_path / "run"), "--quiet", "--json", "--epochs"]
    assert main([*given, *more, "2"]) == 0
    assert json.loads(capsys.readouterr().out)["mode"] == "mini"
    assert main(["train", "--data", str(file), "--out", str(tmp_path / "run"), "--resume", "--json", "--quiet",
                 "--epochs", "3"]) == 0  # fmt: skip
    told = json.loads(capsys.readouterr().out)
    assert (told["mode"], told["epochs"], told["resumed_after_epoch"]) == ("mini", 3, 2)


def test_the_command_shows_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *_SMALL, "--mode", "mini", "--ranks", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("->  mini") for line in lines)
    assert any("mode mini was asked for" in line for line in lines)
    assert any("mini, 2 ranks" in line for line in lines)
    assert lines[-1] == "kernels and programs: graphweft explain --data cora --scale 0.2 --hidden 16 --mode mini"


def test_the_command_names_one_that_explains_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("id,a,label\n1,0.5,p\n2,0.1,q\n3,0.2,p\n4,0.9,q\n5,0.4,p\n")
    (tmp_path / "e.csv").write_text("src,dst\n1,2\n2,3\n3,4\n4,5\n5,1\n")
    tables = ["--nodes", str(tmp_path / "n.csv"), "--edges", str(tmp_path / "e.csv"), "--label", "label"]
    for words in (tables, [*_SMALL, "--mode", "mini", "--batch-size", "8", "--residual"]):
        assert main(["plan", *words]) == 0
        named = capsys.readouterr().out.splitlines()[-1].partition("graphweft ")[2]
        assert main(shlex.split(named)) == 0
        told = capsys.readouterr().out
        assert told.splitlines()[1].startswith("batches of 8 nodes" if "--mode" in words else "a step computes")


def test_ranks_over_a_network_are_predicted_from_real_parts(capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes are those of the parts' report; a network a thousand times slower costs what its halos are priced at."""

    def scaled(network: str) -> list[dict[str, Any]]:
        assert main(["plan", *_SMALL, "--ranks", "6", "--network", network, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["scaling"][0]["predicted_epoch_seconds"] == pytest.approx(told["predicted_epoch_seconds"])
        rows: list[dict[str, Any]] = told["scaling"]
        return rows

    fast, slow = scaled("100Gbit/s:0us"), scaled("0.1 Gbit/s:0us")
    assert [row["ranks"] for row in fast] == [1, 2, 4, 6]
    for near, far in zip(fast[1:], slow[1:], strict=True):
        parts = ["partition", *_SMALL, "--parts", str(near["ranks"]), "--method", "multilevel", "--json"]
        assert main(parts) == 0
        report = json.loads(capsys.readouterr().out)
        assert near["bytes_sent_per_epoch"] == far["bytes_sent_per_epoch"] == report["predicted_bytes_per_epoch"]
        assert near["ghosts_max"] == max(report["ghosts"])
        assert far["halo_seconds_max"] == pytest.approx(1000 * near["halo_seconds_max"])
        assert far["bound"] != "computation" and far["predicted_epoch_seconds"] > near["predicted_epoch_seconds"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model", "foo"], "graphweft plan: --model: expected one of gcn, "),
        (["--data", "/nowhere.npz"], "graphweft plan: /nowhere.npz: expected"),
        (["--memory", "much"], "graphweft plan: --memory: expected a size such as 8GB or 512MB, got 'much'"),
        (["--memory", "1MB"], "graphweft plan: --memory: expected at least "),
        (["--machine", "/nowhere"], "graphweft plan: --machine: expected a file of graphweft doctor"),
        (["--mode", "macro"], "graphweft plan: --mode: expected full, mini or auto for data in memory"),
        (["--network", "fast"], "graphweft plan: --network: expected RATE:LATENCY such as 100Gbit/s:5us, got 'fast'"),
        (["--task", "link", "--mode", "mini"], "graphweft plan: --task: expected nodes for a plan, got link"),
    ],
)
def test_bad_input_is_one_line(flags: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = flags if "--data" in flags else [*_SMALL, *flags]
    assert main(["plan", *given]) == 2
    told = capsys.readouterr().err
    assert told.startswith(words) and told.count("\n") == 1


def test_tasks_without_a_plan_are_refused_by_what_they_follow_from() -> None:
    ds = gw.synthetic("default", scale=0.02)
    width, sizes = ds.num_features, [0, 10, ds.num_nodes]
    alone = gw.Graph([0], [1], num_nodes=ds.num_nodes)
    graphs = gw.GraphDataset("two", alone, ds.x, [0, 1], [0, 1], [], [], graph_ptr=sizes)
    pairs = gw.Dataset("pairs", ds.graph, ds.x).with_edge_labels([i % 2 for i in range(ds.num_edges)])
    for model, data, task in (
        (gw.nn.GraphModel(width, 8, 2), graphs, "graph_classification"),
        (gw.nn.SAGE(width, 8, 2), pairs, "edge_classification"),
        (gw.nn.GAE(gw.nn.GCN(width, 8, 4)), ds, "unsupervised"),
    ):
        with pytest.raises(gw.errors.ConfigError, match=f"^task: expected nodes for a plan, got {task}"):
            gw.plan(model, data)


def test_doctor_writes_profiles_only_when_it_measures(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["doctor", "--out", str(tmp_path / "m.json")]) == 2
    assert capsys.readouterr().err == "graphweft doctor: --out: expected --calibrate with it, got none\n"
    assert main(["doctor", "--calibrate", "--out", str(tmp_path / "no" / "m.json")]) == 2
    _ = capsys.readouterr()
    assert main(["doctor", "--calibrate", "--device", "cpu", "--out", "m.json"]) == 2
    assert capsys.readouterr().err == "graphweft doctor: --out m.json cannot be combined with --device cpu\n"


def test_a_store_is_planned_by_groups(tmp_path: Path) -> None:
    ds = gw.synthetic("cora", scale=0.2)
    store = gw.macro.prepare_store(ds, tmp_path / "store", parts=4)
    model = gw.nn.GCN(ds.num_features, 16, ds.num_classes)
    plan = gw.plan(model, store, memory="1GB", mode="macro")
    assert (plan.mode, plan.strategy.batches, plan.strategy.disk) == ("macro", "groups of 4 of 4 parts", store.nbytes)
    told = gw.Trainer(model, store, mode="macro", memory="1GB").needs
    assert plan.strategy.needs is not None and told is not None
    assert told.total == pytest.approx(plan.strategy.needs.total, rel=0.1)  # measured twice
    assert plan.strategy.needs.step > 0 and plan.strategy.needs.evaluation > 0 and plan.epoch_seconds is not None
    assert plan.strategy.seconds["reading"] > 0  # the first group is waited for
    twice = gw.plan(model, store, memory="1GB", macro="parts:4/4+reuse:2", mode="macro")
    assert twice.strategy.seconds["product"] == pytest.approx(2 * plan.strategy.seconds["product"])
    assert plan.peak_bytes is not None and plan.peak_bytes <= 10**9
    with pytest.raises(gw.errors.ConfigError, match=r"^memory: expected at least \d+ MB for groups of one of 4 parts"):
        gw.plan(model, store, memory=1000)
    with pytest.raises(gw.errors.ConfigError, match=r"^mode: expected macro, mini or auto for a store, got full"):
        gw.plan(model, str(tmp_path / "store"), mode="full")


def test_a_plan_tries_no_rewrites_which_is_left_to_what_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    monkeypatch.setattr(Certifier, "certify", lambda self, outcome: tried.append(1) or [])
    ds = gw.synthetic("cora", scale=0.1)
    model = gw.nn.GCN(ds.num_features, 16, ds.num_classes)
    gw.plan(model, ds)
    assert not tried
    gw.Trainer(model, ds, mode="full").prepare()
    assert tried
