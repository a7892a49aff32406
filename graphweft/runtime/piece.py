"""One plan among several that run as one: its result goes where the caller wants it, its gradient comes as it is made.

Comes in: a compiled function and the arguments of one call. Goes out: :class:`Piece`, whose calls are the plan's, but
for two: where the backward pass begins by masking rows of the gradient and adding up their columns, the kernel that
makes the gradient does both on the way; and a sum over edges may be made in two parts, around a wait for some rows or
their departure. Called by :mod:`graphweft.train.ranked_tape`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from graphweft._memory import POOL
from graphweft.runtime.compile import Arguments, CompiledFunction
from graphweft.runtime.cpu.products import epilogue_of
from graphweft.runtime.epilogue import Epilogue
from graphweft.runtime.half_rows import HALF
from graphweft.runtime.kernel_call import KernelCall, Slot, Slots
from graphweft.runtime.late_rows import Late, Steps, replaced, scaled_in_time, send_first, suits, sum_sources
from graphweft.runtime.plan import Plan, run_steps

_LATE = frozenset({"x", "mask", "post_scale"})  # what a first call may read: stages that follow every addend
_STAGED = frozenset({"matmul", "matmul_terms", "spmm", "rows"})  # kernels with stages after what they compute


class Piece:
    """The calls of one plan.

    Args:
        plan: The plan.
        bound: Slots with all but the dense inputs.
        tensors: The dense inputs; "x" may be another tensor of its shape in every run.
    """

    def __init__(self, plan: Plan, bound: Slots, tensors: tuple[Tensor, ...]) -> None:
        self.plan, self._bound, self._tensors = plan, bound, tensors
        self._out = dict(plan.outputs)["out"]
        self._seed = dict(plan.seeds)["out"]
        self._opens = bool(plan.backward) and _opens(plan.backward, self._seed)
        self._kept: Slots = []
        self._steps, self._x = plan.steps(backward=False), plan.place("x") if "x" in plan.tensors else -1

    @classmethod
    def of(cls, function: CompiledFunction, arguments: Arguments) -> Piece | None:
        """None for a call that the interpreter runs, draws random numbers, or has several results."""
        found = function.bound(arguments)
        if found is None:
            return None
        plan = found[0]
        names = [name for name, _ in plan.outputs], [name for name, _ in plan.seeds]
        return None if names != (["out"], ["out"]) or "seed" in plan.fixed else cls(*found)

    @property
    def width(self) -> int:
        """Columns of the result."""
        return self.plan.compiled.program.output("out").tensor.dims[0]

    @property
    def scales(self) -> bool:
        """Whether the rows of "x" are multiplied before all else, and read no more."""
        return self.plan.scales and self._x == self.plan.place("x")

    @property
    def factors(self) -> Tensor | None:
        """What they are multiplied by, (rows of "x",); None where they are not, or no longer."""
        if not self.scales:
            return None
        slot = self._steps[0][1].operand("row_scale")
        given = (t for name, t in zip(self.plan.tensors, self._tensors, strict=True) if self.plan.place(name) == slot)
        found = next(given, self._bound[slot])
        return found if isinstance(found, Tensor) else None

    def can_multiply(self) -> bool:
        """Whether the kernel that makes the result can multiply its rows by positive factors.

        No other call may read the result but for the signs of its numbers.
        """
        call = self._last()
        if call is None or call.kernel not in _STAGED or len(call.writes) != 1 or call.dtype != torch.float32:
            return False
        if HALF in call.attrs or call.reading("post_scale") is not None:
            return False
        if call.value in self.plan.walks or self.plan.interprets(call):
            return False
        others = (*self.plan.forward, *self.plan.backward)
        return all(slot.role == "mask" for call in others for slot in call.reads if slot.at == self._out)

    def multiply(self, factors: Tensor) -> None:
        """From now on rows of the result are multiplied by ``factors``, (rows,), as :meth:`can_multiply` allows."""
        call = self._last()
        assert call is not None  # as it can
        stage = Slot("post_scale", len(self._bound), call.value)
        staged = replace(call, reads=(*call.reads, stage), label=f"{call.label} + post_scale")
        launched = self.plan.target.launch(staged), staged
        self._steps = tuple(launched if step[1] is call else step for step in self._steps)
        self._bound = [*self._bound, factors]

    def take_multiplied(self) -> None:
        """From now on the rows of "x" come with :attr:`factors`."""
        self._x = self._steps[0][1].writes[0].at
        self._steps = self._steps[1:]

    def _last(self) -> KernelCall | None:
        """The call that makes the result."""
        return next((call for _, call in self._steps if call.writes[0].at == self._out), None)

    def forward(self, given: list[Tensor], into: Tensor | None = None, late: Late | None = None) -> Tensor:
        """The result, in the memory of ``into`` if that is given.

        A tensor in ``given`` is taken out of it and stands in the place of the input "x": its memory is free after its
        last reader. Where the plan multiplies its rows first and reads them no more, the products take their place.
        ``late``: the last rows of "x" are there once its second part has returned.
        """
        plan, env = self.plan, list(self._bound)
        steps = self._in_time(self._steps, late)
        last = next((i for i, (_, call) in enumerate(steps) if call.writes[0].at == self._out), len(steps))
        owned = bool(given and last)
        pairs = zip(plan.tensors, self._tensors, strict=True)
        tensors = tuple(given.pop() if name == "x" and given else tensor for name, tensor in pairs)
        for name, tensor in zip(plan.tensors, tensors, strict=True):
            env[self._x if name == "x" else plan.place(name)] = tensor
        read = plan.read_backward(tensors)
        del tensor, tensors
        run_steps(steps[plan.scale_over(env) if owned and late is None and self.scales else 0 : last], env)
        with POOL.handing(into) if into is not None else nullcontext():
            run_steps(steps[last : last + 1], env)
        run_steps(steps[last + 1 :], env)
        out: Tensor = env[self._out]
        self._kept = plan.kept(env)
        plan.restore(self._kept, read, tuple(env[slot] for slot in plan.saved_outputs))
        return out

    def forget(self) -> None:
        """Lets go of what a forward pass has kept."""
        self._kept = []

    def _in_time(self, steps: Steps, late: Late | None) -> Steps:
        """The calls, of which the first that reads the last rows of "x" waits for them, where they are late."""
        if late is None:
            return steps
        slot = self._x
        if self.scales:
            return scaled_in_time(steps, late)
        readers = (i for i, (_, call) in enumerate(steps) if any(read.at == slot for read in call.reads))
        at = next((i for i in readers if steps[i][1].kernel != "own_rows"), len(steps))
        if at < len(steps) and suits(steps[at][1]) and steps[at][1].reading("x") == slot:
            return replaced(steps, at, sum_sources, late)
        late.between(self._tensors[0])
        return steps

    def backward(self, make: Callable[[Epilogue | None], Tensor], late: Late | None = None) -> dict[str, Tensor | None]:
        """Gradients of the dense inputs by name, once, after a forward pass.

        ``make``: gives the gradient of the result, after stages that follow all of its terms. ``late``: is given the
        gradient of "x" as soon as its last rows are there, unless they are made together with the others.
        """
        env, self._kept = self._kept, []
        steps = self.plan.steps(backward=True)
        if late is not None:
            slot = dict(zip(self.plan.tensors, self.plan.gradients, strict=True))["x"]
            at = next((i for i, (_, call) in enumerate(steps) if call.writes[0].at == slot and suits(call)), None)
            steps = steps if at is None else replaced(steps, at, send_first, late)
        if self._opens:
            call = steps[0][1]
            env[call.writes[0].at] = make(epilogue_of(call, call.value.tensor.dims[0])(env))
            for slot in call.frees:
                env[slot] = None
            steps = steps[1:]
        else:
            env[self._seed] = make(None)
        run_steps(steps, env)
        made = (None if slot is None else env[slot] for slot in self.plan.gradients)
        return dict(zip(self.plan.tensors, made, strict=True))


def _opens(calls: tuple[KernelCall, ...], seed: int) -> bool:
    """Whether the first call is nothing but late stages on the gradient of the result, which no other call reads."""
    first = calls[0]
    alone = not any(slot.at == seed for call in calls[1:] for slot in call.reads)
    return (
        first.kernel == "rows"
        and alone
        and first.reading("x") == seed
        and {slot.role for slot in first.reads} <= _LATE
        and not first.get("relu")
    )
