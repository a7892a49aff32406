"""The ordered list of passes, and the search over orders that are decided by cost.

Comes in: a forward program, the inputs that want gradients, sizes and a cost model. Goes out: a :class:`Compiled`
program: forward and backward values, what is hoisted, the kernel groups, the chosen orders, and a trace of every pass
for ``gw.explain``. Called by ``runtime/compile.py`` only. Every pass has a name and can be switched off by it.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from graphweft._errors import CertificateWarning, IRError, PassError
from graphweft.cost import CostModel, Work, rows_work
from graphweft.ir.grad import differentiate
from graphweft.ir.movement import EDGE_TYPES, NODE_TYPES
from graphweft.ir.ops import Op
from graphweft.ir.program import Program, Value
from graphweft.ir.residency import HOST, StructType
from graphweft.ir.verify import verify
from graphweft.passes.associate import associate
from graphweft.passes.attention import raise_attention
from graphweft.passes.by_head import join_heads
from graphweft.passes.canonical import canonicalise
from graphweft.passes.certificate import Certificate, Certifier, Outcome, Refuted, Rewrite
from graphweft.passes.cleanup import cleanup
from graphweft.passes.demand import push_demand
from graphweft.passes.edges import cover_edges, edge_bytes, heavy_products, without_copies, without_wide
from graphweft.passes.elementwise import fuse_elementwise
from graphweft.passes.fuse import BACKWARD, FORWARD, group_values
from graphweft.passes.groups import Group
from graphweft.passes.hoist import constant_values, frontier, kept_tensors, without_matrices
from graphweft.passes.join import join_products
from graphweft.passes.message import fuse_messages
from graphweft.passes.narrow import slice_products
from graphweft.passes.opened import lay_out_weights, open_extrema, open_softmax
from graphweft.passes.placement import Order, alike, place, sites
from graphweft.passes.reorder import reorder_broadcasts, split_joined
from graphweft.passes.slopes import sum_slopes
from graphweft.passes.stage_fuse import fold_gathers, fuse_first_layer, fuse_structure
from graphweft.passes.transfers import send_ahead, wait_late
from graphweft.passes.typed import raise_typed
from graphweft.passes.work import Sizes, group_work, group_works, tensor_bytes

_WORTH_A_LOOK = 2.0  # times the cost of reading inputs that keeping what depends on them has to save
_LOOK = 2e-5  # seconds that a comparison takes whatever its size
WORTH_A_KERNEL = 4 << 20  # bytes of a matrix from which an elementwise kernel is generated for it
MARGIN = 0.05  # gain that measured times must promise before they overrule the built-in coefficients
_ONE_BY_ONE = 12  # sites whose orders are tried one at a time
_NARROW, _FEW_EDGES = 48, 8  # columns of rows that are read where they lie, as in runtime/sparse.py; edges per row
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
    "slopes",
    "hoist",
    "fuse",
    "join",
)
OPTIONAL = frozenset(PASSES) - {"differentiate"}


@dataclass(frozen=True)
class Request:
    """What to compile for: level, switched-off passes, gradients, constants, sizes, costs, orders decided before.

    ``constants`` are declared to be so, and orders are chosen accordingly. ``checked`` are compared by their bytes in
    every call: orders do not count on them, and what depends on them is kept where that saves more than it costs.
    """

    level: int
    wanted: tuple[str, ...]
    constants: tuple[str, ...]
    sizes: Callable[[Program], Sizes]
    model: CostModel
    disabled: frozenset[str] = frozenset()
    orders: Mapping[str, Order] | None = None
    hoists_from: int = 3  # the level from which constants are computed apart
    checked: tuple[str, ...] = ()
    edges_from: int = 3  # and that from which kernels over edges are generated; below 3 for float64
    certify: bool = False
    prepare: Callable[[Iterable[Group]], None] = lambda groups: None  # told what kernels to expect before the trials

    # what is read in bfloat16: rows of sums over edges, operands of products; and whether what is kept lies so
    rounds: Set[str] = frozenset()
    place: str = HOST  # where a step runs; rows that are made before it move there
    worth: int | None = None  # bytes of a matrix from which kernels are generated for it; None: what a compiler costs
    is_built: Callable[[Sequence[Value]], bool] = lambda region: False  # whether functions of elements have a kernel
    joins: bool = False  # whether a call costs so much that more is joined than saves memory traffic

    def is_worth(self, nbytes: float) -> bool:
        """Whether a kernel is generated for so many bytes."""
        return nbytes >= (WORTH_A_KERNEL if self.worth is None else self.worth)

    def on(self, name: str, level: int) -> bool:
        """Whether the pass ``name``, which belongs to ``level``, runs."""
        return self.level >= level and name not in self.disabled


class Steps(NamedTuple):
    """The forward program with its stages fused, that with gradients, the same cleaned up, and opened for walks."""

    staged: Program
    raw: Program
    derived: Program
    opened: Program


@dataclass
class Compiled:
    """A program ready to lower.

    Attributes:
        program: Forward values and gradients.
        hoisted: Values computed once.
        groups: What one kernel computes each, in order.
        phase: Forward or backward, by value.
        orders: Order at each product next to an aggregation.
        seconds: Predicted time of a step.
        trace: The program after each pass that changed it.
        works, model, sizes: What the prediction rests on.
        steps: The programs that the last passes started from.
        walks: Whether values of edges are computed inside generated kernels.
        rounds: What is read in bfloat16: "rows" that are summed over edges, "operands" of dense products; "kept": sums
            over edges that are computed once lie so.
        certificates: Verdicts on the rewrites.
    """

    program: Program
    hoisted: set[Value]
    groups: list[Group]
    phase: Mapping[Value, int]
    orders: dict[str, Order]
    seconds: float
    trace: list[tuple[str, str]]
    works: dict[Value, tuple[Work, ...]]
    model: CostModel
    steps: Steps
    walks: bool = False
    rounds: Set[str] = frozenset()
    certificates: list[Certificate] = field(default_factory=list)
    sizes: Sizes = field(default_factory=lambda: Sizes({}))

    def works_at(self, sizes: Sizes) -> dict[Value, tuple[Work, ...]]:
        """:attr:`works` at other sizes than those that decided the plan."""
        return _works(self.groups, sizes, self.rounds)


Change = Callable[[Program], Program]


def run_passes(program: Program, request: Request) -> Compiled:
    """All passes in order; with ``request.certify`` they are tried, and one that fails is left out with a warning.

    Raises: PassError naming the pass whose result does not verify, and those before it; Refuted when the gradients
        themselves are wrong, for which there is no other way.
    """
    if not request.certify:
        return _Run(program, request).compiled()[0]
    rows = request.sizes(program).rows
    certifier = Certifier(program, (rows.get(NODE_TYPES, 1), rows.get(EDGE_TYPES, 1)))
    refuted: list[Certificate] = []
    while True:
        try:
            compiled, outcome = _Run(program, request).compiled()
            request.prepare(compiled.groups)
            compiled.certificates = [*refuted, *certifier.certify(outcome)]
            return compiled
        except Refuted as found:
            left_out = {found.name} if found.name else set(OPTIONAL)
            if not left_out <= OPTIONAL or left_out <= request.disabled:
                raise
            refuted.append(Certificate(found.name, "refuted", found.reason))
            _warn_left_out(found)
            request = replace(request, disabled=request.disabled | left_out)


@functools.cache
def _told(name: str, reason: str) -> bool:
    return True


def _warn_left_out(found: Refuted) -> None:
    """One message per pass and reason."""
    before = _told.cache_info().misses
    _told(found.name, found.reason)
    if _told.cache_info().misses > before:
        what = f"the rewrite {found.name!r} is" if found.name else "all rewrites are"
        message = f"{what} left out of this program: {found.reason}; results stay correct"
        warnings.warn(message, CertificateWarning, stacklevel=2)


class _Run:
    """One way through the passes; ``trace`` tells what each changed."""

    def __init__(self, program: Program, request: Request) -> None:
        self.trace: list[tuple[str, str]] = [("traced", program.text)]
        self._program, self._request = program, request
        self._rewrites: list[Rewrite] = []
        self._verified: set[Value] = set()

    def compiled(self) -> tuple[Compiled, Outcome]:
        """The program after all passes, and what a certifier wants to know of them."""
        request = self._request
        verify(self._program, self._verified)
        program = self._step("cleanup", lambda p: p, self._program)
        if request.on("structure", 1):
            program = self._step("structure", fuse_structure, program, tidy=False)
        program = self._rearranged(program)
        if request.on("messages", 1):
            raised = (
                raise_attention if request.edges_from >= 3 and request.on("attention", 1) else lambda p: p
            )  # in float32
            program = self._step("messages", lambda p: fuse_messages(raised(p)), program, tidy=False)
            program = self._step("cleanup", lambda p: p, program)
        candidates, shared = [program], len(self._rewrites)
        if request.on("demand", 2):
            demanded = self._tidied(self._changed("demand", push_demand, program))
            if demanded is not program and demanded.text != program.text:
                candidates.append(demanded)
        best, orders, chosen = _choose(candidates, request)
        if best:
            self._note("demand", candidates[best], program)
        else:
            del self._rewrites[shared:]
        chosen, constants = _with_checked(candidates[best], orders, chosen, request)
        chosen = _joined(chosen, request)
        outcome = self._finished(chosen, candidates[best], orders, constants)
        chosen.orders, chosen.trace = orders, self.trace
        return chosen, outcome

    def _rearranged(self, program: Program) -> Program:
        """Programs of the front ends: row-wise code before broadcasts, generic operations as those with kernels."""
        request = self._request
        if not program.count(Op.EWISE, Op.EINSUM):
            return program
        if request.on("split", 2):
            program = self._step("split", lambda p: slice_products(split_joined(p)), program)
        if request.on("reorder", 2):
            rows = request.sizes(program).rows
            program = self._step("reorder", lambda p: reorder_broadcasts(associate(p, rows), rows), program)
        if request.on("canonical", 1):
            program = self._step("canonical", canonicalise, program, tidy=False)
        if request.on("typed", 1):
            program = self._step("typed", raise_typed, program)
        return program

    def _finished(
        self, chosen: Compiled, candidate: Program, orders: Mapping[str, Order], constants: tuple[str, ...]
    ) -> Outcome:
        """Verifies and notes what the search for orders left behind."""
        request, (staged, raw, derived, opened) = self._request, chosen.steps
        placed = _placed(candidate, orders, request)
        with self._blaming("placement"):
            verify(placed, self._verified)
        tidied = _tidied(placed, request)
        self._note("placement", tidied, candidate)
        before = tidied
        steps = {"stages": staged, "differentiate": derived, "edges": opened, "slopes": chosen.program}
        for name, after in steps.items():
            with self._blaming(name):
                verify(after, self._verified)
            self._note(name, after, before)
            before = after
        self._rewrites += [
            Rewrite("placement", candidate, placed),
            Rewrite("cleanup", placed, tidied),
            Rewrite("stages", tidied, staged),
        ]
        constants = constants if request.on("hoist", request.hoists_from) else ()
        programs = raw, derived, opened, chosen.program
        return Outcome(tuple(self._rewrites), *programs, chosen.groups, chosen.hoisted, constants)

    def _step(self, name: str, change: Change, before: Program, tidy: bool = True) -> Program:
        after = self._changed(name, change, before)
        after = self._tidied(after) if tidy else after
        self._note(name, after, before)
        return after

    def _changed(self, name: str, change: Change, before: Program) -> Program:
        """What ``change`` makes, verified."""
        with self._blaming(name):
            after = change(before)
            if after is before:
                return before
            verify(after, self._verified)
        self._rewrites.append(Rewrite(name, before, after))
        return after

    def _tidied(self, program: Program) -> Program:
        return self._changed("cleanup", cleanup, program) if self._request.on("cleanup", 1) else program

    @contextlib.contextmanager
    def _blaming(self, name: str) -> Iterator[None]:
        """What breaks the rules of the IR in here is the fault of the pass ``name``."""
        try:
            yield
        except IRError as failure:
            if self._request.certify and name in OPTIONAL:
                raise Refuted(name, str(failure)) from failure
            raise PassError(f"{name} (after {', '.join(n for n, _ in self.trace)}): {failure}") from failure

    def _note(self, name: str, after: Program, before: Program) -> None:
        if after is not before and after.text != before.text:
            self.trace.append((name, after.text))


def _choose(candidates: list[Program], request: Request) -> tuple[int, dict[str, Order], Compiled]:
    """The candidate and orders with the least predicted cost: by the built-in model, then by the fitted one.

    What the fitted model, which rests on measured times, would change has to gain more than MARGIN: near ties stay as
    the built-in coefficients decide them, alike on every run.
    """
    if request.orders is not None:
        given = {**sites(candidates[0]), **request.orders}
        return 0, given, finish(candidates[0], given, request)
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
    """From ``orders``, one site after the other is turned around while that gains more than ``margin``.

    Every trial takes time that grows with the layers: of many sites those that are alike are turned around together.
    """
    best = finish(program, orders, request)
    improved = bool(orders) and request.on("placement", 2)
    turns = [[name] for name in orders] if len(orders) <= _ONE_BY_ONE else alike(program)
    while improved:
        improved = False
        for names in turns:
            changed = {**orders, **{name: orders[name].other for name in names}}
            candidate = finish(program, changed, request)
            if candidate.seconds < best.seconds * (1 - margin):
                orders, best, improved = changed, candidate, True
    return orders, best


def _with_checked(
    program: Program, orders: Mapping[str, Order], chosen: Compiled, request: Request
) -> tuple[Compiled, tuple[str, ...]]:
    """``chosen`` with what depends on unchanged inputs kept, where that saves more than looking for changes costs.

    The caller gets a copy of a result that is kept.
    """
    if not request.checked or not request.on("hoist", request.hoists_from):
        return chosen, request.constants
    constants = (*request.constants, *request.checked)
    kept = finish(program, orders, replace(request, constants=constants))
    sizes = request.sizes(kept.program)
    fresh = [v for v in frontier(kept.program, kept.hoisted) if v not in chosen.hoisted]
    if not fresh:
        return chosen, request.constants
    leaves = [leaf for leaf in Program((), tuple(("", v) for v in fresh)).values if leaf.op is Op.INPUT]
    copied = [value for _, value in kept.program.outputs if value in fresh]
    looked_at = sum(request.model.seconds(rows_work(tensor_bytes(leaf, sizes), 1, 1)) for leaf in leaves)
    looked_at += sum(request.model.seconds(rows_work(tensor_bytes(value, sizes), 2, 1)) for value in copied)
    builds = any(isinstance(value.type, StructType) for value in fresh)  # structures have no predicted cost
    if builds or chosen.seconds - kept.seconds > _WORTH_A_LOOK * looked_at + _LOOK:
        return kept, constants
    return chosen, request.constants


def _tidied(program: Program, request: Request) -> Program:
    return cleanup(program) if request.on("cleanup", 1) else program


def _placed(program: Program, orders: Mapping[str, Order], request: Request) -> Program:
    return place(program, orders) if request.on("placement", 2) else program


def _staged(forward: Program, request: Request) -> Program:
    """With the stages of a mini-batch fused; other programs stay as they are."""
    if not (request.on("stages", 3) and forward.count(Op.SAMPLE)):
        return forward
    return _tidied(fuse_first_layer(forward), request)


def finish(program: Program, orders: Mapping[str, Order], request: Request) -> Compiled:
    """Placement, gradients, hoisting and groups of a forward program, which are not joined, with its predicted cost."""
    forward = _staged(_tidied(_placed(program, orders, request), request), request)
    raw = differentiate(forward, request.wanted) if request.wanted else forward
    joint = fuse_structure(raw) if request.on("structure", 1) else raw
    joint = derived = joint if joint is forward else _tidied(joint, request)
    sizes = request.sizes(joint)
    wide = edge_bytes(joint, lambda v: tensor_bytes(v, sizes))
    walks = request.on("edges", request.edges_from) and request.is_worth(wide)
    if walks:
        joint = _tidied(lay_out_weights(open_extrema(open_softmax(joint))), request)
    constants = request.constants if request.on("hoist", request.hoists_from) else ()
    hoisted = constant_values(joint, constants)
    if walks:
        hoisted = without_wide(joint, hoisted)
    if sum(tensor_bytes(value, sizes) for value in kept_tensors(joint, hoisted)) > sizes.memory:
        hoisted = constant_values(joint, without_matrices(joint, constants))
    if request.place != HOST:
        joint, hoisted = send_ahead(joint, hoisted, request.place)
    phase: Mapping[Value, int] = phases(forward, joint)
    opened, heavy = joint, heavy_products(joint, sizes.rows, sizes.memory) if walks else ()
    if walks and request.on("slopes", request.edges_from):
        joint, phase = sum_slopes(joint, hoisted, phase, heavy)
        hoisted = hoisted.intersection(joint.values) | constant_values(joint, ())  # its numbers, too

    if walks:
        hoisted = without_copies(joint, hoisted, phase, heavy)

    def rest(known: set[Value]) -> list[Group]:
        return group_values(joint, known, phase, request.on("fuse", 3), lambda value: _folds_scale(value, sizes))

    groups = cover_edges(joint, hoisted, phase, rest, heavy) if walks else rest(hoisted)
    if request.on("fuse", 3):
        groups = fold_gathers(joint, groups) if request.on("stages", 3) else groups
        worth = lambda v: request.is_worth(tensor_bytes(v, sizes))  # noqa: E731
        groups = fuse_elementwise(joint, groups, phase, worth, request.is_built, request.joins)
    seconds = sum(request.model.seconds(group_work(group, sizes)) for group in groups)
    steps = Steps(forward, raw, derived, opened)
    found = Compiled(joint, hoisted, groups, phase, {}, seconds, [], {}, request.model, steps, walks, request.rounds)
    return replace(found, sizes=sizes)


def _joined(found: Compiled, request: Request) -> Compiled:
    """``found`` with groups joined that read each other, and the work of each: it changes no choice."""
    groups = found.groups
    if request.on("fuse", 3) and request.on("join", 3):
        groups = join_products(found.program, groups, found.phase)
        groups = join_heads(found.program, groups, found.phase) if request.joins else groups
    works = _works(groups, found.sizes, request.rounds)
    groups = wait_late(groups) if request.place != HOST else groups
    return replace(found, groups=groups, works=works)


def _works(groups: Sequence[Group], sizes: Sizes, rounds: Set[str]) -> dict[Value, tuple[Work, ...]]:
    """What the kernel of every group does, by its result."""
    works = {group.result: group_works(group, sizes) for group in groups}
    for group in groups if "operands" in rounds else ():
        if group.anchor is not None and group.anchor.op is Op.MATMUL:
            works[group.result] = tuple(work.rounded() for work in works[group.result])
    return works


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
