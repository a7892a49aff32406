"""Rows of several dimensions times a number each: against the interpreter in float64, in memory of the pool."""

from __future__ import annotations

import pytest
import torch
from codegen.test_edges import arguments, compare, fields_of, function_of
from zoo import CASES, Case, power_law_edges

import graphweft as gw
from graphweft._memory import POOL
from graphweft.ir.ops import Op


def _scaled(e):
    share = e.b.add(Op.POW, e.b.add(Op.IN_DEGREE, e.g), exponent=-1.0)
    return {"out": e.b.add(Op.ROW_SCALE, e["dst:k"], share)}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_row_is_multiplied_by_its_number(case: Case) -> None:
    compare(function_of(_scaled), case.graph(), 1e-6)


def test_results_lie_in_the_pool_and_have_the_bits_of_torch() -> None:
    edges = power_law_edges(3000, 20000, seed=4)
    graph = gw.Graph(edges.src, edges.dst, num_nodes=3000)
    fields = fields_of(graph, torch.float32)
    out = function_of(_scaled)(arguments(graph, fields))["out"].detach()
    degree = torch.bincount(torch.as_tensor(edges.dst), minlength=3000).float()
    share = torch.where(degree > 0, degree**-1.0, torch.zeros(()))
    assert torch.equal(out, fields["dst:k"][0].detach() * share.view(-1, 1, 1))
    assert POOL.owns(out)
