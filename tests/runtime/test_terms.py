"""Products with several terms against SciPy and float64."""

import numpy as np
import pytest
import torch
from zoo import CASES, Case, random_edges

from graphweft._errors import DtypeError, IndexRangeError, ShapeError
from graphweft.graph.graph import Graph
from graphweft.runtime.epilogue import Epilogue
from graphweft.runtime.terms import Term, matmul_terms

WIDTHS = [(1, 1), (5, 3), (16, 64), (33, 47), (100, 70), (150, 8)]


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def three_terms(case: Case, k: int, m: int, transposed: bool):
    """Rows as they lie, rows by index and scaled sums, and the float64 product of all."""
    n, generator = case.num_dst, torch.Generator().manual_seed(1)
    rows = torch.randint(0, 9, (n,), generator=generator)
    scale = numbers(n, seed=2)
    left = [numbers(n, k, seed=3), numbers(9, k + 2, seed=4), numbers(case.num_src, k, seed=5)]
    weights = [numbers(m, x.shape[1], seed=6).t() if transposed else numbers(x.shape[1], m, seed=6) for x in left]
    kept = torch.full((n, k), torch.nan)
    adjacency = case.graph().csc
    terms = [
        Term(left[0], weights[0].t().contiguous() if transposed else weights[0], transposed),
        Term(left[1], weights[1], rows=rows),
        Term(left[2], weights[2], edges=adjacency, row_scale=scale, kept=kept),
    ]
    sums = torch.from_numpy(case.scipy() @ left[2].double().numpy()).reshape(n, k) * scale.double()[:, None]
    read = [left[0].double(), left[1].double()[rows], sums]
    exact = sum(x @ w.double() for x, w in zip(read, weights, strict=True))
    return terms, exact, kept, sums


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("k", "m"), WIDTHS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_terms_equal_float64(case, k, m, transposed):
    terms, exact, kept, sums = three_terms(case, k, m, transposed)
    torch.testing.assert_close(matmul_terms(terms).double(), exact, rtol=1e-5, atol=2e-4)
    torch.testing.assert_close(kept.double(), sums, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_epilogue_follows_the_last_term(case):
    terms, exact, _, _ = three_terms(case, 20, 33, False)
    n = case.num_dst
    sums, head = torch.empty(33), n // 2
    epilogue = Epilogue(bias=numbers(33), addend=numbers(head, 33), addend_rows=head, relu=True, col_sum=sums)
    expected = epilogue.reference(exact)
    torch.testing.assert_close(matmul_terms(terms, epilogue=epilogue).double(), expected, rtol=1e-5, atol=2e-4)
    torch.testing.assert_close(sums.double(), expected.sum(0), rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("wide", [False, True])
def test_many_rows_hubs_and_any_number_of_threads(wide):
    """Several blocks of rows a chunk, more edges than are fetched ahead, an inner size of several blocks."""
    ends = random_edges(3000, 30_000, seed=3)
    dst = np.where(np.arange(30_000) % 3 == 0, 5, ends.dst)  # a hub
    graph = Graph(ends.src, dst, 3000)
    adjacency = graph.csc.widened() if wide else graph.csc
    x, rows = numbers(3000, 500), torch.arange(3000).flip(0)
    one, two = numbers(500, 70, seed=1), numbers(500, 70, seed=2)
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            kept = torch.empty(3000, 500)
            terms = [Term(x, one, edges=adjacency, kept=kept), Term(x, two, rows=rows)]
            results.append((matmul_terms(terms), kept))
    finally:
        torch.set_num_threads(before)
    for made, kept in results[1:]:
        assert torch.equal(made, results[0][0]) and torch.equal(kept, results[0][1])
    sums = torch.zeros(3000, 500, dtype=torch.float64).index_add_(
        0, torch.from_numpy(dst), x.double()[torch.from_numpy(ends.src)]
    )
    exact = sums @ one.double() + x.double()[rows] @ two.double()
    torch.testing.assert_close(results[0][0].double(), exact, rtol=1e-4, atol=1e-3 * float(exact.abs().max()))


@pytest.mark.parametrize(("n", "k", "m"), [(36_000, 60, 64), (36_000, 60, 80), (36_000, 60, 100), (300_000, 8, 10)])
def test_what_is_larger_than_the_cache_is_the_same(n, k, m):
    """Kept sums of a line or more and whole lines of the output go past the cache; half of the columns do not."""
    ends = random_edges(n, 2 * n, seed=7)
    adjacency = Graph(ends.src, ends.dst, n).csc
    x, rows, bias = numbers(n, k), torch.arange(n).flip(0), numbers(m, seed=3)
    weights = [numbers(k, m, seed=1), numbers(k, m, seed=2)]
    exact = torch.zeros(n, k, dtype=torch.float64).index_add_(
        0, torch.from_numpy(ends.dst), x.double()[torch.from_numpy(ends.src)]
    )

    def made(columns: slice):
        kept = torch.full((n, k), torch.nan)
        one, two = (w[:, columns].contiguous() for w in weights)
        terms = [Term(x, one, edges=adjacency, kept=kept), Term(x, two, rows=rows)]
        return matmul_terms(terms, epilogue=Epilogue(bias=bias[columns].contiguous(), relu=True)), kept

    whole, kept = made(slice(0, m))
    halves = torch.cat([made(slice(0, m // 2))[0], made(slice(m // 2, m))[0]], 1)
    assert torch.equal(whole, halves)
    torch.testing.assert_close(kept.double(), exact, rtol=1e-5, atol=1e-4)


def test_what_does_not_fit_is_told():
    x, w = torch.ones(3, 2), torch.ones(2, 4)
    with pytest.raises(ShapeError, match="expected products of one shape"):
        matmul_terms([Term(x, w), Term(x[:2], w)])
    with pytest.raises(ShapeError, match="expected a weight with 2 rows"):
        matmul_terms([Term(x, w.t())])
    with pytest.raises(DtypeError, match="expected float32"):
        matmul_terms([Term(x.double(), w)])
    with pytest.raises(IndexRangeError):
        matmul_terms([Term(x, w, rows=torch.tensor([0, 3]))])
    with pytest.raises(ShapeError, match="expected edges over 3 rows"):
        matmul_terms([Term(x, w, edges=Graph([0], [1], 2).csc)])
    with pytest.raises(ShapeError, match="expected an addend of at most 3 rows"):
        matmul_terms([Term(x, w)], epilogue=Epilogue(addend=torch.ones(4, 4), addend_rows=4))
