"""What a rank computes of its part's structure is computed once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from zoo import power_law_edges

import graphweft as gw
from graphweft.dist.local_part import LocalPart
from graphweft.dist.ranks import Ranks
from graphweft.nn.edges import EdgeInputs
from graphweft.partitioning import multilevel
from graphweft.runtime.hoisted import HoistedValues


def test_structure_of_a_part_is_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    src, dst, nodes = power_law_edges(60, 400, seed=2)
    graph = gw.Graph(src, dst, num_nodes=nodes)
    part = LocalPart(Ranks(), graph, torch.zeros(nodes, dtype=torch.int64))
    made: list[str] = []
    real = HoistedValues._made

    def counted(plan: Any, item: Any, content: Any, over: Any) -> Any:
        made.append(item.key)
        return real(plan, item, content, over)

    monkeypatch.setattr(HoistedValues, "_made", staticmethod(counted))
    model = gw.nn.SAGE(8, 8, 8, num_layers=2)
    x = torch.randn(nodes, 8, requires_grad=True)
    counts = []
    for _ in range(3):
        model.run_layer(0, part.block, x, EdgeInputs()).sum().backward()
        counts.append(len(made))
    assert counts[0] > 0 and counts[0] == counts[1] == counts[2]


def _oracle(graph: gw.Graph, x: torch.Tensor, model: gw.nn.GCNConv) -> torch.Tensor:
    """D^-1/2 (A + I) D^-1/2 x W + b in dense float64, one self-loop at every node."""
    src, dst = graph.edges()
    a = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=torch.float64)
    a.index_put_((dst.long(), src.long()), torch.ones(src.numel(), dtype=torch.float64), accumulate=True)
    a.fill_diagonal_(1.0)
    scale = a.sum(1).rsqrt()
    assert model.bias is not None
    return scale[:, None] * (a @ (scale[:, None] * x)) @ model.weight.double() + model.bias.double()


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("count", [5, 50])
def test_parts_have_the_rows_and_gradients_of_the_whole_graph(
    count: int, sparse: bool, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole parts and parts for few or most nodes, which read some own rows or all as they lie, in either order."""
    if together:
        monkeypatch.setattr(multilevel, "WORTH_ORDERING", 0)
        monkeypatch.setattr(multilevel, "CELL", 8)
    ends = power_law_edges(60, 400, seed=2)
    src, dst, nodes = torch.as_tensor(ends[0]), torch.as_tensor(ends[1]), ends[2]
    src, dst = torch.cat([src, src[:9]]), torch.cat([dst, src[:9]])  # with self-loops
    graph = gw.Graph(src, dst, num_nodes=nodes)
    wanted = torch.randperm(nodes, generator=torch.Generator().manual_seed(1))[:count]
    part = LocalPart(Ranks(), graph, torch.zeros(nodes, dtype=torch.int64), splits=False, first=wanted)
    few = part.restricted(wanted)
    named, others = sorted(wanted.tolist()), sorted(set(range(nodes)) - set(wanted.tolist()))
    found = part.own.tolist()
    assert (found == named + others) != together
    assert sorted(found[:count]) == named and sorted(found[count:]) == others
    assert few.targets.tolist() == found[:count]
    targets, pairs = set(few.targets.tolist()), zip(src.tolist(), dst.tolist(), strict=True)
    read = targets | {s for s, d in pairs if d in targets}
    assert few.reads_all == (count == 50) and (len(read) * 4 > nodes * 3) == (count == 50)
    assert set(few.n_id.tolist()) == (set(range(nodes)) if few.reads_all else read)
    model = gw.nn.GCNConv(8, 4)
    torch.nn.init.normal_(model.bias)
    table = torch.randn(nodes, 8, generator=torch.Generator().manual_seed(3)).clamp(min=0.0 if sparse else -9.0)
    seen = torch.randn(nodes, 4, generator=torch.Generator().manual_seed(4))
    for piece in (part, few):
        x = table.clone().requires_grad_(not sparse)
        exact = table.double().requires_grad_()
        rows = x[piece.n_id]
        out = model(piece.block, gw.data.SparseFeatures.from_dense(rows) if sparse else rows)
        out.mul(seen[piece.targets]).sum().backward()
        wanted_rows = _oracle(graph, exact, model)[piece.targets]
        weight = torch.autograd.grad((wanted_rows * seen[piece.targets]).sum(), [exact, model.weight])
        assert torch.allclose(out.double(), wanted_rows, atol=1e-5)
        assert model.weight.grad is not None
        assert torch.allclose(model.weight.grad.double(), weight[1].double(), atol=1e-4)
        if not sparse:
            assert x.grad is not None and torch.allclose(x.grad.double(), weight[0], atol=1e-5)
        model.zero_grad()
