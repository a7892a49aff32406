"""How Sphinx builds these pages: ``sphinx-build -W docs build/docs``.

The reference pages are written at the start of every build, from the public names of the package: a name that is added
there is in the site. Warnings are errors (``-W``), so a broken link or a docstring that does not parse stops the build.
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

import graphweft

project = "GraphWeft"
author = "The GraphWeft developers"
copyright = "The GraphWeft developers"
release = version = graphweft.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_heading_anchors = 3
suppress_warnings = ["misc.highlighting_failure"]  # traces and tables in blocks marked as Python

html_theme = "furo"
html_title = f"GraphWeft {version}"
html_copy_source = False

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_display_short_literal_types = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

REFERENCE = Path(__file__).parent / "reference"
# Pages of the reference: title, and the packages whose public names are on it. The last one takes all others.
PAGES = {
    "graphs": ("Graphs and data", ("graph", "data", "storage", "inspection", "interop")),
    "message_passing": ("Message passing", ("frontend", "nn")),
    "training": ("Training", ("train", "loaded_run", "run", "planning")),
    "loaders": ("Loaders and parts", ("loader", "partitioning")),
    "settings": ("Settings and inspection", ()),
}
# Pages of namespaces: title, and the modules whose public names are on it where the top level has them not.
MODULES = {
    "nn": ("Models and layers: gw.nn", ("nn",)),
    "fn": ("DGL's functions: gw.fn", ("nn.fn",)),
    "optim": ("Optimisers: gw.optim", ("optim",)),
    "transforms": ("Transforms: gw.transforms", ("transforms",)),
    "sampling": ("Sampling: gw.sampling", ("sampling",)),
    "macro": ("Macro-batches and stores: gw.macro", ("macro",)),
    "interop": ("Other libraries: gw.interop", ("interop",)),
    "synthesis": ("Programs: gw.synthesis", ("synthesis",)),
    "errors": ("Errors and warnings: gw.errors", ("errors",)),
    "results": (
        "Results, places and features",
        ("planning", "loaded_run", "inspection", "partitioning", "schedule", "dist", "data"),
    ),
}


def _page_of(value: Any) -> str:
    room = getattr(value, "__module__", "").partition(".")[2].partition(".")[0]
    return next((page for page, (_, rooms) in PAGES.items() if room in rooms), list(PAGES)[-1])


def _directive(name: str, value: Any) -> str:
    if not inspect.isclass(value):
        return f".. autofunction:: {name}\n"
    if issubclass(value, BaseException):
        return f".. autoexception:: {name}\n   :show-inheritance:\n"
    return f".. autoclass:: {name}\n   :members:\n   :show-inheritance:\n"


def _block(module: str, names: dict[str, Any]) -> str:
    text = "\n".join(_directive(name, names[name]) for name in sorted(names, key=str.lower))
    return f"```{{eval-rst}}\n.. currentmodule:: {module}\n\n{text}```\n"


def _public(module: Any) -> dict[str, Any]:
    functions = [name for name, value in vars(module).items() if inspect.isfunction(value) and name[0] != "_"]
    names = [name for name in getattr(module, "__all__", functions) if name not in graphweft.__all__]
    return {name: getattr(module, name) for name in names}


def write_reference(app: Any) -> None:
    """Writes ``docs/reference/*.md``."""
    REFERENCE.mkdir(exist_ok=True)
    by_page: dict[str, dict[str, Any]] = {page: {} for page in PAGES}
    for name in graphweft.__all__:
        value = getattr(graphweft, name)
        if not inspect.ismodule(value):
            by_page[_page_of(value)][name] = value
    pages = {page: f"# {PAGES[page][0]}\n\n" + _block("graphweft", names) for page, names in by_page.items()}
    for page, (title, modules) in MODULES.items():
        loaded = [importlib.import_module(f"graphweft.{module}") for module in modules]
        pages[page] = f"# {title}\n\n" + "\n".join(_block(module.__name__, _public(module)) for module in loaded)
    for page, text in pages.items():
        file = REFERENCE / f"{page}.md"
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("builder-inited", write_reference)
