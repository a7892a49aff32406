"""Which pieces of message passing with torch alone ``gw.compile`` compiles whole, in parts, or leaves as they stand.

Comes in: nothing. Goes out: a table in Markdown on standard output; ``--write`` puts it into ``docs/compile.md``. The
pieces are those of ``tests/interop/test_compile_plain.py``, which compares numbers.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from pieces import attention, further, picked, sums, typed
from pyg_convs import Case, Inputs, main


def _arguments(takes: str, i: Inputs) -> tuple[Any, ...]:
    """What a piece takes, by a name for the kind."""
    n = i.x.shape[0]
    half = n // 2
    batch = torch.arange(n) * 4 // n
    two = torch.stack([i.edge_index[0] % half, i.edge_index[1] % (n - half)])
    names = ("a", "into", "b"), ("b", "back", "a")
    made: dict[str, Callable[[], tuple[Any, ...]]] = {
        "x": lambda: (i.x, i.edge_index),
        "weight": lambda: (i.x, i.edge_index, i.edge_weight),
        "attr": lambda: (i.x, i.edge_index, i.edge_attr),
        "type": lambda: (i.x, i.edge_index, i.edge_type),
        "pos": lambda: (i.x, i.edge_index, i.pos),
        "node_type": lambda: (i.x, i.edge_index, i.node_type),
        "other": lambda: (i.x, i.edge_index, i.other_index),
        "batch": lambda: (i.x, i.edge_index, batch),
        "edges": lambda: (i.edge_index,),
        "categories": lambda: (i.node_type, i.edge_index, i.edge_type),
        "dicts": lambda: ({"a": i.x[:half], "b": i.x[half:]}, {names[0]: two, names[1]: two.flip(0)}),
        "pair": lambda: ((i.x[:half], i.x[half:]), two),
        "snapshots": lambda: (i.x, [i.edge_index, i.other_index, i.edge_index[:, ::2]]),
        "static": lambda: (torch.stack([i.x, i.x.flip(0), i.x * 0.5]), i.edge_index),
    }
    return made[takes]()


CASES = [
    Case(kind.__name__, kind, functools.partial(_arguments, takes))
    for file in (sums, attention, typed, further, picked)
    for kind, takes in file.CASES
]

if __name__ == "__main__":
    main("plain code", "piece", CASES, {})
