"""Recorded steps and what happens where memory is out, on a CUDA device, where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from nn.models import IN, features, random_graph
from torch import Tensor

import graphweft as gw
from graphweft._checks import check_device
from graphweft._errors import ConfigError, MemoryBudgetError
from graphweft.train.device_batches import DeviceMiniBatch

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),  # of threads of torch
]
NETS = {
    "gcn": lambda: gw.nn.GCN(IN, 16, 4, num_layers=3, dropout=0.4),
    "sage": lambda: gw.nn.SAGE(IN, 16, 4, reduce="max", dropout=0.4),
    "norm": lambda: gw.nn.GCN(IN, 16, 4, norm="batch"),
    "gin": lambda: gw.nn.GIN(IN, 16, 4),
    "gat": lambda: gw.nn.GAT(IN, 16, 4, heads=4, dropout=0.4),
    "gatv2": lambda: gw.nn.GAT(IN, 16, 4, heads=4, v2=True),
}


def cumulative() -> gw.nn.GCN:
    """Its statistics are the mean over all batches, whose number is read."""
    made = gw.nn.GCN(IN, 16, 4, norm="batch")
    made.norms[0].momentum = None
    return made


@pytest.fixture(autouse=True)
def every_call_is_planned() -> Iterator[None]:
    with gw.config(certify=False):
        yield


def data(nodes: int = 900) -> gw.Dataset:
    graph, x, every = random_graph(5, nodes, nodes * 6), features(2, nodes), torch.arange(nodes)
    parts = every[: nodes // 2], every[nodes // 2 : 3 * nodes // 4], every[3 * nodes // 4 :]
    return gw.Dataset("small", graph, x, x[:, :4].argmax(1), *parts, 4)


def trained(name: str, epochs: int, **given: Any) -> gw.Trainer:
    torch.manual_seed(0)
    made = {**NETS, "waits": cumulative}[name]()
    optimizer = given.pop("optimizer", "adam")
    if optimizer == "momentum":
        given["optimizer"] = gw.optim.SGD(made.cuda().parameters(), lr=0.02, momentum=0.9)
    else:
        given |= {"optimizer": optimizer, "lr": 0.02}
    trainer = gw.Trainer(made, data(), device="cuda", progress=False, **given)
    trainer.fit(epochs)
    return trainer


def numbers(trainer: gw.Trainer) -> list[Tensor]:
    lines = torch.tensor([[r.loss, r.val_loss or 0.0] for r in trainer.history])
    return [lines, *(t.detach().cpu().float() for t in trainer._weights.last().values())]


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "momentum"])
@pytest.mark.parametrize("name", NETS)
def test_full_batches_are_two_graphs_with_the_update(name: str, optimizer: str) -> None:
    more = {"scheduler": "exponential:0.9", "clip": 1.0, "ema": 0.9} if optimizer != "adamw" else {}
    plain, found = (trained(name, 6, cuda_graphs=graphs, optimizer=optimizer, **more) for graphs in ("off", "on"))
    report = found.replays
    assert report == {"launches": 2, "replayed": 5, "fallbacks": 0, "evaluation": 1, "updates": True}, report
    for mine, other in zip(numbers(found), numbers(plain), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("optimizer", ["adam", "momentum"])
@pytest.mark.parametrize("name", ["gcn", "gin", "gat"])
def test_batches_are_two_graphs_with_the_update(name: str, optimizer: str) -> None:
    more = {"mode": "mini", "fanouts": (4, 3, 3) if name == "gcn" else (4, 3), "batch_size": 64, "eval_every": 9}
    more |= {"scheduler": "exponential:0.9", "clip": 1.0, "optimizer": optimizer}
    plain, found = (trained(name, 5, cuda_graphs=graphs, **more) for graphs in ("off", "on"))
    assert found.replays["launches"] == 2 and found.replays["updates"], found.replays
    assert sum(found.history["replayed"]) > 10  # type: ignore[arg-type]
    # padded rows are added up in another order, which Adam magnifies where gradients are next to nothing
    torch.testing.assert_close(numbers(found)[0], numbers(plain)[0], rtol=2e-2, atol=2e-3)


def test_what_waits_for_the_device_runs_as_it_comes_and_breaks_nothing() -> None:
    plain, found = (trained("waits", 5, cuda_graphs=graphs) for graphs in ("off", "auto"))
    assert found.replays["replayed"] == 0 and found.replays["refused"].startswith("it cannot be recorded")
    for mine, other in zip(numbers(found), numbers(plain), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)
    assert trained("gcn", 4).replays["replayed"] == 3


def test_memory_that_is_out_is_one_line() -> None:
    torch.cuda.empty_cache()
    try:
        torch.cuda.set_per_process_memory_fraction(0.004)
        ds = data(20_000)
        with pytest.raises(MemoryBudgetError, match=r"^device: expected room for .* lower hidden or layers, take"):
            gw.Trainer(gw.nn.GCN(IN, 8192, 4), ds, device="cuda", progress=False).fit(2)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()
    with pytest.raises(
        ConfigError, match=r"^device: expected a device of this machine \(cpu, cuda:0.*\), got 'cuda:99'"
    ):
        check_device("device", "cuda:99")


def test_an_evaluation_by_tiles_is_the_evaluation() -> None:
    trainer = trained("sage", 1, mode="mini", fanouts=(4, 3), batch_size=64)
    steps = trainer._batch
    assert isinstance(steps, DeviceMiniBatch)
    wanted = steps.logits()
    steps._tile = 256
    torch.testing.assert_close(steps.logits(), wanted, rtol=1e-4, atol=1e-5)
