"""Compiles a source of a program once for all tests, whoever asks: the fixture ``build``, or CMake as its launcher.

``python compile_once.py OBJECTS COMPILER FLAGS... -o OUT -c SOURCE``. An object is known by the bytes of its source and
of all headers that it reads, by the compiler and by the flags that decide what is compiled.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout

_INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)
_OF_SYSTEM = re.compile(r"^ *# *(?:(?:if|ifdef|ifndef|elif|else|endif)\b.*|include <.*)$", re.M)
_BY_MODEL = ("model.cpp", "attention", "heads.")  # sources that are others for every model


def read_by(source: Path, include: Sequence[Path]) -> list[Path]:
    """The source and the headers of its program that it reads, directly or not."""
    found, open_ = {source: None}, [source]
    while open_:
        path = open_.pop()
        for name in _INCLUDE.findall(path.read_text(encoding="utf-8")):
            header = next((p / name for p in (path.parent, *include) if (p / name).is_file()), None)
            if header is not None and header not in found:
                found[header] = None
                open_.append(header)
    return list(found)


def folders_of(folder: Path) -> list[Path]:
    """Where the headers of a program are."""
    return [folder, folder / "support", folder / "include"]


def reads(source: Path, folder: Path, names: Collection[str]) -> bool:
    """Whether a source of the program in ``folder`` reads one of these headers of the system, directly or not."""
    texts = [path.read_text(encoding="utf-8") for path in read_by(source, folders_of(folder))]
    return any(f"<{name}>" in text for name in names for text in texts)


class Call(NamedTuple):
    """One call of a compiler: for a source of the program in ``folder``."""

    compiler: Sequence[str]
    source: Path
    folder: Path
    flags: Sequence[str]


def all_compiled(objects: Path, calls: Sequence[Call]) -> list[Path]:
    """The objects of several calls; what another process compiles just now is waited for last."""
    made = [compiled(objects, *call, waits=False) for call in calls]
    return [path if path.exists() else compiled(objects, *call) for path, call in zip(made, calls, strict=True)]


def compiled(
    objects: Path, compiler: Sequence[str], source: Path, folder: Path, flags: Sequence[str], waits: bool = True
) -> Path:
    """The object of one source of the program in ``folder``; it may not be there yet unless ``waits``.

    Raises: AssertionError with what the compiler says.
    """
    include = folders_of(folder)
    found = read_by(source, include)
    content = b"\0".join(path.read_bytes() for path in found)
    words = " ".join([Path(compiler[0]).name, *compiler[1:], *sorted(flags)])
    key = hashlib.sha256(content + words.encode()).hexdigest()[:24]
    made = objects / f"{key}.o"
    with contextlib.suppress(Timeout), FileLock(objects / f"{key}.lock", timeout=-1 if waits else 0):
        if not made.exists():
            fresh = made.with_suffix(".tmp")
            before = _system_headers(objects, compiler, found, flags) if source.name.startswith(_BY_MODEL) else []
            command = [*compiler, *flags, *before, *(f"-I{path}" for path in include)]
            command += ["-c", str(source), "-o", str(fresh)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[:2000]
            fresh.rename(made)
    return made


def _parts(text: str) -> Iterator[str]:
    """The lines of a source that read headers of the system, with the conditions around them."""
    depth, open_ = 0, list[str]()
    for line in _OF_SYSTEM.findall(text):
        open_.append(line)
        depth += line.lstrip("# ").startswith("if") - line.lstrip("# ").startswith("endif")
        if depth == 0:
            if any("include <" in part for part in open_):
                yield "\n".join(open_)
            open_ = []


def _system_headers(objects: Path, compiler: Sequence[str], found: Sequence[Path], flags: Sequence[str]) -> list[str]:
    """Flags with which the system's headers that ``found`` read, and no others, come from a file compiled once."""
    parts = {part for path in found for part in _parts(path.read_text(encoding="utf-8"))}
    text = "\n".join(sorted(parts))
    key = hashlib.sha256(" ".join([text, *compiler, *sorted(flags)]).encode()).hexdigest()[:24]
    header, made, fresh = (objects / f"{key}{ending}" for ending in (".h", ".h.gch", ".tmp"))
    with FileLock(objects / f"{key}.lock"):
        if not made.exists():
            header.write_text(text + "\n", encoding="utf-8")
            command = [*compiler, *flags, "-c", "-x", "c++-header", str(header), "-o", str(fresh)]
            subprocess.run(command, check=True, capture_output=True)
            fresh.rename(made)
    return ["-include", str(header)]


def main(arguments: Sequence[str]) -> None:
    """One call of the compiler that CMake would make."""
    objects, compiler, *rest = arguments
    flags: list[str] = []
    named = {"-o": "", "-c": "", "-MT": "", "-MF": ""}
    words = iter(rest)
    for word in words:
        if word in named:
            named[word] = next(words)
        elif not word.startswith(("-I", "-MD")):
            flags.append(word)
    source = Path(named["-c"]).resolve()
    folder = next(parent for parent in source.parents if (parent / "model.toml").is_file())
    shutil.copyfile(compiled(Path(objects), [compiler], source, folder, flags), named["-o"])
    if named["-MF"]:
        Path(named["-MF"]).write_text(f"{named['-MT']}: {source}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
