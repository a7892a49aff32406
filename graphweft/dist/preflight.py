"""Before the first epoch: every rank is ready, and all train the same thing.

Comes in: what a rank goes by, as named values, or why it is not ready. Goes out: nothing, or one error that every rank
raises and rank 0 tells. Called by :mod:`graphweft.run`, and by users' programs before their training.
"""

from __future__ import annotations

import contextlib
import json
import platform
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from graphweft._errors import GraphWeftError, RankError
from graphweft._native import LEVEL
from graphweft.dist.ranks import LostError, Ranks

T = TypeVar("T")
_MISSING = "nothing"


def ready(ranks: Ranks, make: Callable[[], T], facts: Callable[[T], Mapping[str, Any]]) -> T:
    """What ``make`` makes, once every rank has made its own from the same ``facts``.

    Raises: RankError of status 2 that names a rank and what it lacks, or the first fact that differs; with one rank
        what ``make`` raises.

    Example:
        >>> ready(Ranks(), lambda: 3, lambda made: {"seed": made})
        3
    """
    if ranks.size == 1:
        return make()
    made: T | None = None
    failure: GraphWeftError | None = None
    try:
        made = make()
        known = {**versions(ranks), **facts(made)}
    except GraphWeftError as found:
        failure, known = found, {}
    ranks.at("comparing data and options")
    texts = ranks.texts(json.dumps([ranks.host, None if failure is None else str(failure), known], default=str))
    problem = difference([json.loads(text) for text in texts])
    if problem is not None:
        with contextlib.suppress(LostError):
            ranks.leave()  # together: a process that ends while others still hold its connections may be aborted
        raise RankError(problem if ranks.is_first else "", 2) from failure
    assert made is not None  # no rank failed
    return made


def versions(ranks: Ranks) -> dict[str, Any]:
    """What runs on this rank; with ordered sums the kernels' instruction set counts as well."""
    found = {"torch": torch.__version__, "python": ".".join(platform.python_version_tuple()[:2]), "ranks": ranks.size}
    found |= {"rank_reduce": ranks.reduce, "slices": ranks.slices, "halo": ranks.halo}
    return found | ({"cpu_level": LEVEL} if ranks.reduce == "ordered" else {})


def difference(said: list[tuple[str, str | None, dict[str, Any]]]) -> str | None:
    """The first failure or difference among (host, failure, facts) of all ranks, in one line.

    Example:
        >>> difference([("a", None, {"seed": 0}), ("b", None, {"seed": 1})])
        'ranks: expected the same seed on every rank, got 0 on rank 0 (a) and 1 on rank 1 (b)'
    """
    failed = [(rank, host, text) for rank, (host, text, _) in enumerate(said) if text is not None]
    if failed:
        rank, host, text = failed[0]
        return text if len(failed) == len(said) else f"rank {rank} ({host}): {text}"
    first_host, _, first = said[0]
    for rank, (host, _, known) in enumerate(said[1:], 1):
        for name in [*first, *known]:
            mine, other = first.get(name, _MISSING), known.get(name, _MISSING)
            if mine != other:
                got = f"got {mine} on rank 0 ({first_host}) and {other} on rank {rank} ({host})"
                return f"ranks: expected the same {name} on every rank, {got}"
    return None
