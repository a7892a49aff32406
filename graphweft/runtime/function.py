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
    """``RunPlan.apply(plan, env, samples, *tensors)``; the backward pass is the plan's, not torch's."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, env: Slots, samples: list[Any] | None, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Runs the forward calls and saves the slots that the backward calls read."""
        outputs = plan.run_forward(env, tensors)
        ctx.plan, ctx.samples = plan, samples
        held = [_shape_of(env[slot]) if slot in plan.saved_shapes else env[slot] for slot in plan.saved]
        ctx.is_tensor = [isinstance(item, Tensor) for item in held]
        ctx.others = [item for item in held if not isinstance(item, Tensor)]
        ctx.save_for_backward(*[item for item in held if isinstance(item, Tensor)])
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
        tensors, others = iter(ctx.saved_tensors), iter(ctx.others)
        env: Slots = [None] * plan.width
        for slot, is_tensor in zip(plan.saved, ctx.is_tensor, strict=True):
            env[slot] = next(tensors) if is_tensor else next(others)
        given = {
            name: gradient if gradient.is_contiguous() else gradient.contiguous()
            for (name, _), gradient in zip(plan.outputs, gradients, strict=True)
        }
        if ctx.samples is None or PROFILE.active:
            return (None, None, None, *plan.run_backward(env, given))
        with profiling() as taken:
            result = plan.run_backward(env, given)
        ctx.samples.extend(taken)
        return (None, None, None, *result)


def _shape_of(item: Any) -> Any:
    """A tensor of the same shape over one element: carries the shape, keeps no memory."""
    return item.new_empty(()).expand(item.shape) if isinstance(item, Tensor) else item
