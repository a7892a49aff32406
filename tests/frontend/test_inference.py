"""Inference of residency and movement: one test per row of Graphiler's table 1, illegal mixes, custom operators."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import graphweft as gw
from graphweft.frontend.call import make_call
from graphweft.frontend.captured import capture
from graphweft.frontend.layout import UnraisableError
from graphweft.frontend.udf import raise_call
from graphweft.ir.ops import SPECS, Op
from graphweft.ir.program import Builder, Value
from graphweft.ir.residency import IndexType, Movement, Residency, StructType, TensorType

F64 = torch.float64
E, V, S = Residency.EDGE, Residency.DST, Residency.SHARED
FIELDS = {
    "ndata": {"h": torch.ones(5, 3, dtype=F64), "q": torch.ones(5, 1, 3, dtype=F64), "x": torch.ones(5, 3, dtype=F64)},
    "edata": {"w": torch.ones(6, 3, dtype=F64)},
    "ntype_data": {"A": torch.ones(1, 3, dtype=F64)},
    "etype_data": {"R": torch.ones(1, 3, dtype=F64)},
}
GRAPH = gw.Graph([0, 1, 2, 3, 4, 0], [1, 2, 0, 1, 0, 4], num_nodes=5)
WEIGHT = torch.ones(3, 3, dtype=F64)


def send(edges: Any) -> dict[str, Tensor]:
    return {"m": edges.data["w"]}


def total(nodes: Any) -> dict[str, Tensor]:
    return {"h": nodes.mailbox["m"].sum(1)}


def program_of(message: Any, reduce: Any, update: Any = None) -> Value:
    """The value of the last function's field, as it is raised."""
    call = make_call(GRAPH, message, reduce, update, **FIELDS)
    captured = capture((message, reduce, update, ()))
    raised = raise_call(call, captured)
    builder = Builder()
    symbols = {Residency.SRC: "V", Residency.DST: "V", E: "E", Residency.NTYPE: "A", Residency.ETYPE: "T"}
    inputs = {
        "graph": builder.add(Op.GRAPH, name="graph", type=StructType("V", "V", "E")),
        "seed": builder.add(Op.INPUT, name="seed", type=IndexType(None, None)),
    }
    for name, (tensor, residency) in raised.given(call, captured).items():
        rows = symbols.get(residency)
        dims = tuple(tensor.shape[1:] if rows else tensor.shape)
        inputs[name] = builder.add(Op.INPUT, name=name, type=TensorType(residency, rows, dims, tensor.dtype))
    (value,) = raised.write(builder, inputs, isolated=False, square=True).values()
    return value


def sent(read: Callable[[Any], Tensor]) -> Value:
    """The message field that ``read`` makes of edges: what the sum over it adds up."""
    return program_of(lambda edges: {"m": read(edges)}, total).inputs[1]


def reduced(read: Callable[[Any], Tensor]) -> Value:
    return program_of(send, lambda nodes: {"h": read(nodes)})


def updated(read: Callable[[Any], Tensor]) -> Value:
    return program_of(send, total, lambda nodes: {"h": read(nodes)})


# row of table 1: where it is called -> the value, its movement, its residency, the residency it comes from
TABLE_1: list[tuple[str, Callable[[], Value], Op, Movement, Residency, Residency | None]] = [
    ("edges.data", lambda: sent(lambda e: e.data["w"]), Op.INPUT, Movement.LEAF, E, None),
    ("edges.src", lambda: sent(lambda e: e.src["h"]), Op.BROADCAST_SRC, Movement.BROADCAST, E, Residency.SRC),
    ("edges.dst", lambda: sent(lambda e: e.dst["h"]), Op.BROADCAST_DST, Movement.BROADCAST, E, Residency.SRC),
    ("edges.srctype", lambda: sent(lambda e: e.srctype["A"]), Op.BROADCAST_SRC, Movement.BROADCAST, E, V),
    ("edges.dsttype", lambda: sent(lambda e: e.dsttype["A"]), Op.BROADCAST_DST, Movement.BROADCAST, E, V),
    ("edges.type", lambda: sent(lambda e: e.type["R"]), Op.BROADCAST_ETYPE, Movement.BROADCAST, E, Residency.ETYPE),
    ("nodes.mailbox", lambda: reduced(lambda n: n.mailbox["m"].sum(1)).inputs[1], Op.INPUT, Movement.LEAF, E, None),
    ("nodes.data", lambda: updated(lambda n: n.data["x"]), Op.INPUT, Movement.LEAF, Residency.SRC, None),
    ("nodes.type", lambda: updated(lambda n: n.type["A"]), Op.BROADCAST_NTYPE, Movement.BROADCAST, V, Residency.NTYPE),
    ("sum(dim=1)", lambda: reduced(lambda n: n.mailbox["m"].sum(1)), Op.REDUCE, Movement.REDUCE, V, E),
    ("max(dim=1)", lambda: reduced(lambda n: n.mailbox["m"].max(1)[0]), Op.REDUCE, Movement.REDUCE, V, E),
    (
        "softmax(dim=1)",
        lambda: reduced(lambda n: n.mailbox["m"].softmax(1).sum(1)).inputs[1],
        Op.EDGE_SOFTMAX,
        Movement.NORM,
        E,
        E,
    ),
    ("dense on edges", lambda: sent(lambda e: torch.tanh(e.data["w"])), Op.EWISE, Movement.DENSE, E, E),
    ("dense with shared", lambda: sent(lambda e: e.data["w"] @ WEIGHT), Op.EINSUM, Movement.DENSE, E, E),
    ("dense on nodes", lambda: updated(lambda n: n.data["h"] * 2.0), Op.EWISE, Movement.DENSE, V, V),
]


@pytest.mark.parametrize(("row", "make", "op", "movement", "residency", "source"), TABLE_1, ids=[r[0] for r in TABLE_1])
def test_row_of_table_1(
    row: str, make: Callable[[], Value], op: Op, movement: Movement, residency: Residency, source: Residency | None
) -> None:
    value = make()
    assert value.op is op
    assert SPECS[value.op].movement is movement
    assert value.tensor.residency is residency
    if source is not None:
        rowed = [x for x in value.inputs if isinstance(x.type, TensorType) and x.tensor.rows is not None]
        assert [x.tensor.residency for x in rowed] == [source]


def test_dense_code_on_shared_values_stays_shared() -> None:
    value = sent(lambda e: e.data["w"] @ torch.tanh(WEIGHT))
    assert value.inputs[1].op is Op.EWISE and value.inputs[1].tensor.residency is S


def test_node_rows_next_to_a_mailbox_are_broadcast_to_edges() -> None:
    value = reduced(lambda n: (n.mailbox["m"] * n.data["q"]).sum(1)).inputs[1]
    assert [x.op for x in value.inputs] == [Op.INPUT, Op.BROADCAST_DST]


def test_a_norm_written_out_is_a_reduction_and_a_broadcast() -> None:
    value = reduced(lambda n: (n.mailbox["m"] / n.mailbox["m"].sum(1, keepdim=True)).sum(1)).inputs[1]
    assert value.inputs[1].op is Op.BROADCAST_DST and value.inputs[1].inputs[1].op is Op.REDUCE


ILLEGAL = [
    ("all edges with all edges", sent, lambda e: (e.data["w"] @ e.data["w"].t()).sum(1), "all rows with all rows"),
    ("one edge by position", sent, lambda e: e.data["w"] * e.data["w"][0], "picked by position"),
    ("edges reordered", sent, lambda e: e.data["w"].flip(0), "flip"),
    ("rows mixed with features", sent, lambda e: e.data["w"].view(3, -1).t(), "mixes rows with features"),
    ("nodes added up", reduced, lambda n: n.mailbox["m"].sum(1) - n.mailbox["m"].sum(1).sum(0), "over nodes"),
    ("nodes multiplied", reduced, lambda n: n.data["h"] @ (n.data["h"].t() @ n.data["h"]), "over nodes"),
    ("first message", reduced, lambda n: n.mailbox["m"][:, 0], "picked by position"),
    (
        "messages counted as features",
        reduced,
        lambda n: n.mailbox["m"].flatten(1)[:, :3],
        "features|position|number of",
    ),
    ("running sum", reduced, lambda n: n.mailbox["m"].cumsum(1).sum(1), "cumsum"),
    ("wrong rows", reduced, lambda n: n.mailbox["m"].sum(0), "first dimension|over nodes"),
]


@pytest.mark.parametrize(("name", "where", "read", "reason"), ILLEGAL, ids=[case[0] for case in ILLEGAL])
def test_illegal_mix_is_refused_with_its_line(name: str, where: Any, read: Any, reason: str) -> None:
    with pytest.raises(UnraisableError, match=reason) as caught:
        where(read)
    assert caught.value.line is not None and __file__ in caught.value.line


def test_a_custom_operator_compiles_after_one_line() -> None:
    @torch.library.custom_op("graphweft_test::cube", mutates_args=())
    def cube(x: Tensor) -> Tensor:
        return x**3

    cube.register_fake(torch.empty_like)
    h = torch.randn(5, 3, dtype=F64)
    functions = (lambda edges: {"m": torch.ops.graphweft_test.cube(edges.src["h"])}, total)
    with pytest.warns(gw.FallbackWarning, match="cube"):
        expected = gw.update_all(GRAPH, *functions, ndata={"h": h})["h"]
    gw.nn.register_rule(torch.ops.graphweft_test.cube.default, lambda x: x * x * x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        leaf = h.clone().requires_grad_()
        got = gw.update_all(GRAPH, *functions, ndata={"h": leaf})["h"]
    torch.testing.assert_close(got, expected)
    got.sum().backward()
    torch.testing.assert_close(leaf.grad, 3 * h**2 * GRAPH.out_degrees()[:, None])
