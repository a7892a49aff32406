"""Whether a store has room in memory as a whole, before it is read.

Comes in: a model, a store, a budget. Goes out: nothing, or an error that names the least that reading and training
need. Called by :mod:`graphweft.run` where a store is trained on with all of it in memory.
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from graphweft.data.stored import StoredDataset
from graphweft.storage.memory_size import memory_bytes
from graphweft.storage.stored_structure import structure_bytes
from graphweft.train.needs import RunBudget, base_needs, refusal
from graphweft.train.needs_by_sizes import sized_needs
from graphweft.train.steps import USUALLY_DRAWN

_REAL = 4


def check_whole(model: nn.Module, ds: StoredDataset, memory: int | str) -> None:
    """Structure, labels and features of a store fit while they are read.

    Where they do not, the least that is named is that of mode "full" by sizes.

    Raises: MemoryBudgetError.
    """
    budget, store = RunBudget(memory, ds), ds.store
    kept, reading = structure_bytes(store)
    rows = store.feature_bytes // store.feature_dtype.itemsize * _REAL
    data = kept + int(rows.sum())
    reached = budget.taken() + data + max(reading, 2 * int(rows.max(initial=0)))  # a part as it lies, and as it is read
    if reached <= memory_bytes(memory):
        return
    base = replace(base_needs(ds, model, budget), data=data)
    raise refusal(sized_needs(base, model, ds, "full", USUALLY_DRAWN).beyond(reached), memory_bytes(memory))


__all__ = ["check_whole"]
