"""Many calls of one compiled function that differ in graph, features and seed alone, as the batches of an epoch do.

Comes in: a function and the arguments of one call. Goes out: outputs and pullbacks with the bits of usual calls.
Parameters, settings and configuration are looked at when it is made, so it serves until one of them may have changed.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from graphweft import _config
from graphweft._trace import active
from graphweft.graph.graph import Graph
from graphweft.runtime.compile import Arguments, CompiledFunction
from graphweft.runtime.function import Pullback, linearize
from graphweft.runtime.graph_tape import GraphTape
from graphweft.runtime.hoisted import Content
from graphweft.runtime.plan import Plan
from graphweft.runtime.profile import PROFILE
from graphweft.runtime.second import distinct

_RECORDED_AFTER = 8  # batches of one class of sizes: recording takes as long as some


class Repeated:
    """Calls on graphs that come once, such as batches.

    Args:
        function: What is called.
        arguments: Those of one call; its parameters stand for those of all.
    """

    def __init__(self, function: CompiledFunction, arguments: Arguments) -> None:
        self._function, self._usual = function, arguments
        self._kinds = [(t.dtype, t.shape, t.requires_grad) for t in arguments.parameters.values()]
        self._made_under = _config.current()
        self._plans: dict[tuple[Any, ...], Plan | None] = {}
        self._seen: Counter[tuple[Any, ...]] = Counter()
        self._tapes: dict[tuple[Any, ...], GraphTape | None] = {}

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """Those of all calls, by name."""
        return self._usual.parameters

    def still(self, parameters: Mapping[str, Tensor], settings: Hashable) -> bool:
        """Whether these are the parameters, kind by kind, and settings, and the configuration is as it was."""
        mine = self._usual.parameters
        return (
            _config.current() == self._made_under
            and settings == self._usual.settings
            and parameters.keys() == mine.keys()
            and all(parameters[name] is tensor for name, tensor in mine.items())
            and all(
                kind == (t.dtype, t.shape, t.requires_grad) for kind, t in zip(self._kinds, mine.values(), strict=True)
            )
        )

    def is_compiled(self, graph: Graph, x: Tensor) -> bool:
        """Whether a plan serves these, and not the interpreter."""
        return self._plan(graph, x, 0) is not None

    def linearize(self, graph: Graph, x: Tensor, seed: int = 0) -> tuple[dict[str, Tensor], Pullback]:
        """Outputs outside torch's graph and their pullback, as :meth:`CompiledFunction.linearize`.

        Outputs hold, and the pullback can be taken, until the next call.
        """
        plan = self._plan(graph, x, seed)
        if plan is None:
            return self._function.linearize(self._arguments(graph, x, seed))
        tape = self._tape(plan, graph, x)
        if tape is None:
            return linearize(plan, *self._bound(plan, graph, x, seed))
        return tape.forward(graph, x), functools.partial(_pulled, tape, graph, x)

    def _tape(self, plan: Plan, graph: Graph, x: Tensor) -> GraphTape | None:
        """The plan's calls for this class of sizes, once it has come often enough to be worth recording."""
        if PROFILE.active or active() is not None or not x.is_contiguous() or x.requires_grad:
            return None
        key = self._key(graph, x)
        self._seen[key] += 1
        if self._seen[key] <= _RECORDED_AFTER:
            return None
        known = self._tapes.get(key)
        if key not in self._tapes or (known is not None and not known.serves()):
            nodes, edges = (_class_of(count) for count in (graph.num_nodes, graph.num_edges))
            bound = functools.partial(self._bound, plan, seed=0)
            known = self._tapes[key] = GraphTape.record(plan, bound, self.parameters, graph, x, nodes, edges)
        return known

    def forward(self, graph: Graph, x: Tensor, seed: int = 0) -> dict[str, Tensor]:
        """Outputs that nobody differentiates."""
        with torch.no_grad():
            plan = self._plan(graph, x, seed)
            if plan is None:
                return self._function(self._arguments(graph, x, seed))
            env, tensors = self._bound(plan, graph, x, seed)
            outputs = distinct(plan.run_forward(env, tensors), tensors)
            return {name: tensor for (name, _), tensor in zip(plan.outputs, outputs, strict=True)}

    def _arguments(self, graph: Graph, x: Tensor, seed: int) -> Arguments:
        return replace(self._usual, graph=graph, x=x, seed=seed)

    def _plan(self, graph: Graph, x: Tensor, seed: int) -> Plan | None:
        """The plan that a usual call takes; None where it takes none, or where the graph may come again."""
        if not graph.is_drawn:
            return None
        key = self._key(graph, x)
        if key not in self._plans:
            self._plans[key] = self._function.ready(self._arguments(graph, x, seed))
        return self._plans[key]

    @staticmethod
    def _key(graph: Graph, x: Tensor) -> tuple[Any, ...]:
        """The class of sizes, and the kind of graph and rows."""
        counts = graph.num_src.bit_length(), graph.num_dst.bit_length(), graph.num_edges.bit_length()
        return (*counts, graph.is_square, x.dtype, x.shape[1:])

    def _bound(self, plan: Plan, graph: Graph, x: Tensor, seed: int) -> tuple[list[Any], tuple[Tensor, ...]]:
        """Slots with everything but the dense inputs, and those."""
        named: dict[str, Any] = {"graph": graph, "seed": seed, "x": x, **self._usual.parameters}
        hoisted: tuple[Any, ...] = ()
        if plan.hoisted:
            hoisted = self._function.computed_once(plan, Content(named, ()))
        env = plan.bind({name: named[name] for name in plan.fixed}, hoisted)
        return env, tuple(_contiguous(named[name]) for name in plan.tensors)


def _class_of(count: int) -> range:
    """The numbers of as many binary digits."""
    return range(1 << (count.bit_length() - 1), 1 << count.bit_length()) if count else range(1)


def _pulled(tape: GraphTape, graph: Graph, x: Tensor, gradient: Tensor) -> dict[str, Tensor | None]:
    """The backward calls; graph and rows, whose memory they read, live until then."""
    return tape.backward(_contiguous(gradient))


def _contiguous(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_contiguous() else tensor.contiguous()
