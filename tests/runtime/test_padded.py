"""Batches in buffers of one shape: padding rows change nothing, forward or backward, and addresses stay."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor
from zoo import random_edges

import graphweft as gw
from graphweft.runtime.padded import BatchBuffers, Bounds, Shapes
from graphweft.runtime.staged import PreparedBatch, StagedPlan
from graphweft.train.target import Classes

MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "GCN": (gw.nn.GCN, {}),
    "SAGE": (gw.nn.SAGE, {}),
    "SAGE, residual, layer norm": (gw.nn.SAGE, {"residual": True, "norm": "layer"}),
    "GIN": (gw.nn.GIN, {}),
    "GIN, train_eps": (gw.nn.GIN, {"train_eps": True}),
    "GAT": (gw.nn.GAT, {"heads": 2}),
    "GATv2": (gw.nn.GAT, {"heads": 2, "v2": True}),
}
NODES, WIDTH, CLASSES, SEEDS = 300, 6, 4, 20
CPU = torch.device("cpu")


def graph() -> gw.Graph:
    ends = random_edges(NODES, 1800, seed=4)
    return gw.Graph(ends.src, ends.dst, num_nodes=NODES)


def world(kind: Any, options: dict[str, Any]) -> tuple[StagedPlan, dict[str, Tensor], Tensor]:
    """The plan of a batch, its parameters, and labels."""
    torch.manual_seed(3)
    model = kind(WIDTH, 8, CLASSES, num_layers=2, **options).train()
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    sampler, x = gw.sampling.NeighborSampler(graph(), [4, 3]), torch.randn(NODES, WIDTH)
    plan = model.staged(sampler, x).compile(tensors, True, sampler.sample(torch.arange(SEEDS)))
    return plan, tensors, torch.randint(CLASSES, (NODES,))


def batches(plan: StagedPlan, count: int) -> list[PreparedBatch]:
    draw = torch.Generator().manual_seed(9)
    return [plan.prepare(torch.randperm(NODES, generator=draw)[:SEEDS], (k, 0)) for k in range(count)]


def step(plan: StagedPlan, values: Any, seeds: Tensor, tensors: Any, labels: Tensor) -> dict[str, Tensor]:
    """Outputs of the seeds, loss and gradients."""
    outputs, pullback = plan.over_values(values, seeds, tensors, 0)
    loss, gradient = Classes().loss(outputs["out"], labels)
    made = {name: g for name, g in pullback(gradient).items() if g is not None}
    return {"out": outputs["out"], "loss": loss, **made}


@pytest.mark.parametrize("name", MODELS)
def test_padding_rows_are_no_part_of_a_step(name: str) -> None:
    """Through the CPU's kernels, padding rows and all: outputs and loss bit for bit but for attention, whose edges are
    shared out by the number of rows; gradients of parameters up to rounding. Replays on the CPU have no padding in
    their calls, and all bits (tests/train/test_replayed.py).
    """
    plan, tensors, y = world(*MODELS[name])
    shapes, found, draw = Shapes(plan.plan), batches(plan, 6), random.Random(name)
    assert not shapes.refused
    sizes = [shapes.of(SEEDS, batch.values) for batch in found]
    bounds = sizes[0]
    for each in sizes[1:]:
        bounds = bounds.joined(each)
    room = BatchBuffers(shapes, bounds.widened(draw.choice([0.0, 0.1, 0.5])), found[0].values, y[:SEEDS], CPU)
    for batch in found:
        room.fill(batch.seeds, batch.values, y[batch.seeds])
        plain = step(plan, batch.values, batch.seeds, tensors, y[batch.seeds])
        padded = step(plan, room.values, room.seeds, tensors, room.labels)
        assert plain.keys() == padded.keys() and len(plain) > 3
        for part, wanted in plain.items():
            torch.testing.assert_close(padded[part], wanted, rtol=1e-5, atol=1e-6)
            assert name.startswith("GAT") or part not in ("out", "loss") or torch.equal(padded[part], wanted), part


def test_shapes_and_addresses_stay_and_padding_has_no_edges() -> None:
    plan, _, y = world(gw.nn.SAGE, {})
    shapes, found = Shapes(plan.plan), batches(plan, 4)
    sizes = [shapes.of(SEEDS, batch.values) for batch in found]
    bounds = sizes[0].joined(sizes[1]).joined(sizes[2]).joined(sizes[3]).widened(0.2)
    room, seen = BatchBuffers(shapes, bounds, found[0].values, y[:SEEDS], CPU), set()
    for batch in found:
        room.fill(batch.seeds, batch.values, y[batch.seeds])
        places = []
        for value, given in zip(room.values, batch.values, strict=True):
            if isinstance(value, gw.Graph):
                places += [value.csc.indptr.data_ptr(), value.csc.indices.data_ptr(), value.num_src, value.num_dst]
                assert torch.equal(value.in_degrees()[: given.num_dst], given.csc_structure.degrees())
                assert not value.in_degrees()[given.num_dst :].any()
            else:
                places += [value.data_ptr(), *value.shape]
                assert torch.equal(value[: given.shape[0]], given) and not value[given.shape[0] :].any()
        seen.add(tuple(places))
        assert torch.equal(room.seeds, batch.seeds) and torch.equal(room.labels, y[batch.seeds])
    assert len(seen) == 1


def test_bounds_are_those_of_the_blocks() -> None:
    plan, _, _ = world(gw.nn.SAGE, {"dropout": 0.5})
    seeds = torch.arange(SEEDS)
    sample = gw.sampling.NeighborSampler(graph(), [4, 3]).sample(seeds, seed=1)
    inner = list(reversed(sample.blocks))
    found = Shapes(plan.plan).of(SEEDS, plan.prepare(seeds, (1, 0)).values)
    assert found.edges == tuple(block.num_edges for block in inner)
    assert found.rows == (SEEDS, *(block.num_src for block in inner))
    assert Bounds((2, 5), (7,)).joined(Bounds((2, 4), (9,))) == Bounds((2, 5), (9,))


@pytest.mark.parametrize(
    ("kind", "options", "why"),
    [
        (gw.nn.GCN, {"norm": "batch"}, "normalisation takes statistics over the rows of a batch"),
        (gw.nn.SAGE, {"reduce": "max"}, "spmm_max derives more from a batch's edges than their arrays"),
    ],
)
def test_what_padding_would_be_part_of_is_refused(kind: Any, options: dict[str, Any], why: str) -> None:
    assert Shapes(world(kind, options)[0].plan).refused == why
