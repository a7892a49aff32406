"""Programs train as the library does: the same losses and scores bit for bit, with any number of threads."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from built_program import OPTIMISATION, SCORES, WARNINGS, Build, Built
from fuzz.programs import has_mpi, one_case
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

import graphweft as gw
from graphweft._errors import ConfigError
from graphweft.run import make_model, run
from graphweft.runtime.build import find_compiler
from graphweft.synth.spec import ProgramSpec
from graphweft.synthesis import write_program

Graphs = dict[str, Path]
MODELS: list[dict[str, Any]] = [
    {"model": model, "reduce": reduce, "layers": layers}
    for model in ("gcn", "sage", "gin")
    for reduce in ("sum", "mean", "max")
    for layers in (2, 3)
]
OPTIONS: list[dict[str, Any]] = [
    {"dropout": 0.5, "weight_decay": 5e-4, "weight_decay_on": "first", "seed": 7},
    {"model": "sage", "dropout": 0.3, "optimizer": "adamw", "weight_decay": 0.01, "residual": True, "layers": 3},
    {"model": "gin", "reduce": "max", "dropout": 0.2, "optimizer": "sgd", "lr": 0.1, "hidden": 20},
    {"layers": 1, "hidden": 5, "eval_every": 2, "normalize": "row"},
]
SPARSE: list[dict[str, Any]] = [
    {"dropout": 0.5, "weight_decay": 5e-4, "normalize": "row"},
    {"model": "sage", "layers": 3},
    {"model": "gin", "dropout": 0.1, "reduce": "mean"},
    {"model": "gcn", "reduce": "max"},
    {"model": "sage", "layers": 1},
]
ACTIVATIONS: list[dict[str, Any]] = [
    {"model": "gat"},
    {"activation": "leaky_relu"},
    {"model": "sage", "activation": "elu"},
]
LATER: list[dict[str, Any]] = [
    {"model": "gatv2"},
    {"model": "gatv2", "x": "sparse", "heads": 3, "hidden": 21, "layers": 3, "activation": "leaky_relu"},
    {"model": "transformer", "layers": 3, "residual": True},
    {"model": "transformer", "heads": 2, "hidden": 14, "x": "sparse", "optimizer": "sgd"},
    {"model": "appnp", "hops": 3, "layers": 3, "alpha": 0.2, "dropout": 0.3},
    {"model": "gcnii", "layers": 4, "x": "sparse", "dropout": 0.3},
    {"model": "transformer", "layers": 3, "dropout": 0.3},
    {"layers": 1, "x": "sparse", "dropout": 0.5},
    {"model": "gin", "train_eps": True, "layers": 3, "dropout": 0.2},
    {"model": "gin", "train_eps": True, "reduce": "max", "x": "sparse"},
]
ATTENTION: list[dict[str, Any]] = [
    {"layers": 3, "hidden": 16, "heads": 4},
    {"hidden": 24, "heads": 3, "dropout": 0.4, "weight_decay": 5e-4},
    {"x": "sparse", "hidden": 8, "heads": 1, "dropout": 0.2, "attention_dropout": 0.4, "value_dropout": 0.3},
]


def _name(case: dict[str, Any]) -> str:
    return "-".join(str(value) for value in case.values())


def _library(spec: ProgramSpec, folder: Path) -> list[dict[str, Any]]:
    """The metrics of the library's own run."""
    run(replace(spec.to_train(), out=str(folder), threads=1))
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def _same_as_library(spec: ProgramSpec, build: Build, folder: Path) -> Built:
    """Builds the program of ``spec`` and compares every loss and score with the library's, for one and two threads."""
    built: Built = build(write_program(spec, folder / "program").folder)
    wanted = _library(spec, folder / "run")
    for threads in (1, 2):
        found = built.records("--data", spec.data, "--epochs", spec.epochs, "--threads", threads)
        assert [[line[name] for name in SCORES] for line in found] == [
            [line[name] for name in SCORES] for line in wanted
        ]
    return built


@pytest.mark.slow
@pytest.mark.parametrize("case", MODELS, ids=_name)
def test_losses_are_the_librarys(case: dict[str, Any], build: Build, graphs: Graphs, tmp_path: Path) -> None:
    _same_as_library(ProgramSpec(data=str(graphs["dense"]), epochs=5, hidden=16, **case), build, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", [{"model": "sage", "reduce": "mean"}, {"model": "gin", "reduce": "max"}], ids=_name)
def test_long_rows_are_read_by_stretches(case: dict[str, Any], build: Build, tmp_path: Path) -> None:
    nodes, degree = 12_000, 360
    drawn = torch.Generator().manual_seed(1)
    dst = torch.arange(nodes).repeat_interleave(degree)
    src = torch.randint(nodes, (nodes, degree), generator=drawn).sort().values.flatten()
    masks = {f"{part}_mask": torch.arange(nodes) % 4 == at for at, part in enumerate(("train", "val", "test"))}
    x, y = torch.randn(nodes, 8, generator=drawn), torch.randint(3, (nodes,), generator=drawn)
    arrays = {"edge_index": torch.stack([src, dst]).int(), "x": x, "y": y, **masks}
    np.savez(tmp_path / "dense.npz", **{name: array.numpy() for name, array in arrays.items()})
    spec = ProgramSpec(data=str(tmp_path / "dense.npz"), epochs=3, hidden=40, **case)
    built = _same_as_library(spec, build, tmp_path)
    text = (built.folder / "model.cpp").read_text(encoding="utf-8")
    # Edges in their first order are gone before there are features.
    assert text.index("_by_stretches(") < text.index("s.graph.drop_unread(") < text.index("data.read_features(")


@pytest.mark.slow
@pytest.mark.parametrize("case", OPTIONS, ids=_name)
def test_options_mean_what_they_do_in_the_library(
    case: dict[str, Any], build: Build, graphs: Graphs, tmp_path: Path
) -> None:
    _same_as_library(ProgramSpec(**{"data": str(graphs["dense"]), "epochs": 5, **case}), build, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", SPARSE, ids=_name)
def test_sparse_features_stay_sparse(case: dict[str, Any], build: Build, graphs: Graphs, tmp_path: Path) -> None:
    built = _same_as_library(ProgramSpec(data=str(graphs["sparse"]), epochs=5, **case), build, tmp_path)
    assert built.summary("--data", graphs["sparse"], "--epochs", 1)["feature_path"] == "sparse"
    arrays = dict(np.load(graphs["sparse"]))
    arrays["x_data"][0] = 0.0  # an entry less than the buffers were made for
    np.savez(tmp_path / "other.npz", **arrays)
    assert "stored entries of x: expected" in built.run("--data", tmp_path / "other.npz", status=2).stderr


@pytest.mark.slow
@pytest.mark.parametrize("case", ATTENTION, ids=_name)
def test_attention_is_the_librarys(case: dict[str, Any], build: Build, graphs: Graphs, tmp_path: Path) -> None:
    data = graphs[case.get("x", "dense")]
    options = {name: value for name, value in case.items() if name != "x"}
    _same_as_library(ProgramSpec(data=str(data), model="gat", activation="relu", epochs=5, **options), build, tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::graphweft.errors.DenseFeaturesWarning")
@pytest.mark.parametrize("case", LATER, ids=_name)
def test_other_models_are_the_librarys(case: dict[str, Any], build: Build, graphs: Graphs, tmp_path: Path) -> None:
    """Other scores of attention, propagation over many hops, products of one layer: the same calls, printed alike."""
    options = {name: value for name, value in case.items() if name != "x"}
    data = graphs[case.get("x", "dense")]
    _same_as_library(ProgramSpec(**{"data": str(data), "epochs": 4, "hidden": 16, **options}), build, tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::graphweft.errors.DenseFeaturesWarning")
@pytest.mark.parametrize("case", [{"model": "sage", "normalize": "row"}, {"model": "gin", "layers": 3}], ids=_name)
def test_largest_values_of_sparse_features(case: dict[str, Any], build: Build, graphs: Graphs, tmp_path: Path) -> None:
    """Rows are made dense, as the library makes them."""
    spec = ProgramSpec(data=str(graphs["sparse"]), epochs=5, reduce="max", **case)
    built = _same_as_library(spec, build, tmp_path)
    assert built.summary("--data", graphs["sparse"], "--epochs", 1)["feature_path"] == "dense"


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        {"layers": 3, "hidden": 64, "heads": 8},
        {"hidden": 63, "heads": 3, "dropout": 0.6, "activation": "leaky_relu", "normalize": "row"},
        {"layers": 3, "hidden": 4, "heads": 1},
    ],
    ids=_name,
)
def test_attention_over_few_features(case: dict[str, Any], build: Build, tmp_path: Path) -> None:
    """Features narrower than a head are summed before the product with each head's matrix."""
    rng = np.random.default_rng(5)
    file, part = tmp_path / "narrow.npz", rng.integers(0, 3, 300)
    np.savez(
        file,
        edge_index=rng.integers(0, 300, (2, 3000)),
        x=(rng.standard_normal((300, 3)) * 2.0 ** rng.integers(-24, 3, (300, 1))).astype(np.float16),  # some subnormal
        y=rng.integers(0, 4, 300),
        **{f"{name}_mask": part == index for index, name in enumerate(("train", "val", "test"))},
    )
    spec = ProgramSpec(data=str(file), model="gat", epochs=4, **case)
    _same_as_library(spec, build, tmp_path)
    if case["hidden"] > 4:
        assert "head_matmul(" in (tmp_path / "program" / "model.cpp").read_text()


@pytest.mark.slow
def test_edge_lists_loops_and_wide_features(build: Build, tmp_path: Path) -> None:
    """Forms of the file that the twins do not have: edges in any order, self-loops, parallel edges, rows that span
    several tiles, masks of several splits, labels as floats, unlabelled nodes, columns before rows."""
    rng = np.random.default_rng(3)
    nodes, width = 900, 200
    src, dst = rng.integers(0, nodes, 12_000), rng.integers(0, nodes, 12_000)
    src, dst = np.concatenate([src, src[:100], np.arange(50)]), np.concatenate([dst, dst[:100], np.arange(50)])
    y = rng.integers(0, 5, nodes).astype(np.float64)
    y[::9] = -1
    masks = rng.integers(0, 3, (nodes, 4))
    file = tmp_path / "edges.npz"
    np.savez_compressed(
        file,
        edge_index=np.stack([src, dst]),
        x=np.asfortranarray(rng.standard_normal((nodes, width))),
        y=y,
        **{f"{part}_mask": masks == index for index, part in enumerate(("train", "val", "test"))},
    )
    for case in ({"model": "gcn", "layers": 3}, {"model": "sage", "reduce": "max"}, {"model": "gin", "hidden": 100}):
        _same_as_library(ProgramSpec(**{"data": str(file), "epochs": 3, **case}), build, tmp_path / case["model"])


@pytest.mark.slow
def test_numbers_of_any_type_are_read(build: Build, graphs: Graphs, tmp_path: Path) -> None:
    arrays, file = dict(np.load(graphs["dense"])), tmp_path / "numbers.npz"
    arrays["x"] = np.round(8 * arrays["x"]).clip(-1000, 1000).astype(np.float32) / 8  # exact in every type
    np.savez(file, **arrays)
    built = build(write_program(ProgramSpec(data=str(file), epochs=2), tmp_path / "program").folder)
    wanted = built.records("--data", file)
    kinds = ("int32", "int8", "float16"), ("uint32", "uint8", "float64"), ("uint64", "int16", "float32")
    for ids, labels, reals in (*kinds, ("int16", "uint16", "float64"), ("uint16", "float32", "float16")):
        types = {"edge_index": ids, "y": labels, "x": reals}
        np.savez(file, **{name: array.astype(types.get(name, array.dtype)) for name, array in arrays.items()})
        found = built.records("--data", file)
        assert [[line[name] for name in SCORES] for line in found] == [
            [line[name] for name in SCORES] for line in wanted
        ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [{}, {"reduce": "mean"}, {"model": "sage", "layers": 3, "dropout": 0.2}, {"model": "gin", "loops": False}],
    ids=_name,
)
def test_weights_of_edges(case: dict[str, Any], build: Build, graphs: Graphs, tmp_path: Path) -> None:
    """Also of self-loops, several at a node, of parallel edges, and of edges in any order."""
    arrays, rng = dict(np.load(graphs["dense"])), np.random.default_rng(4)
    src, dst = arrays.pop("edge_index")
    loops = [np.arange(40), np.arange(10)] if case.get("loops", True) else []
    src, dst = np.concatenate([src, *loops, src[:30]]), np.concatenate([dst, *loops, dst[:30]])
    order, weight = rng.permutation(src.size), rng.random(src.size).astype(np.float32)
    file = tmp_path / "weighted.npz"
    np.savez(file, **arrays, edge_index=np.asfortranarray(np.stack([src, dst])[:, order]), edge_weight=weight)
    options = {name: value for name, value in case.items() if name != "loops"}
    spec = ProgramSpec(data=str(file), epochs=4, hidden=16, **options)
    built = _same_as_library(spec, build, tmp_path)
    np.savez(tmp_path / "bare.npz", **arrays, edge_index=np.stack([src, dst]))
    assert "edge_weight: expected weights" in built.run("--data", tmp_path / "bare.npz", status=2).stderr


def test_another_precision_is_refused(graphs: Graphs, tmp_path: Path) -> None:
    with (
        gw.config(precision="bf16"),
        pytest.raises(ConfigError, match=r"^precision=bf16 cannot be combined with a float32 program$"),
    ):
        write_program(ProgramSpec(data=str(graphs["dense"])), tmp_path / "program")
    assert not (tmp_path / "program").exists()


@pytest.mark.slow
@pytest.mark.parametrize("case", ACTIVATIONS, ids=_name)
def test_other_activations(case: dict[str, Any], build: Build, graphs: Graphs, tmp_path: Path) -> None:
    _same_as_library(ProgramSpec(data=str(graphs["dense"]), epochs=5, hidden=16, **case), build, tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::graphweft.errors.DenseFeaturesWarning")
@pytest.mark.parametrize(
    ("target", "number"),
    [("openmp", 0), ("openmp", 3), ("openmp", 9), ("openmp", 11), ("mpi", 1), ("predict", 3)],
)
def test_random_specs_on_random_graphs(target: str, number: int, objects: Path, tmp_path: Path) -> None:
    """A few; ``tests/fuzz/programs.py`` runs as many as are asked for."""
    if target == "mpi" and not has_mpi():
        pytest.skip("no MPI: no mpicxx and mpiexec in the environment or on the path")
    said, wrong = one_case(random.Random(f"0 {number}"), tmp_path, objects, target)
    assert not wrong, f"{wrong}: {said}"
    assert not said.startswith("refused")


@pytest.mark.slow
def test_two_forms_of_one_graph_lie_side_by_side(build: Build, tmp_path: Path) -> None:
    """Attention that reads the edges of one layer by number and those of another as they lie: neither form is freed."""
    file = gw.synthetic("default", scale=0.1, seed=3).save(tmp_path / "data.npz")
    options = {"layers": 4, "hidden": 128, "heads": 2, "attention_dropout": 0.2, "activation": "elu", "epochs": 3}
    _same_as_library(ProgramSpec(data=str(file), model="gatv2", **options), build, tmp_path)


def _dense_gcn(ds: gw.Dataset, weights: dict[str, Tensor]) -> Tensor:
    """Logits of a GCN of two layers in plain torch, float64, over a dense matrix."""
    src, dst = ds.graph.edges()
    a = torch.zeros(ds.num_nodes, ds.num_nodes, dtype=torch.float64)
    a.index_put_((dst, src), torch.ones(src.numel(), dtype=torch.float64), accumulate=True)
    a.fill_diagonal_(1.0)
    scale = a.sum(1) ** -0.5
    a = scale[:, None] * a * scale
    assert isinstance(ds.x, Tensor)
    w = {name: tensor.double() for name, tensor in weights.items()}
    h = torch.relu(a @ ds.x.double() @ w["layers.0.weight"] + w["layers.0.bias"])
    return a @ h @ w["layers.1.weight"] + w["layers.1.bias"]


@pytest.fixture(scope="session")
def gcn(build: Build, graphs: Graphs, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A GCN of two layers on the dense graph."""
    spec = ProgramSpec(data=str(graphs["dense"]), epochs=6, hidden=8)
    built: Built = build(write_program(spec, tmp_path_factory.mktemp("gcn") / "program").folder)
    return built


@pytest.mark.slow
def test_weights_come_out_as_plain_torch_reads_them(gcn: Built, graphs: Graphs, tmp_path: Path) -> None:
    ds, file = gw.load(str(graphs["dense"])), tmp_path / "w.safetensors"
    last = gcn.records("--data", graphs["dense"], "--save", file)[-1]
    logits = _dense_gcn(ds, {k: v for k, v in load_file(file).items() if not k.startswith("optimizer.")})
    loss = functional.cross_entropy(logits[ds.val_idx], ds.y[ds.val_idx])
    accuracy = (logits[ds.test_idx].argmax(1) == ds.y[ds.test_idx]).double().mean()
    assert last["val_loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert last["test_acc"] == pytest.approx(accuracy.item())


@pytest.mark.slow
def test_weights_go_in_and_training_goes_on(gcn: Built, graphs: Graphs, tmp_path: Path) -> None:
    data, file, again = ("--data", graphs["dense"]), tmp_path / "w.safetensors", tmp_path / "again.safetensors"
    whole = gcn.records(*data, "--save", tmp_path / "whole.safetensors")
    gcn.run(*data, "--epochs", 2, "--save", file)
    rest = gcn.records(*data, "--load", file, "--save", again)
    assert [line["loss"] for line in rest] == [line["loss"] for line in whole[2:]]
    assert again.read_bytes() == (tmp_path / "whole.safetensors").read_bytes()


@pytest.mark.slow
def test_runs_go_on_in_either(gcn: Built, graphs: Graphs, tmp_path: Path) -> None:
    """From the program to the library and back, with the state of the optimiser: files of the same bytes."""
    data, spec = ("--data", graphs["dense"]), ProgramSpec(data=str(graphs["dense"]), hidden=8)
    whole, half, end = (tmp_path / f"{name}.safetensors" for name in ("whole", "half", "end"))
    losses = [line["loss"] for line in gcn.records(*data, "--save", whole)]
    gcn.run(*data, "--epochs", 2, "--save", half)
    ds = gw.load(str(graphs["dense"]))
    trainer = gw.Trainer(make_model(spec.to_train(), ds), ds)
    gw.synthesis.load_weights(trainer, half)
    assert trainer.epoch == 2
    assert trainer.fit(2)["loss"][2:] == losses[2:4]
    gw.synthesis.save_weights(trainer, half)
    assert [line["loss"] for line in gcn.records(*data, "--load", half, "--save", end)] == losses[4:]
    assert end.read_bytes() == whole.read_bytes()
    trainer.fit(2)
    gw.synthesis.save_weights(trainer, end)
    assert end.read_bytes() == whole.read_bytes()
    wider = gw.Trainer(make_model(replace(spec.to_train(), hidden=9), ds), ds)
    content = bytearray(whole.read_bytes())
    content[9] = 0
    half.write_bytes(content)
    for other, file, said in (
        (wider, whole, r"expected layers.0.weight of shape \(64, 9\), got shape \(64, 8\)$"),
        (trainer, half, "expected a safetensors file of float32 tensors, got"),
    ):
        with pytest.raises(gw.errors.CheckpointError, match=said):
            gw.synthesis.load_weights(other, file)


@pytest.mark.slow
def test_the_librarys_weights_go_in(gcn: Built, graphs: Graphs, tmp_path: Path) -> None:
    ds, spec = gw.load(str(graphs["dense"])), ProgramSpec(data=str(graphs["dense"]), epochs=6, hidden=8)
    model = make_model(replace(spec.to_train(), seed=5), ds)
    save_file(dict(model.state_dict()), tmp_path / "w.safetensors")
    history = gw.Trainer(model, ds, restore_best=False).fit(3)
    found = gcn.records("--data", graphs["dense"], "--load", tmp_path / "w.safetensors", "--epochs", 3)
    assert [line["loss"] for line in found] == history["loss"]


@pytest.mark.slow
def test_the_seed_may_be_another(gcn: Built, graphs: Graphs, tmp_path: Path) -> None:
    spec = ProgramSpec(data=str(graphs["dense"]), epochs=4, hidden=8, seed=11)
    wanted = _library(spec, tmp_path / "run")
    found = gcn.records("--data", graphs["dense"], "--seed", 11, "--epochs", 4)
    assert [line["loss"] for line in found] == [line["loss"] for line in wanted]


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_no_memory_is_asked_for_after_the_first_epoch(
    build: Build, graphs: Graphs, tmp_path: Path, threads: int
) -> None:
    """Thirty epochs more ask for fewer than ten blocks more: epochs ask for none.

    Threads get other pieces in every run, so their scratch grows to its full size in other steps.
    """
    counter = Path(__file__).with_name("count_malloc.cpp")
    cases: tuple[dict[str, Any], ...] = (
        {"dropout": 0.5},
        {"model": "sage", "reduce": "max", "layers": 3},
        {"model": "gatv2", "dropout": 0.2},
        {"norm": "batch", "layers": 3},
    )
    for index, case in enumerate(cases):
        spec = ProgramSpec(**{"data": str(graphs["sparse" if index == 0 else "dense"]), "hidden": 64, **case})
        built: Built = build(write_program(spec, tmp_path / str(index)).folder, counter)
        counts = []
        for epochs in (5, 35):
            arguments = ("--data", spec.data, "--epochs", epochs, "--threads", threads, "--metrics", tmp_path / "m")
            said = [built.run(*arguments, "--json").stderr for _ in range(3)]
            counts.append(min(int(text.removeprefix("blocks ")) for text in said))
        assert counts[0] > 0 and counts[1] - counts[0] < 10
        assert threads > 1 or counts[0] == counts[1]


@pytest.mark.slow
def test_memory_is_that_of_the_program_alone(gcn: Built, graphs: Graphs) -> None:
    """Not that of the process that started it, which is larger."""
    own = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024
    assert 1 < gcn.summary("--data", graphs["dense"], "--threads", 1)["peak_rss_mb"] < own / 2


@pytest.mark.slow
def test_bad_input_is_one_line(gcn: Built, graphs: Graphs, tmp_path: Path) -> None:
    data = graphs["dense"]
    (tmp_path / "text.npz").write_text("no archive")
    (tmp_path / "cut.npz").write_bytes(data.read_bytes()[:3000])
    arrays = dict(np.load(data))
    np.savez(tmp_path / "bare.npz", **{k: v for k, v in arrays.items() if k != "train_mask"})
    np.savez(tmp_path / "nan.npz", **{**arrays, "x": np.full_like(arrays["x"], np.nan)})
    np.savez(tmp_path / "weights.npz", **{**arrays, "edge_weight": np.ones(1, np.float32)})
    ends = arrays["edge_index"].copy()
    ends[1, 7] = len(arrays["y"])
    np.savez(tmp_path / "wild.npz", **{**arrays, "edge_index": ends})
    np.savez(tmp_path / "stored.npz", **arrays)
    stored = bytearray((tmp_path / "stored.npz").read_bytes())
    stored[len(stored) // 2] ^= 1
    (tmp_path / "flipped.npz").write_bytes(stored)
    np.savez_compressed(tmp_path / "deflated.npz", **arrays)
    with zipfile.ZipFile(tmp_path / "deflated.npz") as archive:
        features = archive.getinfo("x.npy")
    deflated = bytearray((tmp_path / "deflated.npz").read_bytes())
    deflated[features.header_offset + features.compress_size // 2] ^= 1
    (tmp_path / "inflated.npz").write_bytes(deflated)
    gcn.run("--data", data, "--epochs", 1, "--save", tmp_path / "w")
    weights = load_file(tmp_path / "w")
    save_file(weights, tmp_path / "epochs.safetensors", {"epochs": "many"})
    save_file({**weights, "layers.2.weight": torch.zeros(8, 8)}, tmp_path / "deeper.safetensors")
    for arguments, said in (
        (("--data", tmp_path / "none.npz"), "expected a readable file"),
        (("--data", tmp_path / "text.npz"), "expected an .npz archive"),
        (("--data", tmp_path / "cut.npz"), "expected"),
        (("--data", tmp_path / "bare.npz"), "train_mask: expected a mask"),
        (("--data", tmp_path / "nan.npz"), "finite"),
        (("--data", tmp_path / "wild.npz"), f"edge_index: expected ids in [0, {ends[1, 7]}), got {ends[1, 7]}"),
        (("--data", tmp_path / "flipped.npz"), "expected the checksum of its members"),
        (("--data", tmp_path / "inflated.npz", "--threads", 1), "expected"),
        (("--data", tmp_path / "inflated.npz", "--threads", 2), "expected"),
        (("--data", graphs["sparse"]), "expected"),
        (("--data", data, "--epochs", "x"), "--epochs: expected an integer from 1"),
        (("--data", data, "--seed", "9" * 30), "--seed: expected an integer from 0 to"),
        (("--data", data, "--threads", 2**32 + 1), "--threads: expected an integer from 1 to 4096"),
        (("--data", tmp_path / "weights.npz"), "expected a graph without edge_weight"),
        (("--data", data, "--load", tmp_path / "epochs.safetensors"), "expected a number of epochs, got many"),
        (("--data", data, "--load", tmp_path / "deeper.safetensors"), "expected the tensors of this model alone, got"),
        (("--data", data, "--metrics", "/dev/full"), "/dev/full: cannot be written"),
        (("--data", data, "--hidden", "3"), "--hidden: expected a known flag"),
        (("--data", data, "--load", data), "expected a safetensors file"),
        (("--data", data, "--save", tmp_path / "no" / "w"), "cannot be written"),
    ):
        done = gcn.run(*arguments, status=2)
        assert done.stdout == "" and done.stderr.count("\n") == 1 and said in done.stderr, done.stderr


@pytest.mark.slow
def test_the_folder_builds_itself(objects: Path, graphs: Graphs, tmp_path: Path) -> None:
    """Configured by CMake as the README says; compiled as the other programs, and what is alike is compiled once."""
    spec = ProgramSpec(data=str(graphs["dense"]), epochs=2, hidden=8)
    folder = write_program(spec, tmp_path / "program").folder
    wanted = _library(spec, tmp_path / "run")
    compiler = find_compiler()
    assert compiler is not None  # as the other programs have been compiled
    once = f"{sys.executable};{Path(__file__).with_name('compile_once.py')};{objects}"
    flags = [f"-DCMAKE_CXX_FLAGS={' '.join(WARNINGS)} -fPIC", f"-DCMAKE_CXX_FLAGS_RELEASE={OPTIMISATION}"]
    flags += [f"-DCMAKE_CXX_COMPILER_LAUNCHER={once}", f"-DCMAKE_CXX_COMPILER={compiler.command[0]}"]
    subprocess.run(["cmake", "-S", folder, "-B", folder / "build", *flags], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", folder / "build", "-j2"], check=True, capture_output=True)
    found = Built(folder, folder / "build" / "train").records()
    assert [line["loss"] for line in found] == [line["loss"] for line in wanted]
