"""Plans of different sizes that came out alike are one plan.

Comes in: a plan, and what it was compiled for beside sizes. Goes out: the same, or one that is there and says the same.
Called by ``runtime/compile.py``. Sizes choose among few ways to compute a program, while a plan with the programs that
it was made from takes half a megabyte: without this, batches of many classes of sizes would take as many.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable

from graphweft.runtime.plan import Plan


class AlikePlans:
    """The plans of one computation, as long as somebody has them."""

    def __init__(self) -> None:
        self._plans: weakref.WeakValueDictionary[Hashable, Plan] = weakref.WeakValueDictionary()

    def one_for(self, asked: Hashable, plan: Plan) -> Plan:
        """``plan``, or the first one with its text that was ``asked`` for alike."""
        return self._plans.setdefault((asked, plan.text), plan)


__all__ = ["AlikePlans"]
