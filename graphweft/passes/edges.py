"""Regions over edges: what is broadcast to edges, computed there and reduced becomes one kernel; nothing in between is
stored.

Comes in: a joint program, forward and backward. Goes out: groups, each a loop nest over the edges of every row, with
all results that one walk gives, and the values that need no call of their own any more. Values of edges are computed
again wherever they are read; stored are per-edge numbers that sum over features and are read by several walks, and
what heavy products of edge rows read and give, which the product's own kernel computes once. Called by ``pipeline.py``.
Sources: Graphiler, section 5 (broadcast-compute and broadcast-compute-reduce fusion); GraphTensor,
section IV; Joestar, section 5.4 (Edge-Map).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod

import torch

from graphweft.ir.elementwise import FUNCTIONS
from graphweft.ir.ops import Op
from graphweft.ir.pattern import end_of
from graphweft.ir.program import Program, Value, reached
from graphweft.ir.residency import StructType, TensorType
from graphweft.passes.fuse import ordered
from graphweft.passes.groups import EdgeWalk, Group
from graphweft.passes.hoist import frontier
from graphweft.passes.opened import REALS, compared, has_same_bits

# What codegen/edge_nest.py can write for an edge.
WRITTEN = frozenset({
    Op.ADD, Op.MUL, Op.ROW_SCALE, Op.ROW_ADD, Op.COL_SCALE, Op.BIAS, Op.MUL_SCALAR, Op.RELU, Op.EWISE, Op.BROADCAST_SRC,
    Op.BROADCAST_DST, Op.BROADCAST_SHARED, Op.SDDMM, Op.EINSUM, Op.MATMUL, Op.SCALE, Op.ADD_CONST, Op.RELU_MASK,
    Op.FILL_COLS, Op.FILL_ROWS, Op.ROW_SUM, Op.SUM_DIMS, Op.DETACH, Op.RESHAPE, Op.EXPAND, Op.PERMUTE, Op.SLICE,
    Op.UNSLICE, Op.CAT,
})  # fmt: skip
NARROW = 16  # numbers per edge that may be stored
_HEAVY = 2048  # multiplications an edge, from which a walk takes longer than reading what is stored
_MANY = 1 << 20  # elements of the product's rows
_SHARE = 8  # of the memory for hoisted values, the part that a product's rows may take
_CONTRACTIONS = frozenset({Op.SDDMM, Op.EINSUM, Op.MATMUL, Op.ROW_SUM, Op.SUM_DIMS})
_MOVES = frozenset({Op.BROADCAST_SRC, Op.BROADCAST_DST, Op.BROADCAST_SHARED})
_LOOKS = frozenset({Op.RESHAPE, Op.EXPAND, Op.DETACH, *_MOVES})


@dataclass(eq=False)
class _Nest:
    """One walk: results in program order, and everything computed for an edge on the way."""

    edge: str
    phase: int
    turned: bool | None
    results: list[Value] = field(default_factory=list)
    inside: dict[Value, None] = field(default_factory=dict)

    def reads(self) -> set[Value]:
        """Tensors that come from outside, or that the walk has only at its end."""
        operands = {o for v in self.inside for o in v.inputs if isinstance(o.type, TensorType)}
        return {o for o in operands if o not in self.inside or o.tensor.rows != self.edge}


def edge_bytes(program: Program, tensor_bytes: Callable[[Value], float]) -> float:
    """Memory of all values of edges that the program names and a nest could compute."""
    edges = {v.struct.edge for v in program.values if isinstance(v.type, StructType)}
    return sum(
        tensor_bytes(v)
        for v in program.values
        if isinstance(v.type, TensorType) and v.type.rows in edges and v.op in (*WRITTEN, Op.EDGE_SOFTMAX)
    )


def without_wide(program: Program, hoisted: set[Value]) -> set[Value]:
    """``hoisted`` without what is more than a few numbers per edge and would be kept: too much memory.

    Such a value that only kept ones are made of is computed with them and let go.
    """
    edges = {v.struct.edge for v in program.values if isinstance(v.type, StructType)}
    rows = [v for v in hoisted if isinstance(v.type, TensorType) and v.type.rows in edges]
    wide = {v for v in rows if prod(v.tensor.dims) > NARROW}
    left = set(hoisted)
    while lost := wide.intersection(frontier(program, left)):
        left -= lost
        wide -= lost
    return left


def without_copies(
    program: Program, hoisted: set[Value], phase: Mapping[Value, int], heavy: Collection[Value] = ()
) -> set[Value]:
    """``hoisted`` without copies of nodes' rows for every edge that walks alone would read.

    A walk has the row of one end at hand; rows of the other end are fewer than edges, and a walk over the reverse meets
    numbers of edges in no order.
    """
    copies = {v for v in frontier(program, hoisted) if v.op in (Op.BROADCAST_SRC, Op.BROADCAST_DST)}
    if not copies:
        return hoisted
    walks, spared = fuse_edges(program, hoisted - copies, phase, heavy)
    return hoisted - (copies & spared).difference(*([walk.result, *walk.taps] for walk in walks))


def heavy_products(program: Program, rows: Mapping[str, int], memory: float) -> set[Value]:
    """Products of edge rows and shared matrices, and their weights' gradients, that the kernels of products compute.

    Their operands and results are stored: that costs less than one loop an edge in every walk that reads them. Rows
    that would take more than a part of ``memory`` bytes are computed in walks nevertheless.
    """
    edges = {v.struct.edge for v in program.values if isinstance(v.type, StructType)}
    found = set()
    for value in program.values:
        if value.op is not Op.MATMUL or value.inputs[0].tensor.rows not in edges:
            continue
        count = rows.get(str(value.inputs[0].tensor.rows), 0)
        inner, *_ = value.inputs[0].tensor.dims
        outer = value.inputs[1].tensor.dims[0] if value.get("ta") else value.tensor.dims[-1]
        widest = max(inner, outer) * count
        fits = widest * value.tensor.dtype.itemsize <= memory / _SHARE
        if inner * outer >= _HEAVY and widest >= _MANY and fits:
            found.add(value)
    return found


def fuse_edges(
    program: Program,
    hoisted: set[Value],
    phase: Mapping[Value, int],
    heavy: Collection[Value] = (),
    alone: bool = False,
) -> tuple[list[Group], set[Value]]:
    """The nests of a program as groups, and the values that are computed by no other call.

    ``alone``: there are no kernels beside walks, which store nothing of an edge to read it again.
    """
    search = _Search(program, hoisted, phase, heavy, alone)
    groups = search.groups()
    return groups, search.spared(groups)


def cover_edges(
    program: Program,
    hoisted: set[Value],
    phase: Mapping[Value, int],
    rest: Callable[[set[Value]], list[Group]],
    heavy: Collection[Value] = (),
    alone: bool = False,
) -> list[Group]:
    """The nests, and what ``rest`` makes of all other values, in an order that respects operands."""
    nests, spared = fuse_edges(program, hoisted, phase, heavy, alone)
    position = {value: index for index, value in enumerate(program.values)}
    return ordered([*rest(hoisted | spared), *nests], position)


class _Search:
    """Finds the nests of one program."""

    def __init__(
        self, program: Program, hoisted: set[Value], phase: Mapping[Value, int], heavy: Collection[Value], alone: bool
    ) -> None:
        self.program, self.hoisted, self.phase, self.heavy, self.alone = program, hoisted, phase, heavy, alone
        self.users = program.users()
        self.outputs = {value for _, value in program.outputs}
        self.graphs = _graphs(program)
        self.real = _real(program, self.graphs)
        self.written: set[Value] = set()
        self.sinks: dict[Value, str] = {}  # result of a walk -> symbol of its edges
        self.kept: set[Value] = set()  # values per edge that are stored
        self.nests: list[_Nest] = []
        self.position = {value: index for index, value in enumerate(program.values)}

    def groups(self) -> list[Group]:
        """All nests, first to last."""
        self._find_written()
        if not self.sinks and not self.alone:
            return []
        for value in self.program.values:
            if value in self.sinks or value in self.kept:
                self._place(value)
        self.nests = [nest for nest in self.nests if self._worth(nest)]
        made = {result for nest in self.nests for result in nest.results}
        for nest in self.nests:
            others = set().union(*(n.reads() for n in self.nests if n is not nest), set())
            nest.results = [
                v for v in nest.results if v.tensor.rows != nest.edge or v in others or self._read_elsewhere(v, made)
            ]
        return [self._group(nest) for nest in self.nests if nest.results]

    def spared(self, groups: Iterable[Group]) -> set[Value]:
        """Values that nothing reads but nests, which compute them themselves, and the nests' results."""
        makes = {v: g for g in groups for v in (g.result, *g.taps)}
        needed = reached(self.outputs, lambda v: makes[v].operands() if v in makes else v.inputs)
        return {v for v in self.program.values if v not in needed or v in makes}

    # -- what can be computed for an edge

    def _find_written(self) -> None:
        apart = {*self.hoisted, *self.heavy}
        values = [v for v in self.program.values if v not in apart and isinstance(v.type, TensorType)]
        self.written = {v for v in values if v.tensor.rows in self.graphs and _is_written(v, self.real)}
        self._find_again(values)
        while True:  # a condition has to stay inside
            stored = {v for v in self.written if self._read_elsewhere(v, set(self.sinks))}
            lost = {v for v in stored if v.tensor.dtype == torch.bool}
            if not lost:
                break
            self.written -= lost
            self._find_again(self.sinks)
        costly = self._is_costly if not self.alone else lambda value: False
        self.kept = stored | {v for v in self.written if costly(v) or self._is_compared(v)}

    def _find_again(self, sinks: Iterable[Value]) -> None:
        while lost := {v for v in self.written if not self._feeds(v)}:
            self.written -= lost
        self.sinks = {v: edge for v in sinks if (edge := self._sink(v)) is not None}

    def _feeds(self, value: Value) -> bool:
        """Whether a nest has, or can read, every operand."""
        return all(self._readable(o) for o in value.inputs if isinstance(o.type, TensorType))

    def _readable(self, operand: Value) -> bool:
        if operand in self.written or operand.op is Op.CONST:
            return True
        return operand.tensor.dtype in (self.real, torch.bool) and not operand.tensor.sparse

    def _sink(self, value: Value) -> str | None:
        """The symbol of the edges over which ``value`` is reduced, or None where a nest does not give it."""
        if value.tensor.dtype != self.real or value.tensor.rows in self.graphs:
            return None
        if value.op is Op.REDUCE:
            return self._edges(value.inputs[1:]) if value.get("ties", "first") in ("first", "split") else None
        if value.op is Op.SPMM and len(value.inputs) == 3 and not value.get("self_coef"):
            computed = value.inputs[2] in self.written and self._computes(value.inputs[2])
            return self._edges(value.inputs[2:]) if computed else None
        if value.op is Op.COL_SUM and not value.get("mean"):
            return self._edges(value.inputs, computed=True)
        total = value.op is Op.EINSUM and value.tensor.rows is None
        if total or (value.op is Op.MATMUL and value.get("ta")):
            return self._edges(value.inputs, computed=True)
        return None

    def _edges(self, operands: Iterable[Value], computed: bool = False) -> str | None:
        """The symbol of the rows, where they are edges that a nest computes or reads."""
        rowed = [o for o in operands if o.tensor.rows is not None]
        if not rowed or not all(o.tensor.rows in self.graphs and prod(o.tensor.dims) for o in rowed):
            return None
        if not all(self._readable(o) for o in operands) or (computed and not self.written.intersection(rowed)):
            return None
        return rowed[0].tensor.rows

    def _computes(self, value: Value) -> bool:
        """Whether something is computed for an edge, not just looked at."""
        looked_at = reached([value], lambda v: self.written.intersection(v.inputs) if v.op in _LOOKS else ())
        return any(item.op not in _LOOKS for item in looked_at)

    def _read_elsewhere(self, value: Value, results: set[Value]) -> bool:
        """Whether something that no nest computes reads ``value``."""
        return value in self.outputs or any(
            user not in self.written and user not in results for user in self.users[value] if user not in self.hoisted
        )

    def _is_costly(self, value: Value) -> bool:
        """A few numbers that sum over many, and that several results need."""
        if value.op not in _CONTRACTIONS or value.tensor.dtype != self.real:
            return False
        width = prod(value.tensor.dims)
        widest = max(prod(o.tensor.dims) for o in value.inputs if isinstance(o.type, TensorType))
        return width <= NARROW and widest > width and len(self._results_of(value)) > 1

    def _is_compared(self, value: Value) -> bool:
        """A value that is compared with its own extremum, and might come out otherwise in another walk."""
        own = value.tensor.dtype == self.real
        return own and compared(value, self.users) and not has_same_bits(value, self.written)

    def _results_of(self, value: Value) -> set[Value]:
        """Results of walks that are computed from ``value`` without another one in between."""
        inside = reached([value], lambda v: self.written.intersection(self.users[v]))
        return {user for item in inside for user in self.users[item] if user in self.sinks}

    # -- nests

    def _inside(self, result: Value, own: Iterable[Value] = ()) -> dict[Value, None]:
        """Everything a walk computes for ``result``; stored values are read, but for those of ``own``."""
        stops = self.kept - {result} - set(own)
        closed = reached([result], lambda v: [o for o in v.inputs if o in self.written and o not in stops])
        return dict.fromkeys(sorted(closed, key=self.position.__getitem__))

    def _place(self, result: Value) -> None:
        """Adds a result to the walk that shares most with it, or begins another."""
        edge = self.sinks.get(result) or str(result.tensor.rows)
        turned = end_of(result.inputs[0])[1] if result.op in (Op.REDUCE, Op.SPMM) else None
        plain = self._inside(result)
        best: tuple[int, _Nest, dict[Value, None]] | None = None
        for nest in self.nests:
            oriented = None in (nest.turned, turned) or nest.turned == turned
            if nest.edge != edge or nest.phase != self.phase[result] or not oriented:
                continue
            inside = self._inside(result, nest.results)
            own = _Nest(edge, nest.phase, turned, [result], inside)
            shared = len(inside.keys() & nest.inside.keys()) + len(own.reads() & nest.reads())
            if shared and (best is None or shared > best[0]) and self._fits(nest, result, inside):
                best = (shared, nest, inside)
        if best is None:
            self.nests.append(_Nest(edge, self.phase[result], turned, [result], plain))
            return
        _, nest, inside = best
        nest.results.append(result)
        nest.turned = turned if nest.turned is None else nest.turned
        nest.inside = dict.fromkeys(sorted({*nest.inside, *inside}, key=self.position.__getitem__))

    def _fits(self, nest: _Nest, result: Value, inside: dict[Value, None]) -> bool:
        """Whether no walk would have to wait for itself."""
        trial = _Nest(nest.edge, nest.phase, nest.turned, [*nest.results, result], {**nest.inside, **inside})
        nests = [trial if n is nest else n for n in self.nests]
        makes = {v: n for n in nests for v in n.results}
        needs = {id(n): self._before(n, makes) for n in nests}
        open_, done = set[int](), set[int]()

        def acyclic(n: _Nest) -> bool:
            if id(n) in done:
                return True
            if id(n) in open_:
                return False
            open_.add(id(n))
            fine = all(acyclic(other) for other in needs[id(n)])
            done.add(id(n))
            return fine

        return all(acyclic(n) for n in nests)

    def _before(self, nest: _Nest, makes: Mapping[Value, _Nest]) -> list[_Nest]:
        """Walks whose results ``nest`` needs, perhaps by way of other calls."""
        found = reached(nest.reads(), lambda v: () if v in makes else v.inputs)
        return list({id(makes[v]): makes[v] for v in found if v in makes}.values())

    def _worth(self, nest: _Nest) -> bool:
        """A dot product of two ends alone has a kernel in the core."""
        return self.alone or not (len(nest.results) == 1 and len(nest.inside) == 1 and nest.results[0].op is Op.SDDMM)

    def _group(self, nest: _Nest) -> Group:
        graph = self.graphs[nest.edge]
        rows = next((v.inputs[0] for v in nest.results if v.op in (Op.REDUCE, Op.SPMM)), graph)
        first, *rest = nest.results
        return EdgeWalk(anchor=first, source=None, result=first, taps=rest, chain=tuple(nest.inside), walk=rows)


def _graphs(program: Program) -> dict[str, Value]:
    """The graph behind every symbol of edges; none where a symbol means several."""
    found: dict[str, Value] = {}
    twice: set[str] = set()
    for value in program.values:
        if isinstance(value.type, StructType):
            base = end_of(value)[0]
            if found.setdefault(value.type.edge, base) is not base:
                twice.add(value.type.edge)
    return {edge: graph for edge, graph in found.items() if edge not in twice}


def _real(program: Program, graphs: Mapping[str, Value]) -> torch.dtype:
    """The dtype of the numbers of edges; float32 where there are both."""
    types = [v.type for v in program.values if isinstance(v.type, TensorType) and v.type.rows in graphs]
    return torch.float64 if {t.dtype for t in types if t.dtype in REALS} == {torch.float64} else torch.float32


def _is_written(value: Value, real: torch.dtype) -> bool:
    """Whether a nest of numbers ``real`` computes ``value`` from its operands."""
    if value.op not in WRITTEN or not prod(value.tensor.dims):
        return False
    if value.tensor.dtype == torch.bool:
        return value.op in (*_MOVES, Op.EXPAND) or (value.op is Op.EWISE and FUNCTIONS[value["fn"]].to_bool)
    if value.tensor.dtype != real:
        return False
    if value.op is Op.MATMUL:
        return not value.get("ta") and value.inputs[1].tensor.rows is None
    if value.op is Op.FILL_ROWS:
        return not value.get("mean")
    operands = [o for o in value.inputs if isinstance(o.type, TensorType)]
    return all(prod(o.tensor.dims) for o in operands)
