"""The folder of a program: its text, the headers and sources that it needs, how it is built, and what it is.

Comes in: a spec and its :class:`Steps`. Goes out: a folder that appears whole or not at all. Called by
:mod:`graphweft.synthesis`.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from graphweft._errors import ConfigError
from graphweft.synth.model_text import source_text
from graphweft.synth.spec import ProgramSpec
from graphweft.synth.steps import Steps

_PACKAGE = Path(__file__).parents[1]
_MARK = "model.toml"  # tells a program of ours from other folders
_CORE = ("abi", "csr", "features", "gemm", "loss", "memory", "optim", "rows", "sddmm", "spmm", "spmm_max", "structure")
_OPTIONAL = {"spmm_max": "spmm_max", "sddmm": "sparse_dropout"}  # needed where the model calls it
_INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)


def sources() -> Path:
    """The folder of C++ sources: of the installed package, or of the source tree. Raises: ConfigError."""
    for folder in (_PACKAGE.parent / "csrc", _PACKAGE / "csrc"):
        if (folder / "program" / "main.cpp").is_file():
            return folder
    raise ConfigError("synth: expected the C++ sources beside the package, got none; reinstall graphweft")


def program_files(spec: ProgramSpec, steps: Steps, data: str) -> dict[str, str]:
    """All files of a program by their path in its folder."""
    folder = sources()
    model = source_text(spec, steps, data)
    files = {
        _MARK: spec.to_toml() + "\n",
        "model.cpp": model,
    }
    for path in sorted((folder / "program").iterdir()):
        if path.stem == "attention" and '"attention.h"' not in model:
            continue
        files[path.name if path.stem == "main" else f"support/{path.name}"] = path.read_text(encoding="utf-8")
    chosen = [name for name in _CORE if name not in _OPTIONAL or f"{_OPTIONAL[name]}(" in model]
    for name in chosen:
        files[f"core/{name}.cpp"] = (folder / "core" / f"{name}.cpp").read_text(encoding="utf-8")
    files |= _headers(folder, files)
    files["cpu_level.cpp"] = (folder / "cpu_level.cpp").read_text(encoding="utf-8")
    files |= _headers(folder, files)
    files["CMakeLists.txt"] = _cmake(spec)
    files["README.md"] = _readme(spec, steps, data)
    return files


def _headers(folder: Path, files: dict[str, str]) -> dict[str, str]:
    """The headers that ``files`` include, directly or not."""
    found: dict[str, str] = {}
    open_ = list(files.values())
    while open_:
        for name in _INCLUDE.findall(open_.pop()):
            if name.startswith("graphweft/") and name not in found:
                path = next(p for p in (folder / "include", _PACKAGE / "include") if (p / name.split("/")[0]).is_dir())
                found[name] = path.joinpath(*name.split("/")).read_text(encoding="utf-8")
                open_.append(found[name])
    return {f"include/{name}": text for name, text in sorted(found.items())}


def _cmake(spec: ProgramSpec) -> str:
    return f"""# cmake -S . -B build && cmake --build build gives build/train.
cmake_minimum_required(VERSION 3.22)
project({spec.model}_program LANGUAGES CXX)

set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(ZLIB REQUIRED)

# Instructions: 0 any CPU of this kind, 1 x86-64-v3, 2 x86-64-v4; of this machine unless told otherwise. Results have
# the same bits as those of the library at the same level.
if(NOT DEFINED CPU_LEVEL)
  set(CPU_LEVEL 0)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND NOT CMAKE_CROSSCOMPILING)
    try_run(CPU_LEVEL_FOUND CPU_LEVEL_COMPILED ${{CMAKE_CURRENT_BINARY_DIR}}/cpu_level
            ${{CMAKE_CURRENT_SOURCE_DIR}}/cpu_level.cpp
            CMAKE_FLAGS -DINCLUDE_DIRECTORIES=${{CMAKE_CURRENT_SOURCE_DIR}}/include)
    if(CPU_LEVEL_COMPILED AND CPU_LEVEL_FOUND MATCHES "^[012]$")
      set(CPU_LEVEL ${{CPU_LEVEL_FOUND}})
    endif()
  endif()
endif()
if(CPU_LEVEL EQUAL 0)
  set(level_flags "")
elseif(CPU_LEVEL EQUAL 1)
  set(level_flags -march=x86-64-v3)
else()
  set(level_flags -march=x86-64-v4 -mprefer-vector-width=512)
endif()

file(GLOB sources core/*.cpp support/*.cpp)
add_executable(train main.cpp model.cpp ${{sources}})
target_include_directories(train PRIVATE . support include)
# Products and sums may be fused; nothing is reassociated: equal runs give equal bits.
target_compile_options(train PRIVATE ${{level_flags}} -fno-math-errno -ffp-contract=fast -Wno-psabi)
target_compile_definitions(train PRIVATE GW_ONLY_F32 GW_LEVEL="${{CPU_LEVEL}}")
target_link_libraries(train PRIVATE OpenMP::OpenMP_CXX ZLIB::ZLIB)
"""


def _readme(spec: ProgramSpec, steps: Steps, data: str) -> str:
    rows = steps.plans.sizes.rows
    calls = len(steps.forward) + len(steps.backward) + 2
    return f"""# {spec.model.upper()}, {spec.layers} layers

A program that trains one model on one graph, on all its nodes at once. It needs a C++17 compiler with OpenMP, CMake and
zlib, and nothing else.

    cmake -S . -B build && cmake --build build -j
    build/train --data {data or "graph.npz"} --epochs 5 --threads 2 --json

- `model.toml` is the spec that this was written from.
- `model.cpp` is the model: {calls} kernel calls an epoch, in order, over one arena of {steps.arena_bytes:,} bytes.
- `main.cpp` reads the flags, trains and reports; `support/` reads data and weights.
- `core/` and `include/` are the kernels.

It was written for a graph of {rows["V"]:,} nodes and {rows["E"]:,} edges, and refuses others: orders of products and
places of buffers follow from the sizes. The file is an `.npz` with `indptr` and `indices` (rows are sources) or
`edge_index`, `x` or its compressed form `x_indptr`, `x_indices`, `x_data`, `x_shape`, `y` and the three masks.

`--save weights.safetensors` writes weights, the state of the optimiser and the number of epochs; `--load` goes on from
there, up to `--epochs` in all. `--metrics metrics.jsonl` writes a line per epoch.
"""


def check_folder(out: Path) -> None:
    """``out`` can become a program's folder. Raises: ConfigError."""
    if out.exists() and not (out.is_dir() and ((out / _MARK).is_file() or not any(out.iterdir()))):
        raise ConfigError(f"out: expected a new folder or one of an earlier program, got {out}")
    if out.resolve() == Path.cwd():
        raise ConfigError("out: expected another folder than the working one, which is replaced as a whole, got it")
    parent = next(p for p in (out.absolute(), *out.absolute().parents) if p.exists())
    if not parent.is_dir():
        raise ConfigError(f"out: expected a folder, got {parent}")


def write_folder(out: Path, files: dict[str, str]) -> None:
    """Writes ``files`` beside ``out`` and puts the whole in its place. Raises: ConfigError, OSError."""
    check_folder(out)
    out = out.resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        fresh.chmod(0o755)
        for name, text in files.items():
            path = fresh / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        if out.exists():
            _exchange(fresh, out)
        else:
            fresh.rename(out)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def _exchange(fresh: Path, out: Path) -> None:
    """``fresh`` in the place of ``out``, which goes only then."""
    aside = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    former = aside / out.name
    try:
        out.rename(former)
        try:
            fresh.rename(out)
        except BaseException:
            former.rename(out)
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


__all__ = ["check_folder", "program_files", "sources", "write_folder"]
