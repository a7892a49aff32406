"""The epochs that the doctor times on a device; here it is the CPU."""

from __future__ import annotations

from typing import NoReturn

import pytest
import torch

from graphweft.measure import device_epochs

pytest.importorskip("torch_geometric", reason="torch_geometric is the peer of this test")


def test_every_system_trains_and_one_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: object) -> NoReturn:
        raise RuntimeError("no room\nfor it")

    monkeypatch.setattr(device_epochs, "_peer_of_all", broken)
    found = device_epochs.epochs(torch.device("cpu"), scale=0.01)
    pairs = [("GCN, all nodes", "graphweft"), ("GCN, all nodes", "pyg")]
    pairs += [("SAGE, batches", "graphweft"), ("SAGE, batches", "pyg, our batches")]
    assert [(epoch.model, epoch.system) for epoch in found] == pairs
    assert [epoch.failure for epoch in found] == ["", "RuntimeError: no room for it", "", ""]
    assert [epoch.ms > 0 for epoch in found] == [True, False, True, True]


def test_the_peers_learn() -> None:
    """Their losses fall, on all nodes and on batches."""
    ds = device_epochs.synthetic("ogbn-arxiv", scale=0.02)
    here = torch.device("cpu")
    losses, entropy = [], torch.nn.functional.cross_entropy
    for make in (device_epochs._peer_of_all, device_epochs._peer_of_batches):
        seen: list[float] = []
        with pytest.MonkeyPatch.context() as patch:

            def noting(outputs: torch.Tensor, labels: torch.Tensor, seen: list[float] = seen) -> torch.Tensor:
                loss = entropy(outputs, labels)
                seen.append(float(loss.detach()))
                return loss

            patch.setattr(torch.nn.functional, "cross_entropy", noting)
            run = make(ds, here)
            for _ in range(12):
                run()
        losses.append(seen)
    assert all(seen[-1] < 0.8 * seen[0] for seen in losses), losses
