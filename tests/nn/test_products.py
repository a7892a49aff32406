"""Products by weights in the forward code of message-passing modules: the kernels' numbers, torch's meaning."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import graphweft as gw
from graphweft.nn import products
from graphweft.runtime import dense

ROWS, WIDTH, OUT = 9_000, 12, 7
Forward = Callable[[Any, Tensor], Tensor]


class Layer(gw.MessagePassing):
    """Mean of the in-neighbours after ``transform``."""

    def __init__(self, transform: Forward) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.plain = nn.Linear(WIDTH, OUT), nn.Linear(WIDTH, OUT, bias=False)
        self.weight = nn.Parameter(torch.randn(WIDTH, OUT) / 3)
        self.wide = nn.Parameter(torch.randn(2 * OUT, WIDTH) / 3)
        self.transform = transform

    def message(self, edges: Any) -> dict[str, Tensor]:
        return {"m": edges.src["z"]}

    def reduce(self, nodes: Any) -> dict[str, Tensor]:
        return {"h": nodes.mailbox["m"].mean(1)}

    def forward(self, graph: gw.Graph, x: Tensor) -> Tensor:
        return self.propagate(graph, ndata={"z": self.transform(self, x)})["h"]


FORMS: dict[str, Forward] = {
    "operator": lambda m, x: x @ m.weight,
    "matmul": lambda m, x: torch.matmul(x, m.weight),
    "method": lambda m, x: x.mm(m.weight),
    "linear": lambda m, x: m.linear(x),
    "linear without bias": lambda m, x: functional.linear(x, m.plain.weight),
    "transposed weight": lambda m, x: x @ m.wide[:OUT].t(),
    "every second row of a weight": lambda m, x: functional.linear(x, m.wide[::2]),
    "columns of the input": lambda m, x: x[:, 2:9] @ m.weight[2:9],
    "transposed input": lambda m, x: x.t().contiguous().t() @ m.weight,
    "two after another": lambda m, x: m.linear(x) @ m.weight[:OUT],
    "in place behind it": lambda m, x: (x @ m.weight).relu_(),
}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls of the kernel by forward code."""
    calls: list[str] = []
    kernel = dense.matmul

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(dense, name)

        def matmul(self, *args: Any, **kwargs: Any) -> Tensor:
            calls.append("matmul")
            return kernel(*args, **kwargs)

    monkeypatch.setattr(products, "dense", Counting())
    return calls


def ring(rows: int) -> gw.Graph:
    ends = torch.arange(rows)
    return gw.Graph(torch.cat([ends, ends]), torch.cat([ends.roll(1), ends.roll(5)]), num_nodes=rows)


def gradients(layer: nn.Module, result: Tensor, x: Tensor) -> dict[str, Tensor]:
    torch.manual_seed(1)
    result.backward(torch.randn(result.shape, dtype=torch.float64).to(result.dtype))
    named = {"x": x, **dict(layer.named_parameters())}
    return {name: t.grad for name, t in named.items() if t.grad is not None}


@pytest.mark.parametrize("form", FORMS)
def test_results_and_gradients_are_those_of_plain_torch(form: str, counted: list[str]) -> None:
    graph, layer = ring(ROWS), Layer(FORMS[form])
    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    out = layer(graph, x)
    assert counted
    assert type(out.grad_fn).__name__ == "RunPlanBackward"
    mine = gradients(layer, out, x)
    oracle, x64 = Layer(FORMS[form]).double(), x.detach().double().requires_grad_()
    with gw.config(opt_level=0):
        expected = oracle(graph, x64)
    theirs = gradients(oracle, expected, x64)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    assert mine.keys() == theirs.keys()
    for name, gradient in mine.items():
        torch.testing.assert_close(gradient.double(), theirs[name], rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize(
    ("rows", "dtype", "level"), [(100, torch.float32, 3), (ROWS, torch.float64, 3), (ROWS, torch.float32, 0)]
)
def test_what_is_small_or_of_another_dtype_is_left_alone(
    rows: int, dtype: torch.dtype, level: int, counted: list[str]
) -> None:
    layer = Layer(FORMS["linear"]).to(dtype)
    with gw.config(opt_level=level):
        layer(ring(rows), torch.ones(rows, WIDTH, dtype=dtype)).sum().backward()
    assert not counted


def test_a_setting_leaves_products_to_torch_and_explain_counts_them(counted: list[str]) -> None:
    layer, graph, x = Layer(FORMS["linear"]), ring(ROWS), torch.randn(ROWS, WIDTH)
    told = "products on the kernels of compiled programs (forward_products)"
    assert f"{told}: 1\n" in gw.explain(layer, graph, x) and not counted
    with gw.config(forward_products=False):
        assert told not in gw.explain(layer, graph, x)
        layer(graph, x).sum().backward()
    assert not counted
    layer(graph, x)
    assert counted == ["matmul"]


def test_products_elsewhere_are_left_alone(counted: list[str]) -> None:
    layer, x = Layer(FORMS["linear"]), torch.ones(ROWS, WIDTH)
    layer(ring(ROWS), x)
    before = len(counted)
    layer.linear(x)
    assert len(counted) == before

    class Inside(Layer):
        """Its product is in the function, where it is the compiler's."""

        def message(self, edges: Any) -> dict[str, Tensor]:
            return {"m": edges.src["z"] @ self.weight}

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Inside(lambda m, x: x)(ring(ROWS), x)
    assert len(counted) == before


def test_products_can_be_differentiated_twice() -> None:
    class Square(gw.MessagePassing):
        def forward(self, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
            return functional.linear(x, w, b).square().sum() / ROWS

    x, w, b = (torch.randn(size, requires_grad=True) for size in ((ROWS, 4), (3, 4), (3,)))
    first = torch.autograd.grad(Square()(x, w, b), [x, w, b], create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), [x, w, b])
    same = [t.detach().double().requires_grad_() for t in (x, w, b)]
    loss = functional.linear(*same).square().sum() / ROWS
    expected = torch.autograd.grad(loss, same, create_graph=True)
    expected = torch.autograd.grad(sum(g.square().sum() for g in expected), same)
    for mine, theirs in zip(second, expected, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated:DeprecationWarning")  # torch's, at forward mode
def test_hooks_autocast_and_transforms_see_what_they_do_in_torch() -> None:
    seen: list[tuple[int, ...]] = []

    def transform(m: Any, x: Tensor) -> Tensor:
        z = m.linear(x)
        z.retain_grad()
        z.register_hook(lambda g: seen.append(tuple(g.shape)))
        return z

    layer, x = Layer(transform), torch.randn(ROWS, WIDTH)
    layer(ring(ROWS), x).sum().backward()
    assert seen == [(ROWS, OUT)]

    class Transform(gw.MessagePassing):
        def forward(self, x: Tensor, w: Tensor) -> Tensor:
            return x @ w

    module, w = Transform(), torch.randn(WIDTH, OUT)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert module(x, w).dtype == torch.bfloat16
    found = torch.func.grad(lambda w: module(x, w).sum())(w)
    torch.testing.assert_close(found, x.sum(0)[:, None].expand(WIDTH, OUT), rtol=1e-4, atol=1e-3)
    batch = torch.func.vmap(module, (None, 0))(x, torch.stack([w, w]))
    assert batch.shape == (2, ROWS, OUT)
    _, slope = torch.func.jvp(lambda w: module(x, w), (w,), (w,))
    torch.testing.assert_close(slope, x @ w)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        module(x, w.t())


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    graph, layer, x = ring(ROWS), Layer(FORMS["linear"]), torch.randn(ROWS, WIDTH, requires_grad=True)
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            layer.zero_grad()
            x.grad = None
            out = layer(graph, x)
            found.append([out.detach(), *gradients(layer, out, x).values()])
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
