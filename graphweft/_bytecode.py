"""The first start after an install: a second process compiles modules to bytecode while the first one imports torch.

Comes in: nothing, or as a program the folder of the package. Goes out: files in ``__pycache__``, as an import writes
them. Called by the command before it imports torch. An install without bytecode leaves some thousand modules to be
compiled when they are first imported, one after the other; half of them are not torch's. Imports no torch.
"""

from __future__ import annotations

import compileall
import contextlib
import importlib
import importlib.util
import os
import sys
from pathlib import Path

_PACKAGE = Path(__file__).parent
# Packages of others that a run imports after torch, the last ones at its end, with all that they import themselves.
_LATER = ("scipy.sparse", "scipy.sparse.csgraph", "matplotlib.figure", "matplotlib.backends.backend_agg", "requests")


def compile_beside(package: Path = _PACKAGE) -> int | None:
    """Starts the process where ``package`` was never imported as a whole and a core is free.

    Nobody waits for it: what it has not written in time is compiled by the import that needs it.

    Returns: Its number; None where there is nothing to do.
    """
    last = str(package / "train" / "trainer.py")
    if sys.dont_write_bytecode or _cores() < 2:
        return None
    if Path(importlib.util.cache_from_source(last)).exists():
        return None
    nowhere = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0) for stream in range(3)]
    arguments = [sys.executable, "-P", __file__, str(package)]  # -P: no module here hides one of the standard library
    with contextlib.suppress(OSError):
        return os.posix_spawn(sys.executable, arguments, os.environ, file_actions=nowhere)
    return None


def _cores() -> int:
    """As ``_machine.processors``, which a program that is started by its path does not import."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _compile(package: str) -> None:
    """All of the package, then what it imports."""
    compileall.compile_dir(package, quiet=2, workers=1)
    for name in _LATER:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


if __name__ == "__main__":
    _compile(sys.argv[1])


__all__ = ["compile_beside"]
