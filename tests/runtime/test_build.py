"""Libraries compiled at run time: what they compute, the cache they live in, and what happens without a compiler."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch

import graphweft
from graphweft import _machine, _native
from graphweft._config import config
from graphweft._errors import FallbackWarning, ShapeError
from graphweft.runtime import build

SOURCE = """
#include "graphweft/adjacency.h"
#include "graphweft/lanes.h"
extern "C" GW_API void gw_square(int64_t begin, int64_t end, const float* const* in, float* out) {
  for (int64_t i = begin; i < end; ++i) out[i] = in[0][i] * in[0][i];
}
"""

needs_compiler = pytest.mark.skipif(build.find_compiler() is None, reason="no C++ compiler on this machine")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache folder of this test's own, and no memory of former libraries."""
    build.load.cache_clear()
    build._warn_once.cache_clear()
    with config(cache_dir=str(tmp_path)):
        yield tmp_path / "kernels"
    build.load.cache_clear()
    build._warn_once.cache_clear()


RUN = _native.declare("gw_run_rows")


def square(library, x):
    y = torch.empty_like(x)
    RUN(ctypes.cast(library.gw_square, ctypes.c_void_p), x.numel(), (ctypes.c_void_p * 1)(x.data_ptr()), y.data_ptr())
    return y


@needs_compiler
def test_the_core_runs_the_kernels_of_a_library_on_all_elements(cache):
    library = build.load(SOURCE)
    for count in (0, 1, 1000, 100_003):
        x = torch.rand(count)
        assert torch.equal(square(library, x), x * x)


def test_the_core_refuses_a_kernel_that_is_not_there():
    with pytest.raises(ShapeError, match="expected a kernel"):
        RUN(None, 4, None, None)


@needs_compiler
def test_a_second_load_compiles_nothing(cache, monkeypatch):
    build.load(SOURCE)
    made = list(cache.glob("*.so"))
    assert len(made) == 1
    before = made[0].stat().st_mtime_ns
    build.load.cache_clear()
    monkeypatch.setattr(build, "_compile", lambda *_: pytest.fail("compiled again"))
    assert build.load(SOURCE) is not None
    assert made[0].stat().st_mtime_ns == before


@needs_compiler
def test_the_key_covers_text_headers_compiler_and_flags(cache, monkeypatch):
    compiler = build.find_compiler()
    keys = [build._key(SOURCE, compiler), build._key(SOURCE + " ", compiler)]
    keys.append(build._key(SOURCE, _machine.Compiler(compiler.command, "another version")))
    monkeypatch.setattr(build, "headers_digest", lambda: "changed")
    keys.append(build._key(SOURCE, compiler))
    monkeypatch.setattr(build, "_FLAGS", (*build._FLAGS, "-O1"))
    keys.append(build._key(SOURCE, compiler))
    assert len(set(keys)) == len(keys)


@needs_compiler
@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_file_is_compiled_again(cache, damage):
    build.load(SOURCE)
    (path,) = cache.glob("*.so")
    content = path.read_bytes()
    damaged = {"cut": content[: len(content) // 2], "empty": b""}.get(damage)
    if damaged is None:
        damaged = content[:5000] + bytes([content[5000] ^ 1]) + content[5001:]
    replacement = path.with_suffix(".damaged")
    replacement.write_bytes(damaged)
    replacement.replace(path)  # not in place: this process has the good one mapped
    build.load.cache_clear()
    x = torch.arange(3.0)
    assert torch.equal(square(build.load(SOURCE), x), x * x)
    assert path.read_bytes() == content


CHILD = """
import ctypes, sys, torch
from graphweft.runtime import build
library = build.load(open(sys.argv[1]).read())
assert library is not None
with open("/proc/self/maps") as maps:
    files = {line.split(maxsplit=5)[5].strip() for line in maps if len(line.split(maxsplit=5)) == 6}
runtimes = {name for name in files if "omp" in name.rsplit("/", 1)[-1]}
assert len(runtimes) == 1, runtimes
"""


@needs_compiler
def test_processes_that_compile_at_once_agree_and_share_one_openmp_runtime(tmp_path):
    source = tmp_path / "unit.cpp"
    source.write_text(SOURCE)
    environment = {**os.environ, "GRAPHWEFT_CACHE_DIR": str(tmp_path / "cache")}
    children = [
        subprocess.Popen([sys.executable, "-c", CHILD, str(source)], env=environment, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for child in children:
        assert child.wait(timeout=120) == 0, child.stderr.read()
        child.stderr.close()
    kernels = tmp_path / "cache" / "kernels"
    assert len(list(kernels.glob("*.so"))) == 1
    assert not list(kernels.glob("build-*"))


def test_without_a_compiler_there_is_one_message_and_no_library(cache, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.warns(FallbackWarning, match="no C\\+\\+ compiler"):
        assert build.load(SOURCE) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert build.load(SOURCE + "//") is None


@needs_compiler
def test_a_compiler_that_fails_is_named(cache):
    with pytest.warns(FallbackWarning, match="failed .*error"):
        assert build.load("this is no C++") is None
    assert not list(cache.glob("*.so"))


@needs_compiler
def test_a_folder_that_cannot_be_written_is_done_without(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    build.load.cache_clear()
    with config(cache_dir=str(blocked)):
        x = torch.arange(5.0)
        assert torch.equal(square(build.load(SOURCE), x), x * x)
    build.load.cache_clear()


@needs_compiler
def test_nothing_is_written_into_the_package(cache):
    package = Path(graphweft.__file__).parent
    started = time.time()
    build.load(SOURCE)
    written = [p for p in package.rglob("*") if "__pycache__" not in p.parts and p.stat().st_mtime > started]
    assert not written


@needs_compiler
def test_several_libraries_are_compiled_together(cache):
    sources = [SOURCE, SOURCE.replace("] * in", "] + in"), "this is no C++"]
    with pytest.warns(FallbackWarning, match="failed"):
        libraries = build.load_all(sources)
    x = torch.arange(1000.0)
    assert torch.equal(square(libraries[0], x), x * x)
    assert torch.equal(square(libraries[1], x), x + x)
    assert libraries[2] is None
    assert len(list(cache.glob("*.so"))) == 2
    assert build.load(SOURCE) is libraries[0]


PARTS = """
#include "graphweft/adjacency.h"
#include "graphweft/lanes.h"
using gw::simd;
extern "C" GW_API void gw_parts(const float* x, const double* y, float* a, double* b) {
  for (int n = 0; n <= simd<float>::lanes; ++n)
    simd<float>::store_part(a + 32 * n, simd<float>::load_part(x, n) + 1.0f, n);
  for (int n = 0; n <= simd<double>::lanes; ++n)
    simd<double>::store_part(b + 32 * n, simd<double>::load_part(y, n) + 1.0, n);
}
extern "C" GW_API int gw_lanes(void) { return simd<float>::lanes; }
"""


def library_of(source, level, monkeypatch):
    """Compiled for a level that the processor runs."""
    if _native.LEVELS.index(level) > _native.LEVELS.index(_native.LEVEL):
        pytest.skip("this processor does not run it")
    monkeypatch.setattr(_native, "LEVEL", level)
    return build.load(source)


@needs_compiler
@pytest.mark.parametrize("level", _native.LEVELS)
def test_parts_of_vectors_on_every_level(level, cache, monkeypatch):
    library = library_of(PARTS, level, monkeypatch)
    lanes = library.gw_lanes()
    x, y = torch.rand(32) + 1, torch.rand(32, dtype=torch.float64)
    a, b = torch.zeros(17, 32), torch.zeros(17, 32, dtype=torch.float64)
    library.gw_parts(*(ctypes.c_void_p(t.data_ptr()) for t in (x, y, a, b)))
    for made, given, width in ((a, x, lanes), (b, y, lanes // 2)):
        for n in range(width + 1):
            expected = torch.zeros(32, dtype=given.dtype)
            expected[:n] = given[:n] + 1
            assert torch.equal(made[n], expected), (level, n)


FUNCTIONS = {
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "expm1": torch.expm1,
    "log1p": torch.log1p,
    "erf": torch.erf,
    "floor": torch.floor,
    "relu": torch.relu,
    "abs": torch.abs,
    "rsqrt": torch.rsqrt,
}
SPECIAL = (0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1.0, -1.0, 700.0)
EACH = """
extern "C" GW_API void gw_{name}_{real}(int64_t count, const {real}* x, {real}* y) {{
  gw::for_each_lanes<{real}>(0, count, [&](int64_t at, auto part) {{
    part.store(y + at, gw::lanes_{name}(part.load(x + at)));
  }});
}}
"""


def points(dtype):
    """Numbers anywhere, near zero, of all sizes, and those that are none."""
    sizes = torch.logspace(-30, 30, 2000, dtype=dtype)
    special = torch.tensor(SPECIAL, dtype=dtype)
    near = torch.linspace(-1e-3, 1e-3, 4000, dtype=dtype)
    return torch.cat([torch.linspace(-30, 30, 4000, dtype=dtype), near, sizes, -sizes, special])


@needs_compiler
@pytest.mark.parametrize("level", _native.LEVELS)
@pytest.mark.parametrize(("real", "dtype", "units"), [("float", torch.float32, 4), ("double", torch.float64, 4)])
def test_functions_of_vectors_on_every_level(level, real, dtype, units, cache, monkeypatch):
    """Against torch in float64, in units in the last place."""
    source = '#include "graphweft/adjacency.h"\n#include "graphweft/lanes.h"\n'
    source += "".join(EACH.format(name=name, real=real) for name in FUNCTIONS)
    library = library_of(source, level, monkeypatch)
    smallest, x = torch.finfo(dtype).tiny, points(dtype)
    for name, function in FUNCTIONS.items():
        y = torch.empty_like(x)
        call = getattr(library, f"gw_{name}_{real}")
        call(ctypes.c_int64(x.numel()), ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()))
        exact = function(x.double())
        expected = exact.to(dtype)
        at = expected.isfinite() & ((expected.abs() >= smallest) | (expected == 0))  # subnormal results may be 0
        error = (y.double() - exact).abs()[at] / exact.abs()[at].clamp(min=smallest) / torch.finfo(dtype).eps
        assert float(error.max()) <= units, (name, float(error.max()), float(x[at][error.argmax()]))
        strange = ~expected.isfinite()
        assert torch.equal(y[strange].nan_to_num(7), expected[strange].nan_to_num(7)), name


FUSED = """#include "graphweft/abi.h"
extern "C" GW_API void gw_fused(const float* x, float* y) {
  const float product = x[0] * x[1];
  y[0] = product + x[2];
}
"""


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_every_compiler_fuses_products_and_sums(compiler, cache, monkeypatch, root):
    """As the core's own build does: the default of clang++ is another one than that of g++."""
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    monkeypatch.setenv("CXX", compiler)
    library = library_of(FUSED, "avx2", monkeypatch)  # the first level that has the instruction
    x, y = torch.tensor([1 + 2**-12, 1 + 2**-12, -1 - 2**-11]), torch.zeros(1)
    library.gw_fused(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()))
    assert float(y) == 2**-24  # the product's last bits, which rounding it first would lose
    assert "-ffp-contract=fast" in (root / "CMakeLists.txt").read_text(encoding="utf-8")
