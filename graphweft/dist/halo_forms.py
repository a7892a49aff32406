"""The forms in which rows of ghosts travel: exact, shorter, one step old, or some of them.

Comes in: rows for every rank, and what is left of the last exchange. Goes out: an exchange that is under way. Called by
:mod:`graphweft.dist.halo`. Sources: error feedback (Seide et al., Interspeech 2014), rows one step old (PipeGCN, ICLR
2022), random rows scaled up (BNS-GCN, MLSys 2022).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from graphweft._memory import empty
from graphweft.dist.ranks import Ranks

Direction = Literal["there", "home"]


class Leftovers:
    """What an exchange of a layer leaves for the next one: of rows on their way there, and of gradients home.

    Attributes:
        errors: By way and other rank, what rounding to 8 bit left over.
        before: By way, the rows that were received last, where rows are one step old.
        step: Exchanges there so far.

    Args:
        layer: Number of the layer.
        begun: Ends of exchanges that nobody waited for yet, in their order; shared by all layers.
    """

    def __init__(self, layer: int = 0, begun: list[Callable[[], None]] | None = None) -> None:
        self.errors: dict[Direction, dict[int, Tensor]] = {"there": {}, "home": {}}
        self.before: dict[Direction, list[Tensor]] = {}
        self.layer, self.step = layer, 0
        self.begun: list[Callable[[], None]] = [] if begun is None else begun


def exchanged(
    ranks: Ranks,
    sent: Sequence[Tensor],
    received: Sequence[Tensor],
    left: Leftovers | None,
    way: Direction,
    kept: bool = True,
) -> Callable[[], None]:
    """Begins to send rows in the form that the ranks agreed on; the result waits for ``received``.

    ``kept``: as for :meth:`Ranks.begin_exchange`; without it the memory of exact rows is free once that wait is over.
    """
    if left is not None and way == "there":
        left.step += 1
    if ranks.halo == "stale" and left is not None:
        return _one_step_old(ranks, sent, received, left, way)
    if ranks.halo == "sampled" and left is not None:
        return _sampled(ranks, sent, received, left, way)
    if ranks.halo not in ("bf16", "int8") or any(rows.dtype != torch.float32 for rows in (*sent, *received)):
        return ranks.begin_exchange(sent, received, kept)
    if ranks.halo == "bf16":
        short = [rows.bfloat16().view(torch.int16) for rows in sent]
        arriving = [torch.empty(rows.shape, dtype=torch.int16) for rows in received]
    else:
        errors = None if left is None else left.errors[way]
        short = [_short(rows, rank, errors) for rank, rows in enumerate(sent)]
        arriving = [torch.empty(rows.shape[0], rows.shape[1] + _ENDS, dtype=torch.uint8) for rows in received]
    finish = ranks.begin_exchange(short, arriving, kept=True)

    def widen() -> None:
        finish()
        for rows, given in zip(received, arriving, strict=True):
            rows.copy_(given.view(torch.bfloat16) if ranks.halo == "bf16" else _long(given))

    return widen


def _one_step_old(
    ranks: Ranks, sent: Sequence[Tensor], received: Sequence[Tensor], left: Leftovers, way: Direction
) -> Callable[[], None]:
    """Rows of the step before are received; those of this step travel until :func:`settle`. The first step waits."""
    arriving = [empty(tuple(rows.shape), rows.dtype) for rows in received]
    finish = ranks.begin_exchange(sent, arriving, kept=True)
    before, left.before[way] = left.before.get(way), arriving
    if before is not None:
        left.begun.append(finish)

    def fill() -> None:
        if before is None:
            finish()
        for rows, given in zip(received, arriving if before is None else before, strict=True):
            rows.copy_(given)

    return fill


def settle(begun: list[Callable[[], None]]) -> None:
    """Waits for all exchanges that nobody waited for."""
    while begun:
        begun.pop(0)()


_SENT = 2  # one row in so many is sent


def _sampled(
    ranks: Ranks, sent: Sequence[Tensor], received: Sequence[Tensor], left: Leftovers, way: Direction
) -> Callable[[], None]:
    """Random rows, others in every step, times rows over rows sent; the others are 0, and so are their gradients."""

    def chosen(owner: int, borrower: int, rows: int) -> Tensor:
        key = ((left.layer << 12 | owner) << 12 | borrower) << 28 | left.step
        draw = torch.Generator().manual_seed(key)
        return torch.randperm(rows, generator=draw)[: -(-rows // _SENT)].sort().values

    mine, there = ranks.rank, way == "there"
    going = [chosen(*((mine, r) if there else (r, mine)), rows.shape[0]) for r, rows in enumerate(sent)]
    coming = [chosen(*((r, mine) if there else (mine, r)), rows.shape[0]) for r, rows in enumerate(received)]
    parts = [rows[ids] * (rows.shape[0] / max(1, ids.numel())) for rows, ids in zip(sent, going, strict=True)]
    arriving = [rows.new_empty(ids.numel(), rows.shape[1]) for rows, ids in zip(received, coming, strict=True)]
    finish = ranks.begin_exchange(parts, arriving, kept=True)

    def spread() -> None:
        finish()
        for rows, ids, given in zip(received, coming, arriving, strict=True):
            rows.zero_().index_copy_(0, ids, given)

    return spread


_ENDS = 4  # bytes of a row's lowest number and of its step, bfloat16 both
_LEVELS = 255


def _short(rows: Tensor, rank: int, errors: dict[int, Tensor] | None) -> Tensor:
    """Rows with a byte a number, then the lowest number and the step of each row: uint8 (n, columns + 4).

    A row's numbers are steps above its lowest one, so that rows after an activation use all levels as well. The error
    is at most half a step. ``errors[rank]`` goes in, and is set anew.
    """
    before = None if errors is None else errors.get(rank)
    rows = rows if before is None or before.shape != rows.shape else rows + before
    low, high = torch.empty(rows.shape[0], 1), torch.empty(rows.shape[0], 1)  # amin may give no strides to speak of
    low.copy_(rows.amin(1, keepdim=True))
    high.copy_(rows.amax(1, keepdim=True))
    low = torch.where(low < 0, -_upward(-low), _downward(low))
    step = _upward(((high - low) / _LEVELS).clamp_(min=torch.finfo(torch.bfloat16).tiny))
    made = torch.empty(rows.shape[0], rows.shape[1] + _ENDS, dtype=torch.uint8)
    made[:, :-_ENDS] = ((rows - low) / step).round_().clamp_(0, _LEVELS).to(torch.uint8)
    made[:, -_ENDS:] = torch.cat([low, step], 1).bfloat16().view(torch.uint8)  # exact
    if errors is not None:
        errors[rank] = rows - _long(made)
    return made


def _long(made: Tensor) -> Tensor:
    """The rows that :func:`_short` made short, float32."""
    ends = made[:, -_ENDS:].clone(memory_format=torch.contiguous_format).view(torch.bfloat16).float()
    return torch.addcmul(ends[:, :1], made[:, :-_ENDS].float(), ends[:, 1:])


def _downward(numbers: Tensor) -> Tensor:
    """Numbers of at least 0, the next bfloat16 below."""
    return numbers.view(torch.int32).bitwise_and(-(1 << 16)).view(torch.float32)


def _upward(numbers: Tensor) -> Tensor:
    """Numbers of at least 0, the next bfloat16 above."""
    return _downward((numbers.view(torch.int32) + 0xFFFF).view(torch.float32))
