"""CUDA programs: their kernels run on the host, block by block, and train as the library does; nvcc compiles them."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from built_program import SCORES, Build, Built

from graphweft._errors import ConfigError
from graphweft.run import run
from graphweft.synth.spec import ProgramSpec
from graphweft.synthesis import write_program

HOST = Path(__file__).with_name("cuda_host")
CASES: list[dict[str, Any]] = [
    {"model": "gcn", "layers": 3, "dropout": 0.4},
    {"model": "sage", "reduce": "max", "optimizer": "sgd", "lr": 0.1},
    {"x": "sparse", "model": "gcn", "dropout": 0.5, "normalize": "row"},
    {"x": "sparse", "model": "gin", "optimizer": "adamw", "weight_decay": 0.01, "deterministic": True},
    {"model": "gat", "layers": 3, "hidden": 24, "heads": 3, "dropout": 0.3},
    {"x": "sparse", "model": "gat", "heads": 2, "activation": "leaky_relu", "deterministic": True},
    {"model": "gcnii", "layers": 3, "activation": "auto"},
    {"model": "appnp", "hops": 3, "dropout": 0.2},
    {"model": "gatv2", "layers": 3, "heads": 4, "dropout": 0.3},
    {"x": "sparse", "model": "transformer", "heads": 2, "hidden": 14},
    {"x": "weighted", "model": "gcn", "layers": 3, "dropout": 0.3},
    {"x": "weighted", "model": "gin", "train_eps": True},
    {"model": "sage", "layers": 3, "norm": "batch", "optimizer": "sgd", "lr": 0.05},
    {"model": "gatv2", "hidden": 14, "heads": 2, "out_heads": 3, "norm": "layer"},
]


def _name(case: dict[str, Any]) -> str:
    return "-".join(str(value) for value in case.values())


def _emulated(build: Build, folder: Path) -> Built:
    """The program with the headers of the host in place of CUDA's."""
    built: Built = build(folder, *sorted((folder / "support").glob("*.cu")), include=(HOST,))
    return built


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=_name)
def test_losses_are_the_librarys(case: dict[str, Any], build: Build, graphs: dict[str, Path], tmp_path: Path) -> None:
    options = {name: value for name, value in case.items() if name not in ("x", "deterministic")}
    spec = ProgramSpec(**{"data": str(graphs[case.get("x", "dense")]), "epochs": 5, "hidden": 16, **options})
    deterministic = case.get("deterministic", False)
    folder = write_program(spec, tmp_path / "program", target="cuda", deterministic=deterministic).folder
    text = (folder / "model.cpp").read_text()
    assert ("implicit_transpose(" in text) == (case.get("x") == "sparse" and not deterministic)
    assert ("x_by_column" in text) == deterministic
    run(replace(spec.to_train(), out=str(tmp_path / "run"), threads=1))
    wanted = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    built = _emulated(build, folder)
    for threads in (1, 2):
        found = built.records("--threads", threads)
        for a, b in zip(found, wanted, strict=True):
            for score in SCORES:
                assert a[score] == pytest.approx(b[score], rel=1e-4, abs=0.02 if "acc" in score else 0)


@pytest.mark.slow
def test_a_program_tests_itself(build: Build, graphs: dict[str, Path], tmp_path: Path) -> None:
    """Every kernel is right, also those of attention; a kernel that is not is found."""
    spec = ProgramSpec(data=str(graphs["dense"]), epochs=5, hidden=16, model="gatv2", heads=2, norm="batch")
    folder = write_program(spec, tmp_path / "program", target="cuda").folder
    lines = _emulated(build, folder).run("--self-test").stdout.splitlines()
    assert len(lines) >= 45 and all(" right " in line for line in lines)
    kernels = folder / "support" / "kernels.cu"
    kernels.write_text(kernels.read_text().replace("total += one;", "total = one;"))
    done = _emulated(build, folder).run("--self-test", status=1)
    wrong = [line.split()[0] for line in done.stdout.splitlines() if "WRONG" in line]
    assert wrong == ["spmm", "sparse_matmul", "spmm"]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
@pytest.mark.slow
def test_nvcc_has_no_complaints(tmp_path: Path) -> None:
    folder = write_program(
        ProgramSpec(scale=0.02, model="gatv2", norm="batch", out_heads=2), tmp_path / "program", target="cuda"
    ).folder
    include = [f"-I{folder / name}" for name in ("support", "include")]
    strict = ["-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra,-Werror,-fopenmp"]
    targets = [f"-gencode=arch=compute_{cc},code=sm_{cc}" for cc in (80, 90, 100)]
    sources = sorted((folder / "support").glob("*.cu"))
    assert [path.stem for path in sources] == ["attention", "attention_rows", "elements", "heads", "kernels", "norms"]
    for source in sources:
        command = ["nvcc", "-std=c++17", *targets, *strict, *include, "-c", str(source), "-o", str(tmp_path / "k.o")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0 and done.stderr == "", done.stderr


def test_the_host_has_one_order_of_sums(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="deterministic cannot be combined with target=openmp"):
        write_program(ProgramSpec(scale=0.02), tmp_path / "p", deterministic=True)
    assert list(tmp_path.iterdir()) == []
