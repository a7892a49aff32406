"""How code for other libraries is written here: the remedy at the end of an error.

Comes in: what a user gave that is not part of a call: functions by name, keywords, signatures. Goes out: one clause
that says where the same lives. Called by ``call.py`` and ``nn.message_passing`` once something is wrong.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from graphweft.frontend.source import code_of

# built-in functions of the Deep Graph Library by name
_EDGE_CODE = {
    "copy_u": 'edges.src["h"]',
    "copy_src": 'edges.src["h"]',
    "copy_e": 'edges.data["w"]',
    "copy_edge": 'edges.data["w"]',
}
_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_ENDS = {"u": 'edges.src["h"]', "v": 'edges.dst["h"]', "e": 'edges.data["w"]'}
_FOLDS = {"sum": "sum(1)", "add": "sum(1)", "mean": "mean(1)", "max": "amax(1)", "min": "amin(1)", "mul": "prod(1)"}
_KEYWORDS = {
    "message_func": "message",
    "reduce_func": "reduce",
    "apply_node_func": "update",
    "func": "message",
    "edge_attr": "edata",
    "edge_weight": "edata",
}


def as_code(stage: str, given: Any) -> str:
    """The function of a stage that a name, or a built-in function of DGL, stands for."""
    name = given if isinstance(given, str) else getattr(given, "name", None)
    if not isinstance(name, str):
        return ""
    if stage == "reduce" and name in _FOLDS:
        return f': write lambda nodes: {{"h": nodes.mailbox["m"].{_FOLDS[name]}}}'
    if stage == "message" and _on_edges(name):
        return f': write lambda edges: {{"m": {_on_edges(name)}}}'
    views = {"message": "edges", "reduce": "nodes with a mailbox", "update": "nodes"}
    return f": functions are written as code on {views[stage]}"


def _on_edges(name: str) -> str | None:
    left, _, rest = name.partition("_")
    sign, _, right = rest.partition("_")
    if left in _ENDS and right in _ENDS and sign in _SIGNS:
        return f"{_ENDS[left]} {_SIGNS[sign]} {_ENDS[right]}"
    if left in _ENDS and right in _ENDS and sign == "dot":
        return f"({_ENDS[left]} * {_ENDS[right]}).sum(-1, keepdim=True)"
    return _EDGE_CODE.get(name)


def keyword(name: str, value: Any, graph: Any) -> str:
    """Where a keyword that a call does not have lives."""
    known = _KEYWORDS.get(name)
    if known in ("message", "reduce", "update"):
        return f"the argument is called {known}"
    if name == "etype":
        return "one relation is graph.relation_graph(relation)"
    if name in ("size", "edge_index", "node_dim", "flow"):
        return "the graph says so: sizes and direction of edges are those of gw.Graph"
    if not isinstance(value, Tensor | tuple) and known is None:
        return "values that are no tensors are read from self or a closure"
    edges = getattr(graph, "num_edges", None)
    nodes = getattr(graph, "num_nodes", None) if getattr(graph, "is_square", True) else None
    rows = value.shape[0] if isinstance(value, Tensor) and value.dim() else None
    if known == "edata" or (rows is not None and rows == edges and rows != nodes):
        return f"give edata={{{name!r}: {name}}} and read edges.data[{name!r}] in message"
    return f"give ndata={{{name!r}: {name}}} and read edges.src[{name!r}] in message"


def aggregation(name: Any) -> str:
    """The reduce function that an aggregation by name stands for."""
    fold = _FOLDS.get(name) if isinstance(name, str) else None
    if fold is None:
        return "write the aggregation as reduce(self, nodes), on nodes.mailbox"
    return f'write def reduce(self, nodes): return {{"h": nodes.mailbox["m"].{fold}}}'


def signature(stage: str, function: Any) -> str | None:
    """Where the arguments of a function that takes others than its view live; None for a function that fits."""
    code = code_of(function)
    if code is None or stage not in ("message", "reduce", "update"):
        return None
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return None
    places = [_argument(name) for name in names]
    view = "edges" if stage == "message" else "nodes"
    known = [place for place in places if place is not None]
    if not known:
        return None
    return f"expected {stage}({view}), got {stage}({', '.join(names)}): {', '.join(dict.fromkeys(known))}"


def _argument(name: str) -> str | None:
    if name.endswith("_j") and name != "_j":
        return f"{name} is edges.src[{name[:-2]!r}]"
    if name.endswith("_i") and name != "_i":
        return f"{name} is edges.dst[{name[:-2]!r}]"
    known: Mapping[str, str] = {
        "edge_attr": "edge_attr is edges.data['edge_attr']",
        "edge_weight": "edge_weight is edges.data['edge_weight']",
        "aggr_out": "aggr_out is nodes.data['h'], as reduce returned it",
        "inputs": "inputs are nodes.mailbox['m']",
    }
    return known.get(name)


__all__ = ["aggregation", "as_code", "keyword", "signature"]
