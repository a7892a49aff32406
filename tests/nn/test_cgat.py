"""C-GAT against its formula, written pair by pair in plain torch float64, on every graph; blocks, options, errors."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from zoo import SQUARE, Case, random_edges

from graphweft._config import config
from graphweft._errors import ConfigError, FallbackWarning
from graphweft.graph.graph import Graph
from graphweft.ir.ops import Op
from graphweft.nn import CGAT, CGATConv
from graphweft.nn.message_passing import MessagePassing
from graphweft.nn.user_call import observing
from graphweft.sample.neighbor import NeighborSampler

IN, OUT, HEADS = 5, 6, 3
F64 = torch.float64


def plain(layer: CGATConv, case: Case, x: Tensor) -> Tensor:
    """The formula, destination by destination, with a matrix of all pairs of in-edges."""
    src, dst = case.src, case.dst
    if layer.add_self_loops:
        keep, nodes = src != dst, torch.arange(case.num_dst)
        src, dst = torch.cat([src[keep], nodes]), torch.cat([dst[keep], nodes])
    h = (x @ layer.weight).view(-1, layer.heads, layer.channels)
    score = (h * layer.att_src).sum(-1)[src] + (h * layer.att_dst).sum(-1)[dst]
    score = torch.nn.functional.leaky_relu(score, layer.slope)
    rows = []
    for node in range(case.num_dst):
        mine = dst == node
        e, values = score[mine], h[src[mine]]
        margins = torch.relu(e[:, None] - e[None]).sum(1)
        if layer.reduce == "mean" and len(e):
            margins, values = margins / len(e), values / len(e)
        rows.append((margins[:, :, None] * values).sum(0))
    out = torch.stack(rows) if rows else h
    out = out.flatten(1) if layer.concat else out.mean(1)
    return out if layer.bias is None else out + layer.bias


@pytest.mark.parametrize(
    ("level", "options"),
    [
        (0, {}),
        (1, {"concat": False}),
        (2, {"add_self_loops": False, "bias": False}),
        (3, {"reduce": "mean"}),
        (3, {"heads": 1, "negative_slope": 0.0}),  # many equal scores
    ],
    ids=str,
)
@pytest.mark.parametrize("case", [c for c in SQUARE if c.num_src], ids=str)
def test_layer_is_the_formula(case: Case, level: int, options: dict) -> None:
    torch.manual_seed(0)
    layer = CGATConv(IN, OUT, **{"heads": HEADS, **options}).to(F64)
    x = torch.randn(case.num_src, IN, dtype=F64, requires_grad=True)
    slope = torch.randn(case.num_src, OUT, dtype=F64)
    leaves = [x, *layer.parameters()]
    expected = plain(layer, case, x)
    wanted = torch.autograd.grad(expected, leaves, slope)
    with config(opt_level=level):
        got = layer(case.graph(), x)
        found = torch.autograd.grad(got, leaves, slope)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("case", [c for c in SQUARE if c.num_edges], ids=str)
def test_gradcheck(case: Case) -> None:
    layer = CGATConv(2, 4, heads=2).to(F64)
    graph = case.graph()
    x = torch.randn(case.num_src, 2, dtype=F64, requires_grad=True)
    if case.num_src > 60:
        pytest.skip("finite differences of a large graph say nothing more")
    assert torch.autograd.gradcheck(lambda x, *_: layer(graph, x), (x, *layer.parameters()), atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"residual": True, "norm": "layer"}, {"out_heads": 2, "activation": "relu"}])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_model_equals_the_oracle_with_rows_and_on_repeated_calls(reduce: str, options: dict) -> None:
    torch.manual_seed(1)
    model = CGAT(6, 8, 3, num_layers=3, heads=4, reduce=reduce, **options)
    edges = random_edges(120, 700, seed=5)
    graph, x, rows = Graph(edges.src, edges.dst, num_nodes=120), torch.randn(120, 6), torch.randperm(120)[:40]
    oracle = copy.deepcopy(model).double()
    for asked in (None, rows):
        with config(opt_level=0):
            oracle.zero_grad()
            expected = oracle(graph, x.double(), asked)
            expected.square().mean().backward()
        for _ in range(3):
            model.zero_grad()
            got = model(graph, x, asked)
            got.square().mean().backward()
            scale = float(expected.detach().abs().max())
            torch.testing.assert_close(got.double(), expected, rtol=1e-3, atol=1e-4 * scale)
            for (name, p), q in zip(model.named_parameters(), oracle.parameters(), strict=True):
                size = max(1.0, float(q.grad.abs().max()))
                torch.testing.assert_close(p.grad.double(), q.grad, rtol=1e-2, atol=1e-3 * size, msg=name)


@pytest.mark.parametrize("loops", [True, False])
def test_a_batch_of_all_neighbours_gives_the_rows_of_the_whole(loops: bool) -> None:
    edges = random_edges(60, 300, seed=3)
    graph, x = Graph(edges.src, edges.dst, num_nodes=60), torch.randn(60, 6)
    model = CGAT(6, 8, 3, heads=2, add_self_loops=loops).eval()
    seeds = torch.tensor([5, 17, 3, 40])
    sample = NeighborSampler(graph, (-1, -1)).sample(seeds)
    torch.testing.assert_close(model(sample.blocks, x[sample.n_id]), model(graph, x)[seeds], rtol=1e-4, atol=1e-4)


def test_dropout_of_weights_and_values_keeps_the_mean() -> None:
    edges = random_edges(50, 400, seed=1)
    graph, x = Graph(edges.src, edges.dst, num_nodes=50), torch.randn(50, 6)
    layer = CGATConv(6, 8, 2, dropout=0.3, value_dropout=0.3, reduce="mean")
    still = copy.deepcopy(layer).eval()(graph, x)
    draws = torch.stack([layer(graph, x) for _ in range(600)])
    assert not torch.equal(draws[0], draws[1])
    assert bool(((draws.mean(0) - still).abs() <= 6 * draws.std(0) / 600**0.5 + 1e-5).all())


def test_pairs_are_one_operation() -> None:
    edges = random_edges(50, 400, seed=1)
    program = CGATConv(6, 8, 2).program(Graph(edges.src, edges.dst, num_nodes=50), torch.randn(50, 6))
    assert program.count(Op.EDGE_MARGIN) == 1 and program.count(Op.EDGE_SOFTMAX) == 0


def test_wrong_options_are_named() -> None:
    with pytest.raises(
        ConfigError, match="CGATConv: expected reduce 'sum' or 'mean', weighted by attention, got 'max'"
    ):
        CGAT(4, 8, 2, reduce="max")
    with pytest.raises(ConfigError, match="CGATConv: expected out_features that 4 heads divide, got 6"):
        CGAT(4, 6, 2, heads=4)


class UserCGAT(MessagePassing):
    """The layer as Graphiler's users write it: all pairs of a mailbox at once, in the way ``pairs`` says."""

    def __init__(self, layer: CGATConv, pairs: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.pairs = layer, pairs

    def message(self, edges):
        layer = self.layer
        z, other = ((end["h"] @ layer.weight).view(-1, layer.heads, layer.channels) for end in (edges.src, edges.dst))
        score = (z * layer.att_src).sum(-1) + (other * layer.att_dst).sum(-1)
        if layer.heads == 1:
            z, score = z.squeeze(1), score.squeeze(1)
        return {"z": z, "e": torch.nn.functional.leaky_relu(score, layer.slope)}

    def reduce(self, nodes):
        margins = self.pairs(nodes.mailbox["e"])
        return {"h": (margins.unsqueeze(-1) * nodes.mailbox["z"]).sum(1).flatten(1)}


WAYS = {
    "unsqueeze": lambda e: torch.relu(e.unsqueeze(2) - e.unsqueeze(1)).sum(2),
    "index": lambda e: torch.nn.functional.relu(e[:, :, None] - e[:, None]).sum(dim=2),
    "mean": lambda e: (e[:, :, None] - e[:, None]).relu().mean(2),
    "keepdim": lambda e: torch.relu(e.unsqueeze(2) - e.unsqueeze(1)).sum(2, keepdim=True).squeeze(2),
    "clamp": lambda e: (e.unsqueeze(2) - e.unsqueeze(1)).clamp(min=0).sum(2),
    "other side": lambda e: torch.relu((-e).unsqueeze(2) - (-e).unsqueeze(1)).sum(1),
}


@pytest.mark.parametrize(
    ("way", "heads"), [("unsqueeze", 1), *((way, HEADS if at % 2 else 1) for at, way in enumerate(WAYS, 1))]
)
@pytest.mark.parametrize("case", [c for c in SQUARE if c.num_edges], ids=str)
def test_the_user_function_is_the_layer(case: Case, way: str, heads: int) -> None:
    torch.manual_seed(0)
    layer = CGATConv(IN, OUT, heads, add_self_loops=False, bias=False).to(F64)
    x, graph = torch.randn(case.num_src, IN, dtype=F64, requires_grad=True), case.graph()
    leaves = [x, *layer.parameters()]
    slope = torch.randn(case.num_src, OUT, dtype=F64)
    user = UserCGAT(layer, WAYS[way])
    if way in ("clamp", "mean"):  # another gradient where scores are equal; another scale
        with config(opt_level=0):
            expected = user.propagate(graph, ndata={"h": x})["h"]
    else:
        expected = plain(layer, case, x)
    wanted = torch.autograd.grad(expected, leaves, slope)
    with observing() as seen:
        written = user.propagate(graph, ndata={"h": x})["h"]
    found = torch.autograd.grad(written, leaves, slope)
    torch.testing.assert_close(written, expected, rtol=1e-9, atol=1e-9)
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-8)
    (call,) = seen
    assert call.compiled is not None
    program = call.compiled.form(graph).program(call.compiled.arguments(call.call, call.captured))
    assert program.count(Op.EDGE_MARGIN) == 1


@pytest.mark.parametrize(
    "pairs",
    [
        lambda e: torch.tanh(e.unsqueeze(2) - e.unsqueeze(1)).sum(2),
        lambda e: torch.relu(e.unsqueeze(2) - 2 * e.unsqueeze(1)).sum(2),
        lambda e: torch.relu(e.unsqueeze(2) - e.unsqueeze(1)).amax(2),
        lambda e: torch.relu(e.unsqueeze(2) - e.unsqueeze(1)).square().sum(2),
    ],
)
def test_other_code_on_pairs_runs_as_written_with_a_warning(pairs: Callable[[Tensor], Tensor]) -> None:
    layer = CGATConv(IN, OUT, add_self_loops=False, bias=False).to(F64)
    edges = random_edges(20, 80, seed=1)
    graph, x = Graph(edges.src, edges.dst, num_nodes=20), torch.randn(20, IN, dtype=F64)
    user = UserCGAT(layer, pairs)
    with pytest.warns(FallbackWarning, match="all pairs of messages"):
        got = user.propagate(graph, ndata={"h": x})["h"]
    with config(opt_level=0):
        torch.testing.assert_close(got, user.propagate(graph, ndata={"h": x})["h"])
