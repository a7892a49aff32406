"""Backward passes from known gradients: the same numbers as torch's own, without its symbolic sizes."""

from __future__ import annotations

import os
import subprocess
import sys

import torch

from graphweft._backward import backward_from, gradients_from

_PROGRAM = """
import sys
import torch
import graphweft as gw
class Mean(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = gw.nn.SAGE(8, 8, 3, num_layers=2)
    def forward(self, graph, x):
        return torch.tanh(self.inner(graph, x))
ds = gw.synthetic("arxiv", scale=0.01, seed=0)
model = Mean()
model.inner = gw.nn.SAGE(ds.num_features, 8, ds.num_classes, num_layers=2)
gw.Trainer(model, ds, mode="full").fit(1)
gw.Trainer(gw.nn.GAT(ds.num_features, 8, ds.num_classes, num_layers=2), ds, mode="mini").fit(1)
print("sympy" in sys.modules)
"""


def _tensors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    a, b, unread = (torch.randn(4, 3, dtype=torch.float64, requires_grad=True) for _ in range(3))
    return a, b, unread


def test_gradients_are_those_of_torch_for_several_outputs() -> None:
    a, b, unread = _tensors()
    outputs = [(a * b).sum(1), torch.tanh(a) @ b.t()]
    seeds = [torch.randn_like(output) for output in outputs]
    expected = torch.autograd.grad(outputs, [a, b, unread], seeds, retain_graph=True, allow_unused=True)
    with torch.no_grad():  # as an interpreter runs
        found = gradients_from(outputs, [a, b, unread], seeds, retain_graph=True)
    again = gradients_from(outputs, [a, b, unread], seeds)
    assert found[2] is None and again[2] is None
    assert all(torch.equal(f, e) and torch.equal(g, e) for f, g, e in zip(found[:2], again, expected, strict=False))  # type: ignore[arg-type]


def test_gradients_of_gradients_go_through_the_seed_as_well() -> None:
    a, b, _ = _tensors()
    seed = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    made = gradients_from([a.pow(3)], [a], [seed * b], create_graph=True)[0]
    assert made is not None
    wanted = torch.autograd.grad(made.sum(), [a, b, seed])
    expected = (6 * a * seed * b, 3 * a.pow(2) * seed, 3 * a.pow(2) * b)
    assert all(torch.allclose(w, e) for w, e in zip(wanted, expected, strict=True))


def test_backward_adds_to_the_gradients_that_are_there() -> None:
    a, b, _ = _tensors()
    seed = torch.randn(4, 4, dtype=torch.float64)
    for _ in range(2):
        backward_from(a @ b.t(), seed)
    assert a.grad is not None
    assert torch.allclose(a.grad, 2 * seed @ b.detach())


def test_training_imports_no_symbolic_sizes(tmp_path: object) -> None:
    environment = {**os.environ, "GRAPHWEFT_CACHE_DIR": str(tmp_path)}  # nothing is remembered: all is tried
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=False, env=environment, timeout=200
    )
    assert done.stdout.strip() == "False", done.stdout + done.stderr[-2000:]
