"""R-GCN and HGT on sampled blocks: with all neighbours the whole graph's rows and gradients; R-GCN without features."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from typed_zoo import TYPED_ZOO, academic, many

import graphweft as gw
from graphweft._errors import ConfigError, ShapeError
from graphweft.graph.graph import Graph
from graphweft.graph.typed_block import typed_block
from graphweft.nn.hgt import HGT
from graphweft.nn.rgcn import RGCN
from graphweft.sample.neighbor import NeighborSampler
from graphweft.sample.segment import SegmentSampler
from graphweft.storage.gather import gather_rows
from graphweft.train.inference import infer

TYPED = [name for name in TYPED_ZOO if name != "untyped"]
FORMS: dict[str, dict[str, Any]] = {"full": {}, "bases": {"num_bases": 3}}
ALONE: dict[str, dict[str, Any]] = {**FORMS, "sum": {"reduce": "sum"}, "no loop": {"self_loop": False}}


def _models(graph: Graph) -> dict[str, torch.nn.Module]:
    relations, types = len(graph.relations), len(graph.node_types)
    made: dict[str, torch.nn.Module] = {n: RGCN(5, 4, 3, num_relations=relations, **o) for n, o in FORMS.items()}
    made["blocks"] = RGCN(5, 4, 4, num_relations=relations, num_blocks=2, norm="layer", residual=True)
    made["hgt"] = HGT(5, 4, 3, num_node_types=types, num_relations=relations, heads=2)
    return made


def _draw(module: torch.nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.4)


def _same_gradients(found: torch.nn.Module, expected: torch.nn.Module) -> None:
    for (name, a), b in zip(found.named_parameters(), expected.parameters(), strict=True):
        given = torch.zeros_like(b) if a.grad is None else a.grad.to(b.dtype)
        wanted = torch.zeros_like(b) if b.grad is None else b.grad
        torch.testing.assert_close(given, wanted, rtol=1e-3, atol=5e-3, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("form", [*FORMS, "blocks", "hgt"])
@pytest.mark.parametrize("name", TYPED)
def test_blocks_with_all_neighbours_are_the_whole_graph(name: str, form: str) -> None:
    graph = TYPED_ZOO[name]()
    model = _models(graph)[form]
    _draw(model)
    whole = copy.deepcopy(model)
    x = torch.randn(graph.num_nodes, 5, generator=torch.Generator().manual_seed(1))
    seeds = torch.arange(graph.num_nodes - 1, -1, -2)
    sample = SegmentSampler(graph, [-1, -1]).sample(seeds)
    expected = whole(graph, x)[seeds]
    found = model(sample.blocks, gather_rows(x, sample.n_id))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(3))
    (expected * weights).sum().backward()
    (found * weights).sum().backward()
    _same_gradients(model, whole)


@pytest.mark.parametrize("form", [*FORMS, "hgt"])
def test_sampled_blocks_agree_with_the_oracle(form: str) -> None:
    graph = many()
    model = _models(graph)[form]
    _draw(model)
    x = torch.randn(graph.num_nodes, 5, generator=torch.Generator().manual_seed(1))
    sample = SegmentSampler(graph, [3, 2]).sample(torch.arange(0, 200, 7))
    rows = gather_rows(x, sample.n_id)
    double = copy.deepcopy(model).double()
    found = model(sample.blocks, rows)
    with gw.config(opt_level=0):
        expected = double(sample.blocks, rows.double())
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)
    found.square().sum().backward()
    expected.square().sum().backward()
    _same_gradients(model, double)


@pytest.mark.parametrize("form", ["full", "hgt"])
def test_few_plans_serve_many_typed_batches(form: str) -> None:
    graph = many()
    model = _models(graph)[form]
    sampler, x = SegmentSampler(graph, [2, 2]), torch.randn(graph.num_nodes, 5)
    for start in range(0, 150, 5):  # other sizes in every batch
        sample = sampler.sample(torch.arange(start, start + 10 + start // 10))
        model(sample.blocks, x[sample.n_id]).sum().backward()
    assert all(block.graph.is_drawn for block in map(typed_block, sample.blocks))
    assert all(len(function.plans()) <= 6 for function in model._pieces.values())


def test_gradients_reach_the_features_of_a_batch() -> None:
    graph = academic()
    model = _models(graph)["full"]
    sample = SegmentSampler(graph, [-1, -1]).sample([0, 7])
    x = torch.randn(graph.num_nodes, 5)
    whole, part = x.clone().requires_grad_(), x[sample.n_id].requires_grad_()
    model(graph, whole)[[0, 7]].square().sum().backward()
    model(sample.blocks, part).square().sum().backward()
    torch.testing.assert_close(part.grad, whole.grad[sample.n_id], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", [*FORMS, "hgt"])
def test_inference_tile_by_tile(form: str) -> None:
    graph = many()
    model = _models(graph)[form]
    x = torch.randn(graph.num_nodes, 5)
    torch.testing.assert_close(infer(model, graph, x, tile=33), model.eval()(graph, x), rtol=1e-4, atol=1e-5)


def _published(model: RGCN, graph: Graph, mean: bool) -> Tensor:
    """The first layer by loops over relations, then a ReLU and the second, in plain torch."""
    first, second = model.layers
    src, dst = graph.edges()
    kinds, nodes, relations = graph.edge_type(), graph.num_nodes, len(graph.relations)

    def messages(tables: Tensor, rows: Tensor | None) -> Tensor:
        total = torch.zeros(nodes, tables.shape[-1], dtype=tables.dtype)
        for r in range(relations):
            a, b = src[kinds == r], dst[kinds == r]
            share = 1 / torch.bincount(b, minlength=nodes)[b] if mean else torch.ones(b.numel())
            values = tables[r][a] if rows is None else rows[a] @ tables[r]
            total = total.index_add(0, b, values * share.to(values)[:, None])
        return total

    if first.coefficients is None:
        tables, own = first.weight[:relations], first.weight[relations:].sum(0)
    else:
        bases = first.coefficients.shape[1]
        tables = torch.einsum("rb,bio->rio", first.coefficients, first.weight[:bases])
        own = first.weight[bases:].sum(0)
    h = torch.relu(messages(tables, None) + own + first.bias)
    weight = second.weight
    if second.coefficients is not None:
        weight = torch.einsum("rb,bio->rio", second.coefficients, weight)
    out = messages(weight, h) + second.bias
    return out if second.root is None else out + h @ second.root


@pytest.mark.parametrize("form", ALONE)
@pytest.mark.parametrize("name", TYPED)
def test_rgcn_without_features_is_the_published_one(name: str, form: str) -> None:
    graph, options = TYPED_ZOO[name](), ALONE[form]
    model = RGCN(None, 4, 3, num_relations=len(graph.relations), num_nodes=graph.num_nodes, **options)
    _draw(model)
    double = copy.deepcopy(model).double()
    expected = _published(double, graph, mean=form != "sum")
    found = model(graph)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    (expected * weights).sum().backward()
    (found * weights.float()).sum().backward()
    _same_gradients(model, double)
    seeds = torch.arange(0, graph.num_nodes, 2)
    sample = SegmentSampler(graph, [-1, -1]).sample(seeds)
    on_blocks = model(sample.blocks, model.features(graph).take_rows(sample.n_id))
    torch.testing.assert_close(on_blocks, model(graph)[seeds], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_the_first_layer_has_the_numbers_of_pyg_without_features(form: str) -> None:
    pyg = pytest.importorskip("torch_geometric.nn")
    graph = many()
    model = RGCN(None, 8, 8, 1, num_relations=40, num_nodes=200, **FORMS[form])
    _draw(model)
    ours, layer = model, model.layers[0]
    for kind in (pyg.RGCNConv, pyg.FastRGCNConv):
        other = kind(200, 8, 40, **FORMS[form])
        with torch.no_grad():
            other.bias.copy_(layer.bias)
            other.weight.copy_(layer.weight[:-1])
            other.root.copy_(layer.weight[-1])
            if layer.coefficients is not None:
                other.comp.copy_(layer.coefficients)
        expected = other(None, torch.stack(graph.edges()), graph.edge_type())
        torch.testing.assert_close(ours(graph), expected, rtol=1e-4, atol=1e-4)


def test_no_value_of_edges_times_hidden_is_made() -> None:
    graph = many()
    model = RGCN(None, 8, 8, num_relations=40, num_nodes=200)
    model(graph).sum().backward()
    for value in model.function.plans()[0].compiled.program.values:
        if getattr(value.type, "rows", None) == "E":
            assert value.tensor.dims == ()


def test_bad_input_gives_one_line() -> None:
    with pytest.raises(ConfigError, match="in_features, or num_nodes for nodes without features, got neither"):
        RGCN(None, 4, 3, num_relations=2)
    with pytest.raises(ConfigError, match="got both"):
        RGCN(5, 4, 3, num_relations=2, num_nodes=9)
    graph = academic()
    blocks = NeighborSampler(graph, [-1, -1]).sample([0]).blocks
    with pytest.raises(ShapeError, match=r"RGCN: expected .* rows of 5 features, got shape"):
        RGCN(5, 4, 3, num_relations=4)(blocks, torch.zeros(blocks[0].num_src, 6))
    with pytest.raises(ShapeError, match="expected features of the batch's nodes, got None"):
        RGCN(5, 4, 3, num_relations=4)(blocks)
    with pytest.raises(ShapeError, match="RGCNConv: expected a graph with 2 relations, got 4"):
        RGCN(5, 4, 3, num_relations=2)(blocks, torch.zeros(blocks[0].num_src, 5))
