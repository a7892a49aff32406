"""The built-in differential check: a compiled call against its plain execution, forward and backward.

Comes in: a call, what it captures, and what the compiled form gave. Goes out: nothing, or an error naming the field.
Called by ``user_call.py`` under ``gw.config(verify=True)``. Source: Graphiler, MLSys 2022, section 5.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphweft._errors import GraphWeftError
from graphweft.frontend.call import Call, Fields
from graphweft.frontend.captured import Captured
from graphweft.frontend.reference import run_reference

# relative and absolute tolerance of a sum over many messages, by dtype
_TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-3, torch.bfloat16: 1e-1, torch.float16: 5e-2}


def verify(call: Call, captured: Captured, outputs: Fields) -> None:
    """Compares ``outputs`` and their gradients with those of the functions as written.

    Raises: GraphWeftError naming the first field or input that differs, and by how much.
    """
    expected = run_reference(call)
    if list(expected) != list(outputs):
        raise GraphWeftError(f"verify: expected the fields {list(expected)}, got {list(outputs)}")
    for name, tensor in expected.items():
        _compare(f"field {name!r}", outputs[name], tensor)
    fields = {**call.src, **call.dst, **call.edata, **call.ntype, **call.etype}
    leaves = {f"field {name!r}": t for name, t in fields.items() if t.requires_grad}
    leaves |= {f"captured tensor {at}": t for at, t in enumerate(captured.tensors) if t.requires_grad}
    if not leaves or not torch.is_grad_enabled():
        return
    wanted, got = (_gradients(results, list(leaves.values())) for results in (expected, outputs))
    for name, theirs, mine in zip(leaves, wanted, got, strict=True):
        _compare(f"the gradient of {name}", mine, theirs)


def _gradients(results: Fields, leaves: list[Tensor]) -> list[Tensor]:
    """Gradients of a fixed weighted sum of all results."""
    generator = torch.Generator().manual_seed(0)
    total = torch.zeros(())
    for tensor in results.values():
        if tensor.is_floating_point():
            weights = torch.rand(tensor.shape, generator=generator).to(tensor)
            total = total + (tensor * weights).sum()
    if not total.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    found = torch.autograd.grad(total, leaves, retain_graph=True, allow_unused=True, materialize_grads=True)
    return list(found)


def _compare(what: str, got: Tensor, expected: Tensor) -> None:
    if got.shape != expected.shape or got.dtype != expected.dtype:
        kinds = f"{tuple(expected.shape)} {expected.dtype}, got {tuple(got.shape)} {got.dtype}"
        raise GraphWeftError(f"verify: expected {what} of shape {kinds}")
    tolerance = _TOLERANCES.get(expected.dtype, 0.0)
    scale = float(expected.detach().abs().nan_to_num().max()) if expected.numel() and tolerance else 0.0
    if not torch.allclose(got, expected, rtol=tolerance, atol=tolerance * max(scale, 1.0), equal_nan=True):
        difference = float((got.to(torch.float64) - expected.to(torch.float64)).detach().abs().nan_to_num().max())
        raise GraphWeftError(f"verify: expected {what} as the functions give it, got a difference of {difference:.3g}")
