"""The examples of the pages under docs/ hold."""

from __future__ import annotations

import contextlib
import doctest
import warnings
from pathlib import Path

import pytest

with contextlib.suppress(ImportError), warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what its import warns of is no failure of an example
    import torch_geometric  # noqa: F401

# Pages, and the fewest examples that each has.
PAGES = {
    "data": 16,
    "distributed": 15,
    "from_pyg": 25,
    "links": 15,
    "message_passing": 15,
    "sampling": 10,
    "tables": 30,
    "training": 7,
}


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_hold(root: Path, page: str) -> None:
    file = root / "docs" / f"{page}.md"
    result = doctest.testfile(str(file), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert result.attempted >= PAGES[page] and result.failed == 0


def test_no_page_with_examples_is_forgotten(root: Path) -> None:
    pages = (root / "docs").glob("*.md")
    assert {page.stem for page in pages if ">>> " in page.read_text(encoding="utf-8")} == set(PAGES)
