"""The memory that plans take while they run, found without running them.

Comes in: plans and sizes. Goes out: bytes. Tensors come and go as the calls make and free them, in a pool of imagined
addresses, so that intervals which fit nothing are counted as well; small tensors lie on torch's heap. Called where
the memory of a run is predicted.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from graphweft._memory import SMALL, Pool
from graphweft.ir.ops import LEAVES
from graphweft.passes.work import Sizes
from graphweft.runtime.footprint import covered, value_bytes
from graphweft.runtime.kernel_call import KernelCall
from graphweft.runtime.plan import Plan

_TOP = 1 << 47  # above all imagined mappings
_HEAP = 1.5  # times the tensors that lie on it: what the heap of the C library takes for sizes that come and go


class _Imagined(Pool):
    """A pool that maps nothing; ``keeps_small``: small tensors stay, as on a tape, whose calls know addresses."""

    def __init__(self, keeps_small: bool) -> None:
        self.keeps_small = keeps_small
        super().__init__()
        self._next, self._small, self.most_small = _TOP, 0, 0

    def _map(self, size: int) -> int:
        self._next -= size  # as Linux does it: below the mapping before, so that both merge
        self._mapped += size
        return self._next

    def trim(self) -> None:
        """Nothing: there is nothing to give back to the system."""

    def lend(self, nbytes: float) -> tuple[int, int]:
        """A region of at least so many bytes; without an address where torch's own allocator serves."""
        if nbytes >= SMALL:
            size = self.rounded(int(nbytes))
            return self._take(size), size
        self._small += int(nbytes)
        self.most_small = max(self.most_small, self._small)
        return 0, int(nbytes)

    def take_back(self, region: tuple[int, int]) -> None:
        """The region is free."""
        if region[0]:
            self._give_back(*region)
        elif not self.keeps_small:
            self._small -= region[1]


@dataclass(frozen=True)
class Run:
    """Something that takes memory and gives it back to the pool.

    Attributes:
        plan: What is run; None: nothing but what is beside it.
        sizes: The numbers behind its symbols.
        loss: Bytes of the loss's gradient.
        beside: Regions that are held while it runs.
        is_taped: It is recorded, and its small tensors stay.
    """

    plan: Plan | None
    sizes: Sizes
    loss: float = 0.0
    beside: tuple[float, ...] = ()
    is_taped: bool = False


def taken_bytes(*runs: Run) -> int:
    """What ``runs``, one after the other, take of the pool and of the heap. Hoisted values and inputs do not count."""
    pool = _Imagined(False)
    for run in runs:
        held = [pool.lend(size) for size in run.beside]
        pool.keeps_small = run.is_taped
        if run.plan is not None:
            _run(run.plan, run.sizes, pool, run.loss)
        pool.keeps_small = False
        for region in held:
            pool.take_back(region)
    return pool.stats().mapped + int(_HEAP * pool.most_small)


def _run(plan: Plan, sizes: Sizes, pool: _Imagined, loss: float) -> None:
    """The forward calls, and the backward calls where there are some."""
    values = plan.compiled.program.values
    size = [value_bytes(value, sizes) for value in values]
    inputs = {i for i, v in enumerate(values) if v.op in LEAVES and not str(v["name"]).startswith("d:")}
    free = inputs | {item.slot for item in plan.hoisted}
    held: dict[int, tuple[int, int]] = {}
    _calls(plan, plan.forward, size, sizes, pool, held, free)
    if plan.backward:
        for _, slot in plan.seeds:
            held[slot] = pool.lend(max(loss, size[slot]))
        stays = {slot for _, slot in (*plan.outputs, *plan.seeds)}  # the caller holds both
        _calls(plan, plan.backward, size, sizes, pool, held, free, stays)
    for region in held.values():
        pool.take_back(region)


def _calls(
    plan: Plan,
    calls: Sequence[KernelCall],
    size: list[float],
    sizes: Sizes,
    pool: _Imagined,
    held: dict[int, tuple[int, int]],
    free: set[int],
    stays: Collection[int] = (),
) -> None:
    """Regions come and go as ``calls`` run; ``held`` are those of slots."""
    for call in calls:
        over = covered(call, size) if call.over else set()
        for slot in call.writes:
            at = slot.at
            taken = next((held.pop(i) for i in over if i in held), None)
            if at not in free and size[at]:
                held[at] = taken or pool.lend(size[at])
        room = plan.target.scratch(call, sizes)
        if room:
            pool.take_back(pool.lend(room))
        for at in call.frees:
            if at in held and at not in stays:
                pool.take_back(held.pop(at))


__all__ = ["Run", "taken_bytes"]
