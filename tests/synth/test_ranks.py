"""MPI programs: the library's losses for one, two and four processes; what travels overlaps with what is computed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from built_program import SCORES, Build, Built

import graphweft as gw
from graphweft._errors import ConfigError
from graphweft.run import run
from graphweft.synth.parts import owners, write_parts
from graphweft.synth.spec import ProgramSpec
from graphweft.synthesis import write_program


class Mpi(NamedTuple):
    """An MPI: its compiler, and the command that starts processes but for their number."""

    compiler: str
    start: tuple[str, ...]


def _found() -> dict[str, Mpi]:
    """MPIs of this machine: that of the environment or the path, and Debian's Open MPI."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    found = {}
    for suffix in ("", ".mpich", ".openmpi"):
        compiler, starter = (shutil.which(name + suffix, path=path) for name in ("mpicxx", "mpiexec"))
        if compiler is None or starter is None:
            continue
        version = subprocess.run([starter, "--version"], capture_output=True, text=True, check=False).stdout
        is_open = "Open MPI" in version or "OpenRTE" in version
        more = ("--allow-run-as-root", "--oversubscribe", "--bind-to", "none") if is_open else ()
        found.setdefault("Open MPI" if is_open else "MPICH", Mpi(compiler, (starter, *more)))
    return found


MPIS = _found()
CASES: list[dict[str, Any]] = [
    {"model": "gcn", "layers": 3},
    {"model": "sage", "residual": True, "layers": 3},
    {"model": "gin", "optimizer": "sgd", "lr": 0.05},
    {"x": "sparse", "model": "gcn", "normalize": "row"},
    {"model": "gat", "layers": 3, "heads": 4},
    {"x": "sparse", "model": "gat", "hidden": 15, "heads": 3, "activation": "relu"},
    {"model": "sage", "reduce": "max", "layers": 3},
    {"model": "gin", "reduce": "max", "activation": "elu"},
    {"model": "gatv2", "heads": 4},
    {"model": "transformer", "layers": 3},
    {"model": "gcnii", "layers": 3},
    {"x": "weighted", "model": "gcn", "layers": 3},
    {"x": "weighted", "model": "gin", "train_eps": True, "dropout": 0.0},
    {"model": "sage", "layers": 3, "norm": "batch", "optimizer": "sgd", "lr": 0.05},
]


def _name(case: Mapping[str, Any]) -> str:
    return "-".join(str(value) for value in case.values())


def _built(build: Build, folder: Path, mpi: Mpi) -> Built:
    built: Built = build(folder, own_compiler=mpi.compiler)
    return built


def _records(built: Built, mpi: Mpi, ranks: int, *arguments: object, **variables: str) -> list[dict[str, Any]]:
    command = [*mpi.start, "-n", str(ranks), str(built.train), "--data", str(built.folder / f"parts-{ranks}")]
    command += [*map(str, arguments), "--threads", "1"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=240, env={**os.environ, **variables}
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def _library(spec: ProgramSpec, folder: Path) -> list[dict[str, Any]]:
    run(replace(spec.to_train(), out=str(folder), threads=1))
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.skipif(not MPIS, reason="no MPI: no mpicxx and mpiexec in the environment or on the path")
@pytest.mark.parametrize("case", CASES, ids=_name)
def test_losses_are_the_librarys(case: dict[str, Any], build: Build, graphs: dict[str, Path], tmp_path: Path) -> None:
    options = {name: value for name, value in case.items() if name != "x"}
    spec = ProgramSpec(**{"data": str(graphs[case.get("x", "dense")]), "epochs": 5, "hidden": 16, **options})
    folder = write_program(spec, tmp_path / "program", target="mpi", ranks=(1, 2, 4)).folder
    wanted = _library(spec, tmp_path / "run")
    mpi = next(iter(MPIS.values()))
    built = _built(build, folder, mpi)
    for ranks in (1, 2, 4):
        found = _records(built, mpi, ranks, "--metrics", tmp_path / f"{ranks}.jsonl")
        for a, b in zip(found, wanted, strict=True):
            for score in SCORES:
                assert a[score] == pytest.approx(b[score], rel=1e-4, abs=0.02 if "acc" in score else 0)
        assert len((tmp_path / f"{ranks}.jsonl").read_text().splitlines()) == 5
    assert min(np.load(folder / "parts-4" / f"rank-{rank}.npz")["in_ghosts"].size for rank in range(4)) > 0


@pytest.mark.slow
@pytest.mark.skipif(len(MPIS) < 2, reason="no second MPI")
def test_another_mpi_does_the_same(build: Build, graphs: dict[str, Path], tmp_path: Path) -> None:
    spec = ProgramSpec(data=str(graphs["dense"]), epochs=3, hidden=16, layers=3)
    folder = write_program(spec, tmp_path / "program", target="mpi", ranks=(2,)).folder
    wanted = [line["loss"] for line in _library(spec, tmp_path / "run")]
    mpi = list(MPIS.values())[1]
    found = _records(_built(build, folder, mpi), mpi, 2)
    assert [line["loss"] for line in found] == pytest.approx(wanted, rel=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(not MPIS, reason="no MPI: no mpicxx and mpiexec in the environment or on the path")
def test_sums_travel_while_gradients_are_computed(build: Build, graphs: dict[str, Path], tmp_path: Path) -> None:
    """A sum begins before the next exchange of the backward pass and is waited for at its end; delays do not add up."""
    spec = ProgramSpec(data=str(graphs["dense"]), epochs=1, hidden=16, layers=3)
    folder = write_program(spec, tmp_path / "program", target="mpi", ranks=(2,)).folder
    mpi, trace = next(iter(MPIS.values())), tmp_path / "trace"
    built = _built(build, folder, mpi)
    plain = _records(built, mpi, 2)
    found = _records(built, mpi, 2, PROGRAM_TRACE=str(trace), PROGRAM_SUM_DELAY_MS="50")
    assert [line["loss"] for line in found] == [line["loss"] for line in plain]
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    sums = {line["what"]: line for line in lines if line["what"].startswith("sum of ")}
    ghosts = [line for line in lines if line["what"] == "ghosts"]
    assert len(sums) == 7 and len(ghosts) >= 5
    for line in sums.values():
        assert line["done"] - line["begun"] >= 0.0499
    last, first = sums["sum of d_layers_2_weight"], sums["sum of d_layers_0_weight"]
    assert any(last["begun"] < line["begun"] < line["done"] < last["waited_from"] for line in ghosts)
    assert last["begun"] < first["begun"] <= min(line["waited_from"] for line in sums.values())
    hidden = [line for line in sums.values() if line["waited_from"] - line["begun"] >= 0.05]
    assert all(line["done"] - line["waited_from"] < 0.05 for line in hidden)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_parts_hold_the_whole_graph(ranks: int, graphs: dict[str, Path], tmp_path: Path) -> None:
    """Edges, features and borrowed rows in local numbers are those of the dataset."""
    ds = gw.load(str(graphs["dense"]))
    owner = owners(ds, ranks)
    write_parts(ds, owner, tmp_path / "parts", nonzeros=False)
    parts = [dict(np.load(tmp_path / "parts" / f"rank-{rank}.npz")) for rank in range(ranks)]
    src, dst = (ends.numpy() for ends in ds.graph.edges())
    wanted = {"in": sorted(zip(dst, src, strict=True)), "out": sorted(zip(src, dst, strict=True))}
    for side in ("in", "out"):
        found = []
        for rank, part in enumerate(parts):
            ids = np.concatenate([part["own"], part[f"{side}_ghosts"]])
            rows = np.repeat(part["own"], np.diff(part[f"{side}_indptr"]))
            found += list(zip(rows, ids[part[f"{side}_indices"]], strict=True))
            interior = part[f"{side}_indices"][: part[f"{side}_indptr"][part["sizes"][5]]]
            assert (interior < part["own"].size).all()
            sent = []
            for other in parts:
                ends = [0, *other[f"{side}_lent_ends"]]
                sent += list(other["own"][other[f"{side}_lent"][ends[rank] : ends[rank + 1]]])
            assert sent == list(part[f"{side}_ghosts"])
        assert sorted(found) == wanted[side]
    x = np.concatenate([part["x"] for part in parts])
    assert np.array_equal(x, ds.x[np.concatenate([part["own"] for part in parts])])  # type: ignore[index]
    with pytest.raises(ConfigError, match=r"^ranks: expected an integer from 1 to"):
        owners(ds, 0)
