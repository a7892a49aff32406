"""Rows that lie in memory as bfloat16: every kernel that reads them has the bits of the same rows in float32."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest
import scipy.sparse
import torch

import graphweft as gw
from graphweft import _native
from graphweft._errors import DtypeError
from graphweft.runtime import dense
from graphweft.runtime.dense import matmul_tn, rows_apply
from graphweft.runtime.epilogue import Epilogue
from graphweft.runtime.sparse import spmm
from graphweft.runtime.terms import Left, Term, contract_terms, matmul_terms

_half_unit = _native.declare("gw_half_unit")
WIDTHS = [(1, 3), (7, 16), (33, 40), (100, 64), (129, 100)]


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def graph(nodes: int = 300, edges: int = 2000) -> gw.Graph:
    draw = torch.Generator().manual_seed(3)
    ends = torch.randint(0, nodes, (2, edges), generator=draw)
    return gw.Graph(ends[0], ends[1], num_nodes=nodes)


@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize(("k", "m"), WIDTHS)
def test_products_have_the_bits_of_the_same_rows_in_float32(
    k: int, m: int, rounds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense, "rounds_operands", lambda k, m: True)
    half, ids = numbers(300, k).bfloat16(), torch.randint(0, 300, (220,), generator=torch.Generator().manual_seed(1))
    w, bias, g = numbers(k, m, seed=2), numbers(m, seed=4), numbers(300, m, seed=5)
    edges = graph().csc_structure

    def terms(x: torch.Tensor, kept: torch.Tensor | None) -> list[Term]:
        return [Term(x, w), Term(x, w, edges=edges, row_scale=numbers(300, seed=6), kept=kept)]

    kept, kept_wide = torch.empty(300, k), torch.empty(300, k)
    stages = Epilogue(bias=bias, relu=True)
    made = matmul_terms(terms(half, kept), epilogue=stages, rounds=rounds)
    assert torch.equal(made, matmul_terms(terms(half.float(), kept_wide), epilogue=stages, rounds=rounds))
    assert torch.equal(kept, kept_wide)
    picked = matmul_terms([Term(half, w, rows=ids)], rounds=rounds)
    assert torch.equal(picked, matmul_terms([Term(half.float(), w, rows=ids)], rounds=rounds))
    limit = 2.0**-7 if rounds else 1e-5
    exact = half.double()[ids] @ w.double()
    assert (picked - exact).abs().max() <= limit * (half.double()[ids].abs() @ w.double().abs()).max()

    sums, sums_wide = torch.empty(m), torch.empty(m)
    dw = matmul_tn(half, g, col_sum=sums, rounds=rounds)
    assert torch.equal(dw, matmul_tn(half.float(), g, col_sum=sums_wide, rounds=rounds))
    assert torch.equal(sums, sums_wide)
    assert torch.equal(
        matmul_tn(half, g[:220], rows=ids, rounds=rounds), matmul_tn(half.float(), g[:220], rows=ids, rounds=rounds)
    )
    exact = half.double().t() @ g.double()
    assert (dw - exact).abs().max() <= limit * (half.double().abs().t() @ g.double().abs()).max()

    both = [Left(half), Left(half, torch.arange(299, -1, -1))]
    wide = [Left(half.float()), Left(half.float(), both[1].rows)]
    for one, other in zip(
        contract_terms(both, edges, g, rounds=rounds), contract_terms(wide, edges, g, rounds=rounds), strict=True
    ):
        assert torch.equal(one, other)


@pytest.fixture(params=[2, 1, 0])
def unit(request: pytest.FixtureRequest) -> Iterator[int]:
    """Every unit that multiplies bfloat16 numbers on this processor."""
    used = ctypes.c_int32()
    _half_unit(request.param, ctypes.byref(used))
    try:
        if used.value != request.param:
            pytest.skip("this processor has no such unit")
        yield used.value
    finally:
        _half_unit(2, ctypes.byref(used))


@pytest.mark.parametrize(("k", "m"), [*WIDTHS, (37, 47)])
def test_results_and_kept_sums_in_bfloat16_are_those_in_float32_rounded(unit: int, k: int, m: int) -> None:
    half, own, w = numbers(300, k).bfloat16(), numbers(300, k, seed=7), numbers(k, m, seed=2)
    edges, stages = graph().csc_structure, Epilogue(bias=numbers(m, seed=4), relu=True)

    def made(kept: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        terms = [Term(half, w, edges=edges, row_scale=numbers(300, seed=6), kept=kept), Term(own, w)]
        return matmul_terms(terms, epilogue=stages, rounds=True, dtype=dtype)

    kept, kept_half = torch.empty(300, k), torch.empty(300, k, dtype=torch.bfloat16)
    # without that, float32 results of narrow products come from operands as they are
    wide = made(torch.empty(300, k, dtype=torch.bfloat16), torch.float32)
    short = made(kept_half, torch.bfloat16)
    made(kept, torch.bfloat16)
    assert short.dtype == torch.bfloat16
    assert torch.equal(short, wide.bfloat16())
    assert torch.equal(kept_half, kept.bfloat16())


@pytest.mark.parametrize("rows", [40, 45_000])
def test_many_results_and_kept_sums_have_the_same_bits_for_any_number_of_threads(
    rows: int, threads_restored: None
) -> None:
    x, w, ids = numbers(rows, 64).bfloat16(), numbers(64, 96, seed=2), torch.arange(rows - 1, -1, -1)
    edges = gw.Graph(ids, torch.arange(rows).roll(3), num_nodes=rows).csc_structure
    g, found = numbers(rows, 96, seed=3), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        kept = torch.empty(rows, 64, dtype=torch.bfloat16)
        y = matmul_terms([Term(x, w, edges=edges, kept=kept), Term(x, w, rows=ids)], rounds=True, dtype=torch.bfloat16)
        dw = contract_terms([Left(kept), Left(x, ids)], edges, g, epilogue=Epilogue(mask=y), rounds=True)
        found.append((y, kept, *dw))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
    picked = x[(ids - 3) % rows]  # the one source of every row
    exact = (picked.double() + x[ids].double()) @ w.double()
    assert torch.equal(found[0][1], x[edges.indices.long()])
    assert (found[0][0].double() - exact).abs().max() < 2.0**-6 * exact.abs().max()
    sums = torch.where(found[0][0] > 0, g[edges.indices.long()], 0).double()
    for left, dw in zip((found[0][1], x[ids]), found[0][2:], strict=True):
        assert (dw - left.double().t() @ sums).abs().max() < 2.0**-7 * (left.double().abs().t() @ sums.abs()).max()


def test_a_mask_in_bfloat16_has_the_bits_of_the_same_in_float32() -> None:
    edges, left = graph().csc_structure, numbers(300, 20)
    for width in (1, 16, 31, 64, 200):
        x, mask = numbers(300, width, seed=1), numbers(300, width, seed=2).bfloat16()
        short, wide = Epilogue(mask=mask, relu=True), Epilogue(mask=mask.float(), relu=True)
        assert torch.equal(spmm(edges, x, epilogue=short), spmm(edges, x, epilogue=wide))
        for rounds in (False, True):
            one, other = (contract_terms([Left(left)], edges, x, epilogue=e, rounds=rounds) for e in (short, wide))
            assert torch.equal(one[0], other[0])


@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize(("k", "m"), WIDTHS)
def test_contractions_of_gradients_in_bfloat16_have_the_bits_of_the_same_in_float32(
    k: int, m: int, rounds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense, "rounds_operands", lambda k, m: True)
    monkeypatch.setattr(dense, "rounds_beside_half", lambda k, m: True)
    g, addend, edges = numbers(700, m).bfloat16(), numbers(90, m, seed=1).bfloat16(), graph(700, 3000).csc_structure
    for x in (numbers(700, k, seed=2), numbers(700, k, seed=2).bfloat16()):
        sums, wide_sums = torch.empty(m), torch.empty(m)
        made = matmul_tn(x, g, col_sum=sums, rounds=rounds)
        assert torch.equal(made, matmul_tn(x, g.float(), col_sum=wide_sums, rounds=rounds))
        assert torch.allclose(sums, wide_sums, rtol=1e-5, atol=1e-5)
        exact, size = (x.double().t() @ g.double(), x.double().abs().t() @ g.double().abs())
        assert (made - exact).abs().max() <= (2.0**-7 if rounds else 1e-5) * size.max()
        found = []
        for one, other in ((g, addend), (g.float(), addend.float())):
            taps = torch.empty(m)
            stages = Epilogue(addend=other, addend_rows=90, col_sum=taps)
            found.append((*contract_terms([Left(x)], edges, one, epilogue=stages, rounds=rounds), taps))
        assert all(torch.equal(short, wide) for short, wide in zip(*found, strict=True))


@pytest.mark.parametrize("width", [16, 17, 31, 32, 48, 49, 100, 530])
def test_contractions_of_rows_in_bfloat16_of_every_rest_of_columns(
    width: int, unit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense, "rounds_beside_half", lambda k, m: True)
    monkeypatch.setattr(dense, "rounds_operands", lambda k, m: True)
    table, ids = numbers(90, width).bfloat16(), torch.randint(0, 90, (601,), generator=torch.Generator().manual_seed(1))
    wide = torch.full((90, width + 28), 7.0, dtype=torch.bfloat16)  # as rows that begin on cache lines
    wide[:, :width] = table
    g = numbers(601, 40, seed=2)
    made = matmul_tn(wide[:, :width], g, rows=ids, rounds=True)
    exact, short = table.double()[ids], g.bfloat16().double()
    assert (made - exact.t() @ short).abs().max() <= 2e-6 * (exact.abs().t() @ short.abs()).max()
    assert torch.equal(made, matmul_tn(table, g, rows=ids, rounds=True))


def test_an_addend_in_bfloat16_has_the_bits_of_the_same_in_float32() -> None:
    for width in (1, 16, 31, 200):
        x, addend = numbers(300, width, seed=1), numbers(300, width, seed=2).bfloat16()
        short, wide = (spmm(graph().csc_structure, x, epilogue=Epilogue(addend=a)) for a in (addend, addend.float()))
        assert torch.equal(short, wide)


@pytest.mark.parametrize("width", [1, 16, 31, 100])
def test_sums_over_edges_against_scipy(width: int) -> None:
    g = graph()
    half, bias, mask = numbers(300, width).bfloat16(), numbers(width, seed=1), numbers(300, width, seed=2)
    scale, source, factor = numbers(300, seed=3).abs(), numbers(300, seed=4).abs(), torch.tensor([1.5])
    adj, counts = g.csc_structure, np.ones(g.num_edges)
    matrix = scipy.sparse.csr_matrix((counts, adj.indices.numpy(), adj.indptr.numpy()), shape=(300, 300))
    x = half.double().numpy() * source.double().numpy()[:, None]
    expected = scale.double().numpy()[:, None] * (matrix @ x + 1.5 * x) + bias.double().numpy()
    expected = torch.from_numpy(np.where(mask.numpy() > 0, np.maximum(expected, 0), 0))
    stages = Epilogue(row_scale=scale, bias=bias, relu=True, mask=mask)
    operands = {"src_scale": source, "self_coef": 1.0, "self_factor": factor, "epilogue": stages}
    wide = spmm(adj, half, dtype=torch.float32, **operands)
    assert wide.dtype == torch.float32
    assert torch.allclose(wide.double(), expected, rtol=1e-5, atol=1e-4)
    short = spmm(adj, half, **operands)
    assert torch.equal(short, wide.bfloat16())  # rounded once, from the float sums


def test_sums_may_take_the_memory_of_their_rows() -> None:
    g, half = graph(), numbers(300, 40).bfloat16()
    expected = spmm(g.csc_structure, half)
    assert torch.equal(spmm(g.csc_structure, half, out=half), expected)


@pytest.mark.parametrize("width", [1, 17, 64])
def test_rows_with_an_epilogue(width: int) -> None:
    half, ids = numbers(300, width).bfloat16(), torch.arange(250, 0, -3)
    stages = Epilogue(row_scale=numbers(ids.numel(), seed=2), bias=numbers(width, seed=3), relu=True)
    expected = (half[ids].float() * stages.row_scale[:, None] + stages.bias).clamp(min=0)
    made = rows_apply(half, stages, rows=ids)
    assert made.dtype == torch.float32
    assert torch.allclose(made, expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(made, rows_apply(half.float(), stages, rows=ids))


def test_refused_in_one_line() -> None:
    g = graph()
    with pytest.raises(DtypeError, match=r"expected float32, or bfloat16 for x and kept, got torch.float32, "):
        matmul_terms([Term(numbers(4, 3), numbers(3, 2).bfloat16())])
    with pytest.raises(DtypeError, match=r"matmul_terms: expected mask of dtype torch.float32, got torch.bfloat16"):
        matmul_terms([Term(numbers(4, 3), numbers(3, 2))], epilogue=Epilogue(mask=numbers(4, 2).bfloat16()))
    with pytest.raises(DtypeError, match=r"contract_terms: expected float32 or bfloat16, got torch.float64"):
        contract_terms([Left(numbers(300, 2))], g.csc_structure, numbers(300, 2).double())
    with pytest.raises(DtypeError, match=r"matmul: expected addend of dtype torch.float32, got torch.bfloat16"):
        dense.matmul(numbers(4, 3), numbers(3, 2), epilogue=Epilogue(addend=numbers(4, 2).bfloat16()))
    with pytest.raises(DtypeError, match=r"SAGE: expected x of torch.float32"):
        gw.nn.SAGE(3, 4, 2)(g, numbers(300, 3).bfloat16())


def test_narrower_products_round_beside_rows_that_are_rounded_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "half_unit", lambda: 2)
    assert dense.rounds_beside_half(128, 32)
    assert not dense.rounds_operands(128, 32)
    assert not dense.rounds_beside_half(128, 4)
    monkeypatch.setattr(dense, "half_unit", lambda: 1)
    assert not dense.rounds_beside_half(128, 128)
