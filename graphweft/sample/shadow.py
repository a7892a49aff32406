"""ShaDow sampling: every seed has a bounded neighbourhood of its own, so that depth and scope of a model are apart.

Comes in: seeds. Goes out: their neighbourhoods as one graph without edges between them. Called by the loader. Source:
Zeng et al., NeurIPS 2021.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from graphweft._errors import ConfigError, GraphError
from graphweft._memory import empty
from graphweft._native import declare, pointer
from graphweft.graph.block import DrawnEdges
from graphweft.graph.graph import Graph
from graphweft.graph.ids import Ids
from graphweft.sample.pieces import Handle, Pieces, Pool, Subgraph
from graphweft.sample.sampler import DENSE_MOST, Sample, ShownBySettings, as_seeds, check_fanouts
from graphweft.sample.weights import by_position, weights_identity

_new = declare("gw_ego_new")
_free = declare("gw_ego_free", recorded=False)
_draw = declare("gw_ego_draw")
_group = declare("gw_ego_group")
_write = declare("gw_ego_write")


class Groups:
    """Disjoint unions of subgraphs between groups of nodes. Threads may share one.

    Example:
        >>> groups = Groups(Graph([1, 0, 2], [0, 1, 1]))
        >>> union = groups.given(torch.tensor([0, 2, 4]), torch.tensor([0, 1, 1, 2]))
        >>> union.n_id.tolist(), union.owner.tolist(), union.edge_index.tolist()
        ([0, 1, 1, 2], [0, 1, 0, 1], [[2, 3, 0], [0, 1, 2]])
    """

    def __init__(self, graph: Graph, weight: torch.Tensor | None = None) -> None:
        self.graph, self._weight = graph, weight
        self._ascending = graph.csc.columns_ascend()
        self._pool = Pool(self._open)

    def __getstate__(self) -> dict[str, Any]:
        return {"graph": self.graph, "weight": self._weight}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["graph"], state["weight"])  # type: ignore[misc]

    def drawn(self, roots: torch.Tensor, fanouts: tuple[int, ...], replace: bool, key: tuple[int, int, int]) -> Sample:
        """The neighbourhood of each root; the roots are the first nodes."""
        widths = (ctypes.c_int64 * len(fanouts))(*fanouts)
        return self._made(_draw, roots.numel(), roots.data_ptr(), len(fanouts), widths, replace, *key)

    def given(self, starts: torch.Tensor, ids: torch.Tensor) -> Sample:
        """Group i has the nodes ``ids[starts[i] : starts[i + 1]]``, at least one; its first is node i of the union."""
        return self._made(_group, starts.numel() - 1, starts.data_ptr(), ids.data_ptr())

    def _made(self, make: Any, count: int, *given: Any) -> Sample:
        sizes, handle = (ctypes.c_int64 * 2)(), self._pool.borrow()
        try:
            make(handle.value, count, *given, sizes)
            nodes, edges = sizes
            n_id, owner = empty((nodes,), torch.int64), empty((nodes,), torch.int64)
            indptr = empty((nodes + 1,), torch.int64)
            indices, offsets = empty((edges,), torch.int32), empty((edges,), torch.int32)
            _write(handle.value, *(t.data_ptr() for t in (n_id, owner, indptr, indices, offsets)))
        finally:
            self._pool.back(handle)
        sample = Subgraph(count, DrawnEdges(self.graph, n_id, indptr, indices, offsets))
        sample.owner = owner
        return sample

    def _open(self) -> Handle:
        csc, dense = self.graph.csc, self.graph.num_nodes <= DENSE_MOST
        given = (ctypes.byref(csc.native), pointer(self._weight), self._ascending, dense)
        return Handle(lambda out: _new(*given, out), _free, (csc, self._weight))


class ShadowSampler(ShownBySettings):
    """ShaDow: a subgraph per seed of the nodes within ``len(fanouts)`` hops that bounded draws reach, with all edges
    between them.

    The seeds are the first nodes of the batch. A node that several seeds reach occurs once for each. ``sample.owner``
    has the seed of each node, for pooling over a seed's subgraph. A subgraph depends only on its seed and the keys.

    Args:
        graph: A square graph.
        fanouts: In-edges that a node of each hop draws, from the seed outwards; -1: all.
        replace: Whether to draw with replacement.
        weight: (num_edges,) weights >= 0 by edge id; None: uniform.

    Raises: ConfigError, GraphError, ShapeError.

    Example:
        >>> sample = ShadowSampler(Graph([1, 2, 0], [0, 1, 2]), [1]).sample([0, 1])
        >>> sample.n_id.tolist(), sample.owner.tolist(), sample.edge_index.tolist()
        ([0, 1, 1, 2], [0, 1, 0, 1], [[2, 3], [0, 1]])
    """

    def __init__(self, graph: Graph, fanouts: Any, replace: bool = False, weight: Any = None) -> None:
        who = type(self).__name__
        if not isinstance(graph, Graph) or not graph.is_square:
            raise GraphError(f"{who}: expected a graph over one set of nodes, got {graph!r}")
        self.graph, self.fanouts, self.replace = graph, check_fanouts(who, fanouts), bool(replace)
        if self.replace and -1 in self.fanouts:
            raise ConfigError(f"{who}: expected fanouts >= 1 when drawing with replacement, got {self.fanouts}")
        values = None if weight is None else by_position(who, graph.csc, weight)
        self._weights_identity = weights_identity(values)
        self._groups = Groups(graph, values)
        self._pieces = Pieces(graph)

    def identity(self) -> dict[str, Any]:
        """Settings that decide the draws, in addition to graph and random keys."""
        return {"scope": list(self.fanouts), "replace": self.replace, **self._weights_identity}

    def sample(self, seeds: Ids, *, seed: int = 0, epoch: int = 0, stage: int = 0) -> Sample:
        """The batch of ``seeds``: distinct node ids, a mask or a slice.

        Raises: IndexRangeError for an id that is no node, ConfigError for one that comes twice.
        """
        ids = as_seeds(self._pieces.distinct, seeds, self.graph.num_nodes)
        return self._groups.drawn(ids, self.fanouts, self.replace, (seed, epoch, stage))
