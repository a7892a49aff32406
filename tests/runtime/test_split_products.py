"""Float32 products by matrix tiles, of operands that are split into parts: against float64, as near as torch's."""

import subprocess
import sys

import pytest
import torch
from adjacencies import Layout
from zoo import power_law_edges

import graphweft as gw
from graphweft import _native
from graphweft.runtime import dense
from graphweft.runtime.epilogue import Epilogue
from graphweft.runtime.terms import Left, Term, contract_terms, matmul_terms

SHAPES = [(1, 1, 1), (33, 17, 40), (700, 130, 65), (500, 64, 7), (3000, 300, 96)]


@pytest.fixture
def split(monkeypatch):
    """Every product of float32 operands splits them."""
    if not _native.has_tiles():
        pytest.skip("this processor, or this level, has no matrix tiles")
    monkeypatch.setattr(dense, "splits_operands", lambda k, m: True)


def rows(count, width, seed=0):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def kinds(n, k, seed):
    """Random rows, sparse ones, ones without a sign, and rows between 1e-15 and 1e15."""
    x = rows(n, k, seed)
    scale = 10.0 ** (30 * torch.rand(n, 1, generator=torch.Generator().manual_seed(seed)) - 15)
    return {"normal": x, "sparse": x.relu(), "positive": x.abs(), "scaled": x * scale}


def error(found, x, w):
    """The largest error of ``x @ w``, relative to the same product of absolute values."""
    bound = x.double().abs() @ w.double().abs()
    return float(((found.double() - x.double() @ w.double()).abs() / bound.clamp_min(1e-300)).max())


@pytest.mark.parametrize("kind", ["normal", "sparse", "positive", "scaled"])
@pytest.mark.parametrize(("n", "k", "m"), SHAPES)
def test_errors_are_those_of_torch_at_most_twice(n, k, m, kind, split):
    x, w, g = kinds(n, k, 1)[kind], rows(k, m, 2), kinds(n, m, 3)[kind]
    least = 2.0**-24  # of a result that is rounded once
    transposed = w.t().contiguous()
    for found in (dense.matmul(x, w), dense.matmul(x, transposed, transposed=True)):
        assert error(found, x, w) <= 2 * max(error(x @ w, x, w), least)
    ids = torch.randint(n, (2 * n,), generator=torch.Generator().manual_seed(4))
    assert error(dense.matmul(x, w, rows=ids), x[ids], w) <= 2 * max(error(x[ids] @ w, x[ids], w), least)
    assert error(dense.matmul_tn(x, g), x.t(), g) <= 2 * max(error(x.t() @ g, x.t(), g), least)
    scale, sums = rows(n, 1, 3)[:, 0].contiguous(), torch.empty(m)
    scaled = g * scale[:, None]
    found = dense.matmul_tn(x, g, row_scale=scale, col_sum=sums)
    assert error(found, x.t(), scaled) <= 2 * max(error(x.t() @ scaled, x.t(), scaled), least)
    torch.testing.assert_close(sums.double(), g.double().sum(0), rtol=1e-4, atol=1e-4 * float(g.abs().max()))


def test_terms_and_contractions_over_edges(split):
    layout, k, m = Layout.of(power_law_edges(300, 4000, seed=3), ids=False), 50, 48
    matrix = torch.from_numpy(layout.matrix().todense())
    x, own, near, g, bias = rows(300, k), rows(k, m, 1), rows(k, m, 2), rows(300, m, 3), rows(1, m, 4)[0].contiguous()
    kept, column, ids = torch.empty(300, k), torch.empty(m), torch.arange(299, -1, -1)
    terms = [Term(x, own), Term(x, near, edges=layout, kept=kept), Term(x.bfloat16(), own, rows=ids)]
    sums = matrix @ x.double()
    wanted = x.double() @ own.double() + sums @ near.double() + bias.double()
    wanted += x.bfloat16().double()[ids] @ own.double()
    found = matmul_terms(terms, epilogue=Epilogue(bias=bias, relu=True, col_sum=column))
    bound = (
        x.double().abs() @ own.double().abs() + (matrix @ x.double().abs()) @ near.double().abs() + bias.double().abs()
    )
    bound += x.bfloat16().double().abs()[ids] @ own.double().abs()
    assert ((found.double() - wanted.relu()).abs() <= 1e-6 * bound).all()
    torch.testing.assert_close(column.double(), found.double().sum(0), rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(kept.double(), sums, rtol=1e-5, atol=1e-4)
    one, two = contract_terms([Left(x), Left(x, ids)], layout, g)
    made, size = matrix @ g.double(), matrix @ g.double().abs()
    for left, found in ((x, one), (x.flip(0), two)):
        limit = left.double().t().abs() @ size
        assert ((found.double() - left.double().t() @ made).abs() <= 1e-6 * limit).all()


@pytest.mark.parametrize("special", [float("inf"), -float("inf"), float("nan"), torch.finfo(torch.float32).max])
def test_numbers_that_have_no_parts_are_multiplied_as_floats(special, split):
    """Infinities stay what they are, and do not become NaN; the largest float does not become infinite."""
    x, w, g = rows(300, 70), rows(70, 40, 1), rows(300, 40, 2)
    x[137, 3] = special
    w[3] = w[3].sign() / 4
    plain = x.double() @ w.double()
    torch.testing.assert_close(dense.matmul(x, w).double(), plain, rtol=1e-5, atol=1e-4, equal_nan=True)
    torch.testing.assert_close(
        dense.matmul(w.t().contiguous(), x.t().contiguous()), dense.matmul(x, w).t(), equal_nan=True
    )
    g[137] = g[137].sign() / 4
    wanted = x.double().t() @ g.double()
    sums = torch.empty(40)
    found = dense.matmul_tn(x, g, col_sum=sums).double()
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4, equal_nan=True)
    torch.testing.assert_close(sums.double(), g.double().sum(0), rtol=1e-5, atol=1e-4)
    y = rows(300, 40, 5)
    before = y.clone()  # the addend is read once, before its memory is written
    dense.matmul(x, w, epilogue=Epilogue(addend=y), out=y)
    torch.testing.assert_close(y.double(), plain + before.double(), rtol=1e-5, atol=1e-4, equal_nan=True)


def test_numbers_below_the_least_normal_one_are_zero(split):
    x = torch.full((40, 64), 1e-39)
    assert not dense.matmul(x, torch.ones(64, 32)).any()
    x = torch.full((40, 64), 1e-30)  # as for any other number, as long as products are above 1e-33
    torch.testing.assert_close(dense.matmul(x, torch.ones(64, 32)), torch.full((40, 32), 64e-30), rtol=1e-6, atol=0.0)


def step(graph, x, threads=2):
    """Loss and gradients of one step."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = gw.nn.SAGE(x.shape[1], 48, 20, num_layers=3).to(x.dtype)
    loss = torch.nn.functional.cross_entropy(model(graph, x), torch.arange(len(x)) % 20)
    loss.backward()
    return loss.detach(), [p.grad for p in model.parameters()]


def test_steps_are_the_same_bits_for_any_number_of_threads(split, threads_restored):
    src, dst, nodes = power_law_edges(500, 9000, seed=7)
    graph, x = gw.Graph(src, dst, num_nodes=nodes), rows(nodes, 40)
    (loss, gradients), *others = [step(graph, x, threads) for threads in (1, 2, 3)]
    for other, found in others:
        assert torch.equal(loss, other)
        assert all(torch.equal(a, b) for a, b in zip(gradients, found, strict=True))
    with gw.config(target="reference"):
        exact, wanted = step(graph, x.double())
    torch.testing.assert_close(loss.double(), exact, rtol=1e-5, atol=1e-5)
    for one, other in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)


@pytest.fixture
def asked():
    """What torch allows, as it was before."""
    before = torch.get_float32_matmul_precision()
    yield torch.set_float32_matmul_precision
    torch.set_float32_matmul_precision(before)


def test_they_are_asked_for_as_in_torch_and_widths_decide(asked, monkeypatch):
    monkeypatch.setattr(_native, "has_tiles", lambda: True)
    asked("highest")
    assert not dense.splits_operands(256, 256)
    asked("high")
    assert dense.splits_operands(128, 256) and not dense.splits_operands(256, 47)
    monkeypatch.setattr(_native, "has_tiles", lambda: False)
    assert not dense.splits_operands(256, 256)


def test_newer_names_of_torch_are_read():
    """Torch answers for its older setting with an error once a newer one was used."""
    code = """
import torch
from graphweft import _native
from graphweft.runtime import dense
_native.has_tiles = lambda: True
torch.backends.mkldnn.matmul.fp32_precision = "bf16"
assert dense.splits_operands(256, 256)
torch.backends.mkldnn.matmul.fp32_precision = "ieee"
assert not dense.splits_operands(256, 256)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_terms_begin_at_any_column(split):
    """Terms whose widths are no multiples of a tile's, one of them narrower than a vector."""
    widths, m = (3, 37, 16, 65), 50
    tables = [rows(700, width, seed) for seed, width in enumerate(widths)]
    weights = [rows(width, m, 10 + seed) for seed, width in enumerate(widths)]
    ids = torch.randint(700, (900,), generator=torch.Generator().manual_seed(5))
    found = matmul_terms([Term(x, w, rows=ids) for x, w in zip(tables, weights, strict=True)])
    joined, weight = torch.cat([x[ids] for x in tables], 1), torch.cat(weights)
    assert error(found, joined, weight) <= 2 * max(error(joined @ weight, joined, weight), 2.0**-24)
    tables[1][ids[450], 5] = float("inf")
    special = matmul_terms([Term(x, w, rows=ids) for x, w in zip(tables, weights, strict=True)])
    assert not torch.isfinite(special[450]).any() and torch.isfinite(special[ids != ids[450]]).all()
    torch.testing.assert_close(special[ids != ids[450]], found[ids != ids[450]], rtol=1e-5, atol=1e-5)
