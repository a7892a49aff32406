"""What the compiler does with a model on a graph, and what it expects that to cost.

Comes in: a compiled module, a graph and features. Goes out: a text: the program before and after each pass, the chosen
orders and paths, the kernel calls with predicted time and bytes, and the predicted memory. Called by ``gw.explain`` and
``graphweft explain``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphweft import _config
from graphweft.graph.graph import Graph
from graphweft.ir.program import number
from graphweft.nn.module import CompiledModule
from graphweft.runtime.compile import Features, measure_sizes
from graphweft.runtime.footprint import footprint
from graphweft.runtime.plan import Plan, Step
from graphweft.storage.feature import SparseFeatures


def explain(module: CompiledModule, graph: Graph, x: Features, rows: Tensor | None = None) -> str:
    """The whole story of a training step of ``module`` on ``graph``, as text.

    Features are taken as constant between steps, as they are in full-batch training.

    Shape: x (nodes, in_features); rows (n,) the nodes whose output is asked for, all when None.

    Example:
        >>> from graphweft.nn import GCN
        >>> text = explain(GCN(4, 8, 3), Graph([0, 1, 2], [1, 2, 0]), torch.ones(3, 4))
        >>> "aggregate first" in text
        True
    """
    arguments = module.arguments(graph, x, rows)
    constants = ("x",) if rows is None else ("x", "rows")
    with torch.enable_grad():
        plan = module.function.compile(arguments, constants)
    sizes = measure_sizes(plan.compiled.program, arguments, _config.current().memory)
    parts = [_heading(module, graph, x)]
    for name, text in plan.compiled.trace:
        parts.append(f"-- {name} --\n{text}")
    parts.append(_orders(plan))
    parts.append(_hoisted(plan))
    parts.append("-- forward calls --\n" + _calls(plan, plan.forward))
    if plan.backward:
        parts.append("-- backward calls --\n" + _calls(plan, plan.backward))
    memory = footprint(plan, sizes)
    parts.append(
        "-- prediction --\n"
        f"time of a step        {plan.compiled.seconds * 1e3:.3f} ms (optimiser and loss not counted)\n"
        f"kept between steps    {_mib(memory.hoisted)} of hoisted values\n"
        f"kept for backward     {_mib(memory.activations)} of activations\n"
        f"peak of a step        {_mib(memory.peak)} beside features, graph and parameters"
    )
    return "\n\n".join(parts)


def _heading(module: CompiledModule, graph: Graph, x: Features) -> str:
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
