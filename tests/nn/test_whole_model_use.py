"""Every model, built in and user-written, in the ways torch modules are used: values and gradients as when called."""

from __future__ import annotations

import copy
import io
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from nn.models import BUILT_IN, MODELS, features, make, random_graph
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from graphweft._config import config
from graphweft.nn import user_call
from graphweft.runtime import build

# torch's own tracer asks for the gradient of tensors that are no leaves
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")

every_model = pytest.mark.parametrize("name", MODELS)


def step(model: Any, graph: Any, x: Tensor, module: nn.Module | None = None) -> list[Tensor]:
    """Output, gradients of parameters, gradient of x."""
    owner = model if module is None else module
    owner.zero_grad()
    leaf = x.detach().clone().requires_grad_()
    out = model(graph, leaf)
    (out.float() * torch.linspace(-1, 1, out.shape[1])).sum().backward()
    assert leaf.grad is not None
    return [out.detach(), *(p.grad.clone() for p in owner.parameters()), leaf.grad]


def agree(got: list[Tensor], expected: list[Tensor], tolerance: float = 1e-4) -> None:
    for mine, theirs in zip(got, expected, strict=True):
        scale = max(1.0, float(theirs.abs().max())) if theirs.numel() else 1.0
        torch.testing.assert_close(mine.float(), theirs.float(), rtol=tolerance, atol=tolerance * scale)


def oracle(name: str, graph: Any, x: Tensor) -> list[Tensor]:
    with config(opt_level=0):
        return step(make(name).double(), graph, x.double())


@every_model
def test_plain_call(name: str) -> None:
    graph, x = random_graph(), features()
    model, expected = make(name), oracle(name, graph, x)
    for _ in range(3):
        agree(step(model, graph, x), expected)


@pytest.mark.parametrize("dynamic", [None, True])
@every_model
def test_torch_compile(name: str, dynamic: bool | None) -> None:
    torch.compiler.reset()
    graph, x = random_graph(), features()
    model, expected = make(name), oracle(name, graph, x)
    compiled = torch.compile(model, backend="aot_eager", dynamic=dynamic)
    for _ in range(2):
        agree(step(compiled, graph, x, model), expected)
    other, y = random_graph(7, 50, 260), features(7, 50)
    agree(step(compiled, other, y, model), oracle(name, other, y))
    torch.compiler.reset()


@pytest.mark.parametrize("name", ["gat", "user_gat"])
def test_torch_compile_of_code_around_a_layer(name: str) -> None:
    torch.compiler.reset()
    graph, x = random_graph(), features()
    model = make(name)

    def around(graph: Any, x: Tensor) -> Tensor:
        return torch.tanh(model(graph, x * 2.0)) + 1.0

    agree(step(torch.compile(around, backend="aot_eager"), graph, x, model), step(around, graph, x, model), 1e-5)
    torch.compiler.reset()


@every_model
def test_autocast(name: str) -> None:
    """Sums are taken in float32 whatever is cast around them; a backward pass inside the context works as outside."""
    graph, x = random_graph(), features()
    model, expected = make(name), oracle(name, graph, x)
    before = nn.Linear(6, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        agree(step(model, graph, x), expected, 6e-2)
        low = before(x)
        assert low.dtype == torch.bfloat16
        model.zero_grad()
        model(graph, low).float().square().mean().backward()
    assert before.weight.grad is not None and bool(before.weight.grad.isfinite().all())
    agree(step(model, graph, x), expected)


@every_model
def test_functional_call(name: str) -> None:
    graph, x = random_graph(), features()
    model, other = make(name), make(name, seed=5)
    given = {n: p.detach().clone().requires_grad_() for n, p in other.named_parameters()}
    out = torch.func.functional_call(model, given, (graph, x))
    torch.testing.assert_close(out, other(graph, x), rtol=1e-4, atol=1e-5)
    out.square().sum().backward()
    other(graph, x).square().sum().backward()
    agree([given[n].grad for n, _ in other.named_parameters()], [p.grad for p in other.parameters()])
    assert all(p.grad is None for p in model.parameters())


@every_model
def test_torch_func_grad(name: str) -> None:
    graph, x = random_graph(), features()
    model = make(name)
    given = {n: p.detach() for n, p in model.named_parameters()}
    found = torch.func.grad(lambda p: torch.func.functional_call(model, p, (graph, x)).square().sum())(given)
    model(graph, x).square().sum().backward()  # after it, so that the graph's forms were made within the transform
    agree([found[n] for n, _ in model.named_parameters()], [p.grad for p in model.parameters()], 1e-3)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own forward mode has scripts
@every_model
def test_torch_func_jvp(name: str) -> None:
    graph, x = random_graph(), features()
    model, way = make(name), features(3)
    _, found = torch.func.jvp(lambda x: model(graph, x), (x,), (way,))
    _, wanted = torch.autograd.functional.jvp(lambda x: model(graph, x), x, way)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)


@every_model
def test_state_dict_copies_and_pickles(name: str) -> None:
    graph, x = random_graph(), features()
    model = make(name)
    expected = step(model, graph, x)
    loaded = make(name, seed=9)
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    loaded.load_state_dict(torch.load(buffer, weights_only=True))
    for twin in (loaded, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        agree(step(twin, graph, x), expected, 1e-6)
        with torch.no_grad():
            next(iter(twin.parameters())).add_(1.0)
        agree(step(model, graph, x), expected, 1e-6)  # nothing is shared


@every_model
def test_new_graphs_compile_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(name)
    graphs = [(random_graph(seed, 40, 200 + seed), features(seed)) for seed in range(6)]
    for graph, x in graphs[:2]:
        step(model, graph, x)
    plans = sum(len(f.plans()) for f in _functions(model))
    calls = len(user_call._CALLS)
    monkeypatch.setattr(build, "_compile", lambda *_: pytest.fail("a compiler was called"))
    for graph, x in graphs:
        agree(step(model, graph, x), oracle(name, graph, x))
    assert sum(len(f.plans()) for f in _functions(model)) == plans
    assert len(user_call._CALLS) == calls


def _functions(model: nn.Module) -> list[Any]:
    """The compiled functions that ``model`` runs."""
    if hasattr(model, "function"):
        return [model.function]
    return [
        form
        for call in user_call._CALLS.values()
        if isinstance(call, user_call.CompiledCall)
        for form in call._forms.values()
    ]


@every_model
def test_no_grad_and_inference_mode(name: str) -> None:
    graph, x = random_graph(), features()
    model = make(name)
    expected = step(model, graph, x)
    with torch.no_grad():
        out = model(graph, x)
        assert not out.requires_grad
        torch.testing.assert_close(out, expected[0], rtol=1e-4, atol=1e-5)
    with torch.inference_mode():
        inside = features()  # an inference tensor
        for _ in range(2):
            torch.testing.assert_close(model(graph, inside), expected[0], rtol=1e-4, atol=1e-5)
    agree(step(model, graph, x), expected)


@every_model
def test_frozen_parameters(name: str) -> None:
    graph, x = random_graph(), features()
    model = make(name)
    expected = step(model, graph, x)
    frozen = [p for at, p in enumerate(model.parameters()) if at % 2 == 0]
    for p in frozen:
        p.requires_grad_(False)
    model.zero_grad()
    model(graph, x).mul(torch.linspace(-1, 1, 4)).sum().backward()
    for p, full in zip(model.parameters(), expected[1:], strict=False):
        assert (p.grad is None) == (not p.requires_grad)
        if p.grad is not None:
            agree([p.grad], [full])
    for p in model.parameters():
        p.requires_grad_(False)
    assert not model(graph, x).requires_grad


@every_model
def test_a_model_used_twice_adds_its_gradients(name: str) -> None:
    graph, other, x, y = random_graph(), random_graph(3, 50, 210), features(), features(3, 50)
    model = make(name)
    first, second = step(model, graph, x), step(model, other, y)
    model.zero_grad()
    weight = torch.linspace(-1, 1, 4)
    total = (model(graph, x) * weight).sum() + (model(other, y) * weight).sum()
    total.backward()
    agree([p.grad for p in model.parameters()], [a + b for a, b in zip(first[1:-1], second[1:-1], strict=True)])


@pytest.mark.parametrize("reentrant", [False, True])
@every_model
def test_activation_checkpointing(name: str, reentrant: bool) -> None:
    graph, x = random_graph(), features()
    model = make(name)
    expected = step(model, graph, x)

    def checkpointed(graph: Any, x: Tensor) -> Tensor:
        return checkpoint(model, graph, x, use_reentrant=reentrant)

    for _ in range(3):
        agree(step(checkpointed, graph, x, model), expected)
    if not reentrant:  # features without a gradient count as constant from their second call on
        for _ in range(3):
            model.zero_grad()
            checkpointed(graph, x).mul(torch.linspace(-1, 1, 4)).sum().backward()
            agree([p.grad for p in model.parameters()], expected[1:-1])


@every_model
def test_threads_share_a_model(name: str) -> None:
    model = make(name)
    given = [(random_graph(seed, 40 + seed, 220), features(seed, 40 + seed)) for seed in range(4)]
    expected = [model(graph, x).detach() for graph, x in given]
    gradients = [torch.autograd.grad(model(g, x).sum(), list(model.parameters())) for g, x in given]

    def work(at: int) -> bool:
        graph, x = given[at % 4]
        out = model(graph, x)
        found = torch.autograd.grad(out.sum(), list(model.parameters()))
        torch.testing.assert_close(out.detach(), expected[at % 4], rtol=1e-4, atol=1e-5)
        agree(list(found), list(gradients[at % 4]))
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(40)))


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_second_derivative_equals_the_uncompiled_one(name: str) -> None:
    graph, x = random_graph(), features().double().requires_grad_()
    model = make(name).double()
    first = torch.autograd.grad(model(graph, x).square().sum(), x, create_graph=True)[0]
    second = torch.autograd.grad(first.square().sum(), x)[0]
    with config(opt_level=0):
        uncompiled = torch.autograd.grad(model(graph, x).square().sum(), x, create_graph=True)[0]
        torch.testing.assert_close(first.detach(), uncompiled.detach(), rtol=1e-6, atol=1e-6)
        expected = torch.autograd.grad(uncompiled.square().sum(), x)[0]
    assert float(expected.abs().max()) > 0
    torch.testing.assert_close(second, expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))
