"""Compiles a source of a program once for all tests, whoever asks: the fixture ``build``, or CMake as its launcher.

``python compile_once.py OBJECTS COMPILER FLAGS... -o OUT -c SOURCE``. An object is known by the bytes of its source and
of all headers that it reads, by the compiler and by the flags that decide what is compiled.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock

_INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)


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


def compiled(objects: Path, compiler: Sequence[str], source: Path, folder: Path, flags: Sequence[str]) -> Path:
    """The object of one source of the program in ``folder``. Raises: AssertionError with what the compiler says."""
    include = [folder, folder / "support", folder / "include"]
    content = b"\0".join(path.read_bytes() for path in read_by(source, include))
    words = " ".join([Path(compiler[0]).name, *compiler[1:], *sorted(flags)])
    key = hashlib.sha256(content + words.encode()).hexdigest()[:24]
    made = objects / f"{key}.o"
    with FileLock(objects / f"{key}.lock"):
        if not made.exists():
            fresh = made.with_suffix(".tmp")
            command = [*compiler, *flags, *(f"-I{path}" for path in include), "-c", str(source), "-o", str(fresh)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[:2000]
            fresh.rename(made)
    return made


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
