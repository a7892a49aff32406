"""The reference executor: user functions run as they stand. It is the meaning of a message-passing call.

Comes in: a :class:`Call`. Goes out: node tensors by name, in torch's graph. ``message`` runs once on all edges;
``reduce`` runs once per distinct in-degree on the nodes of that degree, mailboxes listing messages by ascending edge
id; nodes without in-edges get zeros; ``update`` runs once on all nodes. Used at ``opt_level=0``, for the functions that
cannot be compiled, and as the oracle of those that can. Source of degree buckets: DGL (Wang et al., 2019).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphweft._errors import GraphWeftError, ShapeError, UserCodeError
from graphweft.frontend.call import Call, Fields, Function, absent
from graphweft.frontend.captured import capture
from graphweft.frontend.failures import telling
from graphweft.frontend.shield import Dropped, Shield
from graphweft.frontend.side_effects import Surroundings
from graphweft.frontend.source import return_line
from graphweft.frontend.views import Edges, FieldView, Nodes
from graphweft.graph.derived import derived
from graphweft.graph.graph import Graph

_FAKE_NODES, _FAKE_MESSAGES = 2, 3  # sizes of a trial run: neither is 1, the ambiguous one


@dataclass(frozen=True)
class Bucket:
    """Nodes of one in-degree: their ids (n,) and the ids of their in-edges (n, degree), ascending."""

    nodes: Tensor
    edges: Tensor


@dataclass(frozen=True)
class Structure:
    """What the executor needs of a graph: ends of edges by edge id, types, buckets by ascending degree."""

    src: Tensor
    dst: Tensor
    node_type: Tensor | None
    edge_type: Tensor | None
    buckets: tuple[Bucket, ...]


def structure_of(graph: Graph) -> Structure:
    """The structure of ``graph``."""
    csc = graph.csc
    degrees = csc.degrees()
    there = csc.indptr.device
    ids = torch.arange(csc.num_edges, device=there) if csc.edge_ids is None else csc.edge_ids.long()
    buckets = []
    for degree in torch.bincount(degrees).nonzero().flatten().tolist():
        if degree > 0:
            nodes = (degrees == degree).nonzero().squeeze(1)
            buckets.append(Bucket(nodes, ids[csc.indptr[nodes][:, None] + torch.arange(degree, device=there)]))
    node_type, edge_type = (graph.node_type(), graph.edge_type()) if graph.is_square else (None, None)
    return Structure(*graph.edges(), node_type, edge_type, tuple(buckets))


def run_reference(call: Call, structure: Structure | None = None) -> Fields:
    """Runs ``call`` as written; ``structure`` stands in for that of the graph.

    Raises: FieldError, ShapeError, DtypeError, UserCodeError naming field, sizes and the user's line.
    """
    run = _Run(call, structure)
    fields = {} if call.message is absent else run.message()
    if call.reduce is not absent:
        fields = run.reduce(fields)
    return fields if call.update is None else run.update(fields)


def run_message(call: Call) -> Fields:
    """Runs only ``message``: edge tensors by name."""
    return _Run(call).message()


def run_update(call: Call, reduced: Fields) -> Fields:
    """Runs only ``update`` after a reduction that gave ``reduced``."""
    return _Run(call).update(reduced)


class _Run:
    """One execution."""

    def __init__(self, call: Call, structure: Structure | None = None) -> None:
        self.call, self.graph, self.structure = call, call.graph, structure or derived(call.graph, structure_of)
        captured = capture((call.message, call.reduce, call.update, call.params))
        self._state, self._visited = captured.buffers, captured.visited

    # message

    def message(self) -> Fields:
        call, edges = self.call, self.graph.num_edges
        run = functools.partial(self._user, "message", call.message, (edges,))
        try:
            sent = run(self._edges, call.params, lambda: self._edges(None, trial=True))
        except (GraphWeftError, RuntimeError, IndexError):
            if edges:
                raise
            # nothing was sent: only the shape of a message matters, and a reduction over no edge has none
            sent = self._alone("message", call.message, functools.partial(self._edges, trial=True), call.params)
            sent = {name: _as_tensor("message", call.message, name, value)[:0] for name, value in sent.items()}
        return _checked("message", call.message, sent, edges, "edge")

    def _edges(self, shield: Shield | None, trial: bool = False) -> Edges:
        call, at = self.call, self.structure
        src_type = dst_type = None
        if at.node_type is not None:
            src_type, dst_type = at.node_type[at.src], at.node_type[at.dst]
        view = functools.partial(self._view, shield, "message", trial=_FAKE_NODES if trial else None)
        return Edges(
            src=view("edges.src", call.src, at.src, "source fields", of="src"),
            dst=view("edges.dst", call.dst, at.dst, "destination fields", of="dst"),
            data=view("edges.data", call.edata, None, "edge fields", of="edge"),
            srctype=view("edges.srctype", call.ntype, src_type, "node type tables"),
            dsttype=view("edges.dsttype", call.ntype, dst_type, "node type tables"),
            type=view("edges.type", call.etype, at.edge_type, "edge type tables"),
            count=_FAKE_NODES if trial else self.graph.num_edges,
        )

    # reduce

    def reduce(self, mailbox: Fields) -> Fields:
        call, parts = self.call, []
        for bucket in self.structure.buckets:
            parts.append((bucket.nodes, self._reduce_bucket(mailbox, bucket)))
        if not parts:
            make = functools.partial(self._nodes, mailbox, None, trial=True)
            result = self._alone("reduce", call.reduce, make, ())
            result = {name: _as_tensor("reduce", call.reduce, name, value) for name, value in result.items()}
            return {name: self._zeros(mailbox, t) for name, t in result.items()}
        self._check_buckets([result for _, result in parts])
        nodes = torch.cat([nodes for nodes, _ in parts])
        out = {}
        for name, first in parts[0][1].items():
            rows = torch.cat([result[name] for _, result in parts])
            out[name] = first.new_zeros((self.graph.num_dst, *first.shape[1:])).index_copy(0, nodes, rows)
        return out

    def _zeros(self, mailbox: Fields, like: Tensor) -> Tensor:
        """Zero rows for all nodes, which depend on the messages that nobody sent."""
        zeros = like.new_zeros((self.graph.num_dst, *like.shape[1:]))
        if zeros.is_floating_point() or zeros.is_complex():
            for tensor in mailbox.values():
                if tensor.requires_grad:
                    zeros = zeros + tensor.sum().to(zeros.dtype)
        return zeros

    def _reduce_bucket(self, mailbox: Fields, bucket: Bucket) -> Fields:
        count, degree = bucket.edges.shape
        make = functools.partial(self._nodes, mailbox, bucket)
        trial = functools.partial(self._nodes, mailbox, None, None, trial=True)
        result = self._user("reduce", self.call.reduce, (count, degree), lambda shield: make(shield), (), trial)
        return _checked("reduce", self.call.reduce, result, count, f"node of in-degree {degree}")

    def _nodes(self, mailbox: Fields, bucket: Bucket | None, shield: Shield | None, trial: bool = False) -> Nodes:
        nodes = None if bucket is None else bucket.nodes
        types = None if self.structure.node_type is None or nodes is None else self.structure.node_type[nodes]
        view = functools.partial(self._view, shield, "reduce", trial=_FAKE_NODES if trial else None)
        received: dict[str, Callable[[], Tensor]] = {}
        for name, tensor in mailbox.items():
            if bucket is None:
                shape = (_FAKE_NODES, _FAKE_MESSAGES, *tensor.shape[1:])
                received[name] = functools.partial(tensor.new_zeros, shape)
            else:
                received[name] = functools.partial(_load, shield, tensor, bucket.edges, f"nodes.mailbox[{name!r}]")
        return Nodes(
            data=view("nodes.data", self.call.dst, nodes, "node fields", of="dst"),
            mailbox=FieldView("reduce", "nodes.mailbox", received, "mailbox fields that message sent"),
            type=view("nodes.type", self.call.ntype, types, "node type tables"),
            count=_FAKE_NODES if bucket is None else bucket.nodes.numel(),
        )

    def _check_buckets(self, results: list[Fields]) -> None:
        """Every bucket returned the same fields of the same kind."""
        first = {name: (t.dtype, tuple(t.shape[1:])) for name, t in results[0].items()}
        for bucket, result in zip(self.structure.buckets, results, strict=True):
            kinds = {name: (t.dtype, tuple(t.shape[1:])) for name, t in result.items()}
            for name in {**first, **kinds}:
                if kinds.get(name) != first.get(name):
                    raise ShapeError(
                        f"reduce: expected field {name!r} alike for all nodes, got {_kind(first.get(name))} for "
                        f"in-degree {self.structure.buckets[0].edges.shape[1]} and {_kind(kinds.get(name))} for "
                        f"in-degree {bucket.edges.shape[1]} ({return_line(self.call.reduce, name)})"
                    )

    # update

    def update(self, reduced: Fields) -> Fields:
        update = self.call.update
        assert update is not None
        data = {**self.call.dst, **reduced}
        nodes = self.graph.num_dst

        def make(shield: Shield | None, trial: bool = False) -> Nodes:
            view = functools.partial(self._view, shield, "update", trial=_FAKE_NODES if trial else None)
            return Nodes(
                data=view("nodes.data", data, None, "node fields", of="dst"),
                mailbox=FieldView("update", "nodes.mailbox", {}, "mailbox fields (update has none)"),
                type=view("nodes.type", self.call.ntype, self.structure.node_type, "node type tables"),
                count=_FAKE_NODES if trial else nodes,
            )

        result = self._user("update", update, (nodes,), make, (), lambda: make(None, trial=True))
        return _checked("update", update, result, nodes, "node")

    # any stage

    def _view(
        self,
        shield: Shield | None,
        stage: str,
        name: str,
        fields: Mapping[str, Tensor],
        rows: Tensor | None,
        what: str,
        trial: int | None,
        of: str = "",
    ) -> FieldView:
        """Rows of every field, each gathered or copied when it is first read; zeros in a trial run."""
        load: dict[str, Callable[[], Tensor]] = {}
        for field, tensor in fields.items():
            if trial is not None:
                load[field] = functools.partial(tensor.new_zeros, (trial, *tensor.shape[1:]))
            else:
                load[field] = functools.partial(_load, shield, tensor, rows, f"{name}[{field!r}]")
        return FieldView(stage, name, load, what, functools.partial(self.call.remedy, of) if of else None)

    def _user(
        self,
        stage: str,
        function: Function,
        guarded: tuple[int, ...],
        make: Callable[[Shield | None], Any],
        params: Iterable[Any],
        trial: Callable[[], Any],
    ) -> Any:
        """The result of a user function under a shield."""

        @functools.cache
        def squeezes() -> list[Dropped]:
            """What bare squeezes drop where no size is 1 by chance; nothing where that cannot be found out."""
            probe, before = Shield(stage, set(), (), list), Surroundings(self._visited)
            try:
                with torch.random.fork_rng(devices=[]), torch.no_grad(), probe:
                    function(trial(), *params)
            except Exception:  # whatever user code raises on other sizes
                return []
            finally:
                before.restore()
            return probe.dropped

        shield = Shield(stage, self._state, guarded, squeezes)
        with telling(stage, function, shield):
            result = function(make(shield), *params)
        if isinstance(result, Mapping):
            return {name: shield.resolve(value) for name, value in result.items()}
        return result

    def _alone(self, stage: str, function: Function, make: Callable[[Shield | None], Any], params: Any) -> Any:
        """The result of a run on made-up rows, for its shapes."""
        with torch.random.fork_rng(devices=[]), telling(stage, function, Shield(stage, set(), (), list)):
            result = function(make(None), *params)
        if not isinstance(result, Mapping):
            raise _no_dict(stage, function, result)
        return result


def _load(shield: Shield | None, tensor: Tensor, rows: Tensor | None, name: str) -> Tensor:
    """A tensor of this run's own: gathered rows, or a copy."""
    with contextlib.nullcontext() if shield is None else shield.recording():
        made = tensor.clone() if rows is None else tensor[rows.to(tensor.device)]
    return made if shield is None else shield.own(made, name)


def _kind(kind: tuple[torch.dtype, tuple[int, ...]] | None) -> str:
    return "nothing" if kind is None else f"rows of {kind[1]} {str(kind[0]).removeprefix('torch.')}"


def _no_dict(stage: str, function: Function, got: Any) -> UserCodeError:
    return UserCodeError(
        f"{stage}: expected a dict from field name to tensor, got {type(got).__name__} ({return_line(function)})"
    )


def _as_tensor(stage: str, function: Function, name: str, value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        raise UserCodeError(
            f"{stage}: expected field {name!r} to be a tensor, got {type(value).__name__} "
            f"({return_line(function, name)})"
        )
    return value


def _checked(stage: str, function: Function, result: Any, rows: int, what: str) -> Fields:
    """The result as a dict of tensors with ``rows`` rows."""
    if not isinstance(result, Mapping):
        raise _no_dict(stage, function, result)
    for name in result:
        if not isinstance(name, str):
            raise UserCodeError(
                f"{stage}: expected field names as strings, got {name!r} of type {type(name).__name__} "
                f"({return_line(function)})"
            )
    for name, value in result.items():
        tensor = _as_tensor(stage, function, name, value)
        if tensor.dim() == 0 or tensor.shape[0] != rows:
            got = "a scalar" if tensor.dim() == 0 else f"{tensor.shape[0]} rows"
            raise ShapeError(
                f"{stage}: expected field {name!r} with {rows} rows, one per {what}, got {got} "
                f"({return_line(function, name)})"
            )
    return dict(result)
