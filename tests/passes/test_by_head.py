"""What attention reads and gives beside its walks, in few calls: on a target that asks for it and has no kernel, so
that only the rewrite is tried; against the oracle in float64, and what must stay apart."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from zoo import CASES, random_edges

import graphweft as gw
from graphweft.ir.elementwise import FUNCTIONS
from graphweft.runtime import targets
from graphweft.runtime.target import Target


@pytest.fixture(autouse=True)
def joining(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A target without a kernel that joins calls."""
    monkeypatch.setitem(targets._TARGETS, "joining", Target("joining", worth=1, joins=True))
    with gw.config(certify=False):
        yield


def small(nodes: int = 12) -> gw.Graph:
    found = random_edges(nodes, 40, 1)
    return gw.Graph(found.src, found.dst, num_nodes=nodes)


def kernels(net: gw.nn.GAT) -> list[str]:
    """Names of the calls of the one plan."""
    (plan,) = net._function.plans()
    return [call.kernel for call in (*plan.forward, *plan.backward)]


def step(net: torch.nn.Module, graph: object, x: Tensor) -> list[Tensor]:
    """The output, and the gradients by the rows and by all parameters."""
    leaf = x.clone().requires_grad_()
    net.zero_grad()
    out = net(graph, leaf)
    weights = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).reshape(out.shape)
    (out * weights).sum().backward()
    return [out.detach(), leaf.grad, *(p.grad for p in net.parameters())]


@pytest.mark.parametrize("case", [c for c in CASES if c.num_edges < 100], ids=lambda c: c.name)
@pytest.mark.parametrize("heads", [1, 2])
def test_results_and_gradients_are_those_of_the_oracle(case: object, heads: int) -> None:
    """In float64 there is no rewrite of this kind, and no attention as one operation."""
    graph = case.graph()  # type: ignore[attr-defined]
    if not graph.is_square:
        return
    torch.manual_seed(0)
    net = gw.nn.GAT(5, 6, 4, heads=heads, out_heads=2, num_layers=2)
    x = torch.randn(graph.num_nodes, 5)
    with gw.config(target="joining"):
        got = step(net, graph, x)
    with gw.config(target="reference", opt_level=0):
        wanted = step(net.double(), graph, x.double())
    for mine, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine.double(), other, rtol=2e-5, atol=2e-5)


def test_what_is_joined() -> None:
    """Two layers are 17 calls, reshapes aside; a target that does not ask has more."""
    counts = {}
    for target in ("joining", "reference"):
        net = gw.nn.GAT(5, 6, 4, heads=2, num_layers=2)
        with gw.config(target=target):
            step(net, small(), torch.randn(12, 5))
        counts[target] = [name for name in kernels(net) if name != "reshape"]
    joined, apart = counts["joining"], counts["reference"]
    assert joined.count("head_scores") == joined.count("head_sums") == 2
    assert not {"einsum", "col_sum", "add"} & set(joined)
    assert len(joined) == 17  # that of the rows' gradient is one more
    assert "head_scores" not in apart and apart.count("einsum") == 12 and apart.count("col_sum") == 2


def test_an_epilogue_of_elements_takes_the_bias() -> None:
    net = gw.nn.GAT(5, 6, 4, heads=2, num_layers=2)
    with gw.config(target="joining"):
        step(net, small(), torch.randn(12, 5))
    (plan,) = net._function.plans()
    (nest,) = [call for call in plan.forward if call.kernel == "row_nest"]
    assert [value.op.name for value in nest.body] == ["BIAS", "EWISE"]


@pytest.mark.parametrize("net", [gw.nn.CGAT(5, 6, 4, heads=2), gw.nn.GAT(5, 6, 4, heads=2, v2=True)])
def test_other_attentions(net: torch.nn.Module) -> None:
    """Whose scores have no vector for each end."""
    x, graph = torch.randn(12, 5), small()
    with gw.config(target="joining"):
        got = step(net, graph, x)
    with gw.config(target="reference", opt_level=0):
        wanted = step(net.double(), graph, x.double())
    for mine, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine.double(), other, rtol=2e-5, atol=2e-5)


def test_blocks_have_other_rows_at_their_ends() -> None:
    """Scores of destinations are of the first rows; what reaches them is padded, and is not the kernel's to add."""
    graph, x = small(), torch.randn(12, 5)
    batch = gw.sampling.NeighborSampler(graph, [3, 3]).sample(torch.arange(4))
    net = gw.nn.GAT(5, 6, 4, heads=2, num_layers=2)
    with gw.config(target="joining"):
        got = step(net, batch.blocks, x[batch.n_id])
    with gw.config(target="reference", opt_level=0):
        wanted = step(net.double(), batch.blocks, x[batch.n_id].double())
    for mine, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine.double(), other, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 2.0])
def test_the_slope_of_elu_follows_from_its_result(alpha: float) -> None:
    """The result is positive exactly where the operand is, down to the smallest numbers and at both zeros."""
    edge = [0.0, -0.0, 1e-45, -1e-45, 1e-38, -1e-38, 100.0, -100.0, torch.inf, -torch.inf, torch.nan]
    x = torch.tensor(edge)
    y = FUNCTIONS["elu"].apply(x, alpha=alpha)
    assert torch.equal(y > 0, x > 0)


def test_a_negative_elu_goes_by_its_operand() -> None:
    graph, x = small(), torch.randn(12, 3, dtype=torch.float64)

    def message(edges: object) -> dict[str, Tensor]:
        return {"m": torch.nn.functional.elu(edges.src["h"], alpha=-0.5)}  # type: ignore[attr-defined]

    def reduce(nodes: object) -> dict[str, Tensor]:
        return {"h": nodes.mailbox["m"].sum(1)}  # type: ignore[attr-defined]

    leaf = x.clone().requires_grad_()
    gw.update_all(graph, message, reduce, ndata={"h": leaf})["h"].square().sum().backward()
    plain = x.clone().requires_grad_()
    src, dst = graph.edges()
    rows = torch.nn.functional.elu(plain, alpha=-0.5)[src]
    torch.zeros(12, 3, dtype=torch.float64).index_add(0, dst, rows).square().sum().backward()
    torch.testing.assert_close(leaf.grad, plain.grad)
