"""A computation over batches of small graphs, written down once for all batches of a class of sizes.

Comes in: a computation over :class:`Inputs`, and those of some batch. Goes out: a :class:`GraphTape` that replays it on
any batch of as many graphs in the same class. Called by ``repeated.py`` and ``train/graph_step.py``.

The computation runs once on a graph of every corner of the class: few and many nodes, few and many edges. A decision on
the way compares a size, or edges per node, with a bound; these are largest and smallest at corners, so runs that agree
there agree in between. Results lie where the largest run had them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Self

import torch
from torch import Tensor

from graphweft import _native
from graphweft._budget import in_force
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.forms import Forms
from graphweft.graph.graph import Graph
from graphweft.graph.side_by_side import members
from graphweft.ir.residency import Residency, TensorType
from graphweft.runtime.plan import Plan
from graphweft.runtime.sized_tape import Case, SizedTape

# of all results together on the largest graph of a class: above that calls take so long that the time between them
# does not count, and an arena for a class that reaches twice as far is too much memory
_MOST_BYTES = 256 << 20
Hoist = Callable[[Graph, Tensor], tuple[Any, ...]]
_KEYS = (0x5DEECE66D1234567, 0x2545F4914F6CDD1D, 0x369DEA0F31A53F85, 0x27BB2EE687B0B0FD)  # unlike any size
# The structure of a graph is its full form where that has been made, so those are named first, but asked for last.
_FORMS: tuple[Callable[[Graph], Adjacency], ...] = (
    lambda graph: graph.csc,
    lambda graph: graph.reverse().csc,
    lambda graph: graph.csc_structure,
    lambda graph: graph.reverse().csc_structure,
)


@dataclass(frozen=True)
class Inputs:
    """What a computation reads of a batch.

    Attributes:
        graph: The graphs side by side.
        rows: Tensors with a row per node, by name.
        ptr: Offsets of the graphs; None where it does not ask for them.
        fixed: Tensors whose shape is the same for all batches of as many graphs.
        key: Of the draws.
        of_graphs: From every node to its graph.
        hoisted: Graphs, tensors and numbers that follow from the graph and are computed before the computation.
    """

    graph: Graph
    rows: Mapping[str, Tensor]
    ptr: Tensor | None = None
    fixed: Mapping[str, Tensor] = field(default_factory=dict)
    key: int = 0
    of_graphs: Graph | None = None
    hoisted: tuple[Any, ...] = ()

    @classmethod
    def of(
        cls,
        graph: Graph,
        rows: Mapping[str, Tensor],
        ptr: Tensor,
        fixed: Mapping[str, Tensor],
        key: int,
        hoisted: tuple[Any, ...] = (),
    ) -> Self:
        """With the graph that leads from every node to its graph."""
        return cls(graph, rows, ptr, fixed, key, members(ptr), hoisted)

    @cached_property
    def graphs(self) -> dict[str, Graph]:
        """All graphs by name, those that are another one or its reverse left out."""
        made = {"graph": self.graph, **({} if self.of_graphs is None else {"of_graphs": self.of_graphs})}
        for name, one in self._named.items():
            if isinstance(one, Graph) and not any(one is other or one is other.reverse() for other in made.values()):
                made[name] = one
        return made

    @property
    def is_unsteady(self) -> bool:
        """Whether a hoisted graph has another number of edges than follows from the sizes: self-loops are left out."""
        return len(self.graphs) > 1 + (self.of_graphs is not None) and self.graph.has_self_loops

    @property
    def _named(self) -> dict[str, Any]:
        """What is hoisted, by name."""
        return {f"hoisted{i}": one for i, one in enumerate(self.hoisted)}

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Tensors by name, the arrays of graphs apart."""
        return {**self.rows, **self.fixed, **{n: x for n, x in self._named.items() if isinstance(x, Tensor)}}

    def forms(self) -> dict[str, Adjacency]:
        """All forms of the graphs by name; what a computation has made of them is found, the rest is made."""
        names = [f"{one}.{i}" for one in self.graphs for i in range(len(_FORMS))]
        made = {name: self._form(name) for name in reversed(names)}
        return {name: made[name] for name in names}

    def place(self, name: str) -> int:
        """Where one of them lies; 0 for rows that are not there yet."""
        x = self.tensors.get(name)
        if x is None and "." in name:
            form, array = name.rsplit(".", 1)
            x = getattr(self._form(form), array)
        return 0 if x is None else x.data_ptr()

    @property
    def sizes(self) -> dict[str, int]:
        """Numbers that are others in every batch."""
        more = {f"{n}.edges": one.num_edges for n, one in self.graphs.items() if n not in ("graph", "of_graphs")}
        return {"nodes": self.graph.num_nodes, "edges": self.graph.num_edges, "key": self.key, **more}

    def form(self, name: str) -> _native.Adjacency:
        """A form of one of the graphs: "graph.0" to "of_graphs.3", or those of one that is hoisted."""
        return self._form(name).native

    def _form(self, name: str) -> Adjacency:
        whose, number = name.split(".")
        return _FORMS[int(number)](self.graphs[whose])


class GraphTape:
    """A tape and the parameters whose places it knows. :meth:`record` makes it; results hold until the next replay."""

    def __init__(self, tape: SizedTape, parameters: Sequence[Tensor]) -> None:
        self._tape = tape
        self._parameters = [(tensor, tensor.data_ptr()) for tensor in parameters]

    @classmethod
    def record(
        cls,
        body: Callable[[Inputs], Any],
        corners: Sequence[Inputs],
        parameters: Sequence[Tensor],
    ) -> GraphTape | None:
        """The tape of a computation; None where a number follows from the sizes in another way.

        Args:
            body: The computation.
            corners: Inputs as :func:`corners_of` gives them.
            parameters: What it reads beside them.
        """
        places = [(x.data_ptr(), x.nbytes) for x in parameters]

        def known(address: int) -> bool:
            return any(0 <= address - begin < size for begin, size in places)

        made = [_Corner(corner) for corner in corners]
        cases = [Case(partial(body, one.given), one.given.sizes, one.tensors, one.natives) for one in made]
        with torch.no_grad(), torch.autocast("cpu", enabled=False), torch.random.fork_rng(devices=[]):
            tape = SizedTape.record(cases, [], None, known)
        return None if tape is None else cls(tape, parameters)

    def serves(self) -> bool:
        """Whether the parameters lie where they did, and nobody else holds memory of the tape."""
        return self._tape.is_ready() and all(tensor.data_ptr() == address for tensor, address in self._parameters)

    def replay(self, inputs: Inputs, part: int | None = None) -> Any:
        """What the computation returns for a batch; ``part``: before the pause (0) or after it (1)."""
        return self._tape.replay(inputs.sizes, inputs.place, inputs.form, part)


class _Corner:
    """A corner, and its forms as they were when they were first asked for: asking may make others."""

    def __init__(self, given: Inputs) -> None:
        self.given = given

    @cached_property
    def _forms(self) -> dict[str, Adjacency]:
        return self.given.forms()

    def natives(self) -> dict[str, _native.Adjacency]:
        """Structures by name."""
        return {name: form.native for name, form in self._forms.items()}

    def tensors(self) -> dict[str, Tensor]:
        """Inputs by name, the arrays of the graphs among them."""
        found = {**self.given.tensors}
        for name, form in self._forms.items():
            arrays = {"indptr": form.indptr, "indices": form.indices, "edge_ids": form.edge_ids}
            found |= {f"{name}.{array}": x for array, x in arrays.items() if x is not None}
        return found


def may_record(plan: Plan, nodes: range, edges: range) -> bool:
    """Whether the memory that a tape keeps is worth it."""
    return in_force() is None and _bytes_of(plan, nodes[-1], edges[-1]) <= _MOST_BYTES


def class_of(count: int) -> range:
    """The numbers of as many binary digits.

    Example:
        >>> class_of(5)
        range(4, 8)
    """
    return range(1 << (count.bit_length() - 1), 1 << count.bit_length()) if count else range(1)


def corners_of(like: Inputs, nodes: range, edges: range, hoist: Hoist) -> list[Inputs]:
    """Inputs of the corners of a class, of the kinds of ``like``, the largest first.

    ``hoist``: what is hoisted for a graph and rows.
    """
    sizes = [(n, e) for n in (nodes[-1], nodes[0]) for e in (edges[-1], edges[0])]
    return [_corner(like, *size, key, hoist) for size, key in zip(sizes, _KEYS, strict=True)]


def _corner(like: Inputs, nodes: int, edges: int, key: int, hoist: Hoist) -> Inputs:
    graph = _like(like.graph, nodes, edges)
    rows = {name: x.new_zeros((nodes, *x.shape[1:])) for name, x in like.rows.items()}
    hoisted = hoist(graph, rows["x"])
    if like.ptr is None:
        return Inputs(graph, rows, None, like.fixed, key, None, hoisted)
    count = like.ptr.numel() - 1
    return Inputs.of(graph, rows, torch.arange(count + 1) * nodes // count, like.fixed, key, hoisted)


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


def _like(graph: Graph, nodes: int, edges: int) -> Graph:
    """A graph of another size with the kinds of arrays that ``graph`` has, as even as can be."""
    form = graph.csc
    indptr = torch.arange(nodes + 1) * edges // nodes
    numbers = torch.arange(edges, dtype=form.indices.dtype)
    ids = None if form.edge_ids is None else numbers.clone()
    forms = Forms(Adjacency(indptr, numbers % nodes, ids, nodes), None)
    forms.symmetric, forms.loops = graph.is_symmetric, graph.has_self_loops
    return Graph._make(forms, nodes, nodes, True).as_drawn()


__all__ = ["GraphTape", "Inputs", "class_of", "corners_of", "may_record"]
