"""Trials of losses on a device, against torch in float64. Run by ``trials.py``."""

from __future__ import annotations

import torch
from cuda.halves import HALVES, drawn
from torch import Tensor
from torch.nn import functional

from graphweft.runtime.cuda.losses import class_loss


def by_torch(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Loss and gradient in float64."""
    leaf = logits.double().requires_grad_()
    loss = functional.cross_entropy(leaf, labels)
    return loss.detach(), torch.autograd.grad(loss, leaf)[0]


def class_losses_of_rows() -> None:
    """One class and many, one row and several blocks of rows, large logits, infinite ones, and 16 bits."""
    for rows, classes in ((1, 1), (3, 2), (37, 47), (5, 600)):
        for dtype in (torch.float32, torch.float64, *HALVES):
            logits, labels = drawn(rows, classes, dtype=dtype).mul(20), torch.arange(rows) * 7 % classes
            loss, slope = class_loss(logits, labels)
            wanted, by = by_torch(logits, labels)
            assert slope.dtype == dtype and loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
            close = HALVES.get(dtype, 1e-5)
            torch.testing.assert_close(loss.double(), wanted, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(slope.double(), by, rtol=close, atol=close / rows)
    hidden = torch.tensor([[0.0, -torch.inf], [100.0, -100.0]])
    labels = torch.tensor([0, 1])
    for got, other in zip(class_loss(hidden, labels), by_torch(hidden, labels), strict=True):
        torch.testing.assert_close(got.double(), other)
    assert class_loss(torch.tensor([[torch.nan, 0.0]]), labels[:1])[0].isnan()
    listed = class_loss(drawn(4, 3), torch.arange(4) % 3, torch.tensor([2, 0, 2]))  # of some rows, one of them twice
    leaf = drawn(4, 3).double().requires_grad_()
    loss = functional.cross_entropy(leaf[[2, 0, 2]], torch.tensor([2, 0, 2]))
    torch.testing.assert_close(listed[0].double(), loss.detach(), rtol=1e-6, atol=0.0)
    torch.testing.assert_close(listed[1].double(), torch.autograd.grad(loss, leaf)[0], rtol=1e-5, atol=1e-6)
