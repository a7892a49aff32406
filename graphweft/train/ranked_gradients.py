"""Gradients of a model as rows of numbers that ranks can add up.

Comes in: a model after its backward pass. Goes out: a row, and from the sum of rows the gradients. Called by the ways
to take a step over ranks.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphweft._errors import ConfigError
from graphweft.dist.ranks import Ranks


class GradientRows:
    """Gradients of a model as one row: numbers, then 1 for each parameter that has some, then the loss."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters = list(model.parameters())
        sizes = [parameter.numel() for parameter in self.parameters]
        self._ends = torch.tensor([0, *sizes]).cumsum(0).tolist()
        kinds = [parameter.dtype for parameter in self.parameters]
        self._dtype = torch.float64 if torch.float64 in kinds else torch.float32

    def rows(self, count: int) -> Tensor:
        """Room for the gradients of some slices, zeros."""
        return torch.zeros(count, self._ends[-1] + len(self.parameters) + 1, dtype=self._dtype)

    def write(self, row: Tensor, share: float, loss: float) -> None:
        """The gradients that the parameters have, times ``share``."""
        for index, parameter in enumerate(self.parameters):
            if parameter.grad is not None:
                torch.mul(parameter.grad.reshape(-1), share, out=row[self._ends[index] : self._ends[index + 1]])
                row[self._ends[-1] + index] = 1.0
        row[-1] = loss * share

    def put(self, total: Tensor, weight: int, before: list[Tensor | None] | None) -> None:
        """Gives the parameters their summed gradients, times ``weight``, added to those from ``before``."""
        for index, parameter in enumerate(self.parameters):
            found = None
            if total[self._ends[-1] + index] > 0:
                found = total[self._ends[index] : self._ends[index + 1]].reshape(parameter.shape).to(parameter.dtype)
                found = found * weight if weight != 1 else found.clone()
            known = None if before is None else before[index]
            parameter.grad = found if known is None else known if found is None else known + found


def check_model(ranks: Ranks, model: nn.Module) -> None:
    """Raises: ConfigError for a model whose result on a batch depends on who else is in it."""
    kinds = nn.modules.batchnorm._BatchNorm
    if any(isinstance(module, kinds) for module in model.modules()):
        raise conflict(ranks, "norm=batch", "norm='layer'")


def conflict(ranks: Ranks, what: str, remedy: str) -> ConfigError:
    """What is said of ``what``, which several ranks cannot share."""
    return ConfigError(f"{what} cannot be combined with ranks={ranks.size}; use {remedy} or one rank")
