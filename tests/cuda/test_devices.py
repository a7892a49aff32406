"""Graphs and programs on a device that is not here: under FakeTensorMode, which knows devices and has no numbers."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch
from nn.models import IN, make
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from zoo import random_edges

import graphweft as gw
from graphweft._errors import ConfigError, GraphError
from graphweft.graph.placed import PlacedGraph, looped, on_device
from graphweft.measure import device_check
from graphweft.runtime import constants
from graphweft.runtime.captured import Step
from graphweft.runtime.compile import Arguments
from graphweft.runtime.cuda import jit, kernels, update_kernels, walks
from graphweft.runtime.cuda.graphs import GraphStep
from graphweft.runtime.cuda.recording import recording
from graphweft.runtime.cuda.target import CUDA
from graphweft.runtime.padded import BatchBuffers, Shapes
from graphweft.runtime.staged import Choice
from graphweft.runtime.targets import target_of
from graphweft.train.device_full import DeviceFullBatch
from graphweft.train.target import Classes
from graphweft.train.update import Update

META = torch.device("meta")
NO_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")


def small() -> gw.Graph:
    edges = random_edges(20, 60, 1)
    return gw.Graph(edges.src, edges.dst, num_nodes=20)


class HostTensors(TorchDispatchMode):
    """Notes every operation that reads or makes a tensor in host memory, or waits for a number."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        leaves = tree_leaves((args, kwargs, made))
        self.names.append(str(func))
        if any(isinstance(t, Tensor) and t.device.type == "cpu" for t in leaves) or "local_scalar" in str(func):
            self.seen.append(str(func))
        return made


@pytest.mark.parametrize(
    ("name", "most"), [("gcn", 6), ("sage", 7), ("gin", 9), ("gat", 13), ("gatv2", 14), ("ngcf", 13)]
)
def test_a_step_makes_no_host_tensor_and_waits_for_nothing(
    name: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward and backward of a model with two layers; ``most``: own kernels that it launches."""
    pytest.importorskip("triton", reason="triton is not installed")
    launched: list[Any] = []

    def note(compiled: Any, grid: Any, *arguments: Any, **fixed: Any) -> None:
        assert {t.device for t in arguments if isinstance(t, Tensor)} == {torch.device("cuda:0")}
        launched.append(compiled)

    monkeypatch.setattr(jit, "launch", note)
    monkeypatch.setattr(walks, "launch", note)
    graph, model = small(), make(name).train()
    with gw.config(target="reference", certify=False):  # what follows from structure alone is made in host memory
        model(graph, torch.zeros(20, IN)).sum().backward()
    graphs = (graph, graph.loopless, looped(graph))
    for each in graphs:
        assert each.reverse().csc.num_edges == each.num_edges
    with FakeTensorMode(allow_non_fake_inputs=True), gw.config(certify=False, calibrate=False):
        x, placed = torch.empty(20, IN, device="cuda:0"), graph.to("cuda:0")
        parameters = {n: torch.nn.Parameter(torch.empty(p.shape, device="cuda:0")) for n, p in model.named_parameters()}
        with _reparametrize_module(model, parameters):
            out, pullback = model.linearize(placed, x, None)
            pullback(torch.empty_like(out))  # sends the structure
            launched.clear()
            with HostTensors() as watch:
                out, pullback = model.linearize(placed, x, None)
                gradients = pullback(torch.empty_like(out))
        devices = {t.device for t in (out, *gradients.values()) if t is not None}
    assert devices == {torch.device("cuda:0")}
    assert not watch.seen and watch.names
    assert 0 < len(launched) <= most, len(launched)


@pytest.mark.parametrize(("name", "most"), [("gcn", 10), ("sage", 9), ("gin", 11), ("gat", 14), ("gatv2", 15)])
def test_a_padded_batch_is_two_graphs_that_make_no_host_tensor_and_wait_for_nothing(
    name: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second stage of a batch with its loss, as it is recorded; ``most``: own kernels inside both graphs."""
    pytest.importorskip("triton", reason="triton is not installed")
    there, launched, seen, recorded = torch.device("cuda:0"), list[Any](), list[str](), list[Any]()

    def note(compiled: Any, grid: Any, *arguments: Any, **fixed: Any) -> None:
        assert {t.device for t in arguments if isinstance(t, Tensor)} == {there}
        launched.append(compiled)

    class Noting:
        """Runs what a device would record."""

        def __init__(self, device: torch.device) -> None:
            assert device == there

        def warm(self, body: Any, alone: bool = False) -> None:
            body()
            launched.clear()

        def record(self, body: Any) -> Any:
            with HostTensors() as watch:
                made = body()
            seen.extend(watch.seen)
            recorded.append(made)
            return (lambda: None), made

    for module in (jit, walks):
        monkeypatch.setattr(module, "launch", note)
    monkeypatch.setattr(BatchBuffers, "fill", lambda *given: None)  # copies from host memory, which are not recorded
    graph, model = small(), make(name).train()
    sampler, seeds, y = gw.sampling.NeighborSampler(graph, (3, 2)), torch.arange(4), torch.arange(20) % 3
    first = sampler.sample(seeds)
    with FakeTensorMode(allow_non_fake_inputs=True), gw.config(certify=False, calibrate=False):
        x = torch.empty(20, IN, device=there)
        tensors = {n: torch.empty(t.shape, device=there) for n, t in model.state_dict().items()}
        wanted = {n: p.requires_grad for n, p in model.named_parameters()}
        parameters = {n: torch.nn.Parameter(t, wanted.get(n, False)) for n, t in tensors.items()}
    with gw.config(certify=False, calibrate=False):  # structure that stays is made in host memory
        plan = model.staged(sampler, x, device=there).compile(parameters, True, first, Choice(numbered=True))
    batch = plan.prepare(seeds, (1, 0))
    shapes = Shapes(plan.plan)
    bounds = shapes.of(4, batch.values).widened(0.5)
    with FakeTensorMode(allow_non_fake_inputs=True), gw.config(certify=False, calibrate=False):
        step = Step(plan, shapes, parameters, Classes().written_down(y, CUDA), False, there)
        captured = GraphStep.capture(step, bounds, batch, y[seeds], Noting)
    assert captured is not None and captured.launches == len(recorded) == 2
    assert not seen and 0 < len(launched) <= most, (seen, len(launched))
    made = [t for t in recorded[1].values() if t is not None]
    assert len(made) == sum(wanted.values()) and {t.device for t in made} == {there}


def test_structure_is_sent_once_and_answers_as_the_graph_does() -> None:
    graph = small()
    graph.ndata["h"] = torch.ones(20, 2)
    placed = graph.to("meta")
    assert isinstance(placed, PlacedGraph) and placed.device == META and placed.to("meta") is placed
    assert placed.ndata["h"].device == META and placed.csc.indices.device == META
    assert placed.csc is graph.to("meta").csc is on_device(graph, META).csc
    assert placed.num_edges == 60 and placed.stats == graph.stats and placed.is_symmetric == graph.is_symmetric
    for mine, other in (
        (placed.reverse(), graph.reverse()),
        (placed.loopless, graph.loopless),
        (placed.with_one_loop(), graph.with_one_loop()),
        (placed.edges_into(torch.tensor([1, 2])), graph.edges_into(torch.tensor([1, 2]))),
    ):
        assert mine.device == META and mine.num_edges == other.num_edges
        assert mine.csc.indptr.shape == other.csc.indptr.shape
    assert all(t.device == META and t.shape == (60,) for t in placed.edges())
    assert placed.in_degrees() is placed.in_degrees() and placed.in_degrees().device == META
    back = on_device(placed, torch.device("cpu"))
    assert back is graph
    for twin in (copy.deepcopy(placed), pickle.loads(pickle.dumps(placed))):
        assert twin.device == META and twin.num_edges == 60 and twin.ndata["h"].shape == (20, 2)
    with pytest.raises(GraphError, match="expected arrays in host memory, got meta"):
        _ = placed.csc.native


def test_the_graph_follows_the_numbers_and_two_devices_are_one_line() -> None:
    graph, x = small(), torch.zeros(20, 3)
    arguments = Arguments(graph, x.to(META), {}, torch.tensor([1]), 0, False)
    assert arguments.graph.device == META and arguments.rows is not None and arguments.rows.device == META
    with pytest.raises(ConfigError, match="x on meta cannot be combined with w on cpu"):
        Arguments(graph, x.to(META), {"w": torch.zeros(3)}, None, 0, False)
    assert Arguments(graph, x, {}, None, 0, False).graph is graph


@pytest.mark.parametrize("name", ["gcn", "sage", "gat", "gin", "gatv2", "sage_max"])
def test_sampled_blocks_follow_the_numbers(name: str) -> None:
    """As a loop of one's own over a loader has it: forward and backward, by shapes and devices."""
    batch = gw.sampling.NeighborSampler(small(), [3, 3]).sample(torch.arange(5))
    model = make(name)
    expected = model(batch.blocks, torch.zeros(batch.n_id.numel(), IN))
    model.to(META)
    out = model(batch.blocks, torch.zeros(batch.n_id.numel(), IN, device=META))
    out.sum().backward()
    assert out.device == META and out.shape == expected.shape
    assert all(p.grad is not None and p.grad.device == META for p in model.parameters())


def test_the_target_follows_the_device() -> None:
    cuda, host = torch.device("cuda:1"), torch.device("cpu")
    assert target_of(cuda).name == "cuda" and target_of(host).name == "cpu"
    assert target_of(META).name == "reference"
    with gw.config(target="reference"):
        assert target_of(cuda).name == "reference"


def pairs() -> gw.Dataset:
    every = torch.arange(4)
    labels = torch.tensor([0, 0, 1, 1])
    return gw.Dataset(
        "p", gw.Graph([0, 1, 2, 3], [1, 0, 3, 2]), torch.eye(4), labels, every[::2], every[1:2], every[3:], 2
    )


def test_the_trainer_takes_the_device_of_a_full_batch_and_refuses_others_for_batches() -> None:
    plain, given = (gw.Trainer(net(), pairs(), lr=0.1, device=device) for device in (None, "cpu"))
    assert [r.loss for r in plain.fit(epochs=3)] == [r.loss for r in given.fit(epochs=3)]
    with pytest.raises(ConfigError, match="device='meta' cannot be combined with mode='mini'; a loop of your own"):
        gw.Trainer(net().to("meta"), pairs(), mode="mini")


def net() -> gw.nn.GCN:
    torch.manual_seed(0)
    return gw.nn.GCN(4, 4, 2)


@NO_CUDA
def test_no_device_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"Graph.to: expected a device of this machine \(cpu\), got 'cuda'; "):
        small().to("cuda")
    with pytest.raises(ConfigError, match=r"^device: expected a device of this machine \(cpu\), got 'cuda'; "):
        gw.Trainer(gw.nn.GCN(4, 4, 2), pairs(), device="cuda")
    with pytest.raises(ConfigError, match=r"--device: expected a device of this machine \(cpu\), got 'cuda'; "):
        device_check.main("cuda")


def test_the_package_works_without_triton_and_says_so_where_it_is_asked_for() -> None:
    text = """
import sys
sys.modules["triton"] = None
import torch, graphweft as gw
graph, model = gw.Graph([0, 1], [1, 0]), gw.nn.GCN(3, 4, 2)
model(graph, torch.ones(2, 3))
try:
    with gw.config(target="cuda"):
        model(graph, torch.ones(2, 3))
except gw.errors.GraphWeftError as failure:
    print(failure)
"""
    made = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, timeout=120)
    assert made.stdout.startswith("cuda: expected the package triton, which is not installed"), made.stdout


@pytest.mark.parametrize(
    ("net", "most"), [(gw.nn.GCN(64, 32, 8, num_layers=3), 14), (gw.nn.GAT(64, 16, 8, heads=4, num_layers=2), 16)]
)
def test_calls_of_a_step_are_few(net: gw.nn.GCN, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward of a plan for a device; a rearrangement launches nothing, and what is hoisted runs once."""
    pytest.importorskip("triton", reason="triton is not installed")
    for module in (jit, walks):
        monkeypatch.setattr(module, "launch", lambda *given, **fixed: None)
    with gw.config(target="cuda", certify=False):
        out, pullback = net.linearize(small(), torch.zeros(20, 64), None)
        pullback(torch.ones_like(out))
    (plan,) = net._function.plans()
    calls = [
        line for line in plan.text.split("forward:")[1].splitlines() if " = " in line and " = reshape(" not in line
    ]
    assert 0 < len(calls) <= most, plan.text


def test_ids_that_are_declared_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device is waited for at a check."""
    checks = list[int]()
    monkeypatch.setattr(constants, "check_ids", lambda who, ids, bound: checks.append(bound))
    rows = torch.tensor([2, 0])
    for bound in (3, 3):
        constants.check_ids_once("rows", rows, bound)
    assert checks == [3, 3]
    with constants.owning(rows):
        for bound in (3, 3, 2, 2):
            constants.check_ids_once("rows", rows, bound)
        assert checks == [3, 3, 3, 2]
        rows[0] = 1
        constants.check_ids_once("rows", rows, 2)
    assert checks == [3, 3, 3, 2, 2]


def test_sparse_features_stay_sparse_beside_parameters_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are sent once, as entries by row and by column; a step makes no dense rows of them and waits for nothing."""
    pytest.importorskip("triton", reason="triton is not installed")
    launched: list[Any] = []
    for module in (jit, walks):
        monkeypatch.setattr(module, "launch", lambda compiled, *given, **fixed: launched.append((compiled, given)))
    graph, model = small(), make("gcn").train()
    x = gw.data.SparseFeatures.from_dense(torch.eye(20, IN))
    with gw.config(target="reference", certify=False):
        model(graph, x).sum().backward()
    assert x.transposed[0].num_rows == IN
    with FakeTensorMode(allow_non_fake_inputs=True), gw.config(certify=False, calibrate=False):
        there = {n: torch.nn.Parameter(torch.empty(p.shape, device="cuda:0")) for n, p in model.named_parameters()}
        with _reparametrize_module(model, there):
            for _ in range(2):
                launched.clear()
                with HostTensors() as watch:
                    out, pullback = model.linearize(graph, x, None)
                    gradients = pullback(torch.empty_like(out))
    assert not watch.seen, watch.seen
    assert {t.device for t in (out, *gradients.values()) if t is not None} == {torch.device("cuda:0")}
    entries = [given for compiled, given in launched if compiled is kernels.sum_edges.compiled]
    assert [given[2].numel() for given in entries].count(x.nnz) == 2 and not x.__dict__.get("dense")
    assert all(t.shape != (20, IN) for _, given in launched for t in given if isinstance(t, Tensor))


@pytest.mark.filterwarnings("ignore:Accessing the data pointer")  # of fake tensors
@pytest.mark.parametrize("labels", ["classes", "several", "numbers"])
def test_a_whole_step_with_loss_and_update_waits_for_nothing(labels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a trainer of full batches takes it on a device: call by call, and as two graphs with the update."""
    pytest.importorskip("triton", reason="triton is not installed")
    launched, updates_of, step = list[Any](), list[int](), update_kernels.adam_step.compiled
    for module in (jit, walks):
        monkeypatch.setattr(module, "launch", lambda compiled, *given, **fixed: launched.append(compiled))
    graph, model, every = small(), gw.nn.GCN(IN, 8, 3, num_layers=3), torch.arange(20)
    y = {"classes": every % 3, "several": (every[:, None] % 2).float().repeat(1, 3), "numbers": torch.zeros(20, 3)}
    task = {"classes": "classification", "several": "multilabel", "numbers": "regression"}[labels]
    ds = gw.Dataset("small", graph, torch.zeros(20, IN), y[labels], every[::2], every[1::4], every[3::4], 3, task=task)
    with gw.config(target="reference", certify=False):  # what follows from structure alone is made in host memory
        model(graph, ds.x).sum().backward()
    for each in (graph, graph.loopless, looped(graph)):
        assert each.reverse().csc.num_edges == each.num_edges
    there, optimizer = torch.device("cuda:0"), gw.optim.Adam(model.parameters())
    steps = DeviceFullBatch(model, ds, ds.x, optimizer, every_row=True, recorder=None)
    steps.refused = "not before the step by calls was looked at"
    with FakeTensorMode(allow_non_fake_inputs=True), gw.config(certify=False, calibrate=False):
        for module in model.modules():
            for name, parameter in list(module._parameters.items()):
                if parameter is not None:
                    module._parameters[name] = torch.nn.Parameter(torch.empty(parameter.shape, device=there))
        steps.device, steps.optimizer = there, gw.optim.Adam(model.parameters(), lr=0.01)
        (labels_of, rows), steps.x = steps._used, steps._there(ds.x)
        steps._used = steps._there(labels_of), steps._there(rows)
        steps.step()  # sends features, labels and structure, and makes the optimiser's state
        with HostTensors() as watch:
            loss = steps.step()
        watches: list[HostTensors] = []

        class Noting:
            """Runs what a device would record."""

            def warm(self, body: Any, alone: bool) -> None:
                body()

            def record(self, body: Any) -> Any:
                before = launched.count(step)
                with recording(), HostTensors() as watch:
                    made = body()
                watches.append(watch)
                updates_of.append(launched.count(step) - before)
                return (lambda: None), made

        steps._recorder = Noting()
        steps._as_graphs((), Update(model, steps.optimizer, clip=1.0))
    assert len(watches) == 2 and not watches[0].seen and not watches[1].seen
    assert updates_of == [0, 1]
    assert loss.device == there and {p.grad.device for p in model.parameters() if p.grad is not None} == {there}
    assert not watch.seen, watch.seen
    assert launched.count(step) == 3 + 1  # twice before, once to warm up, and in the recording
    assert not any("fused_adam" in name for name in watch.names), watch.names
