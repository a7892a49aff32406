"""The single waist: from a description of a computation to a call that runs it.

Comes in: a function that writes the forward program (a layer, a model, a front end), and concrete arguments. Goes
out: the outputs, in torch's graph. Programs are compiled once per kind of argument (dtypes, layouts, gradients
wanted, what is constant, rough sizes) and reused over graphs. With ``tune`` the first training step of a program is
profiled: the cost model is fitted to its calls, and the second step may come out in another order. A plan follows from
kinds and sizes of the arguments alone, never from earlier calls or the state of the machine: equal calls give equal
bits. Values that depend on constant inputs are computed once (``constants.py``, ``hoisted.py``). Called by ``nn`` and
the front ends.
"""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graphweft import _config
from graphweft._backward import gradients_from
from graphweft._errors import CertificateWarning, ConfigError, GraphWeftError
from graphweft._memory import POOL
from graphweft._torch_private import default_device_is_elsewhere, transforms_are_on
from graphweft.cost import CostModel
from graphweft.frontend.edge_values import EdgeValues, read
from graphweft.frontend.numbers import NUMBER
from graphweft.graph.degrees import receivers
from graphweft.graph.derived import derived
from graphweft.graph.graph import Graph
from graphweft.graph.placed import on_device
from graphweft.ir.interpret import interpret
from graphweft.ir.movement import EDGE_TYPES, NODE_TYPES
from graphweft.ir.ops import LEAVES, Op
from graphweft.ir.program import Builder, Program, Value, written
from graphweft.ir.residency import IndexType, Residency, StructType, TensorType, edges_of
from graphweft.passes.certificate import Refuted
from graphweft.passes.kept import kept_passes
from graphweft.passes.pipeline import Request
from graphweft.passes.work import Sizes
from graphweft.runtime import calibrate
from graphweft.runtime.alike import AlikePlans
from graphweft.runtime.constants import comes_once, is_declared, is_owned, sent
from graphweft.runtime.feature_types import feature_key, feature_type, in_full, is_compilable, is_half, is_single
from graphweft.runtime.function import Pullback, RunPlan, is_followed, linearize
from graphweft.runtime.hoisted import Columns, Content, HoistedValues
from graphweft.runtime.kernel_call import Slots
from graphweft.runtime.observed import observed
from graphweft.runtime.plan import BY_PAIRS, Plan
from graphweft.runtime.profile import profiling
from graphweft.runtime.second import Origin, Run, distinct
from graphweft.runtime.sizes import class_of, decisive_sizes, measure_sizes
from graphweft.runtime.stand_in import times_larger, worth_a_kernel
from graphweft.runtime.targets import target_of
from graphweft.storage.feature import Features, SparseFeatures, is_dense
from graphweft.storage.fingerprint import fingerprint, is_readable

Field = tuple[Tensor, Residency]

_MOST_PLANS = 256
_ROOM_FOR_BOTH = 1 << 20  # bytes of features beside which what is made of them may lie, though they are given up
_BESIDE = "beside"  # further graphs among what a second derivative reads
_TENSORS = (Tensor, torch.nn.Parameter)


@dataclass(frozen=True, eq=False)
class Beside:
    """Graphs of a call beside its first one, over the same nodes.

    Attributes:
        graphs: By the name of their input.
        edges: Fields whose rows are edges of one of these, with its name.
    """

    graphs: Mapping[str, Graph]
    edges: Mapping[str, str]


@dataclass(frozen=True)
class Arguments:
    """One call's arguments.

    Attributes:
        graph: The graph.
        x: Node features; None where ``fields`` holds everything.
        parameters: Dense tensors by name; those that require gradients receive them.
        rows: Destinations to compute; None for all.
        seed: Seed of this call's random draws; a recorded step reads it in the memory of its device.
        training: Whether the describing function is asked for the training form.
        fields: More dense tensors by name, each with what its rows are.
        settings: All else that the describing function reads, hashable.
        beside: Further graphs.
    """

    graph: Graph
    x: Features | None
    parameters: Mapping[str, Tensor]
    rows: Tensor | None
    seed: int | Tensor
    training: bool
    fields: Mapping[str, Field] = dataclass_field(default_factory=dict)
    settings: Hashable = ()
    beside: Beside | None = None

    def __post_init__(self) -> None:
        """Structure and ids follow the numbers to their device. Raises: ConfigError for numbers on several devices."""
        if (place := self._place()) != self.graph.device:
            object.__setattr__(self, "graph", on_device(self.graph, place))
            if self.beside is not None:
                moved = {name: on_device(graph, place) for name, graph in self.beside.graphs.items()}
                object.__setattr__(self, "beside", Beside(moved, self.beside.edges))
        if self.rows is not None and self.rows.device != place:
            object.__setattr__(self, "rows", sent(self.rows, place))

    def _place(self) -> torch.device:
        """Where the dense numbers lie, which sparse features follow; where the graph does, if there are none."""
        given = {
            "x": self.x if is_dense(self.x) else None,
            **self.parameters,
            **{name: tensor for name, (tensor, _) in self.fields.items()},
        }
        places = {name: item.device for name, item in given.items() if item is not None}
        first = next(iter(places.values()), self.graph.device)
        for name, place in places.items():
            if place != first:
                one = next(iter(places))
                raise ConfigError(
                    f"forward: {one} on {first} cannot be combined with {name} on {place}; use .to(device)"
                )
        return first

    def named(self) -> dict[str, Any]:
        """All arguments under the names that programs use."""
        given = {"x": self.x, "rows": self.rows}
        some = {name: item for name, item in given.items() if item is not None}
        fields = {name: tensor for name, (tensor, _) in self.fields.items()}
        others = {} if self.beside is None else self.beside.graphs
        return {"graph": self.graph, **others, "seed": self.seed, **some, **self.parameters, **fields}

    def others(self) -> list[Tensor]:
        """All tensors of numbers but the features."""
        return [*self.parameters.values(), *(tensor for tensor, _ in self.fields.values())]

    def widened(self) -> dict[str, Any]:
        """All arguments by name, with features in float32 where they are stored in bfloat16."""
        named = self.named()
        return {**named, "x": in_full(named["x"])} if is_half(self.x) and is_single(self.x, self.others()) else named


# writes the forward program: (builder, inputs by name, training) -> outputs by name, the differentiable one called
# "out"
Describe = Callable[[Builder, dict[str, Value], bool], dict[str, Value]]


class Standing(NamedTuple):
    """Which inputs keep their content, and how exactly sizes decide a plan.

    Attributes:
        declared: Names of inputs that somebody said stay as they are.
        checked: Names of inputs that are worth comparing with the call before.
        exact: Sizes are those of the graph at hand, and the plan is for it alone; else those of a class of sizes.
        owned: The call is the trainer's, whose measured costs decide.
    """

    declared: tuple[str, ...] = ()
    checked: tuple[str, ...] = ()
    exact: bool = True
    owned: bool = False


class CompiledFunction:
    """A described computation, its plans, and its hoisted values.

    Args:
        describe: Writes the program.
        written: The program, where there is but one.
        leaves_out: Whether it leaves out nodes without in-edges, so that the number of the others decides as well.
    """

    def __init__(self, describe: Describe, written: Program | None = None, leaves_out: bool = False) -> None:
        self._describe = describe
        self._written, self._leaves_out = written, leaves_out
        self._plans: dict[tuple[Any, ...], Plan] = {}
        self._alike = AlikePlans()
        self._refuted: set[tuple[Any, ...]] = set()
        self._hoisted = HoistedValues()
        self._fitted: CostModel | None = None
        self._released: weakref.ref[Any] | None = None
        self._before: tuple[tuple[Any, ...], Plan, Standing, CostModel | None] | None = None  # of the last call

    @classmethod
    def of(cls, program: Program) -> CompiledFunction:
        """The function that ``program`` writes."""
        leaves_out = any(value.op is Op.RECEIVERS for value in program.values)
        return cls(lambda builder, inputs, training: dict(program.outputs), program, leaves_out)

    def __call__(self, arguments: Arguments) -> dict[str, Tensor]:
        """Outputs by name.

        Raises: ShapeError when features or parameters do not fit the graph or each other.
        """
        if torch.is_autocast_enabled("cpu"):  # a program has its own dtypes; sums are never taken in half precision
            with torch.autocast("cpu", enabled=False):
                return self(arguments)
        if default_device_is_elsewhere():
            with torch.device("cpu"):
                return self(arguments)
        likeness = None if self._written is not None or transforms_are_on() else _likeness(arguments)
        before, profiled = self._before, False
        if likeness is not None and before is not None and before[0] == likeness and before[3] is self._fitted:
            _, plan, standing, _ = before
        else:
            known, standing = len(self._plans), self._standing(arguments)
            found = None if transforms_are_on() else self.ready(arguments, standing)
            if found is None:
                return interpret(self.program(arguments), arguments.widened())
            plan, fresh = found, len(self._plans) > known
            if likeness is not None:
                self._before = likeness, plan, standing, self._fitted
            profiled = fresh and _config.current().tune and self._fitted is None and torch.is_grad_enabled()
        env, tensors = self._bind(plan, arguments, standing)
        if not profiled and not is_followed(tensors):
            with torch.no_grad():
                outputs = distinct(plan.run_forward(env, tensors), tensors)
        elif not profiled:
            outputs = RunPlan.apply(plan, env, None, self._origin(plan, arguments), *tensors)  # type: ignore[no-untyped-call]
        else:
            samples = _Samples(self)
            with profiling() as taken:
                outputs = RunPlan.apply(plan, env, samples, self._origin(plan, arguments), *tensors)  # type: ignore[no-untyped-call]
            samples.taken.extend(taken)
        return {name: tensor for (name, _), tensor in zip(plan.outputs, outputs, strict=True)}

    def on_kernels(self, arguments: Arguments) -> dict[str, Tensor] | None:
        """Outputs by name; None where only the interpreter can run."""
        return None if transforms_are_on() or self.ready(arguments) is None else self(arguments)

    def ready(self, arguments: Arguments, standing: Standing | None = None) -> Plan | None:
        """The plan for ``arguments``, compiled if it is not at hand; None where the interpreter runs."""
        active = _config.current()
        if active.opt_level == 0 or not is_compilable(arguments.x, arguments.others()):
            return None
        standing = standing or self._standing(arguments)
        key = self._key(arguments, standing, active)
        plan = self._plans.get(key)
        if plan is None:
            if key in self._refuted:
                return None
            try:
                plan = self.compile(arguments, standing)
            except Refuted as found:  # wrong gradients: torch's own through the interpreter are right
                self._refuted.add(key)
                message = f"the gradients of this program are left to the interpreter: {found.reason}"
                warnings.warn(message, CertificateWarning, stacklevel=2)
                return None
            is_one = arguments.graph.is_drawn and not active.tune  # else what a call does is timed, by its own sizes
            plan = self._plans[key] = self._alike.one_for(key[:-1], plan) if is_one else plan
            while len(self._plans) > _MOST_PLANS:
                del self._plans[next(iter(self._plans))]
        return plan

    def program(self, arguments: Arguments) -> Program:
        """The forward program as described, before any pass."""
        if self._written is not None:
            return self._written

        def describe(builder: Builder, inputs: dict[str, Value]) -> dict[str, Value]:
            outputs = self._describe(builder, inputs, arguments.training)
            if arguments.rows is None:
                return outputs
            return {**outputs, "out": builder.add(Op.TAKE_ROWS, outputs["out"], inputs["rows"])}

        return written(_input_types(arguments), describe)

    def compile(self, arguments: Arguments, standing: Standing | None = None) -> Plan:
        """Runs all passes and lowers the result; ``standing``: None for that of ``arguments``."""
        active, standing = _config.current(), standing or self._standing(arguments)
        program, target = self.program(arguments), target_of(arguments.graph.device)
        names = {value["name"] for value in program.inputs}
        wanted = _wanted(arguments, names) if torch.is_grad_enabled() else ()
        level = active.opt_level if is_single(arguments.x, arguments.others()) else min(active.opt_level, 2)
        request = Request(
            level=level,
            edges_from=level if active.opt_level > level else 3,
            wanted=wanted,
            constants=(*standing.declared, *(name for name in standing.checked if name == "rows")),  # few and cheap
            checked=tuple(name for name in standing.checked if name != "rows"),
            sizes=lambda joint: decisive_sizes(joint, arguments.named(), active.memory, standing.exact),
            model=self._decides(standing) or (calibrate.cost_model() if active.tune else CostModel()),
            disabled=frozenset(name for name in active.disabled_passes.split(",") if name),
            certify=active.certify,
            prepare=target.prepare,
            worth=worth_a_kernel(target.worth),
            is_built=target.is_built,
            joins=target.joins,
            rounds=target.rounds if active.precision == "bf16" else frozenset(),
        )
        alike = target.keeps and not standing.exact  # all graphs of a class of sizes
        sizes = decisive_sizes(program, arguments.named(), active.memory, False) if alike else None
        return Plan(kept_passes(program, request, sizes, target.name), target, program)

    def _decides(self, standing: Standing) -> CostModel | None:
        """Measured costs decide the trainer's plans, and all under ``tune``; other calls come out alike everywhere."""
        return self._fitted if standing.owned or _config.current().tune else None

    @property
    def cost_model(self) -> CostModel | None:
        """The model fitted to the first training step, or settled; None before."""
        return self._fitted

    def settle(self, model: CostModel | None) -> None:
        """Decides by ``model`` from now on and measures no step; None: by sizes alone."""
        self._fitted = model

    def release(self, arguments: Arguments, columns: Columns | None = None) -> bool:
        """Gives up the memory of ``x`` when all plans for constant features read only what is hoisted from it.

        What is hoisted is computed now, in the memory of ``x`` where it is one aggregation and the memory is large and
        the pool's. The tensor keeps its identity and shape; a later call that needs its numbers again is refused.
        False, and nothing changed, when some plan reads it. ``columns``: gives columns of ``x``, one by one.
        """
        x = arguments.x
        if not is_dense(x):
            return False
        plans = [plan for key, plan in self._plans.items() if "x" in key[1].declared]
        hoisted = {item.key: (plan, item) for plan in plans for item in plan.hoisted if "x" in item.leaves}
        if not hoisted or any("x" in (*plan.tensors, *plan.fixed) for plan in plans):
            return False
        content, (plan, item) = _content(arguments), next(iter(hoisted.values()))
        large = x.nbytes >= _ROOM_FOR_BOTH and POOL.owns(x) and x.is_contiguous()
        here = large and len(hoisted) == 1 and plan.fits_over(item, "x")
        for plan, item in hoisted.values():
            self._hoisted.get(plan, item, content, over="x" if here else None, columns=columns)
        x.data = x.new_zeros(()).expand(x.shape)
        for _, item in hoisted.values():
            self._hoisted.renew(item, _content(arguments))
        self._released = weakref.ref(x)
        return True

    def give_up(self, x: Tensor) -> None:
        """Gives up the memory of ``x``, of which the caller has a copy; a call that reads it is refused."""
        x.data = x.new_zeros(()).expand(x.shape)
        self._released = weakref.ref(x)

    @property
    def kept_by_torch(self) -> int:
        """Bytes of values that were computed once and lie in torch's own memory."""
        return self._hoisted.bytes_by_torch()

    def hoist(self, arguments: Arguments) -> list[Any]:
        """Everything that is computed once for ``arguments``; whoever holds the list keeps it alive."""
        plan, content = self.ready(arguments), _content(arguments)
        if plan is None:
            return []
        values = [self._hoisted.get(plan, item, content) for item in plan.hoisted]
        for item, value in zip(plan.hoisted, values, strict=True):
            readers = {v.op for v in plan.compiled.program.values if item.value in v.inputs}
            if isinstance(value, Graph) and not readers <= BY_PAIRS:
                _ = value.csc_structure  # the form that aggregations read
        return values

    def sized_plan(self, arguments: Arguments) -> tuple[Plan, Sizes]:
        """The plan for ``arguments``, and its sizes. Raises: GraphWeftError where no plan runs it."""
        plan = self.ready(arguments)
        if plan is None:
            raise GraphWeftError("sizes: expected a computation with a plan")
        return plan, measure_sizes(plan.compiled.program, arguments.named(), _config.current().memory)

    def plans(self) -> list[Plan]:
        """All plans compiled so far, oldest first."""
        return list(dict.fromkeys(self._plans.values()))

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledFunction:
        raise TypeError("a CompiledFunction belongs to its module; the module makes a new one when it is copied")

    def linearize(self, arguments: Arguments) -> tuple[dict[str, Tensor], Pullback]:
        """Outputs by name outside torch's graph, and their pullback, as a training loop without the engine needs it.

        The pullback takes the gradient of "out", once, and returns those of the dense inputs by name.
        """
        found = self.bound(arguments)
        return self._linearize_by_torch(arguments) if found is None else linearize(*found)

    def bound(self, arguments: Arguments) -> tuple[Plan, Slots, tuple[Tensor, ...]] | None:
        """The plan of a call, slots with all but the dense inputs, and those; None where the interpreter runs."""
        standing = standing_of(arguments)
        plan = self.ready(arguments, standing)
        if plan is None:
            return None
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            return plan, *self._bind(plan, arguments, standing)

    def _linearize_by_torch(self, arguments: Arguments) -> tuple[dict[str, Tensor], Pullback]:
        """The same on the interpreter."""
        outputs = interpret(self.program(arguments), arguments.widened())
        leaves = {name: t for name, t in arguments.parameters.items() if t.requires_grad}

        def pullback(gradient: Tensor) -> dict[str, Tensor | None]:
            found = gradients_from([outputs["out"]], list(leaves.values()), [gradient])
            return dict(zip(leaves, found, strict=True))

        return {name: tensor.detach() for name, tensor in outputs.items()}, pullback

    def _bind(self, plan: Plan, arguments: Arguments, standing: Standing) -> tuple[Slots, tuple[Tensor, ...]]:
        """Slots with everything but the dense inputs, and those."""
        content = Content(arguments.named(), standing.declared)
        named = content.named
        self._check_released(plan, arguments, content)
        observed(plan, named)
        env = plan.bind({name: named[name] for name in plan.fixed}, self.computed_once(plan, content))
        if is_half(arguments.x) and "x" in plan.tensors and not plan.takes_half:
            named = arguments.widened()
        return env, tuple(read(named[name]).resolve_neg().contiguous() for name in plan.tensors)

    def computed_once(self, plan: Plan, content: Content) -> tuple[Any, ...]:
        """What is hoisted out of ``plan``, kept or computed now."""
        return tuple(self._hoisted.get(plan, item, content) for item in plan.hoisted)

    def _origin(self, plan: Plan, arguments: Arguments) -> Origin:
        """What the gradients of this call are differentiated by."""
        named = arguments.named()
        rest = {"graph": arguments.graph, "seed": arguments.seed, **{name: named[name] for name in plan.rest}}
        rest[_BESIDE] = arguments.beside
        released = self._released is not None and self._released() is arguments.x
        return Origin(plan, rest, _derived_run, released)

    def _check_released(self, plan: Plan, arguments: Arguments, content: Content) -> None:
        """Refuses to compute from features whose memory was given up."""
        if self._released is None or self._released() is not arguments.x:
            return
        if "x" in plan.tensors or any("x" in i.leaves and not self._hoisted.has(i, content) for i in plan.hoisted):
            raise GraphWeftError("forward: the features were released after they were aggregated")

    def _standing(self, arguments: Arguments) -> Standing:
        """What is known of the inputs; those of gradients are new in every call."""
        return standing_of(arguments) if self._written is None else Standing(exact=False)

    def _key(self, arguments: Arguments, standing: Standing, active: _config.Config) -> tuple[Any, ...]:
        graph, x = arguments.graph, arguments.x
        grads = torch.is_grad_enabled()
        return (
            arguments.training,
            standing,
            active,
            graph.device,
            feature_key(x),
            tuple((name, t.dtype, t.shape, grads and t.requires_grad) for name, t in arguments.parameters.items()),
            tuple((n, r, t.dtype, t.shape[1:], grads and t.requires_grad) for n, (t, r) in arguments.fields.items()),
            grads and isinstance(x, Tensor) and x.requires_grad,
            graph.is_square,
            arguments.settings,
            self._decides(standing) is not None,
            times_larger(),
            _size_key(arguments, standing.exact, self._leaves_out),  # the last, as plans of several may be one
        )

    def fitted(self, samples: list[Any]) -> None:
        """Takes the calls of a profiled step and fits the cost model to them."""
        self._fitted = calibrate.cost_model().fit([(work, seconds) for _, work, seconds in samples])


class _Samples(list[Any]):
    """Receives the backward samples of the profiled step; with them the step is complete and the model is fitted."""

    def __init__(self, owner: CompiledFunction) -> None:
        super().__init__()
        self.taken: list[Any] = []
        self._owner = owner

    def extend(self, items: Any) -> None:
        """The backward calls have run."""
        self._owner.fitted([*self.taken, *items])


def standing_of(arguments: Arguments) -> Standing:
    """What is known of the inputs before the call, from their kinds and from declarations alone."""
    graph, owned = arguments.graph, is_owned()
    given: dict[str, Any] = {name: tensor for name, (tensor, _) in arguments.fields.items()}
    if arguments.x is not None:
        given["x"] = arguments.x
    still = [name for name, item in given.items() if not (isinstance(item, Tensor) and item.requires_grad)]
    if arguments.rows is not None:
        given["rows"] = arguments.rows
        still.append("rows")
    declared = tuple(name for name in still if is_declared(given[name]))
    checked: tuple[str, ...] = ()
    if not graph.is_drawn and not comes_once():  # as what a sampler drew does
        checked = tuple(name for name in still if name not in declared and _may_stay(name, given[name]))
    exact = (owned or bool(declared)) and not graph.is_drawn
    return Standing(declared, checked, exact, owned)


def _may_stay(name: str, item: Any) -> bool:
    """Whether the content can be compared, and is not a Python number that is an input because it changed."""
    return not isinstance(item, EdgeValues) and not name.startswith(NUMBER) and is_readable(item)


def _content(arguments: Arguments) -> Content:
    """The inputs, with those that count as unchanged while they are the same objects."""
    return Content(arguments.named(), standing_of(arguments).declared)


def _derived_run(program: Program) -> Run:
    """Compiles a derived program: all tensors are its fields."""
    function = CompiledFunction.of(program)

    def run(rest: Mapping[str, Any], fields: Mapping[str, Field]) -> dict[str, Tensor] | None:
        x = rest.get("x") if isinstance(rest.get("x"), SparseFeatures) else None
        if (given := fields.get("x")) is not None and is_half(given[0]):
            fields = {**fields, "x": (in_full(given[0]), given[1])}
        ids = rest.get("rows"), rest["seed"], False, fields
        return function.on_kernels(Arguments(rest["graph"], x, {}, *ids, beside=rest[_BESIDE]))

    return run


def _size_key(arguments: Arguments, exact: bool, leaves_out: bool) -> tuple[Any, ...]:
    """What the decisive sizes follow from: the graph itself and the rows asked for, or classes of sizes.

    ``leaves_out``: as for :class:`CompiledFunction`.
    """
    graph, x, rows = arguments.graph, arguments.x, arguments.rows
    others = () if arguments.beside is None else tuple(arguments.beside.graphs.values())
    if exact:
        return (
            *(derived(one, _serial) for one in (graph, *others)),
            _nnz(x),
            None if rows is None else fingerprint(rows) if is_readable(rows) else rows.numel(),
        )
    counts = (graph.num_src, graph.num_dst, graph.num_edges, _nnz(x), *(other.num_edges for other in others))
    lists = rows, receivers(graph) if leaves_out else None
    listed = [None if ids is None else class_of(graph, ids.numel()) for ids in lists]
    types = (len(graph.node_types), len(graph.relations)) if graph.is_typed else ()
    return (graph.is_drawn, *(class_of(graph, count) for count in counts), *listed, *types)


def _nnz(x: Features | None) -> int:
    return x.nnz if isinstance(x, SparseFeatures) else 0


_NEXT = itertools.count()


def _serial(graph: Graph) -> int:
    """A number that no other graph of this process has or had."""
    return next(_NEXT)


def _input_types(arguments: Arguments) -> dict[str, Any]:
    graph, x = arguments.graph, arguments.x
    src = "V" if graph.is_square else "S"
    dst = "V" if graph.is_square else "D"
    types: dict[str, Any] = {"graph": StructType(src, dst, "E"), "seed": IndexType(None, None)}
    if x is not None:
        types["x"] = feature_type(graph, x, src)
    if arguments.rows is not None:
        types["rows"] = IndexType("R", dst)
    for name, tensor in arguments.parameters.items():
        types[name] = TensorType(Residency.SHARED, None, tuple(tensor.shape), tensor.dtype)
    symbols: dict[Residency, str | None] = {Residency.SRC: src, Residency.DST: dst, Residency.EDGE: "E"}
    symbols |= {Residency.NTYPE: NODE_TYPES, Residency.ETYPE: EDGE_TYPES, Residency.SHARED: None}
    beside = arguments.beside or Beside({}, {})
    types |= {name: StructType(src, dst, edges_of(name)) for name in beside.graphs}
    for name, (tensor, residency) in arguments.fields.items():
        rows = edges_of(beside.edges[name]) if name in beside.edges else symbols[residency]
        types[name] = TensorType(residency, rows, tuple(tensor.shape[1:] if rows else tensor.shape), tensor.dtype)
    return types


def _wanted(arguments: Arguments, names: set[str]) -> tuple[str, ...]:
    given = {**arguments.parameters, **{name: tensor for name, (tensor, _) in arguments.fields.items()}}
    wanted = [name for name, t in given.items() if t.requires_grad and name in names]
    if isinstance(arguments.x, Tensor) and arguments.x.requires_grad and "x" in names:
        wanted.append("x")
    return tuple(wanted)


def _likeness(arguments: Arguments) -> tuple[Any, ...] | None:
    """What plan and standing of a call of fields alone follow from, at the cost of a few comparisons; else None."""
    graph = arguments.graph
    if arguments.x is not None or arguments.rows is not None:
        return None
    if arguments.parameters or graph.is_drawn or is_owned():
        return None
    parts: list[Any] = [_config.current(), weakref.ref(graph), torch.is_grad_enabled(), arguments.training]
    parts += [arguments.settings, arguments.beside]
    for name, (tensor, residency) in arguments.fields.items():
        if type(tensor) not in _TENSORS:
            return None
        kind = tensor.dtype, tensor.shape, tensor.device
        parts.append((name, residency, *kind, tensor.requires_grad, is_declared(tensor)))
    return tuple(parts)


__all__ = ["LEAVES", "Arguments", "CompiledFunction", "Describe", "Standing", "measure_sizes", "standing_of"]
