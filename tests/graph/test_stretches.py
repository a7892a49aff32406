"""Entries by stretches of columns: those of the adjacency, read by full-batch training, with the same bits."""

from __future__ import annotations

import functools
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch
from same_bits import threads as using_threads
from scipy.sparse import csr_matrix

import graphweft as gw
from graphweft.data.dataset import Dataset
from graphweft.graph import stretches
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.stretches import often_read, ordered_bytes, reading_often, stretches_of
from graphweft.runtime.cpu import products
from graphweft.runtime.sparse import spmm, spmm_max
from graphweft.train.needs import RunBudget

ROWS, COLUMNS, DEGREE = 11_000, 12_000, 400


@functools.cache
def _edges(rows: int = ROWS, columns: int = COLUMNS) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.Generator().manual_seed(3)
    to = torch.arange(rows).repeat_interleave(DEGREE)
    return to, torch.randint(columns, (to.numel(),), generator=drawn)


def _adjacency(loops_behind: bool = False) -> Adjacency:
    to, ends = _edges()
    key = torch.sort(to * COLUMNS + ends).values
    ends = key % COLUMNS
    if loops_behind:
        ends[DEGREE - 1 :: DEGREE] = torch.arange(ROWS)
    return Adjacency.from_coo(to, ends, ROWS, COLUMNS)


@pytest.mark.parametrize("loops_behind", [False, True])
def test_ordered_entries_are_those_of_the_adjacency(loops_behind: bool) -> None:
    adjacency = _adjacency(loops_behind)
    made = stretches._made(adjacency)
    assert made is not None
    rows, starts, lengths, behind, inside = (a.numpy() for a in made.arrays)
    count, pieces = starts.shape
    assert count >= 2 and rows[-1] == lengths.shape[1]
    found = np.full((count, rows[-1], lengths.max()), -1)
    for stretch in range(count):
        for piece in range(pieces):
            at = starts[stretch, piece]
            for row in range(rows[piece], rows[piece + 1]):
                own = inside[at : at + lengths[stretch, row]].astype(np.int64) & 0xFFFF
                found[stretch, row, : own.size] = own + stretch * made.native.columns
                at += own.size
    listed = [
        [*part[part >= 0], *([end] if end >= 0 else [])] for part, end in zip(found.swapaxes(0, 1), behind, strict=True)
    ]
    assert rows[-1] == ROWS  # no row is cut
    assert np.array_equal(np.concatenate(listed), adjacency.indices.numpy())
    assert bool((behind >= 0).any()) == loops_behind
    taken = sum(a.nbytes for a in made.arrays)
    assert ordered_bytes(ROWS, COLUMNS, adjacency.num_edges) == pytest.approx(taken, rel=0.02)


@pytest.mark.parametrize("width", [16, 32, 41, 70])
def test_sums_and_maxima_have_the_same_bits(width: int) -> None:
    plain, ordered = _adjacency(), _adjacency()
    with reading_often():
        assert often_read(ordered) is ordered and ordered.native.stretches
    assert not often_read(plain).native.stretches  # outside, nobody says that it pays
    x = torch.randn(COLUMNS, width, generator=torch.Generator().manual_seed(1))
    entries = np.ones(ordered.num_edges), ordered.indices.numpy(), ordered.indptr.numpy()
    wanted = csr_matrix(entries, (ROWS, COLUMNS)) @ x.double().numpy()
    np.testing.assert_allclose(spmm(ordered, x).numpy(), wanted, rtol=1e-4, atol=1e-4)
    x[::1000] = torch.nan
    for count in (1, 2, 3):
        with using_threads(count):
            for reduce in ("sum", "mean"):
                assert _bits(spmm(plain, x, reduce=reduce)) == _bits(spmm(ordered, x, reduce=reduce))
            for minimum in (False, True):
                one, other = (spmm_max(a, x, minimum=minimum, want_arg=True) for a in (plain, ordered))
                assert _bits(one[0]) == _bits(other[0]) and torch.equal(one[1], other[1])


def _bits(x: torch.Tensor) -> bytes:
    return x.numpy().tobytes()


def test_rows_in_no_order_and_small_graphs_are_left() -> None:
    to, ends = _edges()
    mixed = Adjacency.from_coo(to, ends, ROWS, COLUMNS)
    small = Adjacency.from_coo(to[:4000], ends[:4000], ROWS, COLUMNS)
    with reading_often():
        assert not often_read(mixed).native.stretches and not often_read(small).native.stretches
    assert ordered_bytes(ROWS, COLUMNS, 4000) == 0
    assert stretches_of(4000, 8_000_000, 4000) == 0  # all rows stay in a core's own cache
    assert stretches_of(132_534, 79_122_504, 132_534) == 26 and stretches_of(232_965, 114_615_892, 232_965) == 23


@functools.cache
def _dataset() -> Dataset:
    to, ends = _edges(COLUMNS)
    drawn = torch.Generator().manual_seed(5)
    x, y = torch.randn(COLUMNS, 40, generator=drawn), torch.randint(4, (COLUMNS,), generator=drawn)
    nodes = torch.randperm(COLUMNS, generator=drawn)
    key = torch.sort(to * COLUMNS + ends).values  # columns ascend within rows
    graph = gw.Graph(key % COLUMNS, to, COLUMNS)
    return Dataset("dense", graph, x, y, nodes[:10_000], nodes[10_000:11_000], nodes[11_000:], 4)


def _trained(orders: bool, **options: object) -> tuple[list[float], list[bool], list[bool]]:
    """Losses; of every adjacency that sums read, whether its entries are in order and whether it is read often."""
    ds = _dataset()
    ds = replace(ds, graph=gw.Graph(*ds.graph.edges(), COLUMNS))  # which has no entries in order yet
    torch.manual_seed(0)
    read: list[Adjacency] = []
    often: list[bool] = []

    def noted(adjacency: Adjacency) -> Adjacency:
        read.append(often_read(adjacency) if orders else adjacency)
        often.append(stretches._OFTEN.get())
        return adjacency

    with mock.patch.object(products, "often_read", noted):
        trainer = gw.Trainer(gw.nn.SAGE(40, 24, 4, num_layers=2), ds, seed=1, **{"mode": "full", **options})
        losses = trainer.fit(3)["loss"]
    return losses, [bool(adjacency.native.stretches) for adjacency in read], often


def test_full_batch_training_reads_them_and_keeps_its_bits() -> None:
    ordered, made, often = _trained(True)
    plain, not_made, _ = _trained(False)
    assert any(made) and any(often) and not_made and not any(not_made) and ordered == plain


def test_batches_do_not_order_their_entries() -> None:
    _, made, often = _trained(True, mode="mini", batch_size=6000, fanouts=(400, 400))
    assert often and not any(often) and not any(made)


@pytest.mark.own_process
def test_a_budget_counts_them_and_leaves_them_out_first() -> None:
    ds = _dataset()
    batch = gw.Trainer(gw.nn.SAGE(40, 24, 4, num_layers=2), ds, mode="full")._batch
    ample = batch.needs_within(RunBudget("4GB", ds))
    assert batch._orders_entries
    tight = batch.needs_within(RunBudget(ample.total - ds.num_edges, ds))
    assert not batch._orders_entries
    assert ample.structure - tight.structure >= 2 * ds.num_edges and tight.step == ample.step
