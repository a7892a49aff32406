"""Rows of many edges, computed by pieces and joined, beside dense products and torch in float64. Run by ``trials.py``.

Trials cut rows of more than four edges. In the interpreter they count the edges that a program reads: no more than that
in any launch, whatever a row has.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import triton.runtime.interpreter as interpreter
from cuda.halves import HALVES, attended, dense_of, drawn, near
from torch import Tensor
from zoo import random_edges

import graphweft as gw
from graphweft.graph.adjacency import Adjacency
from graphweft.ir.interpret import edges_in_row_order
from graphweft.runtime import sparse
from graphweft.runtime.attention import Score
from graphweft.runtime.cuda import attention, edges, hubs
from graphweft.runtime.cuda.jit import find_triton
from graphweft.runtime.epilogue import Epilogue

MOST, NODES, EDGES = 4, 9, 40


def close(got: Tensor, wanted: Tensor) -> None:
    tolerance = 1e-5 if got.dtype == torch.float32 else 1e-12
    scale = float(wanted.abs().max())
    torch.testing.assert_close(got.double(), wanted.double(), rtol=tolerance, atol=tolerance * scale)


def hub_graph() -> gw.Graph:
    """Rows of more edges than a piece, of fewer, and of none, in both directions; parallel edges."""
    ends = random_edges(NODES, EDGES, 8)
    src, dst = np.where(ends.src < 5, 0, ends.src), np.where(ends.dst < 7, ends.dst % 2, ends.dst)
    graph = gw.Graph(src, dst, num_nodes=NODES)
    assert hubs.hubs_of(graph) is None  # of so few edges
    return graph


@contextlib.contextmanager
def cut(graph: gw.Graph, most: int = MOST) -> Iterator[None]:
    """Inside, rows are cut; in the interpreter no program may read more edges."""
    longest: dict[tuple[int, ...], set[int]] = defaultdict(set)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hubs, "HUB", most)
        if find_triton().knobs.runtime.interpret:
            _count(patch, longest, [graph.csc, graph.reverse().csc, edges.by_source(graph)])
        yield
    if find_triton().knobs.runtime.interpret:
        assert max(map(len, longest.values())) == most


def _count(patch: pytest.MonkeyPatch, seen: dict[tuple[int, ...], set[int]], structures: list[Adjacency]) -> None:
    """Notes which ends and numbers of edges every program reads, by launch and program."""
    kind, launches = type(interpreter.interpreter_builder), [0]
    load, begin = kind.create_masked_load, kind.set_grid_dim
    arrays = [t for csc in structures for t in (csc.indices, csc.edge_ids) if t is not None]
    spans = [(t.data_ptr(), t.data_ptr() + t.nbytes) for t in arrays]

    def loads(b: object, pointers: object, mask: object, *rest: object) -> object:
        live = np.broadcast_to(np.asarray(mask.data).astype(bool), np.shape(pointers.data)).ravel()  # type: ignore[attr-defined]
        at = np.asarray(pointers.data).ravel()[live]  # type: ignore[attr-defined]
        for k, (first, last) in enumerate(spans):
            seen[launches[0], k, *b.grid_idx] |= set(at[(at >= first) & (at < last)].tolist())  # type: ignore[attr-defined]
        return load(b, pointers, mask, *rest)

    def begins(b: object, *grid: int) -> None:
        launches[0] += 1
        begin(b, *grid)

    patch.setattr(kind, "create_masked_load", loads)
    patch.setattr(kind, "set_grid_dim", begins)


def hubs_are_summed_by_pieces() -> None:
    """Weights by number, an epilogue, own rows, widths of one tile and of two, 16 bits."""
    graph, n = hub_graph(), NODES
    with cut(graph):
        degrees, found = graph.in_degrees(), hubs.hubs_of(graph)
        assert found is not None and found.size == int(((degrees + 3) // 4)[degrees > 4].sum()) > 6
        assert int(degrees.min()) == 0 and bool(((degrees > 0) & (degrees <= MOST)).any())
        for dtype, width in ((torch.float64, 3), (torch.float32, 130)):
            x, weight, scale = (drawn(*s, dtype=dtype, seed=k) for k, s in enumerate([(n, width), (EDGES,), (n,)]))
            close(edges.sum_edges(graph, x), dense_of(graph) @ x.double())
            stages = {"row_scale": drawn(n, dtype=dtype), "bias": drawn(width, dtype=dtype)}
            got = edges.sum_edges(graph, x, weight, scale, 0.5, stages, True)
            scaled = x.double() * scale.double()[:, None]
            close(got, Epilogue(**stages, relu=True).reference(dense_of(graph, weight) @ scaled + 0.5 * scaled))
        halves = drawn(n, 8).bfloat16()
        near(edges.sum_edges(graph, halves), dense_of(graph) @ halves.double())


def extrema_of_hubs() -> None:
    """The first of equal sources, and gradients that lie with it; NaN and infinities as the CPU's kernels have them."""
    graph, n = hub_graph(), NODES
    src, dst, _ = edges_in_row_order(graph)
    with cut(graph):
        for dtype, minimum in ((torch.float32, False), (torch.float64, True), (torch.bfloat16, False)):
            x = drawn(n, 5, dtype=dtype).mul(2).round()
            found, arg = edges.extremum(graph, x, minimum, True)
            assert arg is not None
            wanted = torch.zeros(n, 5, dtype=torch.float64)
            wanted.index_reduce_(0, dst, x.double()[src], "amin" if minimum else "amax", include_self=False)
            assert torch.equal(found.double(), wanted)
            assert torch.equal(edges.extremum(graph, x, minimum, False)[0], found)
            top = x[src] == found[dst]
            first = [[next(src[k] for k in range(EDGES) if dst[k] == i and top[k, f]) if (dst == i).any() else -1
                      for f in range(5)] for i in range(n)]  # fmt: skip
            assert torch.equal(arg.long(), torch.tensor(first))
            slope, back = drawn(n, 5, dtype=dtype, seed=3), torch.zeros(n, 5, dtype=torch.float64)
            back.scatter_add_(0, arg.long().clamp(min=0), torch.where(arg >= 0, slope, 0.0).double())
            (near if dtype in HALVES else close)(edges.extremum_gradient(graph, arg, slope), back)
        odd = drawn(n, 3).masked_fill(drawn(n, 3, seed=1) > 0.8, torch.nan)
        odd[:, 2] = -torch.inf
        found, arg = edges.extremum(graph, odd, False, True)
        y, wanted_arg = sparse.spmm_max(graph.csc, odd)
        torch.testing.assert_close(found, y, rtol=0, atol=0, equal_nan=True)
        assert arg is not None and wanted_arg is not None and torch.equal(arg, wanted_arg)


def softmax_of_hubs() -> None:
    """Forward, its logarithm, and backward by torch's autograd."""
    graph = hub_graph()
    _, dst, ids = edges_in_row_order(graph)
    with cut(graph):
        for dtype in (torch.float32, torch.float64):
            x = drawn(EDGES, 2, 3, dtype=dtype).mul(4)
            leaf = x.double().requires_grad_()
            parts = [torch.softmax(leaf[ids[dst == row]], 0) for row in range(NODES)]
            wanted = torch.cat(parts)[torch.argsort(ids)]
            soft = edges.edge_softmax(graph, x, False)
            close(soft, wanted.detach())
            close(edges.edge_softmax(graph, x, True), wanted.detach().log())
            slope = drawn(*x.shape, dtype=dtype, seed=2)
            close(edges.edge_softmax_gradient(graph, soft, slope), torch.autograd.grad((wanted * slope).sum(), leaf)[0])


def attention_of_hubs() -> None:
    """Every score, values of all heads, 16 bits, dropped edges; gradients by torch's autograd."""
    graph, n, channels, heads = hub_graph(), NODES, 5, 2
    shapes = {Score.ADD: ((n, heads), (n, heads)), Score.ADD2: ((n, heads, channels), (heads, channels))}
    for score, dtype in ((Score.ADD, torch.float32), (Score.ADD2, torch.float32), (Score.DOT, torch.bfloat16)):
        shared = score is Score.ADD
        kind = attention.Scored(score, 0.2, channels**-0.5 if score is Score.DOT else 1.0)
        of_ends = shapes.get(score, ((n, heads, channels),) * 2)
        given = [drawn(n, 1 if shared else heads, channels, dtype=dtype).mul(2)]
        given += [drawn(*shape, dtype=dtype, seed=k + 1) for k, shape in enumerate(of_ends)]
        leaves = [t.double().requires_grad_() for t in given]
        wanted = attended(graph, kind, leaves, heads)
        slope = drawn(n, heads, channels, dtype=dtype, seed=4)
        slopes = torch.autograd.grad((wanted * slope.double()).sum(), leaves)
        far = near if dtype in HALVES else close
        with cut(graph):
            result = attention.attend(kind, graph, *given, heads)
            far(result[0], wanted.detach())
            found = attention.gradients(kind, (graph, graph.reverse()), tuple(given), result, slope)  # type: ignore[arg-type]
            for got, by in zip(found, slopes, strict=True):
                far(got, by)
        if shared:
            dropped_edges_of_hubs(kind._replace(p=0.4, seed=11, stream=3), graph, given, slope)


def dropped_edges_of_hubs(kind: attention.Scored, graph: gw.Graph, given: list[Tensor], slope: Tensor) -> None:
    """As without pieces."""
    made = []
    for cutting in (cut(graph), contextlib.nullcontext()):
        with cutting:
            result = attention.attend(kind, graph, *given, slope.shape[1])  # type: ignore[call-arg]
            vectors = (drawn(2, 5), drawn(2, 5, seed=1)) if kind.score is Score.ADD else (None, None)
            turned = graph, graph.reverse()
            made.append((result[0], *attention.gradients(kind, turned, tuple(given), result, slope, vectors)))  # type: ignore[arg-type]
    for got, wanted in zip(*made, strict=True):
        close(got, wanted)


TRIALS = (hubs_are_summed_by_pieces, extrema_of_hubs, softmax_of_hubs, attention_of_hubs)
