"""Typed graphs laid out flat: nodes type after type, edges relation after relation.

Comes in: edges per relation with ids local to each type, and node counts per type. Goes out: one list of edges over all
nodes, and a :class:`TypedLayout` that says which stretch belongs to which type. Called by ``Graph.hetero``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

import torch

from graphweft._errors import GraphError, ShapeError
from graphweft._memory import empty
from graphweft._torch_private import plainly
from graphweft.graph.ids import as_count, as_ids, index_dtype, require_ids, summarize

Relation: TypeAlias = tuple[str, str, str]
_WHO = "Graph.hetero"


@dataclass(frozen=True)
class TypedLayout:
    """Which nodes and edges belong to which type.

    Attributes:
        node_types: Names, in the order of their stretches of nodes.
        node_offsets: Type t has the nodes ``node_offsets[t] .. node_offsets[t + 1]``.
        relations: (source type, name, destination type), in the order of their stretches of edges.
        edge_offsets: Relation r has the edge ids ``edge_offsets[r] .. edge_offsets[r + 1]``.
    """

    node_types: tuple[str, ...]
    node_offsets: tuple[int, ...]
    relations: tuple[Relation, ...]
    edge_offsets: tuple[int, ...]

    def node_range(self, node_type: str) -> range:
        """Nodes of a type.

        Raises: GraphError for an unknown type.
        """
        if node_type not in self.node_types:
            raise GraphError(f"Graph: expected one of the node types {', '.join(self.node_types)}, got {node_type!r}")
        at = self.node_types.index(node_type)
        return range(self.node_offsets[at], self.node_offsets[at + 1])

    def edge_range(self, relation: Relation) -> range:
        """Edge ids of a relation.

        Raises: GraphError for an unknown relation.
        """
        if relation not in self.relations:
            names = ", ".join("-".join(known) for known in self.relations)
            raise GraphError(f"Graph: expected one of the relations {names}, got {relation!r}")
        at = self.relations.index(relation)
        return range(self.edge_offsets[at], self.edge_offsets[at + 1])

    def unfed(self, nodes: torch.Tensor) -> list[str]:
        """Types of some nodes into which no edge leads.

        Example:
            >>> layout = TypedLayout(("author", "paper"), (0, 2, 5), (("paper", "by", "author"),), (0, 4))
            >>> layout.unfed(torch.tensor([1, 3])), layout.unfed(torch.tensor([0]))
            (['paper'], [])
        """
        fed = {relation[2] for relation in self.relations if len(self.edge_range(relation))}
        spans = {name: self.node_range(name) for name in self.node_types if name not in fed}
        return [name for name, own in spans.items() if bool(((nodes >= own.start) & (nodes < own.stop)).any())]

    def reversed(self) -> TypedLayout:
        """Sources and destinations exchanged in every relation; names stay."""
        turned = tuple((dst, name, src) for src, name, dst in self.relations)
        return TypedLayout(self.node_types, self.node_offsets, turned, self.edge_offsets)

    def filtered(self, member: torch.Tensor) -> TypedLayout:
        """The layout when only edges with ``member`` not 0 stay."""
        bounds = zip(self.edge_offsets[:-1], self.edge_offsets[1:], strict=True)
        counts = [int(member[begin:end].count_nonzero()) for begin, end in bounds]
        return TypedLayout(self.node_types, self.node_offsets, self.relations, (0, *accumulate(counts)))


def invert(src: torch.Tensor, dst: torch.Tensor, layout: TypedLayout) -> dict[Relation, tuple[Any, Any]]:
    """Every relation with ids local to its types, and its inverse, named ``inverse <name>``, after all of them."""
    forth: dict[Relation, tuple[Any, Any]] = {}
    back: dict[Relation, tuple[Any, Any]] = {}
    for relation in layout.relations:
        ids, a, b = layout.edge_range(relation), layout.node_range(relation[0]), layout.node_range(relation[2])
        ends = src[ids.start : ids.stop] - a.start, dst[ids.start : ids.stop] - b.start
        forth[relation] = ends
        back[(relation[2], f"inverse {relation[1]}", relation[0])] = ends[::-1]
    if taken := forth.keys() & back.keys():
        raise GraphError(f"Graph.add_inverse_relations: expected no inverse yet, got {'-'.join(min(taken))}")
    return forth | back


@plainly
def stretches(offsets: tuple[int, ...], kind: torch.dtype = torch.int64) -> torch.Tensor:
    """The number of the stretch that every position lies in."""
    sizes = torch.tensor(offsets[1:]) - torch.tensor(offsets[:-1])
    out = empty((offsets[-1],), kind)
    for at, size in enumerate(sizes.tolist()):
        out[offsets[at] : offsets[at] + size] = at
    return out


def _relation(key: Any) -> Relation:
    if not (isinstance(key, tuple) and len(key) == 3 and all(isinstance(part, str) for part in key)):
        raise GraphError(f"{_WHO}: expected relations (source type, name, destination type), got {key!r}")
    return key


def _ends(relation: Relation, value: Any) -> tuple[torch.Tensor, torch.Tensor]:
    who = f"{_WHO}: {'-'.join(relation)}"
    try:
        src, dst = value
    except (TypeError, ValueError):
        raise ShapeError(f"{who}: expected a pair (src, dst), got {type(value).__name__}") from None
    src, dst = as_ids(who, "src", src), as_ids(who, "dst", dst)
    if src.shape != dst.shape:
        raise ShapeError(f"{who}: expected src and dst of one length, got {src.numel()} and {dst.numel()}")
    return src, dst


def _count_types(
    edges: dict[Relation, tuple[torch.Tensor, torch.Tensor]], num_nodes: Mapping[str, Any] | None
) -> dict[str, int]:
    """Nodes per type: as declared, else one more than the largest id."""
    if num_nodes is not None:
        if not isinstance(num_nodes, Mapping):
            raise GraphError(f"{_WHO}: expected num_nodes as a dict by node type, got {type(num_nodes).__name__}")
        counts = {name: as_count(_WHO, f"num_nodes[{name!r}]", count) for name, count in num_nodes.items()}
        missing = {t for src, _, dst in edges for t in (src, dst)} - set(counts)
        if missing:
            raise GraphError(
                f"{_WHO}: expected num_nodes for every node type, got none for {', '.join(sorted(missing))}"
            )
        return counts
    counts = {}
    for (src_type, _, dst_type), ends in edges.items():
        for node_type, ids in zip((src_type, dst_type), ends, strict=True):
            counts[node_type] = max(counts.get(node_type, 0), summarize(ids).high + 1)
    return counts


@plainly
def flatten(
    edges: Mapping[Relation, Any], num_nodes: Mapping[str, Any] | None
) -> tuple[torch.Tensor, torch.Tensor, TypedLayout]:
    """All edges over all nodes, as (src, dst) in edge order, int32 where nodes fit, else int64; and the layout.

    Raises: GraphError, ShapeError, DtypeError, IndexRangeError naming the relation.
    """
    if not isinstance(edges, Mapping):
        raise GraphError(f"{_WHO}: expected a dict from relation to (src, dst), got {type(edges).__name__}")
    parts = {_relation(key): _ends(_relation(key), value) for key, value in edges.items()}
    counts = _count_types(parts, num_nodes)
    offsets = (0, *accumulate(counts.values()))
    as_count(_WHO, "the number of all nodes", offsets[-1])
    start = dict(zip(counts, offsets, strict=False))
    edge_offsets = (0, *accumulate(src.numel() for src, _ in parts.values()))
    dtype = index_dtype(offsets[-1], offsets[-1], edge_offsets[-1], with_edge_ids=False)
    src_all, dst_all = empty((edge_offsets[-1],), dtype), empty((edge_offsets[-1],), dtype)
    for begin, (relation, (src, dst)) in zip(edge_offsets[:-1], parts.items(), strict=True):
        who = f"{_WHO}: {'-'.join(relation)}"
        require_ids(who, "src", src, counts[relation[0]])
        require_ids(who, "dst", dst, counts[relation[2]])
        for ids, first, everyone in ((src, start[relation[0]], src_all), (dst, start[relation[2]], dst_all)):
            everyone[begin : begin + ids.numel()].copy_(ids).add_(first)
    return src_all, dst_all, TypedLayout(tuple(counts), offsets, tuple(parts), edge_offsets)
