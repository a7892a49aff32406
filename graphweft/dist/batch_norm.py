"""Batch normalisation whose statistics are those of the rows of all ranks.

Comes in: a model with batch norms and the ranks. Goes out: :func:`shared_norms`, in whose block the norms normalise own
rows by means and variances over all ranks' rows, as one process would. Called by full batches over ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from graphweft._errors import ConfigError
from graphweft.dist.ranks import Ranks

_KINDS = nn.modules.batchnorm._BatchNorm


def batch_norms(model: nn.Module) -> list[nn.BatchNorm1d]:
    """The batch norms of a model. Raises: ConfigError for another kind than those of rows."""
    found = []
    for module in model.modules():
        if isinstance(module, _KINDS):
            if type(module) is not nn.BatchNorm1d:
                raise ConfigError(f"{type(module).__name__} is not supported over several ranks; use nn.BatchNorm1d")
            found.append(module)
    return found


@contextmanager
def shared_norms(ranks: Ranks, norms: list[nn.BatchNorm1d]) -> Iterator[None]:
    """In the block each norm takes the statistics of all ranks' rows; all ranks call them in the same order."""
    for norm in norms:
        norm.__dict__["forward"] = partial(_normalised, ranks, norm)
    try:
        yield
    finally:
        for norm in norms:
            del norm.__dict__["forward"]


def statistics_bytes(width: int) -> tuple[int, ...]:
    """Bytes of the sums over ranks that a norm of so many columns takes in a step: two there, and one back.

    Example:
        >>> statistics_bytes(2)
        (24, 16, 32)
    """
    return 8 * (width + 1), 8 * width, 16 * width


def _normalised(ranks: Ranks, norm: nn.BatchNorm1d, x: Tensor) -> Tensor:
    """As ``norm(x)`` of the rows of all ranks, of which ``x`` (own rows, columns) are this rank's."""
    if x.dim() != 2:
        raise ConfigError(f"BatchNorm1d over several ranks: expected rows (n, columns), got shape {tuple(x.shape)}")
    if not norm.training and norm.running_mean is not None:
        return type(norm).forward(norm, x)
    sums = torch.cat([x.new_tensor([x.shape[0]], dtype=torch.float64), x.detach().sum(0, dtype=torch.float64)])
    ranks.add_up(sums)
    count = max(float(sums[0]), 1.0)
    mean = sums[1:] / count
    squares = (x.detach() - mean.to(x.dtype)).square().sum(0, dtype=torch.float64)  # about the mean: no cancellation
    ranks.add_up(squares)
    variance = squares / count
    if norm.training and norm.running_mean is not None and norm.running_var is not None:
        _remember(norm, mean, variance * (count / max(count - 1, 1)))
    given = (mean.to(x.dtype), (variance + norm.eps).rsqrt().to(x.dtype), count, ranks)
    rows: Tensor = _Normalise.apply(x, *given)  # type: ignore[no-untyped-call]
    return rows if norm.weight is None else rows * norm.weight + norm.bias


def _remember(norm: nn.BatchNorm1d, mean: Tensor, variance: Tensor) -> None:
    """Moves running statistics, as torch does."""
    assert norm.running_mean is not None and norm.running_var is not None and norm.num_batches_tracked is not None
    with torch.no_grad():
        norm.num_batches_tracked += 1
        share = 1.0 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
        norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), share)
        norm.running_var.lerp_(variance.to(norm.running_var.dtype), share)


class _Normalise(torch.autograd.Function):
    """Rows less the mean, times ``scale``, both of all ranks' rows; the gradient goes through both."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mean: Tensor, scale: Tensor, count: float, ranks: Ranks) -> Tensor:
        out = (x - mean) * scale
        ctx.save_for_backward(out, scale)
        ctx.count, ctx.ranks = count, ranks
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), (out, scale) = gradients, ctx.saved_tensors
        sums = torch.stack([gradient.sum(0, dtype=torch.float64), (gradient * out).sum(0, dtype=torch.float64)])
        ctx.ranks.add_up(sums)
        mean, along = (sums / ctx.count).to(gradient.dtype)
        return scale * (gradient - mean - out * along), None, None, None, None
