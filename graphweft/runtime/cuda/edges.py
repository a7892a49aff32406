"""Launches of the kernels over edges and rows that are written once.

Comes in: a graph and rows on one device. Goes out: rows there. Tiles and warps follow from widths alone. Called by the
launchers of ``products.py`` and ``target.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor

from graphweft.codegen.edge_triton import padded
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.derived import derived
from graphweft.graph.graph import Graph
from graphweft.graph.placed import host_of
from graphweft.runtime.cuda import kernels
from graphweft.runtime.cuda.hubs import JOINED, PIECES, ROWS, SECOND, hubs_in, hubs_of, run_by_pieces
from graphweft.runtime.cuda.jit import Kernel, warps_for

_TILE = 512  # elements of a block of rows
_WIDEST = 128  # columns of a tile
_WARP_READS = 128  # numbers that a warp reads at once, 16 bytes a thread
_BLOCK = 1024
STAGES = {"row_scale": 1, "bias": 2, "addend": 4, "relu": 8, "mask": 16, "post_scale": 32}
_READ = ("row_scale", "bias", "addend", "mask", "post_scale")

Given = Mapping[str, Tensor]


def _tiles(width: int, most: int = 16) -> tuple[int, int, int]:
    """Columns of a tile, rows or edges at a time, and how many tiles a row has."""
    columns = min(padded(max(width, 1)), _WIDEST)
    return columns, max(1, min(most, _TILE // columns)), -(-width // columns)


def edges_at_once(columns: int, few: int) -> int:
    """Edges at a time: a few, since most rows are short, but 16 bytes for every thread of a warp."""
    return min(32, max(few, _WARP_READS // columns))


def _stages(given: Given, relu: bool, like: Tensor, rows: int) -> tuple[tuple[Tensor, ...], int, int]:
    """Operands of an epilogue, ``like`` where there is none, rows of the addend, and which stages there are."""
    bits = sum(STAGES[name] for name in given) + (STAGES["relu"] if relu else 0)
    short = given["addend"].shape[0] if "addend" in given else rows
    return tuple(given[name].contiguous() if name in given else like for name in _READ), short, bits


def sum_edges(
    graph: Graph,
    x: Tensor,
    weight: Tensor | None = None,
    scale: Tensor | None = None,
    own: float = 0.0,
    given: Given | None = None,
    relu: bool = False,
    rounded: torch.dtype | None = None,
) -> Tensor:
    """Rows summed over in-edges, each times a weight of the edge and a factor of its source, then an epilogue.

    Args:
        graph: Its destinations are the rows.
        x: (num_src, f).
        weight: (num_edges,) by edge id.
        scale: (num_src,).
        own: What a node's own row is multiplied by; rows beyond the last of ``x`` have none.
        given: Operands of the epilogue by stage.
        relu: Whether it has one.
        rounded: The dtype that neighbours' rows are read in, where it is not that of ``x``.
    """
    csc = graph.csc_structure if weight is None else graph.csc
    rows, width = csc.num_rows, x.shape[1]
    x, y = x.contiguous(), torch.empty((csc.num_rows, x.shape[1]), dtype=x.dtype, device=x.device)
    operands, short, bits = _stages(given or {}, relu, x, rows)
    columns, _, tiles = _tiles(width)
    mine = x
    if own and rows > x.shape[0]:  # the kernel reads an own row for every row
        mine = torch.cat([x, x.new_zeros(rows - x.shape[0], width)])
        scale = None if scale is None else torch.cat([scale, scale.new_zeros(rows - x.shape[0])])
    edges = edges_at_once(columns, 4)
    ids = csc.indices if csc.edge_ids is None else csc.edge_ids
    read = (csc.indices, ids, x if rounded is None else x.to(rounded), mine)
    factors = (x if weight is None else weight.contiguous(), x if scale is None else scale.contiguous())
    fixed: dict[str, Any] = {
        "F": width,
        "HAS_WEIGHT": weight is not None,
        "HAS_IDS": weight is not None and csc.edge_ids is not None,
        "HAS_SCALE": scale is not None,
        "BE": edges,
        "BS": min(edges, max(1, _WARP_READS // columns)),
        "BF": columns,
        "OWN": own,
        "STAGES": bits,
    }
    given_rows = (*read, *factors, *operands, short)
    hubs = hubs_of(graph, weight is not None)
    run_by_pieces(kernels.sum_edges, csc, hubs, tiles, given_rows, (y,), warps=warps_for(edges * columns), **fixed)
    return y


def finish_rows(x: Tensor, ids: Tensor | None, given: Given, relu: bool, over: bool = False) -> Tensor:
    """An epilogue on rows as they are, or on those read by index; ``over``: in the memory of ``x``."""
    rows, width = x.shape[0] if ids is None else ids.numel(), x.shape[1]
    x = x.contiguous()
    y = x if over else torch.empty((rows, width), dtype=x.dtype, device=x.device)
    operands, short, bits = _stages(given, relu, x, rows)
    columns, at_once, tiles = _tiles(width, 64)
    at_once = max(1, at_once // 2)  # every stage holds a block
    kernels.finish_rows(
        (-(-rows // at_once), tiles),
        x,
        x if ids is None else ids.contiguous(),
        *operands,
        y,
        short,
        rows,
        F=width,
        HAS_IDS=ids is not None,
        STAGES=bits,
        BR=at_once,
        BF=columns,
        warps=warps_for(at_once * columns),
    )
    return y


def extremum(graph: Graph, x: Tensor, minimum: bool, want_arg: bool) -> tuple[Tensor, Tensor | None]:
    """The largest or smallest row of all sources, by element, and where the first of them comes from."""
    csc, x, hubs = graph.csc, x.contiguous(), hubs_of(graph)
    shape = csc.num_rows, x.shape[1]
    y = torch.empty(shape, dtype=x.dtype, device=x.device)
    arg = torch.empty(shape, dtype=csc.indices.dtype, device=x.device) if want_arg else csc.indices
    columns, _, tiles = _tiles(shape[1])
    fixed: dict[str, Any] = {"F": shape[1], "MINIMUM": minimum, "WANT_ARG": want_arg}
    fixed |= {"BE": edges_at_once(columns, 2), "BF": columns}
    run_by_pieces(kernels.extremum_of_edges, csc, hubs, tiles, (csc.indices, x), (y, arg), **fixed)
    return y, arg if want_arg else None


def extremum_gradient(graph: Graph, arg: Tensor, dy: Tensor) -> Tensor:
    """The gradient of :func:`extremum` by the rows of sources."""
    csc, hubs = by_source(graph), None if host_of(graph).is_drawn else hubs_in(_by_source(graph), graph.device)
    dx = torch.empty((csc.num_rows, dy.shape[1]), dtype=dy.dtype, device=dy.device)
    columns, _, tiles = _tiles(dy.shape[1])
    fixed: dict[str, Any] = {"F": dy.shape[1], "BE": edges_at_once(columns, 2), "BF": columns}
    given = (csc.indices, arg.contiguous(), dy.contiguous())
    run_by_pieces(kernels.extremum_gradient, csc, hubs, tiles, given, (dx,), **fixed)
    return dx


def by_source(graph: Graph) -> Adjacency:
    """The ends of out-edges, each once, on the graph's device."""
    return _by_source(graph).to(graph.device)


def _by_source(graph: Graph) -> Adjacency:
    """The same in host memory."""
    return derived(host_of(graph.reverse()).csc, _without_parallels)


def _without_parallels(adjacency: Adjacency) -> Adjacency:
    """Ascending columns, each once in a row, without ids of edges."""
    found = adjacency.with_sorted_columns()
    rows = torch.repeat_interleave(torch.arange(found.num_rows), found.indptr.diff())
    first = torch.ones(found.num_edges, dtype=torch.bool)
    first[1:] = (found.indices[1:] != found.indices[:-1]) | (rows[1:] != rows[:-1])
    kept = torch.bincount(rows[first], minlength=found.num_rows)
    indptr = torch.cat([found.indptr[:1], kept.cumsum(0)])
    return Adjacency(indptr, found.indices[first], None, found.num_cols)


def edge_softmax(graph: Graph, x: Tensor, log: bool) -> Tensor:
    """Softmax over the in-edges of every row, for each of an edge's numbers."""
    return _by_row(kernels.softmax_of_edges, 2, graph, (x,), LOG=log)


def edge_softmax_gradient(graph: Graph, s: Tensor, g: Tensor) -> Tensor:
    """``s * (g - sum over the row of s * g)``."""
    return _by_row(kernels.softmax_gradient, 1, graph, (s, g), fusion=False)  # threads sum each other's products


def _by_row(
    kernel: Kernel, sums: int, graph: Graph, given: tuple[Tensor, ...], fusion: bool = True, **fixed: bool
) -> Tensor:
    """A kernel that takes what it needs to know of a row first, ``sums`` numbers, and then gives rows to edges."""
    csc, width, hubs = graph.csc, prod(given[0].shape[1:]), hubs_of(graph)
    y = torch.empty(given[0].shape, dtype=given[0].dtype, device=given[0].device)
    columns, edges, tiles = _tiles(width, 32)
    ids = csc.indices if csc.edge_ids is None else csc.edge_ids
    fixed |= {"HAS_IDS": csc.edge_ids is not None}
    arrays, how = (ids, *(x.contiguous() for x in given), y), {"H": width, "BE": edges, "BH": columns, **fixed}
    tables: tuple[Tensor, ...] = (csc.indices, csc.indices, *(y,) * sums)
    if hubs is not None:
        tables = (hubs.pieces, hubs.rows, *(hubs.parts(y.view(-1, width)) for _ in range(sums)))
    for part in (ROWS,) if hubs is None else (PIECES, SECOND, JOINED):
        rows, offsets = (csc.num_rows, csc.indptr) if hubs is None or part == JOINED else (hubs.size, hubs.offsets)
        warps = warps_for(edges * columns)
        kernel((rows, tiles), offsets, *arrays, *tables, PART=part, warps=warps, fusion=fusion, **how)
    return y


def draw_words(seed: int | Tensor, stream: int) -> tuple[int | Tensor, ...]:
    """Key and stream of draws, by halves of 32 bits with a sign, so that all are numbers of one type.

    A seed in the memory of the device, int64 (1,), is read there.

    Example:
        >>> draw_words((1 << 40) + 7, 0xFFFFFFFF)
        (7, 256, -1, 0)
    """
    low, high = stream & 0xFFFFFFFF, stream >> 32 & 0xFFFFFFFF
    if isinstance(seed, Tensor):
        return (seed.reshape(1).view(torch.int32), 0, _signed(low), _signed(high))
    return tuple(map(_signed, (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF, low, high)))


def _signed(word: int) -> int:
    """The number of 32 bits with the bits of ``word``."""
    return word - (1 << 32) if word >> 31 else word


def dropout(x: Tensor, p: float, seed: int | Tensor, stream: int, ids: Tensor | None = None) -> Tensor:
    """``x / (1 - p)`` where an element is kept, by the draws that the CPU's kernel has; of ``x[ids]`` with ids."""
    x, width = x.contiguous(), prod(x.shape[1:])
    y = torch.empty((x.shape[0] if ids is None else ids.numel(), *x.shape[1:]), dtype=x.dtype, device=x.device)
    words = draw_words(seed, stream)
    kernels.drop_elements(
        (-(-y.numel() // _BLOCK),),
        x,
        x if ids is None else ids.contiguous(),
        y,
        y.numel(),
        *words,
        FACTOR=1.0 / (1.0 - p) if p < 1.0 else 0.0,
        F=max(width, 1),
        HAS_IDS=ids is not None,
        THRESHOLD=int(p * 65536.0 + 0.5),
        BLOCK=_BLOCK,
        warps=4,
    )
    return y


__all__ = [
    "by_source",
    "draw_words",
    "dropout",
    "edge_softmax",
    "edge_softmax_gradient",
    "edges_at_once",
    "extremum",
    "extremum_gradient",
    "finish_rows",
    "sum_edges",
]
