"""The examples of docs/links.md hold."""

from __future__ import annotations

import doctest
from pathlib import Path


def test_the_examples_of_the_page_hold(root: Path) -> None:
    result = doctest.testfile(str(root / "docs" / "links.md"), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert result.attempted > 15 and result.failed == 0
