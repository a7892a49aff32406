"""Random walks, and the subgraphs around seeds that they reach.

Comes in: a graph and where walks start. Goes out: visited nodes, or a batch. Called by users, the loader and the
GraphSAINT samplers. Sources: node2vec (Grover and Leskovec, KDD 2016), random walks with restart (Tong et al., ICDM
2006).
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import torch
from jaxtyping import Float, Int64

from graphweft._errors import ConfigError, GraphError, IndexRangeError
from graphweft._memory import empty
from graphweft._native import declare, pointer
from graphweft.graph.graph import Graph
from graphweft.graph.ids import Ids
from graphweft.graph.select import as_selection
from graphweft.sample.pieces import Pieces
from graphweft.sample.sampler import Sample, ShownBySettings, as_seeds
from graphweft.sample.weights import by_position, weights_identity

_running = declare("gw_running_sums")
_walk = declare("gw_random_walk")


class Walker:
    """Walks along the edges of ``graph``; options as :func:`random_walk` takes them. Threads may share one.

    Raises: ConfigError, GraphError, ShapeError.
    """

    def __init__(
        self,
        who: str,
        graph: Graph,
        length: int,
        p: float = 1.0,
        q: float = 1.0,
        restart: float = 0.0,
        weight: torch.Tensor | None = None,
    ) -> None:
        if not isinstance(graph, Graph) or not graph.is_square:
            raise GraphError(f"{who}: expected a graph over one set of nodes, got {graph!r}")
        if not isinstance(length, int) or isinstance(length, bool) or not 0 <= length < 2**31:
            raise ConfigError(f"{who}: expected length as an integer >= 0, got {length!r}")
        for name, value in (("p", p), ("q", q)):
            if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
                raise ConfigError(f"{who}: expected {name} > 0, got {value!r}")
        if not (isinstance(restart, int | float) and 0 <= restart <= 1):
            raise ConfigError(f"{who}: expected restart in [0, 1], got {restart!r}")
        self.length, self._p, self._q, self._restart = length, float(p), float(q), float(restart)
        self._csr = graph.csr if p == 1 == q else graph.csr.with_sorted_columns()
        self._running: torch.Tensor | None = None
        if weight is not None:
            values = by_position(who, self._csr, weight)
            self._running = empty((self._csr.num_edges,), torch.float64)
            _running(ctypes.byref(self._csr.native), values.data_ptr(), self._running.data_ptr())
        self._weights_identity = weights_identity(self._running)

    def identity(self) -> dict[str, Any]:
        """What decides the walks, beside graph and keys."""
        options = {"length": self.length, "p": self._p, "q": self._q, "restart": self._restart}
        return {**options, **self._weights_identity}

    def walk(self, starts: torch.Tensor, items: torch.Tensor | None, key: tuple[int, int, int]) -> torch.Tensor:
        """int64 (n, length + 1) visited nodes; ``items`` key the walks, or their numbers do."""
        out = empty((starts.numel(), self.length + 1), torch.int64)
        given = (starts.numel(), starts.data_ptr(), pointer(items), self.length, pointer(self._running))
        bias = (self._p, self._q, self._restart)
        _walk(ctypes.byref(self._csr.native), *given, *bias, *key, out.data_ptr())
        return out


def random_walk(
    graph: Graph,
    starts: Ids,
    length: int,
    *,
    p: float = 1.0,
    q: float = 1.0,
    restart: float = 0.0,
    weight: Float[torch.Tensor, "edges"] | None = None,
    seed: int = 0,
    epoch: int = 0,
    stage: int = 0,
) -> Int64[torch.Tensor, "starts nodes"]:
    """Random walks along the edges, from source to destination. Pass ``graph.reverse()`` to walk against them.

    Walk i is keyed by (seed, epoch, stage, i) and does not depend on the number of threads.

    Args:
        graph: A square graph.
        starts: (n,) nodes, repeats allowed.
        length: Steps of a walk.
        p: A step back to the previous node has weight 1 / p (node2vec).
        q: A step to a node without an edge from the previous node has weight 1 / q (node2vec).
        restart: Probability of returning to the start in each step.
        weight: (num_edges,) weights >= 0 by edge id; None: uniform.
        seed: Part of the key of the draws: equal seed, epoch and stage give equal draws.
        epoch: Part of the key of the draws.
        stage: Part of the key of the draws.

    Returns: int64 (n, length + 1): the start and the nodes after it. After a node without an edge to follow it is -1;
    walks with ``restart`` return to the start there.

    Raises: ConfigError, GraphError, IndexRangeError, ShapeError.

    Example:
        >>> random_walk(Graph([0, 1, 2], [1, 2, 0], 4), [0, 3], 4).tolist()
        [[0, 1, 2, 0, 1], [3, -1, -1, -1, -1]]
    """
    walker = Walker("random_walk", graph, length, p, q, restart, weight)
    ids = as_selection("random_walk", "start", starts, graph.num_nodes).contiguous()
    return walker.walk(ids, None, (seed, epoch, stage))


class WalkSampler(ShownBySettings):
    """Subgraphs of the nodes that random walks from the seeds reach, and all edges between them.

    Walks go against the edges, as messages come from there. The walks of a seed depend only on the seed and the keys.

    Args:
        graph: A square graph.
        length: Steps of a walk.
        walks: Walks of each seed.
        p, q, restart, weight: As in :func:`random_walk`.

    Raises: ConfigError, GraphError, ShapeError.

    Example:
        >>> sample = WalkSampler(Graph([1, 2, 3], [0, 1, 2]), length=2).sample([0])
        >>> sample.n_id.tolist(), sample.edge_index.tolist()
        ([0, 1, 2], [[1, 2], [0, 1]])
    """

    def __init__(
        self,
        graph: Graph,
        length: int = 4,
        walks: int = 1,
        p: float = 1.0,
        q: float = 1.0,
        restart: float = 0.0,
        weight: torch.Tensor | None = None,
    ) -> None:
        who = type(self).__name__
        if not isinstance(walks, int) or isinstance(walks, bool) or not 0 < walks < 2**31:
            raise ConfigError(f"{who}: expected walks as an integer >= 1, got {walks!r}")
        if not isinstance(graph, Graph) or not graph.is_square:
            raise GraphError(f"{who}: expected a graph over one set of nodes, got {graph!r}")
        self.graph, self.walks = graph, walks
        self._walker = Walker(who, graph.reverse(), length, p, q, restart, weight)
        self._pieces = Pieces(graph)

    def identity(self) -> dict[str, Any]:
        """Settings that decide the draws, in addition to graph and random keys."""
        return {"walks": self.walks, **self._walker.identity()}

    def sample(self, seeds: Ids, *, seed: int = 0, epoch: int = 0, stage: int = 0) -> Sample:
        """The batch of ``seeds``: distinct node ids, a mask or a slice.

        Raises: IndexRangeError for an id that is no node, ConfigError for one that comes twice.
        """
        ids = as_seeds(self._pieces.distinct, seeds, self.graph.num_nodes)
        starts = ids.repeat_interleave(self.walks)
        items = (ids[:, None] * self.walks + torch.arange(self.walks)).reshape(-1)
        try:
            visited = self._walker.walk(starts, items, (seed, epoch, stage))
        except IndexRangeError as failure:
            raise IndexRangeError(f"sample: {failure}") from None
        reached = visited[:, 1:].reshape(-1)
        n_id, _ = self._pieces.distinct(torch.cat([ids, reached[reached >= 0]]))
        return self._pieces.induced(n_id, ids.numel())
