"""Node types and relations of a typed graph as the manifest of a store has them.

Comes in: what a JSON text holds, or the layout of a graph. Goes out: :class:`Types`, checked. Called by
:mod:`graphweft.storage.store_format`. A part's nodes keep the order of the source, so they lie type after type in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from graphweft._errors import DataError
from graphweft.graph.typed import Relation, TypedLayout


@dataclass(frozen=True)
class Types:
    """What a store says of the types of its graph.

    Attributes:
        node_types: Names.
        node_offsets: Type t has the rows ``node_offsets[t]`` to ``node_offsets[t + 1]`` of the source.
        relations: (source type, name, destination type).
        edge_offsets: Where the edges of each relation begin, and the number of all.
        target: The type that is labelled, or None.
    """

    node_types: tuple[str, ...]
    node_offsets: tuple[int, ...]
    relations: tuple[Relation, ...]
    edge_offsets: tuple[int, ...]
    target: str | None

    @classmethod
    def of(cls, layout: TypedLayout, target: str | None) -> Types:
        """Those of a graph."""
        return cls(layout.node_types, layout.node_offsets, layout.relations, layout.edge_offsets, target)

    @property
    def layout(self) -> TypedLayout:
        """As a graph has them."""
        return TypedLayout(self.node_types, self.node_offsets, self.relations, self.edge_offsets)


def types_of(held: Any, who: str) -> Types:
    """The types from what a JSON text holds. Raises: DataError."""
    names = ("node_types", "node_offsets", "relations", "edge_offsets", "target")
    if not isinstance(held, dict) or set(held) != set(names) or not all(isinstance(held[n], list) for n in names[:4]):
        raise DataError(f"{who}: expected types with {', '.join(names)}, got {held!r:.80}")
    texts = [*held["node_types"], *([] if held["target"] is None else [held["target"]])]
    for relation in held["relations"]:
        if not isinstance(relation, list) or len(relation) != 3:
            raise DataError(f"{who}: expected relations of three names, got {relation!r:.80}")
        texts += relation
    if not all(isinstance(text, str) for text in texts):
        raise DataError(f"{who}: expected names of types as texts, got {texts!r:.80}")
    relations = tuple((source, name, target) for source, name, target in held["relations"])
    offsets = (tuple(held["node_offsets"]), tuple(held["edge_offsets"]))
    return Types(tuple(held["node_types"]), offsets[0], relations, offsets[1], held["target"])


def check_types(types: Types | None, relations: int, widths: tuple[int, ...], nodes: int, edges: int, who: str) -> None:
    """Offsets ascend over all nodes and edges, and names are known. Raises: DataError."""
    if types is None:
        if relations or widths:
            raise DataError(f"{who}: expected types for {relations} relations, got none")
        return
    for name, offsets, count, total in (
        ("node_offsets", types.node_offsets, len(types.node_types), nodes),
        ("edge_offsets", types.edge_offsets, len(types.relations), edges),
    ):
        whole = all(isinstance(offset, int) and not isinstance(offset, bool) for offset in offsets)
        if not whole or list(offsets) != sorted(offsets) or len(offsets) != count + 1 or offsets[-1] != total:
            raise DataError(f"{who}: expected {name} of {count} types up to {total}, got {offsets!r:.80}")
    known = {*types.node_types}
    if len(known) != len(types.node_types) or not {t for s, _, d in types.relations for t in (s, d)} <= known:
        raise DataError(f"{who}: expected relations between node types, got {types.relations!r:.80}")
    if relations != len(types.relations) or (widths and len(widths) != len(types.node_types)):
        raise DataError(f"{who}: expected {len(types.relations)} relations and widths of all types, got others")


__all__ = ["Types", "check_types", "types_of"]
