"""The quality guard: how far sampled gradients are from exact ones, and what to change when they are too far.

Comes in: a few seeds drawn three ways. Goes out: a :class:`Quality`, and settings for the next epoch. Called by the
mini-batch trainer. :func:`adapt` is a pure function. Source: thesis, section 3.3, whose error terms are measured here:
what sampling leaves out, and what old hidden rows get wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from graphweft.loader.multistage import NestedBatch, Probe

MOST_FANOUT = 128


@dataclass(frozen=True)
class Quality:
    """What was measured in an epoch; errors are norms relative to the exact gradient's.

    Attributes:
        error: Of the gradient as it is sampled.
        sampling: Of sampling inside the macro-batch, or of all sampling where macro-batches have no halo.
        staleness: Of the halo's earlier hidden rows, all else exact; 0 without a halo.
        neighbor_loss: Share of the in-edges of computed nodes that are left out.
        age: Mean steps since the halo's rows were written.
    """

    error: float
    sampling: float
    staleness: float
    neighbor_loss: float
    age: float = 0.0


@dataclass(frozen=True)
class Setting:
    """What the guard may change.

    Attributes:
        fanouts: In-edges drawn a node, from the seeds outwards.
        parts: Parts of a macro-batch; 0: macro-batches are no parts.
        most_parts: All parts.
        refresh: Epochs between refreshes of all hidden rows; 0: only before the first epoch.
    """

    fanouts: tuple[int, ...]
    parts: int = 0
    most_parts: int = 0
    refresh: int = 0


def adapt(now: Setting, first: Setting, quality: Quality, bound: float) -> Setting:
    """The setting of the next epoch.

    Above the bound the larger of the two errors is worked on: sampling by half as much fan-out again, up to 128;
    staleness first by refreshing more often, every epoch at most, then by twice the parts. Below half of the bound the
    last of these steps is taken back, never past ``first``, the user's setting.

    Example:
        >>> start = Setting((10, 5))
        >>> adapt(start, start, Quality(0.4, 0.4, 0.0, 0.2), 0.1).fanouts
        (15, 8)
    """
    if not math.isfinite(quality.error) or quality.error > bound:
        if quality.staleness > quality.sampling and now.parts:
            if now.refresh != 1:
                return replace(now, refresh=4 if now.refresh == 0 else max(1, now.refresh // 2))
            return replace(now, parts=min(2 * now.parts, now.most_parts))
        return replace(now, fanouts=tuple(_wider(fanout) for fanout in now.fanouts))
    if quality.error < bound / 2:
        if now.parts > first.parts:
            return replace(now, parts=max(first.parts, now.parts // 2))
        if now.fanouts != first.fanouts:
            narrower = zip(now.fanouts, first.fanouts, strict=True)
            return replace(now, fanouts=tuple(max(start, -(-2 * fanout // 3)) for fanout, start in narrower))
    return now


def _wider(fanout: int) -> int:
    return fanout if fanout < 0 else max(fanout, min(MOST_FANOUT, -(-3 * fanout // 2)))


def assess(model: nn.Module, probe: Probe, loss: Callable[[NestedBatch], Tensor], age: float) -> Quality:
    """Measures one probe. ``loss`` is the mean loss of a batch's seeds, with a graph of operations behind it."""
    exact = _gradient(model, probe.exact, loss)
    inside = _gradient(model, probe.inside, loss)
    drawn = _gradient(model, probe.drawn, loss)
    scale = max(float(exact.norm()), torch.finfo(torch.float32).tiny)
    has_halo = probe.inside.halo is not None
    reference = inside if has_halo else exact
    return Quality(
        float((drawn - exact).norm()) / scale,
        float((drawn - reference).norm()) / scale,
        float((inside - exact).norm()) / scale if has_halo else 0.0,
        neighbor_loss(probe.drawn),
        age,
    )


def neighbor_loss(batch: NestedBatch) -> float:
    """Share of the in-edges of the nodes that a batch computes which it does not have; the halo computes nothing."""
    block = batch.blocks[0]
    nodes = batch.n_id[: block.num_dst]
    if batch.halo is not None:
        nodes = nodes[~batch.halo[: block.num_dst]]
    wanted = int(block.source.in_degrees()[nodes].sum())
    return 1 - block.num_edges / wanted if wanted else 0.0


def mean(measured: list[Quality]) -> Quality:
    """Of several probes."""
    names = ("error", "sampling", "staleness", "neighbor_loss", "age")
    return Quality(*(sum(getattr(one, name) for one in measured) / len(measured) for name in names))


def _gradient(model: nn.Module, batch: NestedBatch, loss: Callable[[NestedBatch], Tensor]) -> Tensor:
    """Gradient of all parameters, float64, one vector; those that trained so far stay."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    kept = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        loss(batch).backward()  # type: ignore[no-untyped-call]
        found = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        return torch.cat([gradient.reshape(-1).double() for gradient in found])
    finally:
        for parameter, gradient in zip(parameters, kept, strict=True):
            parameter.grad = gradient
