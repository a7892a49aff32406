"""Whole models, trainers and loaders on a CUDA device, where there is one, beside the CPU in float64 or bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from nn.models import IN, MODELS, features, make, random_graph
from torch import Tensor, nn
from typed_zoo import TYPED_ZOO

import graphweft as gw
from graphweft.nn.hgt import HGT
from graphweft.nn.rgcn import RGCN

DEVICE = torch.device("cuda")
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),  # of threads of torch
]


@pytest.fixture(autouse=True)
def every_call_is_planned() -> Iterator[None]:
    """Small calls as large ones."""
    with gw.config(certify=False):
        yield


def slopes(model: nn.Module, graph: gw.Graph, x: Tensor, place: torch.device, dtype: torch.dtype) -> list[Tensor]:
    """The output and the gradients of all parameters."""
    twin = model.to(place, dtype)
    twin.zero_grad()
    out = twin(graph.to(place), x.to(place, dtype))
    out.square().mean().backward()
    return [t.detach().cpu().double() for t in (out, *(p.grad for p in twin.parameters() if p.grad is not None))]


def near(got: list[Tensor], wanted: list[Tensor], bar: float) -> None:
    assert len(got) == len(wanted)
    for mine, other in zip(got, wanted, strict=True):
        scale = max(float(other.abs().max()), 1e-2)  # gradients that are 0 but for rounding have no scale of their own
        assert float((mine - other).abs().max()) <= bar * scale


@pytest.mark.parametrize("nodes", [40, 3000])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_on_the_device(name: str, nodes: int) -> None:
    graph, x = random_graph(3, nodes, nodes * 5), features(1, nodes)
    model = make(name).eval()
    with gw.config(target="reference"):
        wanted = slopes(model, graph, x, torch.device("cpu"), torch.float64)
    found = slopes(model, graph, x, DEVICE, torch.float32)
    near(found, wanted, 2e-4)
    assert all(torch.equal(a, b) for a, b in zip(found, slopes(model, graph, x, DEVICE, torch.float32), strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["gcn", "sage_max", "gat", "gatv2"])
def test_a_model_of_sixteen_bits(name: str, dtype: torch.dtype) -> None:
    graph, x = random_graph(3, 300, 2000), features(1, 300)
    model = make(name).eval().to(dtype)
    with gw.config(target="reference"):
        wanted = slopes(model, graph, x.to(dtype), torch.device("cpu"), torch.float64)
    found = slopes(model, graph, x, DEVICE, dtype)
    near(found[:1], wanted[:1], 0.05)


def labelled(nodes: int = 600) -> gw.Dataset:
    """Labels that follow from features."""
    graph, x, every = random_graph(5, nodes, nodes * 6), features(2, nodes), torch.arange(nodes)
    parts = every[: nodes // 2], every[nodes // 2 : 3 * nodes // 4], every[3 * nodes // 4 :]
    return gw.Dataset("small", graph, x, x[:, :4].argmax(1), *parts, 4)


def run(name: str, device: str | None, **options: Any) -> tuple[gw.Trainer, list[float]]:
    trainer = gw.Trainer(make(name), labelled(), lr=0.01, device=device, progress=False, **options)
    return trainer, [record.loss for record in trainer.fit(epochs=6)]


@pytest.mark.parametrize("name", MODELS)
def test_full_batches_lose_what_they_lose_on_the_cpu(name: str) -> None:
    (there, found), (here, wanted) = run(name, "cuda"), run(name, None)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted), rtol=2e-3, atol=1e-4)
    assert run(name, "cuda")[1] == found
    near([there.predict().cpu().double()], [here.predict().double()], 0.1)


@pytest.mark.parametrize("graphs", ["auto", "off"])
@pytest.mark.parametrize("name", ["gcn", "sage", "sage_max", "gin", "gat", "gatv2", "user_gcn", "user_gat"])
def test_batches_lose_what_they_lose_on_the_cpu(name: str, graphs: str) -> None:
    options = {"mode": "mini", "fanouts": (4, 3), "batch_size": 64}
    there, found = run(name, "cuda", cuda_graphs=graphs, **options)
    wanted = run(name, None, **options)[1]
    torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted), rtol=2e-3, atol=1e-4)
    if graphs == "auto" and name in ("gcn", "sage", "gin", "gat", "gatv2"):
        assert there.replays["launches"] == 2, there.replays


@pytest.mark.parametrize("graphs", ["auto", "off"])
@pytest.mark.parametrize("name", ["SAGE", "GAT"])
@pytest.mark.parametrize("mode", ["full", "mini"])
def test_dropout_draws_what_it_draws_on_the_cpu(mode: str, name: str, graphs: str) -> None:
    losses = []
    for device in ("cuda", None):
        torch.manual_seed(0)
        model = getattr(gw.nn, name)(IN, 8, 4, dropout=0.5)
        given: dict[str, Any] = {} if device is None else {"cuda_graphs": graphs}
        given |= {"fanouts": (4, 3), "batch_size": 64} if mode == "mini" else {}
        trainer = gw.Trainer(model, labelled(), mode=mode, device=device, progress=False, **given)
        losses.append([record.loss for record in trainer.fit(epochs=4)])
    torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]), rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_a_run_is_continued_on_the_other_side(optimizer: str, tmp_path: Path) -> None:
    whole = gw.Trainer(make("gcn"), labelled(), lr=0.01, optimizer=optimizer, progress=False)
    wanted = [record.loss for record in whole.fit(epochs=6)]
    first = gw.Trainer(
        make("gcn"), labelled(), lr=0.01, optimizer=optimizer, device="cuda", progress=False, out=tmp_path
    )
    found = [record.loss for record in first.fit(epochs=3)]
    second = gw.Trainer(make("gcn"), labelled(), lr=0.01, optimizer=optimizer, progress=False, out=tmp_path)
    assert second.resume() and second.epoch == 3
    found += [record.loss for record in second.fit(epochs=3)][-3:]
    torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted), rtol=2e-3, atol=1e-4)


def test_sums_of_rounded_rows() -> None:
    found, wanted = (run("gcn", device, precision="bf16")[1] for device in ("cuda", None))
    torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted), rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("replace", [False, True])
def test_a_loader_draws_the_batches_of_the_cpu(replace: bool) -> None:
    ds = labelled(5000)
    given = {"fanouts": (7, 5), "batch_size": 300, "shuffle": True, "seed": 4, "replace": replace}
    room = ds.graph.csc.nbytes + 4 * 5000
    for memory in (room + 5000 * 4 * IN, room + 1000 * 4 * IN):
        found, wanted = gw.Loader(ds, **given, device="cuda", device_memory=memory), gw.Loader(ds, **given)
        for _ in range(2):
            for mine, other in zip(found, wanted, strict=True):
                assert mine.n_id.device.type == "cuda"
                for name in ("n_id", "edge_index", "e_id", "x", "y", "input_id"):
                    assert torch.equal(getattr(mine, name).cpu(), getattr(other, name)), name
    assert found.device_rows is not None and 0 < found.device_rows.hit_ratio < 1


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_step_waits_for_nothing() -> None:
    """As torch sees it, which raises where a call waits for the device."""
    trainer = gw.Trainer(make("gcn"), labelled(), device="cuda", progress=False)
    trainer.fit(epochs=2)
    steps = trainer._batch
    try:
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(3):
            steps.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_no_tensor_of_edges_is_made() -> None:
    """A convolution of a graph with 64 edges a node takes less than rows of 64 numbers for every edge."""
    nodes, width = 20_000, 64
    graph = random_graph(1, nodes, 64 * nodes).to(DEVICE)
    for model in (gw.nn.GCN(width, width, width).to(DEVICE), gw.nn.GAT(width, 16, 16, heads=4).to(DEVICE)):
        x = torch.randn(nodes, width, device=DEVICE)
        model(graph, x).sum().backward()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        model(graph, x).sum().backward()
        assert torch.cuda.max_memory_allocated() - before < 4 * width * graph.num_edges / 2


def test_functions_of_a_user() -> None:
    graph, x = random_graph(3, 500, 3000), features(1, 500)

    def message(edges: Any) -> dict[str, Tensor]:
        return {"m": (edges.src["h"] * edges.dst["h"]).tanh() + edges.data["w"]}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        return {"h": nodes.mailbox["m"].sum(1)}

    w = torch.randn(graph.num_edges, 1)
    found = []
    for place in (DEVICE, torch.device("cpu")):
        there = graph.to(place)
        leaf = x.to(place).requires_grad_()
        out = gw.update_all(there, message, reduce, ndata={"h": leaf}, edata={"w": w.to(place)})["h"]
        (slope,) = torch.autograd.grad(out.square().sum(), leaf)
        found.append([out.detach().cpu().double(), slope.cpu().double()])
    near(*found, 1e-4)


@pytest.mark.parametrize("name", ["GCNConv", "SAGEConv", "GATConv", "GATv2Conv", "GINEConv", "TransformerConv"])
def test_a_layer_of_pyg_that_is_compiled(name: str) -> None:
    pyg = pytest.importorskip("torch_geometric.nn")
    graph, x = random_graph(3, 500, 3000), features(1, 500)
    edge_index = torch.stack(graph.edges())
    torch.manual_seed(0)
    layer = pyg.GINEConv(nn.Linear(IN, 8)) if name == "GINEConv" else getattr(pyg, name)(IN, 8)
    more = (torch.randn(graph.num_edges, IN),) if name == "GINEConv" else ()
    wanted = layer(x, edge_index, *more)
    wanted.sum().backward()
    expected = [p.grad.double() for p in layer.parameters()]
    there = gw.compile(layer.to(DEVICE))
    layer.zero_grad()
    given = [t.to(DEVICE) for t in (x, edge_index, *more)]
    for _ in range(3):
        layer.zero_grad()
        out = there(*given)
        out.sum().backward()
    near([out.detach().cpu().double()], [wanted.detach().double()], 1e-4)
    near([p.grad.cpu().double() for p in layer.parameters()], expected, 1e-3)


@pytest.mark.parametrize("name", ["rgcn", "bases", "hgt"])
def test_typed_models(name: str) -> None:
    graph = TYPED_ZOO["academic"]()
    relations = len(graph.relations)
    torch.manual_seed(0)
    model: nn.Module = {
        "rgcn": lambda: RGCN(IN, 4, 3, num_relations=relations),
        "bases": lambda: RGCN(IN, 4, 3, num_relations=relations, num_bases=2),
        "hgt": lambda: HGT(IN, 4, 3, num_node_types=len(graph.node_types), num_relations=relations, heads=2),
    }[name]()
    x = features(1, graph.num_nodes)
    with gw.config(target="reference"):
        wanted = slopes(model, graph, x, torch.device("cpu"), torch.float64)
    near(slopes(model, graph, x, DEVICE, torch.float32), wanted, 1e-3)


def command(*words: str, timeout: int = 200) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "graphweft", *words], capture_output=True, text=True, timeout=timeout, check=False
    )


@pytest.mark.parametrize("mode", ["full", "mini"])
def test_the_command(mode: str, tmp_path: Path) -> None:
    """Losses of the CPU; a resumed run goes on from its last epoch, and ends where one that was not cut ends."""
    base = ("train", "--scale", "0.05", "--mode", mode)
    runs = {"there": ("--device", "cuda", "--epochs", "12"), "here": ("--epochs", "12")}
    runs |= {"cut": ("--device", "cuda", "--epochs", "5")}
    for name, more in runs.items():
        made = command(*base, *more, "--out", str(tmp_path / name))
        assert made.returncode == 0, made.stderr[-2000:]
    made = command(*base, "--device", "cuda", "--epochs", "12", "--out", str(tmp_path / "cut"), "--resume")
    assert made.returncode == 0, made.stderr[-2000:]
    losses = {}
    for name in runs:
        lines = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        assert [line["epoch"] for line in lines] == list(range(1, 13)), name
        losses[name] = torch.tensor([line["loss"] for line in lines])
    torch.testing.assert_close(losses["there"], losses["here"], rtol=5e-3, atol=1e-3)
    torch.testing.assert_close(losses["cut"], losses["there"], rtol=5e-3, atol=1e-3)


def test_the_doctor_finds_every_kernel_right() -> None:
    made = command("doctor", "--device", "cuda", "--json")
    assert made.returncode == 0, made.stdout[-2000:] + made.stderr[-2000:]
    assert all(row["holds"] for row in json.loads(made.stdout)["checks"])
