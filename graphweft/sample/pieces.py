"""Pieces of a graph by node ids: ids without repeats, the edges between given nodes, in-neighbours of rows.

Comes in: node ids. Goes out: :class:`DrawnEdges` and ids. Called by the samplers beside this module, from several
threads at once if they like: each call borrows working memory of its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from graphweft._errors import IndexRangeError
from graphweft._memory import empty
from graphweft._native import declare, pointer
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.block import DrawnEdges
from graphweft.graph.forms import Forms
from graphweft.graph.graph import Graph
from graphweft.sample.sampler import DENSE_MOST, Sample

_I64, _P = ctypes.c_int64, ctypes.c_void_p


_new = declare("gw_subset_new")
_free = declare("gw_subset_free", recorded=False)
_distinct = declare("gw_subset_distinct")
_slice = declare("gw_subset_slice")
_write_slice = declare("gw_subset_write_slice")
_candidates = declare("gw_subset_candidates")
_write_candidates = declare("gw_subset_write_candidates")


class Handle:
    """Native working memory of one thread, with what must outlive it."""

    def __init__(self, make: Callable[[Any], None], free: Callable[..., None], kept: Any) -> None:
        self.value, self._free, self._kept = _P(), free, kept
        make(ctypes.byref(self.value))

    def __del__(self) -> None:
        self._free(self.value)


class Pool:
    """Handles that are not in use; as many as there ever were calls at once."""

    def __init__(self, make: Callable[[], Handle]) -> None:
        self._make, self._idle = make, list[Handle]()

    def borrow(self) -> Handle:
        """A handle for one call; :meth:`back` takes it again."""
        try:
            return self._idle.pop()
        except IndexError:
            return self._make()

    def back(self, handle: Handle) -> None:
        """Takes a handle back."""
        self._idle.append(handle)


class Pieces:
    """Cuts pieces out of ``graph``.

    Example:
        >>> pieces = Pieces(Graph([1, 2, 0], [0, 1, 2]))
        >>> n_id, places = pieces.distinct(torch.tensor([2, 1, 2]))
        >>> n_id.tolist(), places.tolist(), pieces.between(n_id, n_id).indices.tolist()
        ([2, 1], [0, 1, 0], [0])
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._pool = Pool(self._open)

    def __getstate__(self) -> dict[str, Any]:
        return {"graph": self.graph}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["graph"])  # type: ignore[misc]

    def distinct(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``ids`` without repeats in order of first occurrence, and the place of each there. int64, contiguous."""
        out, places, made = empty((ids.numel(),), torch.int64), empty((ids.numel(),), torch.int64), _I64()
        handle = self._pool.borrow()
        try:
            _distinct(handle.value, ids.numel(), ids.data_ptr(), out.data_ptr(), places.data_ptr(), ctypes.byref(made))
        except IndexRangeError as failure:
            raise IndexRangeError(f"sample: {failure}") from None
        finally:
            self._pool.back(handle)
        return out[: made.value].clone(), places

    def between(
        self,
        rows: torch.Tensor,
        columns: torch.Tensor,
        numbers: torch.Tensor | None = None,
        n_id: torch.Tensor | None = None,
    ) -> DrawnEdges:
        """The edges into ``rows`` from ``columns``, which are distinct and numbered as given, or in order.

        ``n_id``: the nodes by number, rows first; None: ``columns``.
        """
        made, handle = _I64(), self._pool.borrow()
        try:
            cols = (columns.numel(), columns.data_ptr(), pointer(numbers))
            _slice(handle.value, rows.numel(), rows.data_ptr(), *cols, ctypes.byref(made))
            indptr = empty((rows.numel() + 1,), torch.int64)
            indices, offsets = empty((made.value,), torch.int32), empty((made.value,), torch.int32)
            _write_slice(handle.value, indptr.data_ptr(), indices.data_ptr(), offsets.data_ptr())
        finally:
            self._pool.back(handle)
        return DrawnEdges(self.graph, columns if n_id is None else n_id, indptr, indices, offsets)

    def sources(self, rows: torch.Tensor, factors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """In-neighbours of ``rows``, and for each the sum of the factors (float64) of its edges' rows."""
        made, handle = _I64(), self._pool.borrow()
        try:
            _candidates(handle.value, rows.numel(), rows.data_ptr(), factors.data_ptr(), None, ctypes.byref(made))
            ids, sums = empty((made.value,), torch.int64), empty((made.value,), torch.float64)
            _write_candidates(handle.value, ids.data_ptr(), sums.data_ptr())
        finally:
            self._pool.back(handle)
        return ids, sums

    def induced(self, n_id: torch.Tensor, batch_size: int) -> Subgraph:
        """The subgraph between the nodes ``n_id``, of which the first ``batch_size`` are seeds."""
        return Subgraph(batch_size, self.between(n_id, n_id), self.graph)

    def _open(self) -> Handle:
        csc, dense = self.graph.csc, self.graph.num_nodes <= DENSE_MOST
        return Handle(lambda out: _new(ctypes.byref(csc.native), dense, out), _free, csc)


class Subgraph(Sample):
    """A batch that is one graph for all layers of a model; ``whole``: of which it has all edges between its nodes."""

    def __init__(self, batch_size: int, drawn: DrawnEdges, whole: Graph | None = None) -> None:
        super().__init__(drawn.n_id, batch_size, (), (drawn,))
        self._edges, self._whole = drawn, whole

    @property
    def subgraph(self) -> Graph:
        """The batch as one graph, edges in the order of ``edge_index``."""
        if self._subgraph is None:
            drawn = self._edges
            structure = Adjacency(drawn.indptr, drawn.indices, None, self.num_nodes)
            forms = Forms(structure, None)
            if self._whole is not None:  # what a graph has not, no part of it has; a reverse is in the same part
                forms.symmetric = True if self._whole.is_symmetric else None
                forms.loops = None if self._whole.has_self_loops else False
            self._subgraph = Graph._make(forms, self.num_nodes, self.num_nodes, True).as_drawn()
        return self._subgraph

    @property
    def num_sampled_nodes(self) -> list[int]:
        """The seeds, and all other nodes."""
        return [self.batch_size, self.num_nodes - self.batch_size]


def seeds_first(n_id: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, int]:
    """``n_id`` with the nodes where ``wanted`` holds in front, and their number; both parts keep their order."""
    chosen = wanted[n_id]
    return torch.cat([n_id[chosen], n_id[~chosen]]), int(chosen.sum())
