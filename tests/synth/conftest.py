"""Programs of the tests: built once per content, for all workers of a run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from built_program import FLAGS, Build, Built, flags_of
from synth.compile_once import Call, all_compiled, reads

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

    def build_program(
        folder: Path,
        *more: Path,
        flags: tuple[str, ...] = FLAGS,
        own_compiler: str | None = None,
        include: tuple[Path, ...] = (),
        is_library: bool = False,
    ) -> Built:
        sources = [*sorted(path for path in folder.glob("*.cpp") if path.name != "cpu_level.cpp"), *more]
        sources += [path for part in ("core", "support") for path in sorted((folder / part).glob("*.cpp"))]
        own = compiler.command if own_compiler is None else [own_compiler]  # of what reads the headers of it
        names = {"mpi.h", *(path.name for part in include for path in part.iterdir())}
        calls = []
        for source in sources:
            is_own = source.parent.name != "core" and reads(source, folder, names)
            command = [*(own if is_own else compiler.command), *(["-x", "c++"] if source.suffix == ".cu" else [])]
            own_flags = [f"-I{path}" for path in include] if is_own else []
            calls.append(Call(command, source, folder, (*flags_of(source, flags), *own_flags)))
        made = map(str, all_compiled(objects, calls))
        train = folder / ("libmodel.so" if is_library else "train")
        switches = [flag for flag in flags if flag.startswith(("-fopenmp", "-fsanitize"))]
        if is_library:
            switches += ["-shared", "-static-libstdc++", "-static-libgcc"]
            switches.append(f"-Wl,--version-script={folder / 'exports.map'}")
        subprocess.run([*own, *switches, *made, "-lz", "-o", str(train)], check=True)
        return Built(folder, train)

    return build_program


@pytest.fixture(scope="session")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small synthetic graphs as files: dense features deflated, sparse ones stored, and weighted edges with loops."""
    folder = tmp_path_factory.mktemp("graphs")
    dense = gw.synthetic("default", scale=0.03, seed=1).save(folder / "dense.npz")
    arrays, rng = dict(np.load(dense)), np.random.default_rng(4)
    arrays["edge_index"] = np.concatenate([arrays["edge_index"], *([np.arange(40)] * 2,) * 2], axis=1)
    arrays["edge_weight"] = rng.random(arrays["edge_index"].shape[1]).astype(np.float32)
    np.savez(folder / "weighted.npz", **arrays)
    return {
        "dense": dense,
        "weighted": folder / "weighted.npz",
        "sparse": gw.synthetic("cora", scale=0.06, seed=2).save(folder / "sparse.npz", compress=False),
    }
