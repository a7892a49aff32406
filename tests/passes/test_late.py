"""Attention before its product: equal results and gradients, where it cannot be, and when it is chosen (SPEC J23)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from ir.programs import Writer, random_inputs
from zoo import ZOO, random_edges

import graphweft as gw
from graphweft.graph.block import Block
from graphweft.ir.grad import differentiate
from graphweft.ir.head_product import HeadProduct, head_product
from graphweft.ir.interpret import interpret
from graphweft.ir.ops import Op
from graphweft.ir.program import Program
from graphweft.ir.residency import TensorType
from graphweft.ir.verify import verify
from graphweft.nn import GATConv
from graphweft.passes import kept, pipeline
from graphweft.passes.placement import Order, place, sites
from graphweft.runtime.by_head import head_matmul, head_outer
from graphweft.sample.neighbor import NeighborSampler

F, C = 5, 3


def layer(
    heads: int, p: float = 0.0, other_reader: bool = False, bias: bool = False, scores: str = "by head"
) -> Program:
    """GAT over one set of nodes, its attention raised; ``scores`` of whole rows, or one of them given."""
    w = Writer()
    add = w.b.add
    product = add(Op.MATMUL, w.nodes("x", F), w.shared("W", F, heads * C))
    product = add(Op.BIAS, product, w.shared("b", heads * C)) if bias else product
    rows = add(Op.RESHAPE, product, dims=(heads, C))
    if scores == "of rows":
        ends = [add(Op.EINSUM, product, w.shared(name, C), spec="na,a->n") for name in ("src", "dst")]
        ends = [add(Op.RESHAPE, end, dims=(1,)) for end in ends]
    else:
        ends = [add(Op.EINSUM, rows, w.shared(name, heads, C), spec="nhc,hc->nh") for name in ("src", "dst")]
    if scores == "given":
        ends[0] = w.nodes("score", heads)
    attrs = {"score": "add", "alpha": 0.2, "scale": 1.0, "p": p, "stream": 1}
    out = add(Op.ATTENTION, w.graph(), rows, *ends, *([w.seed()] if p else []), **attrs)
    return w.done(out=add(Op.ADD, out, rows) if other_reader else out)


def check_equal(before: Program, after: Program, name: str, heads: int) -> None:
    """Results and gradients on a graph of the zoo."""
    inputs = random_inputs(before, ZOO[name])
    inputs["d:out"] = torch.randn(ZOO[name].num_nodes, heads, C, dtype=torch.float64)
    wanted = [v["name"] for v in before.inputs if isinstance(v.type, TensorType)]
    found = interpret(differentiate(after, wanted), inputs)
    for key, value in interpret(differentiate(before, wanted), inputs).items():
        torch.testing.assert_close(found[key], value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("p", [0.0, 0.4])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("name", ZOO)
def test_results_and_gradients_are_equal(name: str, heads: int, p: float) -> None:
    before = layer(heads, p)
    assert sites(before) == {"W": Order.TRANSFORM}
    after = place(before, {"W": Order.AGGREGATE})
    verify(after)
    (near,) = (v for v in after.values if v.op is Op.ATTENTION)
    assert near.inputs[1].tensor.dims == (1, F) and near.tensor.dims == (heads, F)
    assert not [v for v in after.values if v.op is Op.MATMUL and v.tensor.dims[-1] == heads * C and heads > 1]
    check_equal(before, after, name, heads)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("heads", "scores"), [(1, "by head"), (2, "by head"), (1, "of rows"), (1, "given"), (2, "given")]
)
@pytest.mark.parametrize("name", ZOO)
def test_biases_and_other_scores(name: str, heads: int, scores: str, bias: bool) -> None:
    """A bias is added where there is an in-edge; a score may be of whole rows, or none of the product's."""
    before = layer(heads, bias=bias, scores=scores)
    after = place(before, {"W": Order.AGGREGATE})
    verify(after)
    (near,) = (v for v in after.values if v.op is Op.ATTENTION)
    assert near.inputs[1].tensor.dims == (1, F)
    check_equal(before, after, name, heads)


def test_a_bias_stays_before_weights_that_are_dropped() -> None:
    assert sites(layer(1, p=0.4, bias=True)) == {}


def test_rows_that_others_read_too_are_made_once() -> None:
    program = layer(2, other_reader=True)
    assert sites(program) == {}
    assert str(place(program, {"W": Order.AGGREGATE})) == str(program)


def blocks() -> list[Block]:
    """Of fan-outs 15, 10, 5, outermost first."""
    edges = random_edges(20_000, 300_000, seed=1)
    graph = gw.Graph(edges.src, edges.dst, num_nodes=20_000)
    return list(NeighborSampler(graph, [15, 10, 5]).sample(torch.arange(100), seed=0).blocks)


def gradients(conv: GATConv, block: Block, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    out = conv(block, x)
    slope = torch.randn(out.shape, generator=torch.Generator().manual_seed(2))
    return [out.detach(), *torch.autograd.grad(out, [x, *conv.parameters()], slope)]


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("hop", [0, 1, 2])
def test_kernels_compute_the_same_either_way(hop: int, heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """SPEC J23: within 1e-5, on blocks of fan-outs 15, 10, 5."""
    block = blocks()[hop]
    torch.manual_seed(0)
    first = GATConv(32, 16, heads=heads, add_self_loops=False)
    x = torch.randn(block.num_src, 32)
    monkeypatch.setattr(kept, "_FEWEST_ROWS", 1 << 62)  # no program of another order is read from the cache
    choose, found = pipeline._choose, []
    for order in Order:
        monkeypatch.setattr(pipeline, "_choose", lambda c, r, o=order: choose(c, replace(r, orders={"weight": o})))
        conv = GATConv(32, 16, heads=heads, add_self_loops=False)
        conv.load_state_dict(first.state_dict())
        found.append(gradients(conv, block, x))
        compiled = conv.function.plans()[-1].compiled
        assert compiled.orders == {"weight": order}
        assert all(c.verdict == "holds" for c in compiled.certificates)
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5 * float(theirs.abs().max()))


def test_the_order_is_the_cheaper_one() -> None:
    """One head on a block that shrinks goes late; eight heads, whose sums are eight times as wide, do not."""
    outermost = blocks()[0]
    for heads, order in ((1, Order.AGGREGATE), (8, Order.TRANSFORM)):
        conv = GATConv(100, 64, heads=heads, add_self_loops=False)
        conv(outermost, torch.randn(outermost.num_src, 100)).sum().backward()
        assert conv.function.plans()[-1].compiled.orders == {"weight": order}


def test_products_by_head() -> None:
    generator = torch.Generator().manual_seed(0)
    x, w, g = (torch.randn(*s, generator=generator) for s in ((50, 3, 7), (7, 3, 4), (50, 3, 4)))
    torch.testing.assert_close(head_matmul(x, w), torch.einsum("nhf,fhc->nhc", x, w))
    torch.testing.assert_close(head_matmul(g, w.permute(2, 1, 0)), torch.einsum("nhc,fhc->nhf", g, w))
    torch.testing.assert_close(head_outer(x, g), torch.einsum("nhf,nhc->fhc", x, g))


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        ("nhf,fhc->nhc", HeadProduct(False, False, (0, 1, 2))),
        ("hfc,nhf->nhc", HeadProduct(False, True, (1, 0, 2))),
        ("nhc,fhc->nhf", HeadProduct(False, False, (2, 1, 0))),
        ("nhf,nhc->fhc", HeadProduct(True, False, (0, 1, 2))),
        ("nhc,nhf->hfc", HeadProduct(True, False, (1, 2, 0))),
        ("nhf,nhc->nhc", None),
        ("nhf,fc->nhc", None),
        ("nhf,gfc->nhc", None),
        ("nhc,hc->nh", None),
    ],
)
def test_einsums_by_head_are_told_by_their_letters(spec: str, found: HeadProduct | None) -> None:
    assert head_product(spec) == found
