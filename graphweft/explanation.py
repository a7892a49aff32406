"""What the compiler does with a model on a graph, and what it expects that to cost.

Comes in: a module or a function, a graph or a batch's blocks, and features. Goes out: a text: the program before and
after each pass, the chosen orders and paths, the kernel calls with predicted time and bytes, the certificates'
verdicts, and the predicted memory. Called by ``gw.explain`` and ``graphweft explain``.
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
from graphweft._errors import FallbackWarning
from graphweft.graph.block import Block
from graphweft.graph.graph import Graph
from graphweft.ir.program import number
from graphweft.nn.module import CompiledModule, check_blocks
from graphweft.nn.stack import Stack
from graphweft.nn.user_call import observing
from graphweft.runtime.compile import Arguments, CompiledFunction, Features, Standing, measure_sizes, standing_of
from graphweft.runtime.footprint import footprint
from graphweft.runtime.plan import Plan, Step
from graphweft.storage.feature import SparseFeatures, is_dense

Explained = CompiledModule | nn.Module | Callable[..., Any]


def explain(module: Explained, graph: Graph | Sequence[Block], x: Features, rows: Tensor | None = None) -> str:
    """The whole story of a training step of ``module`` on ``graph``, as text; on a batch's blocks, layer by layer.

    Features are taken as constant between steps, as they are in full-batch training. A module or function that is no
    model of this package is called once, with a copy of its state, as ``module(graph, x)``; every message-passing call
    that it makes is told, or why it runs on the reference executor and at which line of the user's.

    Shape: x (nodes, in_features); rows (n,) the nodes whose output is asked for, all when None.

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
    if not isinstance(module, CompiledModule):
        return _explain_calls(module, graph, x)
    if not isinstance(graph, Graph):
        if isinstance(module, Stack):
            return _explain_layers(module, graph, x)
        check_blocks(type(module).__name__, graph, 1)
        graph = graph[0]
    arguments = module.arguments(graph, x, rows)
    return "\n\n".join([_heading(module, graph, x), *_story(module.function, arguments, _trained(arguments))])


def _explain_layers(module: Stack, blocks: Sequence[Block], x: Features) -> str:
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
            parts += _story(module.layer_function(at), arguments, standing)
            x = module.run_layer(at, block, x)
    return "\n\n".join(parts)


def _explain_calls(module: Explained, graph: Graph | Sequence[Block], x: Features) -> str:
    """Of every message-passing call that ``module`` makes."""
    module = copy.deepcopy(module) if isinstance(module, nn.Module) else module
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(), observing() as seen:
        warnings.simplefilter("ignore", FallbackWarning)
        module(graph, x)
    name = type(module).__name__ if isinstance(module, nn.Module) else getattr(module, "__name__", "function")
    parts = [f"{name}: {len(seen)} message-passing calls; opt_level={_config.current().opt_level}"]
    if not seen:
        parts.append("Nothing is compiled: no call of user functions, or opt_level=0, or a graph without edges.")
    for at, item in enumerate(seen):
        call = item.call
        parts.append(f"== call {at}: {call.graph.num_dst:,} nodes, {call.graph.num_edges:,} edges ==")
        if item.compiled is None:
            parts.append(item.reason)
            continue
        arguments = item.compiled.arguments(call, item.captured)
        parts += _story(item.compiled.form(call.graph), arguments, standing_of(arguments))
    return "\n\n".join(parts)


def _trained(arguments: Arguments) -> Standing:
    """Features as a trainer has them, declared constant."""
    rows = ("rows",) if arguments.rows is not None else ()
    return Standing(("x",), rows)


def _story(function: CompiledFunction, arguments: Arguments, standing: Standing) -> list[str]:
    """The passes, orders, hoisted values, calls and predictions of one compiled function."""
    with torch.enable_grad():
        plan = function.compile(arguments, standing)
    sizes = measure_sizes(plan.compiled.program, arguments, _config.current().memory)
    parts = [f"-- {name} --\n{text}" for name, text in plan.compiled.trace]
    parts.append(_orders(plan))
    parts.append(_hoisted(plan))
    parts.append("-- forward calls --\n" + _calls(plan, plan.forward))
    if plan.backward:
        parts.append("-- backward calls --\n" + _calls(plan, plan.backward))
    verdicts = [str(certificate) for certificate in plan.compiled.certificates]
    parts.append("-- certificates --\n" + ("\n".join(verdicts) if verdicts else "switched off"))
    memory = footprint(plan, sizes)
    parts.append(
        "-- prediction --\n"
        f"time of a step        {plan.compiled.seconds * 1e3:.3f} ms (optimiser and loss not counted)\n"
        f"kept between steps    {_mib(memory.hoisted)} of hoisted values\n"
        f"kept for backward     {_mib(memory.activations)} of activations\n"
        f"peak of a step        {_mib(memory.peak)} beside features, graph and parameters"
    )
    return parts


def _heading(module: nn.Module, graph: Graph, x: Features) -> str:
    path = "sparse" if isinstance(x, SparseFeatures) else "dense"
    level = _config.current().opt_level
    return (
        f"{type(module).__name__} on {graph.num_dst:,} nodes, {graph.num_edges:,} edges, "
        f"{x.shape[1]:,} {path} features; opt_level={level}"
    )


def _orders(plan: Plan) -> str:
    lines = [f"{name:<28}{order.value}" for name, order in plan.compiled.orders.items()]
    return "-- orders --\n" + ("\n".join(lines) if lines else "no product stands next to an aggregation")


def _hoisted(plan: Plan) -> str:
    names = number(plan.compiled.program.values)
    lines = [f"{names[item.value]:<6}{item.value.op.name.lower():<16}{item.value.type}" for item in plan.hoisted]
    return "-- computed once --\n" + ("\n".join(lines) if lines else "nothing")


def _calls(plan: Plan, steps: tuple[Step, ...]) -> str:
    names = number(plan.compiled.program.values)
    order = list(plan.compiled.program.values)
    lines = []
    for step in steps:
        made = ", ".join(names[order[slot]] for slot in step.writes)
        microseconds = plan.compiled.model.seconds(step.work) * 1e6
        lines.append(f"{made:<12}{step.label:<52}{microseconds:>10.1f} us{step.work.bytes / 1e6:>10.2f} MB")
    return "\n".join(lines) if lines else "none"


def _mib(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"
