"""Rows of many edges, summed by pieces and joined, beside dense products in float64. Run by ``trials.py``."""

from __future__ import annotations

import numpy as np
import torch
from cuda.halves import dense_of, drawn
from torch import Tensor
from zoo import random_edges

import graphweft as gw
from graphweft.runtime.cuda import edges
from graphweft.runtime.epilogue import Epilogue


def close(got: Tensor, wanted: Tensor) -> None:
    tolerance = 1e-5 if got.dtype == torch.float32 else 1e-12
    torch.testing.assert_close(got.double(), wanted, rtol=tolerance, atol=tolerance * float(wanted.abs().max()))


def hubs_are_summed_by_pieces() -> None:
    """Rows of more edges than a piece, of fewer, and of none; weights by number, an epilogue."""
    ends = random_edges(30, 200, 8)
    dst = np.where(ends.dst < 12, ends.dst % 3, ends.dst)
    graph, n = gw.Graph(ends.src, dst, num_nodes=30), 30
    assert edges.hubs_of(graph, False) is None  # of so few edges
    most, edges.HUB = edges.HUB, 4
    try:
        degrees, hubs = graph.in_degrees(), edges.hubs_of(graph, False)
        assert hubs is not None and hubs.size == int(((degrees + 3) // 4)[degrees > 4].sum()) > 20
        for dtype, width in ((torch.float32, 5), (torch.float64, 3), (torch.float32, 130)):
            x, weight, scale = (drawn(*s, dtype=dtype, seed=k) for k, s in enumerate([(n, width), (200,), (n,)]))
            close(edges.sum_edges(graph, x), dense_of(graph) @ x.double())
            stages = {"row_scale": drawn(n, dtype=dtype), "bias": drawn(width, dtype=dtype)}
            got = edges.sum_edges(graph, x, weight, scale, 0.5, stages, True)
            scaled = x.double() * scale.double()[:, None]
            close(got, Epilogue(**stages, relu=True).reference(dense_of(graph, weight) @ scaled + 0.5 * scaled))
        halves = drawn(n, 8).bfloat16()
        found = edges.sum_edges(graph, halves)
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found.double(), dense_of(graph) @ halves.double(), rtol=2**-7, atol=0.05)
    finally:
        edges.HUB = most
