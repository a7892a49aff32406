"""Tables that a notebook shows in the place of a ``repr``.

Comes in: names and texts. Goes out: HTML without scripts or styles, every text escaped. Called by the ``_repr_html_``
methods of graphs, datasets, histories, runs and inspections.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


def facts(caption: str, rows: Iterable[tuple[str, object]]) -> str:
    """A row for every fact: its name, and what it is.

    Example:
        >>> facts("a < b", [("nodes", 3)])
        '<table><caption>a &lt; b</caption><tr><th>nodes</th><td>3</td></tr></table>'
    """
    return _table(caption, (_cell(name, "th") + _cell(text) for name, text in rows))


def columns(caption: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A line of names above rows of values.

    Example:
        >>> columns("run", ["epoch", "loss"], [(1, "0.5")]).count("<tr>")
        2
    """
    head = "".join(_cell(name, "th") for name in heads)
    return _table(caption, (head, *("".join(map(_cell, row)) for row in rows)))


def _cell(text: object, tag: str = "td") -> str:
    return f"<{tag}>{html.escape(str(text))}</{tag}>"


def _table(caption: str, lines: Iterable[str]) -> str:
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><caption>{html.escape(caption)}</caption>{body}</table>"
