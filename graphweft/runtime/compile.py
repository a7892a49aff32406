"""The single waist: from a description of a computation to a call that runs it.

Comes in: a function that writes the forward program (a layer, a model, a front end), and concrete arguments. Goes
out: the outputs, in torch's graph. Programs are compiled once per kind of argument (dtypes, layouts, gradients
wanted, what is constant, rough sizes) and reused over graphs. With ``tune`` the first training step of a program is
profiled: the cost model is fitted to its calls, and the second step may come out in another order. Arguments that
come again unchanged are taken as constant, and what depends on them alone is computed once. Called by ``nn`` and the
front ends.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any

import psutil
import torch
from torch import Tensor

from graphweft import _config
from graphweft._errors import CertificateWarning, GraphWeftError, ShapeError
from graphweft._memory import POOL
from graphweft.cost import CostModel
from graphweft.frontend.edge_values import read
from graphweft.graph.graph import Graph
from graphweft.ir.interpret import evaluate, interpret
from graphweft.ir.movement import EDGE_TYPES, NODE_TYPES
from graphweft.ir.ops import LEAVES, STRUCTURE, Op
from graphweft.ir.program import Builder, Program, Value
from graphweft.ir.residency import IndexType, Residency, StructType, TensorType
from graphweft.passes.certificate import Refuted
from graphweft.passes.pipeline import Request, run_passes
from graphweft.passes.work import Sizes
from graphweft.runtime import calibrate
from graphweft.runtime.edge_kernels import start_edge_kernels
from graphweft.runtime.footprint import Footprint, footprint
from graphweft.runtime.function import Pullback, RunPlan, linearize, saved_elsewhere
from graphweft.runtime.lower import Slots
from graphweft.runtime.plan import HoistedValue, Plan
from graphweft.runtime.profile import profiling
from graphweft.runtime.second import Origin, Run
from graphweft.runtime.size_class import class_size, derived_sizes
from graphweft.storage.feature import SparseFeatures

Features = Tensor | SparseFeatures
Field = tuple[Tensor, Residency]

_BY_PAIRS = {Op.TYPED_SPMM, Op.TYPED_SDDMM, Op.TYPED_OUTER}  # they read neither form of a graph, but its pairs


@dataclass(frozen=True)
class Arguments:
    """One call's arguments.

    Attributes:
        graph: The graph.
        x: Node features; None where ``fields`` holds everything.
        parameters: Dense tensors by name; those that require gradients receive them.
        rows: Destinations to compute; None for all.
        seed: Seed of this call's random draws.
        training: Whether the describing function is asked for the training form.
        fields: More dense tensors by name, each with what its rows are.
        receivers: Ids of the nodes with in-edges, where the program asks for them.
    """

    graph: Graph
    x: Features | None
    parameters: Mapping[str, Tensor]
    rows: Tensor | None
    seed: int
    training: bool
    fields: Mapping[str, Field] = dataclass_field(default_factory=dict)
    receivers: Tensor | None = None

    def named(self) -> dict[str, Any]:
        """All arguments under the names that programs use."""
        given = {"x": self.x, "rows": self.rows, "receivers": self.receivers}
        some = {name: item for name, item in given.items() if item is not None}
        fields = {name: tensor for name, (tensor, _) in self.fields.items()}
        return {"graph": self.graph, "seed": self.seed, **some, **self.parameters, **fields}

    def dense(self) -> list[Tensor]:
        """All tensors of numbers; the stored entries of sparse features."""
        x = self.x.values if isinstance(self.x, SparseFeatures) else self.x
        fields = [tensor for tensor, _ in self.fields.values()]
        return [*([] if x is None else [x]), *self.parameters.values(), *fields]


# writes the forward program: (builder, inputs by name, training) -> outputs by name, the differentiable one called
# "out"
Describe = Callable[[Builder, dict[str, Value], bool], dict[str, Value]]


class CompiledFunction:
    """A described computation, its plans, and its hoisted values."""

    def __init__(self, describe: Describe, written: Program | None = None) -> None:
        self._describe = describe
        self._written = written
        self._plans: dict[tuple[Any, ...], Plan] = {}
        self._refuted: set[tuple[Any, ...]] = set()
        self._hoisted = HoistedValues()
        self._last: dict[str, _Reference] = {}
        self._graph: weakref.ref[Graph] | None = None
        self._fitted: CostModel | None = None
        self._released: weakref.ref[Any] | None = None

    @classmethod
    def of(cls, program: Program) -> CompiledFunction:
        """The function that ``program`` writes."""
        return cls(lambda builder, inputs, training: dict(program.outputs), program)

    def __call__(self, arguments: Arguments) -> dict[str, Tensor]:
        """Outputs by name.

        Raises: ShapeError when features or parameters do not fit the graph or each other.
        """
        if torch.is_autocast_enabled("cpu"):  # a program has its own dtypes; sums are never taken in half precision
            with torch.autocast("cpu", enabled=False):
                return self(arguments)
        known = len(self._plans)
        plan = None if torch._C._are_functorch_transforms_active() else self.ready(arguments)
        if plan is None:
            return interpret(self.program(arguments), arguments.named())
        fresh = len(self._plans) > known
        profiled = fresh and _config.current().tune and self._fitted is None and torch.is_grad_enabled()
        return self._run(plan, arguments, profiled)

    def on_kernels(self, arguments: Arguments) -> dict[str, Tensor] | None:
        """Outputs by name; None where only the interpreter can run."""
        plan = self.ready(arguments)
        return None if plan is None else self._run(plan, arguments, False)

    def ready(self, arguments: Arguments) -> Plan | None:
        """The plan for ``arguments``, compiled if it is not at hand; None where the interpreter runs."""
        active = _config.current()
        constants = self._constants(arguments)
        if active.opt_level == 0 or not _compilable(arguments):
            return None
        key = self._key(arguments, constants, active)
        plan = self._plans.get(key)
        if plan is None:
            if key in self._refuted:
                return None
            try:
                plan = self._plans[key] = self.compile(arguments, constants)
            except Refuted as found:  # wrong gradients: torch's own through the interpreter are right
                self._refuted.add(key)
                message = f"the gradients of this program are left to the interpreter: {found.reason}"
                warnings.warn(message, CertificateWarning, stacklevel=2)
                return None
            if constants:  # what only the plans of first calls hoisted is not needed any more
                self._hoisted.retain({item.key for k, p in self._plans.items() if k[1] for item in p.hoisted})
        return plan

    def program(self, arguments: Arguments) -> Program:
        """The forward program as described, before any pass."""
        if self._written is not None:
            return self._written
        builder = Builder()
        types = _input_types(arguments)
        inputs = {
            name: builder.add(Op.GRAPH if isinstance(type_, StructType) else Op.INPUT, name=name, type=type_)
            for name, type_ in types.items()
        }
        outputs = self._describe(builder, inputs, arguments.training)
        if arguments.rows is not None:
            outputs = {**outputs, "out": builder.add(Op.TAKE_ROWS, outputs["out"], inputs["rows"])}
        ordered = tuple(sorted(outputs.items(), key=lambda item: item[0] != "out"))
        read = set(Program((), ordered).values)
        return Program(tuple(v for v in inputs.values() if v in read), ordered)

    def compile(self, arguments: Arguments, constants: tuple[str, ...]) -> Plan:
        """Runs all passes and lowers the result."""
        active = _config.current()
        program = self.program(arguments)
        names = {value["name"] for value in program.inputs}
        wanted = _wanted(arguments, names) if torch.is_grad_enabled() else ()
        level = active.opt_level if _single(arguments) else min(active.opt_level, 2)
        request = Request(
            level=level,
            edges_from=level if active.opt_level > level else 3,
            wanted=wanted,
            constants=constants,
            sizes=lambda joint: _decisive_sizes(joint, arguments, active.memory),
            model=self._fitted or (calibrate.cost_model() if active.tune else CostModel()),
            disabled=frozenset(name for name in active.disabled_passes.split(",") if name),
            certify=active.certify,
            prepare=start_edge_kernels,
        )
        return Plan(run_passes(program, request), program)

    @property
    def cost_model(self) -> CostModel | None:
        """The model fitted to the first training step, or settled; None before."""
        return self._fitted

    def settle(self, model: CostModel) -> None:
        """Decides by ``model`` from now on and measures no step."""
        self._fitted = model

    def release(self, arguments: Arguments) -> bool:
        """Gives up the memory of ``x`` when all plans for constant features read only what is hoisted from it.

        What is hoisted is computed now, in the memory of ``x`` where it is one aggregation and the memory is the
        pool's. The tensor keeps its identity and shape; a later call that needs its numbers again is refused. False,
        and nothing changed, when some plan reads it.
        """
        x = arguments.x
        if not isinstance(x, Tensor):
            return False
        plans = [plan for key, plan in self._plans.items() if "x" in key[1]]
        hoisted = {item.key: (plan, item) for plan in plans for item in plan.hoisted if "x" in item.leaves}
        if not hoisted or any("x" in (*plan.tensors, *plan.fixed) for plan in plans):
            return False
        named = arguments.named()
        plan, item = next(iter(hoisted.values()))
        here = len(hoisted) == 1 and POOL.owns(x) and x.is_contiguous() and plan.fits_over(item, "x")
        for plan, item in hoisted.values():
            self._hoisted.get(plan, item, named, over="x" if here else None)
        x.data = x.new_zeros(()).expand(x.shape)
        self._released = weakref.ref(x)
        return True

    def hoist(self, arguments: Arguments) -> list[Any]:
        """Everything that is computed once for ``arguments``; whoever holds the list keeps it alive."""
        plan = self.ready(arguments)
        named = arguments.named()
        if plan is None:
            return []
        values = [self._hoisted.get(plan, item, named) for item in plan.hoisted]
        for item, value in zip(plan.hoisted, values, strict=True):
            readers = {v.op for v in plan.compiled.program.values if item.value in v.inputs}
            if isinstance(value, Graph) and not readers <= _BY_PAIRS:
                _ = value.csc_structure  # the form that aggregations read
        return values

    def footprint(self, arguments: Arguments) -> Footprint:
        """Predicted memory of a step with ``arguments``. Raises: GraphWeftError where no plan runs it."""
        plan = self.ready(arguments)
        if plan is None:
            raise GraphWeftError("footprint: expected a computation with a plan")
        sizes = measure_sizes(plan.compiled.program, arguments, _config.current().memory)
        return footprint(plan, sizes)

    def plans(self) -> list[Plan]:
        """All plans compiled so far, oldest first."""
        return list(self._plans.values())

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledFunction:
        raise TypeError("a CompiledFunction belongs to its module; the module makes a new one when it is copied")

    def linearize(self, arguments: Arguments) -> tuple[dict[str, Tensor], Pullback]:
        """Outputs by name outside torch's graph, and their pullback, as a training loop without the engine needs it.

        The pullback takes the gradient of "out", once, and returns those of the dense inputs by name.
        """
        plan = self.ready(arguments)
        if plan is None:
            return self._linearize_by_torch(arguments)
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            env, tensors = self._bind(plan, arguments)
        return linearize(plan, env, tensors)

    def _linearize_by_torch(self, arguments: Arguments) -> tuple[dict[str, Tensor], Pullback]:
        """The same on the interpreter."""
        outputs = interpret(self.program(arguments), arguments.named())
        leaves = {name: t for name, t in arguments.parameters.items() if t.requires_grad}

        def pullback(gradient: Tensor) -> dict[str, Tensor | None]:
            found = torch.autograd.grad(outputs["out"], list(leaves.values()), gradient, allow_unused=True)
            return dict(zip(leaves, found, strict=True))

        return {name: tensor.detach() for name, tensor in outputs.items()}, pullback

    def _bind(self, plan: Plan, arguments: Arguments) -> tuple[Slots, tuple[Tensor, ...]]:
        """Slots with everything but the dense inputs, and those."""
        named = arguments.named()
        self._check_released(plan, arguments)
        hoisted = tuple(self._hoisted.get(plan, item, named) for item in plan.hoisted)
        env = plan.bind({name: named[name] for name in plan.fixed}, hoisted)
        return env, tuple(_rows_contiguous(named[name]) for name in plan.tensors)

    def _run(self, plan: Plan, arguments: Arguments, profiled: bool) -> dict[str, Tensor]:
        env, tensors = self._bind(plan, arguments)
        origin = self._origin(plan, arguments)
        if not profiled:
            outputs = RunPlan.apply(plan, env, None, origin, *tensors)  # type: ignore[no-untyped-call]
        else:
            samples = _Samples(self)
            with profiling() as taken:
                outputs = RunPlan.apply(plan, env, samples, origin, *tensors)  # type: ignore[no-untyped-call]
            samples.taken.extend(taken)
        return {name: tensor for (name, _), tensor in zip(plan.outputs, outputs, strict=True)}

    def _origin(self, plan: Plan, arguments: Arguments) -> Origin:
        """What the gradients of this call are differentiated by."""
        named = arguments.named()
        rest = {"graph": arguments.graph, "seed": arguments.seed, **{name: named[name] for name in plan.rest}}
        released = self._released is not None and self._released() is arguments.x
        return Origin(plan, rest, _derived_run, released)

    def _check_released(self, plan: Plan, arguments: Arguments) -> None:
        """Refuses to compute from features whose memory was given up."""
        if self._released is None or self._released() is not arguments.x:
            return
        needed = "x" in plan.tensors or any("x" in i.leaves and not self._hoisted.has(i) for i in plan.hoisted)
        if needed:
            raise GraphWeftError("forward: expected features, but their memory was given up after they were aggregated")

    def _constants(self, arguments: Arguments) -> tuple[str, ...]:
        """Names of inputs that are the same objects, unchanged, as in the call before."""
        if self._written is not None:  # gradients: what they read is new in every call
            return ()
        given: dict[str, Any] = {name: tensor for name, (tensor, _) in arguments.fields.items()}
        if arguments.x is not None:
            given["x"] = arguments.x
        now = {name: _Reference(item) for name, item in given.items()}
        before, self._last = self._last, now
        same_graph = self._graph is not None and self._graph() is arguments.graph
        self._graph = weakref.ref(arguments.graph)
        if not same_graph or saved_elsewhere():  # checkpointing has to find the same plan when it runs a call again
            return ()
        again = {name for name in given if before.get(name) == now[name]}
        constant = tuple(
            n for n in given if n in again and not (isinstance(given[n], Tensor) and given[n].requires_grad)
        )
        rows = arguments.rows is not None and "x" in again
        return (*constant, *(("rows",) if rows else ()), *(("receivers",) if arguments.receivers is not None else ()))

    def _key(self, arguments: Arguments, constants: tuple[str, ...], active: _config.Config) -> tuple[Any, ...]:
        graph, x = arguments.graph, arguments.x
        grads = torch.is_grad_enabled()
        return (
            arguments.training,
            constants,
            active,
            _kind(x),
            tuple((name, t.dtype, t.shape, grads and t.requires_grad) for name, t in arguments.parameters.items()),
            tuple((n, r, t.dtype, t.shape[1:], grads and t.requires_grad) for n, (t, r) in arguments.fields.items()),
            grads and isinstance(x, Tensor) and x.requires_grad,
            arguments.receivers is None,
            _drawn_classes(arguments),
            None if arguments.rows is None else arguments.rows.numel().bit_length(),
            (graph.num_src.bit_length(), graph.num_dst.bit_length(), graph.num_edges.bit_length(), graph.is_square),
            self._fitted is not None,
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


class HoistedValues:
    """Values computed once, one per expression, for the arguments they were computed from."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[tuple[Any, ...], Any]] = {}

    def get(self, plan: Plan, item: HoistedValue, named: Mapping[str, Any], over: str | None = None) -> Any:
        """The value of ``item`` for these arguments, computed if it is not at hand; ``over`` as for the plan."""
        leaves = [named[name] for name in item.leaves]
        binding = tuple(_Reference(leaf) for leaf in leaves)
        kept = self._kept.get(item.key)
        if kept is not None and kept[0] == binding:
            return kept[1]
        self._kept.pop(item.key, None)  # its memory goes before the new value comes
        with torch.inference_mode(False), torch.no_grad():  # a training step may save what an evaluation made
            result = plan.evaluate_hoisted(item, dict(zip(item.leaves, leaves, strict=True)), over)
        self._kept[item.key] = (binding, result)
        for leaf in leaves:
            weakref.finalize(leaf, self._kept.pop, item.key, None).atexit = False
        return result

    def has(self, item: HoistedValue) -> bool:
        """Whether a value is at hand for ``item``."""
        return item.key in self._kept

    def retain(self, keys: set[str]) -> None:
        """Forgets every other value."""
        for key in set(self._kept) - keys:
            del self._kept[key]


class _Reference:
    """An argument by identity and version, without keeping it alive."""

    def __init__(self, target: Any) -> None:
        self._target, self._version = weakref.ref(target), _version(target)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Reference):
            return NotImplemented
        mine = self._target()
        return mine is not None and mine is other._target() and self._version == other._version

    def __hash__(self) -> int:
        return hash(self._version)


def _derived_run(program: Program) -> Run:
    """Compiles a derived program: all tensors are its fields."""
    function = CompiledFunction.of(program)

    def run(rest: Mapping[str, Any], fields: Mapping[str, Field]) -> dict[str, Tensor] | None:
        x = rest.get("x") if isinstance(rest.get("x"), SparseFeatures) else None
        ids = rest.get("rows"), rest["seed"], False, fields, rest.get("receivers")
        return function.on_kernels(Arguments(rest["graph"], x, {}, *ids))

    return run


def measure_sizes(program: Program, arguments: Arguments, memory: int) -> Sizes:
    """The numbers behind the program's symbols, from the actual graphs that its structure operations give."""
    named = arguments.named()
    known: dict[Value, Any] = {v: named[v["name"]] for v in program.inputs if v["name"] in named}
    rows: dict[str, int] = {}
    for value in program.values:
        if value.op in STRUCTURE and isinstance(value.type, StructType):
            known[value] = evaluate(value, [known[operand] for operand in value.inputs])
        graph = known.get(value)
        if isinstance(value.type, StructType) and graph is not None:
            rows[value.type.src], rows[value.type.dst] = graph.num_src, graph.num_dst
            rows[value.type.edge] = graph.num_edges
        if isinstance(value.type, IndexType) and value.type.rows and graph is not None:
            rows[value.type.rows] = int(graph.numel())
    if graph_types := [v for v in program.inputs if isinstance(v.type, StructType) and v.type.square]:
        layout = named[graph_types[0]["name"]].layout
        rows |= {NODE_TYPES: len(layout.node_types), EDGE_TYPES: len(layout.relations)}
    sparse = {"x": arguments.x.nnz} if isinstance(arguments.x, SparseFeatures) else {}
    return Sizes(rows, sparse, memory or psutil.virtual_memory().available / 2)


def _decisive_sizes(program: Program, arguments: Arguments, memory: int) -> Sizes:
    """The sizes that a plan is decided by.

    Those of the classes for a graph that was drawn: which batch of a class comes first depends on where a run is taken
    up, and the bits of its steps must not.
    """
    if not arguments.graph.is_drawn:
        return measure_sizes(program, arguments, memory)
    graph, kinds = arguments.graph, [v.type for v in program.inputs if isinstance(v.type, StructType)]
    rows = {symbol: class_size(n) for kind in kinds for symbol, n in _ends(kind, graph).items()}
    for name, ids in (("R", arguments.rows), ("P", arguments.receivers)):
        rows[name] = class_size(0 if ids is None else ids.numel())
    if any(kind.square for kind in kinds):
        rows |= {NODE_TYPES: len(graph.layout.node_types), EDGE_TYPES: len(graph.layout.relations)}
    nnz = {"x": class_size(arguments.x.nnz)} if isinstance(arguments.x, SparseFeatures) else {}
    return Sizes(derived_sizes(program, rows), nnz, memory or psutil.virtual_memory().available / 2)


def _ends(kind: StructType, graph: Graph) -> dict[str, int]:
    return {kind.src: graph.num_src, kind.dst: graph.num_dst, kind.edge: graph.num_edges}


def _drawn_classes(arguments: Arguments) -> tuple[int, int] | None:
    """Classes of sizes, beside those of the graph, that decide a plan for a graph that was drawn."""
    if not arguments.graph.is_drawn:
        return None
    x, receivers = arguments.x, arguments.receivers
    nnz = x.nnz.bit_length() if isinstance(x, SparseFeatures) else 0
    return nnz, 0 if receivers is None else receivers.numel().bit_length()


def _input_types(arguments: Arguments) -> dict[str, Any]:
    graph, x = arguments.graph, arguments.x
    src = "V" if graph.is_square else "S"
    dst = "V" if graph.is_square else "D"
    types: dict[str, Any] = {"graph": StructType(src, dst, "E"), "seed": IndexType(None, None)}
    if x is not None:
        types["x"] = _feature_type(graph, x, src)
    if arguments.rows is not None:
        types["rows"] = IndexType("R", dst)
    if arguments.receivers is not None:
        types["receivers"] = IndexType("P", dst)
    for name, tensor in arguments.parameters.items():
        types[name] = TensorType(Residency.SHARED, None, tuple(tensor.shape), tensor.dtype)
    symbols: dict[Residency, str | None] = {Residency.SRC: src, Residency.DST: dst, Residency.EDGE: "E"}
    symbols |= {Residency.NTYPE: NODE_TYPES, Residency.ETYPE: EDGE_TYPES, Residency.SHARED: None}
    for name, (tensor, residency) in arguments.fields.items():
        dims = tuple(tensor.shape[1:] if symbols[residency] else tensor.shape)
        types[name] = TensorType(residency, symbols[residency], dims, tensor.dtype)
    return types


def _feature_type(graph: Graph, x: Features, src: str) -> TensorType:
    if isinstance(x, SparseFeatures):
        width: tuple[int, ...] = (x.width,)
        nodes, dtype = x.num_rows, x.values.dtype
    else:
        if x.dim() < 1:
            raise ShapeError(f"forward: expected one row of features per node, got shape {tuple(x.shape)}")
        nodes, width, dtype = x.shape[0], tuple(x.shape[1:]), x.dtype
    if nodes != graph.num_src:
        raise ShapeError(f"forward: expected features for {graph.num_src} nodes, got {nodes} rows")
    return TensorType(Residency.SRC, src, width, dtype, isinstance(x, SparseFeatures))


def _wanted(arguments: Arguments, names: set[str]) -> tuple[str, ...]:
    given = {**arguments.parameters, **{name: tensor for name, (tensor, _) in arguments.fields.items()}}
    wanted = [name for name, t in given.items() if t.requires_grad and name in names]
    if isinstance(arguments.x, Tensor) and arguments.x.requires_grad and "x" in names:
        wanted.append("x")
    return tuple(wanted)


def _compilable(arguments: Arguments) -> bool:
    """Kernels are for float CPU tensors; anything else is the oracle's."""
    tensors = arguments.dense() if arguments.x is None else arguments.dense()[:1]
    kinds = {t.dtype for t in tensors if t.dtype.is_floating_point}
    return all(t.device.type == "cpu" for t in tensors) and kinds <= {torch.float32, torch.float64}


def _single(arguments: Arguments) -> bool:
    """Whether all floating numbers are float32, the dtype of the fused epilogues."""
    return all(t.dtype == torch.float32 for t in arguments.dense() if t.dtype.is_floating_point)


def _kind(x: Features | None) -> tuple[Any, ...]:
    if x is None:
        return ()
    return (x.shape[1], x.values.dtype, "csr") if isinstance(x, SparseFeatures) else (tuple(x.shape[1:]), x.dtype)


def _version(item: Any) -> int:
    return int(item._version) if isinstance(item, Tensor) and not item.is_inference() else 0


def _rows_contiguous(tensor: Tensor) -> Tensor:
    tensor = read(tensor)
    return tensor if tensor.is_contiguous() else tensor.contiguous()


__all__ = ["LEAVES", "Arguments", "CompiledFunction", "Describe", "measure_sizes"]
