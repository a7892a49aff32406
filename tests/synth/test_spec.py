"""What a program is: keywords, TOML and Morphling's verbs say the same; errors name line and column."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path

import pytest

from graphweft import cli
from graphweft._errors import ConfigError, DataError
from graphweft.synth.spec import ProgramSpec, check_target, check_what, read_spec, spec_of_toml
from graphweft.synth.verbs import Verbs
from graphweft.synthesis import write_program
from graphweft.train.spec import TrainSpec

TEXT = """
# A GIN
model = "gin"
layers = 3
hidden = 16
reduce = "mean"
lr = 0.1
epochs = 4
data = "some.npz"
"""
SPEC = ProgramSpec(model="gin", layers=3, hidden=16, reduce="mean", lr=0.1, epochs=4, data="some.npz")


def test_three_ways_say_the_same() -> None:
    gnn = Verbs()
    gnn.load("some.npz")
    gnn.initializeLayers([16, 16, 7], "xaviers")
    for _ in range(4):
        for layer in range(3):
            gnn.forwardPass(layer, "GIN", "mean")
        for layer in reversed(range(3)):
            gnn.backPropagation(layer)
        gnn.optimizer("adam", 0.1, 0.9, 0.999)
    assert spec_of_toml(TEXT) == SPEC == gnn.spec()
    assert spec_of_toml(SPEC.to_toml()) == SPEC


def test_options_have_the_names_and_defaults_of_train() -> None:
    usual = asdict(TrainSpec())
    assert {field.name: getattr(ProgramSpec(), field.name) for field in fields(ProgramSpec)}.items() <= usual.items()


def test_the_run_of_a_spec_keeps_the_nodes_in_their_order() -> None:
    assert TrainSpec().order == "auto"
    assert ProgramSpec(epochs=100_000).to_train().order == "given"  # another order has other last bits


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('model = "gin"\nlayer = 3\n', "t:2:1: layer: expected a known key, got an unknown one; did you mean layers?"),
        ('\n  "colour" = 1\n', "t:2:3: colour: expected a known key, got an unknown one; known are data, root"),
        ("layers = 0\n", "t:1:10: layers: expected an integer from 1 to 1000, got 0"),
        ("epochs = 2\nlayers =   true\n", "t:2:12: layers: expected an integer, got true"),
        (f"epochs = {'9' * 5000}\n", "t: expected options as TOML, got a number with too many digits"),
        (f"epochs = {'[' * 5000}\n", "t: expected options as TOML, got values nested too deeply"),
        ('lr = "fast"\n', 't:1:6: lr: expected a number, got "fast"'),
        ("lr = -1\n", "t:1:6: lr: expected a finite number > 0"),
        (
            "model = 'rgcn'\n",
            "t:1:9: model: expected gcn, sage, gin, gat, gatv2, transformer, appnp or gcnii, got rgcn",
        ),
        ("model = 'mlp'\n", "t:1:9: model: expected"),
        ("mode = 'mini'\n", "t:1:8: mode: expected full, got 'mini'"),
        ("activation = 'tanh'\n", "t:1:14: activation: expected"),
        ("bases = 4\n", "t:1:1: bases: expected an option that programs have"),
        ("layers = 2\n[model]\nname = 'gcn'\n", "t:2:1: model: expected keys without tables"),
        ("layers = \n", "t:1:10: expected TOML, got invalid value"),
        ("layers = 2\nlayers = 3\n", "t:2:11: expected TOML, got a key that was given before"),
        ("data = 'x", 't:1:10: expected "\'", got something else'),
        ("layers 2\n", "t:1:8: expected '=' after a key in a key/value pair, got something else"),
        ("hiden = 3\n", "t:1:1: hiden: expected a known key, got an unknown one; did you mean hidden?"),
        ("optimiser = 'sgd'\n", "t:1:1: optimiser: expected a known key, got an unknown one; did you mean optimizer?"),
        (
            "Weight-Deacy = 1\n",
            "t:1:1: Weight-Deacy: expected a known key, got an unknown one; did you mean weight_decay",
        ),
        ("'' = 3\n", 't:1:1: "": expected a known key, got an unknown one; known are data'),
        ("model = 'gat'\nreduce = 'max'", "t:2:10: reduce=max cannot be combined with model=gat; use reduce=sum"),
        (
            "reduce = 'mean'\nmodel = 'transformer'",
            "t:1:10: reduce=mean cannot be combined with model=transformer; use",
        ),
    ],
    ids=range(24),
)
def test_errors_name_line_and_column(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        spec_of_toml(text, "t")
    assert str(caught.value).startswith(said), str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_may_begin_with_the_mark_of_its_encoding(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b'\xef\xbb\xbfmodel = "gin"\r\nlayers = 3\r\n')
    assert read_spec(tmp_path / "a.toml") == ProgramSpec(model="gin", layers=3)


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    for path in (tmp_path, tmp_path / "none.toml", tmp_path / "bytes.toml"):
        with pytest.raises(ConfigError, match="spec: expected a"):
            read_spec(path)


@pytest.mark.parametrize("target", ["opencl", ""])
def test_targets_that_are_not_written_yet(target: str) -> None:
    with pytest.raises(ConfigError, match="target: expected"):
        check_target(target)


def _loop(gnn: Verbs, *calls: tuple[object, ...]) -> None:
    for name, *arguments in calls:
        getattr(gnn, str(name))(*arguments)


@pytest.mark.parametrize(
    "calls",
    [
        [("forwardPass", 0, "GCN")],
        [("initializeLayers", [8, 4]), ("forwardPass", 1, "GCN")],
        [("initializeLayers", [8, 4]), ("forwardPass", 0, "GCN"), ("backPropagation", 1)],
        [("initializeLayers", [8, 4]), ("forwardPass", 0, "GCN"), ("forwardPass", 1, "GIN")],
        [("initializeLayers", [8, 4]), ("optimizer", "adam", 0.1)],
        [("initializeLayers", [8, 9, 4])],
        [("initializeLayers", [])],
        [("initializeLayers", [8, 4], "ones")],
        [("initializeLayers", [8, 4]), ("optimizer", "adam", 0.1, 0.5, 0.9)],
    ],
    ids=range(9),
)
def test_loops_that_describe_no_training(calls: list[tuple[object, ...]]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        _loop(Verbs(), *calls)
    with pytest.raises(ConfigError, match="whole epochs"):
        Verbs().spec()


def test_the_loops_of_the_listing_as_printed_are_refused() -> None:
    gnn = Verbs()
    gnn.initializeLayers([8, 4])
    gnn.forwardPass(0, "GCN", "sum")
    with pytest.raises(ConfigError, match="loops in sequence, not nested"):
        gnn.backPropagation(0)


def test_the_command_says_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("layer = 3\n")
    (tmp_path / "good.toml").write_text("scale = 0.02\n")
    for arguments, said in (
        (["synth"], "spec: expected a TOML file, got none"),
        (["synth", "--spec", str(tmp_path / "bad.toml")], "bad.toml:1:1: layer: expected"),
        (["train", "--spec", str(tmp_path / "bad.toml")], "bad.toml:1:1: layer: expected"),
        (
            ["synth", "--spec", str(tmp_path / "bad.toml"), "--target", "opencl"],
            "target: expected",
        ),
        (
            ["synth", "--spec", str(tmp_path / "good.toml"), "--deterministic", "--out", str(tmp_path / "p")],
            "--deterministic cannot be combined with --target openmp",
        ),
    ):
        assert cli.main(arguments) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1 and said in err, err


@pytest.mark.parametrize("name", ["a" * 300, "/proc/none"])
def test_folders_that_cannot_be_made(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"^out: expected a folder that can be made, got .*{name}: [A-Z]"):
        write_program(ProgramSpec(scale=0.02, hidden=4), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_what_a_program_does_is_known() -> None:
    check_what("train")
    check_what("predict")
    with pytest.raises(ConfigError, match=r"^what: expected "):
        check_what("fly")


def test_parts_are_for_several_processes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ranks cannot be combined with target=openmp"):
        write_program(ProgramSpec(scale=0.02), tmp_path / "p", ranks=(2,))
    with pytest.raises(ConfigError, match="ranks: expected a collection of integers, got 2"):
        write_program(ProgramSpec(scale=0.02), tmp_path / "p", target="mpi", ranks=2)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "value"), [("layers", 1000), ("hops", 65), ("hidden", 1_000_000), ("heads", 2048), ("out_heads", 2048)]
)
def test_sizes_that_no_program_has(name: str, value: int) -> None:
    model = {"hops": "appnp", "layers": "gcn", "hidden": "gat"}.get(name, "gat")
    hidden = "hidden = 4096\n" if name == "heads" else ""
    with pytest.raises(
        ConfigError, match=rf"^a\.toml:{3 if hidden else 2}:\d+: {name}: expected at most \d+ in a prog"
    ):
        spec_of_toml(f'model = "{model}"\n{hidden}{name} = {value}', "a.toml")


@pytest.mark.parametrize("command", ["synth", "train", "plan"])
def test_errors_about_data_name_its_place_in_the_spec(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    spec, data = tmp_path / "a.toml", tmp_path / "none.npz"
    spec.write_text(f'model = "gcn"\ndata = "{data}"\n', encoding="utf-8")
    out = [] if command == "plan" else ["--out", str(tmp_path / "out")]
    assert cli.main([command, "--spec", str(spec), *out]) == 2
    said = capsys.readouterr().err
    assert f"{spec}:2:8: " in said and said.count(f"{spec}:2:8") == 1 and str(data) in said
    other = tmp_path / "other.npz"
    assert cli.main([command, "--spec", str(spec), "--data", str(other), *out]) == 2
    said = capsys.readouterr().err
    assert str(other) in said and str(spec) not in said
    assert not (tmp_path / "out").exists()


def test_a_damaged_dataset_is_told_of_its_place(tmp_path: Path) -> None:
    spec, data = tmp_path / "a.toml", tmp_path / "bad.npz"
    data.write_bytes(b"no archive")
    spec.write_text(f'data = "{data}"\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"a\.toml:1:8: .*bad\.npz"):
        write_program(spec, tmp_path / "out")
