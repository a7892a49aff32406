"""What the compiler does with a model on a graph, and what it expects that to cost.

Comes in: a module or a function, a graph or a batch's blocks, and features; or a trainer. Goes out: a text: a verdict,
the chosen orders and paths, the kernel calls with predicted time and bytes, the certificates' verdicts, and the
predicted memory; if asked for, the program before and after each pass. Called by ``gw.explain`` and
``graphweft explain``.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from graphweft import _config
from graphweft._errors import ConfigError, FallbackWarning
from graphweft._torch_private import hosted, with_gradients
from graphweft.graph.block import Block
from graphweft.graph.graph import Graph
from graphweft.ir.program import number
from graphweft.ir.residency import StructType, TensorType
from graphweft.nn.compiled import calls_of, is_compiled
from graphweft.nn.edges import EdgeInputs
from graphweft.nn.guards import tensors_in
from graphweft.nn.lazy import Lazy
from graphweft.nn.module import CompiledModule, check_blocks
from graphweft.nn.products import counted
from graphweft.nn.stack import Stack
from graphweft.nn.user_call import observing
from graphweft.passes.work import Sizes, tensor_bytes
from graphweft.runtime.compile import Arguments, CompiledFunction, Standing, standing_of
from graphweft.runtime.footprint import footprint
from graphweft.runtime.kernel_call import KernelCall
from graphweft.runtime.observed import observing_plans
from graphweft.runtime.plain_torch import PlainTorch
from graphweft.runtime.plan import Plan
from graphweft.runtime.prediction import predicted
from graphweft.runtime.sizes import measure_sizes
from graphweft.runtime.targets import target_of
from graphweft.storage.feature import Features, SparseFeatures, is_dense
from graphweft.train.device import device_of
from graphweft.train.trainer import Trainer

Explained = CompiledModule | nn.Module | Trainer | Callable[..., Any]


def explain(module: Explained, graph: Any = None, x: Any = None, *args: Any, full: bool = False, **kwargs: Any) -> str:
    """Describes how ``module`` is compiled for ``graph``, with predicted time and memory, as text.

    The text begins with a summary: kernels, stored values of the size of the edges, functions that fall back and why,
    predicted time and memory. Then follow the orders of computation, values that are computed once, and the kernel
    calls. Features are assumed to be constant between steps, as in full-batch training.

    Args:
        module: A model; a trainer, whose steps are described as they run: in mode "mini" with their sampler, in other
            modes by running one without an update; or any module or function. The latter is called once as
            ``module(graph, x, *args, **kwargs)`` with a copy of its state. The text describes each of its
            message-passing calls, or why it falls back, with the line. For a module of
            :func:`graphweft.compile`, pass its own arguments: ``explain(model, x, edge_index)``.
        graph: A graph, or the blocks of a batch, which are described layer by layer. None for a trainer.
        x: Features (nodes, in_features), or a pair of them for two sets of nodes. None for a trainer.
        *args: Further arguments of the forward call; for a model ``rows``, the nodes to compute.
        **kwargs: Further keyword arguments of the forward call.
        full: Whether to show the program before and after each pass too.

    Example:
        >>> from graphweft.nn import GCN
        >>> from graphweft.nn.message_passing import update_all
        >>> graph, x = Graph([0, 1, 2], [1, 2, 0]), torch.ones(3, 4)
        >>> "aggregate first" in explain(GCN(4, 8, 3), graph, x)
        True
        >>> def layer(graph, h):
        ...     message, reduce = lambda e: {"m": e.src["h"]}, lambda n: {"h": n.mailbox["m"].sum(1)}
        ...     return update_all(graph, message, reduce, ndata={"h": h})["h"]
        >>> "spmm" in explain(layer, graph, x)
        True
    """
    if isinstance(module, Trainer):
        return _explain_trainer(module, full)
    if isinstance(module, nn.Module) and is_compiled(module):
        return _explain_compiled(module, (graph, x, *args), kwargs, full)
    if not callable(module):
        raise ConfigError(f"explain: expected a model, a trainer or a function, got {type(module).__name__}")
    if isinstance(module, Lazy):
        module.settle(x)  # as a call does
    if not isinstance(module, CompiledModule) or module.runs_apart():
        return _explain_calls(module, (graph, x, *args), kwargs, full)
    rows, edges = _further(type(module).__name__, args, kwargs)
    if not isinstance(graph, Graph):
        if isinstance(module, Stack):
            return _explain_layers(module, graph, x, full)
        check_blocks(type(module).__name__, graph, 1)
        graph = graph[0]
    arguments = module.arguments(graph, x, rows, edges)
    x = x[0] if isinstance(x, tuple) else x
    return "\n\n".join([_heading(module, graph, x), *_story(module.function, arguments, _trained(arguments), full)])


def _further(who: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor | None, EdgeInputs]:
    """What a model takes after its features: rows, and weights and features of edges."""
    if len(args) > 1 or set(kwargs) - {"rows", "edge_weight", "edge_attr"} or (args and "rows" in kwargs):
        given = ", ".join([*(type(item).__name__ for item in args), *kwargs])
        raise ConfigError(f"explain: expected rows, edge_weight or edge_attr after the features of {who}, got {given}")
    edges = EdgeInputs(kwargs.get("edge_weight"), kwargs.get("edge_attr"))
    return (args[0] if args else kwargs.get("rows")), edges


def _replayed(trainer: Trainer) -> str:
    """What is launched again as it was recorded, how often it was, or why nothing is; "" on the CPU, unasked."""
    known, counted = trainer.replays, trainer.history
    if not known or (
        trainer.mode != "full" and not trainer._batch.measured() and device_of(trainer.model).type == "cpu"
    ):
        return ""
    if known.get("refused"):
        return f"steps run call by call: {known['refused']}"
    if not known["launches"]:
        return "steps are recorded as graphs from the second on" if "evaluation" in known else ""
    replayed, others = (sum(int(value or 0) for value in counted[name]) for name in ("replayed", "fallbacks"))
    update = "with the update" if known.get("updates") else "without the update"
    return (
        f"steps are {known['launches']} launches of recorded graphs, {update}; "
        f"{replayed} were replayed, {others} ran call by call"
    )


def _features_there(trainer: Trainer) -> str:
    """What sparse features take on a device; "" on the CPU, and for dense ones."""
    x, place = trainer.x, device_of(trainer.model)
    held = target_of(place).sparse_bytes
    if not isinstance(x, SparseFeatures) or held is None or target_of(place).blocking:
        return ""
    sent = held(x, any(isinstance(module, CompiledModule) and module.draws() for module in trainer.model.modules()))
    dense = x.num_rows * x.width * x.values.element_size()
    return f"features stay sparse on {place}, {_mib(sent)}; dense rows would take {_mib(dense)}"


@hosted
def _explain_trainer(trainer: Trainer, full: bool) -> str:
    """Of the steps that the trainer runs."""
    model, ds, x, steps = trainer.model, trainer.ds, trainer.x, trainer._batch
    if trainer.ranks.is_shared:  # a step would wait for the other processes
        return f"Told is a step on the whole graph, of one process.\n\n{explain(model, ds.graph, x, full=full)}"
    trainer.prepare()
    staged = steps.staged_plan()
    told = steps.made_of() if staged is None else f"{steps.made_of()}, {staged[0].choice}"
    about = [trainer.node_order, told, steps.where(), _features_there(trainer), _replayed(trainer)]
    parts = ["\n".join([_heading_of(model, ds.num_nodes, ds.num_edges, x), *filter(None, about)])]
    if staged is not None:
        once = "prepared for every batch, beside the predicted step"
        return "\n\n".join([*parts, *_told(staged[0].plan, staged[1], full, once)])
    return "\n\n".join([*parts, *_told_of_step(trainer, full)])


def _told_of_step(trainer: Trainer, full: bool) -> list[str]:
    """Of every program that a step runs, as it runs them, and of what falls back."""
    with warnings.catch_warnings(), trainer._within(), with_gradients(), trainer._batch.rehearsal() as run:
        warnings.simplefilter("ignore", FallbackWarning)
        with observing_plans() as ran, observing() as seen:
            run()
        memory = _config.current().memory
        found = [(plan, named, measure_sizes(plan.compiled.program, named, memory)) for plan, named in ran]
    parts = []
    for at, (plan, named, sizes) in enumerate(found):
        if len(found) > 1 or not trainer._batch.is_single:
            graph = named["graph"]
            nodes = f"{graph.num_dst:,} of {graph.num_src:,} nodes, {graph.num_edges:,} edges"
            parts.append(f"== program {at}: rows of {nodes} ==")
        parts += _told(plan, sizes, full)
    parts += [item.reason for item in seen if item.compiled is None]
    return parts or ["No call is compiled: there is none, or opt_level=0, or a graph without edges."]


def _explain_layers(module: Stack, blocks: Sequence[Block], x: Features, full: bool) -> str:
    """Of every layer on its block."""
    check_blocks(type(module).__name__, blocks, len(module.layers))
    module = copy.deepcopy(module)
    parts = []
    with torch.random.fork_rng(devices=[]):
        for at, block in enumerate(blocks):
            parts.append(f"== layer {at} ==\n{_heading(module.layers[at], block, x)}")
            arguments = module.layer_arguments(at, block, x)
            if at > 0 and is_dense(arguments.x):
                arguments = replace(arguments, x=arguments.x.detach().requires_grad_())
            standing = standing_of(arguments) if at else _trained(arguments)
            parts += _story(module.layer_function(at), arguments, standing, full)
            x = module.run_layer(at, block, x)
    return "\n\n".join(parts)


def _explain_calls(
    module: nn.Module | Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], full: bool
) -> str:
    """Of every message-passing call that ``module`` makes."""
    module = copy.deepcopy(module) if isinstance(module, nn.Module) else module
    plain = PlainTorch()
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(), observing() as seen:
        warnings.simplefilter("ignore", FallbackWarning)
        with counted() as products, plain:
            module(*args, **kwargs)
    name = type(module).__name__ if isinstance(module, nn.Module) else getattr(module, "__name__", "function")
    fallen = sum(item.compiled is None for item in seen)
    back = {0: "no fallback", 1: "1 falls back"}.get(fallen, f"{fallen} fall back")
    head = f"{name}: {len(seen)} message-passing calls, {back}; opt_level={_config.current().opt_level}"
    ours = f"\nof these, products on the kernels of compiled programs (forward_products): {len(products)}"
    parts = [f"{head}\n{plain}{ours if products else ''}"]
    if not seen:
        parts = [f"{name}: 0 message-passing calls; opt_level={_config.current().opt_level}"]
        parts.append("No call is compiled: there is none of user functions, or opt_level=0, or a graph without edges.")
    own = (
        {type(k).__name__ for k in module.modules() if isinstance(k, CompiledModule)}
        if isinstance(module, nn.Module)
        else ()
    )
    if own:
        parts.append(f"Compiled as well, told by explain(layer, graph, x): {', '.join(sorted(own))}.")
    for at, item in enumerate(seen):
        call = item.call
        parts.append(f"== call {at}: {call.graph.num_dst:,} nodes, {call.graph.num_edges:,} edges ==")
        if item.compiled is None:
            parts.append(item.reason)
            continue
        function, arguments = item.compiled.chosen(call, item.captured)
        parts += _story(function, arguments, standing_of(arguments), full)
    return "\n\n".join(parts)


def _explain_compiled(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], full: bool) -> str:
    """Of every program that a module of ``gw.compile`` runs."""
    held = [tensor for inner in module.modules() for tensor in tensors_in(list(vars(inner).values()))]
    results = {id(tensor): tensor.detach() for tensor in held if not tensor.is_leaf}  # torch copies leaves alone
    made = calls_of(module)
    module = copy.deepcopy(module, results)
    calls = calls_of(module)
    calls.know(made)
    seen: list[tuple[CompiledFunction, Arguments]] = []
    calls.seen = seen
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        module(*args, **kwargs)
    programs = f"{len(seen)} program{'' if len(seen) == 1 else 's'}"
    parts = [f"{type(module).__name__}: {programs}; opt_level={_config.current().opt_level}"]
    if calls.last is None:
        inner = "" if not seen else ", modules inside are compiled"
        parts.append(f"runs as it stands{inner}: {calls.reason}")
    else:
        parts += [f"{step.name} runs as it stands: {why}\nat {step.line}" for step, why in calls.last.planned.apart]
    for at, (function, arguments) in enumerate(seen):
        graph = arguments.graph
        parts.append(f"== program {at}: {graph.num_dst:,} nodes, {graph.num_edges:,} edges ==")
        parts += _story(function, arguments, standing_of(arguments), full)
    return "\n\n".join(parts)


def _trained(arguments: Arguments) -> Standing:
    """Features of nodes and edges as a trainer has them, declared constant."""
    still = [name for name, (tensor, _) in arguments.fields.items() if not tensor.requires_grad]
    return Standing(("x", *still, *(("rows",) if arguments.rows is not None else ())))


def _story(function: CompiledFunction, arguments: Arguments, standing: Standing, full: bool) -> list[str]:
    """The verdict, orders, hoisted values, calls and predictions of one compiled function."""
    with torch.enable_grad():
        plan = function.compile(arguments, standing)
    return _told(plan, measure_sizes(plan.compiled.program, arguments.named(), _config.current().memory), full)


def _told(plan: Plan, sizes: Sizes, full: bool, once: str = "computed once") -> list[str]:
    """The same of a plan."""
    threads = torch.get_num_threads()
    forward, backward = (predicted(plan, steps, sizes, threads) for steps in (plan.forward, plan.backward))
    memory, seconds = footprint(plan, sizes), sum(forward) + sum(backward)
    parts = [_verdict(plan, sizes, seconds, memory.peak)]
    parts += [f"-- {name} --\n{text}" for name, text in plan.compiled.trace] if full else []
    parts += [_orders(plan), _hoisted(plan, once)]
    parts.append("-- forward calls --\n" + _calls(plan, plan.forward, forward))
    if plan.backward:
        parts.append("-- backward calls --\n" + _calls(plan, plan.backward, backward))
    verdicts = [str(certificate) for certificate in plan.compiled.certificates]
    parts.append("-- certificates --\n" + ("\n".join(verdicts) if verdicts else "switched off"))
    parts.append(
        "-- prediction --\n"
        f"time of a step        {seconds * 1e3:.3f} ms (optimiser and loss not counted)\n"
        f"kept between steps    {_mib(memory.hoisted)} of hoisted values\n"
        f"kept for backward     {_mib(memory.activations)} of activations\n"
        f"peak of a step        {_mib(memory.peak)} beside features, graph and parameters"
    )
    return parts


def _verdict(plan: Plan, sizes: Sizes, seconds: float, peak: int) -> str:
    """Kernels, what is stored of the size of the edges, time and memory, in two lines."""
    program = plan.compiled.program
    edges = {value.type.edge for value in program.values if isinstance(value.type, StructType)}
    made = [slot.value for call in (*plan.forward, *plan.backward) for slot in call.writes]
    stored = [v for v in made if isinstance(v.type, TensorType) and v.type.rows in edges]
    total = sum(tensor_bytes(value, sizes) for value in stored)
    kinds = ", ".join(dict.fromkeys(str(value.type) for value in stored))
    kept = f"{_mib(int(total))} of edge size stored ({kinds})" if stored else "nothing of edge size stored"
    threads = torch.get_num_threads()
    on = "1 thread" if threads == 1 else f"{threads} threads"
    return (
        f"{len(plan.forward)} kernels forward, {len(plan.backward)} backward; {kept}\n"
        f"predicted step: {seconds * 1e3:.3f} ms on {on}, {_mib(peak)} at the peak"
    )


def _heading(module: nn.Module, graph: Graph, x: Features) -> str:
    return _heading_of(module, graph.num_dst, graph.num_edges, x)


def _heading_of(module: nn.Module, nodes: int, edges: int, x: Features) -> str:
    path = "sparse" if isinstance(x, SparseFeatures) else "dense"
    level = _config.current().opt_level
    return (
        f"{type(module).__name__} on {nodes:,} nodes, {edges:,} edges, "
        f"{x.shape[1]:,} {path} features; opt_level={level}"
    )


def _orders(plan: Plan) -> str:
    lines = [f"{name:<28}{order.value}" for name, order in plan.compiled.orders.items()]
    return "-- orders --\n" + ("\n".join(lines) if lines else "no product stands next to an aggregation")


def _hoisted(plan: Plan, once: str) -> str:
    names = number(plan.compiled.program.values)
    lines = [f"{names[item.value]:<6}{item.value.op.name.lower():<16}{item.value.type}" for item in plan.hoisted]
    return f"-- {once} --\n" + ("\n".join(lines) if lines else "nothing")


def _calls(plan: Plan, calls: tuple[KernelCall, ...], seconds: list[float]) -> str:
    names = number(plan.compiled.program.values)
    lines = []
    for call, taken in zip(calls, seconds, strict=True):
        made = ", ".join(names[slot.value] for slot in call.writes)
        lines.append(f"{made:<11} {call.label:<52}{taken * 1e6:>10.1f} us{call.work.bytes / 1e6:>10.2f} MB")
    return "\n".join(lines) if lines else "none"


def _mib(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"
