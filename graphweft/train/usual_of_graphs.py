"""What options of the command are for a set of graphs where they are not given.

Comes in: options as they were given. Goes out: more options. Called by :mod:`graphweft.run`.
"""

from __future__ import annotations

from typing import Any

from graphweft.data.load import holds_graphs
from graphweft.train.options import GRAPH_TASKS, USUAL_GRAPHS

_USUAL: dict[str, Any] = {
    "task": "graphs",
    "mode": "mini",
    "batch_size": USUAL_GRAPHS,
    "model": "gin",
    "layers": 5,
    "norm": "batch",
}


def usual_of_graphs(given: dict[str, Any]) -> dict[str, Any]:
    """For options that name a set of graphs, by their task or by its files; else none.

    Example:
        >>> usual_of_graphs({"task": "graphs"})["batch_size"], usual_of_graphs({"task": "link"})
        (128, {})
    """
    task, data = given.get("task"), given.get("data")
    if task is not None or data is None or given.get("scale") is not None:
        are = task == "graphs" or task in GRAPH_TASKS
    else:
        are = holds_graphs(data, given.get("root"))
    if not are:
        return {}
    if given.get("mode") == "full":  # one batch of all training graphs
        return {name: value for name, value in _USUAL.items() if name != "batch_size"}
    return _USUAL


__all__ = ["usual_of_graphs"]
