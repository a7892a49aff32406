"""Small programs for tests: one per operation, and random inputs for any program, in float64."""

from __future__ import annotations

from typing import Any

import torch
from zoo import Edges

from graphweft.graph.graph import Graph
from graphweft.ir.ops import Op
from graphweft.ir.program import Builder, Program, Value
from graphweft.ir.residency import IndexType, Residency, StructType, TensorType

F64 = torch.float64
WIDTH = 3
KINDS = 4  # rows of a lookup table


class Writer:
    """Writes a program over a square graph with the inputs it asks for."""

    def __init__(self) -> None:
        self.b = Builder()
        self.inputs: list[Value] = []

    def graph(self) -> Value:
        return self._input(Op.GRAPH, "graph", StructType("V", "V", "E"))

    def nodes(self, name: str = "x", width: int | None = WIDTH) -> Value:
        dims = () if width is None else (width,)
        return self._input(Op.INPUT, name, TensorType(Residency.DST, "V", dims, F64))

    def edges(self, name: str = "e", width: int | None = WIDTH) -> Value:
        dims = () if width is None else (width,)
        return self._input(Op.INPUT, name, TensorType(Residency.EDGE, "E", dims, F64))

    def shared(self, name: str, *dims: int) -> Value:
        return self._input(Op.INPUT, name, TensorType(Residency.SHARED, None, dims, F64))

    def rows_of(self, name: str, *dims: int, dtype: torch.dtype = F64) -> Value:
        """Node rows of any trailing dimensions."""
        return self._input(Op.INPUT, name, TensorType(Residency.DST, "V", dims, dtype))

    def of_types(self, name: str, residency: Residency, *dims: int) -> Value:
        """A table of node or edge types."""
        return self._input(
            Op.INPUT, name, TensorType(residency, "A" if residency is Residency.NTYPE else "T", dims, F64)
        )

    def kinds(self) -> Value:
        """A number below KINDS per edge."""
        return self._input(Op.INPUT, "kinds", TensorType(Residency.EDGE, "E", (), torch.int64))

    def rows(self) -> Value:
        return self._input(Op.INPUT, "rows", IndexType("R", "V"))

    def seed(self) -> Value:
        return self._input(Op.INPUT, "seed", IndexType(None, None))

    def hop(self, **attrs: Any) -> Value:
        """The hop of a draw of two around ``rows``."""
        key = self._input(Op.INPUT, "key", IndexType(None, None))
        return self.b.add(Op.SAMPLE, self.graph(), self.rows(), key, fanouts=(3, 2), **attrs)

    def done(self, **outputs: Value) -> Program:
        return Program(tuple(self.inputs), tuple(outputs.items()))

    def _input(self, op: Op, name: str, type_: Any) -> Value:
        for value in self.inputs:
            if value["name"] == name:
                return value
        self.inputs.append(self.b.add(op, name=name, type=type_))
        return self.inputs[-1]


def one_op_programs() -> dict[Op, Program]:
    """For every operation but leaves, a program whose output is that operation on fresh inputs."""
    made: dict[Op, Program] = {}

    def put(op: Op, build: Any) -> None:
        w = Writer()
        made[op] = w.done(out=build(w, w.b.add))

    put(Op.REVERSE, lambda w, a: a(Op.SPMM, a(Op.REVERSE, w.graph()), w.nodes(), self_coef=0.0))
    put(Op.WITHOUT_LOOPS, lambda w, a: a(Op.SPMM, a(Op.WITHOUT_LOOPS, w.graph()), w.nodes(), self_coef=1.0))
    put(Op.ONE_LOOP, lambda w, a: a(Op.SPMM, a(Op.ONE_LOOP, w.graph()), w.nodes(), self_coef=0.0))
    put(Op.TAKE_DST, lambda w, a: a(Op.SPMM, a(Op.TAKE_DST, w.graph(), w.rows()), w.nodes(), self_coef=0.0))
    put(Op.IN_DEGREE, lambda w, a: a(Op.ROW_SCALE, w.nodes(), a(Op.IN_DEGREE, w.graph(), dtype=F64)))
    put(Op.SRC_DEGREE, lambda w, a: a(Op.ROW_SCALE, w.nodes(), a(Op.SRC_DEGREE, w.graph(), dtype=F64)))
    put(Op.SAMPLE, lambda w, a: a(Op.SPMM, w.hop(hop=1, open=True), w.nodes()))
    put(Op.RECEIVERS, lambda w, a: a(Op.TAKE_ROWS, w.nodes(), a(Op.RECEIVERS, w.graph())))
    put(Op.SRC_IDS, lambda w, a: a(Op.TAKE_ROWS, w.nodes(), a(Op.SRC_IDS, w.hop(hop=1), w.graph()), to="src"))
    put(Op.OWN_ROWS, lambda w, a: a(Op.OWN_ROWS, w.graph(), w.nodes()))
    put(Op.PAD_ROWS, lambda w, a: a(Op.PAD_ROWS, w.graph(), w.nodes()))
    put(Op.BROADCAST_SRC, lambda w, a: a(Op.BROADCAST_SRC, w.graph(), w.nodes()))
    put(Op.BROADCAST_DST, lambda w, a: a(Op.BROADCAST_DST, w.graph(), w.nodes()))
    put(Op.REDUCE, lambda w, a: a(Op.REDUCE, w.graph(), w.edges(), kind="mean"))
    put(Op.SPMM, lambda w, a: a(Op.SPMM, w.graph(), w.nodes(), w.edges("weight", None), self_coef=0.5))
    put(Op.SPMM_MAX, lambda w, a: a(Op.SPMM_MAX, w.graph(), w.nodes(), kind="max"))
    put(Op.SPMM_ARG, lambda w, a: a(Op.SPMM_ARG, w.graph(), w.nodes(), kind="min"))
    put(
        Op.SPMM_MAX_GRAD,
        lambda w, a: a(Op.SPMM_MAX_GRAD, w.graph(), a(Op.SPMM_ARG, w.graph(), w.nodes(), kind="max"), w.nodes("y")),
    )
    put(Op.SDDMM, lambda w, a: a(Op.SDDMM, w.graph(), w.nodes("x"), w.nodes("y")))
    put(Op.TAKE_ROWS, lambda w, a: a(Op.TAKE_ROWS, w.nodes(), w.rows()))
    put(Op.SCATTER_ROWS, lambda w, a: a(Op.SCATTER_ROWS, a(Op.TAKE_ROWS, w.nodes(), w.rows()), w.rows(), w.nodes("y")))
    put(Op.MATMUL, lambda w, a: a(Op.MATMUL, w.nodes(), w.shared("W", WIDTH, 2)))
    put(Op.BIAS, lambda w, a: a(Op.BIAS, w.nodes(), w.shared("b", WIDTH)))
    put(Op.COL_SCALE, lambda w, a: a(Op.COL_SCALE, w.nodes(), w.shared("v", WIDTH)))
    put(Op.ROW_SCALE, lambda w, a: a(Op.ROW_SCALE, w.nodes(), w.nodes("s", None)))
    put(Op.ROW_ADD, lambda w, a: a(Op.ROW_ADD, w.nodes(), w.nodes("s", None)))
    put(Op.ADD, lambda w, a: a(Op.ADD, w.nodes("x"), w.nodes("y")))
    put(Op.MUL, lambda w, a: a(Op.MUL, w.nodes("x"), w.nodes("y")))
    put(Op.SCALE, lambda w, a: a(Op.SCALE, w.nodes(), factor=-2.5))
    put(Op.MUL_SCALAR, lambda w, a: a(Op.MUL_SCALAR, w.nodes(), w.shared("s")))
    put(Op.ADD_CONST, lambda w, a: a(Op.ADD_CONST, w.nodes(), constant=0.5))
    put(Op.POW, lambda w, a: a(Op.POW, a(Op.MUL, w.nodes(), w.nodes()), exponent=-0.5, eps=0.1))
    put(Op.RELU, lambda w, a: a(Op.RELU, w.nodes()))
    put(Op.RELU_MASK, lambda w, a: a(Op.RELU_MASK, w.nodes("x"), w.nodes("y")))
    put(Op.DROPOUT, lambda w, a: a(Op.DROPOUT, w.nodes(), w.seed(), p=0.4, stream=1))
    put(Op.COL_SUM, lambda w, a: a(Op.COL_SUM, w.nodes(), mean=True))
    put(Op.ROW_SUM, lambda w, a: a(Op.ROW_SUM, w.nodes()))
    put(Op.FILL_ROWS, lambda w, a: a(Op.FILL_ROWS, w.shared("v", WIDTH), w.nodes()))
    put(Op.FILL_COLS, lambda w, a: a(Op.FILL_COLS, w.nodes("s", None), width=WIDTH))
    put(Op.DOT, lambda w, a: a(Op.DOT, w.nodes("x"), w.nodes("y")))
    for op in (Op.MOVE_START, Op.MOVE_WAIT):
        put(op, lambda w, a: a(Op.MOVE_WAIT, a(Op.MOVE_START, w.nodes(), w.seed(), to="tier")))
    _put_norms(put)
    _put_moves(put)
    _put_dims(put)
    return made


def _put_norms(put: Any) -> None:
    """Batch norms."""

    def vectors(w: Writer, *names: str) -> list[Value]:
        return [w.shared(name, WIDTH) for name in names]

    def positive(w: Writer, a: Any) -> Value:
        variance = w.shared("variance", WIDTH)
        return a(Op.MUL, variance, variance)

    def own(w: Writer, a: Any) -> tuple[Value, Value]:
        x = w.nodes()
        return x, a(Op.BATCH_STATS, x)

    def gradient(w: Writer, a: Any) -> Value:
        given = (*own(w, a), w.nodes("dy"))
        sums = (a(Op.BATCH_NORM_DOT, *given, eps=0.1), a(Op.COL_SUM, given[2]))
        return a(Op.BATCH_NORM_GRAD, *given, *sums, *vectors(w, "weight"), eps=0.1)

    put(Op.BATCH_NORM, lambda w, a: a(Op.BATCH_NORM, *own(w, a), *vectors(w, "weight", "bias"), eps=0.1))
    put(Op.BATCH_STATS, lambda w, a: own(w, a)[1])
    put(Op.BATCH_NORM_DOT, lambda w, a: a(Op.BATCH_NORM_DOT, *own(w, a), w.nodes("dy"), eps=0.1))
    put(Op.BATCH_NORM_GRAD, gradient)
    put(
        Op.NORMALISE,
        lambda w, a: a(
            Op.NORMALISE, w.nodes(), w.shared("mean", WIDTH), positive(w, a), *vectors(w, "weight", "bias"), eps=0.1
        ),
    )


def attention(w: Writer, score: str, op: Op = Op.ATTENTION, p: float = 0.0, shared: bool = False) -> Value:
    """Two heads of WIDTH channels."""
    full, narrow = (2, WIDTH), (2,)
    x = w.rows_of("x", *((1, WIDTH) if shared else full))
    a = w.rows_of("a", *(narrow if score == "add" else full))
    b = w.shared("b", *full) if score == "add2" else w.rows_of("b", *(narrow if score == "add" else full))
    seed = [w.seed()] if p else []
    attrs = {"score": score, "alpha": 0.2, "scale": 0.5, "p": p, "stream": 1}
    return w.b.add(op, w.graph(), x, a, b, *seed, **attrs)


def _put_attention_grad(w: Writer, a: Any) -> Value:
    out, stats = attention(w, "dot"), attention(w, "dot", Op.ATTENTION_STATS)
    graph, *operands = out.inputs
    dout = w.rows_of("dout", 2, WIDTH)
    given = (graph, a(Op.REVERSE, graph), *operands, out, stats, dout)
    return a(Op.ATTENTION_GRAD, *given, **dict(out.attrs), wrt=1)


def _put_moves(put: Any) -> None:
    """Softmax over in-edges, types, tables, extrema over rows."""
    put(Op.EDGE_SOFTMAX, lambda w, a: a(Op.EDGE_SOFTMAX, w.graph(), w.edges()))
    put(Op.EDGE_MARGIN, lambda w, a: a(Op.EDGE_MARGIN, w.graph(), w.edges()))
    put(Op.EDGE_MARGIN_GRAD, lambda w, a: a(Op.EDGE_MARGIN_GRAD, w.graph(), w.edges(), w.edges("g")))
    put(Op.ATTENTION, lambda w, a: attention(w, "add"))
    put(Op.ATTENTION_STATS, lambda w, a: attention(w, "add2", Op.ATTENTION_STATS))
    put(Op.ATTENTION_GRAD, _put_attention_grad)
    put(
        Op.EDGE_SOFTMAX_GRAD,
        lambda w, a: a(Op.EDGE_SOFTMAX_GRAD, w.graph(), a(Op.EDGE_SOFTMAX, w.graph(), w.edges()), w.edges("g")),
    )
    put(Op.REDUCE_MASK, lambda w, a: a(Op.REDUCE_MASK, w.graph(), w.edges(), kind="max", ties="split"))
    put(Op.BROADCAST_NTYPE, lambda w, a: a(Op.BROADCAST_NTYPE, w.graph(), w.of_types("t", Residency.NTYPE, WIDTH)))
    put(Op.BROADCAST_ETYPE, lambda w, a: a(Op.BROADCAST_ETYPE, w.graph(), w.of_types("t", Residency.ETYPE, 2, WIDTH)))
    put(Op.REDUCE_NTYPE, lambda w, a: a(Op.REDUCE_NTYPE, w.graph(), w.nodes()))
    put(Op.REDUCE_ETYPE, lambda w, a: a(Op.REDUCE_ETYPE, w.graph(), w.edges()))
    put(Op.BROADCAST_SHARED, lambda w, a: a(Op.BROADCAST_SHARED, w.graph(), w.shared("v", 2, WIDTH), to="edge"))
    _put_typed(put)
    put(Op.LOOKUP, lambda w, a: a(Op.LOOKUP, w.shared("table", KINDS, 2, WIDTH), w.kinds()))
    put(Op.LOOKUP_SUM, lambda w, a: a(Op.LOOKUP_SUM, w.edges(), w.kinds(), size=KINDS))
    put(Op.MAX_ROWS, lambda w, a: a(Op.MAX_ROWS, w.nodes(), kind="max", ties="first"))
    put(Op.MAX_ROWS_MASK, lambda w, a: a(Op.MAX_ROWS_MASK, w.nodes(), kind="min", ties="split"))


def _put_typed(put: Any) -> None:
    """Products with a matrix per type."""
    table = Residency.ETYPE

    def ends(w: Writer) -> tuple[Value, Value, Value]:
        return w.rows_of("x", 2, WIDTH), w.of_types("W", table, 2, WIDTH, 4), w.rows_of("y", 2, 4)

    def spmm(w: Writer, a: Any) -> Value:
        x, matrices, _ = ends(w)
        return a(Op.TYPED_SPMM, w.graph(), x, matrices, w.edges("weight", 2), transposed=False)

    def sddmm(w: Writer, a: Any) -> Value:
        x, matrices, y = ends(w)
        return a(Op.TYPED_SDDMM, w.graph(), y, matrices, x, transposed=True, by_head=True)

    def outer(w: Writer, a: Any) -> Value:
        x, _, y = ends(w)
        return a(Op.TYPED_OUTER, w.graph(), x, y, w.edges("weight", None))

    put(Op.TYPED_SPMM, spmm)
    put(Op.TYPED_SDDMM, sddmm)
    put(Op.TYPED_OUTER, outer)
    put(
        Op.TYPE_MATMUL,
        lambda w, a: a(
            Op.TYPE_MATMUL,
            w.graph(),
            w.nodes(),
            w.of_types("W", Residency.NTYPE, WIDTH, 2),
            w.of_types("b", Residency.NTYPE, 2),
            transposed=False,
        ),
    )
    put(Op.TYPE_OUTER, lambda w, a: a(Op.TYPE_OUTER, w.graph(), w.nodes("x"), w.nodes("y", 4)))
    put(
        Op.SAME_DEGREE,
        lambda w, a: a(Op.EWISE, w.edges("weight", None), a(Op.SAME_DEGREE, w.graph(), dtype=F64), fn="div"),
    )


def _put_dims(put: Any) -> None:
    """Operations on trailing dimensions."""
    put(Op.CONST, lambda w, a: a(Op.EWISE, w.nodes(), a(Op.CONST, value=2.5, dtype=F64), fn="mul"))
    put(Op.CAST, lambda w, a: a(Op.CAST, w.nodes(), dtype=F64))
    put(Op.DETACH, lambda w, a: a(Op.DETACH, w.nodes()))
    put(Op.EWISE, lambda w, a: a(Op.EWISE, w.edges(), w.shared("v", 2, 1), fn="div"))
    put(Op.EINSUM, lambda w, a: a(Op.EINSUM, w.edges(), w.shared("W", WIDTH, 2), spec="na,ab->nb"))
    put(Op.RESHAPE, lambda w, a: a(Op.RESHAPE, w.rows_of("x", 2, WIDTH), dims=(3, 1, 2)))
    put(Op.PERMUTE, lambda w, a: a(Op.PERMUTE, w.rows_of("x", 2, WIDTH, 4), order=(2, 0, 1)))
    put(Op.EXPAND, lambda w, a: a(Op.EXPAND, w.rows_of("x", 2, 1), dims=(3, 2, 4)))
    put(Op.SLICE, lambda w, a: a(Op.SLICE, w.rows_of("x", 2, 5), axis=1, start=1, stop=5, step=2))
    put(Op.UNSLICE, lambda w, a: a(Op.UNSLICE, w.rows_of("x", 2, 2), axis=1, start=1, stop=5, step=2, size=6))
    put(Op.CAT, lambda w, a: a(Op.CAT, w.rows_of("x", 2, 1), w.rows_of("y", 2, 3), w.rows_of("x", 2, 1), axis=1))
    put(Op.SUM_DIMS, lambda w, a: a(Op.SUM_DIMS, w.rows_of("x", 2, 3, 4), axes=(0, 2)))
    put(Op.MAX_DIMS, lambda w, a: a(Op.MAX_DIMS, w.rows_of("x", 2, 3, 4), axes=(0, 2), kind="min", ties="split"))
    put(Op.MAX_DIMS_MASK, lambda w, a: a(Op.MAX_DIMS_MASK, w.rows_of("x", 2, 3), axes=(1,), kind="max", ties="first"))


def random_inputs(program: Program, edges: Edges, seed: int = 0) -> dict[str, Any]:
    """Inputs by name for ``program`` on the graph of ``edges``."""
    generator = torch.Generator().manual_seed(seed)
    graph = Graph(edges.src, edges.dst, num_nodes=edges.num_nodes)
    rows = torch.randperm(edges.num_nodes, generator=generator)[: (edges.num_nodes + 1) // 2]
    sizes = {"V": edges.num_nodes, "E": len(edges.src), "R": len(rows), "A": 1, "T": 1}
    found: dict[str, Any] = {}
    for value in program.inputs:
        name, type_ = value["name"], value.type
        if isinstance(type_, StructType):
            found[name] = graph
        elif isinstance(type_, IndexType):
            found[name] = rows if type_.rows else (5, 1) if name == "key" else 1234
        else:
            shape = ((sizes[type_.rows],) if type_.rows else ()) + type_.dims
            if not type_.dtype.is_floating_point:
                found[name] = torch.randint(0, KINDS, shape, generator=generator).to(type_.dtype)
                continue
            found[name] = torch.randn(shape, generator=generator, dtype=type_.dtype)
    return found
