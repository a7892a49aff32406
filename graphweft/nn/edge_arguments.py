"""Other forms in which a call gives edges: PyTorch Geometric's ``EdgeIndex`` and this package's graphs.

Comes in: the flat arguments of a module of ``gw.compile``. Goes out: the same with an ``edge_index`` in place of such
objects. Called by ``compiled_call.py``.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from graphweft.graph.graph import Graph
from graphweft.runtime.constants import constant

_EDGES: weakref.WeakKeyDictionary[Graph, Tensor] = weakref.WeakKeyDictionary()


def takes_edge_index(module: nn.Module) -> bool:
    """Whether layers of PyTorch Geometric are in a module, which know no graphs of this package."""
    bases = {base for inner in module.modules() for base in type(inner).__mro__}
    return any(base.__module__.partition(".")[0] == "torch_geometric" for base in bases)


def with_edge_index(flat: Sequence[Any], module: nn.Module) -> list[Any]:
    """The arguments with tensors of edges (2, E) in place of graphs, for layers that take one."""
    if not takes_edge_index(module):
        return list(flat)
    return [_edges_of(item) if isinstance(item, Graph) else item for item in flat]


def as_tensor(item: Any) -> Any:
    """An ``EdgeIndex`` as a plain tensor, which means the same; anything else as it is."""
    if type(item).__name__ == "EdgeIndex" and isinstance(item, Tensor):
        return item.as_tensor()  # type: ignore[attr-defined]
    return item


def _edges_of(graph: Graph) -> Tensor:
    """Sources and destinations in the order of the graph's edges, declared constant."""
    if graph not in _EDGES:
        _EDGES[graph] = constant(torch.stack(graph.edges()).long())
    return _EDGES[graph]
