"""The memory of a model that no kernels run as a whole, by running it on parts of the graph.

Comes in: a model and its data. Goes out: bytes of a step and of an evaluation on all nodes. Called where a run has a
budget and its model is somebody's own code, of which only running shows what it takes.
"""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

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
T = TypeVar("T")
_Running = Callable[[Graph, Any, dict[str, Any]], object]

_STRIDES = (16, 5, 2, 1)  # every so many nodes are the parts
_MOST = 1 << 30  # bytes of a run on the whole graph that is tried: beyond, parts tell enough and take less time
_TURNS = 2  # of a step and an evaluation, whose memory is not given back in between
_LOOK = 2e-4  # seconds between two looks at the memory
_SPARE = 1.1  # times what is measured: parts are not quite like the whole
_AGAIN = 1.02  # times what is measured on the whole: another run takes a little more or less


class Taken(NamedTuple):
    """The most bytes that something takes: of the pool, which keeps them, and beside it."""

    pool: int
    beside: int

    @property
    def total(self) -> int:
        """Both."""
        return self.pool + self.beside


def evaluation_bytes(model: nn.Module, ds: Dataset, x: Features, edges: EdgeData, room: int) -> Taken:
    """The most that a pass over all nodes takes; ``room``: bytes that finding out may take."""
    return _on_parts(model, ds, x, edges, room, functools.partial(_evaluate, model))


def run_bytes(model: nn.Module, ds: Dataset, x: Features, edges: EdgeData, room: int) -> Taken:
    """As :func:`evaluation_bytes`, of steps over all nodes and evaluations in turn."""

    def run(graph: Graph, rows: Features, given: dict[str, Any]) -> None:
        for _ in range(_TURNS):
            out = model.train()(graph, rows, **given)
            backward_from(out, torch.zeros_like(out))
            model.zero_grad(set_to_none=True)
            del out
            _evaluate(model, graph, rows, given)

    return _on_parts(model, ds, x, edges, room, run)


def _evaluate(model: nn.Module, graph: Graph, rows: Features, given: dict[str, Any]) -> None:
    model.eval()
    with torch.no_grad():
        model(graph, rows, **given)


@contextmanager
def kept_buffers(model: nn.Module) -> Iterator[None]:
    """The model's buffers hold the same numbers after the block as before."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    yield
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])


def _on_parts(model: nn.Module, ds: Dataset, x: Features, edges: EdgeData, room: int, run: _Running) -> Taken:
    """The most that ``run`` takes on the whole graph: measured there, or on parts where that may exceed ``room``."""
    if not ds.num_nodes:
        return Taken(0, 0)
    share, taken, training = 0.0, Taken(0, 0), model.training
    with torch.random.fork_rng(devices=[]), kept_buffers(model), lifted():
        for stride in _STRIDES:
            if share and _grown(taken, share * stride).total > (min(room, _MOST) if stride == 1 else room):
                break
            share, taken = _on_part(ds, x, edges, stride, run)
            gc.collect()  # what recording and differentiating leave behind refers to itself
    model.train(training)
    POOL.trim()
    return _grown(taken, share, _AGAIN if share == 1.0 else _SPARE)


def _on_part(ds: Dataset, x: Features, edges: EdgeData, stride: int, run: _Running) -> tuple[float, Taken]:
    """Every ``stride``-th node: its share of the nodes or of the edges, the smaller one, and what it takes."""
    if stride == 1:
        given = edges.keywords()

        def alias() -> Features:
            return x.alias() if isinstance(x, SparseFeatures) else x

        return 1.0, _measured(lambda rows: run(ds.graph, rows, given), alias)
    nodes = torch.arange(0, ds.num_nodes, stride)
    graph, e_id = _folded(ds.graph, nodes, stride)
    given = edges.of_subgraph(e_id)
    taken = _measured(lambda rows: run(graph, rows, given), lambda: gather_rows(x, nodes))
    share = nodes.numel() / ds.num_nodes
    return min(share, max(graph.num_edges, 1) / max(ds.num_edges, 1)), taken


def _folded(graph: Graph, nodes: Tensor, stride: int) -> tuple[Graph, Tensor]:
    """A graph of ``nodes``, every ``stride``-th one, and the edges of ``graph`` that are its edges.

    Each keeps all of its in-edges, whose sources are the nodes of the part at or before them: so nodes and edges
    shrink alike, and what a run takes grows with both. Of typed graphs it is the edges between the nodes.
    """
    if graph.is_typed:
        part = Pieces(graph).induced(nodes, nodes.numel())
        return part.subgraph, part.e_id
    csc = graph.csc
    first = csc.indptr[nodes]
    counts = csc.indptr[nodes + 1] - first
    indptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    places = torch.arange(int(indptr[-1])) + torch.repeat_interleave(first - indptr[:-1], counts)
    e_id = places if csc.edge_ids is None else csc.edge_ids[places].long()
    return Graph.from_csc(indptr, csc.indices[places] // stride), e_id


def _grown(taken: Taken, share: float, spare: float = 1.0) -> Taken:
    """What the whole takes, from a share of it, with some to spare."""
    return Taken(*(int(spare * count / share) for count in taken))


def _measured(run: Callable[[Any], object], given: Callable[[], Features]) -> Taken:
    """The most that a second run takes, with the forms of the graph that the first one leaves behind.

    Each has features of its own, as models may keep others beside them, such as dense ones beside sparse ones.
    """
    POOL.trim()
    none = POOL.stats().mapped
    run(given())
    POOL.trim()
    forms = POOL.stats().mapped - none
    rows = given()
    held = POOL.stats().mapped
    grown, _ = grown_while(lambda: run(rows))
    pool = POOL.stats().mapped - held
    return Taken(pool + forms, max(0, grown - pool))


def grown_while(run: Callable[[], T]) -> tuple[int, T]:
    """The most bytes that this process takes while ``run`` runs, above what it has before; and what it returns."""
    resident = _begin_peak()
    before = most = own_bytes()
    ended = threading.Event()

    def watch() -> None:
        nonlocal most
        while not ended.wait(_LOOK):
            most = max(most, own_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        found = run()
    finally:
        most = max(most, own_bytes())
        ended.set()
        watcher.join()
    # the thread may come late on a busy machine
    return max(most - before, _peak() - resident if resident else 0), found


def _begin_peak() -> int:
    """Resident bytes now, from which on the system notes the most; 0 where it does not."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        return _peak()
    except OSError:
        return 0


def _peak() -> int:
    """The most resident bytes that the system has noted."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    return 0


__all__ = ["Taken", "evaluation_bytes", "grown_while", "kept_buffers", "run_bytes"]
