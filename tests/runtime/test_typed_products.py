"""Products of typed rows that stay dense, compared with SciPy and, bit for bit, with those of compressed rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from graphweft.runtime import sparse, typed_products
from graphweft.storage.feature import SparseFeatures
from graphweft.storage.flat_rows import FlatRows
from graphweft.storage.typed_rows import Piece, TableSource, UncompressedRows


class _OwnSource:
    """Rows in memory, of nodes in ascending order: that of node ``ids[i]`` is ``table[i]``."""

    def __init__(self, table: Tensor, ids: Tensor) -> None:
        self._table, (self._ids, self._order) = table, torch.sort(ids)

    def pieces(self, nodes: Tensor) -> Iterator[Piece]:
        """All at once."""
        found = torch.searchsorted(self._ids, nodes).clamp_(max=max(len(self._ids) - 1, 0))
        yield Piece(0, self._table, self._order[found] if len(self._ids) else found)

    def entries(self, nodes: Tensor) -> None:
        """Nobody has counted them."""


class _InPieces:
    """Rows of a table, so many at a time."""

    def __init__(self, table: Tensor, ids: Tensor, count: int) -> None:
        self._all, self._count = _OwnSource(table, ids), count

    def pieces(self, nodes: Tensor) -> Iterator[Piece]:
        (whole,) = self._all.pieces(nodes)
        for first in range(0, len(nodes), self._count):
            place = whole.place[first : first + self._count]
            kept, inverse = torch.unique(place, return_inverse=True)
            yield Piece(first, whole.table[kept], inverse)

    def entries(self, nodes: Tensor) -> Tensor:
        """Counted by NumPy."""
        (whole,) = self._all.pieces(nodes)
        return torch.from_numpy(np.count_nonzero(whole.table[whole.place].numpy(), axis=1))


# nodes of three types, the columns of two of them, nodes drawn, zeros, columns of the result
CASES = {
    "few": ((40, 30, 5), (7, 3), 30, 0.3, 4),
    "rows are cut": ((60, 50, 5), (900, 700), 50, 0.0, 16),
    "columns are cut": ((3000, 2000, 30), (40, 33), 4000, 0.0, 64),
    "by panels": ((12_000, 9000, 30), (40, 33), 18_000, 0.1, 70),
    "one column": ((300, 200, 30), (40, 33), 400, 0.5, 1),
}


def _case(name: str) -> tuple[FlatRows, Tensor, Tensor, Tensor]:
    """Columns, nodes type after type, those with rows in ascending order, and the rows."""
    counts, widths, drawn, zeros, _ = CASES[name]
    rng = np.random.default_rng(3)
    offsets = (0, *np.cumsum(counts).tolist())
    flat = FlatRows(offsets, (*widths, 0))
    ids = np.sort(rng.permutation(offsets[-1])[:drawn])
    ids = np.concatenate([rng.permutation(ids[(ids >= a) & (ids < b)]) for a, b in itertools.pairwise(offsets)])
    nodes = torch.from_numpy(ids)
    stored = nodes[flat.is_stored(nodes)].sort().values
    table = torch.from_numpy(rng.standard_normal((len(stored), max(widths)), np.float32))
    table[torch.from_numpy(rng.random(tuple(table.shape)) < zeros)] = 0.0
    table[flat.types(stored) == 1, widths[1] :] = 0.0
    table[0, 0] = -0.0
    return flat, nodes, stored, table


def _known(flat: FlatRows, nodes: Tensor, stored: Tensor, table: Tensor) -> SparseFeatures:
    own = nodes[flat.is_stored(nodes)]
    return flat.rows(nodes, table[torch.searchsorted(stored, own)])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("count", [None, 7, 1000])
def test_products_have_the_bits_of_compressed_rows(name: str, count: int | None) -> None:
    flat, nodes, stored, table = _case(name)
    known = _known(flat, nodes, stored, table)
    source: Any = _OwnSource(table, stored) if count is None else _InPieces(table, stored, count)
    x = UncompressedRows.of(flat, nodes, source)
    width = CASES[name][4]
    if count == 7 and len(nodes) > 5000:
        pytest.skip("thousands of pieces")
    generator = torch.Generator().manual_seed(1)
    w, g = torch.randn(flat.width, width, generator=generator), torch.randn(len(nodes), width, generator=generator)
    product, turned = typed_products.matmul(x, w), typed_products.contract(x, g)
    dense = known.to_scipy().astype(np.float64)
    assert np.allclose(product.numpy(), dense @ w.double().numpy(), rtol=1e-4, atol=1e-3)
    assert np.allclose(turned.numpy(), dense.T @ g.double().numpy(), rtol=1e-4, atol=1e-3)
    adjacency, values = known.transposed
    assert torch.equal(product, sparse.spmm(known.adjacency, w, weight=known.values))
    assert torch.equal(turned, sparse.spmm(adjacency, g, weight=values))
    assert x.nnz == known.nnz and x.num_rows == known.num_rows and x.width == known.width


def test_cases_cut_what_they_say() -> None:
    def cuts(name: str, columns: bool) -> int:
        known = _known(*_case(name))
        adjacency = known.transposed[0] if columns else known.adjacency
        return len(typed_products._cuts(adjacency.indptr, CASES[name][4], adjacency.num_cols).row)

    assert cuts("rows are cut", False) > 0 and cuts("columns are cut", True) > 0 and cuts("few", False) == 0
    known = _known(*_case("by panels"))
    assert sparse.wants_panel(known.num_rows, known.nnz, 4 * CASES["by panels"][4])


def test_typed_rows_are_sparse_features() -> None:
    flat, nodes, stored, table = _case("few")
    known = _known(flat, nodes, stored, table)
    place = torch.full((75,), -1, dtype=torch.int32)
    place[stored] = torch.arange(len(stored), dtype=torch.int32)
    x = UncompressedRows.of(flat, nodes, TableSource(table, place))
    order = torch.tensor([4, 0, 4, 11])
    for made, expected in ((x, known), (x.take_rows(order), known.take_rows(order)), (x.alias(), known)):
        assert isinstance(made, UncompressedRows)
        assert torch.equal(made.to_dense(), expected.to_dense()) and made.nnz == expected.nnz
        assert torch.equal(made.indptr, expected.indptr) and torch.equal(made.values, expected.values)
    assert torch.equal(x @ torch.eye(flat.width), known.to_dense())
    assert not isinstance(x.with_values(x.values * 2), UncompressedRows)


def test_torch_multiplies_dense_rows_where_they_lie() -> None:
    flat, nodes, stored, table = _case("columns are cut")
    known = _known(flat, nodes, stored, table)
    x = UncompressedRows.of(flat, nodes, _InPieces(table, stored, 500))
    w = torch.randn(flat.width, 8, requires_grad=True)
    twin = w.detach().clone().requires_grad_()
    product, expected = x @ w, known @ twin
    product.square().sum().backward()
    expected.square().sum().backward()
    assert torch.equal(product, expected) and torch.equal(w.grad, twin.grad)
    assert "_whole" not in vars(x)  # no compressed rows


def test_entries_are_counted_while_rows_are_multiplied() -> None:
    """A source that knows its numbers of entries is gone through once for each product."""
    flat, nodes, stored, table = _case("columns are cut")
    passes, source = [], _InPieces(table, stored, 500)

    class Counted:
        entries = staticmethod(source.entries)

        def pieces(self, nodes: Tensor) -> Iterator[Piece]:
            passes.append(len(nodes))
            return source.pieces(nodes)

    x = UncompressedRows.of(flat, nodes, Counted())
    assert x.nnz == _known(flat, nodes, stored, table).nnz and not passes
    typed_products.matmul(x, torch.randn(flat.width, 8))
    typed_products.contract(x, torch.randn(len(nodes), 8))
    assert passes == 2 * [len(nodes)]
    known = _known(flat, nodes, stored, table).to_scipy()
    assert x.row_offsets.tolist() == known.indptr.tolist()
    assert x.entries.columns.tolist() == known.tocsc().indptr.tolist()


def test_threads_change_no_bit() -> None:
    flat, nodes, stored, table = _case("columns are cut")
    x, g = UncompressedRows.of(flat, nodes, _OwnSource(table, stored)), torch.randn(len(nodes), 64)
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(typed_products.contract(x, g))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
