"""``gw.compile`` on batch norms of nodes and of edges, by their own statistics and by kept ones."""

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
from graphweft.frontend.region import Region
from graphweft.ir.ops import Op
from graphweft.nn.compiled import calls_of

pytest.importorskip("torch_geometric")
pytestmark = pytest.mark.filterwarnings("ignore")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "coverage"))
coverage: Any = importlib.import_module("pyg_convs")


class Norms(nn.Module):
    """Norms of sources, of messages, and of results."""

    def __init__(self, affine: bool, kept: bool) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16, affine=affine, track_running_stats=kept)
        self.lin, self.last = nn.Linear(16, 8), nn.BatchNorm1d(8)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Two rounds of sums."""
        row, col = edge_index
        h = torch.zeros_like(x).index_add(0, col, self.norm(x)[row])
        h = torch.zeros_like(x).index_add(0, col, self.norm(h[row] - x[col]))
        return self.last(self.lin(h)).relu()


def results(module: nn.Module, x: Tensor, edges: Tensor) -> list[Tensor]:
    """The result, all gradients, and all buffers after it."""
    out = module(x, edges)
    sign = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    found = torch.autograd.grad((out * sign).sum(), [x, *module.parameters()])
    return [out.detach(), *found, *(t.clone() for t in module.buffers())]


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_batch_norms(affine: bool, kept: bool, dtype: torch.dtype) -> None:
    """In training, where statistics move, in evaluation, and in training again; each is one program."""
    torch.manual_seed(0)
    plain = Norms(affine, kept).to(dtype)
    with torch.no_grad():  # rows without edges would be the mean exactly, on either side of the relu by rounding
        for parameter in plain.parameters():
            parameter.normal_()
    compiled = gw.compile(copy.deepcopy(plain))
    inputs = coverage.random_inputs(0, dtype=dtype)
    close = {"rtol": 1e-9, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 2e-4, "atol": 2e-4}
    for training in (True, False, True):
        plain.train(training)
        compiled.train(training)
        for want, got in zip(
            results(plain, inputs.x, inputs.edge_index), results(compiled, inputs.x, inputs.edge_index), strict=True
        ):
            torch.testing.assert_close(got, want, **close)
        last = calls_of(compiled).last
        assert last is not None
        assert len(last.runs) == 1
        part = last.planned.parts[0]
        assert isinstance(part, Region)
        assert part.program is not None
        used = {value.op for value in part.program.values}
        assert (Op.BATCH_NORM if training else Op.NORMALISE) in used
