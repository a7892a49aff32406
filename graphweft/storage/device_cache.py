"""Which rows of features and which lists of in-edges a device keeps, by what each byte of it saves.

Comes in: how often a batch reads each, their sizes, and the memory that is left. Goes out: a :class:`Share`. Called by
loaders that draw on a device. Everything here is a function of its arguments. Sources: DUCATI (Zhang et al., SIGMOD
2023), which splits a budget between both by benefit per byte; Quiver, for expected reads from fan-outs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from graphweft.graph.graph import Graph

SECTOR = 32  # bytes that a device reads of host memory at least


class Share(NamedTuple):
    """What is kept.

    Attributes:
        rows: int64 nodes whose features are kept, ascending.
        lists: int64 nodes whose in-edges are kept, ascending.
        nbytes: Memory of both.
        saved: Bytes that a batch needs not fetch from host memory.
    """

    rows: Tensor
    lists: Tensor
    nbytes: int
    saved: float


def expected_reads(graph: Graph, seeds: Tensor, batch_size: int, fanouts: Sequence[int]) -> Tensor:
    """float64 (num_nodes,): the chance that a batch reaches each node, if its neighbours reach it independently.

    A seed is in a batch with the chance ``batch_size / len(seeds)``; a node that is reached draws each of its in-edges
    with the chance min(1, fan-out / in-degree).

    Example:
        >>> graph = Graph([1, 2], [0, 0])
        >>> expected_reads(graph, torch.tensor([0]), 1, [1]).tolist()
        [1.0, 0.5, 0.5]
    """
    src, dst = graph.edges()
    degrees = graph.in_degrees().double().clamp(min=1)
    missed = torch.ones(graph.num_nodes, dtype=torch.float64)
    missed[seeds] = 1 - min(1.0, batch_size / max(seeds.numel(), 1))
    for fanout in fanouts:
        drawn = (1 - missed) * (torch.ones_like(degrees) if fanout < 0 else (fanout / degrees).clamp(max=1))
        never = (1 - drawn[dst]).clamp(min=1e-300).log()
        reached = torch.zeros_like(missed).index_add_(0, src, never).exp()
        missed = torch.minimum(missed, missed * reached)
    return 1 - missed


def choose(
    budget: int, reads: Tensor, row_bytes: int, degrees: Tensor | None, fanout: int = -1, index_bytes: int = 4
) -> Share:
    """The rows and lists that save most a byte, as many as fit.

    A row saves itself whenever it is read. A list saves a sector for each edge that is drawn from it, or its bytes
    where all are; it takes its edges and two offsets.

    Args:
        budget: Bytes.
        reads: (num_nodes,) chance that a batch reads a node.
        row_bytes: Of a row of features.
        degrees: (num_nodes,) in-degrees; None: no lists, as where the whole structure lies there.
        fanout: Most edges that a node draws; -1: all.
        index_bytes: Of a column.

    Example:
        >>> share = choose(80, torch.tensor([0.1, 0.9]), 48, torch.tensor([1, 1000]))
        >>> share.rows.tolist(), share.lists.tolist()
        ([1], [0])
    """
    reads, nodes = reads.double(), reads.numel()
    degrees = reads.new_empty(0, dtype=torch.int64) if degrees is None else degrees
    lists = degrees.long() * index_bytes + 16
    drawn = degrees if fanout < 0 else degrees.clamp(max=fanout)
    fetched = torch.minimum(drawn.double() * SECTOR, degrees.double() * index_bytes) + 16
    sizes = torch.cat([torch.full((nodes,), row_bytes), lists])
    saved = torch.cat([reads * row_bytes, reads[: fetched.numel()] * fetched])
    order = torch.argsort(saved / sizes.clamp(min=1), descending=True, stable=True)
    order = order[(saved[order] > 0) & (sizes[order] <= budget)]
    taken, left = list[Tensor](), budget
    while order.numel():
        fits = sizes[order].cumsum(0) <= left
        whole = int(fits.sum())  # sizes are positive: what fits comes first
        taken.append(order[:whole])
        left -= int(sizes[order[:whole]].sum())
        order = order[whole + 1 :]  # the next one is too large for what is left
        order = order[sizes[order] <= left]
    kept = torch.cat([order.new_empty(0), *taken]).sort()[0]
    rows, others = kept[kept < nodes], kept[kept >= nodes] - nodes
    return Share(rows, others, int(sizes[kept].sum()), float(saved[kept].sum()))


__all__ = ["SECTOR", "Share", "choose", "expected_reads"]
