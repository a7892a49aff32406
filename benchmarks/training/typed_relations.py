"""The edges of a typed data set under fewer or more relations, for the question what relations cost at fixed edges."""

from __future__ import annotations

import heapq

import torch

from graphweft.data.dataset import Dataset
from graphweft.graph.graph import Graph
from graphweft.graph.typed_pairs import typed_pairs

ENDS = ("dst", "src")
_HASH = 2_654_435_761  # Knuth's multiplicative hash: 2**32 over the golden ratio


def regrouped(ds: Dataset, relations: int, by: str) -> Graph:
    """The graph of ``ds``, of one node type, with so many relations: half of them, and their inverses.

    Fewer than the source's: its relations are dealt, largest first, to the group with the fewest edges. Relations and
    inverses stay apart, as a merged relation still has a direction. More: the relation with the most edges a part gets
    one more part, and an edge's part is a hash of its end ``by``. A finer ontology tells relations apart by the kind of
    one of their ends, so all edges of a node at that end stay together, and there the number of pairs of a
    relation and a node stays as it is.
    """
    (name,) = ds.graph.node_types
    src, dst = ds.graph.edges()
    kind = ds.graph.edge_type()
    sizes = torch.bincount(kind, minlength=len(ds.graph.relations))
    half = relations // 2
    kind = (
        _dealt(sizes, half)[kind] if half < sizes.numel() else _split(sizes, half, kind, {"src": src, "dst": dst}[by])
    )
    order = torch.argsort(kind, stable=True)
    cuts = torch.bincount(kind, minlength=half).tolist()
    parts = zip(src[order].split(cuts), dst[order].split(cuts), strict=True)
    edges = {(name, f"r{at}", name): ends for at, ends in enumerate(parts)}
    return Graph.hetero(edges, {name: ds.graph.num_nodes}).add_inverse_relations()


def num_pairs(src: torch.Tensor, dst: torch.Tensor, kind: torch.Tensor, nodes: int) -> int:
    """Products that one pass over the edges makes, which lie relation after relation."""
    cuts = torch.bincount(kind).tolist()
    parts = zip(src.split(cuts), dst.split(cuts), strict=True)
    pairs, _ = typed_pairs(Graph.hetero({("n", f"r{at}", "n"): ends for at, ends in enumerate(parts)}, {"n": nodes}))
    return pairs.num_pairs


def _dealt(sizes: torch.Tensor, groups: int) -> torch.Tensor:
    """The group of every relation."""
    group = torch.empty_like(sizes)
    loads = [(0, at) for at in range(groups)]
    for relation in torch.argsort(sizes, descending=True, stable=True).tolist():
        load, at = heapq.heappop(loads)
        group[relation] = at
        heapq.heappush(loads, (load + int(sizes[relation]), at))
    return group


def _split(sizes: torch.Tensor, total: int, kind: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    """The part of every edge; parts of a relation follow each other."""
    parts = torch.ones_like(sizes)
    for _ in range(total - sizes.numel()):
        parts[torch.argmax(sizes / parts)] += 1
    first = parts.cumsum(0) - parts
    return first[kind] + (((end.long() * _HASH) % 2**32 * parts[kind]) >> 32)
