"""Kinds of programs: which sources each is made of, how it is built, and what its README says.

Comes in: a target and a purpose. Goes out: a :class:`Kit`. Called by :mod:`graphweft.synthesis`; read by ``folder.py``.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable
from typing import NamedTuple

from graphweft._errors import ConfigError
from graphweft.synth.device_text import device_elements
from graphweft.synth.model_text import source_text
from graphweft.synth.serving_text import serving_text
from graphweft.synth.spec import ProgramSpec
from graphweft.synth.steps import Steps
from graphweft.train.spec import ATTENTIVE


class Kit(NamedTuple):
    """What a kind of program is made of.

    Attributes:
        name: File of the text that is written for the model.
        model: Its text.
        folders: Folders of sources, within those of the package; a file of a later one replaces one of an earlier.
        left_out: Stems or names of files in them that this kind has no use for.
        top: Files that lie at the top of the program's folder.
        core: Sources of the library's kernels.
        cmake: The text of CMakeLists.txt.
        readme: That of README.md.
        more: Other files that are written for the model, by their path.
    """

    name: str
    model: Callable[[ProgramSpec, Steps, str], str]
    folders: tuple[str, ...]
    left_out: tuple[str, ...]
    top: tuple[str, ...]
    core: tuple[str, ...]
    cmake: Callable[[ProgramSpec, Steps], str]
    readme: Callable[[ProgramSpec, Steps, str], str]
    more: Callable[[Steps], dict[str, str]] = lambda _: {}


_LEVEL = """
# Instructions: 0 any CPU of this kind, 1 x86-64-v3, 2 x86-64-v4; of this machine unless told otherwise. Results have
# the same bits as those of the library at the same level.
if(NOT DEFINED CPU_LEVEL)
  set(CPU_LEVEL 0)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND NOT CMAKE_CROSSCOMPILING)
    try_run(CPU_LEVEL_FOUND CPU_LEVEL_COMPILED ${CMAKE_CURRENT_BINARY_DIR}/cpu_level
            ${CMAKE_CURRENT_SOURCE_DIR}/cpu_level.cpp
            CMAKE_FLAGS -DINCLUDE_DIRECTORIES=${CMAKE_CURRENT_SOURCE_DIR}/include)
    if(CPU_LEVEL_COMPILED AND CPU_LEVEL_FOUND MATCHES "^[012]$")
      set(CPU_LEVEL ${CPU_LEVEL_FOUND})
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
"""

_SOON = """# What works on files and text is no faster with more optimisation than this, and compiles sooner.
file(GLOB soon main.cpp core/memory.cpp)
foreach(name arrays dataset edge_weights graph memory report weights)
  file(GLOB found support/${name}.cpp)
  list(APPEND soon ${found})
endforeach()
set_source_files_properties(${soon} PROPERTIES COMPILE_OPTIONS $<$<CONFIG:Release>:-O2>)
"""

_TOGETHER = """# Small sources are compiled as one, which reads what they include once.
set_target_properties({target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
file(GLOB together core/abi.cpp core/features.cpp core/loss.cpp core/optim.cpp core/rows.cpp
     support/features.cpp support/kernels.cpp support/scores.cpp support/targets.cpp)
set_source_files_properties(${{together}} PROPERTIES UNITY_GROUP small)
"""

_ATTENTION = """# Attention says itself which products and sums are fused.
file(GLOB attention support/attention_*.cpp support/heads.cpp)
set_source_files_properties(${attention} PROPERTIES COMPILE_OPTIONS -ffp-contract=off)
"""


def _head(spec: ProgramSpec, made: str, languages: str) -> str:
    return f"""# cmake -S . -B build && cmake --build build gives {made}.
cmake_minimum_required(VERSION 3.22)
project({spec.model}_program LANGUAGES {languages})

set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
find_package(OpenMP REQUIRED COMPONENTS CXX)
"""


def _compiled(target: str, steps: Steps) -> str:
    return f"""target_include_directories({target} PRIVATE . support include)
# Products and sums may be fused; nothing is reassociated: equal runs give equal bits.
target_compile_options({target} PRIVATE ${{level_flags}} -fno-math-errno -ffp-contract=fast -Wno-psabi)
target_compile_definitions({target} PRIVATE GW_ONLY_F32 GW_PLAIN_ROWS GW_NARROW_IDS
                           GW_WIDEST_SUM={steps.widest_sum} GW_LEVEL="${{CPU_LEVEL}}")
{_SOON}{_TOGETHER.format(target=target)}"""


def _host(target: str, spec: ProgramSpec, steps: Steps) -> str:
    """As :func:`_compiled` where all kernels run on the host."""
    return _compiled(target, steps) + (_ATTENTION if spec.model in ATTENTIVE else "")


def _cmake_train(spec: ProgramSpec, steps: Steps) -> str:
    return (
        _head(spec, "build/train", "CXX")
        + "find_package(ZLIB REQUIRED)\n"
        + _LEVEL
        + "add_executable(train main.cpp model.cpp ${sources})\n"
        + _host("train", spec, steps)
        + "target_link_libraries(train PRIVATE OpenMP::OpenMP_CXX ZLIB::ZLIB)\n"
    )


def _cmake_predict(spec: ProgramSpec, steps: Steps) -> str:
    return (
        _head(spec, "build/libmodel.so and build/example", "C CXX")
        + _LEVEL
        + "add_library(model SHARED model.cpp ${sources})\n"
        + _host("model", spec, steps)
        + """set_target_properties(model PROPERTIES DEFINE_SYMBOL "")
# Only the entry points are seen from outside. The C++ library inside is its own, with its own memory.
target_link_options(model PRIVATE -static-libstdc++ -static-libgcc
                    -Wl,--version-script=${CMAKE_CURRENT_SOURCE_DIR}/exports.map)
target_link_libraries(model PRIVATE OpenMP::OpenMP_CXX)

add_executable(example example.c)
target_link_libraries(example PRIVATE model)
"""
    )


def _cmake_mpi(spec: ProgramSpec, steps: Steps) -> str:
    return (
        _head(spec, "build/train", "CXX")
        + "find_package(ZLIB REQUIRED)\nfind_package(MPI REQUIRED COMPONENTS CXX)\n"
        + _LEVEL
        + "add_executable(train main.cpp model.cpp ${sources})\n"
        + _host("train", spec, steps)
        + "target_link_libraries(train PRIVATE OpenMP::OpenMP_CXX ZLIB::ZLIB MPI::MPI_CXX)\n"
    )


def _cmake_cuda(spec: ProgramSpec, steps: Steps) -> str:
    return (
        _head(spec, "build/train", "CXX CUDA")
        + "find_package(ZLIB REQUIRED)\nfind_package(CUDAToolkit REQUIRED)\n"
        + """
# The devices that are compiled for, unless told otherwise.
if(NOT DEFINED DEVICES)
  set(DEVICES 80 90 100)
endif()
set(CMAKE_CUDA_STANDARD 17)
"""
        + _LEVEL.replace("support/*.cpp)", "support/*.cpp support/*.cu)")
        + "add_executable(train main.cpp model.cpp ${sources})\n"
        + _compiled("train", steps).replace(
            "PRIVATE ${level_flags} -fno-math-errno -ffp-contract=fast -Wno-psabi",
            "PRIVATE\n  $<$<COMPILE_LANGUAGE:CXX>:${level_flags};-fno-math-errno;-ffp-contract=fast;-Wno-psabi>",
        )
        + 'set_target_properties(train PROPERTIES CUDA_ARCHITECTURES "${DEVICES}")\n'
        + "target_link_libraries(train PRIVATE OpenMP::OpenMP_CXX ZLIB::ZLIB CUDA::cudart CUDA::cublas)\n"
    )


def _title(spec: ProgramSpec) -> str:
    return f"# {spec.model.upper()}, {spec.layers} layers\n"


_BUILD = "    cmake -S . -B build && cmake --build build -j\n"


def _readme_predict(spec: ProgramSpec, steps: Steps, data: str) -> str:
    return f"""{_title(spec)}
A shared library that predicts with one trained model, on graphs of any size. It needs a C++17 compiler with OpenMP and
CMake, and nothing else.

{_BUILD}    build/example weights.safetensors

- `graphweft_model.h` is the interface: weights from a safetensors file, a graph as compressed rows, predictions for all
  nodes or for some from a sample of their neighbourhood. `example.c` uses all of it.
- `model.cpp` is the model: {len(steps.evaluation)} kernel calls a prediction, in order, over buffers of
  {steps.columns} floats a node.
- `model.toml` is the spec that this was written from; `support/` is the rest; `core/` and `include/` are the kernels.

Models and graphs are only read, so threads share them; each thread has a context of its own. Nothing depends on earlier
calls. Memory that calls give back is kept for later ones. Orders of products are those for the graph of the spec; they
hold for any graph, which may round the last bit otherwise than the library does for a graph of another size.
"""


def _readme_train(spec: ProgramSpec, steps: Steps, data: str) -> str:
    rows = steps.plans.sizes.rows
    calls = len(steps.forward) + len(steps.backward) + 2
    return f"""# {spec.model.upper()}, {spec.layers} layers

A program that trains one model on one graph, on all its nodes at once. It needs a C++17 compiler with OpenMP, CMake and
zlib, and nothing else.

    cmake -S . -B build && cmake --build build -j
    build/train --data {shlex.quote(data or "graph.npz")} --epochs 5 --threads 2 --json

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


def _readme_mpi(spec: ProgramSpec, steps: Steps, data: str) -> str:
    rows = steps.plans.sizes.rows
    return f"""{_title(spec)}
A program that trains one model on one graph with several processes, each with a part of the nodes. It needs a C++17
compiler with OpenMP, MPI, CMake and zlib, and nothing else.

{_BUILD}    mpiexec -n 2 build/train --data parts-2 --epochs 5 --threads 1 --json

- `parts-P` holds the parts for P processes, made by `graphweft synth --ranks P`: own nodes, then ghosts, nodes of
  others whose rows are borrowed. The graph has {rows["V"]:,} nodes and {rows["E"]:,} edges.
- `model.cpp` is the model. Before a sum over edges the ghosts' rows are received while rows that need none are summed.
  The sum of a weight's gradient over all processes begins as soon as it is known and is waited for before the update.
- `main.cpp` reads the flags, trains and reports; `support/` reads data and weights; `core/` and `include/` are the
  kernels.

Dropout differs from that of one process: each process draws for its own nodes. `PROGRAM_TRACE=FILE` writes a line for
every sum and exchange: when it was begun, waited for and done. `PROGRAM_SUM_DELAY_MS=50` lets every sum take so long at
least, as on a slow network.

`--save weights.safetensors` writes weights, the state of the optimiser and the number of epochs; `--load` goes on from
there, up to `--epochs` in all. `--metrics metrics.jsonl` writes a line per epoch.
"""


def _readme_cuda(spec: ProgramSpec, steps: Steps, data: str) -> str:
    rows = steps.plans.sizes.rows
    by = "by row, added atomically" if steps.plans.is_sparse and not steps.by_column else "in a fixed order"
    return f"""{_title(spec)}
A program that trains one model on one graph, on all its nodes at once, on a CUDA device of compute capability 8 or
later. It needs a C++17 compiler with OpenMP, CUDA with cuBLAS, CMake and zlib, and nothing else.

{_BUILD}    build/train --self-test
    build/train --data {shlex.quote(data or "graph.npz")} --epochs 5 --json

- `--self-test` compares every kernel with plain loops on this machine's device and prints a line for each.
- `model.cpp` is the model; `support/kernels.cu` has its kernels: a block for each row of a sum over edges, without
  atomics; gradients of weights are added up {by}. Dense products are cuBLAS's.
- `main.cpp` reads the flags, trains and reports; `support/` is the rest; `core/` and `include/` prepare the graph.

It was written for a graph of {rows["V"]:,} nodes and {rows["E"]:,} edges, and refuses others. Buffers lie in managed
memory. `--save`, `--load` and `--metrics` are those of the other targets.
"""


_DENSE = ("gemm", "rows", "spmm", "spmm_max")
_TRAIN_CORE = (
    "abi",
    "batch_norm",
    "csr",
    "features",
    "loss",
    "memory",
    "optim",
    "sddmm",
    "stretches",
    "structure",
    *_DENSE,
)
_PREDICT_CORE = ("abi", "batch_norm", "csr", "memory", "sample", "structure", *_DENSE)
_HOST_HEADS = ("attention_kernels", "attention_operands", "attention_add", "attention_add2", "attention_dot")
_KITS = {
    ("openmp", "train"): Kit(
        "model.cpp", source_text, ("program",), (), ("main.cpp",), _TRAIN_CORE, _cmake_train, _readme_train
    ),
    ("mpi", "train"): Kit(
        "model.cpp",
        functools.partial(source_text, over_ranks=True),
        ("program", "program/mpi"),
        ("edge_weights",),
        ("main.cpp",),
        _TRAIN_CORE,
        _cmake_mpi,
        _readme_mpi,
    ),
    ("cuda", "train"): Kit(
        "model.cpp",
        functools.partial(source_text, on_device=True),
        ("program", "program/cuda"),
        (*_HOST_HEADS, "heads.cpp", "kernels.cpp", "memory.cpp", "norms.cpp", "batch_norm"),
        ("main.cpp",),
        ("abi", "csr", "features", "loss", "structure"),
        _cmake_cuda,
        _readme_cuda,
        device_elements,
    ),
    ("openmp", "predict"): Kit(
        "model.cpp",
        lambda spec, steps, _: serving_text(spec, steps),
        ("program", "program/predict"),
        (
            *("main", "model", "dataset", "arrays", "features", "npz", "checksum", "report", "random", "team"),
            *("scores", "entry_loss", "targets"),
        ),
        ("graphweft_model.h", "example.c", "exports.map"),
        _PREDICT_CORE,
        _cmake_predict,
        _readme_predict,
    ),
}


def kit_of(target: str, what: str) -> Kit:
    """The kind of program for a target and a purpose. Raises: ConfigError for a pair that there is none of."""
    if (target, what) not in _KITS:
        raise ConfigError(f"what={what} cannot be combined with target={target}: libraries that predict run on openmp")
    return _KITS[target, what]


__all__ = ["Kit", "kit_of"]
