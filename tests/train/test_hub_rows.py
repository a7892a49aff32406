"""A node whose neighbours do not fit into memory at once has the output of the whole graph, from pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import graphweft as gw
from graphweft.loader.parts import MemoryParts
from graphweft.train import tiles
from graphweft.train.part_inference import PartInference
from graphweft.train.row_tables import FeatureTable


def _star(leaves: int) -> gw.Graph:
    """Node 0 has an edge from every other, some twice, and from itself; leaves have edges among each other."""
    rng = np.random.default_rng(0)
    src = np.concatenate([np.arange(1, leaves), np.arange(1, leaves, 7), [0], rng.integers(0, leaves, leaves)])
    dst = np.concatenate([np.zeros(len(src) - leaves, int), rng.integers(1, leaves, leaves)])
    return gw.Graph(src, dst, num_nodes=leaves)


@pytest.mark.parametrize(
    ("kind", "reduce"),
    [
        ("SAGE", "mean"),
        ("SAGE", "sum"),
        ("SAGE", "max"),
        ("GCN", "sum"),
        ("GCN", "mean"),
        ("GIN", "sum"),
        ("GAT", None),
        ("SAGE", "pool"),  # rows are projected before their maximum is taken
    ],
)
def test_a_hub_beyond_a_tile(kind: str, reduce: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "LEAST_TILE", 64)
    graph, x = _star(500), torch.randn(500, 8, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    options: dict[str, Any] = {"reduce": reduce} if reduce else {}
    model = getattr(gw.nn, kind)(8, 8, 3, num_layers=2, **options).eval()
    source = MemoryParts(graph, x, torch.zeros(500).long(), torch.arange(500) % 3, 3)
    inference, most = PartInference(model, source, 1, 1), 0
    fill = FeatureTable.fill

    def counted(table: FeatureTable, ids: Any, out: torch.Tensor, at: torch.Tensor) -> None:
        nonlocal most
        most = max(most, len(ids))
        fill(table, ids, out, at)

    monkeypatch.setattr(FeatureTable, "fill", counted)
    found = inference.outputs(np.arange(500))
    torch.testing.assert_close(found, model(graph, x)[source.order], rtol=1e-4, atol=1e-5)
    is_joined = reduce in ("sum", "mean", "max")
    assert most <= 2 * 64 if is_joined else most > 400  # attention weighs all neighbours against each other
