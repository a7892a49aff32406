"""Graphs to and from NetworkX.

Comes in: a NetworkX graph of any kind, or a Graph. Goes out: the other. Called by users. NetworkX is optional and is
imported only where a NetworkX graph is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from graphweft._errors import DtypeError, GraphError, MissingPackageError
from graphweft.graph.graph import Graph
from graphweft.graph.ids import borrow, to_array


def _column(who: str, name: str, values: Sequence[Any]) -> torch.Tensor:
    array = to_array(who, name, [np.asarray(value) for value in values])
    if array.dtype.kind not in "fiub":
        raise DtypeError(f"{who}: expected numbers in {name}, got {array.dtype}")
    return borrow(array.astype(np.float32) if array.dtype == np.float64 else array)


def _attribute(who: str, what: str, name: str, items: Iterable[tuple[Any, dict[str, Any]]]) -> torch.Tensor:
    values = []
    for item, attributes in items:
        if name not in attributes:
            raise GraphError(f"{who}: expected the attribute {name!r} on every {what}, got none on {item!r}")
        values.append(attributes[name])
    return _column(who, f"{what} attribute {name!r}", values)


def from_networkx(graph: Any, *, ndata: Sequence[str] = (), edata: Sequence[str] = ()) -> Graph:
    """Converts a NetworkX graph. Nodes are numbered in the order of ``graph.nodes``. An undirected edge becomes two
    edges.

    Edges have the order of ``graph.edges``, and the reverse edges of an undirected graph follow them. A self-loop
    becomes one edge. ``ndata`` and ``edata`` name the attributes to convert; Python floats become float32.

    Raises: DtypeError for anything but a NetworkX graph; GraphError if an attribute is missing somewhere.

    Example:
        >>> import networkx as nx
        >>> [t.tolist() for t in from_networkx(nx.path_graph(3)).edges()]
        [[0, 1, 1, 2], [1, 2, 0, 1]]
    """
    who = "from_networkx"
    if not all(hasattr(graph, name) for name in ("nodes", "edges", "is_directed")):
        raise DtypeError(f"{who}: expected a NetworkX graph, got {type(graph).__name__}")
    number = {node: at for at, node in enumerate(graph.nodes)}
    entries = [(number[u], number[v], attributes) for u, v, attributes in graph.edges(data=True)]
    if not graph.is_directed():
        entries += [(v, u, attributes) for u, v, attributes in entries if u != v]
    ends = np.array([(u, v) for u, v, _ in entries], dtype=np.int64).reshape(-1, 2)
    out = Graph(ends[:, 0], ends[:, 1], num_nodes=len(number))
    for name in ndata:
        out.ndata[name] = _attribute(who, "node", name, graph.nodes(data=True))
    for name in edata:
        out.edata[name] = _attribute(who, "edge", name, [((u, v), attributes) for u, v, attributes in entries])
    return out


def to_networkx(graph: Graph, *, ndata: Sequence[str] = (), edata: Sequence[str] = ()) -> Any:
    """Converts to a ``networkx.DiGraph``, or to a ``MultiDiGraph`` if there are parallel edges. Edges have their number
    as ``id``.

    For a bipartite graph, destinations follow the sources, and nodes have NetworkX's attribute ``bipartite`` (0 for
    sources).

    Raises: MissingPackageError without NetworkX; GraphError for an unknown field.
    """
    try:
        import networkx as nx
    except ImportError:
        raise MissingPackageError("to_networkx: expected the package networkx, which is not installed") from None
    simple = graph.csc.with_sorted_columns().columns_ascend(strictly=True)
    out = nx.DiGraph() if simple else nx.MultiDiGraph()
    src, dst = graph.edges()
    shift = 0 if graph.is_square else graph.num_src
    out.add_nodes_from(range(graph.num_nodes))
    if not graph.is_square:
        nx.set_node_attributes(out, {node: int(node >= shift) for node in range(graph.num_nodes)}, "bipartite")
    columns = {name: _field(graph, "edata", name) for name in edata}
    for at, (u, v) in enumerate(zip(src.tolist(), (dst + shift).tolist(), strict=True)):
        out.add_edge(u, v, id=at, **{name: column[at] for name, column in columns.items()})
    for name in ndata:
        nx.set_node_attributes(out, dict(enumerate(_field(graph, "ndata", name))), name)
    return out


def _field(graph: Graph, kind: str, name: str) -> list[Any]:
    fields = graph.ndata if kind == "ndata" else graph.edata
    if name not in fields:
        raise GraphError(f"to_networkx: expected one of {kind} ({', '.join(fields) or 'none'}), got {name!r}")
    values: list[Any] = fields[name].tolist()
    return values
