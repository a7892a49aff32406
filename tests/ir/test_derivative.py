"""Gradients of gradient programs against torch's double backward through the oracle, in float64."""

from __future__ import annotations

import pytest
import torch
from ir.programs import one_op_programs, random_inputs
from zoo import ZOO

from graphweft._errors import IRError
from graphweft.ir.grad import derivative, rules
from graphweft.ir.interpret import interpret
from graphweft.ir.ops import Op
from graphweft.ir.residency import TensorType
from graphweft.ir.verify import verify

PROGRAMS = {op: program for op, program in one_op_programs().items() if op in rules()}
WITHOUT = {Op.SPMM_MAX, Op.EDGE_MARGIN, Op.ATTENTION, Op.BATCH_NORM}  # their gradients are operations that have no rule


def _random(like: torch.Tensor, seed: int) -> torch.Tensor:
    return torch.randn(like.shape, dtype=like.dtype, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("graph", ["isolated", "multi_edges", "random", "no_edges"])
@pytest.mark.parametrize("op", [op for op in PROGRAMS if op not in WITHOUT], ids=lambda op: op.name.lower())
def test_second_derivative_agrees_with_autograd(op: Op, graph: str) -> None:
    program, inputs = PROGRAMS[op], random_inputs(PROGRAMS[op], ZOO[graph])
    wanted = [v["name"] for v in program.inputs if isinstance(v.type, TensorType) and v.type.dtype.is_floating_point]
    first = derivative(program, wanted, ["out"])
    verify(first.program)
    leaves = {name: x.clone().requires_grad_() if name in wanted else x for name, x in inputs.items()}
    out = interpret(program, leaves)["out"]
    if not out.requires_grad:
        return
    seed = _random(out, 7).requires_grad_()
    by = [leaves[name] for name in wanted]
    found = torch.autograd.grad(out, by, seed, create_graph=True, allow_unused=True)
    got = interpret(first.program, {**inputs, first.seeds["out"]: seed.detach()})
    kept = {name: x for name, x in zip(wanted, found, strict=True) if x is not None and name in first.gradients}
    for name, x in kept.items():
        torch.testing.assert_close(got[first.gradients[name]].expand(x.shape), x.detach(), rtol=1e-9, atol=1e-9)

    read = {v["name"] for v in first.program.inputs}
    again = [name for name in (*wanted, first.seeds["out"]) if name in read]
    second = derivative(first.program, again, [first.gradients[name] for name in kept])
    verify(second.program)
    directions = {name: _random(x, 11) for name, x in kept.items()}
    given = {second.seeds[first.gradients[name]]: x for name, x in directions.items()}
    mine = interpret(second.program, {**inputs, first.seeds["out"]: seed.detach(), **given})
    expected = torch.autograd.grad(
        [kept[name] for name in kept if kept[name].requires_grad],
        [seed if name == first.seeds["out"] else leaves[name] for name in again],
        [directions[name] for name in kept if kept[name].requires_grad],
        allow_unused=True,
    )
    for name, x in zip(again, expected, strict=True):
        held = mine.get(second.gradients.get(name, ""))
        if x is None or held is None:
            assert (x is None or not x.any()) and (held is None or not held.any())
        else:
            torch.testing.assert_close(held, x, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("op", sorted(WITHOUT, key=lambda op: op.name), ids=lambda op: op.name.lower())
def test_an_operation_without_a_rule_is_named(op: Op) -> None:
    program = PROGRAMS[op]
    name = next(v["name"] for v in program.inputs if isinstance(v.type, TensorType))
    first = derivative(program, [name], ["out"])
    with pytest.raises(IRError, match="grad has no gradient rule"):
        derivative(first.program, [first.seeds["out"]], list(first.gradients.values()))


def test_names_stay_apart_however_often_a_program_is_derived() -> None:
    program = PROGRAMS[Op.MUL]
    first = derivative(program, ["x", "y"], ["out"])
    second = derivative(first.program, ["x", "y", first.seeds["out"]], list(first.gradients.values()))
    third = derivative(second.program, [v["name"] for v in second.program.inputs], list(second.gradients.values()))
    names = [v["name"] for v in third.program.inputs]
    assert len(set(names)) == len(names)
