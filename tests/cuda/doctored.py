"""Trials of the doctor. Run by ``trials.py``."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphweft.measure import device_check
from graphweft.runtime.cuda import edges


def a_kernel_that_fails_is_switched_off_and_the_run_goes_on() -> None:
    """One gives wrong numbers, one does not run: models are right by plain torch, and both are named."""
    summed = edges.sum_edges

    def wrong(*given: Any, **more: Any) -> torch.Tensor:
        return summed(*given, **more) * 2

    def broken(*given: Any, **more: Any) -> torch.Tensor:
        raise RuntimeError("no\ncode")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edges, "sum_edges", wrong)
        patch.setattr(edges, "edge_softmax", broken)
        found = {check.name: check for check in device_check.checks("cpu", nodes=8, degree=2, repetitions=1)}
    failed = {name for name, check in found.items() if not check.holds}
    sums = {
        "sum over edges",
        "sum over edges, all degrees alike",
        "sum over edges + bias + relu",
        "sum over edges of bfloat16",
    }
    assert failed == sums | {"softmax over edges"}, failed
    assert found["softmax over edges"].failure == "RuntimeError: no code"
    assert found["gradients of GCN"].holds and found["gradients of SAGE, max"].holds
    off = device_check.switched_off(list(found.values())).split(",")
    assert {"spmm", "edge_softmax"} <= set(off) and "attention" not in off, off
