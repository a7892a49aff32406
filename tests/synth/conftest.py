"""Programs of the tests: built once per content, for all workers of a run."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest
from built_program import FLAGS, Build, Built
from filelock import FileLock

import graphweft as gw
from graphweft.runtime.build import find_compiler


@pytest.fixture(scope="session")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of compiled sources that all tests of this run share, also those of other workers."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if base.name.startswith("popen-") else base) / "objects"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def build(objects: Path) -> Build:
    """Builds the program in a folder; what was compiled before is linked again."""
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C++ compiler")

    def compile_one(source: Path, folder: Path, flags: tuple[str, ...]) -> Path:
        headers = sorted([*folder.glob("support/*.h"), *folder.glob("include/graphweft/*.h")])
        content = b"\0".join(p.read_bytes() for p in (source, *headers))
        key = hashlib.sha256(content + " ".join(flags).encode()).hexdigest()[:24]
        made = objects / f"{key}.o"
        include = [f"-I{folder / name}" for name in ("support", "include")]
        with FileLock(objects / f"{key}.lock"):
            if not made.exists():
                fresh = made.with_suffix(".tmp")
                command = [*compiler.command, *flags, *include, "-c", str(source), "-o", str(fresh)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                assert done.returncode == 0, done.stderr[:2000]
                fresh.rename(made)
        return made

    def build_program(folder: Path, *more: Path, flags: tuple[str, ...] = FLAGS) -> Built:
        sources = [folder / "main.cpp", folder / "model.cpp", *more]
        sources += [path for part in ("core", "support") for path in sorted((folder / part).glob("*.cpp"))]
        made = [str(compile_one(source, folder, flags)) for source in sources]
        train = folder / "train"
        link = [flag for flag in flags if flag.startswith(("-fopenmp", "-fsanitize"))]
        subprocess.run([*compiler.command, *link, *made, "-lz", "-o", str(train)], check=True)
        return Built(folder, train)

    return build_program


@pytest.fixture(scope="session")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small synthetic graphs as files: dense features deflated, sparse ones stored."""
    folder = tmp_path_factory.mktemp("graphs")
    return {
        "dense": gw.synthetic("default", scale=0.03, seed=1).save(folder / "dense.npz"),
        "sparse": gw.synthetic("cora", scale=0.06, seed=2).save(folder / "sparse.npz", compress=False),
    }
