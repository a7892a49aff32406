"""Operations on trailing dimensions, tables, types: type rules, meanings against NumPy, every function's gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ir.programs import F64, KINDS, Writer, random_inputs
from ir.test_grad import compare_with_autograd
from zoo import ZOO

import graphweft as gw
from graphweft.ir.elementwise import FUNCTIONS
from graphweft.ir.elementwise_grad import functions_with_rules
from graphweft.ir.grad import differentiate
from graphweft.ir.interpret import interpret
from graphweft.ir.ops import Op
from graphweft.ir.program import Builder, Value
from graphweft.ir.residency import Residency, StructType, TensorType

V, E, S = Residency.DST, Residency.EDGE, Residency.SHARED
GRAPH, BLOCK = StructType("V", "V", "E"), StructType("V", "R", "F")


def node(*dims: int, dtype: torch.dtype = F64) -> TensorType:
    return TensorType(V, "V", dims, dtype)


def edge(*dims: int, dtype: torch.dtype = F64) -> TensorType:
    return TensorType(E, "E", dims, dtype)


def shared(*dims: int, dtype: torch.dtype = F64) -> TensorType:
    return TensorType(S, None, dims, dtype)


def value(type_: Any) -> Value:
    return Builder().add(Op.GRAPH if isinstance(type_, StructType) else Op.INPUT, name="v", type=type_)


ACCEPTED = [
    (Op.EWISE, (node(2, 3), shared(3)), {"fn": "add"}, node(2, 3)),
    (Op.EWISE, (node(3), node(2, 1)), {"fn": "mul"}, node(2, 3)),
    (Op.EWISE, (shared(3), edge()), {"fn": "sub"}, edge(3)),
    (Op.EWISE, (node(2), node(2)), {"fn": "lt"}, node(2, dtype=torch.bool)),
    (Op.EWISE, (node(2, dtype=torch.bool), node(2), shared()), {"fn": "where"}, node(2)),
    (Op.EINSUM, (node(2, 3), shared(2, 3)), {"spec": "nhd,hd->nh"}, node(2)),
    (Op.EINSUM, (node(2), node(3)), {"spec": "na,nb->ab"}, shared(2, 3)),
    (Op.EINSUM, (node(2, 3),), {"spec": "nab->ab"}, shared(2, 3)),
    (Op.RESHAPE, (node(6),), {"dims": (2, 3)}, node(2, 3)),
    (Op.PERMUTE, (node(2, 3, 4),), {"order": (2, 0, 1)}, node(4, 2, 3)),
    (Op.EXPAND, (edge(1),), {"dims": (2, 3)}, edge(2, 3)),
    (Op.SLICE, (node(5),), {"axis": 0, "start": 1, "stop": 4, "step": 2}, node(2)),
    (Op.CAT, (node(5), node(2)), {"axis": 0}, node(7)),
    (Op.SUM_DIMS, (node(5, 2),), {"axes": (0,)}, node(2)),
    (Op.MAX_DIMS, (node(5, 2),), {"axes": (0, 1), "kind": "max", "ties": "first"}, node()),
    (Op.EDGE_SOFTMAX, (GRAPH, edge(4)), {}, edge(4)),
    (Op.BROADCAST_NTYPE, (GRAPH, TensorType(Residency.NTYPE, "A", (4,), F64)), {}, node(4)),
    (Op.BROADCAST_ETYPE, (GRAPH, TensorType(Residency.ETYPE, "T", (4,), F64)), {}, edge(4)),
    (Op.BROADCAST_SHARED, (BLOCK, shared(2)), {"to": "dst"}, TensorType(V, "R", (2,), F64)),
    (Op.LOOKUP, (shared(9, 2), edge(3, dtype=torch.int32)), {}, edge(3, 2)),
    (Op.LOOKUP_SUM, (edge(3, 2), edge(3, dtype=torch.int64)), {"size": 9}, shared(9, 2)),
    (Op.MAX_ROWS, (node(3),), {"kind": "max", "ties": "split"}, shared(3)),
    (Op.CAST, (node(3, dtype=torch.int64),), {"dtype": F64}, node(3)),
    (Op.CONST, (), {"value": 2.0, "dtype": F64}, shared()),
]
REFUSED = [
    (Op.EWISE, (node(2), edge(2)), {"fn": "add"}, "operands of equal rows, or shared"),
    (Op.EWISE, (node(2), node(3)), {"fn": "add"}, "dimensions that broadcast"),
    (Op.EWISE, (node(2), node(2, dtype=torch.float32)), {"fn": "add"}, "operands of one dtype"),
    (Op.EWISE, (node(2),), {"fn": "cumsum"}, "a function of elementwise.py, got 'cumsum'"),
    (Op.EWISE, (node(2),), {"fn": "add"}, "expected 2 operands, got 1"),
    (Op.EWISE, (node(2), node(2), node(2)), {"fn": "where"}, "a bool condition"),
    (Op.EINSUM, (node(2, 3), shared(2, 4)), {"spec": "nhd,hd->nh"}, "one size for d"),
    (Op.EINSUM, (node(2), edge(2)), {"spec": "na,na->na"}, "operands of equal rows"),
    (Op.EINSUM, (node(2), shared(2)), {"spec": "na,na->na"}, "expected na,na->na"),
    (Op.EINSUM, (node(2, 3),), {"spec": "nab->na"}, "b elsewhere"),
    (Op.RESHAPE, (node(6),), {"dims": (4,)}, "6 elements a row"),
    (Op.PERMUTE, (node(6),), {"order": (1,)}, "an order of 1 dimensions"),
    (Op.EXPAND, (node(2),), {"dims": (3,)}, "broadcast"),
    (Op.SLICE, (node(5),), {"axis": 0, "start": 1, "stop": 6, "step": 1}, "a slice of 5"),
    (Op.SLICE, (node(5),), {"axis": 1, "start": 0, "stop": 1, "step": 1}, "an axis below 1"),
    (Op.CAT, (node(5), shared(2)), {"axis": 0}, "operands alike but for axis 0"),
    (Op.MAX_DIMS, (node(0),), {"axes": (0,), "kind": "max", "ties": "first"}, "not empty"),
    (Op.EDGE_SOFTMAX, (GRAPH, node(4)), {}, "rows E"),
    (Op.EDGE_SOFTMAX, (GRAPH, edge(4, dtype=torch.int64)), {}, "floating"),
    (Op.BROADCAST_NTYPE, (GRAPH, node(4)), {}, "rows A"),
    (Op.BROADCAST_ETYPE, (BLOCK, TensorType(Residency.ETYPE, "T", (4,), F64)), {}, "one set of nodes"),
    (Op.BROADCAST_SHARED, (GRAPH, node(4)), {"to": "edge"}, "a shared value"),
    (Op.LOOKUP, (shared(9, 2), edge(3)), {}, "int32 or int64 numbers"),
    (Op.CONST, (), {"value": "x", "dtype": F64}, "a number"),
]


@pytest.mark.parametrize(("op", "operands", "attrs", "expected"), ACCEPTED, ids=lambda x: str(x)[:40])
def test_type_rule(op: Op, operands: tuple[Any, ...], attrs: dict[str, Any], expected: Any) -> None:
    assert Builder().add(op, *map(value, operands), **attrs).type == expected


@pytest.mark.parametrize(("op", "operands", "attrs", "message"), REFUSED, ids=lambda x: str(x)[:40])
def test_refusal(op: Op, operands: tuple[Any, ...], attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(gw.errors.IRError, match=message):
        Builder().add(op, *map(value, operands), **attrs)


def test_every_function_has_a_gradient_rule() -> None:
    assert functions_with_rules() == frozenset(FUNCTIONS)


@pytest.mark.parametrize("fn", FUNCTIONS)
@pytest.mark.parametrize("graph", ["random", "multi_edges", "isolated"])
def test_gradient_of_every_function(fn: str, graph: str) -> None:
    """With operands of the same dimensions, broadcast ones and shared ones; positive where the function wants it."""
    function = FUNCTIONS[fn]
    if function.to_bool:
        return
    w = Writer()
    positive = fn in ("log", "log1p", "sqrt", "sqrt0", "rsqrt", "reciprocal", "pow")

    def operand(value_: Value) -> Value:
        if not positive:
            return value_
        squared = w.b.add(Op.EWISE, value_, fn="square")
        return w.b.add(Op.EWISE, squared, w.b.add(Op.CONST, value=0.3, dtype=F64), fn="add")

    attrs = {"alpha": 0.2} if fn in ("leaky_relu", "elu") else {}
    x = operand(w.rows_of("x", 2, 3))
    others = {1: [()], 2: [(operand(w.rows_of("y", 3)),), (operand(w.shared("s", 2, 1)),)]}.get(function.arity, [])
    if fn == "where":
        others = [(w.rows_of("y", 1), w.shared("s", 3))]
        condition = w.b.add(Op.EWISE, x, w.b.add(Op.CONST, value=0.0, dtype=F64), fn="gt")
    outputs = []
    for rest in others:
        operands = (condition, *rest) if fn == "where" else (x, *rest)
        outputs.append(w.b.add(Op.EWISE, *operands, fn=fn, **attrs))
    for result in outputs:
        program = w.done(out=result)
        compare_with_autograd(program, random_inputs(program, ZOO[graph]))


SPECS = [
    ("na,ab->nb", [(2,), (2, 3)], "ns"),
    ("nab,nbc->nac", [(2, 3), (3, 4)], "nn"),
    ("na,nb->ab", [(2,), (3,)], "nn"),
    ("na,a->", [(2,), (2,)], "ns"),
    ("nab->ab", [(2, 3)], "n"),
    ("n,na->na", [(), (2,)], "nn"),
    ("nha,hab,nhb->nh", [(2, 3), (2, 3, 4), (2, 4)], "nsn"),
    ("ab,bc->ac", [(2, 3), (3, 4)], "ss"),
]


@pytest.mark.parametrize("graph", ["random", "empty", "one_node", "star"])
@pytest.mark.parametrize(("spec", "dims", "kinds"), SPECS, ids=[spec for spec, _, _ in SPECS])
def test_einsum(spec: str, dims: list[tuple[int, ...]], kinds: str, graph: str) -> None:
    w = Writer()
    made = [
        w.rows_of(f"x{i}", *size) if kind == "n" else w.shared(f"x{i}", *size)
        for i, (size, kind) in enumerate(zip(dims, kinds, strict=True))
    ]
    program = w.done(out=w.b.add(Op.EINSUM, *made, spec=spec))
    inputs = random_inputs(program, ZOO[graph])
    compare_with_autograd(program, inputs)
    expected = np.einsum(spec, *[inputs[f"x{i}"].numpy() for i in range(len(dims))])
    np.testing.assert_allclose(interpret(program, inputs)["out"].numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("graph", ZOO)
@pytest.mark.parametrize("kind", ["max", "min"])
@pytest.mark.parametrize("ties", ["first", "split"])
def test_reduce_extrema_with_ties(graph: str, kind: str, ties: str) -> None:
    """Values with many ties, against a loop over nodes by torch's own max and amax."""
    edges = ZOO[graph]
    w = Writer()
    program = w.done(out=w.b.add(Op.REDUCE, w.graph(), w.edges(), kind=kind, ties=ties))
    inputs = random_inputs(program, edges)
    e = (2 * inputs["e"]).round().requires_grad_()
    seed = torch.randn(edges.num_nodes, 3, dtype=F64)
    parts = [torch.zeros(3, dtype=F64)] * edges.num_nodes
    for node_ in range(edges.num_nodes):
        into = torch.from_numpy((edges.dst == node_).nonzero()[0])
        if len(into):
            one = getattr(torch, kind)(e[into], 0).values
            parts[node_] = one if ties == "first" else getattr(torch, f"a{kind}")(e[into], 0)
    expected = torch.stack(parts) if parts else e.new_zeros((0, 3))
    gradient = torch.autograd.grad((expected * seed).sum() + 0.0 * e.sum(), e)[0]
    joint = interpret(differentiate(program, ["e"]), {**inputs, "e": e.detach(), "d:out": seed})
    torch.testing.assert_close(joint["out"], expected.detach())
    torch.testing.assert_close(joint["grad:e"], gradient)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("graph", ZOO)
def test_edge_softmax_is_a_softmax_per_node_and_does_not_overflow(graph: str, log: bool) -> None:
    edges = ZOO[graph]
    w = Writer()
    program = w.done(out=w.b.add(Op.EDGE_SOFTMAX, w.graph(), w.edges(), log=log))
    inputs = random_inputs(program, edges)
    compare_with_autograd(program, inputs)
    inputs["e"] = 1e3 * inputs["e"]
    out = interpret(program, inputs)["out"]
    for node_ in set(edges.dst.tolist()):
        into = torch.from_numpy((edges.dst == node_).nonzero()[0])
        torch.testing.assert_close(out[into], (torch.log_softmax if log else torch.softmax)(inputs["e"][into], 0))


def test_types_of_a_typed_graph() -> None:
    relations = {("a", "x", "b"): ([0, 1], [0, 2]), ("b", "none", "a"): ([], []), ("b", "y", "b"): ([1], [0])}
    graph = gw.Graph.hetero(relations, {"a": 2, "b": 3})
    w = Writer()
    a, g = w.b.add, w.graph()
    nodes = a(Op.BROADCAST_NTYPE, g, w.of_types("n", Residency.NTYPE, 2))
    edges = a(Op.BROADCAST_ETYPE, g, w.of_types("t", Residency.ETYPE, 2))
    program = w.done(
        nodes=nodes, edges=edges, back=a(Op.REDUCE_NTYPE, g, nodes), edges_back=a(Op.REDUCE_ETYPE, g, edges)
    )
    n, t = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=F64), torch.arange(6.0, dtype=F64).view(3, 2)
    out = interpret(program, {"graph": graph, "n": n, "t": t})
    assert torch.equal(out["nodes"], n[[0, 0, 1, 1, 1]])
    assert torch.equal(out["edges"], t[[0, 0, 2]])
    assert torch.equal(out["back"], n * torch.tensor([[2.0], [3.0]]))
    assert torch.equal(out["edges_back"], t * torch.tensor([[2.0], [0.0], [1.0]]))


def test_lookup_takes_negative_numbers_as_torch_does() -> None:
    w = Writer()
    program = w.done(out=w.b.add(Op.LOOKUP, w.shared("table", KINDS, 2), w.kinds()))
    inputs = random_inputs(program, ZOO["random"])
    inputs["kinds"] = inputs["kinds"] - KINDS
    compare_with_autograd(program, inputs)
    assert torch.equal(interpret(program, inputs)["out"], inputs["table"][inputs["kinds"]])


def test_integers_have_no_gradient_and_do_not_stop_others() -> None:
    w = Writer()
    counted = w.b.add(Op.REDUCE, w.graph(), w.kinds(), kind="max")
    scaled = w.b.add(Op.EWISE, w.nodes(), w.b.add(Op.CAST, counted, dtype=F64), fn="mul")
    program = w.done(out=scaled)
    compare_with_autograd(program, random_inputs(program, ZOO["power_law"]))
