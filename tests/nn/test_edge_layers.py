"""GINEConv, PNAConv and JumpingKnowledge against PyTorch Geometric."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from zoo import ZOO

import graphweft as gw
from graphweft._errors import ConfigError, ShapeError
from graphweft.nn import GINEConv, JumpingKnowledge, PNAConv, mean_log_degree
from graphweft.nn.pna import AGGREGATORS, SCALERS

pyg = pytest.importorskip("torch_geometric.nn")
pytestmark = pytest.mark.filterwarnings("ignore:Using:UserWarning")
WIDTH, EDGE = 5, 3
GRAPHS = ("isolated", "multi_edges", "star", "random")


def _graph(name: str) -> gw.Graph:
    edges = ZOO[name]
    return gw.Graph(edges.src, edges.dst, num_nodes=edges.num_nodes)


def _inputs(graph: gw.Graph, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(seed)
    x = torch.randn(graph.num_nodes, WIDTH, dtype=torch.float64, requires_grad=True)
    attr = torch.randn(graph.num_edges, EDGE, dtype=torch.float64, requires_grad=True)
    return x, attr, torch.stack(graph.edges()).long()


def _compare(out: Tensor, wanted: Tensor, leaves: list[Tensor]) -> None:
    """Results, and gradients of what both are made of."""
    torch.testing.assert_close(out, wanted, rtol=1e-9, atol=1e-9)
    sign = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
    got, known = (torch.autograd.grad((y * sign).sum(), leaves, allow_unused=True) for y in (out, wanted))
    for mine, other, leaf in zip(got, known, leaves, strict=True):
        zero = torch.zeros_like(leaf)
        mine, other = (zero if grad is None else grad for grad in (mine, other))
        torch.testing.assert_close(mine, other, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("name", "train_eps"), [*((name, False) for name in GRAPHS), ("random", True)])
def test_gine_is_that_of_pyg(name: str, train_eps: bool) -> None:
    graph = _graph(name)
    x, attr, edge_index = _inputs(graph)
    ours = GINEConv(WIDTH, 4, EDGE, eps=0.3, train_eps=train_eps).double()
    for p in ours.parameters():
        nn.init.normal_(p)
    perceptron = nn.Sequential(nn.Linear(WIDTH, 4), nn.ReLU(), nn.Linear(4, 4))
    theirs = pyg.GINEConv(perceptron, eps=0.3, train_eps=train_eps, edge_dim=EDGE).double()
    state = {"nn.0.weight": ours.weight1.t(), "nn.0.bias": ours.bias1, "nn.2.weight": ours.weight2.t()}
    state |= {"nn.2.bias": ours.bias2, "lin.weight": ours.edge_projection.t(), "lin.bias": ours.edge_bias}
    state |= {"eps": ours.eps.reshape(1)}
    wanted = torch.func.functional_call(theirs, state, (x, edge_index, attr))
    _compare(ours(graph, x, edge_attr=attr), wanted, [x, attr, *ours.parameters()])


@pytest.mark.parametrize("edge_dim", [None, EDGE])
@pytest.mark.parametrize("name", GRAPHS)
def test_pna_is_that_of_pyg(name: str, edge_dim: int | None) -> None:
    graph = _graph(name)
    x, attr, edge_index = _inputs(graph)
    histogram = torch.bincount(graph.in_degrees())
    average = mean_log_degree(graph) or 1.0
    options = {"aggregators": AGGREGATORS, "scalers": SCALERS, "edge_dim": edge_dim}
    ours = PNAConv(WIDTH, 4, mean_log_degree=average, **options).double()
    for p in ours.parameters():
        nn.init.normal_(p)
    theirs = pyg.PNAConv(WIDTH, 4, list(AGGREGATORS), list(SCALERS), histogram, edge_dim=edge_dim).double()
    if mean_log_degree(graph):
        assert theirs.aggr_module.avg_deg_log.item() == pytest.approx(average, rel=1e-6)
    parts = [ours.dst_weight, ours.src_weight]
    state = {"pre_nns.0.0.bias": ours.bias, "post_nns.0.0.weight": ours.post_weight.t()}
    state |= {"post_nns.0.0.bias": ours.post_bias, "lin.weight": ours.weight.t(), "lin.bias": ours.last_bias}
    state |= {"aggr_module.avg_deg_log": torch.tensor([average], dtype=torch.float64)}
    if ours.edge_projection is not None:  # the encoder of the peer is part of one product here
        parts.append(torch.eye(WIDTH, dtype=torch.float64))
        state |= {"edge_encoder.weight": ours.edge_projection.t(), "edge_encoder.bias": torch.zeros(WIDTH).double()}
    state["pre_nns.0.0.weight"] = torch.cat(parts).t()
    given = (x, edge_index) if edge_dim is None else (x, edge_index, attr)
    wanted = torch.func.functional_call(theirs, state, given)
    out = ours(graph, x, edge_attr=None if edge_dim is None else attr)
    _compare(out, wanted, [x, *([] if edge_dim is None else [attr]), *ours.parameters()])


def test_a_block_of_all_edges_gives_the_rows_of_the_graph() -> None:
    graph = gw.synthetic("cora", scale=0.05).graph
    torch.manual_seed(0)
    x, attr = torch.randn(graph.num_nodes, WIDTH), torch.randn(graph.num_edges, EDGE)
    batch = gw.sampling.NeighborSampler(graph, [-1]).sample([3, 0, 9])
    block = batch.blocks[0]
    for layer in (GINEConv(WIDTH, 4, EDGE), PNAConv(WIDTH, 4, edge_dim=EDGE)):
        rows = layer(block, x[block.src_ids], edge_attr=attr)
        torch.testing.assert_close(rows, layer(graph, x, edge_attr=attr)[[3, 0, 9]], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["cat", "max", "lstm"])
def test_jumping_knowledge_is_that_of_pyg(mode: str) -> None:
    torch.manual_seed(0)
    sizes = {"channels": WIDTH, "num_layers": 3} if mode == "lstm" else {}
    ours, theirs = JumpingKnowledge(mode, **sizes).double(), pyg.JumpingKnowledge(mode, **sizes).double()
    ours.load_state_dict(theirs.state_dict())
    rows = [torch.randn(7, WIDTH, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    _compare(ours(rows), theirs(rows), rows)


def test_wrong_use_is_one_line() -> None:
    graph = _graph(GRAPHS[-1])
    with pytest.raises(ConfigError, match="GINEConv: expected edge_dim >= 1, got 0"):
        GINEConv(4, 2, 0)
    with pytest.raises(ConfigError, match="GINEConv: expected reduce 'sum', got 'max'"):
        GINEConv(4, 2, 3, reduce="max")
    with pytest.raises(ShapeError, match="GINEConv: expected edge_dim=3 columns"):
        GINEConv(4, 2, 3)(graph, torch.ones(graph.num_nodes, 4), edge_attr=torch.ones(graph.num_edges, 2))
    with pytest.raises(ConfigError, match=r"PNAConv: expected aggregators among .*, got \['median'\]"):
        PNAConv(4, 2, ["mean", "median"])
    with pytest.raises(ConfigError, match="PNAConv: expected mean_log_degree > 0, got 0"):
        PNAConv(4, 2, mean_log_degree=0)
    with pytest.raises(ConfigError, match="JumpingKnowledge: channels=4 cannot be combined with mode='cat'"):
        JumpingKnowledge("cat", channels=4)
    with pytest.raises(ConfigError, match="JumpingKnowledge: expected num_layers >= 1 with mode='lstm', got None"):
        JumpingKnowledge("lstm", channels=4)
    with pytest.raises(ShapeError, match="JumpingKnowledge: expected the rows of at least one layer, got 0"):
        JumpingKnowledge("max")([])
