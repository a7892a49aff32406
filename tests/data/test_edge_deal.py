"""Edges dealt to parts and compressed, against NumPy's stable sorts."""

import numpy as np
import pytest
import torch

from graphweft.data.edge_deal import compressed, dealt


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize(("parts", "of"), [(1, np.uint8), (7, np.uint8), (300, np.uint16), (70_000, np.uint32)])
def test_pairs_are_those_of_a_stable_sort_by_part(kind, parts, of):
    rng = np.random.default_rng(parts)
    nodes, edges = 90_000, 50_000
    src, dst = rng.integers(0, nodes, (2, edges))
    part, new_id = rng.integers(0, parts, nodes).astype(of), rng.permutation(nodes).astype(kind)
    order = np.argsort(part[dst], kind="stable")
    for ids in (new_id, None):
        pairs, cuts = dealt(src, dst, part, ids, parts, np.dtype(kind))
        table = np.arange(nodes) if ids is None else ids
        np.testing.assert_array_equal(pairs, np.stack([table[dst], table[src]], axis=1)[order])
        np.testing.assert_array_equal(cuts, np.searchsorted(part[dst][order], np.arange(parts + 1)))


def test_no_edges():
    none = np.empty(0, np.int64)
    pairs, cuts = dealt(none, none, np.zeros(3, np.uint8), None, 2, np.dtype("int32"))
    assert pairs.shape == (0, 2) and cuts.tolist() == [0, 0, 0]
    indptr, sources = compressed(pairs, 4, 3, once=True)
    assert indptr.tolist() == [0, 0, 0, 0] and len(sources) == 0


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("rows", [1, 50, 3000])
def test_rows_are_those_of_a_sort_by_both_ends(kind, rows):
    rng = np.random.default_rng(rows)
    first, edges = 1000, 40_000
    pairs = np.stack(
        [first + (rows * rng.random(edges) ** 2).astype(int), rng.integers(900, 4200, edges)], axis=1
    ).astype(kind)
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))
    indptr, sources = compressed(pairs, first, rows)
    np.testing.assert_array_equal(sources, pairs[order, 1])
    np.testing.assert_array_equal(indptr, np.searchsorted(pairs[order, 0], first + np.arange(rows + 1)))
    once = np.unique(pairs, axis=0)
    once = once[once[:, 0] != once[:, 1]]
    indptr, sources = compressed(pairs, first, rows, once=True)
    np.testing.assert_array_equal(sources, once[:, 1])
    np.testing.assert_array_equal(indptr, np.searchsorted(once[:, 0], first + np.arange(rows + 1)))


def test_threads_change_nothing():
    rng = np.random.default_rng(3)
    src, dst = rng.integers(0, 5000, (2, 300_000))
    part, found = rng.integers(0, 16, 5000).astype(np.uint8), []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            pairs, _ = dealt(src, dst, part, None, 16, np.dtype("int32"))
            found.append([pairs, *compressed(pairs, 0, 5000, once=True)])
    finally:
        torch.set_num_threads(before)
    for others in found[1:]:
        assert all(np.array_equal(one, other) for one, other in zip(found[0], others, strict=True))
