"""The hierarchical partitioner: METIS, else whole components, else nodes by degree.

Comes in: an undirected graph and a number of parts. Goes out: the part of every node, the phase that made it, and the
seconds of each phase that was tried. Called by :mod:`graphweft.partitioning.partition`. Source: Morphling, section
IV-E1, algorithm 4. METIS rarely reports a failure, so an empty part or one above the tolerance counts as one, too. A
packing that would leave a part empty, as there are fewer components than parts, gives way to the last phase.
"""

from __future__ import annotations

import logging
import time
from typing import NamedTuple

from torch import Tensor

from graphweft._errors import MissingPackageError
from graphweft.graph.graph import Graph
from graphweft.partitioning.metis import Solver, metis
from graphweft.partitioning.packing import components, greedy, packed_components

log = logging.getLogger("graphweft.partition")


class Assigned(NamedTuple):
    """Nodes in parts.

    Attributes:
        part: int32 (N,).
        method: The phase that made it, with the branch taken.
        phases: Seconds of every phase that was tried, by its name, in order.
    """

    part: Tensor
    method: str
    phases: tuple[tuple[str, float], ...]


def hierarchical(graph: Graph, k: int, solve: Solver | None = None) -> Assigned:
    """Phases I to III on an undirected ``graph``; which one made the parts is logged to ``graphweft.partition``.

    Without pymetis phase I is left out.

    Args:
        graph: An undirected graph.
        k: Number of parts.
        solve: In the place of METIS.

    Example:
        >>> def fails(graph, k, tolerance, recursive):
        ...     raise RuntimeError("no result")
        >>> hierarchical(Graph([0, 1, 2, 3], [1, 0, 3, 2]), 2, fails).method
        'components'
    """
    phases: list[tuple[str, float]] = []
    begun = time.perf_counter()

    def end_phase(name: str) -> None:
        nonlocal begun
        phases.append((name, time.perf_counter() - begun))
        begun = time.perf_counter()

    if graph.num_nodes:
        try:
            found = metis(graph, k, solve)
        except MissingPackageError:
            log.info("hierarchical: no pymetis, phase I is left out")
        else:
            end_phase("metis")
            if found is not None:
                return Assigned(*found, tuple(phases))
    count, of_node = components(graph)
    if count > 1 and count >= k:
        part = packed_components(of_node, count, k)
        end_phase("components")
        log.info("components: %d of them packed into %d parts", count, k)
        return Assigned(part, "components", tuple(phases))
    end_phase("components")
    log.info("components: %d of them for %d parts, greedy takes over", count, k)
    part = greedy(graph.in_degrees(), k)
    end_phase("greedy")
    return Assigned(part, "greedy", tuple(phases))
