"""The memory of a model that no kernels run as a whole, by running it on parts of the graph.

Comes in: a model and its data. Goes out: bytes of a step and of an evaluation on all nodes. Called where a run has a
budget and its model is somebody's own code, of which only running shows what it takes.
"""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from graphweft import _budget
from graphweft._backward import backward_from
from graphweft._budget import Highest, lifted, own_bytes
from graphweft._memory import POOL
from graphweft.data.dataset import Dataset
from graphweft.graph.graph import Graph
from graphweft.runtime.rehearsal import Run, larger_regions, taken_bytes
from graphweft.runtime.stand_in import stands_for
from graphweft.sample.pieces import Pieces
from graphweft.storage.feature import SparseFeatures, alone
from graphweft.storage.gather import gather_rows
from graphweft.train.edge_data import EdgeData

Features = Tensor | SparseFeatures
T = TypeVar("T")
_Running = Callable[[Graph, Any, dict[str, Any]], object]

_STRIDES = (16, 8, 4, 2, 1)  # every so many nodes are the parts;
_FIRST = 64  # the first ones, where a 16th might take more than there is:
_LEAST_PART = 2048  # nodes
_REAL, _HELD = 4, 4  # bytes of a number, and rows of the widest kind that a run is thought to have of nodes and edges
_MOST = 1 << 30  # bytes of a run on the whole graph that is tried: beyond, parts tell enough and take less time
_TURNS = 2  # of a step and an evaluation, whose memory is not given back in between
_LOOK = 2e-4  # seconds between two looks at the memory
_WORSE = 1.5  # times what is expected of a larger part, for which there has to be room before it is tried
_SMALLER = 4  # times as few nodes, where a single part has room
_LEAP = 2.0  # times what is expected of the whole, where there is so much room that parts in between tell nothing
PARTLY = 1.1  # times what is measured: parts are not quite like the whole
_AGAIN = 1.02  # times what is measured on the whole: another run takes a little more or less


class Taken(NamedTuple):
    """The most bytes that something takes: of the pool, which keeps them, and beside it."""

    pool: int
    beside: int

    @property
    def total(self) -> int:
        """Both."""
        return self.pool + self.beside


class Part(NamedTuple):
    """What a run on a part of the graph takes.

    Attributes:
        share: Of the nodes or of the edges, the smaller one.
        taken: The most bytes, as they were measured.
        noted: Its regions of the pool, as :meth:`Pool.noting` tells them.
        forms: Bytes of the pool that it leaves behind, as forms of the graph.
        once: Bytes by which its first run exceeds that, as programs are recorded and tried.
    """

    share: float
    taken: Taken
    noted: tuple[tuple[int, int], ...] = ()
    forms: int = 0
    once: int = 0


def evaluation_run(model: nn.Module, ds: Dataset, x: Features, edges: EdgeData, room: int) -> tuple[Run, int]:
    """A pass over all nodes, region by region, and bytes of the forms of the graph that it leaves behind.

    ``room``: bytes that finding out may take.
    """
    found = _on_parts(model, ds, x, edges, room, functools.partial(_evaluate, model))
    if not found:
        return Run(), 0
    last, spare = found[-1], _spare(found)
    times = 1 / last.share
    noted = larger_regions(last.noted, spare * times)
    return Run(noted=noted, by_torch=grown(found, 1.0, spare).beside), round(times * last.forms)


def run_bytes(model: nn.Module, ds: Dataset, x: Features, edges: EdgeData, room: int) -> Taken:
    """The most that steps over all nodes and evaluations in turn take; ``room`` as for :func:`evaluation_run`."""

    def run(graph: Graph, rows: Features, given: dict[str, Any]) -> None:
        for _ in range(_TURNS):
            out = model.train()(graph, rows, **given)
            backward_from(out, torch.zeros_like(out))
            model.zero_grad(set_to_none=True)
            del out
            _evaluate(model, graph, rows, given)

    found = _on_parts(model, ds, x, edges, room, run)
    return grown(found, 1.0, _spare(found)) if found else Taken(0, 0)


def _evaluate(model: nn.Module, graph: Graph, rows: Features, given: dict[str, Any]) -> None:
    model.eval()
    with torch.no_grad():
        model(graph, rows, **given)


@contextmanager
def kept_buffers(model: nn.Module) -> Iterator[None]:
    """The model's buffers hold the same numbers after the block as before."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])


def _on_parts(model: nn.Module, ds: Dataset, x: Features, edges: EdgeData, room: int, run: _Running) -> list[Part]:
    """What ``run`` takes on parts, the largest last: the whole graph, where that does not exceed ``room``."""
    if not ds.num_nodes:
        return []
    found, training, tried = list[Part](), model.training, 1
    with torch.random.fork_rng(devices=[]), kept_buffers(model), lifted():
        for stride in _strides(model, ds, room):
            POOL.trim()
            left = min(room, _budget_room(room), _MOST if stride == 1 else room)  # recording has taken some of it
            if found and grown(found, 1 / stride, _WORSE).total + found[-1].once > left:
                break
            if found and stride > 1 and grown(found, 1.0, _LEAP).total <= min(left, _MOST):
                continue  # the whole fits for certain
            found.append(_on_part(ds, x, edges, stride, run))
            tried = stride
            gc.collect()  # what recording and differentiating leave behind refers to itself
        if len(found) == 1 and found[0].share < 1:  # what does not grow is told by a smaller one
            found.insert(0, _on_part(ds, x, edges, _SMALLER * tried, run))
    model.train(training)
    POOL.trim()
    return found


def _spare(found: Sequence[Part]) -> float:
    """Times what was measured, for the whole."""
    return _AGAIN if found[-1].share == 1.0 else PARTLY


def _budget_room(otherwise: int) -> int:
    """Bytes that the budget leaves now, where there is one."""
    left = _budget.room()
    return otherwise if left is None else left


def _strides(model: nn.Module, ds: Dataset, room: int) -> tuple[int, ...]:
    """The parts to try: nothing is known of the first one but how wide the model is."""
    widest = max((p.shape[-1] for p in model.parameters() if p.dim() > 1), default=1)
    guess = _REAL * _HELD * widest * (ds.num_nodes + ds.num_edges)
    is_large = ds.num_nodes >= _FIRST * _LEAST_PART  # smaller parts tell little of the whole
    return (_FIRST, *_STRIDES) if is_large and guess > _STRIDES[0] * room else _STRIDES


def _on_part(ds: Dataset, x: Features, edges: EdgeData, stride: int, run: _Running) -> Part:
    """Every ``stride``-th node."""
    if stride == 1:
        given = edges.keywords()
        return _measured(lambda rows: run(ds.graph, rows, given), lambda: alone(x))
    nodes = torch.arange(0, ds.num_nodes, stride)
    graph, e_id = _folded(ds.graph, nodes, stride)
    given = edges.of_subgraph(e_id)
    share = min(nodes.numel() / ds.num_nodes, max(graph.num_edges, 1) / max(ds.num_edges, 1))
    with stands_for(1 / share):
        return _measured(lambda rows: run(graph, rows, given), lambda: gather_rows(x, nodes), share)


def _folded(graph: Graph, nodes: Tensor, stride: int) -> tuple[Graph, Tensor]:
    """A graph of ``nodes``, every ``stride``-th one, and the edges of ``graph`` that are its edges.

    Each keeps all of its in-edges, whose sources are the nodes of the part at or before them: so nodes and edges
    shrink alike, and what a run takes grows with both. Of typed graphs it is the edges between the nodes.
    """
    if graph.is_typed:
        induced = Pieces(graph).induced(nodes, nodes.numel())
        return induced.subgraph, induced.e_id
    csc = graph.csc
    first = csc.indptr[nodes]
    counts = csc.indptr[nodes + 1] - first
    indptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    places = torch.repeat_interleave(first - indptr[:-1], counts)
    places += torch.arange(places.numel())
    part = Graph.from_csc(indptr, csc.indices[places].div_(stride, rounding_mode="floor"))
    return part, places if csc.edge_ids is None else csc.edge_ids[places].long()


def grown(found: Sequence[Part], share: float, spare: float = 1.0) -> Taken:
    """What a share of the graph takes, from what smaller ones took, the largest last, with some to spare.

    Regions of the pool grow with the graph. The whole pages that hold them, and gaps, are a good part of what a small
    graph takes and do not: the grown regions come and go once more in an imagined pool. What is beside the pool grows
    from the last two as a straight line, since some of it is the same for all; from one alone in proportion.

    Example:
        >>> found = [Part(0.1, Taken(0, 20)), Part(0.2, Taken(1 << 21, 30), ((1, 1 << 20),))]
        >>> grown(found, 1.0), grown(found[1:], 1.0)
        (Taken(pool=6291456, beside=110), Taken(pool=6291456, beside=150))
    """
    before, last = found[-2] if len(found) > 1 else Part(0.0, Taken(0, 0)), found[-1]
    times, pool, large = share / last.share, last.taken.pool, last.taken.beside
    if times > 1:
        pool = taken_bytes(Run(noted=larger_regions(last.noted, times))) + round(times * last.forms)
    in_proportion, more = large / last.share, last.share - before.share
    slope = min((large - before.taken.beside) / more, in_proportion) if more > 0 else in_proportion
    return Taken(round(spare * pool), round(spare * (large + max(slope, 0.0) * (share - last.share))))


def _measured(run: Callable[[Any], object], given: Callable[[], Features], share: float = 1.0) -> Part:
    """The most that a second run takes, with the forms of the graph that the first one leaves behind.

    The first one takes more, which is told apart. Each has features of its own, as models may keep others beside them,
    such as dense ones beside sparse ones. ``share``: of the whole graph, for the result.
    """
    POOL.trim()
    none = POOL.stats().mapped
    first, _ = grown_while(lambda: run(given()))
    POOL.trim()
    forms = POOL.stats().mapped - none
    rows = given()
    held, noted = POOL.stats().mapped, list[tuple[int, int]]()
    with POOL.noting(noted):
        grown, _ = grown_while(lambda: run(rows))
    pool = POOL.stats().mapped - held
    taken = Taken(pool + forms, max(0, grown - pool))
    return Part(share, taken, tuple(noted), forms, max(0, first - taken.total))


def grown_while(run: Callable[[], T]) -> tuple[int, T]:
    """The most bytes that this process takes while ``run`` runs, above what it has before; and what it returns."""
    highest = Highest()
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
    return max(most, highest.nbytes) - before, found  # the thread may come late on a busy machine


__all__ = ["PARTLY", "Part", "Taken", "evaluation_run", "grown", "grown_while", "kept_buffers", "run_bytes"]
