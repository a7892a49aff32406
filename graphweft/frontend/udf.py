"""A message-passing call as one IR program.

Comes in: a :class:`Call` and what its functions capture. Goes out: :class:`RaisedCall`: the three functions recorded,
raised and joined, which writes its program into a builder for any graph. Values are named ``node:h``, ``src:h``,
``dst:h``, ``edge:w``, ``ntype:W``, ``etype:W``, ``cap:0`` (captured) and ``const:0``. Called by ``nn.message_passing``.

In-degrees of 0: what reduce gives there is replaced by zeros. Where its code on nodes could make infinities out of
empty sums, and those a gradient, only nodes with in-edges (``Op.RECEIVERS``) are computed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from graphweft.frontend.algebra import MESSAGE, REDUCE, UPDATE, Algebra, Stage
from graphweft.frontend.call import Call, absent
from graphweft.frontend.captured import Captured
from graphweft.frontend.layout import Axis, D, N, Raised, Size, UnraisableError
from graphweft.frontend.numbers import NUMBER, OpenNumbers, Written
from graphweft.frontend.raising import raise_function
from graphweft.frontend.source import first_line
from graphweft.frontend.trace import Spec, Traced, trace
from graphweft.frontend.views import Edges, FieldView, Nodes
from graphweft.ir.ops import Op
from graphweft.ir.program import Builder, Value, topological
from graphweft.ir.residency import IndexType, Residency, StructType, TensorType

Given = dict[str, tuple[Tensor, Residency]]
_RISKY = frozenset({"div", "log", "log1p", "sqrt", "rsqrt", "reciprocal", "pow"})  # infinite somewhere
_KEEPS_ZERO = frozenset(
    [
        "neg",
        "abs",
        "sign",
        "sqrt",
        "sqrt0",
        "square",
        "relu",
        "tanh",
        "sin",
        "erf",
        "expm1",
        "log1p",
        "leaky_relu",
        "elu",
        "floor",
        "ceil",
        "round",
    ]
)
_MOVES = frozenset(
    {Op.RESHAPE, Op.PERMUTE, Op.EXPAND, Op.SLICE, Op.CAT, Op.SUM_DIMS, Op.MAX_DIMS, Op.CAST, Op.DETACH, Op.ADD, Op.MUL}
)


@dataclass
class RaisedCall:
    """Three recorded functions.

    Attributes:
        message, reduce, update: The recordings, None for a stage that the call does not have.
        rowed: Positions of captured tensors that have one row per edge (message) or node (update), by stage.
        constants: Tensors that the functions make from numbers alone.
        risky: Whether empty mailboxes could make infinities.
        draws: Whether random numbers are drawn.
        numbers: Python numbers that are inputs: expressions of what the functions read in every call.
        opened: Positions of all numbers in these.
    """

    message: Traced | None
    reduce: Traced | None
    update: Traced | None
    rowed: dict[str, frozenset[int]]
    constants: list[Tensor] = field(default_factory=list)
    risky: bool = False
    draws: bool = False
    numbers: list[Written] = field(default_factory=list)
    opened: frozenset[int] = frozenset()

    @property
    def returned(self) -> list[str]:
        """Names of the fields that the last function returns, in its order."""
        last = self.update or self.reduce or self.message
        assert last is not None  # a call has a stage
        return list(last.outputs)

    @property
    def writes(self) -> bool:
        """Whether buffers of captured modules get new contents."""
        return bool(self.written)

    @property
    def written(self) -> list[int]:
        """Positions of the buffers that get new contents."""
        stages = (self.message, self.reduce, self.update)
        return [at for stage in stages if stage is not None for at in stage.updates]

    def given(self, call: Call, captured: Captured) -> Given:
        """Every tensor the program may read, by name, with what its rows are."""
        given = name_tensors(call, captured, self._residency, self.constants, self._read)
        for at, number in enumerate(self.numbers):
            given[f"{NUMBER}{at}"] = (number.tensor(captured.numbers), Residency.SHARED)
        return given

    @functools.cached_property
    def _read(self) -> frozenset[str]:
        """Names of the fields that the functions read."""
        stages = {MESSAGE: self.message, REDUCE: self.reduce, UPDATE: self.update}
        return frozenset(
            name
            for stage, traced in stages.items()
            for key, node in (traced.inputs if traced is not None else {}).items()
            if traced is not None and (node.users or node in traced.outputs.values())
            for name in _given_names(stage, *key.split(":", 1))
        )

    def _residency(self, at: int) -> Residency:
        if at in self.rowed[MESSAGE]:
            return Residency.EDGE
        return Residency.DST if at in self.rowed[UPDATE] else Residency.SHARED

    def write(self, builder: Builder, inputs: Mapping[str, Value], isolated: bool, square: bool) -> dict[str, Value]:
        """The program's outputs: fields by ``out:name``, new contents of captured buffers by ``buffer:position``."""
        writer = _Writer(self, builder, inputs, isolated, square)
        outputs, updates = writer.outputs()
        return {**{f"out:{n}": v for n, v in outputs.items()}, **{f"buffer:{at}": v for at, v in updates.items()}}


def name_tensors(
    call: Call,
    captured: Captured,
    residency: Callable[[int], Residency],
    constants: Sequence[Tensor],
    read: Container[str],
) -> Given:
    """Every tensor that a program of ``call`` may read, by name, with what its rows are.

    Of fields only those in ``read``: the dtype of another says nothing of the program.
    """
    given: Given = {}
    square = call.graph.is_square
    for name, tensor in call.src.items():
        given[f"node:{name}" if square else f"src:{name}"] = (tensor, Residency.SRC)
    for name, tensor in call.dst.items() if not square else ():
        given[f"dst:{name}"] = (tensor, Residency.DST)
    given |= {f"edge:{name}": (tensor, Residency.EDGE) for name, tensor in call.edata.items()}
    given |= {f"ntype:{name}": (tensor, Residency.NTYPE) for name, tensor in call.ntype.items()}
    given |= {f"etype:{name}": (tensor, Residency.ETYPE) for name, tensor in call.etype.items()}
    for name in [name for name in given if name not in read]:
        del given[name]
    given |= {f"cap:{at}": (tensor, residency(at)) for at, tensor in enumerate(captured.tensors)}
    given |= {f"const:{at}": (tensor, Residency.SHARED) for at, tensor in enumerate(constants)}
    return given


def _given_names(stage: str, kind: str, field_: str) -> tuple[str, ...]:
    """Names under which a program may know a field of a stage; on a square graph sources and destinations are one."""
    if kind in ("src", "dst"):
        return f"node:{field_}", f"{kind}:{field_}"
    if kind == "data":
        return f"node:{field_}", f"dst:{field_}"
    if kind == "edge":
        return (f"edge:{field_}",)
    table = "etype" if kind == "type" and stage == MESSAGE else "ntype"
    return (f"{table}:{field_}",) if kind in ("type", "srctype", "dsttype") else ()


def symbolic_inputs(builder: Builder, given: Given, square: bool) -> dict[str, Value]:
    """Inputs of a program of such tensors on any graph."""
    src, dst = ("V", "V") if square else ("S", "D")
    symbols = {Residency.SRC: src, Residency.DST: dst, Residency.EDGE: "E", Residency.NTYPE: "A", Residency.ETYPE: "T"}
    inputs: dict[str, Value] = {
        "graph": builder.add(Op.GRAPH, name="graph", type=StructType(src, dst, "E")),
        "seed": builder.add(Op.INPUT, name="seed", type=IndexType(None, None)),
    }
    for name, (tensor, residency) in given.items():
        rows = symbols.get(residency)
        dims = tuple(tensor.shape[1:] if rows else tensor.shape)
        inputs[name] = builder.add(Op.INPUT, name=name, type=TensorType(residency, rows, dims, tensor.dtype))
    return inputs


def raise_call(call: Call, captured: Captured, opened: frozenset[int] = frozenset()) -> RaisedCall:
    """Records and raises the functions of ``call``, with the numbers at ``opened`` as inputs.

    Raises: UnraisableError naming what cannot be compiled and the user's line; FieldError for a missing field.
    """
    if captured.refused is not None:
        raise UnraisableError(captured.refused, first_line(_functions(call)[0]))
    candidates = {
        MESSAGE: frozenset(i for i, t in enumerate(captured.tensors) if _rows(t) == call.graph.num_edges),
        UPDATE: frozenset(i for i, t in enumerate(captured.tensors) if _rows(t) == call.graph.num_dst),
    }
    none: frozenset[int] = frozenset()
    if opened:
        numbers = OpenNumbers((call.message, call.reduce, call.update, call.params), captured, opened)
        return _raise(call, captured, {MESSAGE: none, REDUCE: none, UPDATE: none}, numbers)
    try:
        return _raise(call, captured, {MESSAGE: none, REDUCE: none, UPDATE: none})
    except UnraisableError as failure:
        if not any(candidates.values()):
            raise
        try:
            return _raise(call, captured, {**candidates, REDUCE: none})
        except UnraisableError:
            raise failure from None


def _functions(call: Call) -> list[Callable[..., Any]]:
    """The stages that the call has."""
    return [f for f in (call.message, call.reduce, call.update) if f is not absent and f is not None]


def _rows(tensor: Tensor) -> int:
    return tensor.shape[0] if tensor.dim() else -1


def _raise(
    call: Call, captured: Captured, rowed: dict[str, frozenset[int]], numbers: OpenNumbers | None = None
) -> RaisedCall:
    record = functools.partial(_record, numbers=numbers, captured=captured)
    node_fields = {name: (tensor.shape[1:], tensor.dtype) for name, tensor in call.dst.items()}
    message = reduce = update = None
    sent: Kinds = {}
    reduced: Kinds = {}
    if call.message is not absent:
        with UnraisableError.within(MESSAGE):
            message = _trace_message(call, functools.partial(record, stage=0, rowed=rowed[MESSAGE]))
            sent = _kinds(message)
    if call.reduce is not absent:
        with UnraisableError.within(REDUCE):
            reduce = _trace_nodes(call, REDUCE, call.reduce, node_fields, sent, functools.partial(record, stage=1))
            reduced = _kinds(reduce)
    if call.update is not None:
        with UnraisableError.within(UPDATE):
            fields = node_fields | reduced
            recorded = functools.partial(record, stage=2, rowed=rowed[UPDATE])
            update = _trace_nodes(call, UPDATE, call.update, fields, {}, recorded)
    opened = frozenset() if numbers is None else numbers.positions
    raised = RaisedCall(message, reduce, update, rowed, opened=opened)
    _rehearse(raised, call, captured)
    for traced in (message, reduce, update):
        if traced is not None:
            traced.check()
    return raised


def _record(
    function: Callable[..., Any],
    specs: Sequence[Spec],
    view: Callable[[Mapping[str, Tensor], Any], Any],
    params: Sequence[Any] = (),
    *,
    numbers: OpenNumbers | None,
    captured: Captured,
    stage: int,
    rowed: frozenset[int] = frozenset(),
) -> Traced:
    """One function recorded, with the numbers that are inputs."""
    return trace(function, specs, view, captured, params, rowed, None if numbers is None else (numbers, stage))


def _rehearse(raised: RaisedCall, call: Call, captured: Captured) -> None:
    """Writes the program once, to learn its constants and whether it can be written at all."""
    builder = Builder()
    square = call.graph.is_square
    inputs = symbolic_inputs(builder, raised.given(call, captured), square)
    writer = _Writer(raised, builder, inputs, False, square, rehearsal=True)
    values, _ = writer.outputs()
    raised.risky = writer.risky
    raised.draws = inputs["seed"] in set(topological(values.values()))


Kinds = dict[str, tuple[Any, torch.dtype]]


def _kinds(traced: Traced) -> Kinds:
    """Trailing sizes and dtype of every field that a function returned."""
    found: Kinds = {}
    for name, node in traced.outputs.items():
        value = node.meta["val"]
        try:
            shape = traced.symbols.shape(value.shape)
        except UnraisableError:
            called, line = node.meta.get("call", "a function"), node.meta.get("line")
            raise UnraisableError(f"{called} (its result has a number of rows that depends on values)", line) from None
        if not shape or shape[0] != Size(1, n=True) or any(size.n or size.d for size in shape[1:]):
            raise UnraisableError(f"a field {name!r} whose first dimension is not its rows", node.meta.get("line"))
        found[name] = (tuple(size.number for size in shape[1:]), value.dtype)
    return found


def _loader(given: Mapping[str, Tensor], prefix: str) -> dict[str, Callable[[], Tensor]]:
    """Makers of the fields whose name starts with ``prefix``."""
    chosen = {name: tensor for name, tensor in given.items() if name.startswith(prefix)}
    return {name.removeprefix(prefix): functools.partial(lambda t: t, tensor) for name, tensor in chosen.items()}


def _specs(prefix: str, fields: Mapping[str, Tensor], lead: Axis) -> list[Spec]:
    return [Spec(f"{prefix}:{name}", (*lead, *t.shape[1:]), t.dtype) for name, t in fields.items()]


def _trace_message(call: Call, record: Callable[..., Traced]) -> Traced:
    typed = call.graph.is_square
    specs = [
        *_specs("src", call.src, (N,)),
        *_specs("dst", call.dst, (N,)),
        *_specs("edge", call.edata, (N,)),
        *(_specs("srctype", call.ntype, (N,)) if typed else []),
        *(_specs("dsttype", call.ntype, (N,)) if typed else []),
        *(_specs("type", call.etype, (N,)) if typed else []),
    ]

    def view(given: Mapping[str, Tensor], rows: Any) -> Edges:
        def of(name: str, prefix: str, what: str) -> FieldView:
            remedy = functools.partial(call.remedy, prefix) if prefix in ("src", "dst", "edge") else None
            return FieldView(MESSAGE, f"edges.{name}", _loader(given, f"{prefix}:"), what, remedy)

        return Edges(
            src=of("src", "src", "source fields"),
            dst=of("dst", "dst", "destination fields"),
            data=of("data", "edge", "edge fields"),
            srctype=of("srctype", "srctype", "node type tables"),
            dsttype=of("dsttype", "dsttype", "node type tables"),
            type=of("type", "type", "edge type tables"),
            count=rows,
        )

    return record(call.message, specs, view, call.params)


def _trace_nodes(
    call: Call,
    stage: str,
    function: Callable[..., Any],
    fields: Kinds,
    sent: Kinds,
    record: Callable[..., Traced],
) -> Traced:
    specs = [Spec(f"data:{name}", (N, *dims), dtype) for name, (dims, dtype) in fields.items()]
    specs += [Spec(f"mailbox:{name}", (N, D, *dims), dtype) for name, (dims, dtype) in sent.items()]
    specs += _specs("type", call.ntype, (N,)) if call.graph.is_square else []
    remedy = functools.partial(call.remedy, "dst")
    mailbox = "mailbox fields that message sent" if stage == REDUCE else "mailbox fields (update has none)"

    def view(given: Mapping[str, Tensor], rows: Any) -> Nodes:
        return Nodes(
            data=FieldView(stage, "nodes.data", _loader(given, "data:"), "node fields", remedy),
            mailbox=FieldView(stage, "nodes.mailbox", _loader(given, "mailbox:"), mailbox),
            type=FieldView(stage, "nodes.type", _loader(given, "type:"), "node type tables"),
            count=rows,
        )

    return record(function, specs, view)


class _Writer:
    """Writes one program."""

    def __init__(
        self,
        raised: RaisedCall,
        builder: Builder,
        inputs: Mapping[str, Value],
        isolated: bool,
        square: bool,
        rehearsal: bool = False,
    ) -> None:
        self.raised, self.b, self.inputs, self.square = raised, builder, inputs, square
        self.isolated, self.rehearsal, self.risky = isolated, rehearsal, False
        self.graph = inputs["graph"]
        self._numbers: dict[str, Value] = {}
        self._constants = 0

    def outputs(self) -> tuple[dict[str, Value], dict[int, Value]]:
        """Fields of the last function, and new contents of buffers."""
        traced = self.raised
        fields: dict[str, Value] = {}
        updates: dict[int, Value] = {}
        if traced.message is not None:
            with UnraisableError.within(MESSAGE):
                fields, updates = self._message(traced.message)
        if traced.reduce is not None:
            with UnraisableError.within(REDUCE):
                fields, found = self._reduce(traced.reduce, fields)
            updates |= found
        if traced.update is not None:
            with UnraisableError.within(UPDATE):
                fields, found = self._update(traced.update, fields)
            updates |= found
        return fields, updates

    def _algebra(self, name: str, traced: Traced) -> Algebra:
        apart = name == REDUCE and self.isolated and self.raised.risky
        receivers = self.b.add(Op.RECEIVERS, self.graph) if apart else None
        stage = Stage(name, self.graph, traced.symbols, receivers, self.inputs.get("seed"), number=self._number)
        return Algebra(self.b, stage)

    def _run(
        self, name: str, traced: Traced, algebra: Algebra, fields: Mapping[str, Callable[[], Raised]]
    ) -> tuple[dict[str, Raised], dict[int, Value]]:
        read = {key: fields[key]() for key, node in traced.inputs.items() if node.users}
        captured = []
        for at, placeholder in enumerate(traced.captured):
            value = self.inputs[f"cap:{at}"]
            lead: Axis = (N,) if at in self.raised.rowed[name] else ()
            if placeholder.users and value.tensor.rows is not None and not lead:
                raise UnraisableError("a captured tensor that has a row per edge or node in one function only")
            captured.append(algebra.axes.of(value, lead))
        for name_, node in traced.inputs.items():  # fields that are returned as they came
            if not node.users and node in traced.outputs.values():
                read[name_] = fields[name_]()
        outputs, updates = raise_function(traced, algebra, read, captured, self._constant)
        return outputs, {at: algebra.plain(x, 0) for at, x in updates.items()}

    def _number(self, number: Written) -> Raised:
        """A number that changes between calls."""
        if self.rehearsal and number not in self.raised.numbers:
            self.raised.numbers.append(number)
        name = f"{NUMBER}{self.raised.numbers.index(number)}"
        if name not in self._numbers:
            type_ = TensorType(Residency.SHARED, None, (), number.dtype)
            made = self.inputs.get(name) if not self.rehearsal else self.b.add(Op.INPUT, name=name, type=type_)
            assert made is not None  # the rehearsal met the same numbers
            self._numbers[name] = made
        return Raised(self._numbers[name], ())

    def _constant(self, tensor: Tensor) -> Raised:
        """A constant tensor: a number where it is one, else an input."""
        traced = self.raised.message or self.raised.reduce or self.raised.update
        assert traced is not None  # a call has a stage
        axes = Algebra(self.b, Stage(MESSAGE, self.graph, traced.symbols))
        if tensor.dim() == 0:
            return axes.number(tensor.item(), tensor.dtype)
        at, self._constants = self._constants, self._constants + 1
        name = f"const:{at}"
        if self.rehearsal:
            self.raised.constants.append(tensor)
            type_ = TensorType(Residency.SHARED, None, tuple(tensor.shape), tensor.dtype)
            return axes.axes.of(self.b.add(Op.INPUT, name=name, type=type_))
        return axes.axes.of(self.inputs[name])

    def _message(self, traced: Traced) -> tuple[dict[str, Value], dict[int, Value]]:
        algebra = self._algebra(MESSAGE, traced)
        fields: dict[str, Callable[[], Raised]] = {}
        src, dst = ("node", "node") if self.square else ("src", "dst")

        def to_edges(op: Op, value: Value) -> Raised:
            return algebra.axes.of(self.b.add(op, self.graph, value), (N,))

        def of_type(op: Op, table: Value) -> Raised:
            return to_edges(op, self.b.add(Op.BROADCAST_NTYPE, self.graph, table))

        for name, value in self.inputs.items():
            kind, _, field_ = name.partition(":")
            if kind == src:
                fields[f"src:{field_}"] = functools.partial(to_edges, Op.BROADCAST_SRC, value)
            if kind == dst:
                fields[f"dst:{field_}"] = functools.partial(to_edges, Op.BROADCAST_DST, value)
            if kind == "edge":
                fields[f"edge:{field_}"] = functools.partial(algebra.axes.of, value, (N,))
            if kind == "ntype":
                fields[f"srctype:{field_}"] = functools.partial(of_type, Op.BROADCAST_SRC, value)
                fields[f"dsttype:{field_}"] = functools.partial(of_type, Op.BROADCAST_DST, value)
            if kind == "etype":
                fields[f"type:{field_}"] = functools.partial(to_edges, Op.BROADCAST_ETYPE, value)
        outputs, updates = self._run(MESSAGE, traced, algebra, fields)
        return {name: algebra.finish(x) for name, x in outputs.items()}, updates

    def _node_fields(self, algebra: Algebra) -> dict[str, Callable[[], Raised]]:
        """Node fields and rows of node type tables."""
        fields: dict[str, Callable[[], Raised]] = {}
        own = "node" if self.square else "dst"

        def of(value: Value) -> Raised:
            value = algebra.node_rows(value)
            masked = self.isolated and algebra.stage.name == REDUCE and algebra.stage.receivers is None
            return algebra.axes.of(self._without_isolated(algebra, value) if masked else value, (N,))

        def of_type(table: Value) -> Raised:
            return of(self.b.add(Op.BROADCAST_NTYPE, self.graph, table))

        for name, value in self.inputs.items():
            kind, _, field_ = name.partition(":")
            if kind == own:
                fields[f"data:{field_}"] = functools.partial(of, value)
            if kind == "ntype":
                fields[f"type:{field_}"] = functools.partial(of_type, value)
        return fields

    def _reduce(self, traced: Traced, messages: Mapping[str, Value]) -> tuple[dict[str, Value], dict[int, Value]]:
        algebra = self._algebra(REDUCE, traced)
        fields = self._node_fields(algebra)
        for name, value in messages.items():
            fields[f"mailbox:{name}"] = functools.partial(algebra.axes.of, value, (N, D))
        outputs, updates = self._run(REDUCE, traced, algebra, fields)
        values = {name: algebra.finish(x) for name, x in outputs.items()}
        if self.rehearsal:
            self.risky = any(map(self._is_risky, topological([*values.values()])))
        return {name: self._zeroed(algebra, value) for name, value in values.items()}, updates

    def _update(self, traced: Traced, reduced: Mapping[str, Value]) -> tuple[dict[str, Value], dict[int, Value]]:
        algebra = self._algebra(UPDATE, traced)
        fields = self._node_fields(algebra)
        for name, value in reduced.items():
            fields[f"data:{name}"] = functools.partial(algebra.axes.of, value, (N,))
        outputs, updates = self._run(UPDATE, traced, algebra, fields)
        return {name: algebra.finish(x) for name, x in outputs.items()}, updates

    # nodes without in-edges

    def _is_risky(self, value: Value) -> bool:
        """Whether a value on nodes is made by a function that is infinite somewhere, of something on nodes."""
        on_nodes = isinstance(value.type, TensorType) and value.type.rows == self.graph.struct.dst
        if value.op is not Op.EWISE or value["fn"] not in _RISKY or not on_nodes:
            return False
        parts = value.inputs[1:] if value["fn"] == "div" else value.inputs
        return any(x.tensor.rows is not None for x in parts)

    def _zeroed(self, algebra: Algebra, value: Value) -> Value:
        """Zeros for nodes without in-edges."""
        if algebra.stage.receivers is not None:
            return algebra.all_nodes(value)
        if not self.isolated or _zero_without_edges(value):
            return value
        return self._without_isolated(algebra, value)

    def _without_isolated(self, algebra: Algebra, value: Value) -> Value:
        x = algebra.axes.of(value, (N,))
        degree = Raised(algebra.degree(torch.float32), ((N,), *((),) * (len(x.axes) - 1)))
        some = algebra.ewise("gt", degree, algebra.number(0.0, torch.float32))
        dtype = value.tensor.dtype
        zero = algebra.number(False if dtype == torch.bool else 0, dtype)
        return algebra.finish(algebra.ewise("where", some, x, zero))


def _zero_without_edges(value: Value) -> bool:
    """Whether rows of nodes without in-edges are zero by construction."""
    if value.op is Op.REDUCE:
        return True
    if value.op is Op.EWISE and value["fn"] in _KEEPS_ZERO:
        return _zero_without_edges(value.inputs[0])
    rowed = [x for x in value.inputs if isinstance(x.type, TensorType) and x.tensor.rows is not None]
    if value.op is Op.EWISE and value["fn"] in ("mul", "div"):
        return rowed == [value.inputs[0]] and _zero_without_edges(rowed[0])
    if value.op is Op.EINSUM:
        return len(rowed) == 1 and _zero_without_edges(rowed[0])
    if value.op in _MOVES or (value.op is Op.EWISE and value["fn"] in ("add", "sub")):
        return len(rowed) == len(value.inputs) and all(map(_zero_without_edges, rowed))
    return False
