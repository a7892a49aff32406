"""The typed graph zoo: small graphs of several types that break careless code.

``from typed_zoo import TYPED_ZOO``; values are functions of nothing that make a new graph.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from graphweft.graph.graph import Graph


def academic(seed: int = 5) -> Graph:
    """Three node types, one of which no edge enters; a relation without an edge."""
    rng = np.random.default_rng(seed)
    sizes = {"author": 6, "paper": 9, "term": 4}
    counts = {
        ("author", "writes", "paper"): 20,
        ("paper", "cites", "paper"): 15,
        ("term", "unused", "author"): 0,
        ("paper", "by", "author"): 12,
    }
    edges = {key: (rng.integers(0, sizes[key[0]], n), rng.integers(0, sizes[key[2]], n)) for key, n in counts.items()}
    return Graph.hetero(edges, sizes)


def no_node_of_a_type() -> Graph:
    """A type without nodes, between two with nodes."""
    edges = {("a", "to", "c"): ([0, 1, 1], [2, 2, 0]), ("b", "to", "c"): ([], []), ("c", "to", "a"): ([0], [1])}
    return Graph.hetero(edges, {"a": 2, "b": 0, "c": 3})


def no_edges() -> Graph:
    """Two relations, neither with an edge."""
    return Graph.hetero({("a", "r", "a"): ([], []), ("a", "s", "b"): ([], [])}, {"a": 3, "b": 2})


def hubs() -> Graph:
    """One relation into a hub, its reverse out of it, parallel edges and self-loops in a third."""
    leaves = np.arange(1, 150)
    hub = np.zeros(149, dtype=np.int64)
    loops = np.array([3, 3, 3, 7])
    return Graph.hetero(
        {("n", "in", "n"): (leaves, hub), ("n", "out", "n"): (hub, leaves), ("n", "own", "n"): (loops, loops)}
    )


def many() -> Graph:
    """Forty relations over two hundred nodes, some with one edge, some with hundreds."""
    rng = np.random.default_rng(9)
    edges = {}
    for r in range(40):
        count = [1, 10, 300][r % 3]
        ends = rng.integers(0, 200, count), rng.integers(0, 4, count)
        edges[("n", f"r{r}", "n")] = ends if r % 2 else ends[::-1]
    return Graph.hetero(edges, {"n": 200})


def untyped() -> Graph:
    """No types at all: one node type, one relation."""
    rng = np.random.default_rng(2)
    return Graph(rng.integers(0, 30, 90), rng.integers(0, 30, 90), num_nodes=30)


TYPED_ZOO: dict[str, Callable[[], Graph]] = {
    "academic": academic,
    "no_node_of_a_type": no_node_of_a_type,
    "no_edges": no_edges,
    "hubs": hubs,
    "many": many,
    "untyped": untyped,
}
