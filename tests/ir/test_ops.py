"""Type rules: what each operation accepts, what it refuses and how it says so."""

from __future__ import annotations

import pytest
import torch
from ir.programs import Writer, one_op_programs

from graphweft._errors import IRError
from graphweft.ir.ops import SPECS, Op
from graphweft.ir.program import Builder
from graphweft.ir.residency import IndexType, Movement, Residency, StructType, TensorType
from graphweft.ir.verify import verify

V, E, S = Residency.DST, Residency.EDGE, Residency.SHARED
NODES = TensorType(V, "V", (3,))
OTHER = TensorType(V, "U", (3,))
EDGES = TensorType(E, "E", (3,))
PER_NODE = TensorType(V, "V", ())
PER_EDGE = TensorType(E, "E", ())
WEIGHT = TensorType(S, None, (3, 2))
VECTOR = TensorType(S, None, (3,))
SPARSE = TensorType(Residency.SRC, "V", (3,), torch.float32, sparse=True)
GRAPH = StructType("V", "V", "E")
BLOCK = StructType("V", "R", "F")
ROWS = IndexType("R", "V")
SEED = IndexType(None, None)


def _value(type_: object) -> object:
    op = Op.GRAPH if isinstance(type_, StructType) else Op.INPUT
    return Builder().add(op, name="v", type=type_)


MATRICES = TensorType(Residency.ETYPE, "T", (2, 3, 4))
BY_TYPE = TensorType(Residency.NTYPE, "A", (3, 4))
HEADS = TensorType(V, "V", (2, 3))
WIDE = TensorType(V, "V", (2, 4))
PER_HEAD = TensorType(E, "E", (2,))
FORTH = {"transposed": False}

ACCEPTED = [
    (Op.TYPED_SPMM, (GRAPH, HEADS, MATRICES, PER_HEAD), FORTH, WIDE),
    (Op.TYPED_SPMM, (GRAPH, WIDE, MATRICES), {"transposed": True}, HEADS),
    (Op.TYPED_SDDMM, (GRAPH, HEADS, MATRICES, WIDE), {**FORTH, "by_head": True}, PER_HEAD),
    (Op.TYPED_SDDMM, (GRAPH, HEADS, MATRICES, WIDE), {**FORTH, "by_head": False}, PER_EDGE),
    (Op.TYPED_OUTER, (GRAPH, HEADS, WIDE, PER_EDGE), {}, MATRICES),
    (Op.TYPE_MATMUL, (GRAPH, NODES, BY_TYPE), FORTH, TensorType(V, "V", (4,))),
    (Op.TYPE_OUTER, (GRAPH, NODES, TensorType(V, "V", (4,))), {}, BY_TYPE),
    (Op.SAME_DEGREE, (GRAPH,), {}, PER_EDGE),
    (Op.EDGE_SOFTMAX_GRAD, (GRAPH, EDGES, EDGES), {}, EDGES),
    (Op.REVERSE, (BLOCK,), {}, StructType("R", "V", "F")),
    (Op.TAKE_DST, (GRAPH, ROWS), {}, StructType("V", "R", "E@R")),
    (Op.OWN_ROWS, (BLOCK, NODES), {}, TensorType(V, "R", (3,))),
    (Op.PAD_ROWS, (StructType("V", "U", "F"), OTHER), {}, TensorType(Residency.SRC, "V", (3,))),
    (Op.RECEIVERS, (BLOCK,), {}, IndexType("R-receivers", "R")),
    (Op.SRC_DEGREE, (BLOCK,), {}, TensorType(Residency.SRC, "V", ())),
    (Op.BROADCAST_SRC, (GRAPH, NODES), {}, EDGES),
    (Op.BROADCAST_DST, (GRAPH, NODES), {}, EDGES),
    (Op.REDUCE, (GRAPH, EDGES), {"kind": "max"}, NODES),
    (Op.EDGE_MARGIN, (GRAPH, EDGES), {}, EDGES),
    (Op.EDGE_MARGIN_GRAD, (GRAPH, EDGES, EDGES), {"closed": True}, EDGES),
    (Op.SPMM, (BLOCK, NODES), {}, TensorType(V, "R", (3,))),
    (Op.SPMM, (GRAPH, NODES, PER_EDGE), {}, NODES),
    (Op.SDDMM, (GRAPH, NODES, NODES), {}, PER_EDGE),
    (Op.TAKE_ROWS, (NODES, ROWS), {}, TensorType(V, "R", (3,))),
    (Op.MATMUL, (NODES, WEIGHT), {}, TensorType(V, "V", (2,))),
    (Op.MATMUL, (SPARSE, WEIGHT), {}, TensorType(Residency.SRC, "V", (2,))),
    (Op.MATMUL, (NODES, NODES), {"ta": True}, TensorType(S, None, (3, 3))),
    (Op.MATMUL, (SPARSE, NODES), {"ta": True}, TensorType(S, None, (3, 3))),
    (Op.DROPOUT, (SPARSE, SEED), {"p": 0.5, "stream": 1}, SPARSE),
    (Op.COL_SUM, (NODES,), {}, VECTOR),
    (Op.ROW_SUM, (NODES,), {}, PER_NODE),
    (Op.FILL_ROWS, (VECTOR, NODES), {}, NODES),
    (Op.FILL_COLS, (PER_NODE,), {"width": 3}, NODES),
    (Op.DOT, (NODES, NODES), {}, TensorType(S, None, ())),
]

REFUSED = [
    (Op.TYPED_SPMM, (GRAPH, WIDE, MATRICES), FORTH, "rows V of 2 x 3"),
    (Op.TYPED_SPMM, (GRAPH, HEADS, MATRICES, EDGES), FORTH, "one number per E, or 2"),
    (Op.TYPED_SPMM, (BLOCK, HEADS, MATRICES), FORTH, "over one set of nodes"),
    (Op.TYPED_SDDMM, (GRAPH, HEADS, MATRICES, HEADS), {**FORTH, "by_head": True}, "rows like"),
    (Op.TYPED_OUTER, (GRAPH, HEADS, NODES), {}, "equal heads"),
    (Op.TYPE_MATMUL, (GRAPH, NODES, MATRICES), FORTH, "rows A of 2 dimensions"),
    (Op.TYPE_OUTER, (GRAPH, NODES, EDGES), {}, "rows V"),
    (Op.SAME_DEGREE, (BLOCK,), {}, "over one set of nodes"),
    (Op.EDGE_SOFTMAX_GRAD, (GRAPH, EDGES, PER_EDGE), {}, "a gradient like"),
    (Op.BROADCAST_SRC, (GRAPH, OTHER), {}, "broadcast_src: expected rows V, got"),
    (Op.BROADCAST_DST, (BLOCK, NODES), {}, "broadcast_dst: expected rows R, got"),
    (Op.OWN_ROWS, (BLOCK, OTHER), {}, "own_rows: expected rows V, got"),
    (Op.PAD_ROWS, (BLOCK, NODES), {}, "pad_rows: expected rows R, got"),
    (Op.RECEIVERS, (NODES,), {}, "receivers: expected a graph, got"),
    (Op.SRC_DEGREE, (NODES,), {}, "src_degree: expected a graph, got"),
    (Op.REDUCE, (GRAPH, NODES), {"kind": "sum"}, "reduce: expected rows E, got"),
    (Op.REDUCE, (GRAPH, EDGES), {"kind": "median"}, "expected sum, mean, max or min, got median"),
    (Op.EDGE_MARGIN, (GRAPH, NODES), {}, "edge_margin: expected rows E, got"),
    (Op.EDGE_MARGIN_GRAD, (GRAPH, EDGES, PER_EDGE), {}, "edge_margin_grad: expected"),
    (Op.SPMM, (GRAPH, SPARSE), {}, "expected dense rows, got"),
    (Op.SPMM, (GRAPH, NODES, PER_NODE), {}, "expected one weight per E"),
    (Op.SPMM, (NODES, NODES), {}, "spmm: expected a graph, got"),
    (Op.TAKE_DST, (BLOCK, ROWS), {}, "take_dst: expected ids of R"),
    (Op.MATMUL, (NODES, VECTOR), {}, "expected a shared weight matrix"),
    (Op.MATMUL, (NODES, WEIGHT), {"tb": True}, "inner sizes to agree"),
    (Op.MATMUL, (NODES, EDGES), {"ta": True}, "expected equal rows"),
    (Op.BIAS, (NODES, PER_NODE), {}, "expected a shared vector"),
    (Op.ROW_SCALE, (NODES, VECTOR), {}, "expected one number per V"),
    (Op.ADD, (NODES, EDGES), {}, "expected equal shapes"),
    (Op.ADD, (NODES,), {}, r"add: expected \(2,\) operands, got 1"),
    (Op.DROPOUT, (NODES, SEED), {"p": 1.0, "stream": 0}, "p in"),
    (Op.DROPOUT, (NODES, ROWS), {"p": 0.5, "stream": 0}, "expected a seed"),
    (Op.COL_SUM, (VECTOR,), {}, "expected a matrix of rows"),
]


@pytest.mark.parametrize(("op", "operands", "attrs", "expected"), ACCEPTED)
def test_type_rule(op: Op, operands: tuple[object, ...], attrs: dict[str, object], expected: object) -> None:
    made = Builder().add(op, *[_value(t) for t in operands], **attrs)  # type: ignore[arg-type]
    assert made.type == expected


@pytest.mark.parametrize(("op", "operands", "attrs", "message"), REFUSED)
def test_refusal_names_what_was_expected(
    op: Op, operands: tuple[object, ...], attrs: dict[str, object], message: str
) -> None:
    with pytest.raises(IRError, match=message):
        Builder().add(op, *[_value(t) for t in operands], **attrs)  # type: ignore[arg-type]


def test_every_operation_has_a_movement() -> None:
    assert set(SPECS) == set(Op)
    assert all(isinstance(spec.movement, Movement) for spec in SPECS.values())


def test_all_one_op_programs_verify() -> None:
    for program in one_op_programs().values():
        verify(program)


def test_printed_form() -> None:
    w = Writer()
    h = w.b.add(Op.SPMM, w.graph(), w.b.add(Op.MATMUL, w.nodes(), w.shared("W", 3, 2)), self_coef=1.0)
    assert str(w.done(out=w.b.add(Op.RELU, h))) == (
        "%graph = graph(type=graph[V -> V, E]) : graph[V -> V, E]\n"
        "%x = input(type=dst[V x 3] float64) : dst[V x 3] float64\n"
        "%W = input(type=shared[3 x 2] float64) : shared[3 x 2] float64\n"
        "%0 = matmul(%x, %W) : dst[V x 2] float64\n"
        "%1 = spmm(%graph, %0, self_coef=1.0) : dst[V x 2] float64\n"
        "%2 = relu(%1) : dst[V x 2] float64\n"
        "return out=%2"
    )


def test_verify_refuses_a_leaf_that_is_no_input() -> None:
    w = Writer()
    made = w.b.add(Op.RELU, w.nodes())
    w.inputs.clear()
    with pytest.raises(IRError, match="expected every leaf among the inputs, got 'x'"):
        verify(w.done(out=made))
