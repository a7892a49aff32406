"""A program that a test has written and built, and how it is run.

Used by the tests of ``graphweft.synth``.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphweft._native import LEVEL
from graphweft.runtime.build import LEVEL_FLAGS

# As the program's own CMakeLists.txt, but for the level of optimisation: -O3 changes no bit, -O1 does.
WARNINGS, OPTIMISATION = ("-Wall", "-Wextra", "-Werror"), "-O2"
_NUMBER = {"portable": 0, "avx2": 1, "avx512": 2}[LEVEL]
FLAGS = (
    *("-std=gnu++17", OPTIMISATION, "-fopenmp", "-fno-math-errno", "-ffp-contract=fast", "-Wno-psabi"),
    *(*WARNINGS, "-fPIC", "-DGW_ONLY_F32", "-DGW_PLAIN_ROWS", "-DGW_NARROW_IDS"),
    *(f'-DGW_LEVEL="{_NUMBER}"', *LEVEL_FLAGS[LEVEL]),
)


def flags_of(source: Path, flags: tuple[str, ...]) -> tuple[str, ...]:
    """``flags`` for a source: attention says itself which products and sums are fused."""
    if not source.name.startswith(("attention", "heads.")) or source.suffix == ".cu":
        return flags
    return tuple("-ffp-contract=off" if flag == "-ffp-contract=fast" else flag for flag in flags)


SCORES = ("loss", "train_acc", "val_acc", "test_acc", "val_loss")


@dataclass(frozen=True)
class Built:
    """A program that was written and built.

    Attributes:
        folder: Its sources.
        train: The executable.
    """

    folder: Path
    train: Path

    def run(self, *arguments: object, status: int = 0) -> subprocess.CompletedProcess[str]:
        """One run of it, without the package's environment."""
        command = [str(self.train), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == status, (done.returncode, done.stderr)
        return done

    def records(self, *arguments: object) -> list[dict[str, Any]]:
        """The lines of metrics of one run."""
        return [json.loads(line) for line in self.run(*arguments).stdout.splitlines()]

    def summary(self, *arguments: object) -> dict[str, Any]:
        """What ``--json`` prints."""
        found: dict[str, Any] = json.loads(self.run(*arguments, "--json").stdout)
        return found


Build = Callable[..., Built]
