"""Sums over edges in two parts against NumPy in float64: late rows are read once they are there, others leave early."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import graphweft as gw
from graphweft.dist.local_part import LocalPart
from graphweft.dist.ranks import Ranks
from graphweft.runtime.constants import once
from graphweft.runtime.late_rows import InTwo, Late
from graphweft.runtime.piece import Piece

NODES, TARGETS, NEAR, WIDTH, OUT = 200, 100, 150, 8, 24


def graph_of(degree: int) -> gw.Graph:
    """Without loops, every edge in both directions, as often as it is drawn."""
    draw = np.random.default_rng(0)
    src = draw.integers(0, NODES, NODES * degree // 2)
    dst = (src + draw.integers(1, NODES, src.size)) % NODES
    return gw.Graph(np.concatenate([src, dst]), np.concatenate([dst, src]), num_nodes=NODES)


@pytest.mark.parametrize(("degree", "multiplies"), [(3, False), (40, True)])
def test_a_layer_on_late_rows(degree: int, multiplies: bool) -> None:
    torch.manual_seed(0)
    graph = graph_of(degree)
    model = gw.nn.GCN(WIDTH, WIDTH, OUT, num_layers=2).train()
    part = LocalPart(Ranks(), graph, torch.zeros(NODES, dtype=torch.int64)).restricted(torch.arange(TARGETS))
    ids, count = part.own[part.near], part.block.num_src
    with once(), torch.enable_grad():
        given = torch.empty(count, WIDTH, requires_grad=True)
        arguments = replace(model.layer_arguments(1, part.block, given), training=True)
        piece = Piece.of(model.layer_function(1), arguments)
    assert piece is not None and piece.plan.scales == multiplies and count > NEAR

    dense = np.zeros((NODES, NODES))
    np.add.at(dense, (graph.edges()[1].numpy(), graph.edges()[0].numpy()), 1.0)
    dense += np.eye(NODES)
    factor = 1 / np.sqrt(dense.sum(1))
    spread = (factor[:, None] * dense * factor)[part.targets][:, ids]
    weight, bias = (model.layers[1].get_parameter(name).detach().double().numpy() for name in ("weight", "bias"))
    x = torch.randn(count, WIDTH)
    wanted = spread @ x.double().numpy() @ weight + bias

    table = x.clone()
    table[NEAR:] = torch.nan
    with torch.no_grad():
        cut, waits = InTwo(NEAR), []
        out = piece.forward([table], None, Late(cut, lambda rows: (waits.append(1), table[NEAR:].copy_(x[NEAR:]))[0]))
        gradient, left = torch.randn(TARGETS, OUT), []
        made = piece.backward(
            lambda stages: gradient if stages is None else stages.reference(gradient),
            Late(cut, lambda rows: left.append(rows[NEAR:].clone())),
        )
    assert len(waits) == len(left) == 1
    np.testing.assert_allclose(out.numpy(), wanted, rtol=1e-4, atol=1e-5)
    back = gradient.double().numpy() @ weight.T
    np.testing.assert_allclose(made["x"].numpy(), spread.T @ back, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(left[0].numpy(), (spread.T @ back)[NEAR:], rtol=1e-4, atol=1e-5)
