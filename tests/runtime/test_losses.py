"""Losses that wait for no number, against torch's autograd in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from graphweft.runtime.losses import LOSSES


def by_torch(kind: str, outputs: Tensor, labels: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
    """The mean over the entries that are known, by a mask."""
    leaf = outputs.double().requires_grad_()
    picked, given = (leaf, labels) if rows is None else (leaf[rows], labels[rows])
    if kind == "classes":
        loss = functional.cross_entropy(picked, given)
    else:
        known = ~given.isnan()
        function = functional.binary_cross_entropy_with_logits if kind == "binary" else functional.mse_loss
        loss = function(picked[known], given[known].double())
    return loss.detach(), torch.autograd.grad(loss, leaf)[0]


@pytest.mark.parametrize("kind", ["classes", "binary", "squared"])
@pytest.mark.parametrize("rows", [None, [4, 0, 4, 2]])
def test_losses_and_gradients(kind: str, rows: list[int] | None) -> None:
    outputs = torch.randn(6, 3, generator=torch.Generator().manual_seed(1)).mul(5)
    labels = torch.arange(6) % 3 if kind == "classes" else torch.arange(18).view(6, 3).remainder(2).float()
    if kind != "classes":
        labels[4, 1] = labels[0, 0] = torch.nan
    listed = None if rows is None else torch.tensor(rows)
    found = LOSSES[kind](outputs, labels, listed)
    for got, wanted in zip(found, by_torch(kind, outputs, labels, listed), strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-6)
