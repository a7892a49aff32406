"""Scores against counts made by hand in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from graphweft.train.metrics import accuracy, binary_cross_entropy, micro_f1, score


@pytest.mark.parametrize("rows", [1, 7, 100])
def test_accuracy_counts_rows(rows: int) -> None:
    rng = np.random.default_rng(rows)
    logits, labels = rng.normal(size=(rows, 5)), rng.integers(0, 5, rows)
    expected = float(np.mean(logits.argmax(1) == labels))
    assert accuracy(torch.from_numpy(logits), torch.from_numpy(labels)) == expected


@pytest.mark.parametrize("seed", range(3))
def test_micro_f1_is_of_all_pairs_together(seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits, labels = rng.normal(size=(50, 4)), rng.integers(0, 2, (50, 4))
    predicted = logits > 0
    precision = (predicted & (labels == 1)).sum() / predicted.sum()
    recall = (predicted & (labels == 1)).sum() / labels.sum()
    expected = 2 * precision * recall / (precision + recall)
    value = micro_f1(torch.from_numpy(logits), torch.from_numpy(labels).float())
    assert value == pytest.approx(expected, rel=1e-12)


def test_nothing_to_measure_is_none() -> None:
    assert accuracy(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)) is None
    assert micro_f1(torch.zeros(0, 3), torch.zeros(0, 3)) is None
    assert micro_f1(-torch.ones(2, 3), torch.zeros(2, 3)) == 1.0


def test_score_follows_the_shape_of_the_labels() -> None:
    logits = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    assert score(logits, torch.tensor([0, 0])) == 0.5
    assert score(logits, torch.tensor([[1.0, 0.0], [1.0, 0.0]])) == 0.5


@pytest.mark.parametrize("unknown", [0.0, 0.3])
def test_binary_cross_entropy_and_its_gradient_are_the_same_for_any_number_of_threads(
    unknown: float, threads_restored: None
) -> None:
    """More entries than torch leaves to one thread; against float64."""
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(1003, 101, generator=generator)
    labels = (torch.rand(logits.shape, generator=generator) < 0.3).float()
    labels[torch.rand(logits.shape, generator=generator) < unknown] = float("nan")
    found = []
    for threads in (1, 2, 3, 4):
        torch.set_num_threads(threads)
        leaf = logits.clone().requires_grad_()
        loss = binary_cross_entropy(leaf, labels)
        found.append((loss.detach(), torch.autograd.grad(loss, leaf)[0]))
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))
    exact, known = logits.double(), ~labels.isnan()
    share = torch.where(known, (exact.sigmoid() - labels) / known.sum(), 0.0)
    torch.testing.assert_close(found[0][1].double(), share, rtol=1e-4, atol=1e-10)
    single = torch.where(known, torch.log1p(torch.exp(exact)) - exact * labels.nan_to_num().double(), 0.0)
    assert float(found[0][0]) == pytest.approx(float(single.sum() / known.sum()), rel=1e-6)
