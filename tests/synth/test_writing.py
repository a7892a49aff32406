"""Writing a program: the memory plan, its text, and folders that are whole or untouched."""

from __future__ import annotations

import json
import math
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import graphweft as gw
from graphweft import cli
from graphweft._errors import ConfigError
from graphweft.run import load_dataset, make_model
from graphweft.synth.arena import Lifetime, place
from graphweft.synth.plans import draws_of, plans_of
from graphweft.synth.spec import ProgramSpec
from graphweft.synth.steps import Steps, steps_of
from graphweft.synthesis import write_program
from graphweft.train.spec import TrainSpec


def _steps(spec: ProgramSpec) -> Steps:
    train = spec.to_train()
    ds = load_dataset(train)
    return steps_of(plans_of(spec, make_model(train, ds), ds))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(20))
def test_buffers_that_meet_do_not_overlap(seed: int) -> None:
    draw = random.Random(seed)
    lifetimes = []
    for _ in range(draw.randrange(1, 60)):
        first = draw.randrange(40)
        lifetimes.append(Lifetime(draw.randrange(1, 5000), first, first + draw.randrange(20)))
    offsets, total = place(lifetimes)
    for i, a in enumerate(lifetimes):
        assert offsets[i] % 64 == 0 and offsets[i] + a.nbytes <= total
        for j, b in enumerate(lifetimes[:i]):
            apart = offsets[i] + a.nbytes <= offsets[j] or offsets[j] + b.nbytes <= offsets[i]
            assert apart or a.last < b.first or b.last < a.first
    most = max(sum(life.nbytes for life in lifetimes if life.first <= t <= life.last) for t in range(60))
    assert total >= most


@pytest.mark.parametrize("model", ["gcn", "sage", "gin"])
def test_a_step_is_the_librarys_calls_and_little_memory(model: str) -> None:
    steps = _steps(ProgramSpec(scale=0.05, model=model, layers=3))
    assert len(steps.forward) == len(steps.plans.step.forward)
    assert len(steps.backward) == len(steps.plans.step.backward)
    buffers = steps.table.buffers.values()
    assert set(steps.offsets) == {buffer.name for buffer in buffers}
    over = {b.over: b for b in buffers if b.over and steps.offsets[b.over] == steps.offsets[b.name]}
    ends = {b.name: b.last - (b.name in over and over[b.name].first == b.last) for b in buffers}
    alive = [
        sum(b.nbytes for b in buffers if b.first <= t <= ends[b.name]) for t in range(max(b.first for b in buffers) + 1)
    ]
    assert max(alive) <= steps.arena_bytes <= 1.3 * max(alive) + 64 * len(steps.offsets)
    trained = [name for group in steps.plans.groups for name in group["names"]]
    assert sorted(steps.gradients) == sorted(trained)


def test_sums_of_a_matrix_that_is_not_read_again_take_its_place() -> None:
    """Of GIN with extrema the largest arrays are features, their extrema and the sums of both."""
    steps = _steps(ProgramSpec(scale=0.05, model="gin", reduce="max", layers=2))
    buffers = steps.table.buffers
    shared = [b for b in buffers.values() if b.over and steps.offsets[b.over] == steps.offsets[b.name]]
    assert any(b.nbytes == buffers["x"].nbytes for b in shared)
    for b in shared:
        assert buffers[b.over].last == b.first and buffers[b.over].nbytes == b.nbytes
    assert sum(b.nbytes for b in shared) >= 1.5 * buffers["x"].nbytes


def test_text_says_what_each_step_does(tmp_path: Path) -> None:
    made = write_program(ProgramSpec(scale=0.05, layers=3), tmp_path / "program")
    text = (made.folder / "model.cpp").read_text()
    assert made.lines == text.count("\n") < 1500
    assert max(map(len, text.splitlines())) <= 120
    assert re.search(r"// matmul transposed.* -> .*d_layers_2_weight \[32 x 8\], 1,024 bytes.*\n +contract\(", text)
    assert text.count("spmm(") >= 6
    assert (made.folder / "model.toml").read_text() == "scale = 0.05\nlayers = 3\n"


def test_an_earlier_program_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "program"
    spec = ProgramSpec(scale=0.02, hidden=8)
    write_program(spec, out)
    (out / "build").mkdir()
    write_program(ProgramSpec(scale=0.02, hidden=4), out)
    assert "hidden = 4" in (out / "model.toml").read_text() and not (out / "build").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["program"]
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match="out: expected a new folder"):
        write_program(spec, mine)
    assert [path.name for path in mine.iterdir()] == ["thesis.txt"]


def test_a_program_that_cannot_be_put_in_place_leaves_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, rename = ProgramSpec(scale=0.02, hidden=8), Path.rename
    write_program(spec, tmp_path / "program")
    (tmp_path / "link").symlink_to("program")

    def fail(path: Path, target: Path) -> Path:
        if (path / "model.toml").exists() and "hidden = 4" in (path / "model.toml").read_text():
            raise OSError(28, "No space left on device")
        return rename(path, target)

    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space left"):
        patched.setattr(Path, "rename", fail)
        write_program(ProgramSpec(scale=0.02, hidden=4), tmp_path / "program")
    assert "hidden = 8" in (tmp_path / "program" / "model.toml").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "program"]
    write_program(ProgramSpec(scale=0.02, hidden=4), tmp_path / "link")
    assert "hidden = 4" in (tmp_path / "program" / "model.toml").read_text() and (tmp_path / "link").is_symlink()
    monkeypatch.chdir(tmp_path / "program")
    with pytest.raises(ConfigError, match="expected another folder than the working one"):
        write_program(spec, ".")


@pytest.mark.parametrize(
    ("data", "said"), [("no-such-set", "no-such-set"), ("featured", "expected no features of edges")]
)
def test_what_cannot_be_written_leaves_no_folder(data: str, said: str, tmp_path: Path) -> None:
    ring = gw.Graph([0, 1, 2, 3], [1, 2, 3, 0])
    featured = gw.Dataset("ring", ring, torch.eye(4), [0, 1, 0, 1], edge_features=torch.ones(4, 2))
    file = featured.save(tmp_path / "featured.npz")
    with pytest.raises(gw.errors.GraphWeftError) as caught:
        write_program(ProgramSpec(data=str(file) if data == "featured" else data), tmp_path / "p")
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == [file]


def test_verbs_name_the_classes_of_the_data(tmp_path: Path) -> None:
    gnn = gw.synthesis.Verbs(scale=0.02)
    gnn.initializeLayers([8, 5])
    for layer in (0, 1):
        gnn.forwardPass(layer, "GCN")
    for layer in (1, 0):
        gnn.backPropagation(layer)
    gnn.optimizer("sgd", 0.1)
    with pytest.raises(ConfigError, match=r"^initializeLayers: expected 8 classes at the end, got 5$"):
        write_program(gnn, tmp_path / "program")


def test_a_part_without_a_statement_is_named(tmp_path: Path) -> None:
    spec = ProgramSpec(scale=0.02)
    ds = load_dataset(spec.to_train())
    model = make_model(TrainSpec(scale=0.02, model="cgat", heads=2, hidden=8), ds)
    said = (
        r"^model: expected parts that a program can hold, got broadcast_dst \(broadcast_dst\): this kernel comes later$"
    )
    with pytest.raises(ConfigError, match=said):
        steps_of(plans_of(spec, model, ds))  # type: ignore[arg-type]


@pytest.mark.parametrize("model", ["gat", "gatv2", "transformer", "gcnii"])
def test_the_order_and_bounds_of_weights_follow_from_the_seed(model: str) -> None:
    spec = TrainSpec(scale=0.02, model=model, layers=3, hidden=16, seed=5)
    tensors = dict(make_model(spec, load_dataset(spec)).named_parameters())
    found, source = draws_of(tensors, 5), torch.Generator().manual_seed(5)
    assert set(found) == {name for name, tensor in tensors.items() if tensor.count_nonzero()}
    for name, fans in found.items():
        bound = math.sqrt(6 / fans)
        assert torch.equal(torch.empty(tensors[name].shape).uniform_(-bound, bound, generator=source), tensors[name])
    with pytest.raises(ConfigError, match=r"^model: expected weights that a program draws, got w of shape \(2, 3\)$"):
        draws_of({"w": torch.ones(2, 3)}, 5)


@pytest.mark.parametrize("what", ["train", "predict"])
def test_kernels_are_compiled_for_the_heads_of_the_model(what: str, tmp_path: Path) -> None:
    spec = ProgramSpec(scale=0.02, model="gatv2", layers=2, hidden=24, heads=3)
    classes = load_dataset(spec.to_train()).num_classes
    written = write_program(spec, tmp_path / "program", what=what)
    text = (written.folder / "include" / "graphweft" / "head_shapes.h").read_text()
    found = re.findall(r"\{(\d+), (\d+), (\w+)\}", text)
    assert {("3", "8", "false"), ("1", str(classes), "false")} <= set(found)
    assert "0, 0" not in text
    plain = write_program(ProgramSpec(scale=0.02, hidden=24), tmp_path / "plain", what=what)
    assert not (plain.folder / "include" / "graphweft" / "head_shapes.h").exists()


def test_graphs_that_programs_do_not_have(tmp_path: Path) -> None:
    ds = gw.synthetic("default", scale=0.02)
    typed = gw.Graph.hetero({("a", "r", "a"): ds.graph.edges(), ("a", "s", "a"): ds.graph.edges()})
    with pytest.raises(ConfigError, match=r"^data: expected a graph without types"):
        plans_of(ProgramSpec(), gw.nn.GCN(ds.num_features, 8, ds.num_classes), replace(ds, graph=typed))


def test_the_command_writes_a_program(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "model.toml").write_text('model = "sage"\nscale = 0.02\n')
    arguments = ["synth", "--spec", str(tmp_path / "model.toml"), "--out", str(tmp_path / "p"), "--json"]
    assert cli.main(arguments) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["model"] == "sage" and told["target"] == "openmp" and told["calls"] > 10
    assert (tmp_path / "p" / "CMakeLists.txt").is_file()
