"""Kernels that are compiled when they are first called: found, compiled, bound, replaced, refused."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

import graphweft as gw
from graphweft import _first_use, _libraries, _native
from graphweft._abi import FIRST_USE, SIGNATURES
from graphweft._errors import MissingPackageError
from graphweft.cli import main
from graphweft.measure import doctor
from graphweft.runtime.packed_calls import PackedCalls

PACKAGE = Path(gw.__file__).parent
ROOT = Path(__file__).resolve().parents[1]
RECIPES = _first_use.recipes(_native.LEVEL)

left_out = pytest.mark.skipif(not RECIPES, reason="this core has all kernels")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package without compiled kernels of first use, whose temporal ones take a second to compile."""
    folder = tmp_path / "package"
    for name in ("csrc", "include"):
        shutil.copytree(PACKAGE / name, folder / name)
    told = json.loads((PACKAGE / "lib" / "first_use.json").read_text())
    told["options"] += ["-O0"]
    told["of_each"]["temporal"] = ["-ffp-contract=fast"]
    (folder / "lib").mkdir()
    (folder / "lib" / "first_use.json").write_text(json.dumps(told))
    monkeypatch.setattr(_first_use, "_PACKAGE", folder)
    monkeypatch.setattr(_first_use, "_LIB", folder / "lib")
    _first_use.recipes.cache_clear()
    with gw.config(cache_dir=str(tmp_path / "cache")):
        yield folder
    _first_use.recipes.cache_clear()


def _another(library: ctypes.CDLL, path: Path) -> ctypes.CDLL:
    """A second copy of the core, nothing of which is bound yet."""
    shutil.copy(library._name, path)
    return ctypes.CDLL(str(path), mode=os.RTLD_LOCAL)


def _loaded(folder: Path) -> tuple[ctypes.CDLL, _first_use.FirstUse]:
    core = _another(_native._lib, folder / "core.so")
    core.gw_last_error.restype = ctypes.c_char_p
    return core, _first_use.FirstUse(core, _native.LEVEL)


def test_every_kernel_of_first_use_is_an_entry_point_of_one_file() -> None:
    listed = [entry for entries in FIRST_USE.values() for entry in entries]
    assert len(listed) == len(set(listed)) and set(listed) <= set(SIGNATURES)
    files = json.loads((ROOT / "csrc/first_use/kernels.json").read_text())
    assert files.keys() == FIRST_USE.keys()
    assert RECIPES.keys() in (set(), set(FIRST_USE))


@left_out
def test_the_first_call_compiles_and_later_processes_find_the_library(
    package: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    core, first = _loaded(tmp_path)
    sampler_freed = core.gw_segment_sampler_free(None)
    assert sampler_freed == _native._NOT_COMPILED and core.gw_last_error() == b"temporal"
    first.see_to("gw_spmm_f32")  # which the core has
    assert "temporal" in first.missing
    first.see_to("gw_segment_sampler_free")
    assert core.gw_segment_sampler_free(None) == 0
    assert core.gw_order_by_time(None, ctypes.c_int64(1), None, None, None) == 1  # refused there, told here
    assert b"no structure" in core.gw_last_error()
    told = capfd.readouterr().err
    assert "compiling temporal kernels for this machine, once" in told and "compiled temporal kernels in" in told
    made = list((tmp_path / "cache" / "kernels").glob("*.so"))
    assert [path.name for path in made] == [_first_use.recipes(_native.LEVEL)["temporal"].file]
    monkeypatch.setattr(_first_use, "_make", lambda *_: pytest.fail("compiled again"))
    (tmp_path / "next").mkdir()
    core, first = _loaded(tmp_path / "next")
    first.load("temporal")
    first.load("temporal")  # nothing is left to do
    assert core.gw_segment_sampler_free(None) == 0
    assert capfd.readouterr().err == ""


@left_out
def test_a_changed_source_option_or_header_is_another_library(package: Path) -> None:
    recipe = _first_use.recipes(_native.LEVEL)["temporal"]
    names = {recipe.file, recipe._replace(options=(*recipe.options, "-g")).file}
    for path in (package / "csrc/core/segment_sample.cpp", package / "include/graphweft/segment_sample.h"):
        path.write_text(path.read_text() + "\n")
        names.add(recipe.file)
    assert len(names) == 4


@left_out
def test_a_damaged_library_is_compiled_again(package: Path, tmp_path: Path) -> None:
    _, first = _loaded(tmp_path)
    first.load("temporal")
    (path,) = (tmp_path / "cache" / "kernels").glob("*.so")
    copy = path.with_suffix(".damaged")
    copy.write_bytes(path.read_bytes()[:5000])
    copy.replace(path)
    (tmp_path / "next").mkdir()
    core, first = _loaded(tmp_path / "next")
    first.load("temporal")
    assert core.gw_segment_sampler_free(None) == 0 and _libraries.whole(path)


@left_out
@pytest.mark.parametrize("fault", ["no compiler", "an error"])
def test_kernels_that_cannot_be_compiled_are_refused_in_one_line(
    fault: str, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault == "no compiler":
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("CXX", raising=False)
    else:
        (package / "csrc/core/segment_sample.cpp").write_text("#error broken\n")
    core, first = _loaded(tmp_path)
    got = (
        "C\\+\\+ compiler, got none"
        if fault == "no compiler"
        else "C\\+\\+17 compiler with OpenMP, got .*broken.* from "
    )
    with pytest.raises(
        MissingPackageError, match=f"^temporal kernels: expected a {got}.*; install .*GRAPHWEFT_KERNELS=all$"
    ):
        first.load("temporal")
    assert core.gw_segment_sampler_free(None) == _native._NOT_COMPILED  # and can be asked for again


@left_out
def test_the_portable_core_is_compiled_when_it_is_asked_for(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    told = json.loads((package / "lib" / "first_use.json").read_text())
    files = sorted(path.name for path in (PACKAGE / "csrc" / "core").glob("*.cpp"))
    assert sorted(name for unit in told["portable"]["units"] for name in unit) == files
    told["portable"]["units"] = [["abi.cpp", "segment_sample.cpp"]]  # quickly compiled
    (package / "lib" / "first_use.json").write_text(json.dumps(told))
    core = _native._open("portable")
    core.gw_level.restype = ctypes.c_char_p
    assert core.gw_level() == b"portable" and core.gw_segment_sampler_free(None) == 0
    assert "compiling portable kernels for this machine, once" in capfd.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert _native._open("portable").gw_segment_sampler_free(None) == 0  # found in the cache
    (package / "lib" / "first_use.json").write_text(
        json.dumps({**told, "portable": {**told["portable"], "options": []}})
    )
    with pytest.raises(MissingPackageError, match=r"^portable kernels: expected a C\+\+ compiler, got none; install "):
        _native._open("portable")


@left_out
def test_a_cache_that_cannot_be_written_is_done_without(package: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    core, first = _loaded(tmp_path)
    with gw.config(cache_dir=str(tmp_path / "file" / "cache")):
        first.load("temporal")
    assert core.gw_segment_sampler_free(None) == 0


@left_out
def test_all_are_compiled_into_the_package_at_once(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = json.loads((package / "lib" / "first_use.json").read_text())
    told["kernels"] = {name: {"sources": ["segment_sample.cpp"]} for name in ("temporal", "edge")}  # quickly compiled
    (package / "lib" / "first_use.json").write_text(json.dumps(told))
    _first_use.recipes.cache_clear()
    assert _first_use.not_compiled(_native.LEVEL) == ["temporal", "edge"]
    assert sorted(_first_use.compile_all(_native.LEVEL, package / "lib")) == ["edge", "temporal"]
    assert _first_use.not_compiled(_native.LEVEL) == [] == _first_use.compile_all(_native.LEVEL, package / "lib")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert _first_use.compile_all(_native.LEVEL, package / "lib") == []


@left_out
def test_without_a_compiler_that_works_the_command_says_so_in_one_line(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "compile_all", partial(_first_use.compile_all, folder=tmp_path / "made"))
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        patch.delenv("CXX", raising=False)
        assert main(["doctor", "--compile"]) == 2
    assert capsys.readouterr().err == (
        "graphweft doctor: --compile: expected a C++ compiler, got none; install g++ or clang++\n"
    )
    for recipe in _first_use.recipes(_native.LEVEL).values():
        for path in recipe.paths:
            path.write_text("#error broken\n")
    assert main(["doctor", "--compile"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert (
        last.startswith("graphweft doctor: --compile: expected a C++17 compiler with OpenMP, got ") and "broken" in last
    )


CHILD = """
import sys, graphweft as gw
from graphweft import _native
lacking = set(_native.first_use.missing)
model, graph = gw.nn.GAT(4, 8, 2), gw.Graph([0, 1, 2], [1, 2, 0])
model(graph, __import__("torch").ones(3, 4)).sum().backward()
print(*sorted(lacking), "|", *sorted(lacking - set(_native.first_use.missing)))
"""


@left_out
def test_only_what_is_called_is_loaded() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lacking, loaded = done.stdout.split("|")
    assert lacking.split() == sorted(RECIPES)
    assert "attention" in loaded.split() and not {"temporal", "typed", "extrema", "bfloat16"} & {*loaded.split()}


DEFAULT = """
import sys, graphweft.cli
from graphweft import _native
assert graphweft.cli.main(["train", "--epochs", "2", "--out", sys.argv[1]]) == 0
print(*sorted({*_native._abi_names} - {*_native.first_use.missing}))
"""


@left_out
def test_the_first_command_of_the_readme_needs_none(tmp_path: Path) -> None:
    child = DEFAULT.replace("*_native._abi_names", repr(sorted(RECIPES)).strip("[]"))
    command = [sys.executable, "-c", child, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == ""


def test_kernels_of_a_kept_plan_are_there_before_its_first_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay that another process recorded makes no call by itself that could ask for them."""
    seen: list[str] = []
    monkeypatch.setattr(_native, "first_use", SimpleNamespace(see_to=seen.append))
    entry = _native._lib.gw_segment_sampler_free
    entry.argtypes, entry.restype = SIGNATURES["gw_segment_sampler_free"], ctypes.c_int
    assert PackedCalls([(entry, (None,))]).stretches == 1
    assert seen == ["gw_segment_sampler_free"]


def test_a_core_with_all_kernels_lacks_none() -> None:
    assert _first_use.recipes("no such level") == {}
