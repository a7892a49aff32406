"""Orders of parts in which some parts stay in memory from one epoch to the next, so that they are not read again.

Comes in: how many parts there are, how many make a group and how many stay, and the key of an epoch. Goes out: its
order, and which parts are in memory beside the groups after each of them. A pure function of its arguments, so that an
epoch can be taken up without those before it. Called by :mod:`graphweft.loader.group_loader`. Source: Belady, IBM
Systems Journal 1966; an epoch reads every part once, so with room for ``held`` parts no order and no replacement reads
fewer than ``parts - held`` of them, and these orders read as many.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from graphweft._draws import mixed
from graphweft._errors import ConfigError
from graphweft.sample.permutation import permutation

_PIECES = 4  # permutations of an epoch
_APART = 0x6B656570  # draws of these orders are apart from those of the epochs' turns
_CHAIN = 64  # epochs after which none is shared, so that an order follows from few others


class SharedOrder(NamedTuple):
    """The parts of an epoch.

    Attributes:
        order: int64 (parts,), every part once.
        begun: int64 (held,) parts that stayed from the epoch before, all in the first half of the groups; or none.
        kept: int64 (held,) parts that stay for the next epoch, all in the other groups; or none.
    """

    order: Tensor
    begun: Tensor
    kept: Tensor

    def held_after(self, end: int) -> frozenset[int]:
        """The parts that are kept once the first ``end`` parts of the order have been used."""
        used, coming = self.order[:end], self.order[end:]
        left = self.begun[torch.isin(self.begun, coming)]
        return frozenset(torch.cat([left, self.kept[torch.isin(self.kept, used)]]).tolist())


def most_held(parts: int, count: int) -> int:
    """The most parts that can stay: those of half of the groups, whose last one may have fewer.

    Example:
        >>> most_held(8, 2), most_held(8, 8), most_held(3, 2)
        (4, 0, 1)
    """
    early = _early(parts, count)
    return min(early, parts - early)


def shared_order(parts: int, held: int, seed: int, epoch: int, count: int = 1, shuffle: bool = True) -> SharedOrder:
    """The order of an epoch, cut into groups of ``count`` by its reader.

    Parts that stayed lie anywhere in the first half of the groups, those that will stay anywhere in the second half:
    they meet others as any part does, and no group is trained on twice in a row. Every part is as likely to stay as any
    other, but none stays over two epochs. Every 64th epoch begins with none.

    Args:
        parts: Number of parts.
        held: Parts that stay in memory from an epoch to the next, at most those of half of the groups.
        seed: Of the run.
        epoch: Counts from 0.
        count: Parts of a group.
        shuffle: Without it every epoch has the parts in their order, and the first ones stay for good.

    Raises: ConfigError for more than half of the groups.

    Example:
        >>> first, second = (shared_order(8, 2, 0, epoch) for epoch in (0, 1))
        >>> bool((first.kept == second.begun).all()), set(first.kept.tolist()) <= set(first.order[4:].tolist())
        (True, True)
    """
    if not 0 <= held <= most_held(parts, count):
        raise ConfigError(f"held: expected at most {most_held(parts, count)} of {parts} parts, got {held}")
    none = torch.empty(0, dtype=torch.int64)
    if not shuffle:
        return SharedOrder(torch.arange(parts), torch.arange(held), torch.arange(held))
    turn = permutation(parts, seed, epoch)
    if not held:
        return SharedOrder(turn, none, none)
    begun = kept = none
    seed = mixed(seed, _APART)
    for earlier in range(epoch - epoch % _CHAIN, epoch + 1):
        begun, kept = kept, _others(parts, held, kept, seed, earlier)
    early = _early(parts, count)
    order = torch.empty(parts, dtype=torch.int64)
    first = permutation(early, seed, _PIECES * epoch + 1)
    last = permutation(parts - early, seed, _PIECES * epoch + 2) + early
    order[first[: len(begun)]], order[last[:held]] = begun, kept
    places = torch.cat([first[len(begun) :], last[held:]])
    order[places] = turn[~torch.isin(turn, torch.cat([begun, kept]))]
    return SharedOrder(order, begun, none if (epoch + 1) % _CHAIN == 0 else kept)


def _early(parts: int, count: int) -> int:
    """Parts in the first half of the groups."""
    groups = -(-parts // count)
    return count * (groups // 2)


def _others(parts: int, held: int, begun: Tensor, seed: int, epoch: int) -> Tensor:
    """Parts that an epoch keeps for the next one, none of those that it begins with."""
    left = torch.ones(parts, dtype=torch.bool)
    left[begun] = False
    others = left.nonzero().reshape(-1)
    return others[permutation(len(others), seed, _PIECES * epoch + 3)[:held]]


__all__ = ["SharedOrder", "most_held", "shared_order"]
