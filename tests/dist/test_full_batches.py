"""Full batches over ranks against one process: the same losses, and exactly the bytes that the parts call for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from dist.rank_cases import dataset, full_trainer, model_of, state_of, uneven_trainer
from dist.rank_processes import run_case

import graphweft as gw
from graphweft._errors import ConfigError
from graphweft.dist.halo import over_ranks
from graphweft.dist.local_part import LocalPart
from graphweft.dist.rank_graph import RankGraph
from graphweft.dist.ranks import Ranks
from graphweft.graph.graph import Graph
from graphweft.partitioning.report import predict
from graphweft.train.ranked_full import exchange_of

MODELS = ("GCN", "SAGE", "GIN", "GAT")


@pytest.mark.parametrize("size", [2, 3])
def test_losses_are_those_of_one_process(tmp_path: Path, size: int) -> None:
    run_case(tmp_path, size, "full", *MODELS)
    graph = dataset().graph
    for name in MODELS:
        trainer = full_trainer(name, None)
        trainer.fit(4)
        wanted = state_of(trainer)
        states = [torch.load(tmp_path / f"{name}-{rank}.pt", weights_only=True) for rank in range(size)]
        for state in states:
            assert state["losses"] == pytest.approx(wanted["losses"], rel=1e-5)
            assert state["val_loss"] == pytest.approx(wanted["val_loss"], rel=1e-5)
            assert torch.equal(state["predicted"], wanted["predicted"])
            assert all(torch.equal(state["model"][key], states[0]["model"][key]) for key in wanted["model"])
        owner = torch.full((graph.num_nodes,), -1)
        for rank, state in enumerate(states):
            owner[state["own"]] = rank
        src, dst = graph.edges()
        pairs = [(int(s), int(d), int(owner[d])) for s, d in zip(src, dst, strict=True) if owner[s] != owner[d]]
        assert states[0]["ghosts"] == len({(s, p) for s, _, p in pairs}) and int(owner.min()) == 0
        trained = set(trainer.ds.labelled("train").tolist())
        read = {(s, p) for s, d, p in pairs if d in trained}  # the last layer computes rows of training nodes alone
        exchanged = 2 * len(read) * 8 * 4  # hidden rows of 8 numbers, there and back; features are at hand
        layers = [4 * sum(parameter.numel() for parameter in layer.parameters()) for layer in trainer.model.layers]
        rings = sum(2 * (size - 1) * row // size for row in [*layers, 4])  # gradients, the loss
        assert states[0]["bytes"] == exchanged + size * rings
        epoch = exchange_of(trainer.model, trainer.ds.labelled("train"), "exact")
        assert predict(graph, owner, size, epoch).bytes_sent == states[0]["bytes"]


def test_a_run_goes_on_with_other_ranks(tmp_path: Path) -> None:
    """Three epochs on two ranks, three on three: the losses of six epochs of one process."""
    names = ("GCN", "user")
    run_case(tmp_path / "two", 2, "resumed", str(tmp_path / "out"), *names)
    run_case(tmp_path / "three", 3, "resumed", str(tmp_path / "out"), *names)
    for name in names:
        trainer = full_trainer(name, None)
        trainer.fit(6)
        wanted = state_of(trainer)
        for rank in range(3):
            state = torch.load(tmp_path / "three" / f"{name}-{rank}.pt", weights_only=True)
            assert state["losses"] == pytest.approx(wanted["losses"], rel=1e-5)
            assert torch.equal(state["predicted"], wanted["predicted"])


def test_one_rank_owns_everything() -> None:
    graph = Graph([0, 1, 1, 2, 3], [1, 0, 1, 1, 3], num_nodes=5)
    part = LocalPart(Ranks(), graph, torch.zeros(5, dtype=torch.int64))
    assert part.ghosts.numel() == 0 and part.n_id.tolist() == list(range(5)) and part.inner is None
    assert torch.equal(torch.stack(part.block.edges()), torch.stack(graph.edges())[:, part.block.e_id])
    x = torch.randn(5, 2, requires_grad=True)
    out = over_ranks(part, x, lambda block, rows: 2 * rows)
    out.sum().backward()  # type: ignore[no-untyped-call]
    assert torch.equal(out, 2 * x) and x.grad is not None and torch.equal(x.grad, torch.full((5, 2), 2.0))


def test_the_interior_is_computed_while_rows_travel(tmp_path: Path) -> None:
    """In both directions: rows leave, the interior is computed, rows arrive; only the boundary waits for them."""
    run_case(tmp_path, 2, "order")
    for rank in range(2):
        found = torch.load(tmp_path / f"order-{rank}.pt", weights_only=True)
        forward = ["begin", "inner", "end", "outer"]
        backward = ["douter", "begin", "dinner", "sum", "end"]  # the last layer's gradients leave
        sums = ["sum", "summed", "summed"]  # the first layer's, once they are computed, and both arrive
        # the loss travels while the layers go backward
        assert found["events"] == [*forward, "sum", *backward, *sums, "summed"]
        assert min(found["edges"]) > 0


def test_sums_of_own_rows_are_made_while_others_travel(tmp_path: Path) -> None:
    """In both directions, also where each row reads some of another rank's; losses are those of one process."""
    run_case(tmp_path, 3, "far", *MODELS[:3])
    for name in MODELS[:3]:
        trainer = uneven_trainer(name, dataset(), None, mode="full")
        trainer.fit(4)
        wanted = state_of(trainer)
        states = [torch.load(tmp_path / f"{name}-{rank}.pt", weights_only=True) for rank in range(3)]
        for state in states:
            assert state["losses"] == pytest.approx(wanted["losses"], rel=1e-5)
            assert state["val_loss"] == pytest.approx(wanted["val_loss"], rel=1e-5)
            assert all(torch.equal(state["model"][key], states[0]["model"][key]) for key in wanted["model"])
            assert state["bytes"] == states[0]["bytes"]
    there = ["begin", "part", "end", "part"]  # rows of others are waited for between two sums
    back = ["part", "begin", "part", "add", "end"]  # gradients of others' rows leave before those of own rows are made
    for name in ("GCN", "GIN"):
        found = torch.load(tmp_path / f"{name}-0.pt", weights_only=True)["events"]
        assert found == [*there, *there, "add", *back, *back, "add"]


def test_fewer_bytes_and_nearly_the_same_losses(tmp_path: Path) -> None:
    run_case(tmp_path, 2, "halved", "bf16", "int8", "stale", "sampled", "exact")
    whole = torch.load(tmp_path / "exact-0.pt", weights_only=True)
    trainer = full_trainer("SAGE", None)
    owner = torch.zeros(trainer.ds.num_nodes, dtype=torch.int64)
    owner[torch.load(tmp_path / "exact-1.pt", weights_only=True)["own"]] = 1
    for halo in ("bf16", "int8"):
        short = torch.load(tmp_path / f"{halo}-0.pt", weights_only=True)
        epoch = exchange_of(trainer.model, trainer.ds.labelled("train"), halo)
        assert predict(trainer.ds.graph, owner, 2, epoch).bytes_sent == short["bytes"] < whole["bytes"]
        assert short["losses"] != whole["losses"] and short["losses"] == pytest.approx(whole["losses"], rel=1e-2)
    for halo in ("stale", "sampled"):
        other = torch.load(tmp_path / f"{halo}-0.pt", weights_only=True)
        epoch = exchange_of(trainer.model, trainer.ds.labelled("train"), halo)
        assert predict(trainer.ds.graph, owner, 2, epoch).bytes_sent == other["bytes"] <= whole["bytes"]
        assert (other["losses"][0] == whole["losses"][0]) == (halo == "stale")  # whose first step is exact
        assert other["losses"][1:] != whole["losses"][1:] and other["losses"][-1] < other["losses"][0]


class ByIndex(torch.nn.Linear):
    def __init__(self) -> None:
        super().__init__(12, 7)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return super().forward(x.index_add(0, edge_index[1], x[edge_index[0]]))


def shared_graph() -> RankGraph:
    graph = dataset().graph
    return RankGraph.of(LocalPart(Ranks(), graph, torch.zeros(graph.num_nodes, dtype=torch.int64)))


def test_what_needs_all_edges_is_refused_on_a_shared_graph() -> None:
    graph, h = shared_graph(), torch.ones(dataset().num_nodes, 2)

    def scaled(edges: Any) -> dict[str, torch.Tensor]:
        return {"m": edges.src["h"] / edges.src["h"].max()}

    def total(nodes: Any) -> dict[str, torch.Tensor]:
        return {"h": nodes.mailbox["m"].sum(1)}

    with pytest.raises(ConfigError, match="a value of all edges or nodes at once is not supported over several ranks"):
        gw.update_all(graph, scaled, total, ndata={"h": h})
    for name in ("csr", "reverse", "out_degrees", "loopless"):
        with pytest.raises(ConfigError, match=f"graph.{name} is not supported over several ranks"):
            getattr(graph, name)
    with pytest.raises(ConfigError, match="not supported over several ranks"):
        graph.edges()
    with pytest.raises(ConfigError, match="not supported over several ranks"):
        gw.pull(graph, h, torch.ones(graph.num_edges))


def test_what_cannot_be_shared_is_refused_with_a_remedy() -> None:
    ds = dataset()
    with pytest.raises(ConfigError, match="mode=full cannot be combined with ranks=2 for ByIndex, which reads an edge"):
        gw.Trainer(ByIndex(), ds, ranks=Ranks(0, 2))
    with pytest.raises(ConfigError, match="norm=batch cannot be combined with ranks=2"):
        gw.Trainer(model_of("GCN", ds, norm="batch"), ds, mode="mini", ranks=Ranks(0, 2))
    with pytest.raises(ConfigError, match="halo=bf16 cannot be combined with mode=mini"):
        gw.Trainer(model_of("GCN", ds), ds, mode="mini", ranks=Ranks(0, 2, halo="bf16"))
    with pytest.raises(ConfigError, match="mode=full cannot be combined with rank_reduce=ordered; use mode='mini'"):
        gw.Trainer(model_of("GCN", ds), ds, ranks=Ranks(reduce="ordered"))
