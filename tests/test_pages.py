"""The examples of the pages under docs/ hold."""

from __future__ import annotations

import contextlib
import doctest
import re
import warnings
from dataclasses import fields
from pathlib import Path

import pytest

from graphweft._config import Config

with contextlib.suppress(ImportError), warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what its import warns of is no failure of an example
    import torch_geometric  # noqa: F401

# Pages, and the fewest examples that each has.
PAGES = {
    "compile": 15,
    "configuration": 3,
    "data": 16,
    "devices": 15,
    "distributed": 15,
    "explaining": 12,
    "from_pyg": 25,
    "graphs": 25,
    "layers": 15,
    "links": 15,
    "message_passing": 15,
    "options": 8,
    "out_of_core": 10,
    "planning": 10,
    "programs": 15,
    "sampling": 25,
    "tables": 30,
    "transforms": 30,
    "training": 50,
    "troubleshooting": 15,
    "tutorial": 15,
    "unsupervised": 12,
}


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_hold(root: Path, page: str) -> None:
    file = root / "docs" / f"{page}.md"
    result = doctest.testfile(str(file), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert result.attempted >= PAGES[page] and result.failed == 0


def test_no_page_with_examples_is_forgotten(root: Path) -> None:
    pages = (root / "docs").glob("*.md")
    assert {page.stem for page in pages if ">>> " in page.read_text(encoding="utf-8")} == set(PAGES)


def test_the_page_of_settings_lists_every_setting(root: Path) -> None:
    text = (root / "docs" / "configuration.md").read_text(encoding="utf-8")
    for field in fields(Config):
        assert f"| `{field.name}` |" in text and f"`GRAPHWEFT_{field.name.upper()}`" in text, field.name


def test_every_page_is_in_the_navigation(root: Path) -> None:
    index = (root / "docs" / "index.md").read_text(encoding="utf-8")
    listed = {line for block in re.findall(r"```\{toctree\}(.*?)```", index, flags=re.DOTALL) for line in block.split()}
    pages = {page.stem for page in (root / "docs").glob("*.md")} - {"index"}
    assert pages <= listed, f"docs/index.md: expected every page in a toctree, got none for {pages - listed}"


def test_links_between_pages_lead_somewhere(root: Path) -> None:
    """A link to a page or to a heading of it, in all pages and the README; pages of the reference are built."""
    missing = []
    for page in [*(root / "docs").glob("*.md"), *(root / name for name in ("README.md", "benchmarks/README.md"))]:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            file, _, heading = target.partition("#")
            if "://" in target or file.startswith("reference/"):
                continue
            found = page if not file else page.parent / file
            if not found.exists() or (heading and heading not in _headings(found)):
                missing.append(f"{page.name}: {target}")
    assert not missing


def _headings(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub and the site make them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
