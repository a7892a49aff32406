import numpy as np
import pytest
import torch

from graphweft._errors import ShapeError
from graphweft.runtime.dense import col_sum, dot, dropout, rows_apply
from graphweft.runtime.epilogue import Epilogue

SHAPES = [(0, 3), (1, 1), (7, 5), (300, 16), (301, 47), (1000, 33), (70, 130), (5, 0)]


def philox(counter, key):
    """Philox 4x32-10 over arrays, from the paper (Salmon et al., SC 2011)."""
    c = [np.uint64(v) for v in counter] if np.isscalar(counter[0]) else list(counter)
    k0, k1 = (np.uint64(k) for k in key)
    low = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(b >> shift) ^ c[1] ^ k0, b & low, (a >> shift) ^ c[3] ^ k1, a & low]
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low, (k1 + np.uint64(0xBB67AE85)) & low
    return c


def draws(count, seed, stream):
    """The 16-bit draw of each element, from the documented numbering."""
    element = np.arange(count, dtype=np.uint64)
    place = element % np.uint64(64)
    block = element // np.uint64(64) * np.uint64(8) + place % np.uint64(32) // np.uint64(4)
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    fixed = np.zeros_like(block)
    words = philox(
        [block & low, block >> shift, fixed + np.uint64(stream & 0xFFFFFFFF), fixed + np.uint64(stream >> 32)],
        (seed & 0xFFFFFFFF, seed >> 32),
    )
    word = 2 * (place // 32) + place % 4 // 2
    value = np.choose(word.astype(np.int64), words)
    return (value >> (place % np.uint64(2) * np.uint64(16))) & np.uint64(0xFFFF)


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_apply_equals_torch(shape):
    n, f = shape
    x = torch.randn(n, f)
    sums = torch.full((f,), float("nan"))
    epilogue = Epilogue(torch.rand(n), torch.randn(f), torch.randn(n, f), True, torch.randn(n, f), sums, torch.rand(n))
    exact = epilogue.reference(x.double())
    before = Epilogue(epilogue.row_scale, epilogue.bias, epilogue.addend, True, epilogue.mask).reference(x.double())
    torch.testing.assert_close(rows_apply(x, epilogue).double(), exact, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(sums.double(), before.sum(0), rtol=1e-5, atol=1e-4)
    same = x.clone()
    assert rows_apply(same, epilogue, out=same) is same
    torch.testing.assert_close(same.double(), exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_col_sum_equals_float64(shape):
    wide = torch.randn(shape[0], shape[1] + 3)
    for x in (wide[:, : shape[1]].contiguous(), wide[:, 3:]):
        torch.testing.assert_close(col_sum(x).double(), x.double().sum(0), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("shape", [*SHAPES, (4097, 40), (3, 16384)])
def test_dot_equals_float64(shape):
    x, y = torch.randn(2, shape[0], shape[1] + 3)
    for a, b in ((x[:, 3:], y[:, : shape[1]]), (x.contiguous(), y)):
        exact, size = (a.double() * b.double()).sum(), (a.double() * b.double()).abs().sum()
        assert abs(dot(a, b).double() - exact) <= 1e-6 * size
    threads = torch.get_num_threads()
    try:
        found = []
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append(dot(x, y))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*found)
    with pytest.raises(ShapeError, match=r"^dot: expected operands of one shape, got"):
        dot(x, torch.ones(2))


@pytest.mark.parametrize("shape", [(1, 1), (3, 64), (37, 41), (129, 200)])
@pytest.mark.parametrize("seed", [0, 12345678901234567890])
def test_dropout_draws_are_the_documented_ones(shape, seed):
    n, f = shape
    stream = (7 << 32) | 5
    x = torch.rand(n, f) + 1
    keep = torch.from_numpy(draws(n * f, seed, stream).reshape(n, f) >= round(0.3 * 65536))
    expected = torch.where(keep, x * torch.tensor(1 / 0.7, dtype=torch.float32), 0.0)
    got = dropout(x, 0.3, seed, stream)
    assert torch.equal(got, expected)
    padded = torch.full((n, f + 5), -1.0)
    padded[:, 2 : f + 2] = x
    view = padded[:, 2 : f + 2]
    assert torch.equal(dropout(view, 0.3, seed, stream), expected)
    dropout(view, 0.3, seed, stream, out=view)
    assert torch.equal(view, expected) and bool((padded[:, f + 2 :] == -1.0).all())
    torch.testing.assert_close(dropout(x.double(), 0.3, seed, stream), torch.where(keep, x.double() / 0.7, 0.0))


def test_dropout_keeps_the_mean_and_is_its_own_backward():
    x = torch.ones(2000, 100)
    y = dropout(x, 0.5, seed=3, stream=1)
    assert abs(y.mean().item() - 1.0) < 0.01
    assert abs((y[:, :50] * y[:, 50:]).mean().item() - 1.0) < 0.02  # columns are independent
    assert torch.equal(dropout(x, 0.5, seed=3, stream=1), y)
    assert not torch.equal(dropout(x, 0.5, seed=3, stream=2), y)
    assert torch.equal(dropout(x, 0.0, 1, 1), x)
    assert torch.equal(dropout(x, 1.0, 1, 1), torch.zeros_like(x))
    with pytest.raises(ShapeError, match="probability"):
        dropout(x, 1.5, 0, 0)


def test_dropped_elements_are_zero_even_where_x_is_not_a_number():
    y = dropout(torch.full((10, 10), float("nan")), 0.5, 0, 0)
    assert bool((y.isnan() | (y == 0)).all()) and bool((y == 0).any()) and bool(y.isnan().any())


def test_same_bits_for_any_number_of_threads():
    x = torch.randn(40000, 33)
    results = []
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            sums = torch.empty(33)
            results.append((rows_apply(x, Epilogue(relu=True, col_sum=sums)), sums, col_sum(x), dropout(x, 0.5, 1, 2)))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
