"""``gw.compile`` on forwards as repositories write them: layers of one's own, state, reuse, and sizes that coincide."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from compiled_check import check, check_module, graphs, total
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import graphweft as gw
from graphweft.nn.compiled import calls_of

pytestmark = pytest.mark.filterwarnings("ignore")


class Attention(nn.Module):
    """Scores of edges from both ends, a softmax by destination, heads by einsum."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.randn(3, 6, 2) / 2)
        self.score = nn.Parameter(torch.randn(3, 2))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        h = torch.einsum("nf,hfd->nhd", x, self.values)
        score = F.leaky_relu(torch.einsum("ehd,hd->eh", h[src] - h[dst], self.score))
        ids = dst[:, None].expand_as(score)
        most = torch.full((len(x), 3), -torch.inf, dtype=x.dtype).scatter_reduce(0, ids, score, "amax").detach()
        power = (score - most[dst]).exp()
        share = power / torch.zeros(len(x), 3, dtype=x.dtype).index_add(0, dst, power)[dst]
        return torch.zeros_like(h).index_add_(0, dst, share[..., None] * h[src]).flatten(1)


class Interaction(nn.Module):
    """Edges with attributes of their own, made in forward and updated layer by layer, with residuals and norms."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(13, 4)
        self.edges = nn.ModuleList([nn.Sequential(nn.Linear(16, 4), nn.SiLU()) for _ in range(2)])
        self.nodes = nn.ModuleList([nn.Linear(10, 6) for _ in range(2)])
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        src, dst = edge_index
        way = x[src, :3] - x[dst, :3]
        far = way.pow(2).sum(-1, keepdim=True).add(1e-3).sqrt()
        e = self.first(torch.cat([x[src], way / far, far, x[dst, 3:]], -1))
        count = torch.bincount(dst, minlength=len(x)).clamp(min=1)[:, None]
        for of_edges, of_nodes in zip(self.edges, self.nodes, strict=True):
            e = e + self.norm(of_edges(torch.cat([x[src], x[dst], e], -1)))
            mean = torch.zeros(len(x), 4, dtype=x.dtype).index_add(0, dst, e) / count
            x = x + of_nodes(torch.cat([x, mean], -1)).tanh()
        return x, e


class Hops(nn.Module):
    """One layer run several times, what each gave taken together, and a virtual node."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)
        self.virtual, self.weights = nn.Embedding(1, 6), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        of_all = self.virtual(torch.zeros(1, dtype=torch.int64))
        outs = [x]
        for _ in range(3):
            x = x + self.norm(total(self.layer(x + of_all), edge_index)).relu()
            of_all = of_all + x.mean(0, keepdim=True)
            outs.append(x)
        together = sum(w * out for w, out in zip(self.weights.softmax(0), outs, strict=False))
        return torch.cat([torch.stack(outs).max(0)[0], together], -1), of_all


class State(nn.Module):
    """Buffers that forward moves or replaces: averages, a count, batch norm's statistics."""

    average: Tensor
    most: Tensor
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(6))
        self.register_buffer("most", torch.zeros(6))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = total(x, edge_index)
        with torch.no_grad():
            self.average.mul_(0.9).add_(h.mean(0), alpha=0.1)
        self.most = 0.5 * self.most + h.detach().amax(0)
        self.calls += 1
        return (self.norm(h) if len(x) > 1 else h) - self.average / self.calls + self.most


class Checkpointed(nn.Module):
    """Activations that are computed again for the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Attention(), Attention()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = checkpoint(self.one, x, edge_index, use_reentrant=False)
        made: Tensor = checkpoint(lambda rows: self.two(rows.tanh(), edge_index), h, use_reentrant=False)
        return made


class Branches(nn.Module):
    """Python that reads values, with compiled modules inside."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Attention(), Attention()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.one(x, edge_index)
        result: Tensor = self.two(h, edge_index) if h.sum() > 0 else -h
        return result


MODULES = (Attention, Interaction, Hops, State, Checkpointed, Branches)


@pytest.mark.parametrize("kind", MODULES, ids=lambda kind: kind.__name__)
def test_forwards(kind: Any) -> None:
    """On graphs of several shapes, one node and no edge among them."""
    torch.manual_seed(0)
    whole = kind in (Attention, Interaction, Hops, State)
    check_module(kind(), graphs if whole else lambda: itertools.islice(graphs(), 3), whole)


def sizes_that_coincide() -> Iterator[tuple[int, Tensor]]:
    """As many nodes as edges, as features, as both; as many edges as a matrix has entries; rows in order."""
    draw = torch.Generator().manual_seed(0)
    for nodes, edges in ((6, 6), (6, 36), (36, 6), (2, 6), (1, 1)):
        yield nodes, torch.randint(0, nodes, (2, edges), generator=draw)
    yield 6, torch.stack([torch.arange(6), torch.randperm(6, generator=draw)])
    yield 12, torch.stack([torch.arange(12), torch.arange(12) // 2])


@pytest.mark.parametrize("kind", [Attention, Interaction], ids=lambda kind: kind.__name__)
def test_sizes_that_coincide(kind: Any) -> None:
    """Rows of nodes, of edges and features are told apart by what is done with them."""
    torch.manual_seed(0)
    check_module(kind(), sizes_that_coincide)


def test_rows_of_nodes_and_edges_of_one_number() -> None:
    """They may be added where their numbers are equal, in any order of operations."""

    def code(x: Tensor, edge_index: Tensor, weight: Tensor) -> Any:
        src, dst = edge_index
        e = x[src] * x[dst]
        made = [
            total(x, edge_index),
            torch.zeros_like(x).index_add(0, dst, e),
            e.t() @ e,
            torch.cat([x, e]),
            e.sum(0) * x,
        ]
        if len(src) == len(x):
            made += [e + x, total(x + e, edge_index), torch.zeros_like(x).index_add(0, src, e * x) @ weight]
        if len(src) == 6:
            made += [x @ e, x @ weight + e.sum(1), total(x * e[:, 0], edge_index)]
        return made

    check(code, sizes_that_coincide)


def test_detached_rows_beside_what_runs_as_it_stands() -> None:
    """No gradient passes a detached copy, whether it is part of a program or not: straight-through estimators."""

    def code(x: Tensor, edge_index: Tensor, weight: Tensor) -> Any:
        h = (x @ weight).cumsum(0)
        gated = (h * h.detach().sigmoid()).cumsum(0)
        share = h.softmax(-1)
        hard = torch.zeros_like(share).scatter_(-1, share.argmax(-1, keepdim=True), 1.0)
        through = (hard - share.detach() + share).cumsum(0) * h.data.cumsum(1)
        return total(gated, edge_index), total(through, edge_index)

    check(code)


class Dense(nn.Module):
    """Products with biases, batch norm and dropout around a sum over edges."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.one, self.two, self.norm, self.p = nn.Linear(6, 8), nn.Linear(8, 4), nn.BatchNorm1d(8), p

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        h = self.norm(total(self.one(x), edge_index)).relu()
        return self.two(h), F.dropout(torch.ones_like(h) + h, self.p)


@pytest.fixture(params=[torch.float32, torch.float64], ids=["default float32", "default float64"])
def default(request: Any) -> Iterator[torch.dtype]:
    """Torch's default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_default_dtype(default: torch.dtype, dtype: torch.dtype) -> None:
    """Modules and arguments have a dtype of their own, whatever torch's default is."""
    torch.manual_seed(0)
    plain, x = Dense(0.0).to(dtype), torch.randn(30, 6, dtype=dtype)
    edge_index = torch.stack([torch.arange(90) % 30, torch.arange(90) * 7 % 29])
    compiled, drops = gw.compile(copy.deepcopy(plain)), gw.compile(Dense(0.5).to(dtype))
    found = []
    for module in (plain, compiled):
        out = module(x, edge_index)
        (out[0] * torch.arange(4)).sum().backward()
        found.append([*(one.detach() for one in out), *(p.grad for p in module.parameters()), *module.buffers()])
    for one, other in zip(*found, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-4)
    dropped = drops(x, edge_index)[1]
    dropped.sum().backward()
    assert 0.3 < float((dropped == 0).double().mean()) < 0.7
    assert calls_of(compiled).last is not None and calls_of(drops).last is not None


def test_autocast_inside() -> None:
    """A part of forward in half precision gives the dtype and the roundings that it has without."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin, self.after = nn.Linear(6, 8), nn.Linear(4, 2)

        def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
            h = total(x, edge_index)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                h = self.lin(h)
                return h, self.after(F.glu(h, 1))

    torch.manual_seed(0)
    plain = Mixed()
    compiled = gw.compile(copy.deepcopy(plain))
    x = torch.randint(-4, 5, (30, 6)).float()
    edge_index = torch.stack([torch.arange(90) % 30, torch.arange(90) * 7 % 29])
    for one, other in zip(plain(x, edge_index), compiled(x, edge_index), strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other)
    assert calls_of(compiled).last is not None


def test_derivatives_with_respect_to_arguments() -> None:
    """Forces and penalties of gradients, inside forward and around it."""

    def code(x: Tensor, edge_index: Tensor, weight: Tensor) -> Any:
        energy = (total(x @ weight, edge_index).tanh() @ weight).sum()
        (force,) = torch.autograd.grad(energy, x, create_graph=True)
        return energy, force, force.pow(2).sum()

    check(code)
