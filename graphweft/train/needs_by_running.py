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
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from graphweft import _budget
from graphweft._backward import backward_from
from graphweft._budget import Highest, lifted, own_bytes
from graphweft._memory import POOL
from graphweft.data.dataset import Dataset
from graphweft.graph.forms import Forms
from graphweft.graph.graph import Graph
from graphweft.runtime.rehearsal import Run, larger_regions, taken_bytes
from graphweft.runtime.stand_in import stands_for
from graphweft.sample.pieces import Pieces
from graphweft.storage.feature import Features, alone
from graphweft.storage.gather import gather_rows
from graphweft.train.edge_data import EdgeData

T = TypeVar("T")
_Running = Callable[[Graph, Any, dict[str, Any]], object]

_STRIDES = (16, 8, 4, 2, 1)  # every so many nodes are the parts;
_FIRST = 64  # the first ones, where a 16th might take more than there is:
_LEAST_PART = 2048  # nodes
_REAL, _HELD = 4, 4  # bytes of a number, and rows of the widest kind that a run is thought to have of nodes and edges
_RECORDING, _AT_FIRST = 8 << 20, 6  # bytes of recording, and such rows of nodes that the first part is thought to have
_MOST = 1 << 30  # bytes of a run on the whole graph that is tried: beyond, parts tell enough and take less time
_TURNS = 2  # of a step and an evaluation, whose memory is not given back in between
_LOOK = 2e-4  # seconds between two looks at the memory
_WORSE = 1.15  # times what a part tells of a larger one, for which there has to be room before it is tried
PARTLY = 1.1  # times what is measured: parts are not quite like the whole
_AGAIN = 1.02  # times what is measured: another run takes a little more or less


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
        own: Bytes that its own graph and features take, which are there already of the whole.
    """

    share: float
    taken: Taken
    noted: tuple[tuple[int, int], ...] = ()
    forms: int = 0
    once: int = 0
    own: int = 0


def evaluation_run(model: nn.Module, ds: Dataset, x: Features, edges: EdgeData, room: int) -> tuple[Run, int]:
    """A pass over all nodes, region by region, and bytes of the forms of the graph that it leaves behind.

    ``room``: bytes that finding out may take.
    """
    part = _on_parts(model, ds, x, edges, room, functools.partial(_evaluate, model))
    if part is None:
        return Run(), 0
    times = _AGAIN / part.share
    run = Run(noted=larger_regions(part.noted, times), by_torch=grown(part, 1.0, _AGAIN).beside)
    return run, round(times * part.forms)


def run_bytes(model: nn.Module, ds: Dataset, x: Features, edges: EdgeData, room: int) -> Taken:
    """The most that steps over all nodes and evaluations in turn take; ``room`` as for :func:`evaluation_run`."""

    def run(graph: Graph, rows: Features, given: dict[str, Any]) -> None:
        for _ in range(_TURNS):
            out = model.train()(graph, rows, **given)
            backward_from(out, torch.zeros_like(out))
            model.zero_grad(set_to_none=True)
            del out
            _evaluate(model, graph, rows, given)

    part = _on_parts(model, ds, x, edges, room, run)
    return Taken(0, 0) if part is None else grown(part, 1.0, _AGAIN)


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


def _on_parts(model: nn.Module, ds: Dataset, x: Features, edges: EdgeData, room: int, run: _Running) -> Part | None:
    """What ``run`` takes on the largest part that has room for certain, which may be the whole graph."""
    found: Part | None = None
    training, strides = model.training, _strides(model, ds, room) if ds.num_nodes else ()

    def has_room(part: Part, stride: int) -> bool:
        left = min(room, _budget_room(room))  # recording has taken some of it
        more = part.once + (0 if stride == 1 else round(part.own / (stride * part.share)))
        return grown(part, 1 / stride, _WORSE).total + more <= (min(left, _MOST) if stride == 1 else left)

    with torch.random.fork_rng(devices=[]), kept_buffers(model), lifted():
        for place, stride in enumerate(strides):
            POOL.trim()
            if found is not None:
                if not has_room(found, stride):
                    break
                if any(has_room(found, larger) for larger in strides[place + 1 :]):
                    continue  # which tells more
            found = _on_part(ds, x, edges, stride, run)
            gc.collect()  # what recording and differentiating leave behind refers to itself
    model.train(training)
    POOL.trim()
    return found


def _budget_room(otherwise: int) -> int:
    """Bytes that the budget leaves now, where there is one."""
    left = _budget.room()
    return otherwise if left is None else left


def recording_bytes(model: nn.Module, ds: Dataset) -> int:
    """What there has to be to record a model and to run it on the first part."""
    return _RECORDING + _AT_FIRST * _REAL * _widest(model) * ds.num_nodes // _STRIDES[0]


def _widest(model: nn.Module) -> int:
    return max((p.shape[-1] for p in model.parameters() if p.dim() > 1), default=1)


def _strides(model: nn.Module, ds: Dataset, room: int) -> tuple[int, ...]:
    """The parts to try: nothing is known of the first one but how wide the model is."""
    guess = _REAL * _HELD * _widest(model) * (ds.num_nodes + ds.num_edges)
    is_large = ds.num_nodes >= _FIRST * _LEAST_PART  # smaller parts tell little of the whole
    return (_FIRST, *_STRIDES) if is_large and guess > _STRIDES[0] * room else _STRIDES


def _on_part(ds: Dataset, x: Features, edges: EdgeData, stride: int, run: _Running) -> Part:
    """Every ``stride``-th node."""
    if stride == 1:
        given = edges.keywords()
        return _measured(lambda rows: run(ds.graph, rows, given), lambda: alone(x))
    nodes = torch.arange(0, ds.num_nodes, stride)
    graph, given = _part_of(ds.graph, edges, nodes, stride)
    share = min(nodes.numel() / ds.num_nodes, max(graph.num_edges, 1) / max(ds.num_edges, 1))
    own = graph.csc.indices.nbytes + graph.csc.indptr.nbytes
    with stands_for(1 / share):
        part = _measured(lambda rows: run(graph, rows, given), lambda: gather_rows(x, nodes), share)
    graph._forms.empty()  # values that are kept by graph may refer to it, as its reverse does
    return part._replace(own=part.own + own)


def _part_of(graph: Graph, edges: EdgeData, nodes: Tensor, stride: int) -> tuple[Graph, dict[str, Any]]:
    """The graph of a part, and the keywords with its edges' data."""
    part, e_id = _folded(graph, nodes, stride)
    return part, edges.of_subgraph(e_id)


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
    if graph.is_symmetric:  # taken for one that is, too, so that no other forms are made; what it gives is not used
        forms = Forms(part.csc, None)
        forms.symmetric = True
        part = Graph._make(forms, part.num_src, part.num_dst, True)
    return part, places if csc.edge_ids is None else csc.edge_ids[places].long()


def grown(part: Part, share: float, spare: float = 1.0) -> Taken:
    """What a share of the graph takes at most, from what a smaller part took, with some to spare.

    Regions of the pool grow with the graph. The whole pages that hold them, and gaps, are a good part of what a small
    graph takes and do not: the grown regions come and go once more in an imagined pool. What is beside the pool grows
    in proportion: a peak is the most of several sums, each of something that grows and something that does not, such
    as slabs of a product, so in proportion it is never less, and the nearer the larger the part.

    Example:
        >>> part = Part(0.2, Taken(1 << 21, 30), ((1, 1 << 20),))
        >>> grown(part, 1.0), grown(part, 0.2)
        (Taken(pool=6291456, beside=150), Taken(pool=2097152, beside=30))
    """
    times, pool = share / part.share, part.taken.pool
    if times > 1:
        pool = taken_bytes(Run(noted=larger_regions(part.noted, times))) + round(times * part.forms)
    return Taken(round(spare * pool), round(spare * times * part.taken.beside))


def _measured(run: Callable[[Any], object], given: Callable[[], Features], share: float = 1.0) -> Part:
    """The most that a second run takes, with the forms of the graph that the first one leaves behind.

    The first one takes more, which is told apart. Each has features of its own, as models may keep others beside them,
    such as dense ones beside sparse ones. ``share``: of the whole graph, for the result.
    """
    POOL.trim()
    none, lent = POOL.stats().mapped, POOL.stats().lent
    rows = given()
    size = POOL.stats().lent - lent
    first, _ = grown_while(lambda: run(rows))
    del rows
    POOL.trim()
    forms = POOL.stats().mapped - none
    rows = given()
    held, noted = POOL.stats().mapped, list[tuple[int, int]]()
    with POOL.noting(noted):
        grown, _ = grown_while(lambda: run(rows))
    pool = POOL.stats().mapped - held
    taken = Taken(pool + forms, max(0, grown - pool))
    return Part(share, taken, tuple(noted), forms, max(0, first - taken.total), size)


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
    Highest.seen(most)
    return max(most, highest.nbytes) - before, found  # the thread may come late on a busy machine


__all__ = [
    "PARTLY",
    "Part",
    "Taken",
    "evaluation_run",
    "grown",
    "grown_while",
    "kept_buffers",
    "recording_bytes",
    "run_bytes",
]
