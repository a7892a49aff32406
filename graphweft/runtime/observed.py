"""Which plans run, for whoever wants to tell of them.

Comes in: plans with what they are called with, as calls bind them. Goes out: a list of them. Called by
``compile.py`` and ``repeated.py``; read where a step is explained.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from graphweft.runtime.plan import Plan


class Ran(NamedTuple):
    """A plan that ran, and its arguments by name."""

    plan: Plan
    named: Mapping[str, Any]


_RAN: contextvars.ContextVar[list[Ran] | None] = contextvars.ContextVar("ran", default=None)


@contextlib.contextmanager
def observing_plans() -> Iterator[list[Ran]]:
    """Collects the plans that calls inside run, in their order."""
    ran: list[Ran] = []
    token = _RAN.set(ran)
    try:
        yield ran
    finally:
        _RAN.reset(token)


def observed(plan: Plan, named: Mapping[str, Any]) -> None:
    """A call runs ``plan``."""
    ran = _RAN.get()
    if ran is not None:
        ran.append(Ran(plan, named))


__all__ = ["Ran", "observed", "observing_plans"]
