"""The bindings of the native core are those that ``csrc/bindings.py`` writes, and a stale library is refused."""

import ctypes
import importlib.util
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from graphweft import _abi, _native

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def bindings() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bindings", ROOT / "csrc/bindings.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _tokens(text: str) -> list[str]:
    """Words and signs without line ends, and without the comma before a closing bracket."""
    return re.findall(r"\w+|[^\w\s]", re.sub(r",(\s*[)}\]])", r"\1", text))


def test_the_files_are_those_that_are_written(bindings: ModuleType) -> None:
    made = {
        ROOT / "graphweft/_abi.py": bindings.python_text(),
        ROOT / "csrc/include/graphweft/entry_points.h": bindings.header_text(),
        ROOT / "csrc/include/graphweft/abi_hash.h": bindings.hash_text(),
        ROOT / "csrc/first_use/entries.cpp": bindings.first_use_text(),
    }
    for path, text in made.items():
        assert _tokens(path.read_text()) == _tokens(text), f"{path.name} is stale: run python csrc/bindings.py"


def test_every_entry_point_is_exported_and_no_other(bindings: ModuleType) -> None:
    path = ROOT / "graphweft/lib" / f"libgraphweft_{_native.LEVEL}.so"
    if not path.exists():
        path = Path(_native.__file__).parent / "lib" / path.name
    listed = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True).stdout
    exported = set(re.findall(r" T (gw_\w+)", listed))
    assert exported - {"gw_first_use_bind"} == set(_abi.SIGNATURES) | {"gw_last_error", "gw_level", "gw_abi"}


def test_structures_have_the_sizes_that_the_compiler_gives_them(bindings: ModuleType, tmp_path: Path) -> None:
    held = bindings.structures(bindings.entries())
    lines = [f'#include "graphweft/{header}"' for header in sorted({structure.header for structure in held})]
    for structure in held:
        kind = getattr(_abi, bindings.class_name(structure.name))
        lines.append(f'static_assert(sizeof({structure.name}) == {ctypes.sizeof(kind)}, "{structure.name}");')
        for member in structure.members:
            offset = getattr(kind, member.name).offset
            lines.append(f'static_assert(__builtin_offsetof({structure.name}, {member.name}) == {offset}, "offset");')
    source = tmp_path / "sizes.cpp"
    source.write_text("\n".join([*lines, ""]))
    command = ["g++", "-std=gnu++17", "-fopenmp", "-w", "-fsyntax-only", f"-I{ROOT / 'csrc/include'}", str(source)]
    assert subprocess.run(command, capture_output=True, text=True, check=False).stderr == ""


def test_a_changed_type_changes_the_mark(bindings: ModuleType) -> None:
    found = bindings.entries()
    held = bindings.structures(found)
    name, parameters = next((name, listed) for name, listed in found.items() if listed)
    other = {**found, name: (parameters[0]._replace(type="float"), *parameters[1:])}
    renamed = {**found, name: (parameters[0]._replace(name="renamed"), *parameters[1:])}
    assert bindings.digest(other, held) != bindings.digest(found, held) == _abi.HASH
    assert bindings.digest(renamed, held) == _abi.HASH
    assert bindings.digest(found, held[1:]) != _abi.HASH


@pytest.mark.parametrize("mark", [None, "0123456789abcdef"])
def test_a_library_of_other_sources_is_refused(
    mark: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "stale.cpp"
    told = "" if mark is None else f'const char* gw_abi() {{ return "{mark}"; }}'
    source.write_text(f'extern "C" {{ {told} }}\n')
    library = tmp_path / "libgraphweft_portable.so"
    subprocess.run(["g++", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    monkeypatch.setattr(_native, "_LIB_DIR", tmp_path)
    with pytest.raises(_native.NativeError, match=f"expected .*interface {_abi.HASH}, got {mark or 'none'}.*reinstall"):
        _native._open("portable")


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("int64_t a, b;", [("int64_t", "a", 1), ("int64_t", "b", 1)]),
        ("const float* x;  // rows", [("const float*", "x", 1)]),
        ("gw_typed_sums sums[2];", [("gw_typed_sums", "sums", 2)]),
        ("int64_t* const* places;", [("int64_t* const*", "places", 1)]),
    ],
)
def test_members_are_read(bindings: ModuleType, text: str, fields: list[tuple[str, str, int]]) -> None:
    assert [tuple(field) for field in bindings._members(text)] == fields


def test_a_parameter_that_is_not_understood_is_an_error(bindings: ModuleType) -> None:
    with pytest.raises(SystemExit, match="expected a type and a name"):
        bindings._parameters("int (*body)(int64_t)")


@pytest.mark.parametrize(
    ("installed", "best", "told"),
    [
        (("avx512",), 1, "avx512"),  # compiled on a newer machine
        (("avx2",), 0, "avx2"),
        (("avx2",), 2, ""),  # on an older one: its kernels run here
        (("avx512",), 2, ""),
        (("portable", "avx2", "avx512"), 0, ""),  # a wheel: its portable kernels are optimised
        (("portable",), 2, ""),  # another architecture
    ],
)
def test_kernels_of_another_machine_are_told(
    installed: tuple[str, ...], best: int, told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(_native, "_LIB_DIR", tmp_path)
    for level in installed:
        (tmp_path / f"libgraphweft_{level}.so").touch()
    text = _native.compiled_elsewhere(_native.usable_levels(best))
    assert (f"for {told}, which this CPU does not run" in text) if told else not text
    assert "\n" not in text
