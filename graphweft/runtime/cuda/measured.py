"""Where torch's product of a CSR matrix was measured to be faster than the kernel of sums over edges.

Comes in: a device. Goes out: the time of the one in times of the other, by width. It is measured when somebody asks for
it, and kept in the cache folder, in one file for each kind of device; without a file the kernel is taken. Called by
``products.py`` and by ``graphweft doctor --device --calibrate``.
"""

from __future__ import annotations

import functools
import json
import re
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from graphweft import _config
from graphweft._decisions import keep, known
from graphweft._errors import FallbackWarning
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.derived import derived
from graphweft.graph.graph import Graph
from graphweft.graph.placed import on_device
from graphweft.runtime.cuda import edges

WIDTHS = (16, 32, 64, 128, 256)
SECONDS = 10.0  # that a measurement takes at most, the width under way aside
_VERSION = 1
_NODES, _DEGREE = 100_000, 16
_CLEARLY = 0.95  # of the kernel's time: less is taken for faster
_INT32 = 1 << 31

Clock = Callable[[Callable[[], object], torch.device], float]


@functools.cache
def name_of(device: torch.device) -> str:
    """The file of a device, by the name of its kind."""
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return f"device-{re.sub('[^a-z0-9]+', '-', kind.lower()).strip('-')}.json"


def ratios(device: torch.device) -> Mapping[int, float]:
    """Seconds of torch's product in times of the kernel's, by width; empty where nobody measured.

    Warns: FallbackWarning, once, for a file that cannot be read, which counts as none.
    """
    return _read(_config.current().cache_path / name_of(device))


@functools.cache
def _read(path: Path) -> Mapping[int, float]:
    text = known(path.name)
    if text is None:
        return {}
    try:
        found = json.loads(text)
        made = {int(width): float(ratio) for width, ratio in found["csr"].items()}
        if found["version"] == _VERSION and all(ratio > 0 for ratio in made.values()):
            return made
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    remedy = "graphweft doctor --device NAME --calibrate writes it anew"
    warnings.warn(f"{path}: expected a device's measurement, got another file; {remedy}", FallbackWarning, stacklevel=4)
    return {}


def prefers_csr(device: torch.device, width: int) -> bool:
    """Whether torch's product is clearly the faster one: of the nearest width that was measured."""
    found = ratios(device)
    return bool(found) and found[min(found, key=lambda other: abs(other - width))] < _CLEARLY


def csr_product(graph: Graph, x: Tensor, weight: Tensor) -> Tensor:
    """Rows of a graph that stays, summed over in-edges, each times the weight of the edge by its id, by torch."""
    csc = graph.csc
    offsets, columns = derived(csc, _alike)
    values = weight if csc.edge_ids is None else weight.index_select(0, csc.edge_ids)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        matrix = torch.sparse_csr_tensor(offsets, columns, values, (csc.num_rows, csc.num_cols), check_invariants=False)
    return matrix @ x


def _alike(csc: Adjacency) -> tuple[Tensor, Tensor]:
    """Offsets and columns of one type, as torch wants them."""
    kind = torch.int32 if max(csc.num_edges, csc.num_cols) < _INT32 else torch.int64
    return csc.indptr.to(kind), csc.indices.to(kind)


def calibrate(
    device: torch.device, clock: Clock | None = None, seconds: float = SECONDS, nodes: int = _NODES
) -> Mapping[int, float]:
    """Measures both products and keeps what was found.

    Args:
        device: Where.
        clock: Seconds of a run there; None: by the device's own clock.
        seconds: After so many no other width is begun; those that are missing are taken as the nearest one.
        nodes: Of the random graph.
    """
    drawn, begin = torch.Generator().manual_seed(0), time.monotonic()
    src = torch.randint(nodes, (nodes * _DEGREE,), generator=drawn)
    dst = (nodes * torch.rand(nodes * _DEGREE, generator=drawn) ** 2).long().clamp(max=nodes - 1)
    graph, weight = on_device(Graph(src, dst, num_nodes=nodes), device), torch.rand(src.numel()).to(device)
    clock, found = clock or _seconds, dict[int, float]()
    for width in WIDTHS:
        if found and time.monotonic() - begin > seconds:
            break
        x = torch.randn(nodes, width, generator=drawn).to(device)
        runs = functools.partial(csr_product, graph, x, weight), functools.partial(edges.sum_edges, graph, x, weight)
        other, own = (clock(run, device) for run in runs)
        found[width] = other / max(own, 1e-9)
    keep(name_of(device), json.dumps({"version": _VERSION, "csr": found}))
    _read.cache_clear()
    return found


def _seconds(run: Callable[[], object], device: torch.device, repetitions: int = 10) -> float:
    """Of a run, the best of some; on a device that launches and goes on."""
    run()
    best = float("inf")
    for _ in range(repetitions):
        torch.cuda.synchronize(device)
        begin = time.perf_counter()
        run()
        torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - begin)
    return best


__all__ = ["calibrate", "csr_product", "name_of", "prefers_csr", "ratios"]
