"""Graphs made of graphs: line graphs, relations put together, components, graphs with fewer edges.

Comes in: a graph. Goes out: another one. Called by users.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.csgraph
import torch
from jaxtyping import Int64
from torch import Tensor

from graphweft._checks import as_integer
from graphweft._distinct import distinct
from graphweft._errors import ConfigError, GraphError
from graphweft.graph.graph import Graph
from graphweft.graph.typed import Relation
from graphweft.sample.keyed import keyed_uniforms


def line_graph(graph: Graph, *, undirected: bool = False, backtracking: bool = True) -> Graph:
    """The graph whose nodes are the edges of ``graph``, with an edge e -> f if f begins at the end of e.

    Args:
        graph: A square graph.
        undirected: Whether a pair of nodes is one edge, regardless of directions and parallel edges. Pairs that share
            an end are then joined in both directions, and self-loops of the graph are left out.
        backtracking: Whether to join u -> v to v -> u too. Not with ``undirected``.

    Returns: A graph with ``ndata["ends"]``, int64 (edges, 2), and the ``edata`` of the graph as ``ndata`` unless
    ``undirected``.

    Raises: ConfigError, GraphError.

    Example:
        >>> [ends.tolist() for ends in line_graph(Graph([0, 1, 2], [1, 2, 0])).edges()]
        [[0, 1, 2], [1, 2, 0]]
    """
    _check("line_graph", graph)
    if undirected and not backtracking:
        raise ConfigError("line_graph: backtracking=False cannot be combined with undirected=True")
    src, dst = (ends.numpy() for ends in graph.edges())
    if undirected:
        return _undirected_line(graph, src, dst)
    order = np.argsort(src, kind="stable")
    first = np.searchsorted(src[order], np.arange(graph.num_nodes + 1))
    counts = np.diff(first)[dst]
    edge = np.repeat(np.arange(len(src)), counts)
    after = order[np.arange(len(edge)) - np.repeat(np.cumsum(counts) - counts, counts) + first[dst[edge]]]
    if not backtracking:
        kept = dst[after] != src[edge]
        edge, after = edge[kept], after[kept]
    made = Graph(edge, after, num_nodes=len(src))
    made.ndata["ends"] = torch.stack(graph.edges(), dim=1)
    for name, rows in graph.edata.items():
        made.ndata[name] = rows
    return made


def _undirected_line(graph: Graph, src: Any, dst: Any) -> Graph:
    low, high = np.minimum(src, dst)[src != dst], np.maximum(src, dst)[src != dst]
    size = max(graph.num_nodes, 1)
    codes = distinct(low * size + high)
    ends = np.stack([codes // size, codes % size], axis=1)
    numbers = np.tile(np.arange(len(codes))[:, None], 2).reshape(-1)
    at: Any = scipy.sparse.csr_array((np.ones(len(numbers)), (numbers, ends.reshape(-1))), shape=(len(codes), size))
    shared = (at @ at.T).tocoo()
    apart = shared.row != shared.col
    made = Graph(shared.row[apart].astype(np.int64), shared.col[apart].astype(np.int64), num_nodes=len(codes))
    made.ndata["ends"] = torch.from_numpy(ends)
    return made


def metapath_graph(graph: Graph, metapath: Sequence[Relation]) -> Graph:
    """The graph with an edge between every two nodes that a path along the relations joins.

    Args:
        graph: A typed graph.
        metapath: Relations (source type, name, destination type). Each begins at the destination type of the previous
            one.

    Returns: A graph from the first type to the last type; it is square if both are the same. ``edata["paths"]``, int64,
    has the number of paths.

    Raises: ConfigError, GraphError.

    Example:
        >>> g = Graph.hetero({("a", "to", "p"): ([0, 1], [0, 0]), ("p", "of", "a"): ([0, 0], [0, 1])})
        >>> metapath_graph(g, [("a", "to", "p"), ("p", "of", "a")]).num_edges
        4
    """
    if not isinstance(graph, Graph) or not graph.is_typed:
        raise GraphError(f"metapath_graph: expected a typed graph, got {graph!r}")
    relations = list(metapath)
    if not relations:
        raise ConfigError("metapath_graph: expected a metapath of one relation at least, got none")
    product: Any = None
    for number, relation in enumerate(relations):
        part = graph.relation_graph(relation)
        if number and relations[number - 1][2] != relation[0]:
            names = f"{'-'.join(relations[number - 1])} and {'-'.join(relation)}"
            before = relations[number - 1][2]
            raise ConfigError(f"metapath_graph: expected a relation that begins at {before}, got {names} in turn")
        ends = tuple(side.numpy() for side in part.edges())
        counts = np.ones(part.num_edges, np.int64)
        matrix: Any = scipy.sparse.csr_array((counts, ends), shape=(part.num_src, part.num_dst))
        product = matrix if product is None else product @ matrix
    found = product.tocoo()
    found.sum_duplicates()
    order = np.lexsort((found.row, found.col))
    same = relations[0][0] == relations[-1][2]
    sizes = product.shape[0] if same else product.shape
    made = Graph(found.row[order].astype(np.int64), found.col[order].astype(np.int64), num_nodes=sizes)
    made.edata["paths"] = torch.from_numpy(found.data[order].astype(np.int64))
    return made


def largest_component(graph: Graph, count: int = 1, *, strong: bool = False) -> tuple[Graph, Int64[Tensor, "kept"]]:
    """The induced subgraph of the ``count`` largest components, and the ids of its nodes, ascending.

    Args:
        graph: A square graph.
        count: Number of components; of equally large ones, those with the smaller first node.
        strong: Whether components are strongly connected; else directions of edges do not matter.

    Raises: ConfigError, GraphError.

    Example:
        >>> part, nodes = largest_component(Graph([0, 1, 3], [1, 2, 4]))
        >>> part, nodes.tolist()
        (Graph(num_nodes=3, num_edges=2), [0, 1, 2])
    """
    _check("largest_component", graph)
    number = as_integer(count)
    if number is None or number < 1:
        raise ConfigError(f"largest_component: expected count as an integer >= 1, got {count!r}")
    ends = tuple(side.numpy() for side in graph.edges())
    matrix: Any = scipy.sparse.csr_array((np.ones(graph.num_edges), ends), shape=(graph.num_nodes,) * 2)
    _, of = scipy.sparse.csgraph.connected_components(matrix, directed=True, connection="strong" if strong else "weak")
    names, first, sizes = np.unique(of, return_index=True, return_counts=True)
    chosen = names[np.lexsort((first, -sizes))[:number]]
    nodes = torch.from_numpy(np.flatnonzero(np.isin(of, chosen)))
    return graph.subgraph(nodes), nodes


def drop_edges(graph: Graph, share: float, *, undirected: bool = False, seed: int = 0, epoch: int = 0) -> Graph:
    """DropEdge: the graph without some of its edges, each dropped with probability ``share``.

    Draws are keyed by (seed, epoch, edge) and do not depend on the number of threads. Another epoch drops other edges.

    Args:
        graph: Any graph; typed ones stay typed.
        share: Probability to drop an edge.
        undirected: Whether u -> v and v -> u are dropped or kept together.
        seed: Part of the key of the draws: equal seed and epoch give equal draws.
        epoch: Part of the key of the draws.

    Raises: ConfigError.

    Example:
        >>> drop_edges(Graph([0, 1, 2], [1, 2, 0]), 0.0).num_edges
        3
    """
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise ConfigError(f"drop_edges: expected share in [0, 1], got {share!r}")
    if undirected:
        src, dst = graph.edges()
        names = (torch.minimum(src, dst), torch.maximum(src, dst))
        marks = keyed_uniforms((seed, epoch), *names)
    else:
        marks = keyed_uniforms((seed, epoch), torch.arange(graph.num_edges))
    return graph.edge_subgraph(torch.from_numpy(marks >= share))


def _check(who: str, graph: Graph) -> None:
    if not isinstance(graph, Graph) or not graph.is_square or graph.is_typed:
        raise GraphError(f"{who}: expected an untyped graph over one set of nodes, got {graph!r}")
