"""Edge weights and features in the layers: PyTorch Geometric's numbers, blocks of batches, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from graphweft._config import config
from graphweft._errors import ConfigError, DtypeError, ShapeError
from graphweft.graph.graph import Graph
from graphweft.ir.ops import Op
from graphweft.ir.residency import Residency, TensorType
from graphweft.nn import GAT, GCN, GIN, HGT, NGCF, SAGE, GATConv, GATv2Conv, GCNConv, GINConv, SAGEConv
from graphweft.nn.edges import EdgeInputs
from graphweft.nn.module import CompiledModule
from graphweft.sample.neighbor import NeighborSampler

IN, OUT, HEADS, COLUMNS = 5, 4, 2, 3
NODES, EDGES = 40, 260

Make = Callable[[Any], tuple[torch.nn.Module, CompiledModule]]


def _graph(loops: bool) -> tuple[torch.Tensor, Graph]:
    """Parallel edges, nodes without in-edges, and self-loops at some nodes, at most one each."""
    generator = torch.Generator().manual_seed(int(loops))
    src, dst = torch.randint(0, NODES, (2, EDGES), generator=generator)
    dst = dst.clamp(min=2)
    keep = src != dst
    src, dst = src[keep], dst[keep]
    if loops:
        own = torch.arange(0, NODES, 3)
        order = torch.randperm(src.numel() + own.numel(), generator=generator)
        src, dst = torch.cat([src, own])[order], torch.cat([dst, own])[order]
    return torch.stack([src, dst]), Graph(src, dst, num_nodes=NODES)


def _gcn(pyg: Any) -> tuple[torch.nn.Module, CompiledModule]:
    peer, mine = pyg.GCNConv(IN, OUT), GCNConv(IN, OUT)
    mine.load_state_dict({"weight": peer.lin.weight.T, "bias": peer.bias})
    return peer, mine


def _sage(reduce: str) -> Make:
    def make(pyg: Any) -> tuple[torch.nn.Module, CompiledModule]:
        peer, mine = pyg.GraphConv(IN, OUT, aggr=reduce), SAGEConv(IN, OUT, reduce=reduce)
        state = {"neighbor_weight": peer.lin_rel.weight.T, "bias": peer.lin_rel.bias}
        mine.load_state_dict({**state, "self_weight": peer.lin_root.weight.T})
        return peer, mine

    return make


def _gat(fill: float | str, concat: bool = True, loops: bool = True) -> Make:
    def make(pyg: Any) -> tuple[torch.nn.Module, CompiledModule]:
        options: dict[str, Any] = {"heads": HEADS, "edge_dim": COLUMNS, "fill_value": fill}
        options |= {"concat": concat, "add_self_loops": loops}
        peer, mine = pyg.GATConv(IN, OUT, **options), GATConv(IN, OUT * (HEADS if concat else 1), **options)
        state = {"weight": peer.lin.weight.T, "att_src": peer.att_src[0], "att_dst": peer.att_dst[0]}
        state |= {"att_edge": peer.att_edge[0], "edge_projection": peer.lin_edge.weight.T, "bias": peer.bias}
        mine.load_state_dict(state)
        return peer, mine

    return make


def _gatv2(pyg: Any) -> tuple[torch.nn.Module, CompiledModule]:
    options: dict[str, Any] = {"heads": HEADS, "edge_dim": COLUMNS}
    peer, mine = pyg.GATv2Conv(IN, OUT, **options), GATv2Conv(IN, OUT * HEADS, **options)
    state = {"weight": peer.lin_l.weight.T, "dst_weight": peer.lin_r.weight.T, "src_bias": peer.lin_l.bias}
    state |= {"dst_bias": peer.lin_r.bias, "att": peer.att[0], "bias": peer.bias}
    mine.load_state_dict({**state, "edge_projection": peer.lin_edge.weight.T})
    return peer, mine


WEIGHTED: dict[str, Make] = {
    "gcn": _gcn,
    "sage-mean": _sage("mean"),
    "sage-sum": _sage("sum"),
    "sage-max": _sage("max"),
}
WITH_FEATURES: dict[str, Make] = {
    "gat": _gat("mean"),
    "gat-mean-of-heads": _gat("mean", concat=False),
    "gat-number": _gat(0.25),
    "gat-no-loops": _gat("mean", loops=False),
    "gatv2": _gatv2,
}
NAMES = {  # the peer's parameters under the names that they have here
    "lin.weight": "weight", "lin_rel.weight": "neighbor_weight", "lin_rel.bias": "bias",
    "lin_root.weight": "self_weight", "lin_edge.weight": "edge_projection", "lin_l.weight": "weight",
    "lin_r.weight": "dst_weight", "lin_l.bias": "src_bias", "lin_r.bias": "dst_bias",
}  # fmt: skip


def _transposed(name: str, gradient: torch.Tensor) -> torch.Tensor:
    return gradient.T if name.endswith("weight") else gradient[0] if name.startswith("att") else gradient


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("layer", [*WEIGHTED, *WITH_FEATURES])
def test_layer_equals_the_peers(layer: str, dtype: torch.dtype, loops: bool, level: int) -> None:
    pyg = pytest.importorskip("torch_geometric.nn", reason="torch_geometric is the peer of this test")
    torch.manual_seed(0)
    peer, mine = (module.to(dtype) for module in {**WEIGHTED, **WITH_FEATURES}[layer](pyg))
    ends, graph = _graph(loops)
    x = torch.randn(NODES, IN, dtype=dtype)
    rows = torch.rand(ends.shape[1], dtype=dtype) * 2
    if layer in WITH_FEATURES:
        rows = torch.randn(ends.shape[1], COLUMNS, dtype=dtype)
    given = [[t.clone().requires_grad_() for t in (x, rows)] for _ in range(2)]
    name = "edge_attr" if layer in WITH_FEATURES else "edge_weight"

    expected = peer(given[0][0], ends, given[0][1])
    seed = torch.randn_like(expected)
    expected.backward(seed)
    with config(opt_level=level):
        got = mine(graph, given[1][0], **{name: given[1][1]})
        got.backward(seed)
    tolerance = 1e-4 if dtype is torch.float32 else 1e-10
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
    for theirs, ours in zip(*given, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=tolerance, atol=tolerance)
    found = dict(mine.named_parameters())
    for name, parameter in peer.named_parameters():
        wanted = _transposed(name, parameter.grad)
        torch.testing.assert_close(found[NAMES.get(name, name)].grad, wanted, rtol=tolerance, atol=tolerance * 10)


def _dense(ends: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.zeros(NODES, NODES, dtype=weight.dtype).index_put((ends[1], ends[0]), weight, accumulate=True)


@pytest.mark.parametrize("loops", [False, True])
def test_gin_and_the_mean_of_gcn_are_their_formulas(loops: bool) -> None:
    torch.manual_seed(1)
    ends, graph = _graph(loops)
    weight, x = torch.rand(ends.shape[1], dtype=torch.float64), torch.randn(NODES, IN, dtype=torch.float64)
    gin = GINConv(IN, OUT, eps=0.2).double()
    z = 1.2 * x + _dense(ends, weight) @ x
    expected = (z @ gin.weight1 + gin.bias1).relu() @ gin.weight2 + gin.bias2
    torch.testing.assert_close(gin(graph, x, edge_weight=weight), expected)

    gcn = GCNConv(IN, OUT, reduce="mean").double()
    own = ends[0] == ends[1]
    loop = torch.ones(NODES, dtype=torch.float64).index_put((ends[0][own],), weight[own])
    sums = _dense(ends[:, ~own], weight[~own]) @ x + loop[:, None] * x
    counts = torch.bincount(ends[1][~own], minlength=NODES)[:, None] + 1
    torch.testing.assert_close(gcn(graph, x, edge_weight=weight), sums / counts @ gcn.weight + gcn.bias)


def test_of_several_self_loops_the_last_one_counts() -> None:
    graph, x = Graph([0, 1, 1, 1], [1, 1, 0, 1], num_nodes=2), torch.eye(2)
    layer = GCNConv(2, 2, bias=False)
    torch.nn.init.eye_(layer.weight)
    got = layer(graph, x, edge_weight=torch.tensor([0.5, 7.0, 0.25, 3.0]))
    matrix = torch.tensor([[1.0, 0.25], [0.5, 3.0]])
    scale = matrix.sum(1) ** -0.5
    torch.testing.assert_close(got, scale[:, None] * matrix * scale)


def test_weights_of_one_change_nothing() -> None:
    torch.manual_seed(0)
    ends, graph = _graph(True)
    x, ones = torch.randn(NODES, IN), torch.ones(ends.shape[1])
    for model in (GCN(IN, 8, OUT), SAGE(IN, 8, OUT), GIN(IN, 8, OUT)):
        torch.testing.assert_close(model(graph, x, edge_weight=ones), model(graph, x))


MODELS: dict[str, tuple[Callable[[], CompiledModule], tuple[str, ...]]] = {
    "gcn": (lambda: GCN(IN, 8, OUT), ("edge_weight",)),
    "gcn-mean": (lambda: GCN(IN, 8, OUT, reduce="mean"), ("edge_weight",)),
    "sage": (lambda: SAGE(IN, 8, OUT), ("edge_weight",)),
    "gin": (lambda: GIN(IN, 8, OUT), ("edge_weight",)),
    "gat": (lambda: GAT(IN, 8, OUT, heads=2, edge_dim=1), ("edge_weight",)),
    "gatv2": (lambda: GAT(IN, 8, OUT, heads=2, edge_dim=4, v2=True), ("edge_weight", "edge_attr")),
    "gat-no-loops": (lambda: GAT(IN, 8, OUT, heads=2, edge_dim=3, add_self_loops=False), ("edge_attr",)),
}


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_blocks_of_all_neighbours_give_the_whole_graphs_rows_and_gradients(name: str, loops: bool) -> None:
    torch.manual_seed(0)
    ends, graph = _graph(loops)
    make, takes = MODELS[name]
    model, x, seeds = make(), torch.randn(NODES, IN), torch.tensor([30, 3, 11, 0, 39])
    tables = {"edge_weight": torch.rand(ends.shape[1]) + 0.1, "edge_attr": torch.randn(ends.shape[1], 3)}
    seed = torch.randn(seeds.numel(), OUT)

    def run(on_blocks: bool) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
        given = {key: tables[key].clone().requires_grad_() for key in takes}
        model.zero_grad()
        if on_blocks:
            sample = NeighborSampler(graph, [-1, -1]).sample(seeds)
            out = model(sample.blocks, x[sample.n_id], **given)
        else:
            out = model(graph, x, rows=seeds, **given)
        out.backward(seed)
        return out, [*(t.grad for t in given.values()), *(p.grad for p in model.parameters())]

    (whole, expected), (blocks, got) = run(False), run(True)
    torch.testing.assert_close(blocks, whole, rtol=1e-5, atol=1e-5)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    fixed = EdgeInputs(*(tables[key] if key in takes else None for key in ("edge_weight", "edge_attr")), fixed=True)
    sample = NeighborSampler(graph, [-1, -1]).sample(seeds)
    for _ in range(2):  # what is kept is the same again
        kept = model(sample.blocks, x[sample.n_id], edge_weight=fixed)
        torch.testing.assert_close(kept, whole, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(model(graph, x, seeds, edge_weight=fixed), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_sampled_neighbours_estimate_a_gcn_without_bias(reduce: str) -> None:
    torch.manual_seed(0)
    ends, graph = _graph(True)
    weight, x, seeds = torch.rand(ends.shape[1]), torch.randn(NODES, IN), torch.tensor([3, 11, 30])
    layer, sampler = GCNConv(IN, OUT, reduce=reduce), NeighborSampler(graph, [2])
    draws = 300
    with torch.no_grad():
        expected = layer(graph, x, edge_weight=weight)[seeds]
        found = torch.zeros(draws, *expected.shape)
        for i in range(draws):
            sample = sampler.sample(seeds, seed=i)
            found[i] = layer(sample.blocks[0], x[sample.n_id], edge_weight=weight)
    error = found.std(0) / draws**0.5
    assert bool(((found.mean(0) - expected).abs() <= 5 * error + 1e-6).all())
    assert float(error.max()) < 0.2 * float(expected.abs().max())


@pytest.mark.parametrize("kind", [GCN, SAGE, GIN])
def test_nothing_of_edges_times_features_exists_and_weighted_degrees_are_computed_once(kind: Any) -> None:
    torch.manual_seed(0)
    ends, graph = _graph(False)
    model, x, weight = kind(64, 32, OUT), torch.randn(NODES, 64), torch.rand(ends.shape[1])
    for _ in range(3):
        model(graph, x, edge_weight=weight).sum().backward()
    plan = model.function.plans()[-1]
    values = plan.compiled.program.values
    wide = [v for v in values if isinstance(v.type, TensorType) and v.type.residency is Residency.EDGE and v.type.dims]
    assert not wide
    assert any(v.op is Op.SPMM and len(v.inputs) == 3 for v in values)
    sums = [v for v in values if v.op is Op.REDUCE]
    assert all(v in plan.compiled.hoisted for v in sums)
    assert len(sums) == (1 if kind is GCN else 0)


def test_the_gradient_by_the_weights_makes_nothing_of_edges_times_features() -> None:
    ends, graph = _graph(True)
    model, x = GCN(64, 32, OUT), torch.randn(NODES, 64)
    model(graph, x, edge_weight=torch.rand(ends.shape[1], requires_grad=True)).sum().backward()
    values = model.function.plans()[-1].compiled.program.values
    assert any(v.op is Op.SDDMM for v in values)
    assert not [
        v for v in values if isinstance(v.type, TensorType) and v.type.residency is Residency.EDGE and v.type.dims
    ]


def test_an_attention_score_adds_one_number_a_head_to_an_edge() -> None:
    ends, graph = _graph(False)
    layer = GATConv(IN, 32, heads=2, edge_dim=7)
    program = layer.program(graph, torch.randn(NODES, IN), None, EdgeInputs(attr=torch.randn(ends.shape[1], 7)))
    products = [v for v in program.values if v.op is Op.MATMUL and v.tensor.residency is Residency.EDGE]
    assert [v.tensor.dims for v in products] == [(2,)]


def test_what_does_not_fit_is_refused_in_one_line() -> None:
    ends, graph = _graph(False)
    count, x = ends.shape[1], torch.randn(NODES, IN)
    weight, attr = torch.rand(count), torch.randn(count, COLUMNS)
    gcn, gat = GCN(IN, 8, OUT), GAT(IN, 8, OUT, heads=2, edge_dim=COLUMNS)
    typed = HGT(IN, 8, OUT, num_node_types=1, num_relations=1)
    cases: list[tuple[CompiledModule, dict[str, Any], type[Exception], str]] = [
        (
            gcn,
            {"edge_weight": weight[1:]},
            ShapeError,
            rf"GCN edge_weight: expected shape \({count},\), one number per",
        ),
        (gcn, {"edge_weight": weight[:, None]}, ShapeError, "GCN edge_weight: expected shape"),
        (gcn, {"edge_weight": weight.double()}, DtypeError, r"use edge_weight\.float\(\)"),
        (gcn, {"edge_weight": [1.0] * count}, DtypeError, "GCN edge_weight: expected a tensor, got list"),
        (gcn, {"edge_attr": attr}, ConfigError, "GCN: edge_attr is not supported; .*GAT"),
        (
            gat,
            {"edge_weight": weight},
            ShapeError,
            "GAT: expected edge_dim=3 columns of edge_attr and edge_weight, got 1",
        ),
        (GAT(IN, 8, OUT, heads=2), {"edge_attr": attr}, ConfigError, "GAT: edge_attr is not supported"),
        (NGCF(IN, 8, OUT), {"edge_weight": weight}, ConfigError, "NGCF: edge_weight is not supported; GCN, SAGE"),
        (typed, {"edge_weight": weight}, ConfigError, "HGT: edge_weight is not supported"),
        (GCN(IN, 8, OUT, reduce="max"), {"edge_weight": weight}, ConfigError, "reduce='max' cannot be combined"),
    ]
    for model, given, kind, text in cases:
        with pytest.raises(kind, match=text) as failure:
            model(graph, x, **given)
        assert "\n" not in str(failure.value)
    sample = NeighborSampler(graph, [2, 2]).sample([1, 2])
    with pytest.raises(ShapeError, match="one number per edge of the whole graph"):
        SAGE(IN, 8, OUT)(sample.blocks, x[sample.n_id], edge_weight=weight[: sample.num_edges])
    with pytest.raises(DtypeError, match=r"use edge_weight\.double\(\)"):
        GCN(IN, 8, OUT).double()(graph, x.double(), edge_weight=weight)
    with pytest.raises(ConfigError, match=r"GATConv: expected fill_value as a number or 'mean', got 'max'"):
        GATConv(IN, OUT, edge_dim=2, fill_value="max")


@pytest.mark.parametrize("kind", [torch.float64, torch.int64, torch.float16])
def test_features_of_another_dtype_are_refused_with_the_remedy(kind: torch.dtype) -> None:
    _, graph = _graph(False)
    x = torch.ones(NODES, IN).to(kind)
    for model in (GCN(IN, 8, OUT), GAT(IN, 8, OUT, heads=2), SAGEConv(IN, OUT)):
        with pytest.raises(
            DtypeError, match=rf"expected x of torch.float32 as the parameters, got {kind}; use x.to\(torch.float32\)"
        ):
            model(graph, x)
    with pytest.raises(DtypeError, match=r"use x\.to\(torch\.float64\)"):
        GCN(IN, 8, OUT).double()(graph, torch.ones(NODES, IN))
