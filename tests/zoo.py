"""The graph zoo: small graphs that break careless code. Plain arrays, so that every layer can build its own object.

``from zoo import ZOO`` and parametrise over ``ZOO.items()``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Edges(NamedTuple):
    """Directed edges src -> dst over ``num_nodes`` nodes, in no particular order."""

    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    num_nodes: int


def _edges(pairs: list[tuple[int, int]], num_nodes: int) -> Edges:
    array = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return Edges(array[:, 0].copy(), array[:, 1].copy(), num_nodes)


def random_edges(num_nodes: int, num_edges: int, seed: int) -> Edges:
    """Uniform pairs, multi-edges and self-loops included."""
    rng = np.random.default_rng(seed)
    return Edges(rng.integers(0, num_nodes, num_edges), rng.integers(0, num_nodes, num_edges), num_nodes)


def power_law_edges(num_nodes: int, num_edges: int, seed: int) -> Edges:
    """In-degrees fall like a power law; node 0 is a hub."""
    rng = np.random.default_rng(seed)
    dst = np.floor(num_nodes * rng.random(num_edges) ** 4).astype(np.int64)
    return Edges(rng.integers(0, num_nodes, num_edges), dst, num_nodes)


ZOO: dict[str, Edges] = {
    "empty": _edges([], 0),
    "one_node": _edges([], 1),
    "one_loop": _edges([(0, 0)], 1),
    "no_edges": _edges([], 5),
    "isolated": _edges([(1, 3), (3, 1)], 6),
    "self_loops": _edges([(i, i) for i in range(4)] + [(0, 2), (2, 1)], 4),
    "multi_edges": _edges([(0, 1), (0, 1), (2, 1), (0, 1), (1, 0), (1, 0)], 3),
    "path": _edges([(i, i + 1) for i in range(6)], 7),
    "star": _edges([(i, 0) for i in range(1, 70)], 70),
    "reverse_star": _edges([(0, i) for i in range(1, 70)], 70),
    "symmetric": _edges([(0, 1), (1, 0), (1, 2), (2, 1), (0, 3), (3, 0)], 4),
    "random": random_edges(40, 200, seed=1),
    "power_law": power_law_edges(200, 1500, seed=2),
}
