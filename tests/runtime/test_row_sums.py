"""Native sums within rows and negative powers against torch in double precision."""

from __future__ import annotations

import pytest
import torch

from graphweft.runtime.norms import track
from graphweft.runtime.row_sums import EXPONENTS, part_sum, power, row_sum

SIZES = [(1, 1), (7, 16), (300, 33), (2, 700), (0, 5), (4, 0)]


@pytest.mark.parametrize(("n", "f"), SIZES)
def test_sums_are_those_of_torch_for_any_number_of_threads(n: int, f: int) -> None:
    torch.manual_seed(n + f)
    x, parts = torch.randn(n, f), torch.randn(n, 3, f)
    for given, sums, wanted in ((x, row_sum, x.double().sum(1)), (parts, part_sum, parts.double().sum(1))):
        found = sums(given)
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
        threads = torch.get_num_threads()
        try:
            torch.set_num_threads(3 - min(threads, 2))
            assert torch.equal(sums(given), found)
        finally:
            torch.set_num_threads(threads)


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_powers_are_those_of_torch_and_0_at_0(exponent: float) -> None:
    x = torch.cat([torch.rand(100) * 10, torch.tensor([1e-30, 1e20, 1e-12])])
    torch.testing.assert_close(power(x, exponent, 0.5).double(), (x.double() + 0.5) ** exponent, rtol=1e-6, atol=0)
    torch.testing.assert_close(power(x[-1:], exponent).double(), x[-1:].double() ** exponent, rtol=1e-6, atol=0)
    assert power(torch.tensor([0.0, -0.5]), exponent, 0.5)[1] == 0 == power(torch.zeros(1), exponent)[0]


def test_running_statistics_are_those_of_torch() -> None:
    torch.manual_seed(0)
    x, norm = torch.randn(40, 13) * 3 + 1, torch.nn.BatchNorm1d(13).double()
    mean, variance = torch.zeros(13), torch.ones(13)
    for _ in range(3):
        x = x * 1.1
        norm(x.double())
        stats = torch.stack([x.mean(0), x.var(0, unbiased=False)])
        assert track(stats, 40, 0.1, mean, variance)
    torch.testing.assert_close(mean.double(), norm.running_mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(variance.double(), norm.running_var, rtol=1e-5, atol=1e-6)
    assert not track(stats.double(), 40, 0.1, mean, variance)
