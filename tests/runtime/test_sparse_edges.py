"""Dot products on edges and dropout of sparse entries."""

import numpy as np
import pytest
import torch
from adjacencies import Layout
from zoo import ZOO, power_law_edges

from graphweft._errors import DtypeError, ShapeError
from graphweft.runtime import dense, sparse


@pytest.mark.parametrize("ids", [True, False], ids=["ids", "positions"])
@pytest.mark.parametrize("wide", [False, True], ids=["int32", "int64"])
@pytest.mark.parametrize("name", ZOO)
def test_dots_equal_numpy(name, wide, ids):
    layout = Layout.of(ZOO[name], wide=wide, ids=ids)
    for width, dtype in ((0, torch.float32), (1, torch.float64), (20, torch.float32), (130, torch.float64)):
        a = torch.randn(layout.num_rows, width, dtype=dtype, generator=torch.Generator().manual_seed(0))
        b = torch.randn(layout.num_cols, width, dtype=dtype, generator=torch.Generator().manual_seed(1))
        want = (a.double().numpy()[layout.edge_rows] * b.double().numpy()[layout.edge_cols]).sum(1)
        tolerance = 1e-12 if dtype == torch.float64 else 1e-5
        got = sparse.sddmm_dot(layout, a, b)
        np.testing.assert_allclose(got.double().numpy(), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("width", [3, 16, 31, 32, 33, 64, 100, 602])
def test_dots_at_every_width_and_for_any_number_of_threads(width):
    layout = Layout.of(power_law_edges(500, 20_000, seed=4))
    a, b = torch.randn(2, 500, width, generator=torch.Generator().manual_seed(2)).unbind(0)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = sparse.sddmm_dot(layout, a, b)
        torch.set_num_threads(2)
        assert torch.equal(sparse.sddmm_dot(layout, a, b), alone)
    finally:
        torch.set_num_threads(threads)
    want = (a.double().numpy()[layout.edge_rows] * b.double().numpy()[layout.edge_cols]).sum(1)
    np.testing.assert_allclose(alone.double().numpy(), want, rtol=1e-4, atol=1e-4)


def test_dots_refuse_what_does_not_fit():
    layout = Layout.of(ZOO["random"])
    with pytest.raises(ShapeError, match="one width and dtype"):
        sparse.sddmm_dot(layout, torch.zeros(40, 2), torch.zeros(40, 3))
    with pytest.raises(DtypeError, match="a of dtype float32, float64"):
        sparse.sddmm_dot(layout, torch.zeros(40, 2).bfloat16(), torch.zeros(40, 2).bfloat16())


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("wide", [False, True], ids=["int32", "int64"])
def test_sparse_dropout_keeps_what_dense_dropout_keeps_in_both_layouts(p, wide):
    rng = np.random.default_rng(0)
    nodes, width = 300, 77
    x = np.where(rng.random((nodes, width)) < 0.2, 1 + rng.random((nodes, width)), 0).astype(np.float32)
    rows, cols = np.nonzero(x)
    by_row = Layout(rows, cols, nodes, width, wide=wide, ids=False)
    options = {"width": width, "p": p, "seed": 2**63 + 5, "stream": 3}
    kept = sparse.sparse_dropout(by_row, torch.from_numpy(x[rows, cols]), transposed=False, **options)
    whole = dense.dropout(torch.from_numpy(x), p, options["seed"], options["stream"]).numpy()
    np.testing.assert_array_equal(kept.numpy(), whole[rows, cols])

    order = np.lexsort((rows, cols))
    by_column = Layout(cols[order], rows[order], width, nodes, wide=wide, ids=False)
    turned = sparse.sparse_dropout(by_column, torch.from_numpy(x[rows, cols][order]), transposed=True, **options)
    np.testing.assert_array_equal(turned.numpy(), kept.numpy()[order])


def test_sparse_dropout_refuses_what_does_not_fit():
    layout = Layout.of(ZOO["random"])
    options = {"width": 40, "transposed": False, "seed": 0, "stream": 0}
    with pytest.raises(ShapeError, match="expected 200 contiguous values"):
        sparse.sparse_dropout(layout, torch.zeros(3), p=0.5, **options)
    with pytest.raises(ShapeError, match="probability"):
        sparse.sparse_dropout(layout, torch.zeros(200), p=1.5, **options)
    with pytest.raises(DtypeError, match=r"torch\.float32"):
        sparse.sparse_dropout(layout, torch.zeros(200).double(), p=0.5, **options)
