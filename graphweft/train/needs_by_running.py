"""The memory of a model that no kernels run as a whole, by running it on parts of the graph.

Comes in: a model and its data. Goes out: bytes of a step and of an evaluation on all nodes. Called where a run has a
budget and its model is somebody's own code, of which only running shows what it takes.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from graphweft._backward import backward_from
from graphweft._budget import lifted, own_bytes
from graphweft._memory import POOL
from graphweft.data.dataset import Dataset
from graphweft.graph.graph import Graph
from graphweft.sample.pieces import Pieces
from graphweft.storage.feature import SparseFeatures
from graphweft.storage.gather import gather_rows
from graphweft.train.edge_data import EdgeData

Features = Tensor | SparseFeatures

_STRIDES = (5, 2)  # every so many nodes are the parts
_TURNS = 2  # of a step and an evaluation, whose memory is not given back in between
_LOOK = 2e-4  # seconds between two looks at the memory
_SPARE = 1.1  # of what is measured: parts are not quite like the whole


class Taken(NamedTuple):
    """The most bytes that something takes: of the pool, which keeps them, and beside it."""

    pool: int
    beside: int

    @property
    def total(self) -> int:
        """Both."""
        return self.pool + self.beside


def evaluation_bytes(model: nn.Module, ds: Dataset, x: Features, edges: EdgeData) -> Taken:
    """The most that a pass over all nodes takes."""
    return _on_parts(model, ds, x, lambda *part: _evaluate(model, edges, *part))


def run_bytes(model: nn.Module, ds: Dataset, x: Features, edges: EdgeData) -> Taken:
    """The most that steps over all nodes and evaluations in turn take."""

    def run(graph: Graph, rows: Features, e_id: Tensor) -> None:
        for _ in range(_TURNS):
            out = model.train()(graph, rows, **edges.of_subgraph(e_id))
            backward_from(out, torch.zeros_like(out))
            model.zero_grad(set_to_none=True)
            del out
            _evaluate(model, edges, graph, rows, e_id)

    return _on_parts(model, ds, x, run)


def _evaluate(model: nn.Module, edges: EdgeData, graph: Graph, rows: Features, e_id: Tensor) -> None:
    model.eval()
    with torch.no_grad():
        model(graph, rows, **edges.of_subgraph(e_id))


@contextmanager
def kept_buffers(model: nn.Module) -> Iterator[None]:
    """The model's buffers hold the same numbers after the block as before."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    yield
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])


def _on_parts(
    model: nn.Module, ds: Dataset, x: Features, run: Callable[[Graph, Any, Tensor], object]
) -> Taken:
    """The most that ``run`` takes on the whole graph: on parts it is measured, and grows with nodes and edges."""
    if not ds.num_nodes:
        return Taken(0, 0)
    pieces, rows, training = Pieces(ds.graph), [], model.training
    with torch.random.fork_rng(devices=[]), kept_buffers(model), lifted():
        for step in _STRIDES:
            nodes = torch.arange(0, ds.num_nodes, step)
            part = pieces.induced(nodes, nodes.numel())
            call = functools.partial(run, part.subgraph, gather_rows(x, nodes), part.e_id)
            rows.append((nodes.numel() / ds.num_nodes, part.num_edges / max(ds.num_edges, 1), _measured_peak(call)))
    model.train(training)
    del call, part
    POOL.trim()
    (n, e, few), (m, f, more) = rows
    return Taken(*(_grown((n, e, a), (m, f, b)) for a, b in zip(few, more, strict=True)))


def _grown(smaller: tuple[float, float, int], larger: tuple[float, float, int]) -> int:
    """Bytes of the whole from those of two parts, with their shares of the nodes and of the edges."""
    (n, e, few), (m, f, more) = smaller, larger
    by_edge = max(0.0, (more - few * m / n) / (f - e * m / n)) if f * n > e * m else 0.0
    by_node = max(0.0, (more - by_edge * f) / m)
    return int(_SPARE * (by_node + by_edge))


def _measured_peak(run: Callable[[], object]) -> Taken:
    """The most that the second of two runs takes."""
    run()
    POOL.trim()
    held = POOL.stats().mapped
    before = most = own_bytes()
    ended = threading.Event()

    def watch() -> None:
        nonlocal most
        while not ended.wait(_LOOK):
            most = max(most, own_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        run()
    finally:
        most = max(most, own_bytes())
        ended.set()
        watcher.join()
    pool = POOL.stats().mapped - held
    return Taken(pool, max(0, most - before - pool))


__all__ = ["Taken", "evaluation_bytes", "kept_buffers", "run_bytes"]
