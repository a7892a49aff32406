"""The text of ``head_shapes.h``: the heads of a model, so that no tile of others is compiled.

Comes in: the header of the library, which is for any heads, and the :class:`Steps` of a program. Goes out: its text.
Called by ``folder.py``.
"""

from __future__ import annotations

import re

from graphweft.synth.steps import Steps

FILE = "include/graphweft/head_shapes.h"
_ANY = re.compile(r"head_shapes\[\] = \{.*\};")


def head_shapes(any_heads: str, steps: Steps) -> str:
    """The header for the heads of a program; one that has none calls no kernel of heads."""
    found = [f"{{{count}, {channels}, {'true' if shared else 'false'}}}" for count, channels, shared in _sorted(steps)]
    declared = ["head_shapes[] = {", *(f"    {shape}," for shape in found), "};"]
    one_line = f"head_shapes[] = {{{', '.join(found)}}};"
    text = one_line if len(one_line) <= 90 else "\n".join(declared)
    _, _, rest = any_heads.partition("\n")
    return "// The heads that tiles are compiled for: those of the model.\n" + _ANY.sub(text, rest)


def _sorted(steps: Steps) -> list[tuple[int, int, bool]]:
    return sorted(steps.heads) or [(1, 1, False)]


__all__ = ["FILE", "head_shapes"]
