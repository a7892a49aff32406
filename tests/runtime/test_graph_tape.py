"""Steps over batches of small graphs are replayed from calls that were written down with sizes as parameters."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import graphweft as gw
from graphweft import _native
from graphweft._budget import Budget
from graphweft.runtime import graph_tape, repeated
from graphweft.runtime.graph_tape import GraphTape

OWN_LOOPS = ("gcn", "gat", "gatv2")  # which leave the self-loops of a graph out: how many there are is no size


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second batch of a class of sizes is recorded."""
    monkeypatch.setattr(repeated, "RECORDED_AFTER", 1)


def some_graphs(symmetric: bool = True, count: int = 90, seed: int = 0, loops: bool = True) -> gw.GraphDataset:
    """Random graphs of 5 to 20 nodes, without self-loops where ``loops`` is False."""
    draw = torch.Generator().manual_seed(seed)
    graphs, rows = [], []
    for _ in range(count):
        nodes = int(torch.randint(5, 21, (), generator=draw))
        src, dst = torch.randint(nodes, (2, 2 * nodes), generator=draw)
        dst = dst if loops else (src + 1 + dst % (nodes - 1)) % nodes
        ends = (torch.cat([src, dst]), torch.cat([dst, src])) if symmetric else (src, dst)
        graphs.append(gw.Graph(*ends, num_nodes=nodes))
        rows.append(torch.randn(nodes, 6, generator=draw))
    y = torch.randint(3, (count,), generator=draw)
    return gw.GraphDataset.from_list(graphs, x=rows, y=y).split(1.0, 0.0, 0.0)


def gin(norm: str | None = "batch", **options: object) -> gw.nn.GraphModel:
    """The same weights every time."""
    torch.manual_seed(3)
    return gw.nn.GraphModel(6, 8, 3, num_layers=3, norm=norm, **options)


def trained(model: gw.nn.GraphModel, ds: gw.GraphDataset, **options: object) -> gw.Trainer:
    """After a few epochs of small batches of changing size."""
    trainer = gw.Trainer(model, ds, batch_size=16, lr=0.01, seed=1, restore_best=False, **options)
    trainer.fit(6)
    return trainer


def tapes_of(trainer: gw.Trainer) -> list[GraphTape]:
    """Those that were recorded, of whole steps and of layers alone."""
    steps = trainer._batch
    whole = [] if steps._step is None else steps._step.tapes
    return [*whole, *(tape for tape in steps._repeated._tapes.values() if tape is not None)]


def by_hand(model: gw.nn.GraphModel, batch: gw.GraphBatch) -> Tensor:
    """The same in float64 from dense matrices; the parameters are copies that gradients are taken of."""
    src, dst = batch.graph.edges()
    adjacency = torch.zeros(batch.num_nodes, batch.num_nodes, dtype=torch.float64)
    adjacency.index_put_((dst, src), torch.ones(src.numel(), dtype=torch.float64), accumulate=True)
    owner = torch.nn.functional.one_hot(batch.batch, batch.num_graphs).double().T
    h = batch.x.double()
    read = [owner @ h]
    for layer, norm in zip(model.encoder.layers, model.encoder.norms, strict=True):
        h = (adjacency @ h + h) @ layer.weight1 + layer.bias1
        h = torch.relu(normalised(h, layer.norm))
        h = torch.relu(normalised(h @ layer.weight2 + layer.bias2, norm))
        read.append(owner @ h)
    return torch.nn.functional.linear(torch.cat(read, 1), model.head.weight, model.head.bias)


def normalised(h: Tensor, norm: object) -> Tensor:
    """A batch norm in training mode."""
    if norm is None or isinstance(norm, torch.nn.Identity):
        return h
    return torch.nn.functional.batch_norm(h, None, None, norm.weight, norm.bias, True, 0.0, norm.eps)


@pytest.mark.parametrize(
    "options", [{"readout": "mean"}, {"readout": "mean+max"}, {"jumping": "last"}, {"dropout": 0.3}]
)
def test_steps_without_the_engine_agree_with_a_plain_loop(options: dict[str, object]) -> None:
    ds, model, plain = some_graphs(), gin(**options), gin(**options)
    trainer = gw.Trainer(model, ds, batch_size=16, optimizer=torch.optim.Adam(model.parameters(), lr=0.01), seed=1)
    steps = trainer._batch
    steps.prepare()
    for batch in steps.loader:
        for one in (model, plain):
            one.zero_grad()
            torch.manual_seed(5)
            if one is plain:
                torch.nn.functional.cross_entropy(one.train()(batch.graph, batch.x, batch.ptr), batch.y).backward()
            else:
                steps.gradients(batch)
        for (name, mine), other in zip(model.named_parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("symmetric", [True, False])
def test_gradients_of_replays_agree_with_dense_float64(symmetric: bool) -> None:
    ds = some_graphs(symmetric)
    model = gin()
    trainer = trained(model, ds)
    assert tapes_of(trainer)
    oracle = gin().double()
    oracle.load_state_dict(model.state_dict())
    steps, seen = trainer._batch, set()
    for batch in steps.loader:
        model.zero_grad()
        oracle.zero_grad()
        steps.gradients(batch)
        torch.nn.functional.cross_entropy(by_hand(oracle.train(), batch), batch.y).backward()
        seen.add((batch.num_nodes, batch.graph.num_edges))
        for (name, mine), other in zip(model.named_parameters(), oracle.parameters(), strict=True):
            torch.testing.assert_close(mine.grad.double(), other.grad, rtol=2e-3, atol=2e-4, msg=name)
    assert len(seen) > 3  # of different sizes


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"clip": 0.5, "ema": 0.9}])
def test_replays_change_no_bit(options: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    ds, taped = some_graphs(), gin(dropout=0.3)
    assert tapes_of(trained(taped, ds, **options))
    monkeypatch.setattr(repeated, "RECORDED_AFTER", 10**9)
    plain = gin(dropout=0.3)
    assert not tapes_of(trained(plain, ds, **options))
    for (name, mine), other in zip(taped.state_dict().items(), plain.state_dict().values(), strict=True):
        assert torch.equal(mine, other), name


@pytest.fixture
def recorded() -> Iterator[list[object]]:
    """Native calls that go through Python."""
    calls: list[object] = []
    _native.recorder.calls = calls  # type: ignore[assignment]
    yield calls
    _native.recorder.calls = None


def test_no_call_of_a_step_goes_through_python(recorded: list[object]) -> None:
    _native.recorder.calls = None
    ds, model = some_graphs(), gin()
    steps = trained(model, ds)._batch
    model.train()
    step, labels = steps._step, torch.zeros(16, dtype=torch.int64)
    batches = [b for b in steps.loader if b.num_graphs == 16]
    batch = next(b for b in batches if step._tapes.get(step.key(step.inputs(b, labels, 0))) is not None)
    _ = [form for graph in (batch.graph, batch.of_graphs) for form in (graph.csc, graph.reverse().csc)]
    _native.recorder.calls = recorded  # type: ignore[assignment]
    found = step(batch, ds.y[batch.index].contiguous(), 0)
    assert not recorded
    assert all(found.gradients[name] is not None for name, p in model.encoder.named_parameters())
    assert all(made is not None for made in found.head.values())


@pytest.mark.parametrize(
    ("conv", "loops"),
    [("gcn", False), ("sage", True), ("gat", False), ("gatv2", False), ("transformer", True), ("gcn", True)],
)
def test_other_layers_change_no_bit_either(conv: str, loops: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With draws within the layers, several readouts and a graph that is not symmetric."""
    ds, models = some_graphs(symmetric=False, loops=loops), []
    for after in (1, 10**9):
        monkeypatch.setattr(repeated, "RECORDED_AFTER", after)
        model = gin(conv=conv, readout="mean+max")
        model.encoder.dropout = 0.2
        trainer = trained(model, ds)
        assert bool(tapes_of(trainer)) == (after == 1 and not (loops and conv in OWN_LOOPS))
        models.append(model)
    for (name, mine), other in zip(models[0].state_dict().items(), models[1].state_dict().values(), strict=True):
        assert torch.equal(mine, other), name


@pytest.mark.parametrize("kind", ["attention", "set2set"])
def test_layers_are_replayed_below_a_readout_of_torch(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ds, models = some_graphs(), []
    for after in (1, 10**9):
        monkeypatch.setattr(repeated, "RECORDED_AFTER", after)
        torch.manual_seed(2)
        readout = gw.nn.AttentionPool(torch.nn.Linear(24, 1)) if kind == "attention" else gw.nn.Set2Set(24, 2)
        if kind == "attention":
            readout.width = lambda columns: columns
        model = gin(readout=readout)
        assert bool(tapes_of(trained(model, ds))) == (after == 1)
        models.append(model)
    for (name, mine), other in zip(models[0].state_dict().items(), models[1].state_dict().values(), strict=True):
        assert torch.equal(mine, other), name


def test_labels_that_go_missing_and_hooks_of_the_head_count_at_once() -> None:
    """A loss whose number of entries was written down would be wrong; a hook would not be told."""
    ds = some_graphs()
    values = gw.GraphDataset.from_list(list(ds), y=torch.randn(len(ds)), task="regression").split(1.0, 0.0, 0.0)
    torch.manual_seed(3)
    model = gw.nn.GraphModel(6, 8, 1, num_layers=2)
    trainer = trained(model, values)
    assert tapes_of(trainer)
    values.y[::2] = float("nan")
    trainer.fit(1)
    model.train()
    steps, plain = trainer._batch, copy.deepcopy(model)
    batch = next(iter(steps.loader))
    for one in (model, plain):
        one.zero_grad()
    steps.gradients(batch)
    known = ~values.y[batch.index].isnan()
    out = plain(batch.graph, batch.x, batch.ptr).squeeze(1)
    (out - values.y[batch.index])[known].square().mean().backward()
    for (name, mine), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-3, atol=1e-5, msg=name)
    values.y[::2] = 0.0
    seen: list[Tensor] = []
    model.head.weight.register_hook(seen.append)
    trainer.fit(1)
    assert len(seen) == len(steps.loader)


def test_parameters_that_move_are_looked_up_again() -> None:
    model = gin()
    trainer = trained(model, some_graphs())
    before = tapes_of(trainer)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.data = parameter.detach().clone()
    trainer.fit(3)
    assert tapes_of(trainer)
    assert all(tape.serves() for tape in tapes_of(trainer)) or not any(tape in before for tape in tapes_of(trainer))
    other = gin()
    trained(other, some_graphs()).fit(3)
    for (name, mine), same in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(mine, same), name


def test_memory_stays_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with Budget(64 << 30).enforced():
        trainer = trained(gin(), some_graphs())
    assert not tapes_of(trainer)
    monkeypatch.setattr(graph_tape, "_MOST_BYTES", 1 << 16)
    assert not tapes_of(trained(gin(), some_graphs()))
