"""``gw.compile`` on message passing written with torch alone, and on code with effects beside its result."""

from __future__ import annotations

import copy
import importlib
import os
import random
import sys
import types
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import graphweft as gw
from graphweft.ir.residency import Residency
from graphweft.nn.compiled import calls_of

pytest.importorskip("torch_geometric")
pytestmark = pytest.mark.filterwarnings("ignore")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "coverage"))
plain_code: Any = importlib.import_module("plain_code")
coverage: Any = importlib.import_module("pyg_convs")

# forms of sums and edges that no layer of PyTorch Geometric has
TRIED = (
    *("ScatterReduceMax", "SparseCOO", "SparseCSR", "SparseWeighted", "SegmentReduce", "Transposed", "StaticGraph"),
    *("GATByHand", "GATConcat", "CosineSimilarity", "WeightedGCN", "RelationMasks", "RelationEmbedding", "TypedDicts"),
    *("TopK", "EdgeMatrices", "Loss", "UsersItems"),
)
PICKED = (*("MaskedLoss", "AsManyPairs", "SparseScores", "Triples", "JoinedTables", "GroupExtrema", "AtomsInGraphs"),)


Args = tuple[Any, ...] | Callable[[], tuple[Any, ...]]


def gradients(module: nn.Module, args: Args, wanted: list[Tensor]) -> list[Tensor | None]:
    """Results, and gradients of a fixed sum of them."""
    made = [
        t
        for t in torch.utils._pytree.tree_leaves(module(*(args() if callable(args) else args)))
        if isinstance(t, Tensor)
    ]
    floating = [t for t in made if t.is_floating_point()]
    total = sum((t * torch.linspace(0.5, 1.5, t.numel(), dtype=t.dtype).view(t.shape)).sum() for t in floating)
    assert isinstance(total, Tensor)
    leaves = [*wanted, *module.parameters()]
    return [*(t.detach().clone() for t in made), *torch.autograd.grad(total, leaves, allow_unused=True)]


def check(plain: nn.Module, compiled: nn.Module, args: Args, wanted: list[Tensor]) -> None:
    """Results and gradients agree."""
    expected, found = gradients(plain, args, wanted), gradients(compiled, args, wanted)
    assert len(expected) == len(found)
    for one, other in zip(expected, found, strict=True):
        zero = torch.zeros(())
        one, other = (zero if t is None else t for t in (one, other))
        torch.testing.assert_close(other.expand(one.shape), one.expand(other.shape), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("case", [c for c in plain_code.CASES if c.name in TRIED + PICKED], ids=lambda case: case.name)
def test_plain_code(case: Any) -> None:
    """Two graphs, with other parameters on the second."""
    torch.manual_seed(0)
    plain = case.make().double()
    compiled = gw.compile(copy.deepcopy(plain))
    for seed, sizes in ((0, (40, 230)), (1, (31, 150))):
        inputs = coverage.random_inputs(seed, *sizes)
        wanted = [inputs.x, inputs.edge_weight, inputs.edge_attr, inputs.pos]
        check(plain, compiled, partial(case.args, inputs), wanted)
        with torch.no_grad():
            for one, other in zip(plain.parameters(), compiled.parameters(), strict=True):
                other.copy_(one.mul_(0.9).add_(0.01))


def test_most_plain_code_is_compiled() -> None:
    """Some pieces of every kind are one program."""
    cases = {case.name: case for case in plain_code.CASES}
    some = ("ScatterReduceMax", "SparseCOO", "SegmentReduce", "StaticGraph", "GATByHand", "RelationEmbedding")
    for name in (*some, "SparseWeighted", "GATConcat", "Loss", "UsersItems", *PICKED):
        assert coverage.verdict(cases[name]) == ("whole", ""), name


class Embedded(nn.Module):
    """Propagates embeddings alone, which are joined of two tables."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Embedding(12, 4), nn.Embedding(19, 4)

    def forward(self, edge_index: Tensor) -> Tensor:
        h = torch.cat([self.one.weight, self.two.weight])
        return torch.tanh(total(total(h, edge_index), edge_index))


def test_embeddings_are_moved_in_the_program() -> None:
    """What follows from parameters alone is no reason to gather rows of edges ahead of it."""
    module = gw.compile(Embedded())
    module(torch.stack([torch.arange(90) % 31, torch.arange(90) * 7 % 31]))
    last = calls_of(module).last
    assert last is not None and len(last.regions) == 1
    assert [given.residency is Residency.EDGE for given in last.regions[0]._region.given.values()] == [False]
    assert len(last.runs) == 2  # the two tables joined, and the program


class Stretches(nn.Module):
    """Rows picked of stretches of rows: negative ids, stretches of stretches, one that is written, one without a
    gradient.
    """

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = total(x, edge_index)
        ids = torch.tensor([3, -1, 0, 3])
        first, second = h.split([12, len(h) - 12])
        with torch.no_grad():
            still = h[2:9]
        inner = second[1:][:5] * 1
        written, whole = (h * 2)[4:10], h * 3
        written[1:3] = 0.5
        whole[1:9:2] = 0.5
        whole[20:] = torch.arange(4)
        rows = [first[ids], second[ids], second[1:][ids], still[ids], inner[ids], written[ids], whole[ids]]
        return torch.cat([torch.stack(rows).sum(0), total(whole, edge_index)])


def test_rows_of_stretches_of_rows() -> None:
    """They are those of the whole, with the gradients that the stretches let through."""
    x = torch.randn(31, 4, dtype=torch.float64, requires_grad=True)
    edge_index = torch.stack([torch.arange(90) % 31, torch.arange(90) * 7 % 31])
    for _ in range(2):
        check(Stretches(), gw.compile(Stretches()), (x, edge_index), [x])


def test_graphs_without_edges() -> None:
    """Heads of messages that do not exist are no reason to run all as it stands."""

    class Heads(nn.Module):
        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            sent = x[edge_index[0]].view(-1, 2, 2) * 3
            out = torch.zeros(len(x), 2, 2, dtype=x.dtype).index_add(0, edge_index[1], sent)
            return torch.zeros(3, 4, dtype=x.dtype).index_add(0, batch, x + out.view(-1, 4))

    x = torch.randn(12, 4, dtype=torch.float64, requires_grad=True)
    batch = torch.arange(12) // 4
    for edges in (torch.zeros(2, 0, dtype=torch.int64), torch.stack([torch.arange(30) % 12, torch.arange(30) % 7])):
        compiled = gw.compile(Heads())
        check(Heads(), compiled, (x, edges, batch), [x])
        assert calls_of(compiled).last is not None


class KeepsMatrix(nn.Module):
    """Gives a sparse matrix of values back, or keeps it, or asks for its values."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.kept = how, None

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        weight = (x[edge_index[0]] * x[edge_index[1]]).sum(-1)
        matrix = torch.sparse_coo_tensor(edge_index, weight, (len(x), len(x)))
        if self.how == "kept":
            self.kept = matrix
        if self.how == "values":
            return total(x, edge_index) * matrix.coalesce().values().sum()
        out = total(torch.sparse.mm(matrix, x), edge_index)
        return matrix if self.how == "given" else out


@pytest.mark.parametrize("how", ["given", "kept", "values", "transposed to itself"])
def test_sparse_matrices_of_values_that_leave(how: str) -> None:
    """Other uses than products are seen."""
    x = torch.randn(20, 4, dtype=torch.float64)
    edge_index = torch.stack([torch.arange(60) % 20, torch.arange(60) * 7 % 19])
    plain, compiled = KeepsMatrix(how), gw.compile(KeepsMatrix(how))
    for _ in range(2):
        results = [one(x, edge_index) for one in (plain, compiled)]
        if how == "given":
            results = [one.to_dense() for one in results]
        torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-10)
        if how == "kept":
            torch.testing.assert_close(compiled.kept.to_dense(), plain.kept.to_dense())


def total(x: Tensor, edge_index: Tensor) -> Tensor:
    """The sum over in-edges."""
    return torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])


class Unseen(nn.Module):
    """Writes that autograd does not see."""

    def __init__(self, write: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.write = write

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """The sum of what was written."""
        return total(self.write(x * 2, x), edge_index) ** 2


def _clamped(h: Tensor, x: Tensor) -> Tensor:
    with torch.no_grad():
        h.clamp_(min=0)
    return h


def _through_data(h: Tensor, x: Tensor) -> Tensor:
    h.data.mul_(0.5)
    return h


def _detached(h: Tensor, x: Tensor) -> Tensor:
    h.detach().add_(1.0)
    return h


def _rows(h: Tensor, x: Tensor) -> Tensor:
    with torch.no_grad():
        h[1:3].zero_()
        h[:, 1] = x[:, 0]
    return h


def _below(h: Tensor, x: Tensor) -> Tensor:
    below = h.detach()
    h.mul_(2.0)
    return h + below


def _new(h: Tensor, x: Tensor) -> Tensor:
    made = torch.zeros_like(h)
    with torch.no_grad():
        made.add_(h)
    return made * x


def _similar(h: Tensor, x: Tensor) -> Tensor:
    return h * functional.cosine_similarity(h[:, :8], x[:, 8:], dim=1)[:, None]


@pytest.mark.parametrize("write", [_clamped, _through_data, _detached, _rows, _below, _new, _similar])
def test_writes_without_gradient(write: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Numbers change, gradients are those of what was there before."""
    inputs = coverage.random_inputs(0)
    plain = Unseen(write)
    check(plain, gw.compile(Unseen(write)), (inputs.x, inputs.edge_index), [inputs.x])


@pytest.mark.parametrize("start", [0.0, -1.0, 3.0, -torch.inf])
@pytest.mark.parametrize("kind", ["amax", "amin", "mean"])
def test_extrema_with_a_start(start: float, kind: str) -> None:
    """Ties with the start share the gradient."""
    inputs = coverage.random_inputs(0)

    class Started(nn.Module):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            rows = (x[edge_index[0]] * 2).round() / 2 + x[edge_index[0]] * 0
            index = edge_index[1][:, None].expand_as(rows)
            return torch.full_like(x, start).scatter_reduce(0, index, rows, kind).clamp(-9.0, 9.0)

    check(Started(), gw.compile(Started()), (inputs.x, inputs.edge_index), [inputs.x])


SCALE = types.SimpleNamespace(inner=types.SimpleNamespace(value=1.0))
LOG: list[int] = []


class Settings:
    """An object of a class that a user wrote."""

    factor = 1.0

    def __init__(self) -> None:
        self.offset = 0.0


class Reads(nn.Module):
    """Reads objects, classes and tensors from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.settings, self.kept = Settings(), torch.ones(16)
        self.register_buffer("mask", None)
        self.mask: Tensor | None

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """The sum, scaled."""
        h: Tensor = total(x, edge_index) * SCALE.inner.value * Settings.factor + self.settings.offset
        return h * self.kept if self.mask is None else h * self.mask


def test_changes_of_what_is_read() -> None:
    """Attributes of objects and classes, tensors through other memory, buffers that come and go."""
    inputs = coverage.random_inputs(0)
    compiled = gw.compile(Reads())

    def agrees() -> bool:
        args = inputs.x, inputs.edge_index
        return calls_same(compiled, args) and calls_of(compiled).last is not None

    assert agrees()
    compiled.settings.offset = 1.0
    assert agrees()
    compiled.kept.numpy()[3] = 5.0
    assert agrees()
    SCALE.inner.value = 2.0
    assert agrees()
    Settings.factor = 3.0
    assert agrees()
    for mask in (torch.full((16,), 2.0), None, torch.full((16,), 4.0)):
        compiled.mask = mask
        assert agrees()
    SCALE.inner.value = Settings.factor = 1.0


def calls_same(compiled: Reads, args: tuple[Tensor, Tensor]) -> bool:
    """Whether the compiled module gives what its class does."""
    return torch.allclose(compiled(*args), Reads.forward(compiled, *args))


def _numbers() -> Iterator[float]:
    value = 1.0
    while True:
        yield value
        value += 1.0


class Effects(nn.Module):
    """Does or reads something that differs from call to call."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.log = kind, list[Tensor]()
        self.numbers = _numbers() if kind == "iterator" else None
        self.register_buffer("mean", torch.zeros(16, dtype=torch.float64))
        self.mean: Tensor

    def forward(self, x: Tensor, edge_index: Tensor, given: list[Tensor]) -> Tensor:
        """The sum, after the effect."""
        h = total(x, edge_index)
        if self.kind == "list":
            self.log.append(h.detach())
        elif self.kind == "argument":
            given.append(h)
        elif self.kind == "global":
            LOG.append(len(x))
        elif self.kind == "buffer":
            self.mean = 0.5 * self.mean + h.detach().mean(0)
        elif self.kind == "random":
            h = h * random.random()
        elif self.kind == "environment":
            h = h * float(os.environ["GRAPHWEFT_TEST_SCALE"])
        elif self.numbers is not None:
            h = h * next(self.numbers)
        return h


@pytest.mark.parametrize("kind", ["list", "argument", "global", "buffer", "random", "environment", "iterator"])
def test_effects_happen_in_every_call(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As often and in the same order as without."""
    inputs = coverage.random_inputs(0)
    made = []
    for compiled in (False, True):
        module: Any = gw.compile(Effects(kind)) if compiled else Effects(kind)
        given: list[Tensor] = []
        LOG.clear()
        random.seed(0)
        results = []
        for turn in range(3):
            monkeypatch.setenv("GRAPHWEFT_TEST_SCALE", str(turn))
            results.append(module(inputs.x, inputs.edge_index, given).detach())
        made.append((results, module.log, given, list(LOG), [module.mean]))
    for one, other in zip(*made, strict=True):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            torch.testing.assert_close(torch.as_tensor(left), torch.as_tensor(right))


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_sparse_matrices(layout: torch.layout) -> None:
    """A matrix is structure, its numbers, too: other numbers are noticed."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(16, 4).double()

        def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
            h = torch.sparse.mm(adjacency, self.lin(x))
            return adjacency @ torch.relu(h)

    inputs = coverage.random_inputs(0)
    edges = torch.unique(inputs.edge_index, dim=1)
    plain = Twice()
    compiled = gw.compile(copy.deepcopy(plain))
    for scale in (1.0, 2.0):
        values = torch.linspace(0.1, scale, edges.shape[1], dtype=torch.float64)
        matrix = torch.sparse_coo_tensor(edges, values, (40, 40)).coalesce().to_sparse(layout=layout)
        check(plain, compiled, (inputs.x, matrix), [inputs.x])
        last = calls_of(compiled).last
        assert last is not None and len(last.regions) == 1 and not last.planned.apart
