"""Second and third derivatives of compiled programs: torch's own through ``opt_level=0``, and finite differences."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from nn.models import IN, OUT, UserGCN, features, make, random_graph
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from zoo import ZOO, random_edges

from graphweft import config
from graphweft._errors import FallbackWarning, GraphWeftError
from graphweft.graph.graph import Graph
from graphweft.nn import CGAT, GAT, GCN, HGT, RGCN, SAGE
from graphweft.nn.message_passing import update_all
from graphweft.nn.napa import neighbor_apply, pull
from graphweft.sample.neighbor import NeighborSampler

Forward = Callable[[Tensor], Tensor]


def _graph(name: str) -> Graph:
    return Graph(ZOO[name].src, ZOO[name].dst, num_nodes=ZOO[name].num_nodes)


def _rows(graph: Graph, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(graph.num_src, IN, dtype=torch.float64, generator=generator).requires_grad_()


def derivatives(forward: Forward, leaves: Sequence[Tensor], orders: int = 2) -> list[Tensor]:
    """Of a loss of the output; from the second on of the gradients before and of the loss together."""
    loss, out = torch.zeros((), dtype=leaves[0].dtype), forward(leaves[0])
    loss = (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum() + out.square().sum()
    found: list[Tensor] = []
    for order in range(orders):
        last = order + 1 == orders
        got = torch.autograd.grad(loss, leaves, create_graph=not last, retain_graph=True, allow_unused=True)
        got = tuple(torch.zeros_like(x) if g is None else g for g, x in zip(got, leaves, strict=True))
        found += [g.detach() for g in got]
        loss = loss + sum((g - 0.3).square().sum() for g in got)
    return found


def check(forward: Forward, leaves: Sequence[Tensor], orders: int = 2, tolerance: float = 1e-10) -> None:
    found = derivatives(forward, leaves, orders)
    with config(opt_level=0):
        expected = derivatives(forward, leaves, orders)
    for at in range(0, len(found), len(leaves)):  # order by order: sums cancel below the largest
        top = max(float(x.abs().max()) for x in expected[at : at + len(leaves)] if x.numel())
        for mine, x in zip(found[at : at + len(leaves)], expected[at : at + len(leaves)], strict=True):
            torch.testing.assert_close(mine, x, rtol=0, atol=tolerance * max(top, 1.0))


@pytest.mark.parametrize("graph", ["isolated", "multi_edges"])
@pytest.mark.parametrize("name", ["gcn", "sage", "sage_max", "gin", "gat", "gatv2", "user_gcn"])
def test_models(name: str, graph: str) -> None:
    model, given = make(name).double(), _graph(graph)
    check(lambda x: model(given, x), [_rows(given), *model.parameters()])


@pytest.mark.parametrize("name", ["sage", "gin"])
def test_third_derivatives(name: str) -> None:
    model, graph = make(name).double(), _graph("random")
    check(lambda x: model(graph, x), [_rows(graph)], orders=3)


@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_norms_and_residuals(norm: str) -> None:
    torch.manual_seed(0)
    model, graph = GCN(IN, 8, 8, num_layers=3, norm=norm, residual=True).double(), _graph("random")
    check(lambda x: model(graph, x), [_rows(graph), *model.parameters()])


def test_typed_models() -> None:
    graph = Graph.hetero(
        {("a", "to", "b"): ([0, 1, 2, 2], [0, 0, 1, 1]), ("b", "by", "a"): ([0, 1, 1], [2, 0, 1])}, {"a": 3, "b": 2}
    )
    torch.manual_seed(0)
    rgcn = RGCN(IN, 8, OUT, num_relations=2, num_bases=2).double()
    check(lambda x: rgcn(graph, x), [_rows(graph), *rgcn.parameters()])
    hgt = HGT(IN, 8, OUT, num_layers=1, num_node_types=2, num_relations=2, heads=2).double()
    check(lambda x: hgt(graph, x), [_rows(graph), *hgt.parameters()])


def test_blocks_and_listed_rows() -> None:
    model, graph = make("sage").double(), _graph("random")
    blocks = NeighborSampler(graph, [3, 3]).sample(torch.tensor([0, 5, 7]), seed=1, epoch=0).blocks
    check(lambda x: model(blocks, x), [_rows(blocks[0]), *model.parameters()])
    check(lambda x: model(graph, x, torch.tensor([3, 1, 9])), [_rows(graph), *model.parameters()])


USER: dict[str, tuple[Any, Any]] = {
    "distance": (
        lambda e: {"m": (-(e.src["h"] - e.dst["h"]).square().sum(-1, keepdim=True)).exp() * e.src["h"]},
        lambda n: {"h": n.mailbox["m"].sum(1)},
    ),
    "softmax": (
        lambda e: {"s": (e.src["h"] * e.dst["h"]).sum(-1, keepdim=True), "m": functional.silu(e.src["h"])},
        lambda n: {"h": (torch.softmax(n.mailbox["s"], 1) * n.mailbox["m"]).sum(1)},
    ),
    "length": (  # its slope is infinite for nodes without in-edges, which are left out
        lambda e: {"m": e.src["h"] * e.dst["h"]},
        lambda n: {"h": n.mailbox["m"].square().sum(1).sqrt()},
    ),
    "moments": (
        lambda e: {"m": functional.gelu(e.src["h"]) * e.dst["h"]},
        lambda n: {"h": torch.cat([n.mailbox["m"].var(1, unbiased=False), n.mailbox["m"].amax(1)], -1)},
    ),
}


def _call(name: str, graph: Graph, x: Any) -> Tensor:
    return update_all(graph, *USER[name], ndata={"h": x})["h"]


@pytest.mark.parametrize("name", USER)
def test_user_functions_square_and_bipartite(name: str) -> None:
    square, two = _graph("isolated"), Graph([0, 1, 2, 3, 3, 0], [0, 1, 1, 2, 0, 2], num_nodes=(4, 3))
    check(lambda x: _call(name, square, x), [_rows(square)])
    other = _rows(two, 3)[:3].detach().requires_grad_()
    check(lambda x: _call(name, two, (x, other)), [_rows(two), other])


@pytest.mark.parametrize("mode", ["mul", "concat"])
def test_edge_values_that_wait(mode: str) -> None:
    graph = _graph("multi_edges")
    weight = torch.linspace(-1, 1, 2 * IN * IN, dtype=torch.float64).view(2 * IN, IN).requires_grad_()

    def forward(x: Tensor) -> Tensor:
        edge = neighbor_apply(graph, x, mode, **({"weight": weight} if mode == "concat" else {}))
        return pull(graph, x, edge, "softmax") + edge.square().sum()  # joined with its reader, and read

    check(forward, [_rows(graph), weight] if mode == "concat" else [_rows(graph)])


@pytest.mark.parametrize("model", [GCN, SAGE, GAT, CGAT])
def test_dropout_repeats_its_masks(model: Callable[..., nn.Module]) -> None:
    torch.manual_seed(0)
    made = model(3, 4, 2, dropout=0.4, **({"heads": 2} if model in (GAT, CGAT) else {})).double().train()
    graph, x = Graph([0, 1, 2, 0, 3, 3], [1, 2, 0, 2, 1, 0]), torch.randn(4, 3, dtype=torch.float64)

    def forward(x: Tensor) -> Tensor:
        torch.manual_seed(3)
        out: Tensor = made(graph, x)
        return out

    assert torch.autograd.gradgradcheck(forward, x.requires_grad_())


def test_every_way_of_asking() -> None:
    graph, model = random_graph(), make("gcn").double()
    x = features().double().requires_grad_()

    def loss(x: Tensor) -> Tensor:
        energy = model(graph, x).square().sum()
        (force,) = torch.autograd.grad(energy, x, create_graph=True)
        return energy + force.square().sum()

    with config(opt_level=0):
        (expected,) = torch.autograd.grad(loss(x), x)
        curvature = torch.autograd.functional.hessian(lambda y: model(graph, y).square().sum(), x)
    torch.testing.assert_close(torch.autograd.grad(loss(x), x)[0], expected)
    loss(x).backward(inputs=[x])
    torch.testing.assert_close(x.grad, expected)
    x.grad = None
    loss(x).backward()
    torch.testing.assert_close(x.grad, expected)
    for vectorize in (False, True):
        found = torch.autograd.functional.hessian(
            lambda y: model(graph, y).square().sum(), x.detach(), vectorize=vectorize
        )
        torch.testing.assert_close(found, curvature)


def test_batches_of_gradients_stay_in_the_graph() -> None:
    graph, model = _graph("multi_edges"), make("gcn").double()
    x = _rows(graph)

    def slope() -> Tensor:
        jacobian = torch.autograd.functional.jacobian(
            lambda y: model(graph, y)[0], x, create_graph=True, strategy="reverse-mode", vectorize=True
        )
        return torch.autograd.grad(jacobian.square().sum(), x)[0]  # type: ignore[union-attr]

    with config(opt_level=0):
        expected = slope()
    torch.testing.assert_close(slope(), expected)


def test_an_inner_step_of_meta_learning() -> None:
    graph, model = random_graph(), make("user_gcn").double()
    x, weights = features().double(), dict(model.named_parameters())

    def outer() -> tuple[Tensor, ...]:
        fast = dict(weights)
        for _ in range(2):
            inner = functional_call(model, fast, (graph, x)).square().mean()
            slopes = torch.autograd.grad(inner, list(fast.values()), create_graph=True)
            fast = {name: w - 0.1 * g for (name, w), g in zip(fast.items(), slopes, strict=True)}
        return torch.autograd.grad(
            (functional_call(model, fast, (graph, x)) - 1).square().mean(), list(weights.values())
        )

    with config(opt_level=0):
        expected = outer()
    for mine, other in zip(outer(), expected, strict=True):
        torch.testing.assert_close(mine, other)


def test_generated_kernels() -> None:
    drawn = random_edges(1500, 24_000, seed=3)
    graph = Graph(drawn.src, drawn.dst, num_nodes=1500)
    layer = UserGCN(48, 16)
    layer.message = lambda e: {"m": torch.tanh(layer.linear(e.src["h"]) * layer.linear(e.dst["h"]))}  # type: ignore[method-assign]
    x = 0.3 * torch.randn(1500, 48, generator=torch.Generator().manual_seed(0))

    def second(x: Tensor) -> Tensor:
        x = x.requires_grad_()
        (slope,) = torch.autograd.grad(layer(graph, x).square().sum(), x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), x)[0]

    found = second(x.clone())
    layer.double()
    with config(opt_level=0):
        exact = second(x.double())
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-5 * float(exact.abs().max()))


def test_first_derivatives_keep_their_bits() -> None:
    graph, model, x = random_graph(), make("gat"), features().requires_grad_()
    plain = torch.autograd.grad(model(graph, x).square().sum(), x)[0]
    again = torch.autograd.grad(model(graph, x).square().sum(), x, create_graph=True)[0]
    assert torch.equal(plain, again.detach()) and not plain.requires_grad and again.requires_grad


def test_what_has_no_rule_is_right_and_told_where_it_is_slow() -> None:
    model, graph = make("cgat").double(), _graph("random")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(lambda x: model(graph, x), [_rows(graph)])
    drawn = random_edges(300, 9000, seed=1)
    large = Graph(drawn.src, drawn.dst, num_nodes=300)
    single, x = make("cgat"), torch.randn(300, IN, requires_grad=True)
    (slope,) = torch.autograd.grad(single(large, x).square().sum(), x, create_graph=True)
    with pytest.warns(FallbackWarning, match="second derivative.*edge_margin_grad has no gradient rule"):
        torch.autograd.grad(slope.square().sum(), x)


def test_inputs_that_changed_meanwhile_are_refused() -> None:
    graph, model, x = random_graph(), make("gcn"), features()
    for _ in range(3):  # from then on an aggregate of x is at hand, and x itself is not read
        slopes = torch.autograd.grad(model(graph, x).square().sum(), list(model.parameters()), create_graph=True)
    x.mul_(2)
    with pytest.raises((GraphWeftError, RuntimeError), match=r"before its second derivative|by an inplace"):
        torch.autograd.grad(sum(g.square().sum() for g in slopes), list(model.parameters()))
