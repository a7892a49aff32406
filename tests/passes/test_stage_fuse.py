"""Sampling, gather, structure and model in one program, and what fusing them changes and leaves alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from zoo import ZOO, Edges, random_edges

from graphweft.graph.graph import Graph
from graphweft.ir.interpret import interpret
from graphweft.ir.ops import STRUCTURE, Op
from graphweft.ir.program import Program, Value
from graphweft.nn.gat import GAT
from graphweft.nn.gcn import GCN
from graphweft.nn.gin import GIN
from graphweft.nn.sage import SAGE
from graphweft.passes.cleanup import cleanup
from graphweft.passes.message import fuse_messages
from graphweft.passes.placement import Order, place, sites
from graphweft.passes.stage_fuse import fuse_first_layer, fuse_structure
from graphweft.runtime.staged import StagedFunction
from graphweft.sample.neighbor import NeighborSampler

MODELS: list[tuple[Any, dict[str, Any]]] = [
    (SAGE, {}),
    (SAGE, {"reduce": "max"}),
    (GCN, {}),
    (GCN, {"reduce": "mean"}),
    (GIN, {}),
    (GIN, {"reduce": "max"}),
]
GRAPHS = {**{name: edges for name, edges in ZOO.items() if edges.num_nodes}, "many": random_edges(60, 500, seed=3)}


def graph_of(edges: Edges) -> Graph:
    return Graph(edges.src, edges.dst, edges.num_nodes)


def staged(kind: Any, graph: Graph, **options: Any) -> tuple[StagedFunction, dict[str, Tensor]]:
    """A two-layer model of double precision over every node of ``graph``, and its tensors."""
    torch.manual_seed(0)
    model = kind(5, 4, 3, num_layers=2, **options).double()
    x = torch.randn(graph.num_nodes, 5, dtype=torch.float64)
    return model.staged(NeighborSampler(graph, [3, 2]), x), {
        **dict(model.named_parameters()),
        **dict(model.named_buffers()),
    }


def fused(program: Program, order: Order = Order.AGGREGATE) -> Program:
    program = fuse_messages(fuse_structure(cleanup(program)))
    program = cleanup(place(program, dict.fromkeys(sites(program), order)))
    return cleanup(fuse_first_layer(program))


def blocks(program: Program) -> list[Value]:
    return [value for value in program.values if value.op is Op.SAMPLE]


def gathers(program: Program) -> list[str]:
    return [str(v.type) for v in program.values if v.op is Op.TAKE_ROWS and v.tensor.dims]


def run(program: Program, function: StagedFunction, tensors: dict[str, Tensor], seeds: torch.Tensor) -> torch.Tensor:
    given = {"graph": function.sampler.graph, "x": function.x, "seeds": seeds, "key": (4, 2), "seed": 0, **tensors}
    out: Tensor = interpret(program, given)["out"]
    return out


def test_the_printed_program_has_sampler_gather_and_layers() -> None:
    function, tensors = staged(SAGE, graph_of(GRAPHS["many"]))
    text = str(function.program(tensors, True))
    assert text.count("= sample(") == 2 and "src_ids(" in text
    assert "= take_rows(%x" in text and "matmul(" in text and "broadcast_src(" in text


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize(("kind", "options"), MODELS, ids=str)
def test_an_open_first_layer_computes_the_same(kind: Any, options: dict[str, Any], name: str) -> None:
    graph = graph_of(GRAPHS[name])
    function, tensors = staged(kind, graph, **options)
    seeds = torch.randperm(graph.num_nodes)[: max(1, graph.num_nodes // 3)]
    plain = function.program(tensors, True)
    after = fused(plain)
    assert [value.get("open") for value in blocks(after) if value["hop"] == 1] == [True]
    assert not [type_ for type_ in gathers(after) if "B2" in type_]
    torch.testing.assert_close(
        run(after, function, tensors, seeds), run(plain, function, tensors, seeds), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize(
    ("kind", "options", "order"),
    [(GAT, {"heads": 2}, Order.AGGREGATE), (SAGE, {"dropout": 0.5}, Order.AGGREGATE), (GCN, {}, Order.TRANSFORM)],
)
def test_rows_that_are_needed_keep_their_numbers(kind: Any, options: dict[str, Any], order: Order) -> None:
    function, tensors = staged(kind, graph_of(GRAPHS["many"]), **options)
    after = fused(function.program(tensors, True), order)
    assert not any(value.get("open") for value in blocks(after)) and any("B2" in type_ for type_ in gathers(after))


@pytest.mark.parametrize(("kind", "options"), [(GCN, {}), (GAT, {"heads": 2})], ids=str)
def test_loops_and_reversal_are_the_samplers(kind: Any, options: dict[str, Any]) -> None:
    function, tensors = staged(kind, graph_of(GRAPHS["many"]), **options)
    plain = function.program(tensors, True)
    after = cleanup(fuse_structure(plain))
    left = {value.op for value in after.values} & (STRUCTURE - {Op.SAMPLE, Op.SRC_IDS, Op.IN_DEGREE, Op.SRC_DEGREE})
    assert plain.count(Op.WITHOUT_LOOPS, Op.ONE_LOOP) == 2 and not left
    seeds = torch.arange(20)
    torch.testing.assert_close(
        run(after, function, tensors, seeds), run(plain, function, tensors, seeds), rtol=1e-12, atol=1e-12
    )
