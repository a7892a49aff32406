"""The ordered list of passes, and the search over orders that are decided by cost.

Comes in: a forward program, the inputs that want gradients, sizes and a cost model. Goes out: a :class:`Compiled`
program: forward and backward values, what is hoisted, the kernel groups, the chosen orders, and a trace of every pass
for ``gw.explain``. Called by ``runtime/compile.py`` only. Every pass has a name and can be switched off by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod

from graphweft._errors import IRError, PassError
from graphweft.cost import CostModel, Work, contraction_work, gather_work, product_work, rows_work
from graphweft.ir.grad import differentiate
from graphweft.ir.ops import Op
from graphweft.ir.program import Program, Value
from graphweft.ir.residency import StructType, TensorType
from graphweft.ir.verify import verify
from graphweft.passes.attention import raise_attention
from graphweft.passes.canonical import canonicalise
from graphweft.passes.cleanup import cleanup
from graphweft.passes.demand import push_demand
from graphweft.passes.edges import cover_edges, edge_bytes, is_wide, open_softmax
from graphweft.passes.elementwise import fuse_elementwise
from graphweft.passes.fuse import Group, group_values
from graphweft.passes.hoist import constant_values, kept_tensors
from graphweft.passes.message import fuse_messages
from graphweft.passes.placement import Order, place, sites
from graphweft.passes.reorder import reorder_broadcasts, split_joined
from graphweft.passes.stage_fuse import fold_gathers, fuse_first_layer, fuse_structure
from graphweft.passes.typed import raise_typed

FORWARD, BACKWARD = 0, 1
WORTH_A_KERNEL = 4 << 20  # bytes of a matrix from which an elementwise kernel is generated for it
MARGIN = 0.05  # gain that measured times must promise before they overrule the built-in coefficients
_NARROW, _FEW_EDGES = 32, 8  # columns of rows that are read where they lie; edges per row
PASSES = (
    "cleanup",
    "structure",
    "split",
    "reorder",
    "canonical",
    "typed",
    "messages",
    "demand",
    "placement",
    "stages",
    "differentiate",
    "edges",
    "hoist",
    "fuse",
)


@dataclass(frozen=True)
class Sizes:
    """Numbers behind the symbols of a program.

    Attributes:
        rows: Leading sizes by symbol (nodes, edges, listed rows).
        nonzeros: Stored entries of each sparse input by name.
        memory: Bytes that hoisted matrices may take together.
    """

    rows: Mapping[str, int]
    nonzeros: Mapping[str, int] = field(default_factory=dict)
    memory: float = float("inf")


@dataclass(frozen=True)
class Request:
    """What to compile for: level, switched-off passes, gradients, constants, sizes, costs, orders decided before."""

    level: int
    wanted: tuple[str, ...]
    constants: tuple[str, ...]
    sizes: Callable[[Program], Sizes]
    model: CostModel
    disabled: frozenset[str] = frozenset()
    orders: Mapping[str, Order] | None = None
    hoists_from: int = 3  # the level from which constants are computed apart

    def on(self, name: str, level: int) -> bool:
        """Whether the pass ``name``, which belongs to ``level``, runs."""
        return self.level >= level and name not in self.disabled


@dataclass
class Compiled:
    """A program ready to lower.

    Attributes:
        derived: The program as the gradient rules wrote it.
        walks: Whether values of edges are computed inside generated kernels.
    """

    program: Program
    hoisted: set[Value]
    groups: list[Group]
    phase: dict[Value, int]
    orders: dict[str, Order]
    seconds: float
    trace: list[tuple[str, str]]
    works: dict[Value, Work]
    model: CostModel
    derived: Program | None = None
    walks: bool = False


def run_passes(program: Program, request: Request) -> Compiled:
    """All passes in order.

    Raises: PassError naming the pass whose result does not verify, and those before it.
    """
    trace: list[tuple[str, str]] = [("traced", str(program))]
    verify(program)

    def step(name: str, change: Callable[[Program], Program], before: Program) -> Program:
        after = change(before)
        try:
            verify(after)
        except IRError as failure:
            raise PassError(f"{name} (after {', '.join(n for n, _ in trace)}): {failure}") from failure
        if str(after) != str(before):
            trace.append((name, str(after)))
        return after

    if request.on("cleanup", 1):
        program = step("cleanup", cleanup, program)
    if request.on("structure", 1):
        program = step("structure", fuse_structure, program)
    program = _rearranged(program, request, step)
    if request.on("messages", 1):
        program = step("messages", lambda p: fuse_messages(raise_attention(p)), program)
        program = step("cleanup", cleanup, program)
    candidates = [program]
    if request.on("demand", 2):
        demanded = cleanup(push_demand(program))
        if str(demanded) != str(program):
            candidates.append(demanded)
    best, orders, chosen = _choose(candidates, request)
    if best:
        step("demand", lambda _: candidates[best], program)
    placed = step("placement", lambda p: cleanup(place(p, orders)), candidates[best])
    fused = step("stages", lambda p: _staged(p, request), placed)
    derived = step("differentiate", lambda _: chosen.derived or chosen.program, fused)
    step("edges", lambda _: chosen.program, derived)
    chosen.orders = orders
    chosen.trace = trace
    return chosen


Step = Callable[[str, Callable[[Program], Program], Program], Program]


def _rearranged(program: Program, request: Request, step: Step) -> Program:
    """Programs of the front ends: row-wise code before broadcasts, generic operations as those that have kernels."""
    if not program.count(Op.EWISE, Op.EINSUM):
        return program
    if request.on("split", 2):
        program = step("split", lambda p: cleanup(split_joined(p)), program)
    if request.on("reorder", 2):
        rows = request.sizes(program).rows
        program = step("reorder", lambda p: cleanup(reorder_broadcasts(p, rows)), program)
    if request.on("canonical", 1):
        program = step("canonical", canonicalise, program)
    if request.on("typed", 1):
        program = step("typed", lambda p: cleanup(raise_typed(p)), program)
    return program


def _choose(candidates: list[Program], request: Request) -> tuple[int, dict[str, Order], Compiled]:
    """The candidate and orders with the least predicted cost: by the built-in model, then by the fitted one.

    What the fitted model, which rests on measured times, would change has to gain more than MARGIN: near ties stay as
    the built-in coefficients decide them, alike on every run.
    """
    if request.orders is not None:
        given = {**sites(candidates[0]), **request.orders}
        return 0, given, finish(cleanup(place(candidates[0], given)), request)
    index, orders, best = 0, sites(candidates[0]), None
    for model in dict.fromkeys((CostModel(), request.model)):
        margin = 1e-6 if best is None else MARGIN
        starts = [orders if i == index else {} for i in range(len(candidates))]
        found = [
            _search(candidate, {**sites(candidate), **start}, replace(request, model=model), margin)
            for candidate, start in zip(candidates, starts, strict=True)
        ]
        least = min(range(len(found)), key=lambda i: found[i][1].seconds)
        if best is None or found[least][1].seconds < found[index][1].seconds * (1 - margin):
            index = least
        orders, best = found[index]
    assert best is not None  # the loop ran at least once
    return index, orders, best


def _search(
    program: Program, orders: dict[str, Order], request: Request, margin: float
) -> tuple[dict[str, Order], Compiled]:
    """From ``orders``, one site after the other is turned around while that gains more than ``margin``."""
    best = finish(cleanup(place(program, orders)), request)
    improved = bool(orders) and request.on("placement", 2)
    while improved:
        improved = False
        for name in list(orders):
            other = Order.TRANSFORM if orders[name] is Order.AGGREGATE else Order.AGGREGATE
            changed = {**orders, name: other}
            candidate = finish(cleanup(place(program, changed)), request)
            if candidate.seconds < best.seconds * (1 - margin):
                orders, best, improved = changed, candidate, True
    return orders, best


def _staged(forward: Program, request: Request) -> Program:
    """With the stages of a mini-batch fused; other programs stay as they are."""
    return cleanup(fuse_first_layer(forward)) if request.on("stages", 3) and forward.count(Op.SAMPLE) else forward


def finish(forward: Program, request: Request) -> Compiled:
    """Gradients, hoisting and groups of a placed forward program, with its predicted cost."""
    forward = _staged(forward, request)
    joint = differentiate(forward, request.wanted) if request.wanted else forward
    joint = fuse_structure(joint) if request.on("structure", 1) else joint
    joint = derived = cleanup(joint) if request.level >= 1 else joint
    sizes = request.sizes(joint)
    walks = request.on("edges", 3) and edge_bytes(joint, lambda v: tensor_bytes(v, sizes)) >= WORTH_A_KERNEL
    if walks:
        joint = cleanup(open_softmax(joint))
    hoisted = constant_values(joint, request.constants if request.on("hoist", request.hoists_from) else ())
    if walks:
        hoisted = {v for v in hoisted if not is_wide(v, joint)}
    if sum(tensor_bytes(value, sizes) for value in kept_tensors(joint, hoisted)) > sizes.memory:
        hoisted = constant_values(joint, ())
    phase = phases(forward, joint)

    def rest(known: set[Value]) -> list[Group]:
        return group_values(joint, known, phase, request.on("fuse", 3), lambda value: _folds_scale(value, sizes))

    groups = cover_edges(joint, hoisted, phase, rest) if walks else rest(hoisted)
    if request.on("fuse", 3):
        groups = fold_gathers(joint, groups) if request.on("stages", 3) else groups
        groups = fuse_elementwise(joint, groups, phase, lambda v: tensor_bytes(v, sizes) >= WORTH_A_KERNEL)
    works = {group.result: group_work(group, sizes) for group in groups}
    seconds = sum(request.model.seconds(work) for work in works.values())
    return Compiled(joint, hoisted, groups, phase, {}, seconds, [], works, request.model, derived, walks)


def _folds_scale(aggregation: Value, sizes: Sizes) -> bool:
    """Whether a factor per source is cheaper to apply at every edge than in a pass over the rows before.

    Wide rows are copied panel by panel, and the copy applies it; otherwise each edge looks it up.
    """
    graph = aggregation.inputs[0].type
    assert isinstance(graph, StructType)  # an aggregation's first operand
    edges, sources = sizes.rows.get(graph.edge, 1), sizes.rows.get(graph.src, 1)
    return aggregation.tensor.dims[-1] > _NARROW or edges <= _FEW_EDGES * sources


def phases(forward: Program, joint: Program) -> dict[Value, int]:
    """FORWARD for what the outputs of the forward program need, BACKWARD for the rest."""
    names = {name for name, _ in forward.outputs}
    needed = Program(joint.inputs, tuple((name, value) for name, value in joint.outputs if name in names))
    reached = set(needed.values)
    return {value: FORWARD if value in reached else BACKWARD for value in joint.values}


def tensor_bytes(value: Value, sizes: Sizes) -> float:
    """Memory of a value's result; structures count nothing here."""
    if not isinstance(value.type, TensorType):
        return 0.0
    count = 1.0 if value.type.rows is None else float(sizes.rows.get(value.type.rows, 1))
    for size in value.type.dims:
        count *= size
    return count * value.type.dtype.itemsize


def group_work(group: Group, sizes: Sizes) -> Work:
    """What the kernel of ``group`` does, with the bytes of its epilogue's operands."""
    value = group.anchor or group.result
    if group.walk is not None:
        return _walk_work(group, sizes)
    extra = sum(tensor_bytes(operand, sizes) for operand in group.stages.values() if operand is not None)
    work = _anchor_work(value, group, sizes)
    return Work(work.kind, work.amount, work.bytes + extra)


def _walk_work(group: Group, sizes: Sizes) -> Work:
    """A walk over edges reads rows of the far ends, which may be anywhere."""
    assert group.walk is not None  # a walk
    graph = group.walk.struct
    inside = set(group.chain)
    rows = {o for v in group.chain for o in v.inputs if o not in inside and isinstance(o.type, TensorType)}
    width = sum(prod(o.tensor.dims) for o in rows if o.tensor.rows in (graph.src, graph.dst))
    counts = [sizes.rows.get(name, 1) for name in (graph.dst, graph.edge, graph.src)]
    return gather_work(counts[0], counts[1], max(width, 1), counts[2], group.result.tensor.dtype.itemsize)


def _anchor_work(value: Value, group: Group, sizes: Sizes) -> Work:
    if not isinstance(value.type, TensorType):
        return rows_work(0)
    item = value.type.dtype.itemsize
    width = value.type.dims[-1] if value.type.dims else 1
    rows = 1 if value.type.rows is None else sizes.rows.get(value.type.rows, 1)
    if group.anchor is None:
        return rows_work(rows * width)
    if value.op in (Op.OWN_ROWS, Op.PAD_ROWS):
        return rows_work(0 if value.op is Op.OWN_ROWS else rows * width)
    graph = next((o.type for o in value.inputs if isinstance(o.type, StructType)), None)
    if graph is not None and value.op in (Op.SPMM, Op.SPMM_MAX, Op.SPMM_ARG, Op.SPMM_MAX_GRAD, Op.SDDMM):
        source = sizes.rows.get(graph.src, 1)
        return gather_work(rows, sizes.rows.get(graph.edge, 1), width, source, item)
    if value.op is Op.MATMUL:
        left = value.inputs[0].tensor
        if left.sparse:
            return _sparse_product(value, left, width, sizes, item)
        n = sizes.rows.get(left.rows or "", 1)
        if value.get("ta"):
            return contraction_work(n, left.dims[-1], width, item)
        return product_work(rows, left.dims[-1], width, item)
    if graph is not None:
        return gather_work(rows, sizes.rows.get(graph.edge, 1), width, sizes.rows.get(graph.src, 1), item)
    return rows_work(rows * width, passes=1 + len(value.inputs), item=item, plain=True)


def _sparse_product(value: Value, left: TensorType, width: int, sizes: Sizes, item: int) -> Work:
    """Sparse features times weights, or its transpose: one gathered row per stored entry."""
    source = value.inputs[0]
    while source.inputs:  # through dropout and row selection
        source = source.inputs[0]
    entries = sizes.nonzeros.get(source["name"], 1)
    n, features = sizes.rows.get(left.rows or "", 1), left.dims[-1]
    return gather_work(features if value.get("ta") else n, entries, width, n if value.get("ta") else features, item)
