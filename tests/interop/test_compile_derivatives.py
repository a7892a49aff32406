"""``gw.compile`` on models that take derivatives in forward, set seeds, or hold infinities that no edge reads."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import graphweft as gw
from graphweft.frontend.source import is_user_file
from graphweft.nn.compiled import calls_of

Args = tuple[Any, ...]
Energy = Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]


def graph(seed: int, nodes: int = 30, edges: int = 120) -> tuple[Tensor, Tensor, Tensor]:
    """Features, positions and edges; the last three nodes have no edges."""
    made = torch.Generator().manual_seed(seed)
    x, pos = (torch.randn(nodes, width, generator=made, dtype=torch.float64) for width in (8, 3))
    return x, pos, torch.randint(0, nodes - 3, (2, edges), generator=made)


def gradients(module: nn.Module, *args: Any) -> list[Tensor]:
    """Results, and gradients of parameters and of floating arguments."""
    taken = [a.clone().requires_grad_() if a.is_floating_point() else a for a in args]
    results = module(*taken)
    results = results if isinstance(results, tuple) else (results,)
    weights = [torch.linspace(-1, 1, r.numel(), dtype=r.dtype).view(r.shape) for r in results]
    wanted = [*module.parameters(), *(t for t in taken if t.requires_grad)]
    total = torch.stack([(r * w).sum() for r, w in zip(results, weights, strict=True)]).sum()
    found = torch.autograd.grad(total, wanted, allow_unused=True)
    return [*results, *(torch.zeros(()).double() if g is None else g for g in found)]


def check(module: nn.Module, *calls: Args) -> nn.Module:
    """The compiled module agrees in all calls, each made twice, with the module that runs as it stands."""
    module = module.double()
    compiled = gw.compile(copy.deepcopy(module))
    for args in (*calls, *calls):
        for one, other in zip(gradients(module, *args), gradients(compiled, *args), strict=True):
            torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-10)
    return compiled


class Forces(nn.Module):
    """An energy of distances, and its derivative by positions."""

    def __init__(self, energy: Energy) -> None:
        super().__init__()
        self.lin, self.dist, self.out = nn.Linear(8, 6), nn.Linear(1, 6), nn.Linear(6, 1)
        self.energy = energy

    def forward(self, x: Tensor, pos: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        pos = pos.detach().requires_grad_(True)
        with torch.enable_grad():
            row, col = edge_index
            messages = self.energy(self, x[row], (pos[row] - pos[col]).square().sum(-1, keepdim=True), col)
            energy = self.out(torch.zeros(len(x), 6, dtype=x.dtype).index_add_(0, col, messages)).tanh()
            (force,) = torch.autograd.grad(energy.sum(), pos, create_graph=True)
        return energy, force


ENERGIES: dict[str, Energy] = {
    "tanh": lambda m, x, d, _: m.lin(x) * m.dist(d).tanh(),
    "silu": lambda m, x, d, _: functional.silu(m.lin(x) * m.dist(d)),
    "sqrt, exp": lambda m, x, d, _: m.lin(x).sigmoid() * m.dist(-(d + 0.1).sqrt()).exp(),
    "cutoff": lambda m, x, d, _: torch.where(d < 2, (-d).exp(), 0.0) * m.lin(x) * m.dist(d.rsqrt().clamp(max=2)),
    "softmax": lambda m, x, d, _: torch.softmax(m.dist(d), -1) * m.lin(x).relu(),
    # what the user's own code detaches has no gradient, also right behind the operation that made it
    "detached": lambda m, x, d, _: m.lin(x) * m.dist(d).tanh() * (1 + d.tanh().detach() + 0.1 * d.sqrt().data),
}


@pytest.mark.parametrize("name", ENERGIES)
def test_gradients_of_derivatives(name: str) -> None:
    """Results that operations keep for their backward pass (``tanh``, ``exp``) have gradients there, too."""
    torch.manual_seed(0)
    if name in ("sqrt, exp", "cutoff", "detached"):  # a root has no slope at the distance 0 of a loop
        graphs = [(x, pos, e[:, e[0] != e[1]]) for x, pos, e in (graph(0), graph(1, 20, 50))]
    else:
        graphs = [graph(0), graph(1, 20, 50)]
    compiled = check(Forces(ENERGIES[name]), *graphs)
    assert calls_of(compiled).last is not None


class AskedForces(nn.Module):
    """Forces of positions that may want a gradient themselves; ``how`` the code makes sure that they do."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.lin, self.dist, self.out, self.how = nn.Linear(8, 6), nn.Linear(1, 6), nn.Linear(6, 1), how

    def forward(self, x: Tensor, pos: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        if self.how == "asks" and not pos.requires_grad:
            pos = pos.detach().requires_grad_()
        elif self.how == "sets":
            pos.requires_grad_(True)
        elif self.how == "assigns":
            pos.requires_grad = True
        row, col = edge_index
        messages = self.lin(x)[row] * self.dist((pos[row] - pos[col]).square().sum(-1, keepdim=True)).tanh()
        energy = self.out(torch.zeros(len(x), 6, dtype=x.dtype).index_add_(0, col, messages)).tanh()
        return energy, torch.autograd.grad(energy.sum(), pos, create_graph=True)[0]


@pytest.mark.parametrize("how", ["asks", "sets", "assigns", "takes"])
def test_derivatives_by_arguments(how: str) -> None:
    """Stand-ins tell whether arguments want gradients, and code that makes them want some changes the arguments."""
    torch.manual_seed(0)
    compiled = check(AskedForces(how), graph(0), graph(1, 20, 50))
    assert calls_of(compiled).last is not None
    x, pos, edge_index = graph(0)
    if how == "takes":
        return
    first, second = compiled(x, pos, edge_index)
    plain = copy.deepcopy(compiled)  # recordings are no part of a copy
    with gw.config(opt_level=0):
        torch.testing.assert_close((first, second), plain(x, pos.detach(), edge_index), rtol=1e-9, atol=1e-10)
    assert pos.requires_grad == (how != "asks")


class AsksParameters(nn.Module):
    """Adds a penalty where its weight trains, and looks at what a value follows from."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out = torch.zeros_like(x).index_add_(0, edge_index[1], self.lin(x)[edge_index[0]])
        return out + self.lin.weight.square().sum() if self.lin.weight.requires_grad and out.requires_grad else out


def test_parameters_that_are_frozen() -> None:
    """Code that asks a parameter whether it trains is recorded anew when that changes."""
    torch.manual_seed(0)
    module = AsksParameters().double()
    compiled, (x, _, edge_index) = gw.compile(copy.deepcopy(module)), graph(0)
    for trains in (True, False, True):
        for one in (module, compiled):
            one.lin.weight.requires_grad_(trains)
        torch.testing.assert_close(compiled(x, edge_index), module(x, edge_index), rtol=1e-9, atol=1e-10)
        assert calls_of(compiled).last is not None


class ReadsGradients(nn.Module):
    """Scales by the gradient of an earlier step."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        scale = 1.0 if self.lin.weight.grad is None else 2.0
        return scale * torch.zeros_like(x).index_add_(0, edge_index[1], self.lin(x)[edge_index[0]])


def test_gradients_of_earlier_calls() -> None:
    """They are not seen by a recording: such code runs as it stands."""
    module = ReadsGradients().double()
    compiled, (x, _, edge_index) = gw.compile(copy.deepcopy(module)), graph(0)
    with pytest.warns(gw.FallbackWarning, match="gradients of earlier calls"):
        for _ in range(2):
            results = [one(x, edge_index) for one in (module, compiled)]
            torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-10)
            for result in results:
                result.sum().backward()


class Seeded(nn.Module):
    """Noise from a seed that forward sets; ``own``: of a generator of its own."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        self.own = own

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(5) if self.own else torch.manual_seed(5)
        noise = torch.rand(edge_index.shape[1], 1, generator=generator, dtype=x.dtype)
        return torch.zeros_like(x).index_add_(0, edge_index[1], x[edge_index[0]] * noise)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.filterwarnings("ignore:a seed or a state that is set:graphweft.FallbackWarning")
def test_seed_set_in_forward(own: bool) -> None:
    """Every call draws the same numbers."""
    x, _, edge_index = graph(2)
    torch.manual_seed(0)
    check(Seeded(own), (x, edge_index))


class Bernoulli(nn.Module):
    """A mask drawn in place without a probability."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        mask = torch.empty_like(x).bernoulli_()
        return torch.zeros_like(x).index_add_(0, edge_index[1], (x * mask)[edge_index[0]])


def test_default_of_an_operation_in_place() -> None:
    """Of ``bernoulli_`` alone: ``bernoulli`` has no probability of its own."""
    x, _, edge_index = graph(3)
    compiled = gw.compile(Bernoulli())
    torch.manual_seed(7)
    got = compiled(x, edge_index)
    torch.manual_seed(7)
    torch.testing.assert_close(got, Bernoulli()(x, edge_index))
    assert calls_of(compiled).last is not None


class Scaled(nn.Module):
    """Messages divided by the out-degree of their source, which the caller gives."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 4)

    def forward(self, x: Tensor, edge_index: Tensor, scale: Tensor) -> Tensor:
        h = self.lin(x)
        messages = scale[edge_index[0]].view(-1, 1) * h[edge_index[0]]
        return h + torch.zeros_like(h).index_add_(0, edge_index[1], messages)


@pytest.mark.parametrize("columns", [(), (1,)])
def test_infinity_that_no_edge_reads(columns: tuple[int, ...]) -> None:
    """One over a degree of 0 is in no message, and makes no gradient anything but a number."""
    x, _, edge_index = graph(4)
    degrees = torch.bincount(edge_index[0], minlength=len(x)).double().view(-1, *columns)
    compiled = gw.compile(copy.deepcopy(plain := Scaled().double()))
    for module in (plain, compiled):
        module.zero_grad()
        module(x, edge_index, 1 / degrees).square().sum().backward()
        assert all(bool(p.grad.isfinite().all()) for p in module.parameters() if p.grad is not None)
    for one, other in zip(plain.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad)


class Replaces(nn.Module):
    """A buffer that forward replaces by a tensor of another shape, which no operation does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(8))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out = torch.zeros_like(x).index_add_(0, edge_index[1], x[edge_index[0]])
        self.total = out.detach().sum(0, keepdim=True)
        return out


def test_warnings_have_a_line() -> None:
    """Where no operation is to blame, that of forward; in the files that PyTorch Geometric writes, that of the call."""
    x, _, edge_index = graph(5)
    with pytest.warns(gw.FallbackWarning, match=r"replaces buffers.* \(.*test_compile_derivatives\.py:\d+\)$"):
        gw.compile(Replaces())(x.float(), edge_index)


def test_lines_of_written_files() -> None:
    """PyTorch Geometric writes a file for every class of layers, the user's too."""
    pytest.importorskip("torch_geometric")
    from torch_geometric.nn import MessagePassing

    class Mine(MessagePassing):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            made: Tensor = self.propagate(edge_index, x=x)
            return made

        def message(self, x_j: Tensor) -> Tensor:
            return 2 * x_j

    propagate = Mine(aggr="add").propagate
    assert not is_user_file(propagate.__func__.__code__.co_filename)
    assert is_user_file(__file__)


def test_no_length_of_zero_reaches_the_second_derivatives_of_other_parameters() -> None:
    """The length of a zero vector has no second derivative: torch gives NaN to what it follows from, and no further."""

    class Lengths(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.place, self.lin, self.by = nn.Linear(8, 3), nn.Linear(8, 6), nn.Linear(1, 6)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            start, end = edge_index
            pos = self.place(x)
            length = (pos[start] - pos[end]).norm(dim=-1, keepdim=True)
            messages = torch.tanh(self.lin(x)[start] * self.by(length))
            return x.new_zeros(len(x), 6).index_add(0, end, messages)

    x, _, edge_index = graph(3)
    edge_index[:, 0] = 4  # a loop
    plain = Lengths().double()
    found = []
    for module in (plain, compiled := gw.compile(copy.deepcopy(plain))):
        given = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(module(given, edge_index).square().sum(), given, create_graph=True)
        found.append(torch.autograd.grad(slope.square().sum(), list(module.parameters())))
    assert calls_of(compiled).last is not None
    for one, other, (name, _) in zip(*found, plain.named_parameters(), strict=True):
        assert bool(one.isnan().any()) == name.startswith("place"), name
        torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-9, equal_nan=True)
