"""The fused loss against torch's, differentiated once, twice and three times."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from graphweft.nn.loss import cross_entropy

LISTED = torch.tensor([0, 2, 2, 4])


def _given() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    logits = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    return logits, torch.tensor([1, 0, 3, 2, 2, 1])


@pytest.mark.parametrize("rows", [None, LISTED], ids=["all", "listed"])
def test_the_gradient_can_be_differentiated(rows: Tensor | None) -> None:
    logits, labels = _given()
    assert torch.autograd.gradcheck(lambda z: cross_entropy(z, labels, rows), logits)
    assert torch.autograd.gradgradcheck(lambda z: cross_entropy(z, labels, rows), logits)


@pytest.mark.parametrize("rows", [None, LISTED], ids=["all", "listed"])
def test_three_derivatives_equal_torch(rows: Tensor | None) -> None:
    logits, labels = _given()

    def derivatives(loss: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (first,) = torch.autograd.grad(loss * 1.7, logits, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum() + loss, logits, create_graph=True)
        (third,) = torch.autograd.grad(second.pow(3).sum(), logits)
        return first, second, third

    plain = (logits, labels) if rows is None else (logits[rows], labels[rows])
    found = derivatives(cross_entropy(logits, labels, rows))
    torch.testing.assert_close(found, derivatives(functional.cross_entropy(*plain)))


def test_labels_of_rows_that_are_not_listed_are_not_read() -> None:
    logits, labels = _given()
    labels[5] = -1
    (first,) = torch.autograd.grad(cross_entropy(logits, labels, LISTED), logits, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), logits)
    assert not second[5].any() and bool(second[2].any())
