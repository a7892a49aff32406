"""Programs under another compiler: no warning, and the library's losses."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from built_program import WARNINGS, Built

from graphweft.run import run
from graphweft.synth.spec import ProgramSpec
from graphweft.synthesis import write_program


def _can_build() -> bool:
    """Whether there is a clang++ with OpenMP, which Debian has in a package of its own."""
    if shutil.which("clang++") is None:
        return False
    command = ["clang++", "-fopenmp", "-fsyntax-only", "-x", "c++", "-"]
    return subprocess.run(command, input=b"#include <omp.h>\n", check=False, capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not _can_build(), reason="no clang++ with OpenMP")
def test_clang_compiles_it_without_warnings(graphs: dict[str, Path], tmp_path: Path) -> None:
    spec = ProgramSpec(data=str(graphs["dense"]), model="gat", hidden=8, heads=2, dropout=0.2, epochs=3)
    folder = write_program(spec, tmp_path / "program").folder
    told = [f"-DCMAKE_CXX_FLAGS={' '.join(WARNINGS)}", "-DCMAKE_CXX_FLAGS_RELEASE=-O1", "-DCMAKE_CXX_COMPILER=clang++"]
    subprocess.run(["cmake", "-S", folder, "-B", folder / "build", *told], check=True, capture_output=True)
    done = subprocess.run(["cmake", "--build", folder / "build", "-j2"], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    run(replace(spec.to_train(), out=str(tmp_path / "run"), threads=1))
    wanted = [json.loads(line)["loss"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    found = [line["loss"] for line in Built(folder, folder / "build" / "train").records("--threads", 2)]
    assert found == pytest.approx(wanted, rel=1e-4)  # it contracts in another order than the library's compiler
