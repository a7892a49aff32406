"""Rewrites of front-end programs: golden texts, and forward and backward against the oracle on the graph zoo."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import pytest
import torch
from ir.programs import F64, Writer, random_inputs
from zoo import ZOO

import graphweft as gw
from graphweft.ir.grad import differentiate
from graphweft.ir.interpret import interpret
from graphweft.ir.ops import Op
from graphweft.ir.program import Program, Value
from graphweft.ir.residency import Residency, TensorType
from graphweft.ir.verify import verify
from graphweft.passes.associate import associate
from graphweft.passes.canonical import canonicalise
from graphweft.passes.cleanup import cleanup
from graphweft.passes.message import fuse_messages
from graphweft.passes.reorder import reorder_broadcasts, split_joined

MORE_EDGES = {"V": 1, "E": 2, "A": 1, "T": 1}


def _const(w: Writer, value: float) -> Value:
    return w.b.add(Op.CONST, value=value, dtype=F64)


def gat() -> Program:
    """Attention over pairs, as written by a user: everything on edges."""
    w = Writer()
    a, g = w.b.add, w.graph()
    src, dst = a(Op.BROADCAST_SRC, g, w.nodes()), a(Op.BROADCAST_DST, g, w.nodes())
    z_src, z_dst = (a(Op.EINSUM, x, w.shared("W", 3, 2), spec="na,ab->nb") for x in (src, dst))
    e = a(Op.EINSUM, a(Op.CAT, z_src, z_dst, axis=0), w.shared("a", 4), spec="na,a->n")
    alpha = a(Op.EDGE_SOFTMAX, g, a(Op.EWISE, e, fn="leaky_relu", alpha=0.2))
    weighted = a(Op.EWISE, a(Op.RESHAPE, alpha, dims=(1,)), z_src, fn="mul")
    return w.done(out=a(Op.REDUCE, g, weighted, kind="sum"))


def bilinear() -> Program:
    """The second operand is the joined one, and the weight keeps other letters."""
    w = Writer()
    a, g = w.b.add, w.graph()
    pair = a(Op.CAT, a(Op.BROADCAST_DST, g, w.nodes()), w.edges(), axis=0)
    return w.done(out=a(Op.EINSUM, w.shared("W", 2, 6), pair, spec="ba,na->nb"))


def row_wise_chain() -> Program:
    w = Writer()
    a, g = w.b.add, w.graph()
    x = a(Op.BROADCAST_SRC, g, w.rows_of("x", 4))
    h = a(Op.EWISE, a(Op.RESHAPE, x, dims=(2, 2)), w.shared("s", 2), fn="mul")
    h = a(Op.PERMUTE, a(Op.EWISE, h, _const(w, 0.5), fn="add"), order=(1, 0))
    top = a(Op.MAX_DIMS, h, axes=(1,), kind="max", ties="split")
    own = a(Op.SUM_DIMS, a(Op.CAT, h, h, axis=1), axes=(0,))
    return w.done(out=a(Op.REDUCE, g, a(Op.CAT, top, own, axis=0), kind="sum"))


def two_ends() -> Program:
    """Operations of both ends stay on edges."""
    w = Writer()
    a, g = w.b.add, w.graph()
    src, dst = a(Op.BROADCAST_SRC, g, w.nodes()), a(Op.BROADCAST_DST, g, w.nodes())
    return w.done(out=a(Op.REDUCE, g, a(Op.EWISE, a(Op.EWISE, src, dst, fn="sub"), fn="abs"), kind="mean"))


def type_embedding() -> Program:
    w = Writer()
    a, g = w.b.add, w.graph()
    relation = a(Op.BROADCAST_ETYPE, g, w.of_types("r", Residency.ETYPE, 3))
    kind = a(Op.BROADCAST_SRC, g, a(Op.BROADCAST_NTYPE, g, w.of_types("t", Residency.NTYPE, 2)))
    left = a(Op.EINSUM, relation, w.shared("W", 3, 2), spec="na,ab->nb")
    return w.done(out=a(Op.REDUCE, g, a(Op.EWISE, left, a(Op.EWISE, kind, fn="tanh"), fn="mul"), kind="sum"))


def node_code() -> Program:
    """Row-wise code on nodes in generic operations, all of which have a specific one."""
    w = Writer()
    a, g = w.b.add, w.graph()
    h = a(Op.EINSUM, w.nodes(), a(Op.PERMUTE, w.shared("W", 2, 3), order=(1, 0)), spec="na,ab->nb")
    h = a(Op.EWISE, a(Op.EWISE, h, w.shared("b", 2), fn="add"), fn="relu")
    h = a(Op.EWISE, w.rows_of("s", 1), a(Op.EWISE, h, w.shared("v", 2), fn="mul"), fn="mul")
    h = a(Op.EWISE, a(Op.EWISE, h, h, fn="mul"), a(Op.EWISE, h, _const(w, 2.0), fn="mul"), fn="add")
    return w.done(out=a(Op.REDUCE, g, a(Op.BROADCAST_SRC, g, h), kind="sum"))


def scores_by_head() -> Program:
    """Dot products of rows with a vector, and with one a head, written as sums of products."""
    w = Writer()
    a, g = w.b.add, w.graph()
    rows = a(Op.EINSUM, w.nodes(), w.shared("W", 3, 2, 2), spec="na,ahc->nhc")
    heads = a(Op.SUM_DIMS, a(Op.EWISE, w.shared("h", 2, 2), rows, fn="mul"), axes=(1,))
    one = a(Op.SUM_DIMS, a(Op.EWISE, w.nodes(), w.shared("v", 1, 3), fn="mul"), axes=(1,))
    narrow = a(Op.SUM_DIMS, a(Op.EWISE, w.nodes(), w.shared("u", 3), fn="mul"), axes=(0,))
    edge = a(Op.EWISE, a(Op.BROADCAST_SRC, g, heads), a(Op.BROADCAST_DST, g, one), fn="mul")
    total = a(Op.EWISE, edge, a(Op.RESHAPE, a(Op.BROADCAST_DST, g, narrow), dims=(1,)), fn="add")
    return w.done(out=a(Op.REDUCE, g, total, kind="sum"))


def difference_of_ends() -> Program:
    """The transform of x_i beside x_j - x_i, as Wang et al., 2019, write it, and of a negated sum."""
    w = Writer()
    a, g = w.b.add, w.graph()
    src, dst = a(Op.BROADCAST_SRC, g, w.nodes()), a(Op.BROADCAST_DST, g, w.nodes())
    pair = a(Op.CAT, dst, a(Op.EWISE, src, dst, fn="sub"), axis=0)
    first = a(Op.EINSUM, pair, w.shared("W", 6, 2), spec="na,ab->nb")
    second = a(Op.EWISE, a(Op.EWISE, dst, src, fn="add"), fn="neg")
    second = a(Op.EINSUM, w.shared("U", 2, 3), second, spec="ba,na->nb")
    return w.done(out=a(Op.REDUCE, g, a(Op.EWISE, first, a(Op.EWISE, second, fn="relu"), fn="mul"), kind="sum"))


def matrix_of_the_edge() -> Program:
    """A node's row times matrices that follow from the edge by a linear layer, the second one from the other side."""
    w = Writer()
    a, g = w.b.add, w.graph()
    hidden = a(Op.EWISE, w.edges(), fn="tanh")
    wide = a(Op.EINSUM, hidden, a(Op.PERMUTE, w.shared("W", 6, 3), order=(1, 0)), spec="na,ab->nb")
    wide = a(Op.RESHAPE, a(Op.EWISE, wide, w.shared("b", 6), fn="add"), dims=(3, 2))
    first = a(Op.EINSUM, a(Op.BROADCAST_SRC, g, w.nodes()), wide, spec="na,nab->nb")
    other = a(Op.EINSUM, w.shared("U", 3, 6), hidden, spec="ab,na->nb")
    other = a(Op.RESHAPE, other, dims=(2, 3))
    second = a(Op.EINSUM, other, a(Op.BROADCAST_DST, g, w.nodes()), spec="nba,na->nb")
    return w.done(out=a(Op.REDUCE, g, a(Op.EWISE, first, second, fn="add"), kind="sum"))


def scores_of_edges() -> Program:
    """Scores of edge features by head, and one of the whole row."""
    w = Writer()
    a, g = w.b.add, w.graph()
    wide = a(Op.EINSUM, w.edges(), a(Op.PERMUTE, w.shared("W", 4, 3), order=(1, 0)), spec="na,ab->nb")
    heads = a(Op.EWISE, w.shared("h", 2, 2), a(Op.RESHAPE, wide, dims=(2, 2)), fn="mul")
    one = a(Op.SUM_DIMS, a(Op.EWISE, wide, w.shared("v", 4), fn="mul"), axes=(0,))
    total = a(Op.EWISE, a(Op.SUM_DIMS, heads, axes=(1,)), a(Op.RESHAPE, one, dims=(1,)), fn="add")
    return w.done(out=a(Op.REDUCE, g, total, kind="sum"))


PROGRAMS = {p.__name__: p for p in (gat, bilinear, row_wise_chain, two_ends, type_embedding, node_code, scores_by_head)}
OF_EDGES = {p.__name__: p for p in (difference_of_ends, matrix_of_the_edge, scores_of_edges)}
REWRITES: dict[str, Callable[[Program], Program]] = {
    "split": split_joined,
    "reorder": lambda p: reorder_broadcasts(p, MORE_EDGES),
    "associate": lambda p: associate(p, MORE_EDGES),
    "canonical": canonicalise,
    "cleanup": cleanup,
    "all": lambda p: cleanup(
        fuse_messages(canonicalise(cleanup(reorder_broadcasts(cleanup(split_joined(p)), MORE_EDGES))))
    ),
}


@pytest.mark.parametrize("graph", ZOO)
@pytest.mark.parametrize(
    ("program", "rewrite"),
    [(p, r) for p in PROGRAMS for r in REWRITES if r != "associate"]
    + [(p, "reorder" if p == "difference_of_ends" else "associate") for p in OF_EDGES],
)
def test_outputs_and_gradients_stay(program: str, rewrite: str, graph: str) -> None:
    before = {**PROGRAMS, **OF_EDGES}[program]()
    after = REWRITES[rewrite](before)
    verify(after)
    inputs = random_inputs(before, ZOO[graph])
    wanted = [v["name"] for v in before.inputs if isinstance(v.type, TensorType)]
    expected = interpret(before, inputs)["out"]
    inputs["d:out"] = torch.randn(expected.shape, dtype=F64, generator=torch.Generator().manual_seed(3))
    reference, got = (interpret(differentiate(p, wanted), inputs) for p in (before, after))
    assert set(reference) == set(got)
    for name, tensor in reference.items():
        torch.testing.assert_close(got[name], tensor, rtol=1e-10, atol=1e-10)


def test_attention_over_pairs_becomes_what_experts_write() -> None:
    """Graphiler, figure 4: the transform runs on nodes once, the edges see one number per end."""
    assert str(REWRITES["all"](gat())) == (
        "%graph = graph(type=graph[V -> V, E]) : graph[V -> V, E]\n"
        "%x = input(type=dst[V x 3] float64) : dst[V x 3] float64\n"
        "%W = input(type=shared[3 x 2] float64) : shared[3 x 2] float64\n"
        "%a = input(type=shared[4] float64) : shared[4] float64\n"
        "%0 = matmul(%x, %W) : dst[V x 2] float64\n"
        "%1 = slice(%a, axis=0, start=0, step=1, stop=2) : shared[2] float64\n"
        "%2 = einsum(%0, %1, spec=na,a->n) : dst[V] float64\n"
        "%3 = broadcast_src(%graph, %2) : edge[E] float64\n"
        "%4 = slice(%a, axis=0, start=2, step=1, stop=4) : shared[2] float64\n"
        "%5 = einsum(%0, %4, spec=na,a->n) : dst[V] float64\n"
        "%6 = broadcast_dst(%graph, %5) : edge[E] float64\n"
        "%7 = ewise(%3, %6, fn=add) : edge[E] float64\n"
        "%8 = ewise(%7, alpha=0.2, fn=leaky_relu) : edge[E] float64\n"
        "%9 = edge_softmax(%graph, %8) : edge[E] float64\n"
        "%10 = spmm(%graph, %0, %9) : dst[V x 2] float64\n"
        "return out=%10"
    )


def test_no_product_is_left_on_edges() -> None:
    """SPEC P08, P09: the floating operations of the transforms fall from edges to nodes."""
    before, after = gat(), REWRITES["all"](gat())
    on_edges = [v for v in before.values if v.op is Op.EINSUM and v.tensor.rows == "E"]
    assert len(on_edges) == 3
    assert not [v for v in after.values if v.op in (Op.EINSUM, Op.MATMUL) and v.tensor.rows == "E"]
    assert after.count(Op.MATMUL) == 1


def test_products_of_differences_and_of_matrices_leave_the_edges() -> None:
    rewritten = cleanup(reorder_broadcasts(split_joined(difference_of_ends()), MORE_EDGES))
    assert not [v for v in rewritten.values if v.op is Op.EINSUM and v.tensor.rows == "E"]
    few = {"V": 1, "E": 3}
    assert max(prod(v.tensor.dims) for v in cleanup(associate(matrix_of_the_edge(), few)).values if _on_edges(v)) == 6
    narrow = cleanup(associate(scores_of_edges(), few))
    assert max(prod(v.tensor.dims) for v in narrow.values if _on_edges(v) and v.op is Op.EINSUM) == 2
    assert str(associate(matrix_of_the_edge(), {"V": 3, "E": 2})) == str(matrix_of_the_edge())


def _on_edges(v: Value) -> bool:
    return isinstance(v.type, TensorType) and v.type.rows == "E"


def test_broadcasts_stay_where_there_are_more_nodes_than_edges() -> None:
    program = row_wise_chain()
    assert str(reorder_broadcasts(program, {"V": 5, "E": 4})) == str(program)
    moved = reorder_broadcasts(program, {"V": 4, "E": 4})
    assert [v.op for v in moved.values if v.type.__class__ is TensorType and v.tensor.rows == "E"] == [Op.BROADCAST_SRC]


def test_operations_that_mix_residencies_stay() -> None:
    program = two_ends()
    assert str(reorder_broadcasts(program, MORE_EDGES)) == str(program)


def test_generic_node_code_becomes_operations_with_kernels() -> None:
    after = cleanup(canonicalise(node_code()))
    assert not after.count(Op.EWISE, Op.EINSUM, Op.PERMUTE)
    assert after.count(Op.MATMUL, Op.BIAS, Op.RELU, Op.COL_SCALE, Op.ROW_SCALE, Op.MUL, Op.SCALE, Op.ADD) == 8


@pytest.mark.parametrize("end", ["src", "dst"])
def test_nodes_that_no_edge_reads_bring_no_infinite_slope(end: str) -> None:
    """Degrees of 0 to the power -1/2 at isolated nodes, as GCN's normalisation is often written."""
    g = gw.Graph([0, 1, 2, 0, 1, 1], [1, 2, 0, 2, 0, 0], num_nodes=5)
    torch.manual_seed(1)
    h, weight = (torch.randn(size, 3, dtype=torch.float64, requires_grad=True) for size in (5, 3))
    degree = g.out_degrees().double().view(-1, 1).requires_grad_()

    def message(edges: Any) -> dict[str, torch.Tensor]:
        d = getattr(edges, end)["d"]
        return {"m": (edges.src["h"] @ weight) * d.pow(-0.5) / d.sqrt() + d.log() + d.reciprocal()}

    def gradients() -> tuple[torch.Tensor, ...]:
        fields = {"h": h, "d": degree}
        out = gw.update_all(g, message, lambda nodes: {"h": nodes.mailbox["m"].sum(1)}, ndata=fields)["h"]
        return torch.autograd.grad((out * torch.arange(15.0).view(5, 3)).sum(), [h, weight, degree])

    got = gradients()
    with gw.config(opt_level=0):
        expected = gradients()
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs)
        assert mine.isfinite().all()


def test_sums_of_products_with_a_vector_are_one_operation_each() -> None:
    """No product of node rows is left, so none is stored."""
    after = cleanup(canonicalise(scores_by_head()))
    assert after.count(Op.SUM_DIMS) == 1  # "one" has a leading dimension, of which canonical knows nothing
    assert [v["spec"] for v in after.values if v.op is Op.EINSUM].count("nhc,hc->nh") == 2


def test_a_value_that_is_read_many_times_is_visited_once() -> None:
    """Every path on its own would be 2^60 visits."""
    w = Writer()
    a, g = w.b.add, w.graph()
    x = a(Op.EWISE, a(Op.BROADCAST_SRC, g, w.nodes()), a(Op.BROADCAST_DST, g, w.nodes()), fn="sub")
    for _ in range(60):
        x = a(Op.EWISE, x, x, fn="add")
    product = a(Op.EINSUM, x, w.shared("W", 3, 2), spec="na,ab->nb")
    score = a(Op.SUM_DIMS, a(Op.EWISE, product, w.shared("v", 2), fn="mul"), axes=(0,))
    program = w.done(out=a(Op.REDUCE, g, a(Op.RESHAPE, score, dims=(1,)), kind="sum"))
    rewritten = reorder_broadcasts(associate(program, MORE_EDGES), MORE_EDGES)
    assert not [v for v in rewritten.values if v.op is Op.EINSUM and v.tensor.rows == "E"]


def test_a_total_that_divides_rows_is_guarded_where_no_edge_reads() -> None:
    """Without edges it is 0; certificates, which try such a graph, take nothing out."""
    src, dst = torch.tensor([0, 1, 2, 0]), torch.tensor([1, 2, 1, 2])
    h = torch.arange(10, dtype=F64).view(5, 2).requires_grad_()
    e = torch.tensor([[1.0], [2.0], [3.0], [-1.0]], dtype=F64, requires_grad=True)

    def message(edges: Any) -> dict[str, torch.Tensor]:
        return {"m": edges.src["h"] / torch.linalg.norm(edges.data["e"])}

    with gw.config(certify=True):
        out = gw.update_all(
            gw.Graph(src, dst, num_nodes=5),
            message,
            lambda nodes: {"h": nodes.mailbox["m"].sum(1)},
            ndata={"h": h},
            edata={"e": e},
        )["h"]
    expected = torch.zeros_like(h).index_add(0, dst, h[src] / torch.linalg.norm(e))
    torch.testing.assert_close(out, expected)
    slopes = [torch.autograd.grad(y.square().sum(), [h, e]) for y in (out, expected)]
    torch.testing.assert_close(*slopes)
