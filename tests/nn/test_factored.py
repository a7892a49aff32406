"""Products that plain torch makes right before a sum go behind it where that moves less; all means what torch means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import graphweft as gw

ROWS, WIDTH, OUT = 9_000, 4, 48


class Attention(nn.Module):
    """Attention as users write it: the product in ``forward``, the rest in functions."""

    def __init__(self, heads: int = 1, bias: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.heads = nn.Linear(WIDTH, heads * OUT, bias=bias), heads
        self.src, self.dst = (nn.Parameter(torch.randn(heads, OUT) / 5) for _ in range(2))

    def message(self, edges: Any) -> dict[str, Tensor]:
        z = edges.src["z"]
        return {"z": z, "e": functional.leaky_relu((z * self.src).sum(-1) + (edges.dst["z"] * self.dst).sum(-1), 0.2)}

    def reduce(self, nodes: Any) -> dict[str, Tensor]:
        return {"h": (torch.softmax(nodes.mailbox["e"], 1).unsqueeze(-1) * nodes.mailbox["z"]).sum(1)}

    def product(self, x: Tensor) -> Tensor:
        return self.linear(x)

    def forward(self, graph: gw.Graph, x: Tensor) -> Tensor:
        return self.summed(graph, self.rows(x))

    def rows(self, x: Tensor) -> Tensor:
        return self.product(x).view(x.shape[0], self.heads, -1)

    def summed(self, graph: gw.Graph, z: Tensor) -> Tensor:
        return gw.update_all(graph, self.message, self.reduce, ndata={"z": z})["h"].flatten(1)


class ByMatrix(Attention):
    """The weight as a parameter of its own."""

    def product(self, x: Tensor) -> Tensor:
        return x @ self.linear.weight.t()


class Tutorial(Attention):
    """A score of both ends side by side, one head."""

    def message(self, edges: Any) -> dict[str, Tensor]:
        ends = torch.cat([edges.src["z"], edges.dst["z"]], 1)
        return {"z": edges.src["z"], "e": functional.leaky_relu(ends @ torch.cat([self.src, self.dst], 1).t())}

    def reduce(self, nodes: Any) -> dict[str, Tensor]:
        return {"h": (torch.softmax(nodes.mailbox["e"], 1) * nodes.mailbox["z"]).sum(1)}

    def rows(self, x: Tensor) -> Tensor:
        return self.product(x)


class ScoresOutside(Attention):
    """Scores in plain torch: the product is used twice."""

    def message(self, edges: Any) -> dict[str, Tensor]:
        return {"z": edges.src["z"], "e": functional.leaky_relu(edges.src["l"] + edges.dst["r"], 0.2)}

    def forward(self, graph: gw.Graph, x: Tensor) -> Tensor:
        z = self.product(x).view(x.shape[0], self.heads, -1)
        fields = {"z": z, "l": (z * self.src).sum(-1), "r": (z * self.dst).sum(-1)}
        return gw.update_all(graph, self.message, self.reduce, ndata=fields)["h"].flatten(1)


class Mean(Attention):
    """No attention."""

    def message(self, edges: Any) -> dict[str, Tensor]:
        return {"z": edges.src["z"]}

    def reduce(self, nodes: Any) -> dict[str, Tensor]:
        return {"h": nodes.mailbox["z"].mean(1)}

    def rows(self, x: Tensor) -> Tensor:
        return self.product(x)


class InModule(gw.MessagePassing):
    """The same inside of a message-passing module, where products run on the kernels."""

    def __init__(self, layer: Attention) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, graph: gw.Graph, x: Tensor) -> Tensor:
        return self.layer(graph, x)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "one head": lambda: Attention(),
    "two heads": lambda: Attention(2),
    "with a bias": lambda: Attention(bias=True),
    "two heads with a bias": lambda: Attention(2, bias=True),
    "a matrix": lambda: ByMatrix(),
    "tutorial": lambda: Tutorial(),
    "scores outside": lambda: ScoresOutside(),
    "mean": lambda: Mean(),
    "in a module": lambda: InModule(Attention()),
    "in a module with a bias": lambda: InModule(Attention(bias=True)),
}


def graph() -> gw.Graph:
    """Random edges; nine nodes receive none, one receives many."""
    generator = torch.Generator().manual_seed(3)
    src, dst = torch.randint(0, ROWS, (2, 40_000), generator=generator)
    return gw.Graph(src, torch.where(torch.arange(40_000) < 500, 7, dst.clamp(max=ROWS - 10)), num_nodes=ROWS)


def features(inner: bool = True) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(ROWS, WIDTH, requires_grad=inner)


def is_factored(out: Tensor) -> bool:
    """Whether ``out`` was computed from the product's factors."""
    node = out.grad_fn
    while node is not None and node.name().startswith(("View", "Mul", "Add", "Relu")):
        node = node.next_functions[0][0]
    return node is not None and node.name() == "_RoutedBackward"


def slopes(layer: nn.Module, out: Tensor, x: Tensor) -> dict[str, Tensor]:
    """Gradients by all leaves of a fixed weighted sum."""
    named = {"x": x, **dict(layer.named_parameters())}
    for leaf in named.values():
        leaf.grad = None
    torch.manual_seed(2)
    out.backward(torch.randn(out.shape, dtype=torch.float64).to(out.dtype))
    return {name: leaf.grad.clone() for name, leaf in named.items() if leaf.grad is not None}


def oracle(layer: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Result and gradients in double precision on the reference executor."""
    double, x64 = layer.double(), x.detach().double().requires_grad_(x.requires_grad)
    with gw.config(opt_level=0):
        out = double(graph(), x64)
    found = out.detach(), slopes(double, out, x64)
    layer.float()
    return found


def check(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name].double(), gradient, rtol=1e-4, atol=1e-5 * float(gradient.abs().max()))


@pytest.mark.parametrize(
    ("name", "inner"), [*((name, True) for name in LAYERS), ("one head", False), ("in a module", False)]
)
def test_results_and_gradients_are_those_of_the_functions(name: str, inner: bool) -> None:
    """``inner``: features have gradients, as inside of a model."""
    layer, x = LAYERS[name](), features(inner)
    expected, theirs = oracle(layer, x)
    out = layer(graph(), x)
    assert is_factored(out)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    check(slopes(layer, out, x), theirs)


def test_bits_are_those_of_any_number_of_threads() -> None:
    layer, x, found = Attention(bias=True), features(), []
    layer.product = lambda rows: torch.nn.functional.linear(rows, layer.linear.weight, layer.linear.bias)
    before = torch.get_num_threads()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        out = layer(graph(), x)
        found.append([out.detach(), *slopes(layer, out, x).values()])
    torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(found[0], other, strict=True))


def test_a_product_that_somebody_keeps_gets_its_gradient() -> None:
    """By name, by ``retain_grad`` and by a hook, asked for after the call."""
    layer, x = Attention(2, bias=True), features()
    _, theirs = oracle(layer, x)
    z = layer.rows(x)
    out = layer.summed(graph(), z)
    assert is_factored(out)
    with gw.config(opt_level=0):
        (wanted,) = torch.autograd.grad(layer.summed(graph(), z).sum(), z, retain_graph=True)
    (found,) = torch.autograd.grad(out.sum(), z)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    z, told = layer.rows(x), list[Tensor]()
    out = layer.summed(graph(), z)
    z.retain_grad()
    z.register_hook(told.append)
    check(slopes(layer, out, x), theirs)
    assert z.grad is not None
    assert torch.equal(z.grad, told[0])


@pytest.mark.parametrize("keeps", [False, True])
def test_gradients_by_named_leaves(keeps: bool) -> None:
    """``torch.autograd.grad`` by parameters, whether somebody could name the product or not."""
    layer, x = Attention(), features()
    _, theirs = oracle(layer, x)
    z = layer.rows(x)
    out = layer.summed(graph(), z)
    if not keeps:
        del z
    torch.manual_seed(2)
    by = torch.randn(out.shape, dtype=torch.float64).float()
    named = {"x": x, **dict(layer.named_parameters())}
    found = torch.autograd.grad(out, list(named.values()), by)
    check(dict(zip(named, found, strict=True)), theirs)


@pytest.mark.parametrize("keeps", [False, True])
def test_gradients_can_be_differentiated(keeps: bool) -> None:
    results = []
    for level in (3, 0):
        layer, x = Mean(), features()
        with gw.config(opt_level=level):
            z = layer.rows(x)
            out = layer.summed(graph(), z)
            if not keeps:
                del z
            (first,) = torch.autograd.grad(out.tanh().sum(), x, create_graph=True)
            first.square().sum().backward()
        results.append([first.detach(), x.grad, layer.linear.weight.grad])
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4 * float(theirs.abs().max()))


def test_a_second_backward_pass_gives_the_same() -> None:
    layer, x = Attention(), features()
    out = layer(graph(), x)
    out.sum().backward(retain_graph=True)
    first = x.grad.clone()
    out.sum().backward()
    torch.testing.assert_close(x.grad, 2 * first, rtol=0, atol=0)


def test_the_result_may_be_written_into() -> None:
    layer, x = Mean(), features()
    out = layer(graph(), x)
    assert is_factored(out)
    mine = slopes(layer, functional.relu(out.add_(1.0), inplace=True), x)
    theirs = slopes(layer, functional.relu(layer(graph(), x) + 1.0), x)
    check(mine, {name: gradient.double() for name, gradient in theirs.items()})


class Both(Mean):
    """Two fields of the same numbers."""

    def reduce(self, nodes: Any) -> dict[str, Tensor]:
        h = nodes.mailbox["z"].mean(1)
        return {"h": h, "again": h.unflatten(1, (2, OUT // 2))}


def test_what_is_written_into_one_field_reaches_no_other() -> None:
    layer, x = Both(), features()
    out = gw.update_all(graph(), layer.message, layer.reduce, ndata={"z": layer.rows(x)})
    assert is_factored(out["h"])
    before = out["again"].detach().clone()
    with torch.no_grad():
        out["h"].zero_()
    assert torch.equal(out["again"], before)


def test_results_that_gradients_read_are_guarded() -> None:
    """Torch refuses a backward pass over numbers that were overwritten, as for its own functions."""

    class Square(Mean):
        def reduce(self, nodes: Any) -> dict[str, Tensor]:
            h = nodes.mailbox["z"].mean(1)
            return {"h": h, "square": h * h}

    layer = Square()
    out = gw.update_all(graph(), layer.message, layer.reduce, ndata={"z": layer.rows(features())})
    with torch.no_grad():
        out["h"].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out["square"].sum().backward()


def test_a_product_written_into_after_the_call_changes_nothing() -> None:
    layer, x = Mean(), features()
    _, theirs = oracle(layer, x)
    z = layer.rows(x)
    out = layer.summed(graph(), z)
    assert is_factored(out)
    with torch.no_grad():
        z.zero_()
    check(slopes(layer, out, x), theirs)


def retained(z: Tensor) -> Tensor:
    z.retain_grad()
    return z


def hooked(z: Tensor) -> Tensor:
    z.register_hook(lambda gradient: 2 * gradient)
    return z


def written(z: Tensor) -> Tensor:
    with torch.no_grad():
        z.mul_(2.0)
    return z


@pytest.mark.parametrize("seen", [retained, hooked, written, lambda z: z + 1, lambda z: z.clone()])
def test_what_is_no_product_or_is_watched_runs_as_before(seen: Callable[[Tensor], Tensor]) -> None:
    """The reference executor is asked with the same operations on the product."""
    results = []
    for level in (3, 0):
        layer, x = Attention(), features()
        with gw.config(opt_level=level):
            out = layer.summed(graph(), seen(layer.rows(x)))
        assert not is_factored(out)
        results.append(slopes(layer, out, x))
    check(results[0], {name: gradient.double() for name, gradient in results[1].items()})


def test_hooks_of_the_linear_module_run() -> None:
    layer, x, linear = Attention(), features(), nn.Linear(WIDTH, OUT)
    told: list[Tensor] = []

    def run() -> Tensor:
        return layer.summed(graph(), linear(x).view(ROWS, 1, OUT))

    plain = run()
    assert is_factored(plain)
    expected = slopes(linear, plain, x)
    linear.register_full_backward_hook(lambda module, inputs, outputs: told.append(outputs[0]))
    out = run()
    assert not is_factored(out)
    check(slopes(linear, out, x), {name: gradient.double() for name, gradient in expected.items()})
    assert [t.shape for t in told] == [(ROWS, OUT)]


def test_where_nothing_is_gained_or_torch_does_otherwise_all_is_as_before() -> None:
    layer, x = Attention(), features()
    with torch.no_grad():
        assert layer(graph(), x).grad_fn is None
    with torch.autocast("cpu"):
        assert not is_factored(layer(graph(), x))
    with gw.config(forward_products=False):
        assert not is_factored(layer(graph(), x))
    assert not is_factored(layer.double()(graph(), x.detach().double()))
    layer.float()
    narrow = Attention(4)  # sums of all heads are wider than the product's
    narrow.linear = nn.Linear(WIDTH, 8, bias=False)
    narrow.src, narrow.dst = (nn.Parameter(torch.randn(4, 2)) for _ in range(2))
    assert not is_factored(narrow(graph(), x))
    out = checkpoint(layer, graph(), x, use_reentrant=False)
    _, theirs = oracle(layer, x)
    check(slopes(layer, out, x), theirs)


def test_explain_tells_where_the_product_is() -> None:
    text = str(gw.explain(Mean(), graph(), features()))
    assert "weight:node:z" in text
    assert "aggregate first" in text
