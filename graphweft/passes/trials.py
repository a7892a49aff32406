"""Tiny adversarial graphs, and random inputs of any program on them, in double precision.

Comes in: the inputs of a program. Goes out: :class:`Trial` objects, each with inputs by name. The graphs hold what
breaks careless rewrites: stars both ways, self-loops, parallel edges, isolated nodes, more nodes than edges, one node,
no edge, an empty relation. Called by ``certificate.py``.
"""

from __future__ import annotations

import contextlib
import functools
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from graphweft._torch_private import free_product_buffers
from graphweft.graph.graph import Graph
from graphweft.ir.movement import EDGE_TYPES, NODE_TYPES
from graphweft.ir.ops import Op
from graphweft.ir.program import Builder, Program, Value
from graphweft.ir.residency import IndexType, StructType, TensorType
from graphweft.passes.rounding import RUNS
from graphweft.sample.neighbor import NeighborSampler
from graphweft.storage.feature import SparseFeatures

F64 = torch.float64
# Of each value a trial has that of the program before and after, in every run, and a gradient; a tensor takes some
# bytes beside its numbers, of each relation where there are some.
_HELD, _TENSOR = 2 * 2 * (1 + RUNS), 512
_MOST_KINDS = 3  # integers are below this, and below the rows of any table they look up
_LARGE = 300.0  # products of two such numbers overflow an exponential without shift
_NARROW = 48  # columns; wider inputs are made narrower than this
_STORED = 64  # entries of a row of sparse features at most: each reads a row of what they are multiplied by

Pairs = list[tuple[int, int]]
_STAR_IN, _STAR_OUT = [(i, 0) for i in range(1, 6)], [(6, i) for i in range(7, 11)]
_LOOPS_AND_PARALLELS = [(11, 11), (11, 12), (12, 11), (11, 12), (12, 12), (12, 13), (11, 12)]
SQUARE: dict[str, tuple[int, Pairs]] = {
    "knots": (16, [*_STAR_IN, *_STAR_OUT, *_LOOPS_AND_PARALLELS, (0, 6), (10, 0)]),
    "ring": (5, [*((i, (i + 1) % 5) for i in range(5)), *((i, (i + 3) % 5) for i in range(5)), (2, 2), (0, 1), (4, 0)]),
    "more nodes than edges": (9, [(7, 2), (2, 2), (2, 5), (7, 5)]),
    "one node": (1, [(0, 0), (0, 0)]),
    "no edges": (3, []),
}


@dataclass(frozen=True)
class Shape:
    """Which graph a trial is on and how its numbers are drawn."""

    graph: str
    draw: str  # normal, positive or large


class Trial:
    """Inputs by name for the inputs of ``program``; floating ones are leaves that take gradients.

    Raises: ValueError for an input of an unknown kind.
    """

    def __init__(self, program: Program, shape: Shape, types: tuple[int, int], seed: int) -> None:
        self.shape = shape
        self.inputs: dict[str, Any] = {}
        self._generator = torch.Generator().manual_seed(seed)
        self._sizes: dict[str, int] = {}
        self._isolated: dict[str, Tensor] = {}
        self._kinds = min([_MOST_KINDS, *_table_sizes(program)])
        for value in program.inputs:
            if isinstance(value.type, StructType):
                graph = self._graph(value.type, types, len(self.inputs))
                self.inputs[value["name"]] = graph
        for value in program.inputs:
            if isinstance(value.type, IndexType):
                self.inputs[value["name"]] = self._index(value, value.type)
        for value in program.inputs:
            if isinstance(value.type, TensorType):
                self.inputs[value["name"]] = self._tensor(value.type)

    def leaves(self) -> dict[str, Tensor]:
        """Inputs that take gradients."""
        return {name: x for name, x in self.inputs.items() if isinstance(x, Tensor) and x.requires_grad}

    def cotangent(self, name: str, shape: torch.Size) -> Tensor:
        """The gradient of the output ``name``, the same whenever it is asked for."""
        generator = torch.Generator().manual_seed(len(name) * 7919 + sum(name.encode()))
        return torch.randn(shape, generator=generator, dtype=F64)

    def _graph(self, type_: StructType, types: tuple[int, int], before: int) -> Graph:
        """A graph; ``before``: how many the program has before this one, which join the same nodes by other edges."""
        if type_.square and types != (1, 1):
            graph = _typed(SQUARE[self.shape.graph][0], *types, self._generator)
        else:
            graph = _turned(_plain(self.shape.graph, type_.square), before)
        self._put(type_.src, graph.num_src, graph.reverse().in_degrees() == 0)
        self._put(type_.dst, graph.num_dst, graph.in_degrees() == 0)
        self._put(type_.edge, graph.num_edges)
        if type_.square:
            self._put(NODE_TYPES, len(graph.layout.node_types))
            self._put(EDGE_TYPES, len(graph.layout.relations))
        return graph

    def _put(self, symbol: str, size: int, isolated: Tensor | None = None) -> None:
        if self._sizes.setdefault(symbol, size) != size:
            raise ValueError(f"two sizes of {symbol}")
        if isolated is not None:
            self._isolated[symbol] = isolated & self._isolated.get(symbol, isolated)

    def _index(self, value: Value, type_: IndexType) -> Any:
        if type_.rows is None or type_.into is None:
            return int(torch.randint(2**31, (), generator=self._generator))
        nodes = self._sizes[type_.into]
        ids = torch.randperm(nodes, generator=self._generator)[: (nodes + 1) // 2]
        self._put(type_.rows, len(ids))
        return ids

    def _tensor(self, type_: TensorType) -> Any:
        shape = ((self._sizes[type_.rows],) if type_.rows else ()) + type_.dims
        if not type_.dtype.is_floating_point:
            kinds = 2 if type_.dtype == torch.bool else max(1, self._kinds)  # an empty table is looked up by no one
            return torch.randint(kinds, shape, generator=self._generator).to(type_.dtype)
        x = torch.randn(shape, generator=self._generator, dtype=F64)
        if self.shape.draw == "positive":
            x = x.abs() * 0.5 + 0.25
        if self.shape.draw == "large":
            x = x * _LARGE
        if self.shape.draw == "normal" and type_.rows in self._isolated:
            x[self._isolated[type_.rows]] = 0.0  # what no edge reads may be anything
        if type_.sparse:
            kept = torch.rand(shape, generator=self._generator) < min(0.5, _STORED / max(shape[1], 1))
            return SparseFeatures.from_dense(x * kept)
        return x.requires_grad_()


def _table_sizes(program: Program) -> list[int]:
    """Rows of every table that integers look up, or add into."""
    tables = (v.inputs[0] if v.op is Op.LOOKUP else v for v in program.values if v.op in (Op.LOOKUP, Op.LOOKUP_SUM))
    return [table.tensor.dims[0] for table in tables if table.tensor.dims]


def _pairs(name: str) -> tuple[int, Pairs]:
    """Nodes and edges of ``name``: one of SQUARE, or ``hub E``: E edges, a third of them into 0, a third out of 1."""
    if name in SQUARE:
        return SQUARE[name]
    edges, nodes = int(name.removeprefix("hub ")), 16
    third = edges // 3
    into, out = [(i % nodes, 0) for i in range(third)], [(1, i % nodes) for i in range(third)]
    return nodes, [*into, *out, *((i * i % 11, i % 13) for i in range(edges - 2 * third))]


def graph_size(name: str) -> tuple[int, int]:
    """Nodes and edges of a trial's graph."""
    nodes, pairs = _pairs(name)
    return nodes, len(pairs)


@functools.cache
def _plain(name: str, square: bool) -> Graph:
    """A graph without types; not ``square``: the block of every second node."""
    nodes, pairs = _pairs(name)
    whole = Graph([s for s, _ in pairs], [d for _, d in pairs], num_nodes=nodes)
    return whole if square else NeighborSampler(whole, [-1]).sample(range(0, nodes, 2)).blocks[0]


@functools.cache
def _turned(graph: Graph, by: int) -> Graph:
    """The same sources with the destinations of other edges, and an edge less each time."""
    if not by:
        return graph
    src, dst = graph.edges()
    kept = max(len(src) - by, 0)
    return Graph(
        src[:kept],
        dst.roll(3 * by)[:kept],
        num_nodes=graph.num_src if graph.is_square else (graph.num_src, graph.num_dst),
    )


def _typed(nodes: int, node_types: int, relations: int, generator: torch.Generator) -> Graph:
    """Nodes in stretches of uneven length; relation i has i modulo 4 edges, so the first has none."""
    names = [f"t{i}" for i in range(node_types)]
    sizes = {name: 1 + (i + nodes) % 3 for i, name in enumerate(names)}
    edges = {}
    for i in range(relations):
        src, dst = names[i % node_types], names[(3 * i + 1) % node_types]
        count = i % 4 if nodes > 1 else 0
        ends = (torch.randint(sizes[end], (count,), generator=generator) for end in (src, dst))
        edges[src, f"r{i}", dst] = tuple(ends)
    return Graph.hetero(edges, sizes)


_NORMS = frozenset({Op.BATCH_NORM, Op.BATCH_NORM_DOT, Op.BATCH_NORM_GRAD})


class Doubled:
    """Values of any program with every floating dtype made float64; equal values stay equal objects.

    Args:
        widths: What inputs have in place of some of their dimensions.

    Raises: IRError where a program cannot have those, when it is asked for.
    """

    def __init__(self, widths: Mapping[int, int] | None = None) -> None:
        self._builder, self._made, self._programs = Builder(), dict[Value, Value](), dict[Program, Program]()
        self._widths = widths or {}

    def __call__(self, program: Program) -> Program:
        """``program`` in double precision."""
        if program not in self._programs:
            for value in program.values:
                self.value(value)
            inputs = tuple(self._made[v] for v in program.inputs)
            outputs = tuple((name, self._made[v]) for name, v in program.outputs)
            self._programs[program] = Program(inputs, outputs)
        return self._programs[program]

    def value(self, value: Value) -> Value:
        """One value whose operands were asked for before."""
        if value not in self._made:
            attrs = {key: self._attribute(item) for key, item in value.attrs}
            if (
                value.op in _NORMS
            ):  # a column of equal numbers, as few rows have, is not to be divided by nearly nothing
                attrs["eps"] += 1.0
            self._made[value] = self._builder.add(value.op, *(self._made[v] for v in value.inputs), **attrs)
        return self._made[value]

    def _attribute(self, item: Any) -> Any:
        if isinstance(item, torch.dtype):
            return F64 if item.is_floating_point else item
        if isinstance(item, TensorType):
            dims = tuple(self._widths.get(size, size) for size in item.dims)
            return TensorType(item.residency, item.rows, dims, self._attribute(item.dtype), item.sparse)
        return item


def narrower(program: Program) -> list[dict[int, int]]:
    """Widths for :class:`Doubled` that make the inputs of ``program`` narrow, fewer of them each time, at last none.

    A rewrite that is wrong is so at any width, and wide parameters are most of what trials take. A width that an
    attribute names stays, as do those that are narrow already; one that other values depend on shows when the program
    is made.
    """
    named = {size for value in program.values for _, item in value.attrs for size in _whole_numbers(item)}
    wide = {size for v in program.inputs if isinstance(v.type, TensorType) for size in v.type.dims if size > _NARROW}
    ordered = sorted(wide - named)
    # in the same order, and none that the program has already: an operand in another's place must not fit
    taken = {size for value in program.values if isinstance(value.type, TensorType) for size in value.type.dims}
    widths = dict(zip(ordered, (size for size in range(_NARROW // 2, _NARROW) if size not in taken), strict=False))
    widest = {size: short for size, short in widths.items() if size == ordered[-1]}
    return [*(way for way in (widths, widest if len(widths) > 1 else {}) if way), {}]


def _whole_numbers(item: Any) -> Iterator[int]:
    if isinstance(item, int):
        yield item
    elif isinstance(item, tuple | list):
        for part in item:
            yield from _whole_numbers(part)


def elements(program: Program, sizes: Mapping[str, int]) -> list[int]:
    """Elements of each value that is a tensor when the symbols have ``sizes``."""
    kinds = (value.type for value in program.values)
    return [
        math.prod(kind.dims) * (sizes.get(kind.rows, 1) if kind.rows else 1)
        for kind in kinds
        if isinstance(kind, TensorType)
    ]


def trial_bytes(program: Program, sizes: Mapping[str, int], types: tuple[int, int]) -> int:
    """What a trial takes when the symbols have ``sizes``; ``types``: numbers of node types and relations."""
    counts = elements(program, {**sizes, NODE_TYPES: types[0], EDGE_TYPES: types[1]})
    return _HELD * (F64.itemsize * sum(counts) + _TENSOR * types[1] * len(counts))


@contextlib.contextmanager
def plain_torch() -> Iterator[None]:
    """Whatever mode the caller is in, trials run as plain differentiable code, and warn about nothing.

    What they save is nobody's: activation checkpointing counts what a call saves, at first and again. It is detached: a
    function that saves its own result would hold itself, and no collector sees that.
    """
    with (
        saved_tensors_hooks(Tensor.detach, _unchanged),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield
    free_product_buffers()  # of float64, which nothing else multiplies


def _unchanged(saved: Tensor) -> Tensor:
    return saved
