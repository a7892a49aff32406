"""Generated elementwise kernels against torch in float64, their golden text, and programs that use them."""

from __future__ import annotations

import ctypes

import pytest
import torch
from zoo import random_edges

from graphweft._config import config
from graphweft.codegen.cpp import render
from graphweft.codegen.loops import row_nest
from graphweft.graph.graph import Graph
from graphweft.ir.interpret import evaluate
from graphweft.ir.ops import Op
from graphweft.ir.program import Builder
from graphweft.ir.residency import Residency, TensorType
from graphweft.nn import GAT
from graphweft.passes import pipeline
from graphweft.passes.elementwise import FUNCTIONS
from graphweft.passes.groups import Chain
from graphweft.runtime import build
from graphweft.runtime.row_kernels import _compiled, is_built, row_kernel

GOLDEN = """\
for row, column:
  t0 = gt(in0, 0.0)
  t1 = add(in1, 1.0)
  t2 = mul(in2, t1)
  t3 = where(t0, in2, t2)
  store t3"""

needs_compiler = pytest.mark.skipif(build.find_compiler() is None, reason="no C++ compiler on this machine")


def elu_gradient():
    """The gradient of ELU as the IR writes it, and its operands."""
    b = Builder()
    rows = TensorType(Residency.DST, "V", (7,), torch.float32)
    x, y, g = (b.add(Op.INPUT, name=name, type=rows) for name in "xyg")
    zero, one = (b.add(Op.CONST, value=value, dtype=torch.float32) for value in (0.0, 1.0))
    above = b.add(Op.EWISE, x, zero, fn="gt")
    more = b.add(Op.EWISE, y, one, fn="add")
    below = b.add(Op.EWISE, g, more, fn="mul")
    return (above, more, below, b.add(Op.EWISE, above, g, below, fn="where")), (x, y, g)


def test_golden_nest_and_text():
    region, _ = elu_gradient()
    nest, read = row_nest(region)
    assert str(nest) == GOLDEN and [v["name"] for v in read] == ["x", "y", "g"]
    text = render(nest)
    assert "const auto t3 = t0 ? in2 : t2;" in text and "part.store(out + at, t3);" in text
    assert "const auto t1 = in1 + gw::vf::splat(0x1.0000000000000p+0f);" in text


@needs_compiler
@pytest.mark.parametrize("fn", sorted(FUNCTIONS))
def test_every_function_agrees_with_torch(fn):
    b = Builder()
    rows = TensorType(Residency.DST, "V", (), torch.float32)
    x, y, z = (b.add(Op.INPUT, name=name, type=rows) for name in "xyz")
    attrs = {"alpha": 0.3} if fn in ("leaky_relu", "elu") else {}
    if fn in ("eq", "ne", "lt", "le", "gt", "ge", "where"):
        test = b.add(Op.EWISE, x, y, fn="gt" if fn == "where" else fn)
        region = (test, b.add(Op.EWISE, test, y, z, fn="where"))
    else:
        arity = 2 if fn in ("add", "sub", "mul", "div", "maximum", "minimum") else 1
        region = (b.add(Op.EWISE, *(x, y)[:arity], fn=fn, **attrs),)
    edge = torch.tensor([0.0, -0.0, 1e-6, -1e-6, -0.3, 0.7, 3.0, -20.0, 80.0, -100.0, 88.5, float("nan"), float("inf")])
    values = {x: torch.cat([edge, torch.randn(1000) * 3]), y: torch.randn(1013), z: torch.randn(1013)}
    values[y][:5] = values[x][:5]
    found = row_kernel(region)
    assert found is not None
    kernel, read = found
    got = kernel([values[v] for v in read])
    known = {v: t.double() for v, t in values.items()}
    for value in region:
        known[value] = evaluate(value, [known[o] for o in value.inputs])
    expected = known[region[-1]]
    finite = expected.abs() < 3e38
    torch.testing.assert_close(got.double()[finite], expected[finite], rtol=1e-6, atol=1e-9)
    assert torch.equal(got.isnan(), expected.isnan())


@pytest.mark.parametrize("alpha", [1.0, 0.3])
@pytest.mark.parametrize("fn", ["elu", "leaky_relu"])
def test_activations_of_the_library_are_those_that_would_be_generated(fn: str, alpha: float) -> None:
    """The same bits, forward and backward, also at the ends of the range; derivatives are those of torch in float64."""
    b = Builder()
    rows = TensorType(Residency.DST, "V", (7,), torch.float32)
    x, g = (b.add(Op.INPUT, name=name, type=rows) for name in "xg")
    made = b.add(Op.EWISE, x, fn=fn, alpha=alpha)
    by = made if fn == "elu" else x
    zero, number = (b.add(Op.CONST, value=value, dtype=torch.float32) for value in (0.0, alpha))
    above = b.add(Op.EWISE, by, zero, fn="gt")
    slope = (b.add(Op.EWISE, by, number, fn="add"),) if fn == "elu" else ()
    below = b.add(Op.EWISE, g, *(slope or (number,)), fn="mul")
    region = (above, *slope, below, b.add(Op.EWISE, above, g, below, fn="where"))
    given = torch.cat([torch.tensor([0.0, -0.0, 1e-39, -1e-39, 88.5, -120.0]), torch.randn(70_001) * 4])
    tiny = (given != 0) & (given.abs() < torch.finfo(torch.float32).smallest_normal)  # which kernels take for zero
    infinite = torch.tensor([float("inf"), float("-inf"), float("nan")])
    dy = torch.randn(given.numel() + 3)
    results = []
    for one, values in (((made,), [torch.cat([given, infinite])]), (region, [None, dy])):
        nest, read = row_nest(one)
        assert is_built(one) and {value.type for value in read} == {rows}
        values = [results[0] if fn == "elu" else torch.cat([given, infinite]), dy] if len(values) == 2 else values
        found = row_kernel(one)
        assert found is not None
        results.append(found[0](values))
        if build.find_compiler() is not None:
            other = torch.empty_like(values[0])
            pointers = (ctypes.c_void_p * len(values))(*(t.data_ptr() for t in values))
            _compiled(nest)(other.numel(), pointers, other.data_ptr())
            same = results[-1].view(torch.int32) == other.view(torch.int32)
            if (fn, alpha) == ("leaky_relu", 1.0):  # a compiler takes x * 1 for x, whatever it is
                same[: tiny.numel()] |= tiny
            assert same.all()
    wide = torch.where(tiny, 0.0, given).double().requires_grad_()
    function = torch.nn.functional.elu if fn == "elu" else torch.nn.functional.leaky_relu
    function(wide, alpha).backward(dy[:-3].double())
    torch.testing.assert_close(results[0][:-3].double(), function(given.double(), alpha), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(results[1][:-3].double(), wide.grad, rtol=1e-5, atol=1e-6)


def test_other_regions_are_not_taken_for_activations() -> None:
    b = Builder()
    rows = TensorType(Residency.DST, "V", (7,), torch.float32)
    x, g = (b.add(Op.INPUT, name=name, type=rows) for name in "xg")
    one, zero = (b.add(Op.CONST, value=value, dtype=torch.float32) for value in (1.0, 0.0))
    above, shifted = b.add(Op.EWISE, x, zero, fn="gt"), b.add(Op.EWISE, x, one, fn="add")
    product = b.add(Op.EWISE, g, shifted, fn="mul")
    assert not is_built((above, shifted, product, b.add(Op.EWISE, above, product, g, fn="where")))
    assert not is_built((above, b.add(Op.EWISE, above, g, x, fn="where")))
    assert not is_built((b.add(Op.EWISE, x, fn="tanh"),))


@needs_compiler
@pytest.mark.parametrize("compiler", [True, False])
def test_a_model_with_generated_kernels_computes_the_same(compiler, monkeypatch):
    edges = random_edges(80, 500, seed=1)
    graph, x = Graph(edges.src, edges.dst, num_nodes=80), torch.randn(80, 6)
    monkeypatch.setattr(pipeline, "WORTH_A_KERNEL", 0)
    if not compiler:
        monkeypatch.setattr("graphweft.runtime.cpu.generated.row_kernel", lambda region: None)
    model = GAT(6, 8, 3, heads=2)
    results = []
    for level in (0, 3):
        model.zero_grad()
        with config(opt_level=level):
            out = model(graph, x)
            out.square().sum().backward()
        results.append([out.detach(), *(p.grad.clone() for p in model.parameters())])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    groups = [g for plan in model.function.plans() for g in plan.compiled.groups if isinstance(g, Chain)]
    assert sorted(len(g.chain) for g in groups) == [1, 4]
