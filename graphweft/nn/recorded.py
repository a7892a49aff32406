"""A recorded run of a module, ready to run again: its programs compiled, its graphs and structure kept.

Comes in: a :class:`Tape`. Goes out: :class:`Recorded`, which takes tensors by source and gives what the module
returned. Programs of equal text share one compiled function, also between graphs and modules. Called by
``compiled_call.py``.
"""

from __future__ import annotations

import copy
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from graphweft._draws import call_key
from graphweft._torch_private import pytree
from graphweft.frontend.aliases import STOPPED
from graphweft.frontend.moves import EdgeSet
from graphweft.frontend.operands import mapped_tensors
from graphweft.frontend.region import Planned, Region
from graphweft.frontend.regions import plan, renamed
from graphweft.frontend.tape import Passed, Step, Tape, Var, graded, structure_of
from graphweft.graph.graph import Graph
from graphweft.ir.residency import Residency
from graphweft.nn.edge_arguments import parts_of
from graphweft.runtime.compile import Arguments, Beside, CompiledFunction, Field
from graphweft.runtime.constants import is_declared
from graphweft.storage.fingerprint import read_once

aten = torch.ops.aten

_KEPT = 256  # compiled functions
_FUNCTIONS: OrderedDict[str, CompiledFunction] = OrderedDict()
_GRAPHS: weakref.WeakValueDictionary[Any, Graph] = weakref.WeakValueDictionary()
_LOCK = threading.Lock()
_ANY_ORDER = {view: aten.reshape.default for view in (aten.view.default, aten._unsafe_view.default)}
Env = dict[Var, Tensor]
Held = Callable[[tuple[str, Any]], Any]


def _function_of(region: Region) -> CompiledFunction:
    """The compiled function of a region's program."""
    assert region.program is not None  # regions are closed by then
    text = region.program.text
    with _LOCK:
        made = _FUNCTIONS.get(text)
        if made is None:
            made = _FUNCTIONS[text] = CompiledFunction(renamed(region.program))
        _FUNCTIONS.move_to_end(text)
        while len(_FUNCTIONS) > _KEPT:
            _FUNCTIONS.popitem(last=False)
    return made


def _graph_of(edges: EdgeSet) -> Graph:
    """The graph of a set of edges; one for equal ids."""
    key = (edges.keys, edges.num_src, edges.num_dst)
    graph = _GRAPHS.get(key)
    if graph is None and edges.parts:
        parts = list(edges.parts)
        ends = zip(torch.split(edges.src, parts), torch.split(edges.dst, parts), strict=True)
        of_kind: Any = {("node", str(kind), "node"): pair for kind, pair in enumerate(ends)}
        graph = _GRAPHS[key] = Graph.hetero(of_kind, {"node": edges.num_dst})
    elif graph is None:
        nodes: Any = edges.num_dst if edges.square else (edges.num_src, edges.num_dst)
        graph = _GRAPHS[key] = Graph(edges.src.clone(), edges.dst.clone(), num_nodes=nodes)
    return graph


class RegionRun:
    """A region that can run."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self.function, self.graph = _function_of(region), _graph_of(region.edges)
        others = {name: _graph_of(edges) for name, edges in region.others.items()}
        edges = {name: given.graph for name, given in region.given.items() if given.graph}
        self.others = tuple(others.values())
        self._beside = Beside(others, edges) if others else None
        self.draws, self.steps = region.draws, region.steps
        self._taken = list(region.taken.items())
        self._given: list[tuple[str, Var, Residency, int]] = []
        self._kept: dict[str, Field] = {}
        for name, given in region.given.items():
            if isinstance(given.source, Var):
                self._given.append((name, given.source, given.residency, given.axis))
            else:
                self._kept[name] = (self.rows_of(name, given.source), given.residency)
        self.reads = [var for _, var, _, _ in self._given]
        self._shapes = [taken.var.shape for _, taken in self._taken]

    @property
    def edges(self) -> EdgeSet:
        """What its graph was made of."""
        return self._region.edges

    @property
    def structure(self) -> dict[str, Tensor]:
        """Structure that the program reads beside its graph, by name."""
        return {name: given.source for name, given in self._region.given.items() if isinstance(given.source, Tensor)}

    def rows_of(self, name: str, tensor: Tensor) -> Tensor:
        """Structure as the program reads it."""
        given = self._region.given[name]
        rows = _rows_first(tensor, given.residency, given.axis)
        return rows.clone(memory_format=torch.contiguous_format)

    def again(self, graph: Graph, kept: Mapping[str, Tensor], shapes: Mapping[Var, tuple[int, ...]]) -> RegionRun:
        """The same program over another graph, with its structure and the shapes of its results."""
        other = copy.copy(self)
        other.graph = graph
        other._kept = {name: (kept[name], residency) for name, (_, residency) in self._kept.items()}
        other._shapes = [shapes[taken.var] for _, taken in self._taken]
        return other

    def arguments(self, env: Env) -> Arguments:
        """What the compiled function is called with."""
        fields = dict(self._kept)
        for name, var, residency, axis in self._given:
            fields[name] = (_rows_first(env[var], residency, axis), residency)
        seed = call_key() if self.draws else 0
        return Arguments(self.graph, None, {}, None, seed, False, fields, beside=self._beside)

    def __call__(self, env: Env) -> None:
        """Adds the region's results to ``env``."""
        results = self.function(self.arguments(env))
        for (name, taken), shape in zip(self._taken, self._shapes, strict=True):
            result = results[name]
            if taken.order != tuple(range(result.dim())):
                result = result.permute(taken.order).contiguous()
            env[taken.var] = result if result.shape == shape else result.reshape(shape)


class StepRun:
    """A step that runs as it stands; what a program gives may lie in memory in another order than was recorded."""

    def __init__(self, step: Step) -> None:
        self.step, self._target = step, _ANY_ORDER.get(step.target, step.target)
        self.reads, self._stops = step.reads, step.stops or step.target in STOPPED

    def again(self, args: Any, kwargs: Any) -> StepRun:
        """The same operation with other structure and sizes."""
        other = copy.copy(self)
        other.step = replace(self.step, args=args, kwargs=kwargs)
        return other

    def __call__(self, env: Env) -> None:
        """Adds the step's results to ``env``."""
        step = self.step
        args, kwargs = pytree.tree_map_only(Var, env.__getitem__, (step.args, step.kwargs))
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self._stops):
            made = self._target(*args, **kwargs)
        for var, result in zip(step.outs, made if isinstance(made, tuple | list) else (made,), strict=True):
            if var is not None:
                env[var] = result


class _Own:
    """Copies of structure that lies in memory of somebody else's, one of each. ``lent``: tensors with such memory."""

    def __init__(self, lent: Sequence[Any]) -> None:
        given = [item for item in lent if isinstance(item, Tensor) and not is_declared(item)]
        parts = [part for tensor in given for part in (parts_of(tensor) or (tensor,))]
        self._lent = {part.untyped_storage().data_ptr() for part in parts if part.layout == torch.strided}
        self._copies: dict[int, tuple[Any, Any]] = {}

    def __call__(self, item: Any) -> Any:
        """``item``, or its copy where it is a tensor there."""
        if not self._lent or not isinstance(item, Tensor):
            return item
        if item.layout == torch.strided and item.untyped_storage().data_ptr() not in self._lent:
            return item
        if id(item) not in self._copies:
            self._copies[id(item)] = item, item.clone()
        return self._copies[id(item)][1]

    def step(self, step: Step) -> Step:
        """A step that reads copies."""
        if not self._lent or not any(self(tensor) is not tensor for tensor in structure_of(step)):
            return step
        args, kwargs = mapped_tensors(self, (step.args, step.kwargs))
        return replace(step, args=args, kwargs=kwargs)


def _rows_first(tensor: Tensor, residency: Residency, axis: int) -> Tensor:
    return tensor if residency is Residency.SHARED or not axis else tensor.movedim(axis, 0)


class Recorded:
    """A tape that can run.

    Attributes:
        planned: Its parts.
        runs: The same, ready to run.
        sources: Its inputs.
        outputs: Its results.
        assigned: Attributes of modules that the run sets, as (module, name, value).
        left: Those that it sets to the last of its results, as (module, name), buffers that it replaces among them.
        has_run: Whether it ran to its end before.

    Args:
        by_content: Whether it serves no other content of the structure in the tape.
        lent: Structure of the caller's, who may write into it later.
    """

    def __init__(
        self,
        tape: Tape,
        assigned: Sequence[tuple[str, str, Any]] = (),
        left: Sequence[tuple[str, str]] = (),
        by_content: bool = True,
        lent: Sequence[Any] = (),
    ) -> None:
        own = _Own(lent)
        self.tape, self.assigned, self.has_run = tape, tuple(assigned), False
        self.left = (*tape.replaced, *left)
        self.planned: Planned = plan(tape, by_content)
        self.runs: list[RegionRun | StepRun] = [
            RegionRun(part) if isinstance(part, Region) else StepRun(own.step(part)) for part in self.planned.parts
        ]
        self.regions = [run for run in self.runs if isinstance(run, RegionRun)]
        self.sources, self.outputs = tape.inputs, [own(item) for item in tape.outputs]
        self._shapes: Mapping[Var, tuple[int, ...]] = {var: var.shape for var in tape.inputs}
        self._overwritten = [v for v in tape.inputs if v.source in {("buffer", name) for name in tape.buffers}]
        last = {var: at for at, run in enumerate(self.runs) for var in run.reads}
        kept = {item for item in (*tape.outputs, *tape.buffers.values()) if isinstance(item, Var)}
        self._graded = graded(tape)
        self._dying = [
            [var for var in dict.fromkeys(run.reads) if last[var] == at and var not in kept]
            for at, run in enumerate(self.runs)
        ]

    def again(
        self, runs: Sequence[RegionRun | StepRun], outputs: list[Any], shapes: Mapping[Var, tuple[int, ...]]
    ) -> Recorded:
        """The same with other parts, in their order, for inputs of other shapes."""
        other = copy.copy(self)
        other.runs, other.outputs, other._shapes = list(runs), outputs, shapes
        other.regions = [run for run in runs if isinstance(run, RegionRun)]
        return other

    def inputs(self, flat: Sequence[Any], held: Held) -> Env | None:
        """Its inputs, with parameters and buffers as ``held`` gives them; None where they are of another kind now."""
        env: Env = {}
        for var in self.sources:
            assert var.source is not None  # it is an input
            found = flat[var.source[1]] if var.source[0] == "arg" else held(var.source)
            if found is None or found.shape != self._shapes[var] or found.dtype != var.dtype:
                return None
            if self.tape.asks and found.requires_grad != var.grad:
                return None
            env[var] = found
        if any(held(one) is not held(other) for one, other in self.tape.tied):
            return None
        return env

    def __call__(
        self,
        env: Env,
        flat: Sequence[Any],
        held: Held,
        seen: list[tuple[CompiledFunction, Arguments]] | None = None,
    ) -> Any:
        """What the module returns, and what it leaves in attributes.

        ``seen`` receives the compiled functions that run, with their arguments.
        """
        for position in self.tape.wanting:
            flat[position].requires_grad_()
        for var in self._overwritten:  # the backward pass may read what is there before
            env[var] = env[var].clone()
        several = [item for item in flat if isinstance(item, Tensor)] if len(self.regions) > 1 else []
        with read_once(several):
            for run, dying in zip(self.runs, self._dying, strict=True):
                if seen is not None and isinstance(run, RegionRun):
                    seen.append((run.function, run.arguments(env)))
                run(env)
                for var in dying:
                    del env[var]
        self.has_run = True
        for name, var in self.tape.buffers.items():
            with torch.no_grad():
                held(("buffer", name)).copy_(env[var])
        return pytree.tree_unflatten([self._output(item, env, flat) for item in self.outputs], self.tape.spec)

    def _output(self, item: Any, env: Env, flat: Sequence[Any]) -> Any:
        if isinstance(item, Var):
            return env[item] if item in self._graded else env[item].detach()
        if isinstance(item, Passed):
            return flat[item.position]
        return item.clone() if isinstance(item, Tensor) else item
