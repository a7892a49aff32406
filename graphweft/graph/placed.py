"""Graphs whose structure lies on a device.

Comes in: a graph in host memory and a device. Goes out: a :class:`PlacedGraph`, which answers as the graph does, with
arrays on the device, sent once and kept with the graph. What changes structure, or measures it, is done on the host's
copy. Made by ``Graph.to`` and by the runtime, which sends the graph after the tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from graphweft._checks import check_device
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.block import FarEdges
from graphweft.graph.derived import while_used
from graphweft.graph.edges_by_ends import PLACES
from graphweft.graph.far_adjacency import FarAdjacency
from graphweft.graph.fields import Fields
from graphweft.graph.graph import Graph

# what the host's graph answers; ids, graphs and tensors go there and come back
_METHODS = (
    "in_degrees", "out_degrees", "nodes", "srcs", "dsts", "edges", "reverse", "without_self_loops", "with_one_loop",
    "edge_subgraph", "add_self_loops", "to_bidirected", "to_simple", "take_dst", "edges_into", "take_dst_with_loops",
    "take_src", "in_edge_ids", "out_edge_ids", "node_type", "edge_type", "relation_graph", "add_inverse_relations",
    "has_edges", "edge_ids", "__getitem__", "__add__", "__sub__",
)  # fmt: skip
_VALUES = ("loopless", "stats", "is_symmetric", "has_self_loops")
_KEPT = ("in_degrees", "out_degrees", "edges", "node_type", "edge_type")  # without arguments, made once
_FORMS = ("csc", "csr", "csc_structure", "csr_structure")


class PlacedGraph(Graph):
    """A graph with its arrays on a device.

    Attributes:
        host: The same in host memory.
        place: The device.
    """

    __slots__ = ("_answers", "host", "place")
    host: Graph
    place: torch.device
    _answers: dict[str, Any]

    @classmethod
    def over(cls, host: Graph, place: torch.device) -> PlacedGraph:
        """The structure of ``host`` on ``place``, without named tensors."""
        made = cls.__new__(cls)
        made._adopt(host._forms, host.num_src, host.num_dst, host.is_square, host._layout)
        made._side, made._is_drawn = host._side, host._is_drawn
        made.host, made.place = host, place
        made._answers = {}
        return made

    @property
    def device(self) -> torch.device:
        """Where its arrays lie."""
        return self.place

    @property
    def src_ids(self) -> torch.Tensor:
        """Of a block: ids of the sources in the whole graph, int64 (num_src,)."""
        drawn = getattr(self.host, "drawn", None)
        if isinstance(drawn, FarEdges) and drawn.nodes.far.device == self.place:
            return drawn.nodes.far[: self.num_src]
        found: torch.Tensor = self.host.src_ids.to(self.place)  # type: ignore[attr-defined]
        return found

    @property
    def any_form(self) -> tuple[Adjacency, bool]:
        """As of the host's graph."""
        form, by_dst = self.host.any_form
        return form.to(self.place), by_dst

    def __getstate__(self) -> dict[str, Any]:
        return {"host": self.host, "place": self.place, "fields": self._fields}

    def __setstate__(self, state: dict[str, Any]) -> None:
        twin = PlacedGraph.over(state["host"], state["place"])
        self._adopt(twin._forms, twin._num_src, twin._num_dst, twin._is_square, twin._layout)
        self._side, self._is_drawn, self._fields = twin._side, twin._is_drawn, state["fields"]
        self.host, self.place, self._answers = twin.host, twin.place, {}

    def __deepcopy__(self, memo: dict[int, Any]) -> PlacedGraph:
        copy = PlacedGraph.over(self.host, self.place)
        for name, fields in self._fields.items():
            _copy(fields, copy._all_fields()[name], Tensor.clone)
        memo[id(self)] = copy
        return copy


def on_device(graph: Graph, device: torch.device) -> Graph:
    """The structure on ``device``, sent at the first call and kept with the graph; itself where it is there."""
    if graph.device == device:
        return graph
    host = host_of(graph)
    if host.device == device:
        return host
    if host._placed is None:
        host._placed = {}
    if device not in host._placed:
        host._placed[device] = PlacedGraph.over(host, device)
    return host._placed[device]


def send_forms(graphs: Sequence[Graph], send: Callable[..., tuple[Tensor, ...]]) -> None:
    """Sends the forms that ``graphs`` have made so far by one call of ``send``; :func:`on_device` finds them there.

    ``send`` takes arrays and returns them as they are on a device.
    """
    forms = {id(form): form for graph in graphs for form in host_of(graph)._forms.made()}
    arrays = {key: (form.indptr, form.indices, form.edge_ids) for key, form in forms.items()}
    there = iter(send(*(array for three in arrays.values() for array in three if array is not None)))
    for key, form in forms.items():
        offsets, columns, ids = (None if array is None else next(there) for array in arrays[key])
        assert offsets is not None and columns is not None  # ids alone may be missing
        form.keep_twin(Adjacency(offsets, columns, ids, form.num_cols))


def host_of(graph: Graph) -> Graph:
    """The same graph in host memory."""
    return graph.host if isinstance(graph, PlacedGraph) else graph


def looped(graph: Graph) -> Graph:
    """The graph with exactly one loop at every node, kept as long as somebody uses it; one copy in host memory."""
    if isinstance(graph, PlacedGraph):
        return on_device(while_used(graph.host, _with_one_loop), graph.place)
    return while_used(graph, _with_one_loop)


def _with_one_loop(graph: Graph) -> Graph:
    return graph.with_one_loop()


def moved(graph: Graph, device: Any) -> Graph:
    """The graph with its named tensors on ``device``. Raises: ConfigError for a device that is not there."""
    found = _numbered(check_device("Graph.to", device))
    if graph.device == found:
        return graph
    bare = on_device(graph, found)
    if not any(map(len, graph._fields.values())):
        return bare
    made = PlacedGraph.over(bare.host, found) if isinstance(bare, PlacedGraph) else _twin(bare)
    for name, fields in graph._fields.items():
        _copy(fields, made._all_fields()[name], lambda tensor: tensor.to(found))
    return made


def _twin(graph: Graph) -> Graph:
    """The same structure without named tensors."""
    made = Graph._make(graph._forms, graph.num_src, graph.num_dst, graph.is_square, graph._layout)
    made._side, made._is_drawn = graph._side, graph._is_drawn
    return made


def _numbered(device: torch.device) -> torch.device:
    """``cuda`` is the current one of them."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _copy(given: Mapping[str, Tensor], to: Fields, make: Callable[[Tensor], Tensor]) -> None:
    for key, tensor in given.items():
        to[key] = make(tensor)


def _sent(item: Any, place: torch.device) -> Any:
    """What the host answered, on the device."""
    if isinstance(item, Graph):
        return on_device(item, place)
    if isinstance(item, Tensor):
        return item.to(place)
    return tuple(_sent(part, place) for part in item) if type(item) is tuple else item


def _fetched(item: Any) -> Any:
    """An argument as the host takes it."""
    if isinstance(item, PlacedGraph):
        return item.host
    if isinstance(item, Tensor):
        return item.to("cpu")
    return tuple(map(_fetched, item)) if type(item) is tuple else item


def _method(name: str) -> Callable[..., Any]:
    def ask(self: PlacedGraph, *args: Any, **kwargs: Any) -> Any:
        if name in self._answers:
            return self._answers[name]
        given = {key: _fetched(item) for key, item in kwargs.items()}
        found = _sent(getattr(self.host, name)(*map(_fetched, args), **given), self.place)
        if name in _KEPT:
            self._answers[name] = found
        return found

    ask.__name__, ask.__doc__ = name, getattr(Graph, name).__doc__
    return ask


def _in_degrees(self: PlacedGraph) -> Tensor:
    """As of the graph; counted there where its edges were drawn there."""
    form = self.host._forms.by[self.host._side]
    if isinstance(form, FarAdjacency) and "in_degrees" not in self._answers:
        self._answers["in_degrees"] = form.to(self.place).degrees()
    return _asked(self)


def _value(name: str) -> property:
    return property(lambda self: _sent(getattr(self.host, name), self.place), doc=getattr(Graph, name).__doc__)


def _form(name: str) -> property:
    return property(lambda self: getattr(self.host, name).to(self.place), doc=getattr(Graph, name).__doc__)


for _name in _METHODS:
    setattr(PlacedGraph, _name, _method(_name))
_asked = PlacedGraph.in_degrees
setattr(PlacedGraph, "in_degrees", _in_degrees)  # noqa: B010
for _name in _VALUES:
    setattr(PlacedGraph, _name, _value(_name))
for _name in _FORMS:
    setattr(PlacedGraph, _name, _form(_name))
PLACES.append(moved)


__all__ = ["PlacedGraph", "host_of", "looped", "moved", "on_device", "send_forms"]
