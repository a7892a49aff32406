"""The examples of docs/sampling.md."""

from __future__ import annotations

import doctest
from pathlib import Path


def test_the_examples_of_the_page_run(root: Path) -> None:
    result = doctest.testfile(str(root / "docs" / "sampling.md"), module_relative=False)
    assert result.attempted > 15 and result.failed == 0
