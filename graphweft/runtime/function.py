"""Runs a plan forward, keeps what its backward calls read, and runs them on demand: in torch's graph or outside of it.

Comes in: a plan, its bound slots, and the dense inputs. Goes out: output tensors. Called by ``compile.py`` and
``staged.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from graphweft._errors import GraphWeftError
from graphweft._torch_private import on_host, saved_tensor_hooks_are_on
from graphweft.runtime.constants import comes_once
from graphweft.runtime.kernel_call import Slots
from graphweft.runtime.plan import Plan
from graphweft.runtime.profile import PROFILE, profiling
from graphweft.runtime.second import Origin, batched, distinct, tied
from graphweft.storage.feature import is_dense

Pullback = Callable[[Tensor], dict[str, Tensor | None]]


def linearize(plan: Plan, env: Slots, tensors: tuple[Tensor, ...]) -> tuple[dict[str, Tensor], Pullback]:
    """Outputs by name outside torch's graph, and the function from the gradient of "out" to those of the dense inputs.

    It works once.
    """
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        results = plan.run_forward(env, tensors)
        kept = plan.kept(env)
        plan.restore(kept, tensors, tuple(env[slot] for slot in plan.saved_outputs))
    outputs = {name: tensor for (name, _), tensor in zip(plan.outputs, results, strict=True)}
    others = {name: outputs[name].shape for name, _ in plan.seeds if name != "out"}

    def pullback(gradient: Tensor) -> dict[str, Tensor | None]:
        given = {"out": gradient} | {name: gradient.new_zeros(shape) for name, shape in others.items()}
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            return dict(zip(plan.tensors, plan.run_backward(kept, given), strict=True))

    return outputs, pullback


def linearize_seen(
    plan: Plan, env: Slots, tensors: tuple[Tensor, ...], seen: Callable[[str, Tensor], None]
) -> Callable[[Callable[[str], Tensor]], dict[str, Tensor | None]]:
    """As :func:`linearize`, step by step: ``seen`` gets every output when it is there; the function that comes back
    asks for the gradient of an output when it is about to be read. It works once.
    """
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        plan.run_forward_seen(env, tensors, seen)
        kept = plan.kept(env)
        plan.restore(kept, tensors, tuple(env[slot] for slot in plan.saved_outputs))

    def pullback(ask: Callable[[str], Tensor]) -> dict[str, Tensor | None]:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            return dict(zip(plan.tensors, plan.run_backward_asking(kept, ask), strict=True))

    return pullback


def is_followed(tensors: tuple[Tensor, ...]) -> bool:
    """Whether torch follows a computation on ``tensors``, to differentiate it later or on the way."""
    wanted = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return wanted or forward_ad._current_level >= 0


class RunPlan(torch.autograd.Function):
    """``RunPlan.apply(plan, env, samples, origin, *tensors)``; the backward pass is the plan's, not torch's.

    Intermediate values are kept in ``ctx`` and let go one by one as the backward calls have read them. A second
    backward pass over the same graph finds them gone and computes them again, which gives the same bits. Where the
    caller decides what becomes of saved tensors, as activation checkpointing does, they are torch's to save. Gradients
    made under ``create_graph`` can be differentiated: ``second.py`` ties them to the inputs. A call inside
    :func:`graphweft.runtime.constants.once` has one backward pass, and keeps no input that this does not read.
    """

    @staticmethod
    def forward(
        ctx: Any, plan: Plan, env: Slots, samples: list[Any] | None, origin: Origin, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        """Runs the forward calls and keeps the slots that the backward calls read."""
        base = list(env)
        outputs = plan.run_forward(env, tensors)
        outputs = distinct(outputs, tensors)
        ctx.plan, ctx.samples, ctx.base, ctx.origin = plan, samples, base, origin
        ctx.kept = plan.kept(env)
        saved = tuple(env[slot] for slot in plan.saved_outputs)
        ctx.elsewhere = ()
        if saved_tensor_hooks_are_on():
            ctx.elsewhere = tuple(slot for slot, item in enumerate(ctx.kept) if is_dense(item))
        ctx.once = comes_once()
        given = plan.read_backward(tensors) if ctx.once else tensors
        ctx.save_for_backward(*given, *saved, *(ctx.kept[slot] for slot in ctx.elsewhere))
        for slot in ctx.elsewhere:
            ctx.kept[slot] = None
        seeded = {name for name, _ in plan.seeds}
        ctx.mark_non_differentiable(
            *[tensor for (name, _), tensor in zip(plan.outputs, outputs, strict=True) if name not in seeded]
        )
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        """Gradients of the dense inputs."""
        plan: Plan = ctx.plan
        again = torch.is_grad_enabled()  # somebody may want to differentiate the gradients
        if ctx.once and (again or ctx.kept is None or batched(gradients)):
            raise GraphWeftError("backward: expected one backward pass of a call that comes once, got another")
        with torch.no_grad():
            saved = ctx.saved_tensors
        if batched(gradients):
            inputs = dict(zip(plan.tensors, saved, strict=False))
            made = ctx.origin.gradients_by_torch(inputs, _by_name(plan, gradients))
            return (None, None, None, None, *(made.get(name) for name in plan.tensors))
        tensors = saved[: len(plan.tensors)] if again else ()
        with torch.no_grad(), torch.autocast("cpu", enabled=False), on_host():
            env, given = _ready(ctx, saved, gradients)
            del saved  # the calls let go of what they have read
            if ctx.samples is None or PROFILE.active:
                found = plan.run_backward(env, given)
            else:
                with profiling() as taken:
                    found = plan.run_backward(env, given)
                ctx.samples.extend(taken)
        if again:
            found = tied(ctx.origin, found, tensors, _by_name(plan, gradients))
        return (None, None, None, None, *found)


def _by_name(plan: Plan, gradients: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """The gradients of the outputs that have one."""
    seeded = {seed for seed, _ in plan.seeds}
    return {name: x for (name, _), x in zip(plan.outputs, gradients, strict=True) if name in seeded}


def _ready(ctx: Any, saved: tuple[Tensor, ...], gradients: tuple[Tensor, ...]) -> tuple[Slots, dict[str, Tensor]]:
    """The slots that the backward calls read, and the gradients of the outputs by name."""
    plan: Plan = ctx.plan
    env, ctx.kept = ctx.kept, None
    count, end = len(plan.tensors), len(plan.tensors) + len(plan.saved_outputs)
    if env is None:
        env = list(ctx.base)
        if not ctx.elsewhere:
            plan.run_forward(env, saved[:count])
            env = plan.kept(env)
    for slot, tensor in zip(ctx.elsewhere, saved[end:], strict=True):
        env[slot] = tensor
    plan.restore(env, saved[:count], saved[count:end])
    given = _by_name(plan, gradients)
    return env, {name: x.resolve_neg().contiguous() for name, x in given.items()}
