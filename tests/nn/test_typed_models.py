"""R-GCN and HGT: the numbers of PyTorch Geometric's layers given their weights, gradients in float64, bad input."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from typed_zoo import TYPED_ZOO, academic, hubs, many

import graphweft as gw
from graphweft._errors import ConfigError, ShapeError
from graphweft.graph.graph import Graph
from graphweft.nn.hgt import HGT, HGTConv
from graphweft.nn.rgcn import RGCN, RGCNConv

FORMS: dict[str, dict[str, int]] = {"full": {}, "bases": {"num_bases": 3}, "blocks": {"num_blocks": 2}}


def _draw(module: torch.nn.Module, seed: int = 0) -> None:
    """Every parameter at random, biases too."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.4)


def _loss(out: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    return (out * torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype)).sum()


@pytest.mark.parametrize("reduce", ["mean", "sum"])
@pytest.mark.parametrize("form", FORMS)
def test_rgcn_has_the_numbers_of_pyg(form: str, reduce: str) -> None:
    pyg = pytest.importorskip("torch_geometric.nn")
    graph, options = many(), FORMS[form]
    ours = RGCNConv(6, 8, 40, reduce=reduce, **options)
    _draw(ours)
    other = pyg.RGCNConv(6, 8, 40, aggr=reduce, **options)
    with torch.no_grad():
        other.weight.copy_(ours.weight.view(other.weight.shape))
        other.root.copy_(ours.root)
        other.bias.copy_(ours.bias)
        if ours.coefficients is not None:
            other.comp.copy_(ours.coefficients)
    x = torch.randn(graph.num_nodes, 6, generator=torch.Generator().manual_seed(1)).requires_grad_()
    mine = x.detach().clone().requires_grad_()
    expected = other(x, torch.stack(graph.edges()), graph.edge_type())
    found = ours(graph, mine)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    _loss(expected).backward()
    _loss(found).backward()
    torch.testing.assert_close(mine.grad, x.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.weight.grad.view(other.weight.shape), other.weight.grad, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(ours.root.grad, other.root.grad, rtol=1e-4, atol=1e-3)
    if ours.coefficients is not None:
        torch.testing.assert_close(ours.coefficients.grad, other.comp.grad, rtol=1e-4, atol=1e-2)


def _pyg_hgt(ours: HGTConv, graph: Graph) -> Any:
    """PyG's layer with the weights of ours; its relations go by edge type name, ours by number."""
    pyg = pytest.importorskip("torch_geometric.nn")
    other = pyg.HGTConv(
        ours.in_features, ours.heads * ours.channels, (list(graph.node_types), list(graph.relations)), ours.heads
    )
    with torch.no_grad():
        for t, name in enumerate(graph.node_types):
            lin = other.kqv_lin.lins[name]
            lin.weight.copy_(torch.cat([ours.key[t], ours.query[t], ours.value[t]], 1).T)
            lin.bias.copy_(torch.cat([ours.key_bias[t], ours.query_bias[t], ours.value_bias[t]]))
            other.out_lin.lins[name].weight.copy_(ours.out[t].T)
            other.out_lin.lins[name].bias.copy_(ours.out_bias[t])
            if ours.skip is not None:
                other.skip[name].fill_(float(ours.skip[t].detach()))
        count = len(graph.relations)
        for r, relation in enumerate(graph.relations):
            other.p_rel["__".join(relation)].copy_(ours.prior[r][None])
            for h in range(ours.heads):
                other.k_rel.weight[h * count + r].copy_(ours.attention[r, h])
                other.v_rel.weight[h * count + r].copy_(ours.message[r, h])
    return other


@pytest.mark.parametrize("width", [8, 12])
@pytest.mark.parametrize("heads", [1, 4])
def test_hgt_has_the_numbers_of_pyg(heads: int, width: int) -> None:
    graph = academic()
    ours = HGTConv(8, width, 3, 4, heads)
    _draw(ours)
    other = _pyg_hgt(ours, graph)
    x = torch.randn(graph.num_nodes, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()
    mine = x.detach().clone().requires_grad_()
    offsets = graph.layout.node_offsets
    parts = {name: x[offsets[t] : offsets[t + 1]] for t, name in enumerate(graph.node_types)}
    edges = {relation: torch.stack(graph.relation_graph(relation).edges()) for relation in graph.relations}
    given = other(parts, edges)
    received = {relation[2] for relation in graph.relations}
    found = ours(graph, mine)
    rows = torch.cat(
        [torch.arange(offsets[t], offsets[t + 1]) for t, n in enumerate(graph.node_types) if n in received]
    )
    expected = torch.cat([given[name] for name in graph.node_types if name in received])
    torch.testing.assert_close(found[rows], expected, rtol=1e-4, atol=1e-4)
    _loss(expected).backward()
    _loss(found[rows]).backward()
    torch.testing.assert_close(mine.grad, x.grad, rtol=1e-4, atol=1e-4)
    for name, table in (("attention", "k_rel"), ("message", "v_rel")):
        flat = getattr(other, table).weight.grad.view(heads, 4, width // heads, width // heads).transpose(0, 1)
        torch.testing.assert_close(getattr(ours, name).grad, flat, rtol=1e-4, atol=1e-3)
    prior = torch.cat([other.p_rel["__".join(relation)].grad for relation in graph.relations])
    torch.testing.assert_close(ours.prior.grad, prior, rtol=1e-4, atol=1e-3)


def _models(graph: Graph) -> dict[str, torch.nn.Module]:
    relations, types = len(graph.relations), len(graph.node_types)
    made: dict[str, torch.nn.Module] = {n: RGCN(5, 4, 2, num_relations=relations, **form) for n, form in FORMS.items()}
    made["hgt"] = HGT(5, 4, 2, num_node_types=types, num_relations=relations, heads=2)
    return made


@pytest.mark.parametrize("model", [*FORMS, "hgt"])
@pytest.mark.parametrize("name", TYPED_ZOO)
def test_float32_kernels_agree_with_the_oracle_in_float64(name: str, model: str) -> None:
    graph = TYPED_ZOO[name]()
    single = _models(graph)[model]
    _draw(single)
    double = copy.deepcopy(single).double()
    x = torch.randn(
        graph.num_nodes, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64
    ).requires_grad_()
    mine = x.detach().float().requires_grad_()
    with gw.config(opt_level=0):
        expected = double(graph, x)
    found = single(graph, mine)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-3)
    _loss(expected).backward()
    _loss(found).backward()
    torch.testing.assert_close(mine.grad.double(), x.grad, rtol=1e-3, atol=2e-3)
    for (key, a), b in zip(single.named_parameters(), double.parameters(), strict=True):
        given = torch.zeros_like(b) if a.grad is None else a.grad.double()
        wanted = torch.zeros_like(b) if b.grad is None else b.grad
        torch.testing.assert_close(given, wanted, rtol=1e-3, atol=5e-3, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("model", [*FORMS, "hgt"])
@pytest.mark.parametrize("name", ["academic", "no_node_of_a_type", "no_edges"])
def test_gradcheck(name: str, model: str) -> None:
    graph = TYPED_ZOO[name]()
    module = _models(graph)[model].double()
    _draw(module, 3)
    names = [key for key, _ in module.named_parameters()]
    x = torch.randn(
        graph.num_nodes, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64
    ).requires_grad_()

    def run(x: Tensor, *tensors: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(module, dict(zip(names, tensors, strict=True)), (graph, x))
        return out

    given = [parameter.detach().clone().requires_grad_() for parameter in module.parameters()]
    assert torch.autograd.gradcheck(run, (x, *given))


def test_no_buffer_of_edges_times_matrix_is_made() -> None:
    """Plans of both models hold no value of edge rows wider than the heads."""
    graph = hubs()
    for module in (RGCNConv(16, 16, 3), HGTConv(16, 16, 1, 3, 4)):
        module(graph, torch.randn(graph.num_nodes, 16)).sum().backward()
        program = module.function.plans()[0].compiled.program
        for value in program.values:
            if getattr(value.type, "rows", None) == "E":
                assert value.tensor.dims in ((), (4,)), str(program)


def test_a_graph_with_other_types_is_refused() -> None:
    with pytest.raises(ShapeError, match="RGCNConv: expected a graph with 3 relations, got 40"):
        RGCN(5, 4, 2, num_relations=3)(many(), torch.zeros(200, 5))
    with pytest.raises(ShapeError, match="HGTConv: expected a graph with 2 node types, got 1"):
        HGTConv(5, 4, 2, 40)(many(), torch.zeros(200, 5))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RGCNConv(6, 8, 2, num_bases=2, num_blocks=2), "num_bases or num_blocks, got both"),
        (lambda: RGCNConv(5, 8, 2, num_blocks=2), "widths that 2 blocks divide, got 5 and 8"),
        (lambda: RGCNConv(5, 8, 0), "num_relations >= 1, got 0"),
        (lambda: RGCNConv(5, 8, 2, reduce="max"), "reduce 'mean' or 'sum', got 'max'"),
        (lambda: HGTConv(5, 8, 1, 1, heads=3), "out_features that 3 heads divide, got 8"),
        (lambda: HGTConv(5, 8, 1, 1, reduce="mean"), "reduce 'sum', weighted by attention"),
    ],
)
def test_bad_sizes_give_one_line(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()
