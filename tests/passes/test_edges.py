"""Regions over edges: golden text before and after, and which values keep a call of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from codegen.regions import REGIONS
from codegen.test_edges import arguments, fields_of, function_of
from zoo import power_law_edges

import graphweft as gw
from graphweft.codegen.edge_nest import edge_nest
from graphweft.ir.ops import Op
from graphweft.ir.program import number
from graphweft.ir.residency import TensorType
from graphweft.passes import pipeline
from graphweft.passes.edges import WRITTEN
from graphweft.passes.groups import EdgeWalk
from graphweft.passes.hoist import frontier
from graphweft.runtime.compile import Standing

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", ["attention_by_distance", "normalised_layer"])
def test_golden_program_and_nests(name, monkeypatch):
    """The program as derived, as opened, and every walk. Delete a golden file to record it anew."""
    monkeypatch.setattr(pipeline, "WORTH_A_KERNEL", 0)
    edges = power_law_edges(60, 400, seed=4)
    graph = gw.Graph(edges.src, edges.dst, num_nodes=60)
    plan = function_of(REGIONS[name]).compile(arguments(graph, fields_of(graph, torch.float32)), Standing())
    parts = ["-- derived --", str(plan.compiled.steps.derived), "-- edges --", str(plan.compiled.program)]
    names = number(plan.compiled.program.values)
    for group in plan.compiled.groups:
        if isinstance(group, EdgeWalk):
            results = (group.result, *group.taps)
            nest, read = edge_nest(group.chain, results, group.walk)
            parts += [f"-- walk over {names[group.walk]} --", f"reads {', '.join(names[v] for v in read)}", str(nest)]
            parts.append(f"gives {', '.join(names[v] for v in results)}")
    text = "\n".join(parts) + "\n"
    path = GOLDEN / f"edges_{name}.txt"
    if not path.exists():
        path.write_text(text)
    assert text == path.read_text()


def test_small_graphs_have_no_walks():
    edges = power_law_edges(60, 400, seed=4)
    graph = gw.Graph(edges.src, edges.dst, num_nodes=60)
    plan = function_of(REGIONS["product_of_ends"]).compile(
        arguments(graph, fields_of(graph, torch.float32)), Standing()
    )
    assert all(not isinstance(group, EdgeWalk) for group in plan.compiled.groups)


def test_every_operation_that_may_enter_a_walk_is_in_a_tested_region(monkeypatch):
    monkeypatch.setattr(pipeline, "WORTH_A_KERNEL", 0)
    edges = power_law_edges(60, 400, seed=4)
    graph = gw.Graph(edges.src, edges.dst, num_nodes=60)
    met = set()
    for region in REGIONS.values():
        plan = function_of(region).compile(arguments(graph, fields_of(graph, torch.float32)), Standing())
        met |= {value.op for group in plan.compiled.groups if isinstance(group, EdgeWalk) for value in group.chain}
    assert sorted(op.name for op in WRITTEN - met) == []


@pytest.mark.parametrize("read", [False, True], ids=["by walks", "elsewhere"])
def test_numbers_of_nodes_are_kept_for_every_edge_only_where_no_walk_reads_them(read, monkeypatch):
    monkeypatch.setattr(pipeline, "WORTH_A_KERNEL", 0)
    edges = power_law_edges(60, 400, seed=4)
    graph = gw.Graph(edges.src, edges.dst, num_nodes=60)

    def region(e):
        share = e.b.add(Op.POW, e.b.add(Op.IN_DEGREE, e.g, dtype=torch.float32), exponent=-0.5)
        ends = e.f("tanh", e.f("mul", e.src(), e.dst()))
        out = {"out": e.reduce(e.f("mul", ends, e.dst(share)))}
        return {**out, "shares": e.dst(share)} if read else out

    plan = function_of(region).compile(arguments(graph, fields_of(graph, torch.float32)), Standing())
    walks = [group for group in plan.compiled.groups if isinstance(group, EdgeWalk)]
    kept = frontier(plan.compiled.program, plan.compiled.hoisted)
    rows = {value.type.rows for value in kept if isinstance(value.type, TensorType)}
    assert walks and ("E" in rows) == read and (read or "V" in rows)
