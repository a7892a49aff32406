"""The one autograd function: runs a plan forward, keeps what its backward calls read, runs them on demand.

Comes in: a plan, its bound slots, and the dense inputs. Goes out: output tensors in torch's graph. Called by
``compile.py`` only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphweft.runtime.lower import Slots
from graphweft.runtime.plan import Plan
from graphweft.runtime.profile import PROFILE, profiling


class RunPlan(torch.autograd.Function):
    """``RunPlan.apply(plan, env, samples, *tensors)``; the backward pass is the plan's, not torch's.

    Intermediate values are kept in ``ctx`` and let go one by one as the backward calls have read them. A second
    backward pass over the same graph finds them gone and computes them again, which gives the same bits.
    """

    @staticmethod
    def forward(ctx: Any, plan: Plan, env: Slots, samples: list[Any] | None, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Runs the forward calls and keeps the slots that the backward calls read."""
        base = list(env)
        outputs = plan.run_forward(env, tensors)
        outputs = _distinct(outputs, tensors)
        ctx.plan, ctx.samples, ctx.base = plan, samples, base
        ctx.save_for_backward(*tensors, *(env[slot] for slot in plan.saved_outputs))
        ctx.kept = plan.kept(env)
        seeded = {name for name, _ in plan.seeds}
        ctx.mark_non_differentiable(
            *[tensor for (name, _), tensor in zip(plan.outputs, outputs, strict=True) if name not in seeded]
        )
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        """Gradients of the dense inputs."""
        plan: Plan = ctx.plan
        env, ctx.kept = ctx.kept, None
        count = len(plan.tensors)
        if env is None:
            env = list(ctx.base)
            plan.run_forward(env, ctx.saved_tensors[:count])
            env = plan.kept(env)
        plan.restore(env, ctx.saved_tensors[:count], ctx.saved_tensors[count:])
        given = {
            name: gradient if gradient.is_contiguous() else gradient.contiguous()
            for (name, _), gradient in zip(plan.outputs, gradients, strict=True)
            if name in {seed for seed, _ in plan.seeds}
        }
        if ctx.samples is None or PROFILE.active:
            return (None, None, None, *plan.run_backward(env, given))
        with profiling() as taken:
            result = plan.run_backward(env, given)
        ctx.samples.extend(taken)
        return (None, None, None, *result)


def _distinct(outputs: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Every output a tensor of its own, as torch's graph wants it: neither an input nor another output."""
    seen = {id(tensor) for tensor in inputs}
    made = []
    for tensor in outputs:
        made.append(tensor.clone() if id(tensor) in seen else tensor)
        seen.add(id(tensor))
    return tuple(made)
