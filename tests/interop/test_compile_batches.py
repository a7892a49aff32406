"""``gw.compile`` on the batches of our loaders: one recording for all sizes, and the rows of the seeds alone.

Compared with the module itself, in float64: outputs and all gradients.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphweft as gw
from graphweft.graph.hops import Hops, hops_of
from graphweft.nn.batch_call import BatchProgram
from graphweft.nn.compiled import calls_of

pyg = pytest.importorskip("torch_geometric.nn")
pytestmark = pytest.mark.filterwarnings("ignore::graphweft.FallbackWarning")

WIDTH, CLASSES, SEEDS = 6, 5, 20


@pytest.fixture(scope="module")
def ds() -> Any:
    """Nodes with hubs, isolated ones among them."""
    generator = torch.Generator().manual_seed(3)
    nodes = 600
    src = torch.randint(0, nodes, (4000,), generator=generator)
    dst = (torch.rand(4000, generator=generator) ** 2 * (nodes - 50)).long()
    x = torch.randn(nodes, WIDTH, generator=generator, dtype=torch.float64)
    y = torch.randint(0, CLASSES, (nodes,), generator=generator)
    return gw.Dataset("drawn", gw.Graph(src, dst, num_nodes=nodes), x, y, train_idx=torch.arange(0, nodes, 2))


def batches(ds: Any, count: int = 4, **options: Any) -> list[Any]:
    found: Iterator[Any] = iter(gw.Loader(ds, ds.train_idx, [4, 3, 2], SEEDS, shuffle=True, seed=1, **options))
    drawn = [batch for _, batch in zip(range(count), found, strict=False)]
    for batch in drawn:
        batch.x = batch.x.double()
    return drawn


class Branching(nn.Module):
    """Takes one of two ways by the number of nodes."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.lin = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Doubles the rows of large batches."""
        out = torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
        out = self.lin(out)
        return 2 * out if x.shape[0] > self.limit else out


class Reading(Branching):
    """Reads ids."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Uses the largest id as a number."""
        out = torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
        return self.lin(out) * float(edge_index.max())


class MeanDegree(Branching):
    """Scales by a number that follows from all edges."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """As PNA does."""
        degree = torch.zeros(x.shape[0], dtype=x.dtype).scatter_add(
            0, edge_index[1], torch.ones_like(x[:1, 0]).expand(edge_index.shape[1])
        )
        out = torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
        return self.lin(out) * (degree + 1).log().mean() + x.mean()


class Pairs(Branching):
    """Two layers with sums at both ends of the edges, and rows of all nodes between."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Sends along edges, back, and along again."""
        src, dst = edge_index
        out = torch.zeros_like(x).index_add(0, dst, x[src] - x[dst])
        out = torch.zeros_like(x).index_add(0, src, out[dst].tanh())
        out = (out - out.mean(0)) / (1 + out.var(0))
        return self.lin(torch.zeros_like(x).index_add(0, dst, out[src]))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "sage": lambda: pyg.GraphSAGE(WIDTH, 8, 3, CLASSES),
    "sage max": lambda: pyg.GraphSAGE(WIDTH, 8, 2, CLASSES, aggr="max", jk="cat"),
    "sage norms": lambda: pyg.GraphSAGE(WIDTH, 8, 3, CLASSES, norm="batch_norm"),
    "sage layer norm": lambda: pyg.GraphSAGE(WIDTH, 8, 3, CLASSES, norm="layer_norm"),
    "gin": lambda: pyg.GIN(WIDTH, 8, 3, CLASSES),
    "gcn": lambda: pyg.GCN(WIDTH, 8, 3, CLASSES),
    "gat": lambda: pyg.GAT(WIDTH, 8, 2, CLASSES, heads=2),
    "deeper than hops": lambda: pyg.GraphSAGE(WIDTH, 8, 5, CLASSES),
    "edge conv": lambda: pyg.EdgeCNN(WIDTH, 8, 2, CLASSES),
    "reading": lambda: Reading(0),
    "mean degree": lambda: MeanDegree(0),
    "pairs": lambda: Pairs(0),
}


def compare(plain: nn.Module, compiled: nn.Module, batch: Any, seeds_only: bool) -> None:
    """The same outputs and gradients."""
    x = batch.x.clone().requires_grad_()
    x2 = batch.x.clone().requires_grad_()
    whole = plain(x, batch.edge_index)
    wanted = whole[: batch.batch_size] if seeds_only else whole
    found = compiled(x2, batch.edge_index)
    assert found.shape == wanted.shape
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    weights = torch.randn(wanted.shape, dtype=wanted.dtype)
    one = torch.autograd.grad((wanted * weights).sum(), [x, *plain.parameters()])
    two = torch.autograd.grad((found * weights).sum(), [x2, *compiled.parameters()])
    for expected, got in zip(one, two, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("seeds_only", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_every_batch_is_right(ds: Any, name: str, seeds_only: bool) -> None:
    """Outputs, gradients and buffers of batches of different sizes."""
    torch.manual_seed(0)
    plain = MODELS[name]().double()
    compiled = gw.compile(copy.deepcopy(plain), seeds_only=seeds_only)
    sizes = set()
    for batch in batches(ds):
        sizes.add((batch.num_nodes, batch.num_edges))
        compare(plain, compiled, batch, seeds_only)
    assert len(sizes) == 4
    for one, two in zip(plain.buffers(), compiled.buffers(), strict=True):
        torch.testing.assert_close(two, one, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seeds_only", [False, True])
@pytest.mark.parametrize("name", ["sage", "gin", "sage norms", "sage layer norm"])
def test_one_recording_serves_all(ds: Any, monkeypatch: pytest.MonkeyPatch, name: str, seeds_only: bool) -> None:
    """The module's own code runs once."""
    model = MODELS[name]().double()
    runs = []
    forward = type(model).forward
    monkeypatch.setattr(type(model), "forward", lambda self, *args: runs.append(1) or forward(self, *args))
    compiled = gw.compile(model, seeds_only=seeds_only)
    for batch in batches(ds):
        compiled(batch.x, batch.edge_index)
    assert len(runs) == 1


def test_layers_compute_fewer_and_fewer_rows(ds: Any) -> None:
    """Of the seeds, and of those that they follow from."""
    (batch,) = batches(ds, 1)
    compiled = gw.compile(MODELS["sage"]().double(), seeds_only=True)
    compiled(batch.x, batch.edge_index)
    last = calls_of(compiled).last
    assert last is not None
    hops = hops_of(batch.edge_index)
    assert hops is not None
    found = [(run.graph.num_src, run.graph.num_dst, run.graph.num_edges) for run in last.regions]
    assert found == list(zip(hops.nodes[:0:-1], hops.nodes[-2::-1], hops.edges[::-1], strict=True))


def test_code_that_branches_on_sizes(ds: Any) -> None:
    """Every batch goes its own way."""
    drawn = batches(ds)
    limit = sorted(batch.num_nodes for batch in drawn)[1]
    plain = Branching(limit).double()
    compiled = gw.compile(copy.deepcopy(plain), seeds_only=True)
    for batch in [*drawn, *drawn]:
        compare(plain, compiled, batch, True)


def test_parameters_and_settings_that_change(ds: Any) -> None:
    """After a step, another mode and another attribute."""
    plain = pyg.GraphSAGE(WIDTH, 8, 2, CLASSES, norm="batch_norm").double()
    compiled = gw.compile(copy.deepcopy(plain), seeds_only=True)
    for at, batch in enumerate(batches(ds)):
        with torch.no_grad():
            for one, two in zip(plain.parameters(), compiled.parameters(), strict=True):
                one += 0.1 * at
                two += 0.1 * at
        for model in (plain, compiled):
            model.train(at % 2 == 0)
            model.act = torch.nn.Tanh() if at > 1 else torch.nn.ReLU()
        compare(plain, compiled, batch, True)


def test_edges_that_were_changed_have_no_hops(ds: Any) -> None:
    """Another tensor, or one that was written to, gives rows of all nodes."""
    (batch,) = batches(ds, 1)
    plain = MODELS["sage"]().double()
    compiled = gw.compile(copy.deepcopy(plain), seeds_only=True)
    compare(plain, compiled, batch, True)
    edge_index = batch.edge_index
    edge_index[0] = edge_index[0].flip(0)
    assert hops_of(edge_index) is None
    torch.testing.assert_close(compiled(batch.x, edge_index), plain(batch.x, edge_index))


def test_wrong_hops_are_not_believed() -> None:
    """Edges in another order, or from beyond the next hop."""
    edges = torch.tensor([[1, 2, 3], [0, 0, 1]])
    assert Hops(1, (1, 3, 4), (2, 3)).hold(edges)
    assert not Hops(1, (1, 2, 4), (2, 3)).hold(edges)
    assert not Hops(1, (1, 3, 4), (1, 3)).hold(edges)
    assert not Hops(1, (1, 3, 4), (3, 3)).hold(edges)
    assert not Hops(1, (1, 3, 4), (2, 3)).hold(edges.flip(1))


@pytest.mark.parametrize("sampler", ["labor", "shadow"])
def test_other_samplers(ds: Any, sampler: str) -> None:
    """Batches whose edges lie otherwise."""
    made = (
        gw.sampling.LaborSampler(ds.graph, [3, 3])
        if sampler == "labor"
        else gw.sampling.ShadowSampler(ds.graph, [3, 2])
    )
    plain = pyg.GraphSAGE(WIDTH, 8, 2, CLASSES).double()
    compiled = gw.compile(copy.deepcopy(plain), seeds_only=True)
    for batch, _ in zip(gw.Loader(ds, ds.train_idx, sampler=made, batch_size=SEEDS, seed=0), range(3), strict=False):
        batch.x = batch.x.double()
        compare(plain, compiled, batch, True)


def test_the_option_stays_with_copies(ds: Any) -> None:
    """Pickled and copied modules give the rows of the seeds, too; other edges give all."""
    (batch,) = batches(ds, 1)
    compiled = gw.compile(MODELS["gin"]().double(), seeds_only=True)
    for made in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        assert made(batch.x, batch.edge_index).shape == (SEEDS, CLASSES)
        assert made(batch.x, batch.edge_index.clone()).shape == (batch.num_nodes, CLASSES)
    assert gw.compile(compiled)(batch.x, batch.edge_index).shape == (batch.num_nodes, CLASSES)


def test_interpreted_calls_give_the_same_rows(ds: Any) -> None:
    """Calls that run as they stand."""
    (batch,) = batches(ds, 1)
    plain = MODELS["sage"]().double()
    compiled = gw.compile(copy.deepcopy(plain), seeds_only=True)
    with gw.config(opt_level=0):
        compare(plain, compiled, batch, True)


def test_trainer(ds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses of a run on mini-batches are those of the module itself; rows of the seeds alone are computed."""
    torch.manual_seed(0)
    plain = MODELS["sage"]()
    compiled = gw.compile(copy.deepcopy(plain))
    rows: list[int] = []
    bound = BatchProgram.bound

    def watched(program: BatchProgram, batch: Any) -> Any:
        made = bound(program, batch)
        if made is not None:
            rows.append(made.regions[-1].graph.num_dst)
        return made

    monkeypatch.setattr(BatchProgram, "bound", watched)
    losses = []
    for model in (plain, compiled):
        options = {"mode": "mini", "fanouts": [4, 3, 2], "batch_size": SEEDS, "lr": 0.01, "seed": 0}
        history = gw.Trainer(model, ds, **options).fit(epochs=2)
        losses.append([record.loss for record in history])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert rows == [SEEDS] * 30


class Divided(nn.Module):
    """Means over neighbours, with counts laid over the features."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Rows of 8."""
        src, dst = edge_index
        h = self.lin(x)
        count = h.new_zeros(len(h)).scatter_add_(0, dst, h.new_ones(len(dst))).clamp(min=1)
        return torch.zeros_like(h).index_add_(0, dst, h[src]) / count[:, None].expand_as(h)


def test_counts_that_are_all_alike_in_one_batch() -> None:
    """Seeds of one neighbour each, then seeds of three: what is recorded over the first holds no count."""
    src = torch.arange(2000) % 977 + 1000
    dst = torch.cat([torch.arange(1500) // 3, torch.arange(500, 1000)])
    graph = gw.Graph(src, dst, num_nodes=2000)
    ds = gw.Dataset("alike", graph, torch.randn(2000, 8), torch.arange(2000) % 2)
    plain = Divided()
    compiled = gw.compile(copy.deepcopy(plain), seeds_only=True)
    for k, batch in enumerate(gw.Loader(ds, torch.arange(1000).flip(0), fanouts=[3], batch_size=200, shuffle=False)):
        wanted = plain(batch.x, batch.edge_index)[: batch.batch_size]
        torch.testing.assert_close(compiled(batch.x, batch.edge_index), wanted, rtol=1e-5, atol=1e-5)
        last = calls_of(compiled).last
        assert last is not None
        counts = list(last.regions[0].structure.values())
        assert k or any(len(x) == len(batch.x) and bool((x == 1).all()) for x in counts), (
            "a count is read in every call"
        )
