"""Whether groups of parts do better with fewer parts that bring neighbours, in the same memory.

Comes in: a source of parts, training nodes, what tells how many parts fit. Goes out: ways to make groups with the share
of edges that each keeps, and the one to take. Called by mode "macro" and by plans. The accuracy of groups falls with
the edges that they leave out, and neighbours cost reading: so the fewest that keep enough edges are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from graphweft._errors import MemoryBudgetError
from graphweft.loader.kept_edges import Prospect
from graphweft.loader.neighbours import BroughtSizes
from graphweft.loader.parts import PartSource

ENOUGH = 0.8  # share of the edges that groups should keep
_SHARES = (1.0, 3.0, 7.0)  # with each a group has half of the parts of the one before, in about the same memory
_GAIN = 1.1  # times the edges of groups without neighbours, below which these are not worth their reading


class Way(NamedTuple):
    """A way to make groups.

    Attributes:
        group: Parts of a group.
        share: How many times its nodes a part brings at most; 0: none.
        kept: Share of the edges that the groups of an epoch have, in the mean.
    """

    group: int
    share: float
    kept: float

    def text(self, parts: int) -> str:
        """``groups of 4 of 64 parts``, as plans tell it."""
        return f"groups of {self.group} of {parts} parts"

    def asked(self, parts: int) -> str:
        """As a user asks for it.

        Example:
            >>> Way(4, 1.0, 0.87).asked(64), Way(8, 0.0, 0.62).asked(64)
            ('parts:4/64+neighbours:1', 'parts:8/64')
        """
        return f"parts:{self.group}/{parts}" + (f"+neighbours:{self.share:g}" if self.share else "")


def ways_of(source: PartSource, seeds: Tensor, steps: int, count_of: Callable[[BroughtSizes | None], int]) -> list[Way]:
    """Groups without neighbours, and, where these keep too few edges, with ever more as far as they fit.

    Args:
        source: The parts.
        seeds: int64 training nodes, ascending.
        steps: Steps of the walks that find neighbours, one for each layer.
        count_of: Parts of a group that fit with what each brings.

    Raises: MemoryBudgetError where none fits; DataError from a damaged store.
    """
    plain = count_of(None)
    if plain == len(source.bounds) - 1:
        return [Way(plain, 0.0, 1.0)]
    found = [Way(plain, 0.0, Prospect(source, seeds, steps, 0.0).kept([(plain, 0.0)])[0])]
    if found[0].kept >= ENOUGH:
        return found
    prospect, fitting = Prospect(source, seeds, steps, _SHARES[-1]), list[tuple[int, float]]()
    for share in _SHARES:
        try:
            fitting.append((count_of(prospect.sizes(share)), share))
        except MemoryBudgetError:
            break
    kept = prospect.kept(fitting) if fitting else []
    return found + [Way(group, share, edges) for (group, share), edges in zip(fitting, kept, strict=True)]


def taken_of(ways: Sequence[Way]) -> Way:
    """The fewest neighbours that keep enough edges, else those that keep most; none where they gain little.

    Example:
        >>> plain, some, more = Way(8, 0.0, 0.62), Way(4, 1.0, 0.87), Way(2, 3.0, 0.96)
        >>> taken_of([plain, some, more]) == some, taken_of([plain._replace(kept=0.8), some]).share
        (True, 0.0)
        >>> taken_of([Way(8, 0.0, 0.24), Way(4, 1.0, 0.36), Way(2, 3.0, 0.41)]).share, taken_of([plain, plain]).share
        (3.0, 0.0)
    """
    enough = [way for way in ways if way.kept >= ENOUGH]
    best = min(enough, key=lambda way: way.share) if enough else max(ways, key=lambda way: way.kept)
    return best if best.kept >= _GAIN * ways[0].kept else ways[0]


def reason_against(way: Way, taken: Way, parts: int) -> str:
    """Why a way is not taken, in words."""
    told = "more than it has to, for more reading" if way.kept > taken.kept else f"{taken.kept:.0%} are kept otherwise"
    return f"keeps {way.kept:.0%} of the edges, {told}; macro={way.asked(parts)} takes it"


__all__ = ["ENOUGH", "Way", "reason_against", "taken_of", "ways_of"]
