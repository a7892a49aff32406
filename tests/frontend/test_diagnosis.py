"""A call that fails in its program is explained in the user's words without running the whole of it again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphweft as gw
from graphweft.frontend import diagnosis
from graphweft.frontend.call import Call
from graphweft.frontend.captured import Captured
from graphweft.frontend.reference import run_reference

NODES, EDGES = 300, 2000
SRC, DST = torch.randint(NODES, (2, EDGES), generator=torch.Generator().manual_seed(0))
H = torch.randn(NODES, 4)


def total(nodes: Any) -> dict[str, Tensor]:
    return {"h": nodes.mailbox["m"].sum(1)}


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of edges with memory that diagnoses run on, of at most 128."""
    made: list[int] = []

    def counted(call: Any, structure: Any = None) -> Any:
        if structure is None:
            made.append(call.graph.num_edges)
        return run_reference(call, structure)

    monkeypatch.setattr(diagnosis, "run_reference", counted)
    monkeypatch.setattr(diagnosis, "_EDGES", 128)
    return made


def test_a_wrong_value_is_found_on_parts(runs: list[int]) -> None:
    table, graph = nn.Embedding(5, 4), gw.Graph(SRC, DST, num_nodes=NODES)

    def message(edges: Any) -> dict[str, Tensor]:
        return {"m": edges.src["h"] * table(edges.data["t"])}

    ids = torch.zeros(EDGES, dtype=torch.int64)
    gw.update_all(graph, message, total, ndata={"h": H}, edata={"t": ids})
    ids = ids.clone()
    ids[torch.where(DST == NODES - 1)[0][-1]] = 7
    with pytest.raises(
        gw.errors.ShapeError, match=r"message: embedding on edges.data\['t'\] .*out of range.*test_diagnosis.py"
    ):
        gw.update_all(graph, message, total, ndata={"h": H}, edata={"t": ids})
    assert len(runs) > 10 and max(runs) <= 128


def test_wrong_sizes_are_found_without_memory(runs: list[int]) -> None:
    """A tensor with a row for each edge of another graph."""
    weight = torch.rand(EDGES, 1)

    def message(edges: Any) -> dict[str, Tensor]:
        return {"m": edges.src["h"] * weight}

    gw.update_all(gw.Graph(SRC, DST, num_nodes=NODES), message, total, ndata={"h": H})
    other = gw.Graph(SRC[:1500], DST[:1500], num_nodes=NODES)
    with pytest.raises(
        gw.errors.ShapeError, match=r"message: mul on edges.src\['h'\] of shape \(1500, 4\).*\(2000, 1\)"
    ):
        gw.update_all(other, message, total, ndata={"h": H})
    assert runs == []


def test_parts_cover_every_edge_once(runs: list[int]) -> None:
    graph = gw.Graph(SRC, DST, num_nodes=NODES)
    captured = Captured()
    call = Call(graph, total, total, None, {"h": H}, {"h": H}, {"id": torch.arange(EDGES)}, {}, {}, ())
    seen = torch.cat([part.edata["id"] for part in diagnosis._parts(call, captured)])
    assert sorted(seen.tolist()) == list(range(EDGES))
    for part in diagnosis._parts(call, captured):
        torch.testing.assert_close(part.src["h"][part.graph.edges()[0]], H[SRC[part.edata["id"]]])
