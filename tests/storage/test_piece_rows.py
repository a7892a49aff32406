"""Rows of a store in pieces, compared with the table that the store was made of."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from stored_kinds import PAPER, academic

import graphweft as gw
from graphweft.storage.flat_rows import flat_rows_of
from graphweft.storage.piece_rows import PieceRows, least_piece_memory
from graphweft.storage.stored_structure import StoredNodes


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredNodes:
    path = tmp_path_factory.mktemp("pieces") / "store"
    return StoredNodes(gw.macro.prepare_store(academic(), path, parts=4, memory="64MB", method="hash"))


def _rows(stored: StoredNodes, memory: int | None = None) -> PieceRows:
    flat = flat_rows_of(stored.store)
    assert flat is not None
    return PieceRows(stored.store, flat, stored.row_ids, memory or least_piece_memory(stored.store))


def _table() -> np.ndarray:
    """Features of all nodes, zeros for those of other types and beyond the columns of theirs."""
    ds = academic()
    found = np.zeros((ds.num_nodes, PAPER), np.float32)
    found[240:600] = ds.features["paper"]
    found[600:680, :20] = ds.features["term"]
    return found


@pytest.mark.parametrize("rows", [1, 37, 10_000])
def test_pieces_are_the_rows_of_the_store(rows: int, stored: StoredNodes) -> None:
    nodes = torch.randint(0, 689, (500,), generator=torch.Generator().manual_seed(1))  # some of them several times
    source, seen, table = _rows(stored), 0, _table()
    source.rows = min(rows, source.rows)
    for first, own, place in source.pieces(nodes):
        assert first == seen and len(place) <= rows
        ids = nodes[first : first + len(place)].numpy()
        has = (ids >= 240) & (ids < 680)
        assert np.array_equal(own[place].numpy()[has], table[ids[has]])
        seen += len(place)
    assert seen == len(nodes)
    distinct = [np.unique(part) for part in np.split(nodes.numpy(), range(source.rows, 500, source.rows))]
    assert source.read == sum(int(((ids >= 240) & (ids < 680)).sum()) for ids in distinct)


def test_entries_are_those_of_the_table_and_are_read_once(stored: StoredNodes) -> None:
    source, table = _rows(stored), np.count_nonzero(_table(), axis=1)
    nodes = torch.tensor([300, 610, 301, 300])
    assert source.entries(nodes).tolist() == table[nodes.numpy()].tolist()
    nbytes, requests = source.counts
    assert nbytes >= 3 * 4 * 20 and requests > 0 and source.read == 3
    assert source.entries(nodes.flip(0)).tolist() == table[nodes.flip(0).numpy()].tolist()
    assert source.counts == (nbytes, requests)  # known by now


def test_memory_without_room_for_a_row_is_told(stored: StoredNodes) -> None:
    with pytest.raises(gw.errors.ConfigError, match=r"memory: expected at least .* for pieces of rows"):
        _rows(stored, 1 << 16)


def test_a_pass_that_is_left_early_leaves_the_next_one_right(stored: StoredNodes) -> None:
    source, table = _rows(stored), _table()
    source.rows = 16
    nodes = torch.arange(240, 600)
    next(source.pieces(nodes)).place.tolist()
    for first, own, place in source.pieces(nodes):
        assert np.array_equal(own[place].numpy(), table[240 + first : 240 + first + len(place)])
