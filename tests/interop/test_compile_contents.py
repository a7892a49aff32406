"""``gw.compile`` on edges that are others in every call: after a few recordings one serves them all.

Compared with the module itself, in float64: outputs and all gradients.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

import graphweft as gw
from graphweft.nn import batch_call
from graphweft.nn.compiled import calls_of
from graphweft.nn.compiled_call import CompiledCalls

pyg = pytest.importorskip("torch_geometric.nn")
pytestmark = pytest.mark.filterwarnings("ignore::graphweft.FallbackWarning")

WIDTH, NODES, CALLS, RECORDED = 6, 40, 8, 2


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two contents count as many."""
    monkeypatch.setattr(batch_call, "_FEW", RECORDED)


class Masked(nn.Module):
    """Layers on a random part of the edges, and a result of random rows."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = pyg.SAGEConv(WIDTH, 6), pyg.GCNConv(6, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Drops a third of the edges before each layer."""
        h = self.one(x, edge_index[:, torch.rand(edge_index.shape[1]) < 0.7]).relu()
        return self.two(h, edge_index[:, torch.rand(edge_index.shape[1]) < 0.7])[torch.rand(len(x)) < 0.5]


class Upwards(nn.Module):
    """Edges picked by a mask that follows from ids; a condition on how many there are."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Sums over edges to higher ids, doubled where these are many."""
        src, dst = edge_index[:, (edge_index[0] < edge_index[1]).nonzero().view(-1)]
        h = torch.zeros_like(x).index_add(0, dst, x[src] / 7).tanh()
        h = torch.zeros_like(h).index_add(0, dst, h[src])
        return self.lin(h * (2.0 if len(src) > 90 else 1.0))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "sage": lambda: pyg.SAGEConv(WIDTH, 3),
    "gcn": lambda: pyg.GCN(WIDTH, 8, 2, 3),
    "gat edges": lambda: pyg.GATConv(WIDTH, 3, heads=2, edge_dim=2),
    "gine": lambda: pyg.GINEConv(nn.Linear(WIDTH, 3), edge_dim=2),
}


def edges(loops: bool) -> Iterator[Tensor]:
    """Sets of edges of other sizes, some with parallel edges and nodes without any."""
    generator = torch.Generator().manual_seed(1)
    for call in range(CALLS):
        src, dst = torch.randint(0, NODES - call % 3, (2, 150 + 7 * call), generator=generator)
        yield torch.stack([src, dst if loops else torch.where(src == dst, (dst + 1) % NODES, dst)])


def compare(plain: nn.Module, compiled: nn.Module, *args: Tensor, seed: int = 0) -> None:
    """The same outputs and gradients of everything that wants one."""
    found = []
    for module in (plain, compiled):
        given = [a.clone().requires_grad_() if a.is_floating_point() else a for a in args]
        torch.manual_seed(seed)
        out = module(*given)
        leaves = [*(a for a in given if a.requires_grad), *module.parameters()]
        found.append([out, *torch.autograd.grad((out * torch.arange(out.numel()).view_as(out)).sum(), leaves)])
    for expected, got in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-8)


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows with every recording, of a content or for many."""
    found: list[int] = []
    once = CompiledCalls._recorded_once
    monkeypatch.setattr(CompiledCalls, "_recorded_once", lambda self, *given: found.append(1) or once(self, *given))
    return found


@pytest.mark.parametrize(("name", "loops"), [*((name, True) for name in MODELS), ("gcn", False), ("gat edges", False)])
def test_one_recording_serves_many_contents(recordings: list[int], name: str, loops: bool) -> None:
    """Its code is recorded for the first contents, and once for all others."""
    torch.manual_seed(0)
    plain = MODELS[name]().double()
    compiled = gw.compile(copy.deepcopy(plain))
    for at, edge_index in enumerate(edges(loops)):
        x = torch.randn(NODES, WIDTH, dtype=torch.float64)
        more = (torch.randn(edge_index.shape[1], 2, dtype=torch.float64),) if name in ("gat edges", "gine") else ()
        compare(plain, compiled, x, edge_index, *more)
        assert calls_of(compiled).last is not None
        if at == RECORDED:
            recordings.clear()
    assert not recordings


def test_conditions_on_how_many_a_mask_marks() -> None:
    """Edges picked by ids, and a branch on their number that goes either way."""
    plain = Upwards().double()
    compiled = gw.compile(copy.deepcopy(plain))
    for edge_index in edges(True):
        compare(plain, compiled, torch.randn(NODES, WIDTH, dtype=torch.float64), edge_index)


def test_random_masks_do_not_record_layers_anew(recordings: list[int]) -> None:
    """The module itself runs as it stands; its layers get other edges in every call."""
    plain = Masked().double()
    compiled = gw.compile(copy.deepcopy(plain))
    edge_index = next(edges(True))
    for seed in range(CALLS):
        x = torch.randn(NODES, WIDTH, dtype=torch.float64)
        compare(plain, compiled, x, edge_index, seed=seed)
        if seed == RECORDED:
            recordings.clear()
    assert not recordings


def test_a_content_that_comes_again_is_recorded(recordings: list[int]) -> None:
    """What follows from it is then computed once."""
    plain = pyg.GCNConv(WIDTH, 3).double()
    compiled = gw.compile(copy.deepcopy(plain))
    x = torch.randn(NODES, WIDTH, dtype=torch.float64)
    for edge_index in edges(True):
        last = edge_index
        compare(plain, compiled, x, edge_index)
    recordings.clear()
    for _ in range(3):
        compare(plain, compiled, x, last)
    assert len(recordings) == 1


def test_ids_out_of_range_are_refused_as_torch_does() -> None:
    """After many contents, one with an id that no node has; the next is right again."""
    plain = MODELS["sage"]().double()
    compiled = gw.compile(copy.deepcopy(plain))
    x = torch.randn(NODES, WIDTH, dtype=torch.float64)
    for edge_index in edges(True):
        compare(plain, compiled, x, edge_index)
    said = []
    for module in (plain, compiled):
        with pytest.raises(IndexError) as failure:
            module(x, edge_index + NODES)
        said.append(str(failure.value))
    assert said[0] == said[1]
    compare(plain, compiled, x, edge_index.flip(1))


def test_two_sets_of_nodes() -> None:
    """Features of sources and of destinations, whose numbers change with the edges."""
    plain = pyg.SAGEConv((WIDTH, WIDTH), 3).double()
    compiled = gw.compile(copy.deepcopy(plain))
    for at, edge_index in enumerate(edges(True)):
        pair = [torch.randn(NODES + rows, WIDTH, dtype=torch.float64) for rows in (at, 2 * at + 5)]
        found = [module(pair, edge_index).square().sum() for module in (plain, compiled)]
        torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-9)


def test_other_arguments_change_too() -> None:
    """Numbers of nodes, types of edges, declared contents, edges that are not contiguous."""
    torch.manual_seed(0)
    plain = pyg.RGCNConv(WIDTH, 3, 2).double()
    compiled = gw.compile(copy.deepcopy(plain))
    for at, edge_index in enumerate(edges(True)):
        x = torch.randn(NODES + at, WIDTH, dtype=torch.float64)
        kinds = torch.randint(0, 2, (edge_index.shape[1],))
        if at == CALLS - 2:
            edge_index = gw.constant(edge_index)
        compare(plain, compiled, x, edge_index.t().contiguous().t() if at == CALLS - 1 else edge_index, kinds)
