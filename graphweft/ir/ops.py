"""The closed table of operations: name, arity, movement and type rule of each.

Comes in: operand types and attributes. Goes out: the result type, or an IRError that names the operation, what it
expected and what came. Gradient rules are in ``grad.py``, meanings in ``interpret.py``; a test holds the three tables
together.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from graphweft.ir import attention, batch_norm, movement, places, sampling, trailing, typed
from graphweft.ir.expect import expect_dense, expect_graph, expect_index, expect_tensor, require
from graphweft.ir.residency import Movement, Residency, StructType, TensorType, Type


class Op(enum.Enum):
    """Every operation there is."""

    __hash__ = object.__hash__  # as members are compared; that of Enum is a function in Python

    # leaves
    INPUT = enum.auto()  # a tensor, index or seed given at run time
    GRAPH = enum.auto()  # a graph given at run time
    # structure
    REVERSE = enum.auto()  # every edge turned around
    WITHOUT_LOOPS = enum.auto()  # self-loops removed
    ONE_LOOP = enum.auto()  # exactly one self-loop at every node
    TAKE_DST = enum.auto()  # only the destinations listed, in that order; loops: each with one more edge from itself
    IN_DEGREE = enum.auto()  # edges into each destination, as numbers
    RECEIVERS = enum.auto()  # ids of the destinations with in-edges, ascending
    SRC_DEGREE = enum.auto()  # edges into each source in the whole graph that a block was drawn from; loops: with those
    SAMPLE = enum.auto()  # the block of one hop of a neighbourhood drawn around seeds
    SRC_IDS = enum.auto()  # ids in the whole graph of a block's sources
    # movement between nodes and edges
    BROADCAST_SRC = enum.auto()  # edge e gets the row of its source
    BROADCAST_DST = enum.auto()  # edge e gets the row of its destination
    REDUCE = enum.auto()  # destination rows: sum, mean, max or min of its in-edges, 0 without any
    SPMM = enum.auto()  # fused: sum over in-edges of (weight *) source row, plus self_coef * row of the same number
    SPMM_MAX = enum.auto()  # fused: extremum over in-edges of the source row
    SPMM_ARG = enum.auto()  # the source that attains it
    SPMM_MAX_GRAD = enum.auto()  # destination gradients sent to the sources that attained
    SDDMM = enum.auto()  # per edge: dot product of destination row and source row
    EDGE_SOFTMAX = enum.auto()  # over the in-edges of each destination, shifted by their maximum; log: its logarithm
    EDGE_MARGIN = enum.auto()  # by how much, in sum, an edge's score exceeds those of its destination's other in-edges
    EDGE_MARGIN_GRAD = enum.auto()  # its gradient
    ATTENTION = enum.auto()  # fused: sum over in-edges of source rows weighted by the softmax of a score, per head
    ATTENTION_STATS = enum.auto()  # what its gradient reads beside its result
    ATTENTION_GRAD = enum.auto()  # the gradient of one of its operands
    BATCH_STATS = enum.auto()  # means and variances of columns
    BATCH_NORM = enum.auto()  # columns less their means over their deviations, times a weight, plus a bias
    BATCH_NORM_DOT = enum.auto()  # the gradient of its weight
    BATCH_NORM_GRAD = enum.auto()  # that of its rows, through their statistics too
    NORMALISE = enum.auto()  # a batch norm whose means and variances are given
    EDGE_SOFTMAX_GRAD = enum.auto()  # of a whole softmax: its operand's gradient from its result and that's gradient
    REDUCE_MASK = enum.auto()  # per edge: its share in the extremum of its destination
    BROADCAST_NTYPE = enum.auto()  # every node gets the row of its type
    BROADCAST_ETYPE = enum.auto()  # every edge gets the row of its type
    REDUCE_NTYPE = enum.auto()  # rows of the nodes of each type added up
    REDUCE_ETYPE = enum.auto()  # rows of the edges of each type added up
    BROADCAST_SHARED = enum.auto()  # the same row for every edge, source or destination
    TYPED_SPMM = enum.auto()  # fused: sum over in-edges of (weight *) source row times the matrix of its relation
    TYPED_SDDMM = enum.auto()  # per edge: destination row times source row times the matrix of its relation
    TYPED_OUTER = enum.auto()  # per relation: sum over its edges of (weight *) source row times destination row
    TYPE_MATMUL = enum.auto()  # node rows times the matrix of their type, plus its bias
    TYPE_OUTER = enum.auto()  # per node type: sum of products of its rows
    SAME_DEGREE = enum.auto()  # per edge: edges of its relation into its destination
    LOOKUP = enum.auto()  # rows of a shared table by number
    LOOKUP_SUM = enum.auto()  # its transpose: rows added up by number into a shared table
    # rows
    TAKE_ROWS = enum.auto()
    OWN_ROWS = enum.auto()  # of sources' rows those of the destinations, which are the first
    PAD_ROWS = enum.auto()  # its transpose: zeros for the other sources
    SCATTER_ROWS = enum.auto()  # inverse of TAKE_ROWS: as many rows as the third operand, zeros elsewhere
    MATMUL = enum.auto()
    BIAS = enum.auto()  # x + b, one b per column
    COL_SCALE = enum.auto()  # x * v, one v per column
    ROW_SCALE = enum.auto()  # x * s, one s per row
    ROW_ADD = enum.auto()  # x + s, one s per row
    ADD = enum.auto()
    MUL = enum.auto()
    SCALE = enum.auto()  # times a constant
    MUL_SCALAR = enum.auto()  # times a shared scalar
    ADD_CONST = enum.auto()
    POW = enum.auto()  # (x + eps) ** exponent, 0 where x + eps is 0 and the exponent negative
    RELU = enum.auto()
    RELU_MASK = enum.auto()  # first operand where the second is positive, else 0
    DROPOUT = enum.auto()  # kept with probability 1 - p and scaled, by (seed, stream, position)
    # places
    MOVE_START = enum.auto()  # rows begin to move to another memory
    MOVE_WAIT = enum.auto()  # and are there
    # contractions
    COL_SUM = enum.auto()
    ROW_SUM = enum.auto()
    FILL_ROWS = enum.auto()  # a shared row repeated
    FILL_COLS = enum.auto()  # a per-row scalar repeated over columns
    DOT = enum.auto()  # sum of products, a shared scalar
    MAX_ROWS = enum.auto()  # extremum over all rows, shared
    MAX_ROWS_MASK = enum.auto()  # share of every element in it
    # trailing dimensions, row by row
    CONST = enum.auto()  # a shared scalar that never changes
    CAST = enum.auto()  # to another dtype
    DETACH = enum.auto()  # the same without a gradient
    EWISE = enum.auto()  # a function of elementwise.py; trailing dimensions broadcast from the right
    EINSUM = enum.auto()  # sums of products; letter n is the rows
    RESHAPE = enum.auto()
    PERMUTE = enum.auto()
    EXPAND = enum.auto()  # dimensions of size 1 repeated
    SLICE = enum.auto()  # start:stop:step along one dimension
    UNSLICE = enum.auto()  # its transpose: zeros elsewhere
    CAT = enum.auto()
    SUM_DIMS = enum.auto()
    MAX_DIMS = enum.auto()  # extremum over dimensions
    MAX_DIMS_MASK = enum.auto()  # share of every element in it


Infer = Callable[[Sequence[Type], dict[str, Any]], Type]


@dataclass(frozen=True)
class OpSpec:
    """One row of the table."""

    arity: tuple[int, ...]
    movement: Movement
    infer: Infer

    def accepts(self, count: int) -> bool:
        """Whether ``count`` operands are allowed."""
        return count in self.arity


def _given(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    given: Type = attrs["type"]
    return given


def _reverse(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    graph = expect_graph("reverse", types[0])
    return StructType(graph.dst, graph.src, graph.edge)


def _without_loops(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    graph = expect_graph("without_loops", types[0])
    return replace(graph, edge=f"{graph.edge}-loops")


def _one_loop(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    graph = expect_graph("one_loop", types[0])
    return replace(graph, edge=f"{graph.edge}+loops")


def _take_dst(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    graph, rows = expect_graph("take_dst", types[0]), expect_index("take_dst", types[1])
    require("take_dst", rows.into == graph.dst and rows.rows is not None, f"ids of {graph.dst}", rows)
    if attrs.get("loops"):
        require("take_dst", graph.square, "a square graph for its self-loops", graph)
    edge = f"{graph.edge}+loops" if attrs.get("loops") else graph.edge
    return StructType(graph.src, str(rows.rows), f"{edge}@{rows.rows}")


def _degree(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    return TensorType(Residency.DST, expect_graph("in_degree", types[0]).dst, (), attrs.get("dtype", torch.float32))


def _broadcast_src(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    graph, x = expect_graph("broadcast_src", types[0]), expect_dense("broadcast_src", types[1])
    require("broadcast_src", x.rows == graph.src, f"rows {graph.src}", x)
    return replace(x, residency=Residency.EDGE, rows=graph.edge)


def _broadcast_dst(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    graph, x = expect_graph("broadcast_dst", types[0]), expect_dense("broadcast_dst", types[1])
    require("broadcast_dst", x.rows == graph.dst, f"rows {graph.dst}", x)
    return replace(x, residency=Residency.EDGE, rows=graph.edge)


def _reduce(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    graph, x = expect_graph("reduce", types[0]), expect_dense("reduce", types[1])
    require("reduce", attrs.get("kind") in ("sum", "mean", "max", "min"), "sum, mean, max or min", attrs.get("kind"))
    require("reduce", x.rows == graph.edge, f"rows {graph.edge}", x)
    require("reduce", attrs.get("ties", "first") in ("first", "split"), "ties first or split", attrs.get("ties"))
    return replace(x, residency=Residency.DST, rows=graph.dst)


def _spmm(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    graph, x = expect_graph("spmm", types[0]), expect_dense("spmm", types[1])
    require("spmm", x.rows == graph.src, f"rows {graph.src}", x)
    require("spmm", len(x.dims) == 1, "a matrix of node rows", x)
    if len(types) == 3:
        weight = expect_dense("spmm", types[2])
        require("spmm", weight.rows == graph.edge and weight.dims == (), f"one weight per {graph.edge}", weight)
    return replace(x, residency=Residency.DST, rows=graph.dst)


def _spmm_arg(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    out = _spmm(types, {})
    return replace(expect_tensor("spmm_arg", out), dtype=torch.int32)


def _spmm_max_grad(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    graph, arg, dy = (
        expect_graph("spmm_max_grad", types[0]),
        expect_tensor("spmm_max_grad", types[1]),
        expect_dense("", types[2]),
    )
    require("spmm_max_grad", arg.rows == dy.rows == graph.dst and arg.dims == dy.dims, f"rows {graph.dst}", arg, dy)
    return replace(dy, residency=Residency.SRC, rows=graph.src)


def _sddmm(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    graph, a, b = expect_graph("sddmm", types[0]), expect_dense("sddmm", types[1]), expect_dense("sddmm", types[2])
    require(
        "sddmm", a.rows == graph.dst and b.rows == graph.src and a.dims == b.dims, "destination and source rows", a, b
    )
    return TensorType(Residency.EDGE, graph.edge, (), a.dtype)


def _take_rows(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    x, index = expect_tensor("take_rows", types[0]), expect_index("take_rows", types[1])
    require("take_rows", x.rows == index.into, f"ids of {x.rows}", index)
    residency = Residency.SRC if attrs.get("to") == "src" else Residency.DST
    return replace(x, residency=residency, rows=index.rows)


def _scatter_rows(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    x, index, like = (
        expect_dense("scatter_rows", types[0]),
        expect_index("scatter_rows", types[1]),
        expect_tensor("", types[2]),
    )
    require("scatter_rows", x.rows == index.rows and like.rows == index.into, f"rows {index.rows}", x, like)
    return replace(x, residency=like.residency, rows=index.into)


def _matmul(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    a, b = expect_tensor("matmul", types[0]), expect_dense("matmul", types[1])
    require("matmul", len(a.dims) == (2 if a.rows is None else 1), "a matrix", a)
    if attrs.get("ta"):  # contraction over rows
        require("matmul", a.rows == b.rows and a.rows is not None and len(b.dims) == 1, "equal rows", a, b)
        return TensorType(Residency.SHARED, None, (a.dims[0], b.dims[0]), b.dtype)
    require("matmul", b.rows is None and len(b.dims) == 2, "a shared weight matrix", b)
    inner, outer = (b.dims[1], b.dims[0]) if attrs.get("tb") else b.dims
    require("matmul", a.dims[-1] == inner, f"inner sizes to agree ({a.dims[-1]} and {inner})", a, b)
    return replace(a, dims=(*a.dims[:-1], outer), dtype=b.dtype, sparse=False)


def _per_column(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    x, v = expect_dense("column op", types[0]), expect_dense("column op", types[1])
    require("column op", v.rows is None and v.dims == x.dims[-1:], f"a shared vector of {x.dims[-1:]}", v)
    return x


def _per_row(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    x, s = expect_dense("row op", types[0]), expect_dense("row op", types[1])
    require("row op", s.rows == x.rows and s.dims == (), f"one number per {x.rows}", s)
    return x


def _same(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    x, y = expect_dense("elementwise", types[0]), expect_dense("elementwise", types[1])
    require("elementwise", x.rows == y.rows and x.dims == y.dims, "equal shapes", x, y)
    return x


def _unary(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    return expect_dense("elementwise", types[0])


def _mul_scalar(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    x, s = expect_dense("mul_scalar", types[0]), expect_dense("mul_scalar", types[1])
    require("mul_scalar", s.rows is None and s.dims == (), "a shared scalar", s)
    return x


def _dropout(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    x = expect_tensor("dropout", types[0])
    seed = expect_index("dropout", types[1])
    require("dropout", seed.rows is None and 0.0 <= attrs["p"] < 1.0, "a seed and p in [0, 1)", seed, attrs["p"])
    return x


def _col_sum(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    x = expect_dense("col_sum", types[0])
    require("col_sum", x.rows is not None and len(x.dims) == 1, "a matrix of rows", x)
    return replace(x, residency=Residency.SHARED, rows=None)


def _row_sum(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    x = expect_dense("row_sum", types[0])
    require("row_sum", x.rows is not None and len(x.dims) == 1, "a matrix of rows", x)
    return replace(x, dims=())


def _fill_rows(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    v, like = expect_dense("fill_rows", types[0]), expect_dense("fill_rows", types[1])
    require("fill_rows", v.rows is None and v.dims == like.dims, f"a shared row of {like.dims}", v)
    return like


def _fill_cols(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    s = expect_dense("fill_cols", types[0])
    require("fill_cols", s.rows is not None and s.dims == (), "one number per row", s)
    return replace(s, dims=(attrs["width"],))


def _dot(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    x = expect_tensor("dot", _same(types, attrs))
    return TensorType(Residency.SHARED, None, (), x.dtype)


_M = Movement
SPECS: dict[Op, OpSpec] = {
    Op.INPUT: OpSpec((0,), _M.LEAF, _given),
    Op.GRAPH: OpSpec((0,), _M.LEAF, _given),
    Op.REVERSE: OpSpec((1,), _M.STRUCTURE, _reverse),
    Op.WITHOUT_LOOPS: OpSpec((1,), _M.STRUCTURE, _without_loops),
    Op.ONE_LOOP: OpSpec((1,), _M.STRUCTURE, _one_loop),
    Op.TAKE_DST: OpSpec((2,), _M.STRUCTURE, _take_dst),
    Op.IN_DEGREE: OpSpec((1,), _M.STRUCTURE, _degree),
    Op.RECEIVERS: OpSpec((1,), _M.STRUCTURE, movement.receivers),
    Op.SRC_DEGREE: OpSpec((1,), _M.STRUCTURE, movement.src_degree),
    Op.SAMPLE: OpSpec((3,), _M.STRUCTURE, sampling.sample),
    Op.SRC_IDS: OpSpec((2,), _M.STRUCTURE, sampling.src_ids),
    Op.BROADCAST_SRC: OpSpec((2,), _M.BROADCAST, _broadcast_src),
    Op.BROADCAST_DST: OpSpec((2,), _M.BROADCAST, _broadcast_dst),
    Op.REDUCE: OpSpec((2,), _M.REDUCE, _reduce),
    Op.SPMM: OpSpec((2, 3), _M.REDUCE, _spmm),
    Op.SPMM_MAX: OpSpec((2,), _M.REDUCE, _spmm),
    Op.SPMM_ARG: OpSpec((2,), _M.REDUCE, _spmm_arg),
    Op.SPMM_MAX_GRAD: OpSpec((3,), _M.REDUCE, _spmm_max_grad),
    Op.SDDMM: OpSpec((3,), _M.BROADCAST, _sddmm),
    Op.TAKE_ROWS: OpSpec((2,), _M.DENSE, _take_rows),
    Op.OWN_ROWS: OpSpec((2,), _M.DENSE, movement.own_rows),
    Op.PAD_ROWS: OpSpec((2,), _M.DENSE, movement.pad_rows),
    Op.SCATTER_ROWS: OpSpec((3,), _M.DENSE, _scatter_rows),
    Op.MATMUL: OpSpec((2,), _M.DENSE, _matmul),
    Op.BIAS: OpSpec((2,), _M.DENSE, _per_column),
    Op.COL_SCALE: OpSpec((2,), _M.DENSE, _per_column),
    Op.ROW_SCALE: OpSpec((2,), _M.DENSE, _per_row),
    Op.ROW_ADD: OpSpec((2,), _M.DENSE, _per_row),
    Op.ADD: OpSpec((2,), _M.DENSE, _same),
    Op.MUL: OpSpec((2,), _M.DENSE, _same),
    Op.SCALE: OpSpec((1,), _M.DENSE, _unary),
    Op.MUL_SCALAR: OpSpec((2,), _M.DENSE, _mul_scalar),
    Op.ADD_CONST: OpSpec((1,), _M.DENSE, _unary),
    Op.POW: OpSpec((1,), _M.DENSE, _unary),
    Op.RELU: OpSpec((1,), _M.DENSE, _unary),
    Op.RELU_MASK: OpSpec((2,), _M.DENSE, _same),
    Op.DROPOUT: OpSpec((2,), _M.DENSE, _dropout),
    Op.MOVE_START: OpSpec((2,), _M.PLACE, places.move_start),
    Op.MOVE_WAIT: OpSpec((1,), _M.PLACE, places.move_wait),
    Op.COL_SUM: OpSpec((1,), _M.CONTRACT, _col_sum),
    Op.ROW_SUM: OpSpec((1,), _M.DENSE, _row_sum),
    Op.FILL_ROWS: OpSpec((2,), _M.BROADCAST, _fill_rows),
    Op.FILL_COLS: OpSpec((1,), _M.DENSE, _fill_cols),
    Op.DOT: OpSpec((2,), _M.CONTRACT, _dot),
    Op.EDGE_SOFTMAX: OpSpec((2,), _M.NORM, movement.edge_softmax),
    Op.EDGE_MARGIN: OpSpec((2,), _M.NORM, movement.edge_margin),
    Op.EDGE_MARGIN_GRAD: OpSpec((3,), _M.NORM, movement.edge_margin_grad),
    Op.ATTENTION: OpSpec((4, 5), _M.NORM, attention.attention),
    Op.ATTENTION_STATS: OpSpec((4, 5), _M.NORM, attention.attention_stats),
    Op.ATTENTION_GRAD: OpSpec((8, 9), _M.NORM, attention.attention_grad),
    Op.BATCH_STATS: OpSpec((1,), _M.CONTRACT, batch_norm.batch_stats),
    Op.BATCH_NORM: OpSpec((2, 4), _M.DENSE, batch_norm.batch_norm),
    Op.BATCH_NORM_DOT: OpSpec((3,), _M.CONTRACT, batch_norm.batch_norm_dot),
    Op.BATCH_NORM_GRAD: OpSpec((5, 6), _M.DENSE, batch_norm.batch_norm_grad),
    Op.NORMALISE: OpSpec((3, 5), _M.DENSE, batch_norm.normalise),
    Op.EDGE_SOFTMAX_GRAD: OpSpec((3,), _M.NORM, movement.edge_softmax_grad),
    Op.REDUCE_MASK: OpSpec((2,), _M.NORM, movement.reduce_mask),
    Op.BROADCAST_NTYPE: OpSpec((2,), _M.BROADCAST, movement.broadcast_ntype),
    Op.BROADCAST_ETYPE: OpSpec((2,), _M.BROADCAST, movement.broadcast_etype),
    Op.REDUCE_NTYPE: OpSpec((2,), _M.REDUCE, movement.reduce_ntype),
    Op.REDUCE_ETYPE: OpSpec((2,), _M.REDUCE, movement.reduce_etype),
    Op.BROADCAST_SHARED: OpSpec((2,), _M.BROADCAST, movement.broadcast_shared),
    Op.TYPED_SPMM: OpSpec((3, 4), _M.REDUCE, typed.typed_spmm),
    Op.TYPED_SDDMM: OpSpec((4,), _M.BROADCAST, typed.typed_sddmm),
    Op.TYPED_OUTER: OpSpec((3, 4), _M.REDUCE, typed.typed_outer),
    Op.TYPE_MATMUL: OpSpec((3, 4), _M.DENSE, typed.type_matmul),
    Op.TYPE_OUTER: OpSpec((3,), _M.REDUCE, typed.type_outer),
    Op.SAME_DEGREE: OpSpec((1,), _M.STRUCTURE, typed.same_degree),
    Op.LOOKUP: OpSpec((2,), _M.BROADCAST, movement.lookup),
    Op.LOOKUP_SUM: OpSpec((2,), _M.CONTRACT, movement.lookup_sum),
    Op.MAX_ROWS: OpSpec((1,), _M.CONTRACT, movement.max_rows),
    Op.MAX_ROWS_MASK: OpSpec((1,), _M.DENSE, movement.max_rows_mask),
    Op.CONST: OpSpec((0,), _M.LEAF, trailing.const),
    Op.CAST: OpSpec((1,), _M.DENSE, trailing.cast),
    Op.DETACH: OpSpec((1,), _M.DENSE, trailing.detach),
    Op.EWISE: OpSpec((1, 2, 3), _M.DENSE, trailing.ewise),
    Op.EINSUM: OpSpec((1, 2, 3), _M.DENSE, trailing.einsum),
    Op.RESHAPE: OpSpec((1,), _M.DENSE, trailing.reshape),
    Op.PERMUTE: OpSpec((1,), _M.DENSE, trailing.permute),
    Op.EXPAND: OpSpec((1,), _M.DENSE, trailing.expand),
    Op.SLICE: OpSpec((1,), _M.DENSE, trailing.slice_dim),
    Op.UNSLICE: OpSpec((1,), _M.DENSE, trailing.unslice),
    Op.CAT: OpSpec(tuple(range(1, 65)), _M.DENSE, trailing.cat),
    Op.SUM_DIMS: OpSpec((1,), _M.DENSE, trailing.sum_dims),
    Op.MAX_DIMS: OpSpec((1,), _M.DENSE, trailing.max_dims),
    Op.MAX_DIMS_MASK: OpSpec((1,), _M.DENSE, trailing.max_dims_mask),
}

STRUCTURE = frozenset(op for op, spec in SPECS.items() if spec.movement is Movement.STRUCTURE)
LEAVES = frozenset({Op.INPUT, Op.GRAPH})
