"""A plan's native calls written down with the numbers of nodes and edges as parameters, for graphs of changing size.

Comes in: a plan that has run, parameters, and a square graph with its rows, as a batch of small graphs has them. Goes
out: a :class:`GraphTape` that runs the plan on any graph of the same class of sizes without Python between the calls,
or None where a number follows from the sizes in another way. Called by ``repeated.py``.

The plan runs once on a graph of every corner of the class: few and many nodes, few and many edges. An argument that is
the same in all runs is a constant; one that is the number of nodes, or of edges, in all runs becomes a cell that is set
before a replay. So do the graph's arrays, the rows and the gradient. Anything else is refused. A decision on the way
compares a size, or edges per node, with a bound; these are largest and smallest at corners, so runs that agree there
agree in between. Results lie where the largest run had them.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphweft import _native
from graphweft._budget import in_force
from graphweft._memory import POOL, Pool
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.forms import Forms
from graphweft.graph.graph import Graph
from graphweft.ir.residency import Residency, StructType, TensorType
from graphweft.runtime.kernel_call import Slots
from graphweft.runtime.plan import Plan
from graphweft.runtime.tape import Calls, Watch

# of all results together on the largest graph of a class: above that calls take so long that the time between them
# does not count, and an arena for a class that reaches twice as far is too much memory
_MOST_BYTES = 256 << 20
_GRAPHS: tuple[Callable[[Graph], Adjacency], ...] = (
    lambda graph: graph.csc_structure,
    lambda graph: graph.reverse().csc_structure,
    lambda graph: graph.csc,
    lambda graph: graph.reverse().csc,
)


class _Refused(Exception):
    """A number of a call cannot be followed."""


@dataclass
class _Run:
    """One run on a corner."""

    graph: Graph
    x: Tensor
    gradient: Tensor
    outputs: tuple[Tensor, ...]
    gradients: tuple[Tensor | None, ...]
    forward: Calls
    backward: Calls
    watch: Watch
    arena: Pool

    def sizes(self, value: Any) -> set[str]:
        """Which sizes of the graph ``value`` is."""
        known = {"nodes": self.graph.num_nodes, "edges": self.graph.num_edges}
        return {name for name, size in known.items() if type(value) is int and value == size}

    def input(self, value: Any) -> tuple[str, int] | None:
        """Which rows the address ``value`` lies in, if it does, and how many bytes from their beginning."""
        for name, rows in (("x", self.x), ("gradient", self.gradient)):
            if value is not None and 0 <= value - rows.data_ptr() < rows.nbytes:
                return name, value - rows.data_ptr()
        return None

    def form(self, value: Any) -> int | None:
        """Which form of the graph the structure ``value`` is."""
        return next((i for i, form in enumerate(_GRAPHS) if form(self.graph).native is value), None)

    def keeps(self, address: int) -> bool:
        """Whether memory of this run that lives as long as the tape has the address."""
        small = ((x.data_ptr(), x.nbytes) for x in self.watch.given)
        return self.arena.holds(address) or any(0 <= address - begin < size for begin, size in small)


class GraphTape:
    """Calls of one plan and the cells that a replay sets. :meth:`record` makes it.

    The outputs of a replay hold until the next one.
    """

    def __init__(self, plan: Plan, runs: Sequence[_Run], parameters: Sequence[Tensor]) -> None:
        largest = runs[-1]
        self._parameters = [(tensor, tensor.data_ptr()) for tensor in parameters]
        self._cells: dict[tuple[str, int, Any], Any] = {}
        self._forms: dict[int, _native.Adjacency] = {}
        self._fields: list[tuple[Any, str, tuple[str, int]]] = []
        self._forward = [self._call(runs, calls) for calls in _together(run.forward for run in runs)]
        self._backward = [self._call(runs, calls) for calls in _together(run.backward for run in runs)]
        rows = [{len(run.outputs[i]) - run.graph.num_nodes for run in runs} == {0} for i in range(len(plan.outputs))]
        names = [name for name, _ in plan.outputs]
        self._outputs = list(zip(names, largest.outputs, rows, strict=True))
        self._gradients = list(zip(plan.tensors, largest.gradients, strict=True))
        self._alive = largest.arena, largest.watch.given

    @classmethod
    def record(
        cls,
        plan: Plan,
        bound: Callable[[Graph, Tensor], tuple[Slots, tuple[Tensor, ...]]],
        named: Mapping[str, Tensor],
        graph: Graph,
        x: Tensor,
        nodes: range,
        edges: range,
    ) -> GraphTape | None:
        """A tape for graphs like ``graph`` with numbers of nodes and edges in these ranges; None where there is none.

        ``bound`` gives the slots and dense inputs of a call, ``named`` are the dense inputs beside x.
        """
        if any(not isinstance(item.value.type, StructType) for item in plan.hoisted) or not graph.is_square:
            return None  # other values that are computed once have rows in memory of their own
        if plan.fixed != ("graph",) or [name for name, _ in plan.seeds] != ["out"]:
            return None  # of a seed of draws an argument does not tell that it is one
        if in_force() is not None or _bytes_of(plan, nodes[-1], edges[-1]) > _MOST_BYTES:
            return None
        corners = [(n, e) for n in (nodes[0], nodes[-1]) for e in (edges[0], edges[-1])]
        try:
            runs = [_run(plan, bound, _like(graph, *sizes), x) for sizes in corners]
            return cls(plan, runs, [named[name] for name in plan.tensors if name != "x"])
        except _Refused:
            return None

    def serves(self) -> bool:
        """Whether the parameters lie where they did."""
        return all(tensor.data_ptr() == address for tensor, address in self._parameters)

    def forward(self, graph: Graph, x: Tensor) -> dict[str, Tensor]:
        """Outputs by name, in memory of the tape."""
        self._set("nodes", graph.num_nodes)
        self._set("edges", graph.num_edges)
        self._set("x", x.data_ptr())
        for number, structure in self._forms.items():
            form = _GRAPHS[number](graph).native
            ctypes.memmove(ctypes.byref(structure), ctypes.byref(form), ctypes.sizeof(structure))
        _replay(self._forward)
        return {name: out[: graph.num_nodes] if has_rows else out for name, out, has_rows in self._outputs}

    def backward(self, gradient: Tensor) -> dict[str, Tensor | None]:
        """Gradients of the dense inputs by name, new tensors, of the latest :meth:`forward`, whose inputs live."""
        self._set("gradient", gradient.data_ptr())
        _replay(self._backward)
        return {name: None if made is None else made.clone() for name, made in self._gradients}

    def _set(self, name: str, value: int) -> None:
        for (known, more, _), cell in self._cells.items():
            if known == name:
                cell.value = value + more
        for structure, field, (known, more) in self._fields:
            if known == name:
                setattr(structure, field, value + more)

    def _call(
        self, runs: Sequence[_Run], together: Sequence[tuple[Any, tuple[Any, ...]]]
    ) -> tuple[Any, tuple[Any, ...]]:
        """One call with cells. Raises: _Refused where the runs differ in another way."""
        function = together[0][0]
        kinds = getattr(function, "argtypes", None)
        if kinds is None or any(call[0] is not function for call in together):
            raise _Refused
        arguments = zip(kinds, zip(*(call[1] for call in together), strict=True), strict=True)
        return function, tuple(self._argument(runs, kind, values) for kind, values in arguments)

    def _argument(self, runs: Sequence[_Run], kind: Any, values: tuple[Any, ...]) -> Any:
        values = tuple(getattr(value, "_obj", value) for value in values)  # what byref() holds
        if isinstance(values[0], ctypes.Structure):
            return self._structure(runs, values)
        name = self._named(runs, values, kind is ctypes.c_void_p)
        if name is None:
            return values[-1]
        return self._cells.setdefault((*name, kind), kind())

    def _structure(self, runs: Sequence[_Run], values: tuple[Any, ...]) -> Any:
        if isinstance(values[0], _native.Adjacency):
            forms = {run.form(value) for run, value in zip(runs, values, strict=True)}
            number = forms.pop()
            if number is None or forms:
                raise _Refused
            return self._forms.setdefault(number, _native.Adjacency())
        made = type(values[-1])()
        if any(type(value) is not type(made) for value in values):
            raise _Refused
        for field, kind, *_ in made._fields_:
            found = tuple(getattr(value, field) for value in values)
            name = self._named(runs, found, kind is ctypes.c_void_p)
            if name is None:
                setattr(made, field, found[-1])
            else:
                self._fields.append((made, field, name))
        return made

    def _named(self, runs: Sequence[_Run], values: tuple[Any, ...], is_address: bool) -> tuple[str, int] | None:
        """What ``values`` are run by run, and how much more than that; None for a constant. Raises: _Refused."""
        if not all(value is None or isinstance(value, bool | int | float) for value in values):
            raise _Refused
        if is_address:
            known = {run.input(value) for run, value in zip(runs, values, strict=True)}
            if len(known) == 1 and known != {None}:
                return known.pop()
            if known != {None}:
                raise _Refused
            if all(value is None for value in values):
                return None
            for run, value in zip(runs, values, strict=True):
                if value is None or not (self._is_parameter(value) or run.keeps(value)):
                    raise _Refused
            return None
        if all(type(value) is type(values[0]) and value == values[0] for value in values):
            return None
        sizes = set.intersection(*(run.sizes(value) for run, value in zip(runs, values, strict=True)))
        if len(sizes) != 1:
            raise _Refused
        return sizes.pop(), 0

    def _is_parameter(self, address: int) -> bool:
        return any(address == known for _, known in self._parameters)


def _bytes_of(plan: Plan, nodes: int, edges: int) -> int:
    """All results of a plan's calls on a graph of this size."""
    total = 0
    for call in (*plan.forward, *plan.backward):
        for slot in call.writes:
            kind = slot.value.type
            if isinstance(kind, TensorType) and kind.rows is not None:
                count = edges if kind.residency is Residency.EDGE else nodes
                total += count * math.prod(kind.dims) * kind.dtype.itemsize
    return total


def _together(recorded: Iterable[Calls]) -> list[tuple[Any, ...]]:
    """The first calls of all runs, the second, and so on. Raises: _Refused for runs of other lengths."""
    runs = list(recorded)
    if len({len(calls) for calls in runs}) != 1:
        raise _Refused
    return list(zip(*runs, strict=True))


def _replay(calls: Calls) -> None:
    for function, arguments in calls:
        status = function(*arguments)
        if status:
            _native.check(status)


def _run(plan: Plan, bound: Callable[..., tuple[Slots, tuple[Tensor, ...]]], graph: Graph, x: Tensor) -> _Run:
    """Forward and backward on a corner, with all that is made kept. Raises: _Refused where torch computes."""
    for form in _GRAPHS:
        _ = form(graph).native  # what is made on first use
    arena, rows = Pool(), torch.zeros((graph.num_nodes, *x.shape[1:]), dtype=x.dtype)
    watch, forward, backward = Watch(arena), Calls(), Calls()
    env, tensors = bound(graph, rows)
    width = next(slot for name, slot in plan.outputs if name == "out")
    try:
        with _apart(arena, watch):
            _native.recorder.calls = forward
            outputs = plan.run_forward(env, tensors)
            out = env[width]
            kept = plan.kept(env)
            plan.restore(kept, tensors, tuple(env[slot] for slot in plan.saved_outputs))
            _native.recorder.calls = None
        gradient = torch.zeros(out.shape, dtype=out.dtype)
        with _apart(arena, watch):
            _native.recorder.calls = backward
            gradients = plan.run_backward(kept, {"out": gradient})
    finally:
        _native.recorder.calls = None
    shares = {tensor.untyped_storage().data_ptr() for tensor in tensors}
    if watch.computed or any(t.untyped_storage().data_ptr() in shares for t in outputs):
        raise _Refused
    return _Run(graph, rows, gradient, outputs, gradients, forward, backward, watch, arena)


@contextlib.contextmanager
def _apart(arena: Pool, watch: Watch) -> Iterator[None]:
    """Without torch's graph, in memory of ``arena``, seen by ``watch``."""
    with torch.no_grad(), torch.autocast("cpu", enabled=False), POOL.within(arena), watch:
        yield


def _like(graph: Graph, nodes: int, edges: int) -> Graph:
    """A graph of another size with the kinds of arrays that ``graph`` has, as even as can be."""
    form = graph.csc
    indptr = torch.arange(nodes + 1) * edges // nodes
    numbers = torch.arange(edges, dtype=form.indices.dtype)
    ids = None if form.edge_ids is None else numbers.clone()
    forms = Forms(Adjacency(indptr, numbers % nodes, ids, nodes), None)
    forms.symmetric, forms.loops = graph.is_symmetric, graph.has_self_loops
    return Graph._make(forms, nodes, nodes, True).as_drawn()


__all__ = ["GraphTape"]
