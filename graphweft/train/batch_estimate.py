"""The memory of a mini-batch from sizes alone, before one is drawn.

Comes in: a model, fanouts, how many seeds, nodes and edges there are. Goes out: :class:`Estimate`. Called by the
accounts of runs from a store and by those that are made by sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import nn

from graphweft.nn.stack import Stack
from graphweft.nn.typed_stack import TypedStack
from graphweft.train.drawn_hops import Hop
from graphweft.train.part_inference import embeds, out_width

_REAL, _ID = 4, 8
_TYPED, _TYPED_HEADS = 5.5, 18  # times the rows of sources: what a step of a typed layer holds, without heads and with


class Estimate(NamedTuple):
    """Of a batch, from sizes: bytes of its step beside rows of features, how many these are, bytes of ids, edges."""

    step: int
    rows: int
    ids: int
    edges: int


def batch_estimate(
    model: nn.Module,
    width: int,
    fanouts: Sequence[int],
    seeds: int,
    nodes: int,
    edges: int,
    relations: int = 1,
    features: tuple[int, int] = (2, 1),
    hops: Sequence[Hop] | None = None,
) -> Estimate:
    """What a batch takes, by its hops, or where draws are uniform.

    Args:
        model: The model.
        width: Columns of features.
        fanouts: Of the layers, those of the seeds first.
        seeds: Of the batch.
        nodes: Of the graph.
        edges: Of the graph.
        relations: That lead into a node, each of which draws as many.
        features: Times that a step holds rows of features, of nodes that the first layer computes and of those that
            it reads; 0 where it reads them where they lie.
        hops: Those of a batch that was drawn; None: it was not.
    """
    layers = [out_width(layer) for layer in model.layers] if isinstance(model, Stack) else []
    widths = layers or [max((p.shape[-1] for p in model.parameters() if p.dim() > 1), default=1)] * len(fanouts)
    heads = max((int(getattr(module, "heads", 0)) for module in model.modules()), default=0)
    reached, drawn, total = float(seeds), 0.0, 0.0
    hops = _uniform(fanouts, seeds, nodes, edges, relations) if hops is None else hops
    typed = isinstance(model, TypedStack) and embeds(model)
    inputs = [widths[0] if typed else width, *widths[:-1]]
    times = [features, *[(2, 1)] * len(inputs[1:])]
    layers_of = zip(hops, reversed(widths), reversed(inputs), reversed(times), strict=False)
    for (hop, further), out, given, held in layers_of:
        rows = reached * (held[0] * given + 4 * out) + further * (held[1] * given + 2 * (out if heads else 0))
        if typed:  # which multiplies features first, and computes some of a layer for its sources
            rows = further * max(given, out) * (_TYPED_HEADS if heads else _TYPED)
        total += _REAL * rows + hop * (16 + 8 * heads)
        reached, drawn = further, drawn + hop
    ids = reached * 3 * _ID + drawn * 2 * _ID
    return Estimate(int(total + ids), int(reached), int(ids), int(drawn))


def _uniform(fanouts: Sequence[int], seeds: int, nodes: int, edges: int, relations: int) -> list[Hop]:
    """The hops of a batch whose draws meet any nodes alike."""
    mean, reached, found = edges / max(nodes, 1), float(seeds), list[Hop]()
    for fanout in fanouts:
        hop = min(reached * (mean if fanout < 0 else min(fanout * relations, 2 * mean)), float(edges))
        reached = nodes - (nodes - reached) * float(np.exp(-hop / max(nodes, 1)))
        found.append(Hop(hop, reached))
    return found


__all__ = ["Estimate", "batch_estimate"]
