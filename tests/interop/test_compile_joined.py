"""``gw.compile``: what joins the one program of a model beside sums over edges.

Readouts and norms over the graphs of a batch, scores of pairs of nodes, rows assigned by a mask, random draws, edges
that a module keeps as a buffer. Everything is compared with the same code run as it stands, in float64.
"""

from __future__ import annotations

import copy
import importlib
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphweft as gw
from graphweft.nn.compiled import calls_of

pyg: Any = pytest.importorskip("torch_geometric.nn")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "coverage"))
plain_code: Any = importlib.import_module("plain_code")
coverage: Any = importlib.import_module("pyg_convs")
pieces: Any = importlib.import_module("pieces.further")

FURTHER = {kind.__name__ for kind, _ in pieces.CASES}
quiet = pytest.mark.filterwarnings("ignore::graphweft.FallbackWarning", "ignore:Sparse:UserWarning")


def outcome(module: nn.Module, args: tuple[Any, ...], wanted: list[Tensor], seed: int = 7) -> list[Tensor | None]:
    """Results, and gradients of a fixed sum of them; random draws begin with the same seed."""
    torch.manual_seed(seed)
    made = [t for t in torch.utils._pytree.tree_leaves(module(*args)) if isinstance(t, Tensor)]
    floating = [t for t in made if t.is_floating_point()]
    total = sum((t * torch.linspace(0.5, 1.5, t.numel(), dtype=t.dtype).view(t.shape)).sum() for t in floating)
    assert isinstance(total, Tensor)
    leaves = [*wanted, *module.parameters()]
    return [*(t.detach().clone() for t in made), *torch.autograd.grad(total, leaves, allow_unused=True)]


def agree(plain: nn.Module, compiled: nn.Module, args: tuple[Any, ...], wanted: list[Tensor]) -> None:
    """Results and gradients are equal."""
    expected, found = outcome(plain, args, wanted), outcome(compiled, args, wanted)
    assert len(expected) == len(found)
    for one, other in zip(expected, found, strict=True):
        zero = torch.zeros((), dtype=torch.float64)
        one, other = (zero if t is None else t for t in (one, other))
        torch.testing.assert_close(other.expand(one.shape), one.expand(other.shape), rtol=1e-8, atol=1e-9)


@quiet
@pytest.mark.parametrize("case", [c for c in plain_code.CASES if c.name in FURTHER], ids=lambda case: case.name)
def test_further_pieces(case: Any) -> None:
    """Two graphs and the first one again, in training and in eval, with other parameters each time."""
    torch.manual_seed(0)
    plain = case.make().double()
    compiled = gw.compile(copy.deepcopy(plain))
    for seed, sizes, mode in ((0, (40, 230), True), (1, (31, 150), True), (0, (40, 230), False)):
        inputs = coverage.random_inputs(seed, *sizes)
        plain.train(mode), compiled.train(mode)
        agree(plain, compiled, case.args(inputs), [inputs.x, inputs.edge_weight, inputs.edge_attr])
        with torch.no_grad():
            for one, other in zip(plain.parameters(), compiled.parameters(), strict=True):
                other.copy_(one.mul_(0.9).add_(0.01))


class Forward(nn.Module):
    """A layer around a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.lin = nn.Linear(16, 16)
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(self.lin, *args)


def total(x: Tensor, edge_index: Tensor) -> Tensor:
    """The sum over in-edges."""
    return torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])


def pooled(lin: nn.Module, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
    """Means of graphs, brought back to their nodes, and a sum of each at the end."""
    h = total(lin(x), edge_index)
    size = torch.bincount(batch, minlength=5).to(x.dtype)[:, None]
    mean = torch.zeros(5, 16, dtype=x.dtype).index_add(0, batch, h) / size.clamp(min=1)
    h = h - mean[batch].tanh()
    return torch.zeros(5, 16, dtype=x.dtype).index_add(0, batch, h * h)


def one_graph(lin: nn.Module, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
    """All nodes in one group, as norms of graphs without a batch."""
    h, zero = total(lin(x), edge_index), torch.zeros_like(batch)
    mean = torch.zeros(1, 16, dtype=x.dtype).scatter_add(0, zero[:, None].expand_as(h), h) / len(x)
    return h - mean.index_select(0, zero)


def heads(lin: nn.Module, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
    """Groups of rows with several axes."""
    h = total(lin(x), edge_index).view(-1, 4, 4)
    made = torch.zeros(5, 4, 4, dtype=x.dtype).index_add(0, batch, h)
    return (h * made[batch]).sum(-1)


@pytest.mark.parametrize("function", [pooled, one_graph, heads])
def test_groups_of_nodes_are_in_the_program(function: Callable[..., Any]) -> None:
    """Also where groups are empty, out of order, and other ones in the next call."""
    torch.manual_seed(0)
    plain = Forward(function).double()
    compiled = gw.compile(copy.deepcopy(plain))
    inputs = coverage.random_inputs(0)
    for batch in (torch.arange(40) * 4 // 40, torch.randint(0, 4, (40,))):
        agree(plain, compiled, (inputs.x, inputs.edge_index, batch), [inputs.x])
        last = calls_of(compiled).last
        assert last is not None and len(last.regions) == 1 and not last.planned.apart


@quiet
def test_pairs_of_nodes_are_in_the_program() -> None:
    """Scores of other pairs than the edges, with nodes in several."""

    def scores(lin: nn.Module, x: Tensor, edge_index: Tensor, pairs: Tensor) -> Tensor:
        h = total(lin(x), edge_index)
        return (h[pairs[0]] * h[pairs[1]]).sum(-1)

    torch.manual_seed(0)
    plain = Forward(scores).double()
    compiled = gw.compile(copy.deepcopy(plain))
    inputs = coverage.random_inputs(0)
    for count in (17, 90, 230, 40):  # as many as edges, and as nodes, too
        pairs = torch.randint(0, 40, (2, count))
        agree(plain, compiled, (inputs.x, inputs.edge_index, pairs), [inputs.x])
        last = calls_of(compiled).last
        if count in (17, 90):
            assert last is not None and len(last.regions) == 1 and not last.planned.apart


ASSIGNED: dict[str, tuple[bool, Callable[..., Tensor]]] = {
    "mask and structure": (True, lambda h, x, ids: torch.ones(10, 16, dtype=x.dtype) * 3),
    "mask and rows of an argument": (True, lambda h, x, ids: x[:10] * 2),
    "mask and the same rows of another": (True, lambda h, x, ids: (x * 3)[ids]),
    "mask and one number": (True, lambda h, x, ids: torch.tensor(2.5, dtype=x.dtype)),
    "mask and rows of the program": (False, lambda h, x, ids: h[:10].cos()),
}


@quiet
@pytest.mark.parametrize("form", ["mask", "ids", "from the end", "several times"])
@pytest.mark.parametrize("name", ASSIGNED)
def test_rows_are_assigned(name: str, form: str) -> None:
    """By a mask, by ids, by negative ids, and with ids that come twice, where the last one counts or torch's order."""
    whole, rows = ASSIGNED[name]

    def assign(lin: nn.Module, x: Tensor, edge_index: Tensor, ids: Tensor) -> Tensor:
        h = total(lin(x), edge_index)
        mine = h * 1.0
        mine[ids] = rows(h, x, ids)
        return total(mine, edge_index) + mine

    places = torch.arange(40)[torch.arange(40) % 4 == 1]
    ids = {
        "mask": torch.arange(40) % 4 == 1,
        "ids": places.flip(0),
        "from the end": places - 40,
        "several times": torch.cat([places[:9], places[:1]]),
    }[form]
    if form == "several times" and rows(torch.zeros(40, 16), torch.zeros(40, 16), ids).dim():
        same = rows
        rows = lambda h, x, ids: same(h, x, ids)[:1].expand(10, 16)  # noqa: E731  equal rows: their order is open
    torch.manual_seed(0)
    plain = Forward(assign).double()
    compiled = gw.compile(copy.deepcopy(plain))
    inputs = coverage.random_inputs(0)
    agree(plain, compiled, (inputs.x, inputs.edge_index, ids), [inputs.x])
    last = calls_of(compiled).last
    assert last is not None
    if whole and form != "several times":
        assert len(last.regions) == 1 and not last.planned.apart


def test_draws_are_new_in_every_call_and_those_of_the_seed() -> None:
    """Draws of the shape of rows join the program; several keep their order, also around one that depends on rows."""

    def noisy(lin: nn.Module, x: Tensor, edge_index: Tensor) -> Tensor:
        h = total(lin(x), edge_index)
        h = h + torch.randn_like(h) * h
        kept = torch.bernoulli(h.sigmoid())
        return total(h * kept, edge_index) + torch.rand_like(h)

    torch.manual_seed(0)
    plain = Forward(noisy).double()
    compiled = gw.compile(copy.deepcopy(plain))
    inputs = coverage.random_inputs(0)
    args = inputs.x, inputs.edge_index
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gw.FallbackWarning)  # bernoulli
        agree(plain, compiled, args, [inputs.x])
    assert not torch.equal(compiled(*args), compiled(*args))
    vgae = gw.compile(pyg.VGAE(Means()).double())
    assert not torch.equal(vgae.encode(*args), vgae.encode(*args))
    last = calls_of(vgae).of_method(pyg.VGAE.encode).last
    assert last is not None and len(last.regions) == 1 and not last.planned.apart


class Means(nn.Module):
    """An encoder with two results."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.deviation = pyg.GCNConv(16, 4), pyg.GCNConv(16, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        """Both."""
        return self.mean(x, edge_index), self.deviation(x, edge_index)


def test_edges_in_a_buffer() -> None:
    """A module that keeps its graph is compiled; edges that change in place, or are replaced, are read anew."""

    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(16, 4)
            self.register_buffer("edge_index", coverage.random_inputs(0).edge_index)

        def forward(self, x: Tensor) -> Tensor:
            return total(self.lin(x), self.edge_index)

    torch.manual_seed(0)
    plain = Keeps().double()
    compiled = gw.compile(copy.deepcopy(plain))
    x = coverage.random_inputs(0).x
    agree(plain, compiled, (x,), [x])
    assert calls_of(compiled).last is not None
    for module in (plain, compiled):
        module.edge_index[0, :50] = 3
    agree(plain, compiled, (x,), [x])
    for module in (plain, compiled):
        module.edge_index = coverage.random_inputs(2, 30, 100).edge_index
    agree(plain, compiled, (x,), [x])
    assert calls_of(compiled).last is not None
    for module in (plain, compiled):
        module.load_state_dict({**module.state_dict(), "edge_index": coverage.random_inputs(3, 30, 100).edge_index})
    agree(plain, compiled, (x,), [x])


def test_many_attributes_left_by_forward() -> None:
    """In whichever order they are set."""

    class Leaves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(16, 4)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            h = total(self.lin(x), edge_index)
            for at, name in enumerate(("zeta", "eta", "theta", "iota", "kappa", "mu", "nu")):
                setattr(self, name, h * at)
            return h.relu()

    torch.manual_seed(0)
    compiled = gw.compile(Leaves().double())
    for seed in range(3):
        inputs = coverage.random_inputs(seed)
        result = compiled(inputs.x, inputs.edge_index)
        assert calls_of(compiled).last is not None
        torch.testing.assert_close(compiled.mu.relu(), result * 5)


def test_a_warning_names_the_line_that_calls_a_layer() -> None:
    """Where the code itself is a library's."""
    layer = gw.compile(pyg.SuperGATConv(16, 4))
    inputs = coverage.random_inputs(0, dtype=torch.float32)
    with pytest.warns(gw.FallbackWarning, match=r"test_compile_joined\.py:\d+"):
        layer(inputs.x, inputs.edge_index)
