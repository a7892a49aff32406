"""What macro-batches of a run in memory take, found by making one of them.

Comes in: the steps of mode "mini" over macro-batches, before the first epoch. Goes out: bytes of the macro-batches and
hidden rows that are in memory at once, of computing hidden rows, and of a batch. Called where a run has a budget.
Nothing of it stays: training makes the same macro-batch again.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from graphweft._memory import POOL
from graphweft.loader.multistage import MultistageLoader
from graphweft.runtime.rehearsal import Prepared, Run
from graphweft.train.batch_steps import BatchSteps
from graphweft.train.needs import rehearse
from graphweft.train.needs_by_running import kept_buffers


class MacroTaken(NamedTuple):
    """What macro-batches take.

    Attributes:
        held: Bytes of those that are in memory at once, and of the hidden rows of all nodes.
        refreshing: The most while hidden rows are computed, beside them.
        batch: A batch of one of them, with its step.
    """

    held: int
    refreshing: int
    batch: Prepared


def macro_taken(mini: BatchSteps) -> MacroTaken:
    """By making the first macro-batch and its first batch, and training on that without an update."""
    loader, run = mini.loader, mini.macro
    assert isinstance(loader, MultistageLoader) and run is not None  # the caller has looked
    with torch.random.fork_rng(devices=[]), kept_buffers(mini.model):
        rows, computing, _ = rehearse(lambda: run.begin_epoch(mini.x), lambda _: None)
        held, making, _ = rehearse(lambda: loader.made(0)[0], lambda _: None)
        ready, made, step = rehearse(lambda: loader.made(0)[1], mini.gradients)
    mini.optimizer.zero_grad(set_to_none=True)
    loader.forget()
    if run.historical is not None:
        run.historical.begin_anew()
    POOL.trim()
    passing = max(made - ready, making - held - ready, 0)
    batch = Prepared((ready,), (passing,), Run(beside=(step,)))
    return MacroTaken(loader.at_once() * held + rows, computing - rows, batch)


__all__ = ["MacroTaken", "macro_taken"]
