"""Writes the bindings of the native core from its C++ sources, where every entry point is declared, once.

    python csrc/bindings.py           # after an entry point or a structure has changed

Comes in: definitions ``GW_API int gw_name(...)`` of ``core/*.cpp`` and structures ``gw_name`` of the headers. Goes out:
``graphweft/_abi.py`` for Python, ``entry_points.h`` for the C++ tests and for ``replay.cpp``, ``abi_hash.h``, by which
Python refuses a library that was compiled from other sources, and ``first_use/entries.cpp``, which stands for kernels
that are compiled when they are first called. ``tests/test_abi.py`` sees that the files are those this writes.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import subprocess
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
HEADERS = ROOT / "csrc/include/graphweft"
PYTHON, LISTED, HASH = ROOT / "graphweft/_abi.py", HEADERS / "entry_points.h", HEADERS / "abi_hash.h"
KERNELS, FIRST_USE = ROOT / "csrc/first_use/kernels.json", ROOT / "csrc/first_use/entries.cpp"

_ENTRY = re.compile(r"GW_API int (gw_\w+)\(([^)]*)\)\s*\{")
_STRUCTURE = re.compile(r"^struct (gw_\w+) \{\n(.*?)^\};", re.DOTALL | re.MULTILINE)
_FUNCTION = re.compile(r"typedef \w+ \(\*(gw_\w+)\)\(")  # an address, as any pointer
_COMMENT = re.compile(r"//[^\n]*")
_PARAMETER = re.compile(r"(?P<type>(?:const )?\w+(?: ?\*(?: ?const)?)*) ?(?P<name>\w+)")
_NUMBERS = {"int32_t": "_I32", "uint32_t": "_U32", "int64_t": "_I64", "uint64_t": "_U64", "double": "_F64"}
_ALIASES = {
    "_P": "c_void_p",
    "_I32": "c_int32",
    "_U32": "c_uint32",
    "_I64": "c_int64",
    "_U64": "c_uint64",
    "_F64": "c_double",
}
_WIDTH = 116


class Field(NamedTuple):
    """A parameter or a member: its C type, its name, and how many there are."""

    type: str
    name: str
    count: int = 1


class Structure(NamedTuple):
    """A structure that crosses the boundary, and the header that it is in."""

    name: str
    header: str
    members: tuple[Field, ...]


def _parameters(text: str) -> tuple[Field, ...]:
    listed = [part.strip() for part in " ".join(text.split()).split(",") if part.strip() not in ("", "void")]
    return tuple(Field(*_field(part)) for part in listed)


def _field(text: str) -> tuple[str, str]:
    found = _PARAMETER.fullmatch(text)
    if found is None:
        raise SystemExit(f"expected a type and a name, got {text!r}")
    return found["type"].replace(" *", "*"), found["name"]


def _members(body: str) -> tuple[Field, ...]:
    """Members of a structure; ``int64_t a, b;`` are two, ``gw_x y[2];`` is one of two."""
    found = []
    for line in filter(None, (part.strip() for part in " ".join(_COMMENT.sub("", body).split()).split(";"))):
        first, *others = line.removesuffix(" = nullptr").split(",")
        kind, name = _field(re.sub(r"\[\d+\]$", "", first))
        for text in (first, *others):
            count = re.search(r"\[(\d+)\]$", text)
            plain = re.sub(r"\[\d+\]$", "", text).split()[-1].lstrip("*")
            found.append(Field(kind, plain if others else name, int(count[1]) if count else 1))
    return tuple(found)


def entries(files: tuple[str, ...] = ()) -> dict[str, tuple[Field, ...]]:
    """Every entry point, or those of some files, with its parameters, by the order of files and lines."""
    found: dict[str, tuple[Field, ...]] = {}
    for path in sorted((ROOT / "csrc/core").glob("*.cpp")):
        if files and path.name not in files:
            continue
        text = _COMMENT.sub("", path.read_text())
        if len(_ENTRY.findall(text)) != text.count("GW_API int "):
            raise SystemExit(f"{path.name}: expected GW_API int gw_name(type name, ...) {{ at every entry point")
        for name, parameters in _ENTRY.findall(text):
            if name in found:
                raise SystemExit(f"{path.name}: expected one definition of {name}, got another")
            found[name] = _parameters(parameters)
    return found


def first_use() -> dict[str, dict[str, tuple[Field, ...]]]:
    """Entry points by the name of the kernels that ``first_use/kernels.json`` lists their files under."""
    listed: dict[str, dict[str, list[str]]] = json.loads(KERNELS.read_text())
    return {name: entries(tuple(files["sources"])) for name, files in listed.items()}


def structures(of: dict[str, tuple[Field, ...]]) -> list[Structure]:
    """The structures that entry points take, those inside before those around; generated code has its own."""
    known = {}
    for path in sorted(HEADERS.glob("*.h")):
        for name, body in _STRUCTURE.findall(path.read_text()):
            if "(*" not in body and "GW_" not in body:
                known[name] = Structure(name, path.name, _members(body))
    wanted: list[Structure] = []

    def want(kind: str) -> None:
        found = known.get(_plain(kind))
        if found is not None and found not in wanted:
            for member in found.members:
                want(member.type)
            wanted.append(found)

    for parameters in of.values():
        for parameter in parameters:
            want(parameter.type)
    return wanted


def _plain(kind: str) -> str:
    return kind.removeprefix("const ").rstrip("*")


def _ctype(field: Field, names: dict[str, str], here: str = "") -> str:
    """How ctypes writes a type. Numbers behind pointers are addresses, structures behind them are themselves."""
    plain, stars = _plain(field.type), field.type.count("*")
    if plain == "char":
        return "ctypes.c_char_p"
    if plain in names and stars < 2:
        made = f"{here}{names[plain]}"
        return f"ctypes.POINTER({made})" if stars else f"{made} * {field.count}" if field.count > 1 else made
    return "_P" if stars or plain in _functions() else _NUMBERS[plain]


@functools.cache
def _functions() -> frozenset[str]:
    """Types of functions that entry points take."""
    return frozenset(name for path in HEADERS.glob("*.h") for name in _FUNCTION.findall(path.read_text()))


def class_name(structure: str) -> str:
    """``gw_adam_tensor_f32`` is ``AdamTensor`` in Python.

    Example:
        >>> class_name("gw_adam_tensor_f32")
        'AdamTensor'
    """
    return "".join(word.capitalize() for word in structure.removeprefix("gw_").removesuffix("_f32").split("_"))


def digest(of: dict[str, tuple[Field, ...]], held: list[Structure]) -> str:
    """A mark of all types in their order; names of parameters do not count."""
    text = [f"{name}({', '.join(p.type for p in parameters)})" for name, parameters in sorted(of.items())]
    text += [f"{s.name} {[(m.type, m.name, m.count) for m in s.members]}" for s in sorted(held)]
    return hashlib.sha256("\n".join(text).encode()).hexdigest()[:16]


def python_text() -> str:
    """``graphweft/_abi.py``."""
    found = entries()
    held = structures(found)
    names = {structure.name: class_name(structure.name) for structure in held}
    lines = [
        '"""Structures and signatures of the native core\'s entry points.',
        "",
        "Written by ``csrc/bindings.py`` from the C++ sources; changes are made there. Read by ``_native.py``.",
        '"""',
        "",
        "from __future__ import annotations",
        "",
        "import ctypes",
        "from typing import Any",
        "",
        f'HASH = "{digest(found, held)}"',
        *(f"{short} = ctypes.{kind}" for short, kind in _ALIASES.items()),
    ]
    for structure in held:
        lines += ["", "", f"class {names[structure.name]}(ctypes.Structure):"]
        lines += [f'    """``{structure.name}`` of {structure.header}."""', "", "    _fields_ = ("]
        lines += [f'        ("{member.name}", {_ctype(member, names)}),' for member in structure.members]
        lines += ["    )"]
    taken = {_ctype(parameter, names) for parameters in found.values() for parameter in parameters}
    pointers = {f"ctypes.POINTER({kind})": f"_{kind}" for kind in names.values()}
    pointers = {text: short for text, short in pointers.items() if text in taken}
    lines += ["", "", *(f"{short} = {kind}" for kind, short in pointers.items())]
    lines += ["", "# fmt: off", "SIGNATURES: dict[str, tuple[Any, ...]] = {"]
    for name, parameters in found.items():
        kinds = [_ctype(parameter, names) for parameter in parameters]
        text = ", ".join(pointers.get(kind, kind) for kind in kinds) + ("," if len(kinds) == 1 else "")
        wrapped = textwrap.wrap(f'"{name}": ({text}),', _WIDTH, subsequent_indent="    ")
        lines += [f"    {line}" for line in wrapped]
    lines += ["}", "# Entry points of kernels that may be compiled when they are first called.", "FIRST_USE = {"]
    for name, listed in first_use().items():
        wrapped = textwrap.wrap(
            f'"{name}": ({", ".join(repr(entry) for entry in listed)},),'.replace("'", '"'), _WIDTH - 4
        )
        lines += [f"    {wrapped[0]}", *(f"        {line}" for line in wrapped[1:])]
    return "\n".join([*lines, "}", "# fmt: on", ""])


def header_text() -> str:
    """``entry_points.h``."""
    found = entries()
    headers = sorted({structure.header for structure in structures(found)} | {"abi.h", "nest.h"})
    lines = [
        "// The core's entry points, which csrc/core/*.cpp document, and a list of them in the order of their names.",
        "// Written by csrc/bindings.py from these sources; read by replay.cpp and the tests.",
        "#pragma once",
        "",
        "#include <cstdint>",
        "",
        *[f'#include "graphweft/{header}"' for header in headers],
        "",
        'extern "C" {',
    ]
    for name, parameters in found.items():
        lines.append(f"GW_API int {name}({', '.join(f'{p.type} {p.name}' for p in parameters) or 'void'});")
    listed = " \\\n".join(f"  X({name})" for name in sorted(found))
    return "\n".join([*lines, "}", "", "#define GW_ENTRY_POINTS(X) \\", listed, ""])


def _wrapped(items: Iterable[str]) -> list[str]:
    """Items that are not broken, as many in a line as it has room for."""
    text = " ".join(item.replace(" ", "~") for item in items)
    lines = textwrap.wrap(text, 120, initial_indent="    ", subsequent_indent="    ")
    return [line.replace("~", " ") for line in lines]


def first_use_text() -> str:
    """``first_use/entries.cpp``."""
    by_name = first_use()
    found = {entry: (name, parameters) for name, listed in by_name.items() for entry, parameters in listed.items()}
    numbers = {entry: number for number, entry in enumerate(found)}
    lines = [
        "// Stands for the kernels of kernels.json in a library that is compiled without them: see first_use.h.",
        "// Written by csrc/bindings.py from the sources of csrc/core.",
        "#include <cstring>",
        "",
        '#include "graphweft/entry_points.h"',
        '#include "graphweft/first_use.h"',
        "",
        "namespace {",
        "gw::first_use_entry first_use_table[] = {",
        "    // clang-format off",  # which gives each a line
        *_wrapped(f'{{"{entry}", "{name}"}},' for entry, (name, _) in found.items()),
        "    // clang-format on",
        "};",
        "}  // namespace",
        "",
        'extern "C" {',
        "// Where the entry point `name` is from now on, and the last error of its library. 0 where there is none.",
        "GW_API int gw_first_use_bind(const char* name, void* function, const char* (*last_error)()) {",
        "  for (gw::first_use_entry& entry : first_use_table) {",
        "    if (std::strcmp(entry.name, name) != 0) continue;",
        "    entry.last_error.store(last_error, std::memory_order_relaxed);",
        "    entry.function.store(function, std::memory_order_release);",
        "    return 1;",
        "  }",
        "  return 0;",
        "}",
    ]
    hidden = entries()  # a structure of the same name as a function is one only after the word
    for entry, (_, parameters) in found.items():
        given = "".join(f", {p.name}" for p in parameters)
        kinds = [
            p.type.replace(_plain(p.type), f"struct {_plain(p.type)}") if _plain(p.type) in hidden else p.type
            for p in parameters
        ]
        taken = ", ".join(f"{kind} {p.name}" for kind, p in zip(kinds, parameters, strict=True))
        lines += [
            f"GW_API int {entry}({taken or 'void'}) {{",
            f"  return gw::call_first_use(first_use_table[{numbers[entry]}], &{entry}{given});",
            "}",
        ]
    return "\n".join([*lines, "}", ""])


def hash_text() -> str:
    """``abi_hash.h``."""
    found = entries()
    lines = [
        "// A mark of all entry points and structures. Written by csrc/bindings.py.",
        "#pragma once",
        "",
        f'#define GW_ABI_HASH "{digest(found, structures(found))}"',
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Writes the files, formatted."""
    PYTHON.write_text(python_text())
    LISTED.write_text(header_text())
    HASH.write_text(hash_text())
    FIRST_USE.write_text(first_use_text())
    subprocess.run(["ruff", "format", "--quiet", PYTHON], check=True)
    subprocess.run(["clang-format", "-i", LISTED, HASH, FIRST_USE], check=True)


if __name__ == "__main__":
    main()
