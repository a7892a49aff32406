"""Raised products with a matrix per type: outputs and gradients as before, nothing of edges x matrix left."""

from __future__ import annotations

import pytest
import torch
from ir.programs import F64, KINDS, Writer
from typed_zoo import TYPED_ZOO

from graphweft.graph.graph import Graph
from graphweft.ir.grad import differentiate
from graphweft.ir.interpret import interpret
from graphweft.ir.ops import Op
from graphweft.ir.program import Program, Value
from graphweft.ir.residency import Residency, TensorType
from graphweft.ir.verify import verify
from graphweft.passes.cleanup import cleanup
from graphweft.passes.typed import raise_typed

ETYPE, NTYPE = Residency.ETYPE, Residency.NTYPE


def _ends(w: Writer, *dims: int, name: str = "x", dst: bool = False) -> Value:
    return w.b.add(Op.BROADCAST_DST if dst else Op.BROADCAST_SRC, w.graph(), w.rows_of(name, *dims))


def _matrices(w: Writer, *dims: int) -> Value:
    return w.b.add(Op.BROADCAST_ETYPE, w.graph(), w.of_types("W", ETYPE, *dims))


def summed(w: Writer) -> Value:
    product = w.b.add(Op.EINSUM, _ends(w, 3), _matrices(w, 3, 4), spec="na,nab->nb")
    return w.b.add(Op.REDUCE, w.graph(), product, kind="sum")


def transposed_mean(w: Writer) -> Value:
    product = w.b.add(Op.EINSUM, _matrices(w, 4, 3), _ends(w, 3), spec="nba,na->nb")
    return w.b.add(Op.REDUCE, w.graph(), product, kind="mean")


def weighted(w: Writer) -> Value:
    product = w.b.add(Op.EINSUM, _ends(w, 3), _matrices(w, 3, 4), spec="na,nab->nb")
    message = w.b.add(Op.EWISE, w.edges("weight", 1), product, fn="mul")
    return w.b.add(Op.REDUCE, w.graph(), message, kind="sum")


def attention(w: Writer) -> Value:
    key = w.b.add(Op.EINSUM, _ends(w, 2, 3), _matrices(w, 2, 3, 3), spec="nha,nhab->nhb")
    score = w.b.add(Op.EINSUM, key, _ends(w, 2, 3, name="q", dst=True), spec="nha,nha->nh")
    alpha = w.b.add(Op.EDGE_SOFTMAX, w.graph(), score)
    value = w.b.add(Op.EINSUM, _ends(w, 2, 3, name="v"), _matrices(w, 2, 3, 3), spec="nha,nhab->nhb")
    message = w.b.add(Op.EWISE, w.b.add(Op.RESHAPE, alpha, dims=(2, 1)), value, fn="mul")
    return w.b.add(Op.REDUCE, w.graph(), message, kind="sum")


def score_with_the_matrix_at_the_destination(w: Writer) -> Value:
    query = w.b.add(Op.EINSUM, _ends(w, 4, name="q", dst=True), _matrices(w, 4, 3), spec="na,nab->nb")
    product = w.b.add(Op.EWISE, query, _ends(w, 3), fn="mul")
    return w.b.add(Op.SUM_DIMS, product, axes=(0,))


def nodes(w: Writer) -> Value:
    spread = w.b.add(Op.BROADCAST_NTYPE, w.graph(), w.of_types("W", NTYPE, 3, 4))
    return w.b.add(Op.EINSUM, w.rows_of("x", 3), spread, spec="na,nab->nb")


PROGRAMS = {
    f.__name__: f
    for f in (summed, transposed_mean, weighted, attention, score_with_the_matrix_at_the_destination, nodes)
}


def _program(name: str) -> Program:
    w = Writer()
    return w.done(out=PROGRAMS[name](w))


def _inputs(program: Program, graph: Graph) -> dict[str, object]:
    generator = torch.Generator().manual_seed(KINDS)
    sizes = {"V": graph.num_nodes, "E": graph.num_edges, "A": len(graph.node_types), "T": len(graph.relations)}
    given: dict[str, object] = {"graph": graph}
    for value in program.inputs:
        if isinstance(value.type, TensorType):
            shape = ((sizes[value.type.rows],) if value.type.rows else ()) + value.type.dims
            given[value["name"]] = torch.randn(shape, generator=generator, dtype=F64)
    return given


@pytest.mark.parametrize("graph", TYPED_ZOO)
@pytest.mark.parametrize("name", PROGRAMS)
def test_outputs_and_gradients_stay(name: str, graph: str) -> None:
    before = _program(name)
    after = cleanup(raise_typed(before))
    verify(after)
    given = _inputs(before, TYPED_ZOO[graph]())
    wanted = [n for n, tensor in given.items() if isinstance(tensor, torch.Tensor)]
    seed = torch.randn_like(interpret(before, given)["out"])
    results = [interpret(differentiate(p, wanted), {**given, "d:out": seed}) for p in (before, after)]
    assert results[0].keys() == results[1].keys()
    for key, expected in results[0].items():
        torch.testing.assert_close(results[1][key], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_row_gets_a_copy_of_its_matrix(name: str) -> None:
    after = cleanup(raise_typed(_program(name)))
    assert after.count(Op.BROADCAST_ETYPE, Op.BROADCAST_NTYPE, Op.EINSUM) == 0, str(after)
    joint = differentiate(after, [v["name"] for v in after.inputs if isinstance(v.type, TensorType)])
    assert joint.count(Op.BROADCAST_ETYPE, Op.BROADCAST_NTYPE, Op.EINSUM) == 0, str(joint)
    assert all(v.tensor.dims in ((), (1,), (2,), (2, 1)) for v in joint.values if getattr(v.type, "rows", None) == "E")


def test_products_that_are_read_as_such_stay() -> None:
    w = Writer()
    product = w.b.add(Op.EINSUM, _ends(w, 3), _matrices(w, 3, 4), spec="na,nab->nb")
    program = w.done(out=w.b.add(Op.REDUCE, w.graph(), w.b.add(Op.EWISE, product, fn="exp"), kind="sum"))
    assert str(raise_typed(program)) == str(program)
