"""Readouts and pooling of graphs against PyTorch Geometric's with its weights, in float64, with all gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from graphs import many
from torch import Tensor, nn

import graphweft as gw
from graphweft.nn import AttentionPool, GCNConv, Readout, SAGEConv, SAGPool, Set2Set, TopKPool, graph_softmax, readout

peer = pytest.importorskip("torch_geometric.nn", reason="the peer of this test")
utils = pytest.importorskip("torch_geometric.utils", reason="the peer of this test")

WIDTH = 6


def _nodes(seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[gw.Graph, Tensor, Tensor, Tensor]:
    """Graphs side by side, rows, offsets, and the graph of every node."""
    _, ptr, src, dst = many(20, "symmetric", seed)
    x = torch.randn(int(ptr[-1]), WIDTH, dtype=dtype)
    return gw.Graph(src, dst, num_nodes=int(ptr[-1])), x, ptr, torch.arange(20).repeat_interleave(ptr.diff())


def _agree(mine: nn.Module, theirs: nn.Module, x: Tensor, call: Callable, other: Callable) -> None:
    """Same values, gradients of the rows, and gradients of parameters in the same order."""
    a, b = (x.clone().requires_grad_() for _ in range(2))
    out, want = call(a), other(b)
    torch.testing.assert_close(out, want, rtol=1e-10, atol=1e-12)
    weight = torch.randn_like(out)
    (out * weight).sum().backward()
    (want * weight).sum().backward()
    torch.testing.assert_close(a.grad, b.grad, rtol=1e-9, atol=1e-12)
    for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p.grad.reshape(q.shape), q.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["sum", "mean", "max"])
def test_readouts(kind: str) -> None:
    _, x, ptr, batch = _nodes()
    pool = {"sum": peer.global_add_pool, "mean": peer.global_mean_pool, "max": peer.global_max_pool}[kind]
    _agree(nn.Module(), nn.Module(), x, lambda a: readout(a, ptr, kind), lambda b: pool(b, batch, 20))
    both = Readout(f"{kind}+mean")
    assert torch.equal(both(x, ptr), torch.cat([readout(x, ptr, kind), readout(x, ptr, "mean")], 1))
    assert both.width(WIDTH) == 2 * WIDTH


def test_graphs_without_nodes_are_zeros() -> None:
    x = torch.tensor([[-1.0], [2.0]])
    ptr = torch.tensor([0, 0, 2, 2])
    for kind, want in (("sum", 1.0), ("mean", 0.5), ("max", 2.0)):
        assert readout(x, ptr, kind).tolist() == [[0.0], [want], [0.0]]
    assert readout(torch.ones(2, 3, 2), ptr).shape == (3, 3, 2)


def test_softmax_over_graphs() -> None:
    _, x, ptr, batch = _nodes()
    _agree(nn.Module(), nn.Module(), x, lambda a: graph_softmax(a, ptr), lambda b: utils.softmax(b, batch))
    large = graph_softmax(x * 1e3, ptr)
    assert large.isfinite().all()
    torch.testing.assert_close(readout(large, ptr), torch.ones(20, WIDTH, dtype=x.dtype))


@pytest.mark.parametrize("transform", [False, True])
def test_attention(transform: bool) -> None:
    _, x, ptr, batch = _nodes()
    gate, rows = nn.Linear(WIDTH, 1).double(), nn.Linear(WIDTH, 3).double() if transform else None
    theirs = peer.aggr.AttentionalAggregation(gate, rows)
    twin = [None if m is None else type(m)(m.in_features, m.out_features).double() for m in (gate, rows)]
    for a, b in zip(twin, (gate, rows), strict=True):
        if a is not None:
            a.load_state_dict(b.state_dict())
    mine = AttentionPool(*twin)
    _agree(mine, theirs, x, lambda a: mine(a, ptr), lambda b: theirs(b, batch, dim_size=20))


def test_set2set() -> None:
    _, x, ptr, batch = _nodes()
    theirs = peer.aggr.Set2Set(WIDTH, processing_steps=4).double()
    mine = Set2Set(WIDTH, steps=4).double()
    mine.lstm.load_state_dict(theirs.lstm.state_dict())
    _agree(mine, theirs, x, lambda a: mine(a, ptr), lambda b: theirs(b, batch, dim_size=20))


@pytest.mark.parametrize("options", [{"ratio": 0.5}, {"ratio": 3}, {"min_score": 0.2}, {"multiplier": 2.0}])
@pytest.mark.parametrize("kind", ["topk", "sag"])
def test_pooling(kind: str, options: dict[str, float]) -> None:
    graph, x, ptr, batch = _nodes(seed=1)
    if kind == "topk":
        theirs, mine = peer.TopKPooling(WIDTH, **options).double(), TopKPool(WIDTH, **options).double()
        mine.weight.data.copy_(theirs.select.weight.data[0])
    else:
        theirs = peer.SAGPooling(WIDTH, **options).double()
        theirs.select.weight.data.fill_(1.0)  # one number, whose sign would turn the order around
        mine = SAGPool(WIDTH, scorer=SAGEConv(WIDTH, 1, reduce="sum"), **options).double()
        weights = {"neighbor_weight": theirs.gnn.lin_rel.weight.T, "self_weight": theirs.gnn.lin_root.weight.T}
        mine.scorer.load_state_dict({**weights, "bias": theirs.gnn.lin_rel.bias})
    a, b = (x.clone().requires_grad_() for _ in range(2))
    got = mine(graph, a, ptr)
    edges = torch.stack(graph.edges())
    rows, edge_index, _, whose, perm, score = theirs(b, edges, None, batch)
    assert torch.equal(got.nodes, perm) and torch.equal(torch.stack(got.graph.edges()), edge_index)
    assert got.ptr.tolist() == [0, *torch.bincount(whose, minlength=20).cumsum(0).tolist()]
    number = torch.full((x.shape[0],), -1).index_put((perm,), torch.arange(len(perm)))
    assert torch.equal(number[edges[:, got.edges]], edge_index)
    torch.testing.assert_close(got.x, rows, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(got.scores, score, rtol=1e-9, atol=1e-11)
    weight = torch.randn_like(rows)
    (got.x * weight).sum().backward()
    (rows * weight).sum().backward()
    torch.testing.assert_close(a.grad, b.grad, rtol=1e-8, atol=1e-11)
    got_grad = mine.weight.grad if kind == "topk" else mine.scorer.neighbor_weight.grad.T
    want = theirs.select.weight.grad[0] if kind == "topk" else theirs.gnn.lin_rel.weight.grad
    torch.testing.assert_close(got_grad, want, rtol=1e-8, atol=1e-11)


def test_readouts_of_pooled_graphs_train() -> None:
    graph, x, ptr, _ = _nodes(dtype=torch.float32)
    first, pool = GCNConv(WIDTH, WIDTH), TopKPool(WIDTH)
    out = pool(graph, first(graph, x), ptr)
    readout(out.x, out.ptr, "max").sum().backward()
    assert first.weight.grad.abs().sum() > 0 and pool.weight.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, ptr: readout(x, ptr, "median"), "readout: expected kind among sum, mean, max, got 'median'"),
        (lambda x, ptr: readout(x[:-1], ptr), "readout: expected offsets that rise from 0 to"),
        (lambda x, ptr: readout(x.long(), ptr), "readout: expected float32 or float64 rows, got torch.int64"),
        (lambda x, ptr: readout(x, [0, 1]), "readout: expected ptr as int64 offsets of graphs, batch.ptr, got list"),
        (lambda x, ptr: Readout("sum+"), "Readout: expected kinds among sum, mean, max, joined by \\+, got 'sum\\+'"),
        (lambda x, ptr: Set2Set(0), "Set2Set: expected width >= 1, got 0"),
        (lambda x, ptr: Set2Set(2)(x, ptr), "Set2Set: expected rows of 2 columns, got shape"),
        (lambda x, ptr: TopKPool(2, ratio=1.5), "TopKPool: expected ratio as a fraction in"),
        (
            lambda x, ptr: TopKPool(2)(gw.Graph([], [], num_nodes=x.shape[0]), x, ptr),
            "TopKPool: expected rows of shape .*, 2\\)",
        ),
        (
            lambda x, ptr: AttentionPool(nn.Linear(WIDTH, 2).double())(x, ptr),
            "AttentionPool: expected scores of shape",
        ),
    ],
)
def test_wrong_use_is_told_in_one_line(call: Callable, message: str) -> None:
    _, x, ptr, _ = _nodes()
    with pytest.raises(gw.errors.GraphWeftError, match=message) as found:
        call(x, ptr)
    assert "\n" not in str(found.value)
