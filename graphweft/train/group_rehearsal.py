"""What one group of parts and one batch in it take of memory, found by reading and training on them.

Comes in: the steps of mode "macro" over a store, a planned group. Goes out: :class:`Rehearsed`. Called where a run from
a store keeps to a budget.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from graphweft._budget import own_bytes
from graphweft._memory import POOL, heap_bytes
from graphweft.loader.group_loader import GroupLoader, PlannedGroup
from graphweft.loader.groups import Group, read_group
from graphweft.nn.stack import Stack
from graphweft.runtime.footprint import whole_pages
from graphweft.runtime.rehearsal import Run, taken_bytes
from graphweft.train.needs_by_running import grown_while

T = TypeVar("T")


@dataclass(frozen=True)
class Rehearsed:
    """The memory of one group and of one batch in it, measured.

    Attributes:
        reading: The most while a group is read, that group included.
        begun: The most while its sampler is made, the group included; no other group is there or read meanwhile.
        group: Of a group that is there, with its sampler.
        held: Of a batch that is ready.
        held_lent: Of these, what the pool lends.
        making: Of what passes while it is made.
        making_lent: Of these, what the pool lends.
        kept: What the heap of a thread that made it keeps afterwards.
        step: The most while it is trained on, beside it.
        lent: Of these, what the pool lends.
        both: The most while it is made and trained on, by one thread.
        both_lent: Of these, what the pool lends.
        evaluation: The most that a pass over one group takes, of a model that is no stack of layers.
    """

    reading: int
    begun: int
    group: int
    held: int
    held_lent: int
    making: int
    making_lent: int
    kept: int
    step: int
    lent: int
    both: int
    both_lent: int
    evaluation: int = 0


def rehearsed_group(steps: Any, planned: PlannedGroup) -> Rehearsed:
    """Reads a group and trains on a batch of it, without an update."""
    loader: GroupLoader = steps.loader
    POOL.trim()
    before = own_bytes()
    reading, group = grown_while(functools.partial(read_group, loader.source, planned.parts, loader.extra))
    POOL.trim()
    alone = max(own_bytes() - before, 0)
    preparing, _ = grown_while(functools.partial(loader.ready, planned, group))
    begun = alone + preparing
    POOL.trim()
    there, before_batch, lent = own_bytes(), held_bytes(), POOL.stats().lent
    make = functools.partial(loader.batch_of, planned, group, 0)
    most, making_lent, batch = grown_beside_others(make)
    held, held_lent = max(held_bytes() - before_batch, 0), max(POOL.stats().lent - lent, 0)
    making = max(most - held, 0)
    making_lent = min(max(making_lent - held_lent, 0), making)
    POOL.trim()
    step, lent = grown_by_step(functools.partial(steps.rehearse, batch))
    del batch
    steps.let_go()
    kept = min(_kept_by_a_thread(make), making)
    both, both_lent = grown_by_step(functools.partial(_made_and_trained, steps, planned, group))
    steps.let_go()
    evaluation = 0 if isinstance(steps.model, Stack) else _pass_bytes(steps, group)
    of_batch = (held, held_lent, making, making_lent, kept, step, lent, both, both_lent)
    found = Rehearsed(reading, begun, max(there - before, 0), *of_batch, evaluation)
    loader.forget()
    del group
    POOL.trim()
    return found


def _kept_by_a_thread(make: Callable[[], object]) -> int:
    """Bytes that the heap of a thread keeps of what it took to make something that is gone again."""

    def run() -> None:
        make()

    POOL.trim()
    before = own_bytes() - POOL.stats().mapped
    worker = threading.Thread(target=run)
    worker.start()
    worker.join()
    found = own_bytes() - POOL.stats().mapped - before
    POOL.trim()
    return max(found, 0)


def _made_and_trained(steps: Any, planned: PlannedGroup, group: Group) -> None:
    steps.rehearse(steps.loader.batch_of(planned, group, 0))


def _pass_bytes(steps: Any, group: Group) -> int:
    """The most that a model takes for all nodes of a group."""
    model, training = steps.model, steps.model.training

    def run() -> object:
        model.eval()
        with torch.no_grad():
            return model(group.graph, group.rows(torch.arange(group.graph.num_nodes)))

    most, _ = grown_while(run)
    model.train(training)
    return most


def held_bytes() -> int:
    """Bytes of what is there, whatever pages it lies on: batches that are drawn ahead share theirs."""
    return POOL.stats().lent + heap_bytes()


def grown_beside_others(run: Callable[[], T]) -> tuple[int, int, T]:
    """As :func:`grown_while`, for what shares pages of the pool with other tensors, whatever it leaves of them.

    The second is what the pool lends of it.
    """
    before, lent = POOL.stats(), POOL.begin_peak()
    most, found = grown_while(run)
    after = POOL.stats()
    taken = after.peak_lent - lent
    return max(most - max(after.mapped - before.mapped - taken, 0), taken), taken, found


def grown_by_step(run: Callable[[], object]) -> tuple[int, int]:
    """The first two of :func:`grown_beside_others`, with pages of the pool that its regions leave in gaps."""
    noted = list[tuple[int, int]]()
    with POOL.noting(noted):
        most, lent, _ = grown_beside_others(run)
    gaps = taken_bytes(Run(noted=tuple(noted))) - whole_pages(lent)
    return most + max(gaps, 0), lent


__all__ = ["Rehearsed", "grown_beside_others", "grown_by_step", "held_bytes", "rehearsed_group"]
