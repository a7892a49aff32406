"""Losses over entries against torch in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from graphweft._errors import IndexRangeError, ShapeError
from graphweft.runtime.entry_loss import Kind, entry_loss, entry_loss_cells, known_entries


def _data(n: int, c: int, kind: Kind, unknown: float = 0.2) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(n + c)
    outputs = 6 * torch.randn(n, c, generator=rng)
    labels = torch.randn(n, c, generator=rng)
    labels = (labels > 0.3).float() if kind == "binary" else labels
    labels[torch.rand(n, c, generator=rng) < unknown] = float("nan")
    labels[0, 0] = 1.0
    return outputs, labels


def _truth(kind: Kind, outputs: Tensor, labels: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
    leaf = outputs.double().requires_grad_()
    picked, wanted = (leaf, labels.double()) if rows is None else (leaf[rows], labels.double()[rows])
    known = ~wanted.isnan()
    loss_of = functional.binary_cross_entropy_with_logits if kind == "binary" else functional.mse_loss
    loss = loss_of(picked[known], wanted[known])
    return loss.detach(), torch.autograd.grad(loss, leaf)[0]


@pytest.mark.parametrize("kind", ["binary", "squared"])
@pytest.mark.parametrize(("n", "c"), [(1, 1), (3000, 1), (700, 5), (301, 16), (90, 121), (3, 2000)])
@pytest.mark.parametrize("listed", [False, True])
def test_loss_gradient_and_counts_are_those_of_torch(kind: Kind, n: int, c: int, listed: bool) -> None:
    outputs, labels = _data(n, c, kind)
    rows = torch.cat([torch.arange(0, n, 2), torch.tensor([0])]) if listed else None  # the first row twice
    found = entry_loss(kind, outputs, labels, rows)
    loss, gradient = _truth(kind, outputs, labels, rows)
    torch.testing.assert_close(found.loss.double(), loss, rtol=1e-6, atol=0)
    assert found.gradient is not None
    torch.testing.assert_close(found.gradient.double(), gradient, rtol=1e-5, atol=5e-7 / found.known)
    picked, wanted = (outputs, labels) if rows is None else (outputs[rows], labels[rows])
    counts = [~wanted.isnan(), (picked > 0) & (wanted > 0.5), (picked > 0) & ~wanted.isnan(), wanted > 0.5]
    assert [found.known, found.hits, found.predicted, found.actual] == [int(one.sum()) for one in counts]


@pytest.mark.parametrize("kind", ["binary", "squared"])
@pytest.mark.parametrize("c", [1, 37])
def test_the_same_bits_for_any_number_of_threads(kind: Kind, c: int, threads_restored: None) -> None:
    outputs, labels = _data(40_000 // c, c, kind)
    rows = torch.arange(0, outputs.shape[0], 3)
    found = []
    for threads in (1, 2, 3, 5):
        torch.set_num_threads(threads)
        found += [(entry_loss(kind, outputs, labels), entry_loss(kind, outputs, labels, rows))]
    for pair in found[1:]:
        for one, other in zip(found[0], pair, strict=True):
            assert torch.equal(one.loss, other.loss) and one[1:5] == other[1:5]
            assert one.gradient is not None and other.gradient is not None
            assert torch.equal(one.gradient, other.gradient)


def test_small_losses_keep_their_digits_and_large_ones_stay_finite() -> None:
    outputs = torch.tensor([[30.0, -40.0, 12.0, -300.0]])
    labels = torch.tensor([[1.0, 0.0, 1.0, 1.0]])
    for column in range(4):
        found = entry_loss("binary", outputs[:, [column]], labels[:, [column]])
        loss, _ = _truth("binary", outputs[:, [column]], labels[:, [column]], None)
        assert float(found.loss) == pytest.approx(float(loss), rel=1e-6)


def test_the_gradient_may_be_written_over_the_outputs() -> None:
    outputs, labels = _data(50, 7, "squared")
    expected = entry_loss("squared", outputs, labels).gradient
    cells, gradient = entry_loss_cells("squared", outputs, labels, None, known_entries(labels), over=True)
    assert gradient is outputs and expected is not None and torch.equal(outputs, expected)
    assert cells.mean > 0


@pytest.mark.parametrize("kind", ["binary", "squared"])
def test_float64_runs_in_torch(kind: Kind) -> None:
    outputs, labels = _data(20, 3, kind)
    found = entry_loss(kind, outputs.double(), labels, torch.arange(0, 20, 3))
    loss, gradient = _truth(kind, outputs, labels, torch.arange(0, 20, 3))
    assert float(found.loss) == pytest.approx(float(loss), rel=1e-12)
    torch.testing.assert_close(found.gradient, gradient)


def test_what_does_not_fit_is_told() -> None:
    with pytest.raises(ShapeError, match=r"one shape \(n, c\), got \(3, 2\) and \(3,\)"):
        entry_loss("binary", torch.zeros(3, 2), torch.zeros(3))
    with pytest.raises(IndexRangeError, match=r"entry_loss: expected ids in \[0, 3\), got 3 at position 1"):
        entry_loss("binary", torch.zeros(3, 2), torch.zeros(3, 2), torch.tensor([0, 3]))
    nothing = entry_loss("binary", torch.zeros(1, 2), torch.full((1, 2), float("nan")))
    assert nothing.known == 0 and bool(nothing.loss.isnan())
