"""Batches on a CUDA device, where there is one: shared out with the CPU, and over rows and lists in host memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import graphweft as gw
from graphweft.schedule.device_place import DevicePlace
from graphweft.schedule.places import Schedule
from graphweft.schedule.split import Plan

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),  # of threads of torch
]


def trained(share: Any, graphs: str) -> gw.Trainer:
    torch.manual_seed(0)
    ds = gw.synthetic("cora", scale=0.3)
    net = gw.nn.SAGE(ds.num_features, 16, ds.num_classes, dropout=0.3)
    given: dict[str, Any] = {
        "mode": "mini",
        "fanouts": (5, 3),
        "batch_size": 4,
        "device": "cuda",
        "cuda_graphs": graphs,
    }
    trainer = gw.Trainer(net, ds, lr=0.05, schedule=Schedule(DevicePlace(), share), **given)
    trainer.fit(3)
    return trainer


@pytest.mark.parametrize("graphs", ["off", "auto"])
def test_shared_batches_have_the_numbers_of_the_device_alone(graphs: str) -> None:
    alone = trained("device", graphs)
    for share in ("cpu", Plan(2, 3, 1), "auto"):
        found = trained(share, graphs)
        assert [r.loss for r in found.history] == [r.loss for r in alone.history], share
        pairs = zip(found.model.state_dict().values(), alone.model.state_dict().values(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs), share
        assert found.scheduled.startswith("cuda: ")


@pytest.mark.parametrize("far", ["read", "sent", "auto"])
@pytest.mark.parametrize("has_lists", [True, False])
def test_batches_over_host_memory_are_those_of_the_cpu(far: str, has_lists: bool) -> None:
    ds = gw.synthetic("ogbn-arxiv", scale=0.01)
    n, csc = ds.num_nodes, ds.graph.csc
    room = (csc.nbytes if has_lists else csc.indptr.nbytes) + 8 * n + 20 * ds.x[:1].nbytes
    given: dict[str, Any] = {"fanouts": (5, 3), "batch_size": 16, "shuffle": True}
    found = gw.Loader(ds, device="cuda", device_memory=room, far_rows=far, **given)
    wanted = gw.Loader(ds, **given)
    for _ in range(2):
        for mine, other in zip(found, wanted, strict=True):
            for name in ("n_id", "x", "edge_index", "e_id"):
                assert torch.equal(getattr(mine, name).cpu(), getattr(other, name)), name
    assert found.device_rows is not None and 0 < found.device_rows.hit_ratio < 1


def test_links_are_those_of_the_cpu() -> None:
    """The same batches and negatives: losses and scores differ in last bits alone."""
    ds = gw.synthetic("default", scale=0.05, seed=1)
    histories = []
    for device in ("cuda", None):
        torch.manual_seed(0)
        net = gw.nn.SAGE(ds.num_features, 16, 16)
        trainer = gw.Trainer(net, ds, lr=0.01, mode="mini", task="link", fanouts=(10, 5), batch_size=256, device=device)
        histories.append(trainer.fit(3))
        assert trainer.predict().device.type == "cpu"
    for name in ("loss", "val_acc", "test_acc", "val_mrr"):
        there, here = (torch.tensor([float(value or 0) for value in history[name]]) for history in histories)
        torch.testing.assert_close(there, here, rtol=5e-3, atol=5e-3)
