"""Buffers of products: what they are counted as is what they take, and they are taken once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import graphweft as gw
from graphweft._budget import own_bytes
from graphweft.runtime.cpu.buffers import slabs, terms_slabs
from graphweft.runtime.dense import matmul_tn
from graphweft.runtime.terms import Left, contract_terms

_SLACK = 200 << 10  # blocks of rows that threads copy, and their stacks


def grown(run: Callable[[], object]) -> int:
    """Bytes that this process takes more after a call."""
    before = own_bytes()
    run()
    return own_bytes() - before


@pytest.mark.own_process
@pytest.mark.parametrize(("n", "k", "m"), [(40_000, 64, 48), (3000, 602, 32), (9000, 100, 130)])
def test_a_contraction_takes_its_slabs_once(n: int, k: int, m: int) -> None:
    x, g, out = torch.ones(n, k), torch.ones(n, m), torch.zeros(k, m)
    matmul_tn(x[:100], g[:100], out=out)  # threads have begun
    expected = slabs(n, k, m)
    assert expected > 1 << 19
    assert expected - _SLACK < grown(lambda: matmul_tn(x, g, out=out)) < expected + _SLACK
    assert grown(lambda: matmul_tn(x, g, out=out)) < _SLACK
    assert grown(lambda: matmul_tn(x[: n // 2], g[: n // 2], out=out)) < _SLACK  # in the same buffer
    torch.testing.assert_close(out, torch.full((k, m), n // 2.0))


@pytest.mark.own_process
def test_several_contractions_take_their_slabs_once() -> None:
    n, ks, m = 6000, (96, 200), 64
    graph = gw.Graph(torch.arange(n), (torch.arange(n) * 7 + 1) % n, num_nodes=n)
    lefts, x, edges = [Left(torch.ones(n, k)) for k in ks], torch.ones(n, m), graph.csc_structure
    contract_terms([Left(left.x[:200]) for left in lefts], gw.Graph([0], [1], num_nodes=200).csc_structure, x[:200])
    expected = terms_slabs(n, ks, m, rounds=False)
    assert expected > 2 << 20
    results = sum(4 * k * m for k in ks)
    assert expected - _SLACK < grown(lambda: contract_terms(lefts, edges, x)) < expected + results + _SLACK
    assert grown(lambda: contract_terms(lefts, edges, x)) < results + _SLACK
