"""Slices of products, and which values of edges every walk computes alike."""

from __future__ import annotations

import pytest
import torch

import graphweft as gw
from graphweft.ir.interpret import interpret
from graphweft.ir.ops import Op
from graphweft.ir.program import Builder, Program, Value
from graphweft.ir.residency import Residency, StructType, TensorType
from graphweft.passes.narrow import slice_products
from graphweft.passes.opened import has_same_bits

F64 = torch.float64


def _input(b: Builder, name: str, residency: Residency, rows: str | None, *dims: int) -> Value:
    return b.add(Op.INPUT, name=name, type=TensorType(residency, rows, dims, F64))


def _program(bias: bool, whole: bool) -> Program:
    """Two halves of a product of rows; ``whole``: the product is read as well."""
    b = Builder()
    graph = b.add(Op.GRAPH, name="graph", type=StructType("V", "V", "E"))
    x = _input(b, "x", Residency.SRC, "V", 5)
    weight, shift = _input(b, "w", Residency.SHARED, None, 24, 5), _input(b, "b", Residency.SHARED, None, 24)
    made = b.add(Op.EINSUM, x, b.add(Op.PERMUTE, weight, order=(1, 0)), spec="na,ab->nb")
    made = b.add(Op.EWISE, made, shift, fn="add") if bias else made
    parts = [b.add(Op.SLICE, made, axis=0, start=start, stop=stop, step=1) for start, stop in ((0, 8), (8, 24))]
    outputs = [("low", parts[0]), ("high", parts[1]), *([("all", made)] if whole else [])]
    return Program((graph, x, weight, *([shift] if bias else [])), tuple(outputs))


@pytest.mark.parametrize("bias", [False, True])
def test_slices_of_a_product_are_products(bias: bool) -> None:
    program = _program(bias, whole=False)
    changed = slice_products(program)
    assert not [v for v in changed.values if v.op is Op.SLICE and v.tensor.rows is not None]
    assert changed.count(Op.EINSUM) == 2
    generator = torch.Generator().manual_seed(0)
    x, w, shift = (torch.randn(*shape, dtype=F64, generator=generator) for shape in ((7, 5), (24, 5), (24,)))
    named = {"graph": gw.Graph([0, 1], [1, 2], num_nodes=7), "x": x, "w": w} | ({"b": shift} if bias else {})
    expected = x @ w.T + (shift if bias else 0)
    for made in (interpret(program, named), interpret(changed, named)):
        torch.testing.assert_close(made["low"], expected[:, :8])
        torch.testing.assert_close(made["high"], expected[:, 8:])


def test_a_product_that_is_read_whole_stays() -> None:
    program = _program(bias=True, whole=True)
    assert slice_products(program).text == program.text


def test_a_product_that_meets_a_sum_may_be_rounded_in_two_ways() -> None:
    b = Builder()
    graph = b.add(Op.GRAPH, name="graph", type=StructType("V", "V", "E"))
    x, e = _input(b, "x", Residency.SRC, "V", 3), _input(b, "e", Residency.EDGE, "E", 3)
    far, near = b.add(Op.BROADCAST_SRC, graph, x), b.add(Op.BROADCAST_DST, graph, x)
    total = b.add(Op.EWISE, far, near, fn="sub")
    product = b.add(Op.EWISE, far, e, fn="mul")
    both = b.add(Op.EWISE, product, near, fn="add")
    curved = b.add(Op.EWISE, total, fn="exp")
    written = {far, near, total, product, both, curved}
    assert has_same_bits(total, written) and has_same_bits(product, written)
    assert not has_same_bits(both, written) and not has_same_bits(curved, written)
