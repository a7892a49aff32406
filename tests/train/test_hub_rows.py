"""A node whose neighbours do not fit into memory at once has the output of the whole graph, from pieces."""

from __future__ import annotations

from pathlib import Path
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


@pytest.fixture
def most(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows that were read together, while tiles are small."""
    monkeypatch.setattr(tiles, "LEAST_TILE", 64)
    found, fill = list[int](), FeatureTable.fill

    def counted(table: FeatureTable, ids: Any, out: torch.Tensor, at: torch.Tensor) -> None:
        found.append(len(ids))
        fill(table, ids, out, at)

    monkeypatch.setattr(FeatureTable, "fill", counted)
    return found


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
def test_a_hub_beyond_a_tile(kind: str, reduce: str, most: list[int]) -> None:
    graph, x = _star(500), torch.randn(500, 8, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    options: dict[str, Any] = {"reduce": reduce} if reduce else {}
    model = getattr(gw.nn, kind)(8, 8, 3, num_layers=2, **options).eval()
    source = MemoryParts(graph, x, torch.zeros(500).long(), torch.arange(500) % 3, 3)
    found = PartInference(model, source, 1, 1).outputs(np.arange(500))
    torch.testing.assert_close(found, model(graph, x)[source.order], rtol=1e-4, atol=1e-5)
    is_joined = reduce in ("sum", "mean", "max")
    assert max(most) <= 2 * 64 if is_joined else max(most) > 400  # attention weighs neighbours against each other


@pytest.mark.parametrize(("kind", "reduce"), [("SAGE", "mean"), ("GCN", "sum"), ("GCN", "mean"), ("GIN", "sum")])
def test_a_hub_whose_edges_have_weights(kind: str, reduce: str, most: list[int], tmp_path: Path) -> None:
    graph, generator = _star(500), torch.Generator().manual_seed(0)
    x, weight = torch.randn(500, 8, generator=generator), torch.rand(graph.num_edges, generator=generator) + 0.1
    ds = gw.Dataset("star", graph, x, torch.arange(500) % 3, edge_weight=weight, seed=0)
    store = gw.macro.prepare_store(ds, tmp_path / "star", parts=3, method="hash")
    store.piece = 64 * x[0].nbytes
    torch.manual_seed(0)
    model = getattr(gw.nn, kind)(8, 8, 3, num_layers=2, reduce=reduce).eval()
    inference = PartInference(model, store, 1, 1)
    inference.weighted = True
    found = inference.outputs(np.arange(500))
    order = torch.cat([store.node_ids(number) for number in range(3)])
    torch.testing.assert_close(found, model(graph, x, edge_weight=weight)[order], rtol=1e-4, atol=1e-5)
    assert max(most) <= 2 * 64
