"""The edges that a graph is made of, in any of the forms that people hold them in.

Comes in: sources and destinations, an edge index (2, E), or a sparse matrix of SciPy or torch. Goes out: checked id
vectors with the numbers of nodes. Called by the constructor of :class:`Graph`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from graphweft._errors import DtypeError, GraphError, ShapeError
from graphweft._torch_private import plainly
from graphweft.graph.ids import Ids, as_count, as_ids, borrow, require_ids, summarize, to_array

_WHO = "Graph"
_FEW_NODES = 10_000_000  # offsets of so many nodes are no burden
_NODES_PER_EDGE = 64  # more nodes than this for each edge are ids with gaps, unless the user gives their number


@dataclass(frozen=True)
class Ends:
    """Both ends of every edge.

    Attributes:
        src: int32 or int64 (E,), all below ``num_src``.
        dst: The same dtype and length, all below ``num_dst``.
        num_src: Source nodes.
        num_dst: Destination nodes.
        is_square: Sources and destinations are one set of nodes.
        values: (E,) values of a sparse matrix where they are not all 1, else None.
    """

    src: torch.Tensor
    dst: torch.Tensor
    num_src: int
    num_dst: int
    is_square: bool
    values: torch.Tensor | None = None


@plainly
def edge_ends(src: Any, dst: Ids | None, num_nodes: Any) -> Ends:
    """The edges of ``src`` and ``dst``, or of ``src`` alone: an edge index, or a matrix with an entry (i, j) per edge.

    Raises: DtypeError, ShapeError, IndexRangeError, GraphError: one line with what was expected and what came.

    Example:
        >>> ends = edge_ends(torch.tensor([[0, 1], [2, 2]]), None, None)
        >>> ends.src.tolist(), ends.dst.tolist(), ends.num_src
        ([0, 1], [2, 2], 3)
    """
    values: torch.Tensor | None = None
    shape: tuple[int, int] | None = None
    if _is_matrix(src):
        _require_alone(dst, "a sparse matrix")
        src, dst, values, shape = _entries(src)
    elif dst is None or isinstance(dst, int | np.integer):
        src, dst = _rows(src, dst)
    src, dst = _vector("src", src), _vector("dst", dst)
    if src.numel() != dst.numel():
        raise ShapeError(f"{_WHO}: expected src and dst of one length, got {src.numel()} and {dst.numel()}")
    if src.dtype != dst.dtype:
        src, dst = src.long(), dst.long()
    if num_nodes is None and shape is not None:
        num_nodes = shape[0] if shape[0] == shape[1] else shape
    if isinstance(num_nodes, tuple | list):
        if len(num_nodes) != 2:
            raise ShapeError(f"{_WHO}: expected num_nodes as a number or a pair, got {len(num_nodes)} numbers")
        num_src, num_dst = (as_count(_WHO, "num_nodes", count) for count in num_nodes)
    elif num_nodes is None:
        num_src = num_dst = _counted(src, dst)
    else:
        num_src = num_dst = as_count(_WHO, "num_nodes", num_nodes)
    require_ids(_WHO, "src", src, num_src)
    require_ids(_WHO, "dst", dst, num_dst)
    return Ends(src, dst, num_src, num_dst, not isinstance(num_nodes, tuple | list), values)


def _is_matrix(value: Any) -> bool:
    """A sparse matrix of torch, or of SciPy, which is not imported for it."""
    if isinstance(value, torch.Tensor):
        return value.layout != torch.strided
    return hasattr(value, "tocoo") and hasattr(value, "nnz")


def _entries(matrix: Any) -> tuple[Any, Any, torch.Tensor | None, tuple[int, int]]:
    """Rows, columns, values and shape of a sparse matrix, row by row where it is stored so."""
    if len(matrix.shape) != 2:
        raise ShapeError(f"{_WHO}: expected a sparse matrix of 2 dimensions, got shape {tuple(matrix.shape)}")
    if isinstance(matrix, torch.Tensor):
        entries = matrix.detach().cpu().to_sparse_coo().coalesce()  # type: ignore[no-untyped-call]
        (rows, columns), values = entries.indices(), entries.values()
        if values.dim() != 1:
            raise ShapeError(f"{_WHO}: expected one number per entry, got values of shape {tuple(values.shape)}")
    else:
        entries = matrix.tocoo()
        rows, columns = entries.row, entries.col
        values = borrow(np.asarray(entries.data))
    plain = values.dtype == torch.bool or bool((values == 1).all())
    return rows, columns, None if plain else values, (int(matrix.shape[0]), int(matrix.shape[1]))


def _rows(given: Any, dst: Any) -> tuple[Any, Any]:
    """Both rows of an edge index."""
    _require_known(given)
    table = given if isinstance(given, torch.Tensor) else to_array(_WHO, "edges", given)
    shape = tuple(table.shape)
    if len(shape) == 1:
        raise DtypeError(f"{_WHO}: expected dst beside src, or an edge index of shape (2, edges), got src alone")
    _require_alone(dst, f"an edge index of shape {shape}")
    if len(shape) == 2 and shape[0] == 2:
        return table[0], table[1]
    if len(shape) == 2 and shape[1] == 2:
        remedy = "; its transpose is one: edges.T"
    elif len(shape) == 2 and shape[0] == shape[1]:
        remedy = "; of an adjacency matrix gw.Graph(scipy.sparse.csr_array(matrix)) takes the entries"
    else:
        remedy = ""
    raise ShapeError(f"{_WHO}: expected an edge index of shape (2, edges), got shape {shape}{remedy}")


def _require_known(given: Any) -> None:
    """Graphs of other libraries have converters of their own. Raises: DtypeError."""
    remedy = None
    if all(hasattr(given, name) for name in ("nodes", "edges", "is_directed")):
        remedy = "gw.interop.from_networkx(graph)"
    elif hasattr(given, "sparse_sizes") and hasattr(given, "coo"):  # of a PyG transform it is the transpose
        remedy = "row, column, _ = matrix.coo(); gw.Graph(row, column), or gw.Graph(column, row) for an adj_t"
    elif hasattr(given, "edge_index") or hasattr(given, "edge_index_dict"):
        remedy = "gw.from_pyg(data).graph"
    elif hasattr(given, "adj_external") or hasattr(given, "canonical_etypes"):
        remedy = "gw.interop.from_dgl(graph).graph"
    if remedy is not None:
        raise DtypeError(f"{_WHO}: expected edges, got {type(given).__name__}; {remedy}")


def _require_alone(dst: Any, what: str) -> None:
    if dst is not None:
        raise ShapeError(f"{_WHO}: expected no dst beside {what}; the number of nodes is given as num_nodes=")


def _vector(name: str, value: Any) -> torch.Tensor:
    """``value`` as ids; texts are refused with the remedy."""
    if not isinstance(value, torch.Tensor):
        _require_known(value)
        value = to_array(_WHO, name, value)
        if value.dtype.kind in "USO" and value.size:
            raise DtypeError(
                f"{_WHO}: expected {name} of integers, got {value.dtype}; "
                "gw.Graph.from_ids(src, dst) takes ids of any kind and numbers them"
            )
    return as_ids(_WHO, name, value)


def _counted(src: torch.Tensor, dst: torch.Tensor) -> int:
    """One more than the largest id. Raises: GraphError where nearly all of the nodes would have no edge."""
    largest = max(summarize(src).high, summarize(dst).high)
    if largest >= max(_FEW_NODES, _NODES_PER_EDGE * src.numel()):
        raise GraphError(
            f"{_WHO}: expected ids without large gaps, got {largest} as the largest of {src.numel()} edges; "
            "gw.Graph.from_ids(src, dst) renumbers them, num_nodes= keeps them"
        )
    return as_count(_WHO, "num_nodes", max(largest + 1, 0))
