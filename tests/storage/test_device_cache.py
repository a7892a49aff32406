"""What a device keeps within its memory: the best a byte, against every choice; expected reads against counted ones."""

from __future__ import annotations

import itertools

import pytest
import torch
from zoo import power_law_edges

import graphweft as gw
from graphweft.storage.device_cache import SECTOR, choose, expected_reads


def worth(reads: torch.Tensor, row: int, degrees: torch.Tensor, fanout: int) -> list[tuple[int, float]]:
    """(bytes, bytes saved) of every row, then of every list, in plain Python."""
    rows = [(row, float(p) * row) for p in reads]
    lists = []
    for p, d in zip(reads.tolist(), degrees.tolist(), strict=True):
        drawn = d if fanout < 0 else min(d, fanout)
        lists.append((4 * d + 16, p * (min(drawn * SECTOR, 4 * d) + 16)))
    return rows + lists


@pytest.mark.parametrize("seed", range(30))
def test_the_choice_is_within_one_item_of_the_best(seed: int) -> None:
    """Of all 1,024 choices of five rows and five lists; and it never takes more than there is."""
    random = torch.Generator().manual_seed(seed)
    reads, degrees = torch.rand(5, generator=random), torch.randint(0, 40, (5,), generator=random)
    budget, fanout = int(torch.randint(0, 600, (1,), generator=random)), (-1, 2, 10)[seed % 3]
    items = worth(reads, 64, degrees, fanout)
    best = max(
        sum(items[k][1] for k in picked)
        for count in range(11)
        for picked in itertools.combinations(range(10), count)
        if sum(items[k][0] for k in picked) <= budget
    )
    share = choose(budget, reads, 64, degrees, fanout)
    taken = [*share.rows.tolist(), *(5 + share.lists).tolist()]
    assert share.nbytes == sum(items[k][0] for k in taken) <= budget
    assert share.saved == pytest.approx(sum(items[k][1] for k in taken))
    left = [k for k in range(10) if k not in taken]
    assert all(items[k][0] > budget - share.nbytes or items[k][1] == 0 for k in left)
    largest = max((saved for size, saved in items if size <= budget), default=0.0)
    assert share.saved >= best - largest - 1e-6


def test_without_lists_the_hottest_rows_are_kept() -> None:
    reads = torch.tensor([0.2, 0.0, 0.9, 0.5])
    assert choose(80, reads, 40, None).rows.tolist() == [2, 3]
    assert choose(1000, reads, 40, None).rows.tolist() == [0, 2, 3]  # what is never read saves nothing
    assert choose(39, reads, 40, None).nbytes == 0


def test_expected_reads_are_near_those_that_are_counted() -> None:
    """Over 600 batches; what they keep serves nearly as many reads as the best choice afterwards would."""
    found = power_law_edges(120, 700, seed=2)
    graph, seeds = gw.Graph(found.src, found.dst, num_nodes=120), torch.arange(0, 120, 3)
    counts, sampler = torch.zeros(120), gw.sampling.NeighborSampler(graph, [3, 2])
    for epoch in range(60):
        order = seeds[torch.randperm(40, generator=torch.Generator().manual_seed(epoch))]
        for batch in order.split(4):
            counts[sampler.sample(batch, epoch=epoch).n_id] += 1
    reads = expected_reads(graph, seeds, 4, [3, 2])
    shares = counts / 600
    assert float((reads - shares).abs().mean()) < 0.04
    kept = choose(30 * 8, reads, 8, None).rows
    assert kept.numel() == 30
    assert float(counts[kept].sum()) > 0.95 * float(counts.topk(30).values.sum())
