"""The edges that groups keep, told beforehand, against the induced graphs of all groups there are."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from parted import PARTS, matrix_of, seeds_of

import graphweft as gw
from graphweft.loader.group_loader import GroupLoader
from graphweft.loader.kept_edges import Prospect
from graphweft.loader.neighbours import Neighbours, most_read
from graphweft.loader.parts import MemoryParts

WAYS = [(1, 0.0), (2, 0.0), (PARTS, 0.0), (1, 0.5), (2, 0.5), (3, 0.25), (2, 16.0)]


def _of_all_groups(ds: gw.Dataset, source: MemoryParts, count: int, share: float) -> float:
    """The mean over all groups, each induced by SciPy; of every edge, whose row is in so many of them."""
    whole, bounds = matrix_of(ds, source), source.bounds
    brought, _ = most_read(source, seeds_of(ds, source), 2, share)
    kept = 0
    for parts in itertools.combinations(range(PARTS), count):
        rows = np.concatenate([np.arange(bounds[p], bounds[p + 1]) for p in parts])
        columns = np.unique(np.concatenate([rows, *(brought[p] for p in parts)]))
        kept += whole[rows][:, columns].nnz
    return kept / (math.comb(PARTS - 1, count - 1) * whole.nnz)


def test_the_share_is_that_of_all_groups(ds: gw.Dataset, source: MemoryParts) -> None:
    found = Prospect(source, seeds_of(ds, source), 2, 16.0).kept(WAYS)
    expected = [_of_all_groups(ds, source, *way) for way in WAYS]
    assert np.allclose(found, expected, atol=1e-12)
    assert found[2] == 1.0 and found[0] < found[1] < found[4] < found[6]


def test_a_loader_has_about_as_many(ds: gw.Dataset, source: MemoryParts) -> None:
    seeds = seeds_of(ds, source)
    loader = GroupLoader(source, seeds, [2, 2], 64, True, 0, count=2, neighbours=Neighbours(source, seeds, 2, 0.5))
    for _ in range(20):
        assert len(list(loader)) > 0
    assert loader.times.edges is not None
    total, kept = loader.times.edges.sum(1)
    assert kept / total == pytest.approx(Prospect(source, seeds, 2, 0.5).kept([(2, 0.5)])[0], abs=0.02)


def test_parts_without_edges_lose_none() -> None:
    source = MemoryParts(gw.Graph([], [], num_nodes=4), None, torch.zeros(4), torch.tensor([0, 0, 1, 1]), 2)
    assert Prospect(source, torch.arange(2), 2, 1.0).kept([(1, 1.0)]) == [1.0]


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_sizes_are_those_of_what_is_brought(share: float, ds: gw.Dataset, source: MemoryParts) -> None:
    seeds = seeds_of(ds, source)
    told, found = Prospect(source, seeds, 2, 4.0).sizes(share), Neighbours(source, seeds, 2, share).sizes
    assert np.array_equal(told.nodes, found.nodes) and np.array_equal(told.entries, found.entries)
    assert np.array_equal(told.group_bytes(8), found.group_bytes(8)) and found.nodes.all()
