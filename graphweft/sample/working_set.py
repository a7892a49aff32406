"""How much of a graph a batch needs, and what that costs over two tiers of memory.

Comes in: sizes of samples. Goes out: bytes, bytes a seed, and seconds by the model of the thesis (section 3.2). Pure
functions; called by the multistage loader's users, benchmarks and tests.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from graphweft._errors import ConfigError
from graphweft.graph.graph import Graph
from graphweft.sample.stages import Key, Level, Stage

_OFFSET, _INDEX = 8, 4  # bytes of a node's offset and of an edge


def structure_bytes(nodes: int, edges: int) -> int:
    """Bytes of a sample's structure: an offset a node, an index an edge.

    Example:
        >>> structure_bytes(10, 25)
        180
    """
    return _OFFSET * nodes + _INDEX * edges


@dataclass(frozen=True)
class WorkingSet:
    """What one group of seeds needs, on average.

    Attributes:
        seeds: Its size.
        nodes: Distinct nodes.
        edges: Edges.
        bytes: Of structure and features.
    """

    seeds: float
    nodes: float
    edges: float
    bytes: float

    @property
    def normalized(self) -> float:
        """Bytes a seed."""
        return self.bytes / max(self.seeds, 1e-30)


def working_set(graph: Graph, seeds: torch.Tensor, stage: Stage, row_bytes: float, trials: int, key: Key) -> WorkingSet:
    """The average working set of a stage's groups over up to ``trials`` of them, without any features.

    Example:
        >>> from graphweft.sample.stages import LargeBatch
        >>> ring = Graph([1, 2, 3, 0], [0, 1, 2, 3])
        >>> working_set(ring, torch.arange(4), LargeBatch(2, (1,)), 4.0, 2, Key(0, 0, shuffle=False)).nodes
        3.0
    """
    root = Level(graph, seeds)
    counts: list[tuple[int, int, int]] = []
    for group, places in enumerate(stage.split(seeds, key)):
        if len(counts) == trials:
            break
        if places.numel():
            level = stage.draw(root, seeds[places], group, key)
            counts.append((places.numel(), level.graph.num_nodes, level.graph.num_edges))
    if not counts:
        raise ConfigError("working_set: expected seeds and trials, got none")
    count, nodes, edges = (sum(column) / len(counts) for column in zip(*counts, strict=True))
    return WorkingSet(count, nodes, edges, nodes * (row_bytes + _OFFSET) + edges * _INDEX)


def flat_cost(needed: float, miss: float, low: float, high: float) -> float:
    """Seconds a batch spends on memory with one stage (eq. 3.1).

    Args:
        needed: Bytes of a batch's working set.
        miss: Share of them that no cache on the upper tier holds.
        low: Bytes a second of the lower tier.
        high: Bytes a second of the upper tier.

    Example:
        >>> flat_cost(100.0, 1.0, 10.0, 100.0)
        10.0
    """
    return (1 - miss) / high * needed + miss / low * needed


def staged_cost(inner: float, macro: float, batches: float, low: float, high: float) -> float:
    """Seconds a batch spends on memory with two stages (eq. 3.2).

    Args:
        inner: Bytes of a batch's working set, read from the upper tier.
        macro: Bytes of a macro-batch's working set, read from the lower tier.
        batches: Batches made of one macro-batch.
        low: Bytes a second of the lower tier.
        high: Bytes a second of the upper tier.

    Example:
        >>> staged_cost(100.0, 200.0, 10.0, 10.0, 100.0)
        3.0
    """
    return inner / high + macro / (low * batches)


def reduction(macro: WorkingSet, flat: WorkingSet, miss: float = 1.0) -> float:
    """What staging leaves of the lower tier's traffic: the ratio of normalised working sets by the miss rate (3.3)."""
    return macro.normalized / flat.normalized / miss
