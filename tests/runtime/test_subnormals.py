"""Numbers below the least normal one count as zero in kernels, whatever the number of threads, and nowhere else."""

import pytest
import torch
from zoo import power_law_edges

import graphweft as gw
from graphweft.runtime import dense

TINY = 1e-39  # float32 has normal numbers from 1.2e-38 on


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("rows", [3, 5000])
def test_they_are_zero_in_products_and_sums(rows, threads, threads_restored):
    torch.set_num_threads(threads)
    x, w = torch.full((rows, 64), TINY), torch.ones(64, 32)
    assert not dense.matmul(x, w).any()
    assert not dense.matmul_tn(x, torch.ones(rows, 32)).any()
    assert not dense.col_sum(x).any()
    src, dst, nodes = power_law_edges(rows, 4 * rows, seed=1)
    graph = gw.Graph(src, dst, num_nodes=nodes)
    ndata = {"x": torch.full((nodes, 40), TINY)}
    assert not gw.update_all(graph, gw.fn.copy_u("x", "m"), gw.fn.sum("m", "y"), ndata=ndata)["y"].any()


def test_results_of_normal_numbers_that_are_below_are_zero(threads_restored):
    x, w = torch.full((5000, 16), 1e-20), torch.full((16, 8), 1e-20)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        assert not dense.matmul(x, w).any()
    torch.testing.assert_close(dense.matmul(x, torch.ones(16, 8)), torch.full((5000, 8), 16e-20), rtol=1e-6, atol=0.0)


def test_torch_is_left_as_it_is():
    dense.matmul(torch.ones(5000, 64), torch.ones(64, 32))
    for count in (3, 100_000):  # one thread of torch, and all
        assert (torch.full((count,), TINY) * 2).all()
