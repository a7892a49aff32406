"""Sums over relations: one product with a matrix per relation in place of a sum and a product for each.

Comes in: a program with a graph for every relation, as recorded. Goes out: the same over one typed graph, where it adds
up, over all relations, sums over that relation's edges times that relation's matrix: rows without edges of a relation
are then neither stored nor multiplied. Called by ``regions.py``. The form is that of R-GCN
(Schlichtkrull et al., ESWC 2018).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from graphweft.frontend.moves import EdgeSet
from graphweft.ir.movement import EDGE_TYPES
from graphweft.ir.ops import Op
from graphweft.ir.pattern import substitute
from graphweft.ir.program import Builder, Program, Value
from graphweft.ir.residency import Residency, StructType, TensorType
from graphweft.ir.trailing import ROWS, split_spec


class _Term(NamedTuple):
    """The share of one relation: sums over its edges, perhaps with a factor a row, times its matrix."""

    value: Value
    rows: Value
    table: Value
    transposed: bool
    relation: int
    graph: Value
    kind: str
    factor: Value | None
    divides: bool


class Joined(NamedTuple):
    """A program over one typed graph.

    Attributes:
        program: The program.
        edges: Its graph.
        tables: Inputs with a matrix per relation, and the inputs whose first dimension these are.
        weights: Inputs with a number for every edge.
    """

    program: Program
    edges: EdgeSet
    tables: dict[str, str]
    weights: dict[str, Tensor]


def join_relations(
    program: Program, graphs: Mapping[str, EdgeSet], structure: Mapping[str, Tensor], given: int
) -> Joined | None:
    """``program`` over one graph; None where it is not over relations, or something else reads their graphs.

    ``graphs`` and ``structure`` are those of its inputs by name; it has ``given`` others than graphs.
    """
    if len(graphs) < 2 or not all(edges.square for edges in graphs.values()):
        return None
    struct = next(v for v in program.inputs if v.op is Op.GRAPH).struct
    made = _Writer(graphs, structure, given, StructType(struct.src, struct.dst, "E"))
    order: list[str] = []
    while (terms := _relations(program, structure)) is not None:
        names = [str(term.graph["name"]) for term in terms]
        if order and names != order:  # other relations, or in another order
            return None
        order, program = names, made.rewritten(program, terms)
    read = set(Program((), program.outputs).values)
    if not order or any(v.op is Op.GRAPH and v is not made.graph for v in read):
        return None
    inputs = (made.graph, *(v for v in (*program.inputs, *made.inputs) if v in read))
    joined = _side_by_side([graphs[name] for name in order])
    return Joined(Program(inputs, program.outputs), joined, made.tables, made.weights)


def _side_by_side(sets: list[EdgeSet]) -> EdgeSet:
    """The edges of all relations, one relation after the other."""
    src, dst = torch.cat([edges.src for edges in sets]), torch.cat([edges.dst for edges in sets])
    keys = tuple(edges.keys[0] for edges in sets), tuple(edges.keys[1] for edges in sets)
    counts = tuple(edges.count for edges in sets)
    return EdgeSet(sum(counts), src, dst, sets[0].num_src, sets[0].num_dst, keys, counts)


class _Writer:
    """Writes products over all relations.

    Attributes:
        graph: The graph of all relations.
        inputs: Inputs that the program had not before.
        tables, weights: What they are, as in :class:`Joined`.
    """

    def __init__(
        self, graphs: Mapping[str, EdgeSet], structure: Mapping[str, Tensor], given: int, kind: StructType
    ) -> None:
        self._graphs, self._structure, self._given = graphs, structure, given
        self._b = Builder()
        self.graph = self._b.add(Op.GRAPH, name="graph", type=kind)
        self.inputs: list[Value] = []
        self.tables: dict[str, str] = {}
        self.weights: dict[str, Tensor] = {}

    def rewritten(self, program: Program, terms: list[_Term]) -> Program:
        """``program`` with one product in place of ``terms``."""
        b, first = self._b, terms[0]
        rows, table = first.rows, self._table(first.table)
        operands = [self.graph, b.add(Op.RESHAPE, rows, dims=(1, *rows.tensor.dims))]
        operands.append(b.add(Op.RESHAPE, table, dims=(1, *table.tensor.dims)))
        if any(term.kind == "mean" or term.factor is not None for term in terms):
            operands.append(self._weight(terms, table.tensor.dtype))
        total = b.add(Op.TYPED_SPMM, *operands, transposed=first.transposed)
        total = b.add(Op.RESHAPE, total, dims=first.value.tensor.dims)
        users, outputs = program.users(), {value for _, value in program.outputs}
        root, inside = _root(first.value, users, outputs), {term.value for term in terms}
        for leaf in _leaves(root, users, outputs):
            if leaf not in inside:
                total = b.add(Op.EWISE, total, leaf, fn="add")
        return substitute(program, {root: total})

    def _input(self, kind: TensorType) -> Value:
        made = self._b.add(Op.INPUT, name=f"in:{self._given + len(self.inputs)}", type=kind)
        self.inputs.append(made)
        return made

    def _table(self, of: Value) -> Value:
        """The matrices of a shared table as rows of relations."""
        if of.op is Op.RESHAPE:
            return self._b.add(Op.RESHAPE, self._table(of.inputs[0]), dims=of.tensor.dims[1:])
        if of.op is Op.EINSUM:
            shares, bases = of.inputs
            (left, right), result = split_spec(of["spec"])
            spec = f"{ROWS}{left[1:]},{right}->{ROWS}{result[1:]}"
            return self._b.add(Op.EINSUM, self._table(shares), bases, spec=spec)
        name = str(of["name"])
        known = next((v for v in self.inputs if self.tables.get(str(v["name"])) == name), None)
        if known is None:
            kind = TensorType(Residency.ETYPE, EDGE_TYPES, of.tensor.dims[1:], of.tensor.dtype)
            known = self._input(kind)
            self.tables[str(known["name"])] = name
        return known

    def _weight(self, terms: list[_Term], dtype: torch.dtype) -> Value:
        """The input with the factor of every edge's destination; one for equal numbers."""
        numbers = torch.cat([self._factors(term) for term in terms]).to(dtype)
        for value in self.inputs:
            known = self.weights.get(str(value["name"]))
            if known is not None and known.dtype == dtype and torch.equal(known, numbers):
                return value
        made = self._input(TensorType(Residency.EDGE, self.graph.struct.edge, (), dtype))
        self.weights[str(made["name"])] = numbers
        return made

    def _factors(self, term: _Term) -> Tensor:
        """A number for every edge of a relation."""
        edges = self._graphs[str(term.graph["name"])]
        into = edges.dst.long()
        found = torch.ones(edges.num_dst, dtype=torch.float64)
        if term.kind == "mean":
            found = found / torch.bincount(into, minlength=edges.num_dst).clamp(min=1)
        if term.factor is not None:
            factor = self._structure[str(term.factor["name"])].reshape(-1).double()
            found = found / factor if term.divides else found * factor
        return found[into]


# the form of a term


def _relations(program: Program, structure: Mapping[str, Tensor]) -> list[_Term] | None:
    """The terms of one sum over all relations, in the order of their matrices."""
    users, outputs = program.users(), {value for _, value in program.outputs}
    sums: dict[tuple[Value, Value, bool, Value], list[_Term]] = {}
    for value in program.values:
        term = _term(value, structure) if value.op is Op.EINSUM else None
        if term is not None:
            sums.setdefault((term.rows, term.table, term.transposed, _root(value, users, outputs)), []).append(term)
    for terms in sums.values():
        terms.sort(key=lambda term: term.relation)
        count = terms[0].table.tensor.dims[0]
        each = [term.relation for term in terms] == list(range(count))
        if count > 1 and each and len({term.graph for term in terms}) == count:
            return terms
    return None


def _term(value: Value, structure: Mapping[str, Tensor]) -> _Term | None:
    """``(sum over the edges of a relation (/ factor)) table[relation]``."""
    if len(value.inputs) != 2:
        return None
    (left, right), result = split_spec(value["spec"])
    sums, matrix = value.inputs
    if left[:1] != ROWS or len(left) != 2 or len(right) != 2 or len(result) != 2 or left[1] not in right:
        return None
    if result[1] not in right or result[1] == left[1]:
        return None
    taken = matrix.inputs[0] if matrix.op is Op.RESHAPE else matrix
    if taken.op is not Op.SLICE or taken["axis"] != 0 or taken["stop"] != taken["start"] + 1:
        return None
    table = taken.inputs[0]
    if not _is_table(table) or len(table.tensor.dims) != 3 or matrix.tensor.dims != table.tensor.dims[1:]:
        return None
    for factor, total, divides in _factors(sums, structure):
        if total.op is not Op.REDUCE or total["kind"] not in ("sum", "mean"):
            continue
        graph, message = total.inputs
        if message.op is Op.BROADCAST_SRC and message.inputs[0] is graph and graph.op is Op.GRAPH:
            rows, turned = message.inputs[1], right[1] == left[1]
            if len(rows.tensor.dims) == 1 and rows.tensor.dtype == table.tensor.dtype:
                at = int(taken["start"])
                return _Term(value, rows, table, turned, at, graph, str(total["kind"]), factor, divides)
    return None


def _is_table(value: Value) -> bool:
    """Whether a shared value has a part per relation: it is given, or combinations of a few bases."""
    if value.op is Op.RESHAPE and value.tensor.dims[:1] == value.inputs[0].tensor.dims[:1]:
        return _is_table(value.inputs[0])
    if value.op is not Op.EINSUM or len(value.inputs) != 2:
        return value.op is Op.INPUT and value.tensor.rows is None
    (left, right), result = split_spec(value["spec"])
    apart = result[:1] == left[:1] != "" and result[0] not in right + left[1:] and ROWS not in left + right
    return apart and all(x.tensor.rows is None for x in value.inputs) and _is_table(value.inputs[0])


def _factors(value: Value, structure: Mapping[str, Tensor]) -> Iterator[tuple[Value | None, Value, bool]]:
    """(number a row that follows from structure, rows that it multiplies, whether it divides them)."""
    yield None, value, False
    if value.op is Op.EWISE and value["fn"] in ("div", "mul"):
        for x, y in (value.inputs, value.inputs[::-1]) if value["fn"] == "mul" else (value.inputs,):
            given = y.inputs[0] if y.op is Op.RESHAPE else y
            number = given.op is Op.INPUT and given["name"] in structure and given.tensor.dims in ((), (1,))
            if number and given.tensor.rows == value.tensor.rows:
                yield given, x, value["fn"] == "div"


# sums of several values


def _is_sum(value: Value) -> bool:
    return value.op is Op.EWISE and value["fn"] == "add"


def _user(value: Value, users: Mapping[Value, list[Value]]) -> Value | None:
    """The sum that alone reads ``value``."""
    readers = users[value]
    alone = len(readers) == 1 and _is_sum(readers[0]) and readers[0].tensor.dims == value.tensor.dims
    return readers[0] if alone else None


def _root(value: Value, users: Mapping[Value, list[Value]], outputs: set[Value]) -> Value:
    """The last of the sums that ``value`` is an addend of, all of them read once."""
    while value not in outputs and (above := _user(value, users)) is not None:
        value = above
    return value


def _leaves(root: Value, users: Mapping[Value, list[Value]], outputs: set[Value]) -> list[Value]:
    """The addends of ``root``, in order."""
    found: list[Value] = []
    for value in root.inputs if _is_sum(root) else ():
        inner = _is_sum(value) and value not in outputs and _user(value, users) is root
        found += _leaves(value, users, outputs) if inner else [value]
    return found


__all__ = ["Joined", "join_relations"]
