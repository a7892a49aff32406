"""The graph zoo: small graphs that break careless code. Plain arrays, so that every layer can build its own object.

``from zoo import ZOO`` and parametrise over ``ZOO.items()``, or over ``CASES``, which adds bipartite graphs and int64
storage and knows what SciPy makes of each graph::

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_something(case: Case) -> None:
        graph = case.graph()
        expected = case.scipy() @ x      # rows are destinations, entries count parallel edges
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from graphweft.graph.graph import Graph


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
    "complete": _edges([(i, j) for i in range(9) for j in range(9) if i != j], 9),
    "random": random_edges(40, 200, seed=1),
    "power_law": power_law_edges(200, 1500, seed=2),
}


@dataclass(frozen=True, eq=False)
class Case:
    """One named graph, as edges in constructor order, and what an independent library makes of it.

    Attributes:
        name: What the graph is there for.
        src, dst: int64 ids of the edges.
        num_src, num_dst: Number of nodes on each side; equal unless ``bipartite``.
        bipartite: The two sides are different sets of nodes.
        wide: ``graph()`` stores int64 ids although int32 would do.
    """

    name: str
    src: torch.Tensor
    dst: torch.Tensor
    num_src: int
    num_dst: int
    bipartite: bool = False
    wide: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def num_edges(self) -> int:
        return self.src.numel()

    def graph(self) -> Graph:
        """A new graph of the case."""
        num_nodes = (self.num_src, self.num_dst) if self.bipartite else self.num_src
        graph = Graph(self.src, self.dst, num_nodes=num_nodes)
        return Graph.from_adjacency(graph.csc.widened(), bipartite=self.bipartite) if self.wide else graph

    def scipy(self, weight: NDArray[np.float64] | None = None) -> sp.csr_array:
        """float64 matrix (num_dst, num_src); ``weight`` holds one value per edge, ones if left out."""
        values = np.ones(self.num_edges) if weight is None else np.asarray(weight, dtype=np.float64)
        return sp.csr_array((values, (self.dst.numpy(), self.src.numpy())), shape=(self.num_dst, self.num_src))

    def edges_by_dst(self) -> NDArray[np.int64]:
        """Edge ids ordered by destination, then by id: the positions of the compressed form."""
        return np.argsort(self.dst.numpy(), kind="stable")


def _case(name: str, edges: Edges, num_dst: int | None = None, wide: bool = False) -> Case:
    ids = (torch.from_numpy(edges.src), torch.from_numpy(edges.dst))
    return Case(name, *ids, edges.num_nodes, num_dst or edges.num_nodes, num_dst is not None, wide)


SQUARE: list[Case] = [
    *(_case(name, edges) for name, edges in ZOO.items()),
    _case("random_int64", random_edges(40, 200, seed=3), wide=True),
    _case("multi_edges_int64", ZOO["multi_edges"], wide=True),
]
BIPARTITE: list[Case] = [
    _case("bipartite", Edges(random_edges(7, 25, seed=4).src, random_edges(12, 25, seed=5).dst, 7), num_dst=12),
    _case(
        "bipartite_wide_sources", Edges(random_edges(50, 9, seed=6).src, random_edges(3, 9, seed=7).dst, 50), num_dst=3
    ),
    _case("bipartite_no_edges", Edges(np.empty(0, np.int64), np.empty(0, np.int64), 4), num_dst=6),
]
CASES: list[Case] = SQUARE + BIPARTITE
