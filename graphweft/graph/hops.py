"""Where the hops of a drawn batch end, known by the tensor of its edges.

Comes in: an ``edge_index`` that a sampler made. Goes out: :class:`Hops`, found again by the same tensor as long as it
lives and is not written to. Set by samplers, read where models are called.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

from torch import Tensor

from graphweft.graph.ids import summarize

_KNOWN: dict[int, tuple[weakref.ref[Tensor], int, Hops]] = {}


@dataclass(frozen=True)
class Hops:
    """Sizes of a batch whose nodes, and edges by destination, lie in the order of the hops.

    Attributes:
        seeds: Number of seeds, which are the first nodes.
        nodes: Nodes up to each hop: the seeds, with those of the first hop, and so on; the last number is all.
        edges: Edges into the seeds, into these and the nodes of the first hop, and so on; the last number is all.
            Layer by layer they shrink: edges into ``nodes[k]`` come from ``nodes[k + 1]``.
    """

    seeds: int
    nodes: tuple[int, ...]
    edges: tuple[int, ...]

    def hold(self, edge_index: Tensor) -> bool:
        """Whether edges lie as described, so that a layer may read the beginning alone."""
        src, dst = edge_index[0], edge_index[1]
        if not self.edges or not summarize(dst).ascending or len(self.nodes) != len(self.edges) + 1:
            return False
        for before, here, end in zip(self.nodes, self.nodes[1:], self.edges, strict=False):
            if end and (int(dst[end - 1]) >= before or summarize(src[:end]).high >= here):
                return False
            if end < dst.numel() and int(dst[end]) < before:
                return False
        return self.edges[-1] == dst.numel()


def mark(edge_index: Tensor, hops: Hops) -> None:
    """From now on :func:`hops_of` knows ``edge_index``, until it is written to."""
    key = id(edge_index)
    _KNOWN[key] = weakref.ref(edge_index, lambda _: _KNOWN.pop(key, None)), edge_index._version, hops


def hops_of(edge_index: Tensor) -> Hops | None:
    """The hops of a tensor that a sampler made.

    Example:
        >>> import torch
        >>> edge_index = torch.tensor([[1, 2, 3], [0, 0, 1]])
        >>> mark(edge_index, Hops(1, (1, 3, 4), (2, 3)))
        >>> hops_of(edge_index).nodes, hops_of(edge_index.clone())
        ((1, 3, 4), None)
    """
    known = _KNOWN.get(id(edge_index))
    if known is None or known[0]() is not edge_index or known[1] != edge_index._version:
        return None
    return known[2]
