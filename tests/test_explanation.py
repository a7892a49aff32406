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
        text = (
            gw.explain(Both(), graph, torch.ones(300, 6), full=True).replace(str(Path(__file__).parent), "TESTS") + "\n"
        )
    text = re.sub(r" +[\d.]+ (us|ms)", r" - \1", text)  # times follow cost coefficients, which are fitted anew at times
    text = re.sub(r"on \d+ threads?", "on - threads", text)
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
        assert "No call is compiled" in gw.explain(Attention(), graph, torch.ones(300, 6))
    with gw.config(certify=False):
        assert "-- certificates --\nswitched off" in gw.explain(Attention(), graph, torch.ones(300, 6))


@pytest.mark.parametrize("model", [GAT(6, 8, 3, heads=2), SAGE(6, 8, 3)], ids=["gat", "sage"])
def test_a_batchs_blocks_are_told_layer_by_layer(model: Any, graph: gw.Graph) -> None:
    blocks = gw.sampling.NeighborSampler(graph, [3, 2]).sample(torch.arange(20), seed=0).blocks
    text = gw.explain(model, blocks, torch.ones(blocks[0].num_src, 6))
    first, second = text.split("== layer 1 ==")
    assert first.startswith("== layer 0 ==") and text.count("-- orders --") == 2 == text.count("-- certificates --")
    assert first.count(" stored") == 1 == second.count(" stored")
    full = gw.explain(model, blocks, torch.ones(blocks[0].num_src, 6), full=True)
    first, second = full.split("== layer 1 ==")
    assert "grad:x=" not in first and "grad:x=" in second  # nothing flows back to the features
    assert f"{blocks[1].num_dst:,} nodes, {blocks[1].num_edges:,} edges" in second and len(full) > 2 * len(text)


def test_blocks_that_do_not_fit_are_refused(graph: gw.Graph) -> None:
    blocks = gw.sampling.NeighborSampler(graph, [3, 2]).sample(torch.arange(20), seed=0).blocks
    x = torch.ones(blocks[0].num_src, 6)
    with pytest.raises(gw.errors.GraphWeftError, match="GAT: expected 2 blocks, one per layer, got 1"):
        gw.explain(GAT(6, 8, 3), blocks[:1], x)
    with pytest.raises(gw.errors.GraphWeftError, match="GATConv: expected 1 blocks, one per layer, got 2"):
        gw.explain(GATConv(6, 8), blocks, x)
    with pytest.raises(gw.errors.GraphWeftError, match="or the blocks of a batch, got str"):
        gw.explain(GAT(6, 8, 3), "cora", x)


def test_a_users_module_takes_the_blocks_as_it_likes(graph: gw.Graph) -> None:
    class OnBlocks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Attention()

        def forward(self, blocks: Any, h: Tensor) -> Tensor:
            z = self.layer.linear(h)
            return self.layer.propagate(blocks[0], ndata={"z": (z, z[: blocks[0].num_dst])})["h"]

    blocks = gw.sampling.NeighborSampler(graph, [3]).sample(torch.arange(20), seed=0).blocks
    text = gw.explain(OnBlocks(), blocks, torch.ones(blocks[0].num_src, 6))
    assert text.startswith("OnBlocks: 1 message-passing calls, no fallback") and "-- forward calls --" in text
    assert f"== call 0: 20 nodes, {blocks[0].num_edges} edges ==" in text


def test_the_verdict_comes_first(graph: gw.Graph) -> None:
    text = gw.explain(Both(), graph, torch.ones(300, 6))
    lines = text.splitlines()
    assert lines[0].startswith("Both: 2 message-passing calls, 1 falls back") and "plain torch" in lines[1]
    call = text.split("== call 0")[1].split("== call 1")[0].splitlines()
    assert "kernels forward" in call[2] and "stored" in call[2] and call[3].startswith("predicted step: ")
    assert "-- traced --" not in text and "-- forward calls --" in text


def test_what_is_stored_of_edge_size_is_what_the_calls_write() -> None:
    made = random_edges(300, 2000, seed=11)
    graph = gw.Graph(made.src, made.dst, num_nodes=300)
    gcn = gw.explain(gw.nn.GCN(6, 8, 3), graph, torch.ones(300, 6))
    assert "nothing of edge size stored" in gcn
    told = gw.explain(
        lambda g, x: gw.apply_edges(g, "u_mul_v", ndata={"h": x})["e"], graph, torch.ones(300, 6, requires_grad=True)
    )
    assert re.search(r"[\d.]+ MiB of edge size stored \(edge\[E x 6\] float32\)", told)


def test_further_arguments_of_forward(graph: gw.Graph) -> None:
    class Weighted(gw.MessagePassing):
        def message(self, edges: Any) -> dict[str, Tensor]:
            return {"m": edges.src["h"] * edges.data["w"]}

        def reduce(self, nodes: Any) -> dict[str, Tensor]:
            return {"h": nodes.mailbox["m"].sum(1)}

        def forward(self, graph: gw.Graph, h: Tensor, w: Tensor, scale: float = 1.0) -> Tensor:
            return scale * self.propagate(graph, ndata={"h": h}, edata={"w": w})["h"]

    x, w = torch.ones(300, 6), torch.ones(2000, 1)
    assert gw.explain(Weighted(), graph, x, w) == gw.explain(Weighted(), graph, x, w=w)
    assert gw.explain(Weighted(), graph, x, w, scale=2.0).startswith("Weighted: 1 message-passing calls, no fallback")
    model, rows = gw.nn.SAGE(6, 8, 3), torch.arange(5)
    assert gw.explain(model, graph, x, rows) == gw.explain(model, graph, x, rows=rows) != gw.explain(model, graph, x)
    with pytest.raises(
        gw.errors.GraphWeftError, match="expected rows, edge_weight or edge_attr after the features of SAGE"
    ):
        gw.explain(model, graph, x, rows, w)


def _dataset() -> gw.Dataset:
    return gw.synthetic("cora", scale=0.1, seed=0)


def test_a_trainers_batches_are_told_with_their_sampler() -> None:
    ds = _dataset()
    trainer = gw.Trainer(gw.nn.SAGE(ds.num_features, 8, ds.num_classes), ds, mode="mini", fanouts=[4, 3], batch_size=8)
    text = gw.explain(trainer)
    assert "batches of 8 nodes, first block" in text and "prepared for every batch" in text
    assert "sample " in text and "sample(" not in text and "sample(" in gw.explain(trainer, full=True)
    plan, sizes = trainer.staged_plan()
    assert plan is trainer._batch.loader.plan and sizes.rows["B"] == 8  # the one that runs
    whole = gw.Trainer(gw.nn.SAGE(ds.num_features, 8, ds.num_classes), ds)
    assert "prepared for every batch" not in gw.explain(whole) and "kernels forward" in gw.explain(whole)


def test_plain_torch_around_the_calls_is_counted(graph: gw.Graph) -> None:
    mean = (lambda e: {"m": e.src["h"]}, lambda n: {"h": n.mailbox["m"].mean(1)})
    dense = nn.Linear(6, 4)
    around = gw.explain(
        lambda g, x: dense(gw.update_all(g, *mean, ndata={"h": x})["h"]).relu(), graph, torch.ones(300, 6)
    )
    alone = gw.explain(lambda g, x: gw.update_all(g, *mean, ndata={"h": x})["h"], graph, torch.ones(300, 6))
    assert "around them 2 operations of plain torch" in around and "around them nothing" in alone


def test_layers_of_the_package_inside_a_module_are_named(graph: gw.Graph) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = GATConv(6, 8)

        def forward(self, graph: gw.Graph, x: Tensor) -> Tensor:
            return self.layer(graph, x)

    assert "told by explain(layer, graph, x): GATConv" in gw.explain(Model(), graph, torch.ones(300, 6))
