"""Trials of kernels on rows of 16 bits, which are rounded when stored and never when added up, against float64.

Run by ``trials.py``, with the draws and matrices that its own trials use.
"""

from __future__ import annotations

import torch
from torch import Tensor
from zoo import CASES

import graphweft as gw
from graphweft.ir.interpret import edges_in_row_order
from graphweft.runtime import dense
from graphweft.runtime.attention import Score
from graphweft.runtime.cuda import attention, edges
from graphweft.runtime.cuda.jit import find_triton
from graphweft.runtime.cuda.target import CUDA
from graphweft.runtime.epilogue import Epilogue

GRAPHS = {case.name: case for case in CASES}


HALVES = {torch.float16: 1e-3, torch.bfloat16: 8e-3}  # about one rounding of the result


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def dense_of(graph: gw.Graph, weight: Tensor | None = None) -> Tensor:
    """The matrix of a graph in float64."""
    src, dst = graph.edges()
    values = torch.ones(graph.num_edges, dtype=torch.float64) if weight is None else weight.double()
    return torch.zeros(graph.num_dst, graph.num_src, dtype=torch.float64).index_put((dst, src), values, accumulate=True)


def near(got: Tensor, wanted: Tensor) -> None:
    """Of numbers that are stored in 16 bits and added up in float32."""
    scale = max(1.0, float(wanted.abs().max())) if wanted.numel() else 1.0
    bar = HALVES[got.dtype]
    torch.testing.assert_close(got.double(), wanted.double(), rtol=bar, atol=bar * scale)


def rows_of_sixteen_bits() -> None:
    """Every kernel that is written once on float16 and bfloat16: rounded when stored, never when added up."""
    for dtype in HALVES:
        for name in ("multi_edges", "star"):
            graph = GRAPHS[name].graph()
            n, dst, ids = graph.num_nodes, *edges_in_row_order(graph)[1:]
            x, weight = drawn(n, 12, dtype=dtype), drawn(graph.num_edges, dtype=dtype, seed=1)
            stages = {"row_scale": drawn(n, dtype=dtype, seed=2), "bias": drawn(12, dtype=dtype, seed=3)}
            total = dense_of(graph, weight) @ x.double() + 0.5 * x.double()
            double = {key: t.double() for key, t in stages.items()}
            near(
                edges.sum_edges(graph, x, weight, None, 0.5, stages, True),
                Epilogue(**double, relu=True).reference(total),
            )
            near(edges.finish_rows(x, None, stages, False), Epilogue(**double).reference(x.double()))
            found, arg = edges.extremum(graph, x, False, True)
            best, wanted = gw.runtime.sparse.spmm_max(graph.csc, x.float(), minimum=False)
            assert (
                arg is not None and wanted is not None and torch.equal(arg, wanted) and torch.equal(found.float(), best)
            )
            slope = drawn(n, 12, dtype=dtype, seed=5)
            back = torch.zeros(n, 12, dtype=torch.float64)
            back.scatter_add_(0, arg.long().clamp(min=0), torch.where(arg >= 0, slope, 0.0).double())
            near(edges.extremum_gradient(graph, arg, slope), back)
            scores = drawn(graph.num_edges, 2, dtype=dtype, seed=6).mul(3)
            leaf = scores.double().requires_grad_()
            parts = [torch.softmax(leaf[ids[dst == row]], 0) for row in range(n)]
            soft = torch.cat([leaf[:0], *parts])[torch.argsort(ids)]
            near(edges.edge_softmax(graph, scores, False), soft.detach())
            given, rounded = drawn(graph.num_edges, 2, dtype=dtype, seed=7), soft.detach().to(dtype)
            share = torch.zeros(n, 2, dtype=torch.float64).index_add_(0, dst, (rounded.double() * given.double())[ids])
            place = torch.empty_like(ids)
            place[ids] = dst
            slopes = rounded.double() * (given.double() - share[place])
            near(edges.edge_softmax_gradient(graph, rounded, given), slopes)
            kept = edges.dropout(x, 0.5, 3, 1)
            near(kept, dense.dropout(x.float(), 0.5, 3, 1).double())


def attended(graph: gw.Graph, kind: attention.Scored, ends: list[Tensor], heads: int) -> Tensor:
    """Attention in plain torch, row by row, in the dtype of its operands."""
    x, a, b = ends
    _, dst, ids = edges_in_row_order(graph)
    src = graph.edges()[0]
    far, own = x[src[ids]], dst
    if kind.score is Score.ADD:
        scores = torch.nn.functional.leaky_relu(a[src[ids]] + b[own], kind.alpha)
    elif kind.score is Score.ADD2:
        scores = (torch.nn.functional.leaky_relu(far + a[own], kind.alpha) * b).sum(-1)
    else:
        scores = (a[src[ids]] * b[own]).sum(-1) * kind.scale
    rows = [(torch.softmax(scores[own == i], 0)[..., None] * far[own == i]).sum(0) for i in range(graph.num_dst)]
    return torch.stack([row.expand(heads, x.shape[-1]) for row in rows])


def attention_of_sixteen_bits() -> None:
    """Rows of float16 and bfloat16, forward and backward: rounded when stored, scored and added up in float32."""
    many = "multi_edges" if find_triton().knobs.runtime.interpret else "star"  # more edges than a block take time
    for dtype in HALVES:
        for name, score, shared in (("multi_edges", Score.ADD, False), (many, Score.ADD, True),
                                    (many, Score.ADD2, False), ("isolated", Score.DOT, False)):  # fmt: skip
            graph, heads, channels = GRAPHS[name].graph(), 2, 12
            kind = attention.Scored(score, 0.2, channels**-0.5 if score is Score.DOT else 1.0)
            n = graph.num_nodes
            x = drawn(n, 1 if shared else heads, channels, dtype=dtype)
            shapes = {Score.ADD: ((n, heads), (n, heads)), Score.ADD2: ((n, heads, channels), (heads, channels))}
            a, b = (
                drawn(*shape, dtype=dtype, seed=k + 1)
                for k, shape in enumerate(shapes.get(score, ((n, heads, channels),) * 2))
            )
            leaves = [t.double().requires_grad_() for t in (x, a, b)]
            wanted = attended(graph, kind, leaves, heads)
            out, kept = attention.attend(kind, graph, x, a, b, heads)
            assert out.dtype == dtype and kept.dtype == torch.float32
            near(out, wanted.detach())
            slope = drawn(n, heads, channels, dtype=dtype, seed=4)
            slopes = torch.autograd.grad(wanted, leaves, slope.double())
            found = attention.gradients(kind, (graph, graph.reverse()), (x, a, b), (out, kept), slope)
            for got, by in zip(found, slopes, strict=True):
                assert got.dtype == dtype
                near(got, by)


def attention_sums_of_many_small_weights() -> None:
    """4,000 edges of equal scores: sums of weights in bfloat16 would stay at 256, and the mean be 16 times as large."""
    graph = gw.Graph(torch.arange(4000) % 5, torch.zeros(4000, dtype=torch.int64), num_nodes=5)
    for dtype in HALVES:
        x, none = torch.ones(5, 1, 4, dtype=dtype), torch.zeros(5, 1, dtype=dtype)
        out, _ = attention.attend(attention.Scored(Score.ADD, 0.2), graph, x, none, none, 1)
        assert float(out[0, 0, 0]) == 1.0


def sums_of_many_small_numbers_keep_them() -> None:
    """4,000 edges of 1 each: bfloat16 that is added up in 8 bits of precision stays at 256."""
    graph = gw.Graph(torch.arange(4000) % 5, torch.zeros(4000, dtype=torch.int64), num_nodes=5)
    for dtype in HALVES:
        assert float(edges.sum_edges(graph, torch.ones(5, 4, dtype=dtype))[0, 0]) == float(
            torch.tensor(4000.0).to(dtype)
        )


def models_of_sixteen_bits() -> None:
    """Whole models in bfloat16 and float16, whose plans run kernels, against plain torch in float64."""
    graph, x = GRAPHS["symmetric"].graph(), drawn(4, 6)
    nets = {
        "GCN": {},
        "SAGE": {},
        "SAGE max": {"reduce": "max"},
        "GAT": {"heads": 2},
        "GATv2": {"heads": 2, "v2": True},
    }
    for dtype, bar in {torch.float16: 1e-2, torch.bfloat16: 6e-2}.items():
        for name, options in nets.items():
            torch.manual_seed(2)
            net = getattr(gw.nn, name.split(" ")[0].removesuffix("v2"))(6, 4, 3, num_layers=2, **options).to(dtype)
            steps = []
            for target, kind in (("cuda", dtype), ("reference", torch.float64)):
                twin = net.to(kind)
                twin.zero_grad()
                with gw.config(target=target, certify=False):
                    out = twin(graph, x.to(dtype).to(kind))
                    out.square().sum().backward()
                if target == "cuda":  # no call is left to plain torch
                    found = [call for plan in twin._function.plans() for call in (*plan.forward, *plan.backward)]
                    left = {call.kernel for call in found if CUDA.launcher(call) is None} - {"reshape"}
                    assert not left, (name, left)
                steps.append(
                    [out.detach().double(), *(p.grad.double() for p in twin.parameters() if p.grad is not None)]
                )
            for got, wanted in zip(*steps, strict=True):
                torch.testing.assert_close(got, wanted, rtol=bar, atol=bar * max(1.0, float(wanted.abs().max())))
