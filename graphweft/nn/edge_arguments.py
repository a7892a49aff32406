"""Other forms in which a call gives edges: PyTorch Geometric's ``EdgeIndex`` and this package's graphs.

Comes in: the flat arguments of a module of ``gw.compile``. Goes out: the same with an ``edge_index`` in place of such
objects. Called by ``compiled_call.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from graphweft.graph.derived import derived
from graphweft.graph.graph import Graph
from graphweft.runtime.constants import constant


def takes_edge_index(module: nn.Module) -> bool:
    """Whether layers of PyTorch Geometric are in a module, which know no graphs of this package."""
    bases = {base for inner in module.modules() for base in type(inner).__mro__}
    return any(base.__module__.partition(".")[0] == "torch_geometric" for base in bases)


def with_edge_index(flat: Sequence[Any], module: nn.Module) -> list[Any]:
    """The arguments with tensors of edges (2, E) in place of graphs, for layers that take one."""
    if not takes_edge_index(module):
        return list(flat)
    return [derived(item, _edges_of) if isinstance(item, Graph) else item for item in flat]


def as_tensors(flat: Sequence[Any]) -> list[Any]:
    """Every ``EdgeIndex`` as a plain tensor where that means the same, anything else as it is.

    It does where sizes follow from features alone, as they do for a plain tensor.
    """
    return [_plain_edges(item, flat) if type(item).__name__ == "EdgeIndex" else item for item in flat]


def _plain_edges(item: Any, flat: Sequence[Any]) -> Any:
    if not isinstance(item, Tensor):
        return item
    rows, columns = item.sparse_size()  # type: ignore[attr-defined]
    known = {size for size in (rows, columns) if size is not None}
    features = [x.shape[0] for x in flat if isinstance(x, Tensor) and x.is_floating_point() and x.dim() > 0]
    one, two = len(known) == 1 and features[:1] == [*known], features[:2] == [rows, columns]
    return item.as_tensor() if not known or one or two else item  # type: ignore[attr-defined]


def parts_of(matrix: Tensor) -> tuple[Tensor, ...] | None:
    """Positions and numbers of a sparse matrix; a row of numbers an entry in coordinates. None for one in blocks."""
    if matrix.layout == torch.sparse_coo:
        return (matrix._indices(), matrix._values()) if matrix.sparse_dim() == 2 else None
    if matrix.layout == torch.strided or matrix.dim() != 2:
        return None
    if matrix.layout == torch.sparse_csr:
        return matrix.crow_indices(), matrix.col_indices(), matrix.values()
    if matrix.layout == torch.sparse_csc:
        return matrix.ccol_indices(), matrix.row_indices(), matrix.values()
    return None


def _edges_of(graph: Graph) -> Tensor:
    """Sources and destinations in the order of the graph's edges, declared constant."""
    return constant(torch.stack(graph.edges()).long())
