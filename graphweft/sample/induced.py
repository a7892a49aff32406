"""Sampled nodes with all edges between them, not only those that were drawn.

Comes in: seeds. Goes out: a :class:`Sample` with one graph for all layers. Called by the loader.
"""

from __future__ import annotations

from typing import Any

from graphweft._errors import ConfigError
from graphweft.graph.graph import Graph
from graphweft.graph.ids import Ids
from graphweft.sample.pieces import Pieces
from graphweft.sample.sampler import Sample, Sampler, ShownBySettings


class InducedSampler(ShownBySettings):
    """The nodes that another sampler draws around the seeds, and every edge of the graph between two of them.

    Args:
        sampler: Draws the nodes, each once, such as a :class:`NeighborSampler`.

    Raises: ConfigError for an object that is no sampler around seeds, or for a sampler with separate nodes for every
    seed.

    Example:
        >>> from graphweft.sample.neighbor import NeighborSampler
        >>> inner = NeighborSampler(Graph([1, 2, 0, 1], [0, 0, 2, 2]), [-1])
        >>> sample = InducedSampler(inner).sample([0])
        >>> sample.n_id.tolist(), sorted(sample.e_id.tolist()), inner.sample([0]).e_id.tolist()
        ([0, 1, 2], [0, 1, 2, 3], [0, 1])
    """

    def __init__(self, sampler: Sampler) -> None:
        who = type(self).__name__
        if not hasattr(sampler, "sample") or not isinstance(getattr(sampler, "graph", None), Graph):
            raise ConfigError(f"{who}: expected a sampler around seeds, got {sampler!r}")
        if getattr(sampler, "disjoint", False):
            raise ConfigError(f"{who}: expected a sampler whose seeds share nodes, got a disjoint one")
        self.graph, self.sampler, self._pieces = sampler.graph, sampler, Pieces(sampler.graph)

    def identity(self) -> dict[str, Any]:
        """Settings that decide the draws, in addition to graph and random keys."""
        return {"induced_by": type(self.sampler).__name__, **self.sampler.identity()}

    def sample(self, seeds: Ids, *, seed: int = 0, epoch: int = 0, stage: int = 0) -> Sample:
        """The batch of ``seeds``, as the inner sampler takes them.

        Raises: as the inner sampler.
        """
        drawn = self.sampler.sample(seeds, seed=seed, epoch=epoch, stage=stage)
        if drawn.owner is not None:
            raise ConfigError("InducedSampler: expected a sampler whose seeds share nodes, got one with owners")
        return self._pieces.induced(drawn.n_id, drawn.batch_size)
