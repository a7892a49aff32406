"""The sizes that a plan is decided and judged by.

Comes in: a program and the inputs of a call by name. Goes out: the numbers behind the program's symbols. Called by
:mod:`graphweft.runtime.compile`, and where the memory of a plan is predicted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from graphweft import _machine
from graphweft.graph.degrees import receivers
from graphweft.graph.graph import Graph
from graphweft.ir.interpret import evaluate
from graphweft.ir.movement import EDGE_TYPES, NODE_TYPES
from graphweft.ir.ops import STRUCTURE, Op
from graphweft.ir.program import Program, Value
from graphweft.ir.residency import IndexType, StructType
from graphweft.passes.work import Sizes
from graphweft.runtime.size_class import class_size, derived_sizes, fine_size, size_class
from graphweft.storage.feature import SparseFeatures

_HOISTED_SHARE = 0.5  # of the machine's memory, for what is computed once, unless ``config(memory=...)`` says otherwise
_MEMORY = _machine.memory()


class _Looped:
    """A graph with one loop at every node, by its sizes: an edge-sized copy that few plans need is not made."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.layout = graph.loopless, graph.layout
        self.num_src, self.num_dst = graph.num_src, graph.num_dst
        self.num_edges = self.graph.num_edges + graph.num_dst


class _Taken:
    """The graph into some destinations, or its reverse, by its sizes: it is made where a plan reads it, which few do.

    ``loops``: each with one more edge from itself.
    """

    def __init__(self, graph: Graph, rows: Tensor, loops: bool, turned: bool = False) -> None:
        self.graph, self.rows, self.loops, self.turned = graph, rows, loops, turned
        ends = graph.num_src, int(rows.numel())
        self.num_src, self.num_dst = reversed(ends) if turned else ends
        degrees = graph.in_degrees()
        self.num_edges = int(degrees[rows.to(degrees.device)].sum()) + int(rows.numel() if loops else 0)

    def reverse(self) -> _Taken:
        """With its ends swapped."""
        return _Taken(self.graph, self.rows, self.loops, not self.turned)

    def made(self) -> Graph:
        """The graph."""
        found = self.graph.take_dst_with_loops(self.rows) if self.loops else self.graph.edges_into(self.rows)
        return found.reverse() if self.turned else found


def measure_sizes(program: Program, named: Mapping[str, Any], memory: int) -> Sizes:
    """The numbers behind the program's symbols, from the actual graphs that its structure operations give.

    ``memory``: bytes that hoisted values may take; 0 means half of the machine's.
    """
    known: dict[Value, Any] = {v: named[v["name"]] for v in program.inputs if v["name"] in named}
    rows: dict[str, int] = {}
    for value in program.values:
        if value.op in STRUCTURE and isinstance(value.type, StructType):
            known[value] = _structure(value, [known[operand] for operand in value.inputs])
        if value.op is Op.RECEIVERS:
            known[value] = evaluate(value, [known[value.inputs[0]]])
        graph = known.get(value)
        if isinstance(value.type, StructType) and graph is not None:
            rows[value.type.src], rows[value.type.dst] = graph.num_src, graph.num_dst
            rows[value.type.edge] = graph.num_edges
        if isinstance(value.type, IndexType) and value.type.rows and graph is not None:
            rows[value.type.rows] = int(graph.numel())
    if graph_types := [v for v in program.inputs if isinstance(v.type, StructType) and v.type.square]:
        layout = named[graph_types[0]["name"]].layout
        rows |= {NODE_TYPES: len(layout.node_types), EDGE_TYPES: len(layout.relations)}
    x = named.get("x")
    sparse = {"x": x.nnz} if isinstance(x, SparseFeatures) else {}
    return Sizes(rows, sparse, memory or _MEMORY * _HOISTED_SHARE)


def _structure(value: Value, operands: list[Any]) -> Any:
    """The graph that a structure operation gives, or a stand-in of its sizes."""
    first = operands[0]
    if value.op is Op.ONE_LOOP and isinstance(first, Graph):
        return _Looped(first)
    if value.op is Op.TAKE_DST and isinstance(first, Graph):
        return _Taken(first, operands[1], bool(value.get("loops")))
    if value.op is Op.TAKE_DST and isinstance(first, _Looped):
        return _Taken(first.graph, operands[1], True)
    if isinstance(first, _Taken):
        return first.reverse() if value.op is Op.REVERSE else evaluate(value, [first.made(), *operands[1:]])
    if not isinstance(first, _Looped):
        return evaluate(value, operands)
    if value.op is Op.REVERSE:
        return first  # of the same sizes
    return evaluate(value, [first.graph.with_one_loop(), *operands[1:]])


def decisive_sizes(program: Program, named: Mapping[str, Any], memory: int, exact: bool) -> Sizes:
    """The sizes that a plan is decided by.

    A plan that serves several graphs is decided by the class of their sizes: which of them comes first depends on the
    caller, and the bits of a result must not.
    """
    if exact:
        return measure_sizes(program, named, memory)
    graph, given = named["graph"], [v for v in program.inputs if isinstance(v.type, StructType)]
    middle = class_size if graph.is_drawn else fine_size
    rows = {symbol: middle(n) for v in given for symbol, n in _ends(v.struct, named[v["name"]]).items()}
    rows["R"] = middle(0 if named.get("rows") is None else named["rows"].numel())
    for value in program.values:
        if value.op is Op.RECEIVERS and value.inputs[0].op is Op.GRAPH:
            ids, of = receivers(named[value.inputs[0]["name"]]), value.type
            assert isinstance(of, IndexType)  # as ids are
            rows[str(of.rows)] = rows[str(of.into)] if ids is None else middle(ids.numel())
    if any(v.struct.square for v in given):
        rows |= {NODE_TYPES: len(graph.layout.node_types), EDGE_TYPES: len(graph.layout.relations)}
    x = named.get("x")
    nnz = {"x": middle(x.nnz)} if isinstance(x, SparseFeatures) else {}
    return Sizes(derived_sizes(program, rows), nnz, memory or _MEMORY * _HOISTED_SHARE)


def class_of(graph: Graph, count: int) -> int:
    """What plans of equal classes of sizes have in common of a number, for a graph that lasts or one that was drawn."""
    return count.bit_length() if graph.is_drawn else size_class(count)


def _ends(kind: StructType, graph: Graph) -> dict[str, int]:
    return {kind.src: graph.num_src, kind.dst: graph.num_dst, kind.edge: graph.num_edges}
