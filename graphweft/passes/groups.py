"""What one kernel call computes: every kind of group is a class.

Comes in: values of a program, as the passes that fuse them find them together. Goes out: what a call reads, in order,
and the call as data: a kernel's name, operands and results by role, attributes. Values inside a group are never stored.
Read by later passes, by the cost model, by certificates and by ``runtime/lower.py``. Nothing here knows a machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from graphweft.ir.ops import Op
from graphweft.ir.program import Attrs, Value

Named = list[tuple[str, Value]]  # values by the role that they play in a call


class Parts(NamedTuple):
    """A call as data: the kernel's name, what it reads and writes by role, and what is fixed."""

    kernel: str
    operands: Named
    results: Named
    attrs: Attrs = ()


@dataclass
class Group:
    """One operation, or none over rows as they are, and what a kernel does to its finished rows.

    Attributes:
        anchor: The value whose kernel runs; None for an epilogue applied to ``source`` as it is.
        source: The first operand when there is no anchor.
        stages: Stage name -> operand value (None for stages without operand).
        result: The value stored.
        taps: Values that come out beside it, as column sums.
        src_scale: A per-source factor folded into an aggregation.
        scaled: The operand of the aggregation before that factor.
        self_factor: A shared number by which a row of the aggregation's operand is multiplied and added to its own sum.
        gather: The rows that the first operand takes from a table, where the kernel reads them there by index.
        padded: The rows padded by zeros that are the addend, of which the kernel reads those before the zeros.
    """

    anchor: Value | None
    source: Value | None
    result: Value
    stages: dict[str, Value | None] = field(default_factory=dict)
    taps: list[Value] = field(default_factory=list)
    src_scale: Value | None = None
    scaled: Value | None = None
    self_factor: Value | None = None
    gather: Value | None = None
    padded: Value | None = None

    @property
    def inside(self) -> tuple[Value, ...]:
        """All values that one kernel over rows, edges or heads computes, operands first; empty elsewhere."""
        return ()

    @property
    def is_one_operation(self) -> bool:
        """Whether it is an operation and nothing else."""
        folded = any(value is not None for value in (self.src_scale, self.self_factor, self.gather))
        return type(self) is Group and self.anchor is self.result and not (self.stages or self.taps or folded)

    def operands(self) -> list[Value]:
        """Every value the call reads."""
        found = [] if self.source is None else [self.source]
        if self.anchor is not None:
            found = [value for value in self.anchor.inputs if value not in self.taps]
            if self.scaled is not None and self.src_scale is not None:
                found[1] = self.scaled
                found.append(self.src_scale)
            if self.self_factor is not None:
                found.append(self.self_factor)
        if self.gather is not None:
            found[:1] = self.gather.inputs
        return found + [value for _, value in self.staged()]

    def as_terms(self) -> tuple[Term, ...]:
        """The values whose kernels run, each with where its first operand comes from."""
        return (Term(self.anchor or self.result, self.gather),)

    def sums(self) -> list[Group]:
        """The aggregations that the call makes on its way."""
        return [term.made for term in self.as_terms() if term.made is not None]

    def parts(self) -> Parts:
        """The call as data."""
        if self.anchor is not None:
            return _PARTS.get(self.anchor.op, _plain)(self, self.anchor)
        assert self.source is not None  # a group without anchor has a source
        rows, ids = self.left(self.source)
        return Parts("rows", [("x", rows), *ids, *self.staged()], self.results(), self.switches())

    def label(self) -> str:
        """``spmm + row_scale + bias + relu``: what the call does."""
        name = "rows" if self.anchor is None else self.anchor.op.name.lower()
        if self.anchor is not None and self.anchor.op is Op.MATMUL:
            name = "sparse matmul" if self.anchor.inputs[0].tensor.sparse else name
            name += " transposed" if self.anchor.get("ta") else ""
        extra = ["src_scale"] if self.src_scale is not None else []
        extra += ["own rows"] if self.self_factor is not None else []
        tapped = ["col_sum"] if self.taps and "col_sum" not in self.stages else []
        return " + ".join([name, *extra, *self.stages, *tapped])

    def left(self, value: Value) -> tuple[Value, Named]:
        """The first operand's rows; or a table, and the ids of those rows."""
        if self.gather is None:
            return value, []
        table, ids = self.gather.inputs
        return table, [("ids", ids)]

    def staged(self) -> Named:
        """Operands of what is done to a finished row; the rows behind a short addend are the graph's to say."""
        found = [(name, value) for name, value in self.stages.items() if value is not None]
        return found if self.padded is None else [*found, ("rows_of", self.padded.inputs[0])]

    def switches(self) -> Attrs:
        """Stages without an operand."""
        short = (("short_addend", True),) if self.padded is not None else ()
        return ((("relu", True),) if "relu" in self.stages else ()) + short

    def results(self) -> Named:
        """The result, and the column sums beside it."""
        return [("out", self.result), *(("col_sum", value) for value in self.taps)]


@dataclass
class Chain(Group):
    """Functions of elements in the same places, by one generated kernel over rows.

    Attributes:
        chain: Values computed in one pass, the result last.
    """

    chain: tuple[Value, ...] = field(kw_only=True)

    @property
    def inside(self) -> tuple[Value, ...]:
        """The values of the chain."""
        return self.chain

    def operands(self) -> list[Value]:
        """What the chain reads and does not make."""
        return list(dict.fromkeys(o for value in self.chain for o in value.inputs if o not in self.chain))

    def parts(self) -> Parts:
        """A generated kernel, whose operands have numbers."""
        return Parts("row_nest", [(str(i), value) for i, value in enumerate(self.operands())], self.several())

    def several(self) -> Named:
        """The result, and what else comes out."""
        return [("out", self.result), *((f"out{i}", value) for i, value in enumerate(self.taps, 1))]


@dataclass
class EdgeWalk(Chain):
    """Values of edges and sums of them, by one generated kernel over the edges of a graph.

    Attributes:
        walk: The graph whose rows are walked, edge by edge, to compute the result, anywhere in the chain, and the taps.
    """

    walk: Value = field(kw_only=True)

    def operands(self) -> list[Value]:
        """The graph, and what the chain reads and does not make."""
        return list(dict.fromkeys([self.walk, *super().operands()]))

    def parts(self) -> Parts:
        """A generated kernel over a graph."""
        values = [value for value in self.operands() if value is not self.walk]
        operands = [("graph", self.walk), *((str(i), value) for i, value in enumerate(values))]
        return Parts("edge_nest", operands, self.several())

    def label(self) -> str:
        """How many values are computed, and what is stored of them."""
        made = " + ".join(value.op.name.lower() for value in (self.result, *self.taps))
        return f"edges ({len(self.chain)} values): {made}"


@dataclass
class Joined(Chain):
    """Values that one kernel of a target computes side by side.

    Attributes:
        kernel: Its name.
    """

    kernel: str = field(kw_only=True)

    def parts(self) -> Parts:
        """The kernel by its name."""
        return Parts(self.kernel, [(f"x{i}", value) for i, value in enumerate(self.operands())], self.several())

    def label(self) -> str:
        """The kernel, and what comes with it."""
        return f"{self.kernel} + {' + '.join(v.op.name.lower() for v in self.chain if v is not self.anchor)}"


@dataclass
class AttentionGradients(Joined):
    """The gradients of an attention, to that of whose values is added what comes by the scores."""

    kernel: str = field(kw_only=True, default="attention_grad")

    def parts(self) -> Parts:
        """The kernel of the gradients, with the vectors of the scores."""
        assert self.anchor is not None  # the first gradient
        found = _attention_gradients(self, self.anchor)
        for product in (value for value in self.chain if value.op is Op.EINSUM):
            number, vector = product.inputs if product.inputs[1] not in self.chain else product.inputs[::-1]
            found.operands.append((f"vector{number['wrt']}", vector))
        return found


@dataclass(frozen=True)
class Term:
    """One of the products that a kernel makes together with others.

    Attributes:
        product: The product.
        gather: The rows that its first operand takes from a table, read there by index.
        made: The aggregation that is its first operand, made on the way.
    """

    product: Value
    gather: Value | None = None
    made: Group | None = None

    @property
    def kind(self) -> str:
        """What its first operand is: "rows", "gathered" ones or "sums"."""
        return "gathered" if self.gather is not None else "rows" if self.made is None else "sums"

    def left(self) -> Named:
        """Where its first operand comes from."""
        if self.gather is not None:
            return list(zip(("x", "ids"), self.gather.inputs, strict=True))
        if self.made is None:
            return [("x", self.product.inputs[0])]
        assert self.made.anchor is not None  # an aggregation
        return [*zip(("graph", "x"), self.made.anchor.inputs, strict=True), *self.made.staged()]


@dataclass
class Products(Group):
    """Several products that are added up before the stages.

    Attributes:
        terms: The products, the anchor's first.
    """

    terms: tuple[Term, ...] = field(kw_only=True)

    def operands(self) -> list[Value]:
        """What the products and the stages read."""
        found = [value for t in self.terms for value in (*(v for _, v in t.left()), t.product.inputs[1])]
        return found + [value for _, value in self.staged()]

    def as_terms(self) -> tuple[Term, ...]:
        """As they are."""
        return self.terms

    def parts(self) -> Parts:
        """One kernel, in which the roles of every product have its number."""
        operands: Named = []
        results = [("out", self.result)]
        attrs: Attrs = ()
        for i, term in enumerate(self.terms):
            left, weight = term.product.inputs
            operands += [(f"{role}{i}", value) for role, value in (*term.left(), ("weight", weight))]
            attrs += ((f"first{i}", term.kind), (f"transposed{i}", bool(term.product.get("tb"))))
            if term.kind == "sums" and left in self.taps:
                results.append((f"kept{i}", left))
        if "col_sum" in self.stages:
            results.append(("col_sum", self.taps[0]))
        stored = {value for _, value in results}
        results += [(f"tap{i}", tap) for i, tap in enumerate(self.taps) if tap not in stored]
        return Parts("matmul_terms", [*operands, *self.staged()], results, attrs + self.switches())

    def label(self) -> str:
        """What is multiplied, then the stages."""
        return " + ".join([f"matmul of {self._lefts()}", *self.stages])

    def _lefts(self) -> str:
        return " and ".join("gathered rows" if term.gather else term.kind for term in self.terms)


@dataclass
class Contractions(Products):
    """Contractions with one second operand, an aggregation made on the way; each is a result of its own.

    Attributes:
        shared: The aggregation.
    """

    shared: Group = field(kw_only=True)

    def operands(self) -> list[Value]:
        """What every contraction reads, and what the aggregation does."""
        return [value for t in self.terms for value in (*(v for _, v in t.left()), *self.shared.operands())]

    def sums(self) -> list[Group]:
        """The one that all read."""
        return [self.shared]

    def parts(self) -> Parts:
        """One kernel; the group's result comes first."""
        assert self.shared.anchor is not None  # an aggregation
        operands: Named = list(zip(("graph", "x"), self.shared.anchor.inputs, strict=True))
        results: Named = []
        for i, term in enumerate(self.terms):
            operands += [(f"{'left' if role == 'x' else role}{i}", value) for role, value in term.left()]
            results.append(("out" if i == 0 else f"out{i}", term.product))
        results += [("col_sum", tap) for tap in self.shared.taps]
        first = next(i for i, (_, value) in enumerate(results) if value is self.result)
        results.insert(0, results.pop(first))
        attrs = (("count", len(self.terms)), *self.shared.switches())
        return Parts("contract_terms", [*operands, *self.shared.staged()], results, attrs)

    def label(self) -> str:
        """What is contracted, then what the aggregation does."""
        return " + ".join([f"matmul transposed of {self._lefts()} by sums", *self.shared.stages])


# -- calls of one operation


def _plain(group: Group, value: Value) -> Parts:
    """An operation under its own name."""
    operands = [(f"x{i}", operand) for i, operand in enumerate(value.inputs)]
    return Parts(value.op.name.lower(), [*operands, *group.staged()], group.results(), _attrs(value))


def _attrs(value: Value) -> Attrs:
    return tuple((name, item) for name, item in value.attrs if isinstance(item, bool | int | float | str | tuple))


def _by_role(value: Value, *roles: str) -> Named:
    return list(zip(roles, value.inputs, strict=False))


def _aggregation(group: Group, value: Value) -> Parts:
    """Edges times rows."""
    operands = _by_role(value, "graph", "x", "weight")
    if group.src_scale is not None and group.scaled is not None:
        operands[1:2] = [("x", group.scaled), ("src_scale", group.src_scale)]
    name, coefficient = "spmm", float(value.get("self_coef", 0.0))
    if group.self_factor is not None:
        operands.append(("self_factor", group.self_factor))
        name, coefficient = "spmm_self", 1.0
    attrs = (("self_coef", coefficient), *group.switches())
    return Parts(name, [*operands, *group.staged()], group.results(), attrs)


def _product(group: Group, value: Value) -> Parts:
    """Rows times a matrix."""
    left, weight = value.inputs
    x, ids = group.left(left)
    name = "sparse_matmul" if left.tensor.sparse else "contract" if value.get("ta") else "matmul"
    attrs = (("by_column", bool(value.get("ta"))), ("transposed", bool(value.get("tb"))), *group.switches())
    return Parts(name, [("x", x), *ids, ("weight", weight), *group.staged()], group.results(), attrs)


def _extremum(group: Group, value: Value) -> Parts:
    """The largest or least of rows over edges."""
    return Parts("spmm_max", _by_role(value, "graph", "x"), [("out", value)], (("minimum", value["kind"] == "min"),))


def _attention(group: Group, value: Value) -> Parts:
    """An attention with its statistics."""
    results = [("out", value), *(("stats", tap) for tap in group.taps)]
    return Parts("attention", _by_role(value, "graph", "x", "a", "b", "seed"), results, _attrs(value))


def _attention_gradients(group: Group, value: Value) -> Parts:
    """All gradients of one attention."""
    seed = ("seed",) if len(value.inputs) == 9 else ()
    operands = _by_role(value, "graph", "turned", "x", "a", "b", *seed, "out", "stats", "dout")
    attrs = (*_attrs(value), ("heads", value.inputs[-3].tensor.dims[0]))
    return Parts("attention_grad", operands, [(f"d{v.get('wrt', 0)}", v) for v in (group.result, *group.taps)], attrs)


def _norm(group: Group, value: Value) -> Parts:
    """A batch norm or the gradient of its rows; what the call makes on the way is a result."""
    named = _by_role(value, *_OF_NORMS[value.op])
    operands = [(role, operand) for role, operand in named if operand not in group.taps]
    results = [("out", group.result), *((role, operand) for role, operand in named if operand in group.taps)]
    return Parts(value.op.name.lower(), operands, results, (("eps", value["eps"]), *group.switches()))


def _of_gathered(group: Group, value: Value) -> Parts:
    """Dropout, or a factor, of rows that may be taken from a table."""
    if group.gather is None:
        return _plain(group, value)
    x, ids = group.left(value.inputs[0])
    name, role = ("dropout_of_rows", "seed") if value.op is Op.DROPOUT else ("scale_of_rows", "factor")
    return Parts(name, [("x", x), *ids, (role, value.inputs[1])], [("out", group.result)])


def _power(group: Group, value: Value) -> Parts:
    """1 over the in-degrees of a graph, 0 where there are none; or any other power."""
    inverse = value["exponent"] == -1.0 and not value.get("eps") and value.tensor.dtype == torch.float32
    if not inverse or value.inputs[0].op is not Op.IN_DEGREE:
        return _plain(group, value)
    return Parts("inverse_degree", [("graph", value.inputs[0].inputs[0])], [("out", group.result)])


_OF_NORMS = {
    Op.BATCH_NORM: ("x", "stats", "weight", "bias"),
    Op.NORMALISE: ("x", "mean", "variance", "weight", "bias"),
    Op.BATCH_NORM_GRAD: ("x", "stats", "dy", "products", "sums", "weight"),
}
# how an operation with operands by role becomes a call; others have numbers for roles
_PARTS: dict[Op, Callable[[Group, Value], Parts]] = {
    Op.SPMM: _aggregation,
    Op.SPMM_MAX: _extremum,
    Op.MATMUL: _product,
    Op.ATTENTION: _attention,
    Op.ATTENTION_GRAD: _attention_gradients,
    **dict.fromkeys(_OF_NORMS, _norm),
    Op.DROPOUT: _of_gathered,
    Op.MUL_SCALAR: _of_gathered,
    Op.POW: _power,
}
