"""Many calls of one compiled function that differ in graph, features and seed alone, as the batches of an epoch do.

Comes in: a function and the arguments of one call. Goes out: outputs and pullbacks with the bits of usual calls.
Parameters, settings and configuration are looked at when it is made, so it serves until one of them may have changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor

from graphweft import _config
from graphweft._trace import active
from graphweft.graph.graph import Graph
from graphweft.ir.ops import LEAVES, Op
from graphweft.runtime.compile import Arguments, CompiledFunction
from graphweft.runtime.function import Pullback, linearize, linearize_seen
from graphweft.runtime.graph_tape import GraphTape, Inputs, class_of, corners_of, may_record
from graphweft.runtime.hoisted import Content
from graphweft.runtime.observed import observed
from graphweft.runtime.plan import Plan
from graphweft.runtime.profile import PROFILE
from graphweft.runtime.second import distinct
from graphweft.runtime.tape import pause

RECORDED_AFTER = 8  # batches of one class of sizes: recording takes as long as some


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

    def of(self, function: CompiledFunction) -> Self:
        """Calls of another function of the same arguments."""
        return type(self)(function, self._usual)

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
        given = Inputs(graph, {"x": x}, key=seed, hoisted=self.hoisted(graph, x))
        if tape := self._tape(plan, given):
            return self._replayed(tape, given)
        return linearize(plan, *self._bound(plan, graph, x, seed, given.hoisted))

    def run(
        self, graph: Graph, x: Tensor, seed: int = 0, hoisted: tuple[Any, ...] | None = None
    ) -> tuple[dict[str, Tensor], Pullback]:
        """As :meth:`linearize`, for graphs that a plan serves, call by call; ``hoisted`` as :meth:`hoisted` gave it."""
        plan = self._plan(graph, x, seed)
        assert plan is not None  # as is_compiled() said
        return linearize(plan, *self._bound(plan, graph, x, seed, hoisted))

    def run_seen(
        self, graph: Graph, x: Tensor, seed: int, hoisted: tuple[Any, ...], seen: Callable[[str, Tensor], None]
    ) -> Callable[[Callable[[str], Tensor]], dict[str, Tensor | None]]:
        """As :meth:`run` and :func:`linearize_seen`."""
        plan = self._plan(graph, x, seed)
        assert plan is not None  # as is_compiled() said
        return linearize_seen(plan, *self._bound(plan, graph, x, seed, hoisted), seen)

    def hoisted(self, graph: Graph, x: Tensor) -> tuple[Any, ...]:
        """What the plan for these takes that follows from the graph, computed apart; none where that is its reverse."""
        plan = self._plan(graph, x, 0)
        if plan is None or all(
            item.value.op is Op.REVERSE and item.value.inputs[0].op in LEAVES for item in plan.hoisted
        ):
            return ()  # a tape reaches the reverse of the batch's graph as it reaches the graph
        return self._function.computed_once(plan, self._content(graph, x, 0))

    def may_record(self, given: Inputs) -> bool:
        """Whether a tape of the plan for this class of sizes is right, and worth its memory."""
        plan = self._plan(given.graph, given.rows["x"], 0)
        sizes = class_of(given.graph.num_nodes), class_of(given.graph.num_edges)
        return plan is not None and not given.is_unsteady and may_record(plan, *sizes)

    def _tape(self, plan: Plan, given: Inputs) -> GraphTape | None:
        """The plan's calls for this class of sizes, once it has come often enough to be worth recording."""
        graph, x = given.graph, given.rows["x"]
        if PROFILE.active or active() is not None or not x.is_contiguous() or x.requires_grad:
            return None
        if not graph.is_square or plan.fixed not in (("graph",), ("graph", "seed"), ("seed", "graph")):
            return None
        key = (*self._key(graph, x), given.is_unsteady)
        self._seen[key] += 1
        if self._seen[key] <= RECORDED_AFTER:
            return None
        known = self._tapes.get(key)
        if key not in self._tapes or (known is not None and not known.serves()):
            known = self._tapes[key] = self._record(plan, given)
        return known

    def _record(self, plan: Plan, given: Inputs) -> GraphTape | None:
        """Outputs, the pause in which their gradient is computed, and gradients."""
        if not self.may_record(given):
            return None
        graph, x = given.graph, given.rows["x"]
        width = next(value.tensor.dims for name, value in plan.compiled.program.outputs if name == "out")
        kind = plan.dtype_of("out")
        rows = {"x": x, "gradient": x.new_zeros((1, *width), dtype=kind)}

        def body(given: Inputs) -> Any:
            bound = self._bound(plan, given.graph, given.rows["x"], given.key, given.hoisted)
            outputs, pullback = linearize(plan, *bound)
            pause()
            return outputs, pullback(given.rows["gradient"])

        sizes = class_of(graph.num_nodes), class_of(graph.num_edges)
        corners = corners_of(Inputs(graph, rows), *sizes, self.hoisted)
        return GraphTape.record(body, corners, list(self.parameters.values()))

    def _replayed(self, tape: GraphTape, given: Inputs) -> tuple[dict[str, Tensor], Pullback]:
        """Outputs and pullback in memory of ``tape``."""
        outputs, gradients = tape.replay(given, 0)
        nodes = given.graph.num_nodes

        def pullback(gradient: Tensor) -> dict[str, Tensor | None]:
            rows = {**given.rows, "gradient": gradient.contiguous()}
            tape.replay(replace(given, rows=rows), 1)
            return {name: None if made is None else made.clone() for name, made in gradients.items()}

        return {name: x if name.endswith(".stats") else x[:nodes] for name, x in outputs.items()}, pullback

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

    def _content(self, graph: Graph, x: Tensor, seed: int) -> Content:
        return Content({"graph": graph, "seed": seed, "x": x, **self._usual.parameters}, ())

    def _bound(
        self, plan: Plan, graph: Graph, x: Tensor, seed: int, hoisted: tuple[Any, ...] | None = None
    ) -> tuple[list[Any], tuple[Tensor, ...]]:
        """Slots with everything but the dense inputs, and those."""
        content = self._content(graph, x, seed)
        named = content.named
        if not hoisted:
            hoisted = self._function.computed_once(plan, content) if plan.hoisted else ()
        observed(plan, named)
        env = plan.bind({name: named[name] for name in plan.fixed}, hoisted)
        return env, tuple(named[name].contiguous() for name in plan.tensors)
