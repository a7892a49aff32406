"""What ``gw.explain`` tells of user functions: golden texts of compiled calls and of fallbacks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zoo import random_edges

import graphweft as gw
from graphweft.nn import GAT, SAGE, GATConv

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(autouse=True)
def _certified() -> Any:
    with gw.config(certify=True):
        yield


class Attention(gw.MessagePassing):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.score = nn.Linear(6, 4, bias=False), nn.Linear(8, 1, bias=False)

    def message(self, edges: Any) -> dict[str, Tensor]:
        both = torch.cat([edges.src["z"], edges.dst["z"]], dim=1)
        return {"m": edges.src["z"], "e": torch.nn.functional.leaky_relu(self.score(both), 0.2)}

    def reduce(self, nodes: Any) -> dict[str, Tensor]:
        return {"h": (torch.softmax(nodes.mailbox["e"], dim=1) * nodes.mailbox["m"]).sum(1)}

    def forward(self, graph: gw.Graph, h: Tensor) -> Tensor:
        return self.propagate(graph, ndata={"z": self.linear(h)})["h"]


class Sorted(gw.MessagePassing):
    def message(self, edges: Any) -> dict[str, Tensor]:
        return {"m": edges.src["h"]}

    def reduce(self, nodes: Any) -> dict[str, Tensor]:
        ordered = nodes.mailbox["m"].sort(dim=1).values
        return {"h": ordered[:, 0]}

    def forward(self, graph: gw.Graph, h: Tensor) -> Tensor:
        return self.propagate(graph, ndata={"h": h})["h"]


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.seen = Attention(), Sorted(), nn.BatchNorm1d(6)

    def forward(self, graph: gw.Graph, h: Tensor) -> Tensor:
        return self.second(graph, self.first(graph, self.seen(h)))


@pytest.fixture
def graph() -> gw.Graph:
    made = random_edges(300, 2000, seed=11)
    return gw.Graph(made.src, made.dst, num_nodes=300)


def test_the_story_of_user_functions_is_as_recorded(graph: gw.Graph) -> None:
    """Delete the golden file to record it anew."""
    with gw.config(memory=1 << 30):
        text = gw.explain(Both(), graph, torch.ones(300, 6)).replace(str(Path(__file__).parent), "TESTS") + "\n"
    text = re.sub(
        r" +[\d.]+ (us|ms)", r" - \1", text
    )  # times follow the cost coefficients, which are fitted anew at times
    path = GOLDEN / "explained.txt"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()
    for expected in (
        "-- traced --",
        "-- messages --",
        "attention",
        "-- certificates --",
        "differentiate: holds",
        " us",
    ):
        assert expected in text
    assert "== call 1" in text and "reference executor: sort" in text and "at TESTS/test_explanation.py:" in text


def test_explaining_changes_nothing(graph: gw.Graph) -> None:
    module = Both()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    state = torch.get_rng_state()
    gw.explain(module, graph, torch.ones(300, 6))
    assert torch.equal(state, torch.get_rng_state())
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)


def test_what_is_not_compiled_is_said(graph: gw.Graph) -> None:
    with gw.config(opt_level=0):
        assert "Nothing is compiled" in gw.explain(Attention(), graph, torch.ones(300, 6))
    with gw.config(certify=False):
        assert "-- certificates --\nswitched off" in gw.explain(Attention(), graph, torch.ones(300, 6))


@pytest.mark.parametrize("model", [GAT(6, 8, 3, heads=2), SAGE(6, 8, 3)], ids=["gat", "sage"])
def test_a_batchs_blocks_are_told_layer_by_layer(model: Any, graph: gw.Graph) -> None:
    blocks = gw.NeighborSampler(graph, [3, 2]).sample(torch.arange(20), seed=0).blocks
    text = gw.explain(model, blocks, torch.ones(blocks[0].num_src, 6))
    first, second = text.split("== layer 1 ==")
    assert first.startswith("== layer 0 ==") and text.count("-- orders --") == 2 == text.count("-- certificates --")
    assert "grad:x=" not in first and "grad:x=" in second  # nothing flows back to the features
    assert f"{blocks[1].num_dst:,} nodes, {blocks[1].num_edges:,} edges" in second


def test_blocks_that_do_not_fit_are_refused(graph: gw.Graph) -> None:
    blocks = gw.NeighborSampler(graph, [3, 2]).sample(torch.arange(20), seed=0).blocks
    x = torch.ones(blocks[0].num_src, 6)
    with pytest.raises(gw.GraphWeftError, match="GAT: expected 2 blocks, one per layer, got 1"):
        gw.explain(GAT(6, 8, 3), blocks[:1], x)
    with pytest.raises(gw.GraphWeftError, match="GATConv: expected 1 blocks, one per layer, got 2"):
        gw.explain(GATConv(6, 8), blocks, x)
    with pytest.raises(gw.GraphWeftError, match="or the blocks of a batch, got str"):
        gw.explain(GAT(6, 8, 3), "cora", x)


def test_a_users_module_takes_the_blocks_as_it_likes(graph: gw.Graph) -> None:
    class OnBlocks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Attention()

        def forward(self, blocks: Any, h: Tensor) -> Tensor:
            z = self.layer.linear(h)
            return self.layer.propagate(blocks[0], ndata={"z": (z, z[: blocks[0].num_dst])})["h"]

    blocks = gw.NeighborSampler(graph, [3]).sample(torch.arange(20), seed=0).blocks
    text = gw.explain(OnBlocks(), blocks, torch.ones(blocks[0].num_src, 6))
    assert text.startswith("OnBlocks: 1 message-passing calls") and "-- forward calls --" in text
    assert f"== call 0: 20 nodes, {blocks[0].num_edges} edges ==" in text
