"""What a rank computes of its part's structure is computed once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from zoo import power_law_edges

import graphweft as gw
from graphweft.dist.local_part import LocalPart
from graphweft.dist.ranks import Ranks
from graphweft.nn.edges import EdgeInputs
from graphweft.runtime.hoisted import HoistedValues


def test_structure_of_a_part_is_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    src, dst, nodes = power_law_edges(60, 400, seed=2)
    graph = gw.Graph(src, dst, num_nodes=nodes)
    part = LocalPart(Ranks(), graph, torch.zeros(nodes, dtype=torch.int64))
    made: list[str] = []
    real = HoistedValues._made

    def counted(plan: Any, item: Any, content: Any, over: Any) -> Any:
        made.append(item.key)
        return real(plan, item, content, over)

    monkeypatch.setattr(HoistedValues, "_made", staticmethod(counted))
    model = gw.nn.SAGE(8, 8, 8, num_layers=2)
    x = torch.randn(nodes, 8, requires_grad=True)
    counts = []
    for _ in range(3):
        model.run_layer(0, part.block, x, EdgeInputs()).sum().backward()
        counts.append(len(made))
    assert counts[0] > 0 and counts[0] == counts[1] == counts[2]
