"""What this machine is good at, measured once and remembered: the sparse threshold and the cost model's start.

Comes in: nothing. Goes out: :func:`threshold` (share of zeros from which sparse features are faster) and
:func:`cost_model`. The results live in one JSON file under the cache directory, named by processor, instruction set
level and thread count; a damaged file is measured again. Source: Morphling, section IV-B (efficiency ratio);
calibrated as ``tau = 1 - gamma`` with gamma = (time of dense) / (time of sparse with all entries stored).
"""

from __future__ import annotations

import functools
import hashlib
import json
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from graphweft import _config
from graphweft._decisions import keep, known
from graphweft._memory import POOL, Pool, empty
from graphweft._native import LEVEL, declare
from graphweft.cost import (
    CostModel,
    Work,
    attention_work,
    contraction_work,
    gather_work,
    pages_work,
    product_work,
    rows_work,
)
from graphweft.graph.adjacency import Adjacency
from graphweft.runtime import dense, sparse
from graphweft.runtime.attention import Attention, Score, attend, attend_grad
from graphweft.runtime.epilogue import Epilogue
from graphweft.runtime.features import DEFAULT_THRESHOLD

MEMORY = 44 << 20  # bytes that :func:`calibrate` takes at most, for a moment
_Samples = list[tuple[Work, float]]
_leaky_gradient = declare("gw_leaky_relu_grad_f32")
# Of gathers: nodes, edges, columns; few edges a row and many, and at last each row more than a hundred times.
_SQUARE = (
    (4_000, 200_000, 32), (12_000, 60_000, 32), (4_000, 200_000, 128), (12_000, 60_000, 128), (30_000, 300_000, 32),
    (30_000, 300_000, 64), (60_000, 300_000, 32), (70_000, 350_000, 64), (4_000, 200_000, 16), (20_000, 100_000, 16),
    (60_000, 300_000, 16), (200_000, 800_000, 16), (270_000, 540_000, 16), (4_000, 500_000, 32), (6_000, 700_000, 64),
    (4_000, 500_000, 16), (6_000, 700_000, 128), (40_000, 4_100_000, 16),
)  # fmt: skip
# Rows that are made, rows that are read, edges, columns: what is streamed takes most of it.
_TALL = ((60_000, 4_000, 120_000, 32), (120_000, 8_000, 240_000, 16))
# Of products: rows, columns, columns of the weight.
_PRODUCTS = (
    (6_000, 500, 32), (20_000, 128, 32), (30_000, 32, 64), (60_000, 32, 16), (10_000, 64, 128), (20_000, 128, 16),
    (6_000, 500, 16),
)  # fmt: skip
# Of attention: destinations, sources, edges, heads, columns of a head.
_ATTENDED = (
    (3_000, 3_000, 150_000, 8, 4),
    (12_000, 12_000, 60_000, 8, 4),
    (3_000, 3_000, 150_000, 1, 64),
    (10_000, 10_000, 160_000, 8, 16),
    (3_000, 3_000, 60_000, 8, 16),
    (14_000, 14_000, 200_000, 2, 47),
    (20_000, 20_000, 200_000, 8, 2),
    (13_000, 26_000, 130_000, 1, 7),
    (10_000, 10_000, 50_000, 8, 16),
    (18_000, 18_000, 360_000, 8, 8),
    (30_000, 30_000, 150_000, 1, 32),
    (40_000, 40_000, 400_000, 8, 2),
    (10_000, 40_000, 50_000, 8, 8),
)
# Of sparse features: rows, columns, entries of a row, columns of the weight.
_STORED = ((8_000, 500, 50, 16), (8_000, 500, 50, 256), (20_000, 500, 30, 64), (60_000, 500, 10, 16))


def machine_key() -> str:
    """Names this machine for the cache: processor, instruction set level, threads, version of the measurement."""
    facts = [platform.machine(), processor(), LEVEL, str(torch.get_num_threads()), "6"]
    return hashlib.sha256("|".join(facts).encode()).hexdigest()[:16]


def threshold() -> float:
    """Share of zero entries from which the sparse path is taken; 0.80 when this machine was not calibrated."""
    found = _stored()
    return DEFAULT_THRESHOLD if found is None else found.threshold


def cost_model() -> CostModel:
    """The calibrated cost model, or the default one."""
    found = _stored()
    return CostModel() if found is None else found.model


def is_calibrated() -> bool:
    """Whether a measurement of this machine is at hand."""
    return _stored() is not None


def calibrate() -> Calibration:
    """Measures this machine (about a second) and remembers the result where the cache is writable.

    It takes no more than :data:`MEMORY` bytes, all of which are given back.
    """
    samples: _Samples = []
    for found in _calls():
        samples += found
        POOL.trim()
    samples.append(_pages())
    POOL.trim()
    model = CostModel().fit(samples, weight=0.05).spread(work.kind for work, _ in samples)
    measured = Calibration(_crossover(), model, model.error(samples))
    POOL.trim()
    path = cache_file()
    keep(path.name, json.dumps({"threshold": measured.threshold, "error": measured.error, "model": model.to_json()}))
    _read.cache_clear()
    _measured[path] = measured
    return measured


def cache_file() -> Path:
    """Where this machine's calibration is kept."""
    return _config.current().cache_path / f"machine-{machine_key()}.json"


@dataclass(frozen=True)
class Calibration:
    """What was measured: the sparse threshold, the cost model, and its mean relative error on the calibration calls."""

    threshold: float
    model: CostModel
    error: float


_measured: dict[Path, Calibration] = {}


def _stored() -> Calibration | None:
    if not _config.current().calibrate:
        return None
    path = cache_file()
    return _measured.get(path) or _read(path)


@functools.cache
def _read(path: Path) -> Calibration | None:
    """A calibration file; None when there is none or it is damaged."""
    try:
        found = json.loads(known(path.name) or "")
        tau, error = float(found["threshold"]), float(found["error"])
        return Calibration(tau, CostModel.from_json(found["model"]), error) if 0.0 < tau < 1.0 else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


@functools.cache
def processor() -> str:
    """The processor's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def _best(call: Callable[[], object], repeats: int = 3) -> float:
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def _random_rows(n: int, width: int) -> torch.Tensor:
    return empty((n, width)).normal_(generator=torch.Generator().manual_seed(0))


def _random_adjacency(rows: int, columns: int, edges: int) -> Adjacency:
    """``edges`` uniform random entries, dealt to the rows at random cuts, so that their lengths cannot be foreseen."""
    generator = torch.Generator().manual_seed(1)
    indices = torch.randint(columns, (edges,), generator=generator, dtype=torch.int32)
    cuts = torch.randint(edges + 1, (rows - 1,), generator=generator)
    cuts.numpy().sort()  # in place
    return Adjacency(torch.cat((torch.tensor([0]), cuts, torch.tensor([edges]))), indices, None, columns)


def _calls() -> Iterator[_Samples]:
    """Calls whose work spans the model: gathers from all tiers but memory, products, contractions, sparse features.

    Each yields what it measured, and lets go of its operands before the next one makes its own.
    """
    for nodes, edges, width in _SQUARE:
        yield _gather(nodes, nodes, edges, width)
    for rows, columns, edges, width in _TALL:
        yield _gather(rows, columns, edges, width)
    for n, k, m in _PRODUCTS:
        yield _products(n, k, m)
    for n, features, each, width in _STORED:
        yield _sparse(n, features, each, width)
    for rows, columns, edges, heads, width in _ATTENDED:
        yield _attention(rows, columns, edges, heads, width)
    for n in (20_000, 60_000):
        yield _rows(n)


def _gather(rows: int, columns: int, edges: int, width: int) -> _Samples:
    adjacency, x = _random_adjacency(rows, columns, edges), _random_rows(columns, width)
    work = gather_work(rows, adjacency.num_edges, width, columns)
    return [(work, _best(functools.partial(sparse.spmm, adjacency, x)))]


def _products(n: int, k: int, m: int) -> _Samples:
    x, w, g = _random_rows(n, k), _random_rows(k, m), _random_rows(n, m)
    calls = (
        (product_work(n, k, m), functools.partial(dense.matmul, x, w)),
        (contraction_work(n, k, m), functools.partial(dense.matmul_tn, x, g)),
        (product_work(n, k, m).rounded(), functools.partial(dense.matmul, x, w, rounds=True)),
        (contraction_work(n, k, m).rounded(), functools.partial(dense.matmul_tn, x, g, rounds=True)),
    )
    return [(work, _best(call)) for work, call in calls]


def _sparse(n: int, features: int, each: int, width: int) -> _Samples:
    """Sparse features with so many entries in every row, times a weight, and the gradient of that."""
    rows = _random_adjacency(n, features, n * each)
    columns, values = rows.transpose(edge_ids=False), torch.ones(rows.num_edges)
    w, g = _random_rows(features, width), _random_rows(n, width)
    calls = (
        (gather_work(n, rows.num_edges, width, features, is_sparse=True), rows, w),
        (gather_work(features, rows.num_edges, width, n, is_sparse=True), columns, g),
    )
    return [(work, _best(functools.partial(sparse.spmm, along, x, weight=values))) for work, along, x in calls]


def _attention(nodes: int, sources: int, edges: int, heads: int, channels: int) -> _Samples:
    """Additive attention and its gradients."""
    rows, kind = _random_adjacency(nodes, sources, edges), Attention(Score.ADD, heads)
    value, given = _random_rows(sources, heads * channels), _random_rows(nodes, heads * channels)
    ends = _random_rows(sources, heads), _random_rows(nodes, heads)
    out, stats = attend(rows, kind, value, ends, stats=True)
    assert stats is not None  # as they were asked for
    forward = functools.partial(attend, rows, kind, value, ends, stats=True)
    backward = functools.partial(attend_grad, rows, rows.transpose(), kind, value, ends, (out, stats), given)
    sizes = (nodes, rows.num_edges, heads, channels, sources)
    return [(attention_work(*sizes), _best(forward)), (attention_work(*sizes, backward=True), _best(backward))]


def _rows(n: int) -> _Samples:
    """A pass of the library's own over rows, and one of a function that was compiled: the gradient of a leaky unit."""
    x, y, scale = _random_rows(n, 32), _random_rows(n, 32), torch.ones(n)
    out = empty((n, 32))
    own = functools.partial(dense.rows_apply, x, epilogue=Epilogue(row_scale=scale))
    compiled = functools.partial(_leaky_gradient, x.numel(), 0.2, x.data_ptr(), y.data_ptr(), out.data_ptr())
    return [(rows_work(n * 32), _best(own)), (rows_work(n * 32, passes=3, plain=True), _best(compiled))]


def _pages(nbytes: int = 16 << 20) -> tuple[Work, float]:
    """What touching memory costs that was mapped anew, above that which was there."""
    pool, old = Pool(), empty((nbytes,), torch.uint8)

    def new() -> None:
        pool.empty((nbytes,), torch.uint8).zero_()
        pool.trim()

    def again() -> None:
        old.zero_()
        pool.trim()  # which looks at the heap as well

    return pages_work(nbytes), max(_best(new) - _best(again), 1e-6)


def _crossover(n: int = 8_000, width: int = 256, hidden: int = 32) -> float:
    """Share of zeros at which X W and X^T G take as long on sparse as on dense features.

    The time of the sparse products is linear in the stored entries, so two densities give the line, and the line
    meets the dense time at the crossover.
    """
    x, w, g = _random_rows(n, width), _random_rows(width, hidden), _random_rows(n, hidden)
    dense_seconds = _best(lambda: (dense.matmul(x, w), dense.matmul_tn(x, g)))
    points = []
    for density in (0.04, 0.16):
        rows = _random_adjacency(n, width, int(n * width * density))
        columns, values = rows.transpose(), torch.ones(rows.num_edges)
        seconds = _best(functools.partial(_both, rows, columns, values, w, g))
        points.append((rows.num_edges / (n * width), seconds))
    (d0, t0), (d1, t1) = points
    slope = max((t1 - t0) / (d1 - d0), 1e-12)
    density = d0 + (dense_seconds - t0) / slope
    return float(min(max(1.0 - density, 0.5), 0.99))


def _both(
    rows: Adjacency, columns: Adjacency, values: torch.Tensor, w: torch.Tensor, g: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return sparse.spmm(rows, w, weight=values), sparse.spmm(columns, g, weight=values)
