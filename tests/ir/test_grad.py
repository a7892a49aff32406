"""Gradient rules against torch's autograd through the oracle, in float64, on every graph of the zoo."""

from __future__ import annotations

import pytest
import torch
from ir.programs import Writer, one_op_programs, random_inputs
from zoo import ZOO

from graphweft._errors import IRError
from graphweft.ir.grad import differentiate, rules
from graphweft.ir.interpret import interpret, meanings
from graphweft.ir.ops import LEAVES, SPECS, STRUCTURE, Op
from graphweft.ir.program import Program
from graphweft.ir.residency import TensorType
from graphweft.ir.verify import verify

PROGRAMS = one_op_programs()
NO_GRADIENT = {
    Op.SPMM_ARG,
    Op.SPMM_MAX_GRAD,
    Op.EDGE_MARGIN_GRAD,
    Op.ATTENTION_STATS,
    Op.ATTENTION_GRAD,
    Op.BATCH_STATS,
    Op.BATCH_NORM_DOT,
    Op.BATCH_NORM_GRAD,
    Op.CONST,
}


def _tensor_inputs(program: Program) -> list[str]:
    return [v["name"] for v in program.inputs if isinstance(v.type, TensorType) and v.type.dtype.is_floating_point]


def compare_with_autograd(program: Program, inputs: dict[str, object], tolerance: float = 1e-10) -> None:
    wanted = _tensor_inputs(program)
    joint = differentiate(program, wanted)
    verify(joint)
    leaves = {k: v.clone().requires_grad_() if k in wanted else v for k, v in inputs.items()}
    forward = interpret(program, leaves)["out"]
    seed = torch.randn(forward.shape, dtype=forward.dtype, generator=torch.Generator().manual_seed(7))
    expected: tuple[torch.Tensor | None, ...] = (None,) * len(wanted)
    if forward.requires_grad:
        expected = torch.autograd.grad(forward, [leaves[n] for n in wanted], seed, allow_unused=True)
    got = interpret(joint, {**inputs, "d:out": seed})
    torch.testing.assert_close(got["out"], forward.detach(), rtol=tolerance, atol=tolerance)
    for name, gradient in zip(wanted, expected, strict=True):
        mine = got.get(f"grad:{name}")
        if gradient is None:
            assert mine is None or bool((mine == 0).all())
        else:
            mine = torch.zeros_like(gradient) if mine is None else mine
            torch.testing.assert_close(mine, gradient, rtol=tolerance, atol=tolerance)


def test_the_three_tables_list_the_same_operations() -> None:
    inner = set(SPECS) - LEAVES
    assert set(meanings()) == inner
    assert set(PROGRAMS) == inner
    assert set(rules()) == inner - STRUCTURE - NO_GRADIENT


@pytest.mark.parametrize("graph", ZOO)
@pytest.mark.parametrize("op", [op for op in PROGRAMS if op not in NO_GRADIENT], ids=lambda op: op.name.lower())
def test_rule_agrees_with_autograd(op: Op, graph: str) -> None:
    if op is Op.MAX_ROWS and not ZOO[graph].num_nodes:
        pytest.skip("no rows have no maximum")
    compare_with_autograd(PROGRAMS[op], random_inputs(PROGRAMS[op], ZOO[graph]))


@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
def test_matmul_in_every_transposition(ta: bool, tb: bool) -> None:
    w = Writer()
    if ta:
        product = w.b.add(Op.MATMUL, w.nodes("x"), w.nodes("y"), ta=True)
    else:
        product = w.b.add(Op.MATMUL, w.nodes("x"), w.shared("W", *((2, 3) if tb else (3, 2))), tb=tb)
    program = w.done(out=product)
    compare_with_autograd(program, random_inputs(program, ZOO["random"]))


def test_gradients_add_up_over_several_uses() -> None:
    w = Writer()
    x = w.nodes()
    y = w.b.add(Op.ADD, w.b.add(Op.MUL, x, x), w.b.add(Op.SPMM, w.graph(), x, self_coef=0.0))
    program = w.done(out=w.b.add(Op.ADD, y, x))
    compare_with_autograd(program, random_inputs(program, ZOO["power_law"]))


def test_first_layer_backward_is_never_built() -> None:
    """SPEC J22: without a gradient for x the backward aggregation of an aggregate-first layer does not exist."""
    w = Writer()
    program = w.done(out=w.b.add(Op.MATMUL, w.b.add(Op.SPMM, w.graph(), w.nodes(), self_coef=0.0), w.shared("W", 3, 2)))
    assert differentiate(program, ["W"]).count(Op.SPMM) == 1
    assert differentiate(program, ["W", "x"]).count(Op.SPMM) == 2


def test_ties_of_a_maximum_go_to_the_first_edge() -> None:
    w = Writer()
    program = w.done(out=w.b.add(Op.SPMM_MAX, w.graph(), w.nodes(), kind="max"))
    inputs = random_inputs(program, ZOO["star"])
    inputs["x"] = torch.ones_like(inputs["x"])
    joint = differentiate(program, ["x"])
    gradient = interpret(joint, {**inputs, "d:out": torch.ones_like(inputs["x"])})["grad:x"]
    assert gradient[1].tolist() == [1.0, 1.0, 1.0]
    assert gradient.sum() == 3.0


def test_an_operation_without_a_rule_is_named() -> None:
    program = PROGRAMS[Op.SPMM_MAX_GRAD]
    with pytest.raises(IRError, match="spmm_max_grad has no gradient rule"):
        differentiate(program, ["y"])
