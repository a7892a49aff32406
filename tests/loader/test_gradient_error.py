"""The error of a sampled gradient, split by source and stage: Monte Carlo on a small GCN (thesis, 3.5 to 3.7)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from zoo import random_edges

import graphweft as gw
from graphweft.sample.multistage import Nest
from graphweft.sample.stages import Key, LargeBatch

SEEDS, MACRO, BATCH = 60, 20, 5


class Case:
    """A graph, features, labels and a two-layer GCN written in plain float64 torch over the edges of a batch."""

    def __init__(self) -> None:
        made = random_edges(90, 900, seed=4)
        self.graph = gw.Graph(made.src, made.dst, num_nodes=90).to_bidirected()
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(90, 5, generator=generator, dtype=torch.float64)
        self.y = torch.randint(3, (90,), generator=generator)
        self.w0 = nn.Parameter(torch.randn(5, 8, generator=generator, dtype=torch.float64))
        self.w1 = nn.Parameter(torch.randn(8, 3, generator=generator, dtype=torch.float64))

    def gradient(self, n_id, blocks, count) -> np.ndarray:
        """Gradient of the mean loss of the first ``count`` nodes; mean over drawn in-edges, ReLU between layers."""
        h = self.x[n_id]
        for index, (edges, rows) in enumerate(blocks):
            src, dst = edges
            total = torch.zeros(rows, h.shape[1], dtype=torch.float64).index_add(0, dst, h[src])
            degree = torch.zeros(rows, dtype=torch.float64).index_add(0, dst, torch.ones(len(dst), dtype=torch.float64))
            h = (total / degree.clamp(min=1)[:, None] + h[:rows]) @ (self.w1 if index else self.w0)
            h = h if index else torch.relu(h)
        loss = nn.functional.cross_entropy(h[:count], self.y[n_id[:count]])
        return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, (self.w0, self.w1))]).numpy()

    def of(self, sample) -> np.ndarray:
        blocks = [((b.csc.indices.long(), torch.repeat_interleave(b.in_degrees())), b.num_dst) for b in sample.blocks]
        return self.gradient(sample.n_id, blocks, sample.batch_size)


def by_hand(case: Case, trials: int) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of two stages drawn in plain torch: four in-edges a node, and two of those."""
    src, dst = case.graph.edges()
    generator = torch.Generator().manual_seed(9)
    rows = [(dst == v).nonzero().reshape(-1) for v in range(90)]
    first, second = [], []
    for _ in range(trials):
        seeds = torch.randperm(SEEDS, generator=generator)[:BATCH]
        n_id = torch.cat([seeds, torch.arange(90)[~torch.isin(torch.arange(90), seeds)]])
        place = torch.empty(90, dtype=torch.int64).index_copy(0, n_id, torch.arange(90))
        four = [row[torch.randperm(row.numel(), generator=generator)[:4]] for row in rows]  # in random order
        for found, kept in ((first, torch.cat(four)), (second, torch.cat([row[:2] for row in four]))):
            found.append(case.gradient(n_id, [((place[src[kept]], place[dst[kept]]), 90)] * 2, BATCH))
    return np.stack(first), np.stack(second)


@pytest.fixture(scope="module")
def drawn():
    """Gradients by trial: exact per seed, and of macro-batch, batch, its first-stage sample and its slice of two."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small operations
    try:
        return _trials()
    finally:
        torch.set_num_threads(threads)


def _trials():
    case = Case()
    every = torch.arange(90)
    src, dst = case.graph.edges()
    exact = np.stack(
        [
            case.gradient(torch.cat([v[None], every[every != v]]), _whole(src, dst, int(v)), 1)
            for v in torch.arange(SEEDS)
        ]
    )
    nest = Nest(case.graph, torch.arange(SEEDS), [LargeBatch(MACRO, (4, 4)), LargeBatch(BATCH, (2, 2))])
    wide = Nest(case.graph, torch.arange(SEEDS), [LargeBatch(BATCH, (16, 16))])
    slices = Nest(case.graph, torch.arange(SEEDS), [LargeBatch(MACRO, (4, 4)), LargeBatch(BATCH, (-1, -1))])
    rows = []
    for trial in range(400):
        plan = nest.plan(Key(trial, 0))
        position = trial % len(plan.batches)
        planned = plan.batches[position]
        macro = np.concatenate([b.places.numpy() for b in plan.batches if b.path == planned.path])
        first = case.of(slices.batch(plan, position).sample)
        second = case.of(nest.batch(plan, position).sample)
        own = exact[planned.places.numpy()].mean(0)
        flat = wide.plan(Key(trial, 1))
        rows.append(
            (
                exact[macro].mean(0),
                own,
                first,
                second,
                exact[flat.batches[0].places.numpy()].mean(0),
                case.of(wide.batch(flat, 0).sample),
            )
        )
    return exact.mean(0), [np.stack(column) for column in zip(*rows, strict=True)]


def _whole(src, dst, v):
    """Both layers over all nodes, numbered with ``v`` first."""
    place = torch.arange(90)
    place[v] = 0
    place[:v] += 1
    return [((place[src], place[dst]), 90)] * 2


def squared(difference) -> float:
    return float((difference**2).sum(1).mean())


def test_error_is_approximation_plus_variance(drawn) -> None:
    """(3.5): where the approximation does not depend on which seeds were drawn, as it hardly does at wide fan-outs."""
    full, (*_, batch, sampled) = drawn
    total = squared(sampled - full)
    assert squared(sampled - batch) + squared(batch - full) == pytest.approx(total, rel=0.05)
    assert squared(sampled - batch) > 0.01 * total


def test_variance_adds_over_stages(drawn) -> None:
    """(3.6)."""
    full, (macro, batch, *_) = drawn
    total = squared(batch - full)
    assert squared(macro - full) + squared(batch - macro) == pytest.approx(total, rel=0.05)


def test_half_of_the_error_is_below_the_sum_of_the_stages(drawn) -> None:
    """(3.7). Within a trial no draw can break it, so the stages' terms are those of a sampler in plain torch."""
    full, (_, _, first, second, *_) = drawn
    one, two = by_hand(Case(), 400)
    assert 0.5 * squared(second - full) <= squared(one - full) + squared(two - one)
    for mine, theirs in ((first - full, one - full), (second - first, two - one), (second - full, two - full)):
        noise = np.hypot(*(np.std((part**2).sum(1)) / np.sqrt(len(part)) for part in (mine, theirs)))
        assert abs(squared(mine) - squared(theirs)) < 4 * noise
        assert noise < 0.1 * squared(theirs)


def test_mean_of_exact_gradients_is_the_whole_gradient(drawn) -> None:
    full, (_, batch, *_) = drawn
    assert np.allclose(batch.mean(0), full, atol=4 * batch.std(0).max() / np.sqrt(len(batch)))
