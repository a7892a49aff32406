"""``gw.compile`` on models with several sets of edges over the same nodes: relations, signs, two graphs of a user's."""

from __future__ import annotations

import copy
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphweft as gw
from graphweft.nn.compiled import calls_of

pytest.importorskip("torch_geometric")
pytestmark = pytest.mark.filterwarnings("ignore")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "coverage"))
coverage: Any = importlib.import_module("pyg_convs")

RELATIONAL = ("RGCNConv", "RGCNConv bases", "SignedConv", "FiLMConv types")


class TwoGraphs(nn.Module):
    """Weighted means along one graph, attention with features of edges along another, and both once more."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.second, self.of_edge = nn.Linear(width, 8), nn.Linear(width, 8), nn.Linear(4, 1)

    def forward(self, x: Tensor, one: Tensor, weight: Tensor, other: Tensor, attr: Tensor) -> Tensor:
        """The sum of both, and of the first graph's messages where the second one's are."""
        h = self.first(x)
        count = torch.zeros(len(x), dtype=x.dtype).index_add_(0, one[1], torch.ones_like(weight)).clamp(min=1)
        mean = torch.zeros_like(h).index_add_(0, one[1], weight[:, None] * h[one[0]]) / count[:, None]
        k = self.second(x)
        score = ((k[other[0]] * mean[other[1]]).sum(-1, keepdim=True) + self.of_edge(attr)).tanh().exp()
        below = torch.zeros_like(k[:, :1]).index_add_(0, other[1], score)
        attended = torch.zeros_like(k).index_add_(0, other[1], score * k[other[0]]) / (below + 1e-6)
        again = torch.zeros_like(h).index_add_(0, one[1], (attended * mean)[one[0]])
        return mean + attended.sigmoid() + again


def edges(seed: int, count: int, nodes: int = 40) -> Tensor:
    """Random ends, some of them parallel and loops."""
    made = torch.randint(0, nodes - 3, (2, count), generator=torch.Generator().manual_seed(seed))
    made[:, :3] = made[:, 3:6]
    made[0, 6:8] = made[1, 6:8]
    return made


def arguments(one: int = 1, other: int = 2, counts: tuple[int, int] = (170, 230)) -> tuple[Tensor, ...]:
    """What ``TwoGraphs`` takes."""
    made = torch.Generator().manual_seed(9)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=made, dtype=torch.float64).requires_grad_()

    return draw(40, 16), edges(one, counts[0]), draw(counts[0]), edges(other, counts[1]), draw(counts[1], 4)


def gradients(module: nn.Module, args: tuple[Any, ...]) -> list[Tensor]:
    """The result, gradients of a fixed sum of it, and those of a sum of these."""
    out = module(*args)
    leaves = [t for t in (*args, *module.parameters()) if t.is_floating_point() and t.requires_grad]
    total = (out * torch.linspace(0.5, 1.5, out.numel(), dtype=out.dtype).view(out.shape)).sum()
    first = torch.autograd.grad(total, leaves, create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), leaves, allow_unused=True)
    return [out.detach(), *first, *(torch.zeros(()) if g is None else g for g in second)]


def check(plain: nn.Module, compiled: nn.Module, args: tuple[Any, ...]) -> None:
    """All of these agree."""
    for want, got in zip(gradients(plain, args), gradients(compiled, args), strict=True):
        torch.testing.assert_close(got, want.expand(got.shape), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", RELATIONAL)
def test_relations_are_one_program(name: str) -> None:
    """Layers of several relations have one program."""
    case = next(case for case in coverage.CASES if case.name == name)
    assert coverage.verdict(case) == ("whole", "")


class TwoLayers(nn.Module):
    """Two relational layers."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        conv: Any = importlib.import_module("torch_geometric.nn").RGCNConv
        self.first, self.second = conv(16, 24, KINDS, **options), conv(24, 7, KINDS, **options)

    def forward(self, x: Tensor, edge_index: Tensor, kinds: Tensor) -> Tensor:
        """Rows of 7."""
        hidden: Tensor = self.first(x, edge_index, kinds).relu()
        out: Tensor = self.second(hidden, edge_index, kinds)
        return out


KINDS = 5


@pytest.mark.parametrize("options", [{}, {"num_bases": 2}, {"aggr": "add"}, {"root_weight": False, "bias": False}])
def test_matrices_of_relations_are_one_product(options: dict[str, Any]) -> None:
    """Both layers read one graph of all relations: a sum over it each, and no product for each relation."""
    torch.manual_seed(0)
    plain = TwoLayers(**options).double()
    compiled = gw.compile(copy.deepcopy(plain))
    x, kinds = arguments()[0], torch.randint(0, KINDS, (170,), generator=torch.Generator().manual_seed(5))
    check(plain, compiled, (x, edges(1, 170), kinds))
    last = calls_of(compiled).last
    assert last is not None
    (region,) = last.regions
    assert not region.others
    assert sorted(region.edges.parts) == sorted(torch.bincount(kinds).tolist())
    (plan,) = [plan for plan in region.function.plans() if plan.backward]
    forward, backward = [call.kernel for call in plan.forward], [call.kernel for call in plan.backward]
    assert forward.count("typed_spmm") == 2
    assert "spmm" not in forward + backward
    products = [call for call in plan.forward if call.kernel == "matmul" and call.value.tensor.rows == "V"]
    assert len(products) == (2 if options.get("root_weight", True) else 0), "own rows times their matrices"
    assert backward.count("typed_outer") == 2
    assert "unslice" not in backward


@pytest.mark.parametrize("counts", [(0, 60, 70, 20, 20), (1, 59, 70, 20, 20), (40, 60, 30, 20, 20)])
def test_relations_that_tell_nothing(counts: tuple[int, ...]) -> None:
    """A relation without edges, with one, and with as many as there are nodes."""
    plain = TwoLayers().double()
    compiled = gw.compile(copy.deepcopy(plain))
    kinds = torch.repeat_interleave(torch.arange(KINDS), torch.tensor(counts))
    x = arguments()[0].detach()
    for args in ((x, edges(1, 170), kinds), (x, edges(2, 170), kinds.flip(0))):
        torch.testing.assert_close(compiled(*args), plain(*args), rtol=1e-9, atol=1e-9)


def test_other_readers_keep_a_graph_for_each_relation() -> None:
    """Sums that are read again, and one that is left out, are no product over all relations."""

    class Read(nn.Module):
        def __init__(self, left_out: bool) -> None:
            super().__init__()
            self.table, self.left_out = nn.Parameter(torch.randn(3, 16, 6)), left_out

        def forward(self, x: Tensor, edge_index: Tensor, kinds: Tensor) -> Tensor:
            """The sum over relations, times the first one's part or without the last one's."""
            parts = []
            for kind in range(2 if self.left_out else 3):
                src, dst = edge_index[:, kinds == kind]
                total = torch.zeros(len(x), 16, dtype=x.dtype).index_add(0, dst, x[src])
                parts.append(total @ self.table[kind])
            return sum(parts[1:], parts[0]) * (1 if self.left_out else parts[0])

    kinds = torch.arange(170) % 3
    for left_out in (False, True):
        plain = Read(left_out).double()
        compiled = gw.compile(copy.deepcopy(plain))
        check(plain, compiled, (arguments()[0], edges(1, 170), kinds))
        last = calls_of(compiled).last
        assert last is not None and not last.regions[0].edges.parts


def test_two_graphs_in_one_program() -> None:
    """Values, gradients and second derivatives, along graphs that change one by one and come back."""
    torch.manual_seed(0)
    plain = TwoGraphs().double()
    compiled = gw.compile(copy.deepcopy(plain))
    for one, other, counts in (
        (1, 2, (170, 230)),
        (1, 3, (170, 230)),
        (4, 3, (170, 230)),
        (1, 2, (170, 230)),
        (1, 2, (90, 310)),
    ):
        check(plain, compiled, arguments(one, other, counts))
        last = calls_of(compiled).last
        assert last is not None
        assert len(last.runs) == 1
        assert [graph.num_edges for graph in (last.regions[0].graph, *last.regions[0].others)] == list(counts)


def test_what_is_kept_belongs_to_both_graphs() -> None:
    """A degree along the second graph, computed once, is computed again where only that graph is another."""

    class Scaled(nn.Module):
        def forward(self, x: Tensor, one: Tensor, other: Tensor) -> Tensor:
            """Sums along one graph divided by the degrees along another."""
            total = torch.zeros_like(x).index_add_(0, one[1], x[one[0]])
            kept = torch.zeros_like(x).index_add_(0, other[1], torch.ones_like(x)[other[0]] * 0.5)
            return total * kept + torch.zeros_like(x).index_add_(0, other[1], total[other[0]])

    plain = Scaled()
    compiled = gw.compile(copy.deepcopy(plain))
    x = torch.randn(40, 8, dtype=torch.float64)
    for seed in (2, 3, 2, 5):
        args = x, edges(1, 170), edges(seed, 230)
        torch.testing.assert_close(compiled(*args), plain(*args), rtol=1e-10, atol=1e-10)


def test_as_many_edges_in_both_graphs() -> None:
    """Which edges a row belongs to follows from where it is summed."""
    plain = TwoGraphs().double()
    compiled = gw.compile(copy.deepcopy(plain))
    for one, other in ((1, 2), (1, 3)):
        args = arguments(one, other, (200, 200))
        check(plain, compiled, args)
        last = calls_of(compiled).last
        assert last is not None
        assert len(last.runs) == 1


@pytest.mark.parametrize("counts", [(200, 200), (40, 230), (230, 40), (170, 1), (170, 0), (0, 170)])
def test_numbers_that_tell_nothing(counts: tuple[int, int]) -> None:
    """As many edges as the other graph has, as there are nodes, hardly any, and none."""
    plain = TwoGraphs().double()
    compiled = gw.compile(copy.deepcopy(plain))
    args = arguments()
    one, other = counts
    index = torch.randint(0, 36, (2, 300), generator=torch.Generator().manual_seed(3))
    weight, attr = torch.randn(300, dtype=torch.float64), torch.randn(300, 4, dtype=torch.float64)
    cut = [args[0], index[:, :one], weight[:one], index.flip(1)[:, :other], attr[:other]]
    torch.testing.assert_close(compiled(*cut), plain(*cut), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", RELATIONAL)
def test_large_graphs(name: str) -> None:
    """Kernels that are generated for large graphs, in float32, as near to float64 as the plain module is."""
    case = next(case for case in coverage.CASES if case.name == name)
    torch.manual_seed(0)
    plain = case.make()
    compiled = gw.compile(copy.deepcopy(plain))
    inputs = coverage.random_inputs(3, 9_000, 60_000, torch.float32).without_gradients()
    exact = coverage.replace(
        inputs,
        **{
            n: getattr(inputs, n).double()
            for n in inputs.__dataclass_fields__
            if getattr(inputs, n).is_floating_point()
        },
    )
    results = []
    for module, given in ((copy.deepcopy(plain).double(), exact), (plain, inputs), (compiled, inputs)):
        out = module(*case.args(given))
        found = torch.autograd.grad(out.square().mean(), list(module.parameters()))
        results.append([t.detach().double() for t in (out, *found)])
    for want, near, got in zip(*results, strict=True):
        assert float((got - want).norm()) <= 4 * float((near - want).norm()) + 2e-5 * float(want.norm())
