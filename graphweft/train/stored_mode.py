"""Mode "auto" over a store: which mode a run has, before it is made.

Comes in: what a trainer was given. Goes out: the mode with its plan, and the budget that choosing it counts against.
Called by the trainer.
"""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from graphweft._budget import Budget, in_force
from graphweft._errors import DataWarning
from graphweft._memory import POOL
from graphweft.data.stored import StoredDataset
from graphweft.runtime.machine import Machine
from graphweft.storage.memory_size import memory_bytes
from graphweft.storage.store import Store
from graphweft.train.needs import lean_heap_within
from graphweft.train.options import USUAL_BATCH, check_fanouts
from graphweft.train.stored_plan import StoredRun, stored_plan

_USUAL = {"task": "nodes", "macro": None, "sampler": "neighbor", "prepare": "whole", "device": None}


class StoredMode:
    """The mode of a run over a store that is left open, by the plan.

    Args:
        given: What the trainer was given, by name.

    Attributes:
        plan: How the run goes, and why other ways are not taken.

    Raises: ConfigError, DataError, MemoryBudgetError.
    """

    def __init__(self, given: Any) -> None:
        self._budget: Budget | None = None
        if given.memory is not None and in_force() is None:
            lean_heap_within(given.memory)
            self._budget = Budget(memory_bytes(given.memory))
        stored = StoredDataset(given.ds if isinstance(given.ds, Store) else given.ds.store)
        size = USUAL_BATCH if given.batch_size is None else given.batch_size
        drawn = (check_fanouts(given.fanouts), size, None, given.edge_data)
        run = StoredRun(given.model, stored, given.memory, *drawn)
        with self.within(), warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore", DataWarning)  # the run itself warns
            self.plan = stored_plan(run, Machine.here(), always_priced=False)
        POOL.trim()

    @classmethod
    def of(cls, given: Any) -> StoredMode | None:
        """That of a run whose options both modes have; None of any other."""
        is_store = isinstance(given.ds, Store | StoredDataset)
        is_open = given.mode == "auto" and all(getattr(given, name) == usual for name, usual in _USUAL.items())
        is_shared = given.ranks is not None and given.ranks.is_shared
        return cls(given) if is_store and is_open and not is_shared else None

    def within(self) -> AbstractContextManager[None]:
        """The block in which a run is made counts what choosing its mode has taken."""
        return nullcontext() if self._budget is None else self._budget.enforced()

    @staticmethod
    def asked(mode: str) -> str:
        """A mode as the run is asked for it: "auto" of groups, whose neighbours are chosen then."""
        return "mini" if mode == "mini" else "auto"


def mode_of(saved: dict[str, Any]) -> str:
    """The mode of a run over a store by its checkpoint.

    Example:
        >>> mode_of({"group": "2/8", "store": 1}), mode_of({"drawn": [5, 5], "store": 1})
        ('macro', 'mini')
    """
    return "macro" if "group" in saved else "mini"


__all__ = ["StoredMode", "mode_of"]
