"""How far it is from a layer's call to its kernel: four hops, no string comparison and no format test on the way."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from zoo import random_edges

import graphweft
from graphweft.graph.graph import Graph
from graphweft.nn import SAGE
from graphweft.nn.message_passing import update_all
from graphweft.runtime import sparse

PACKAGE = Path(graphweft.__file__).parent
HOP = {
    "nn/module.py": "layer",
    "runtime/compile.py": "compiled function",
    "runtime/function.py": "autograd function",
    "runtime/plan.py": "autograd function",
    "runtime/cpu/products.py": "launcher",
    "runtime/sparse.py": "launcher",
    "_native.py": "launcher",
}


def _path_to_kernel(call: Any) -> list[str]:
    """The package's files on the stack when the first sparse kernel is entered, outermost first."""
    found: list[list[str]] = []

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code is sparse.spmm.__code__ and not found:
            stack, at = [], frame
            while at is not None:
                name = at.f_code.co_filename
                if name.startswith(str(PACKAGE)):
                    stack.append(str(Path(name).relative_to(PACKAGE)))
                at = at.f_back
            found.append(stack[::-1])

    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found[0]


def test_four_hops_from_layer_to_launcher() -> None:
    edges = random_edges(30, 90, seed=0)
    graph, model = Graph(edges.src, edges.dst, num_nodes=30), SAGE(8, 8, 8, num_layers=2)
    x = torch.randn(30, 8, requires_grad=True)
    for _ in range(3):
        model(graph, x).sum().backward()
    path = _path_to_kernel(lambda: model(graph, x))
    hops = [HOP[name] for name in path]
    distinct = [hop for index, hop in enumerate(hops) if index == 0 or hops[index - 1] != hop]
    assert distinct == ["layer", "compiled function", "autograd function", "launcher"]
    assert len(path) <= 8


def test_backward_starts_at_the_autograd_function() -> None:
    edges = random_edges(30, 90, seed=0)
    graph, model = Graph(edges.src, edges.dst, num_nodes=30), SAGE(8, 8, 8, num_layers=2)
    x = torch.randn(30, 8, requires_grad=True)
    for _ in range(3):
        model(graph, x).sum().backward()
    out = model(graph, x).sum()
    path = _path_to_kernel(out.backward)
    assert [HOP[name] for name in path][:1] == ["autograd function"]
    assert len(path) <= 5


def test_eight_frames_from_update_all_to_the_native_call() -> None:
    graph, h = Graph([0, 1, 2, 3], [1, 2, 3, 0]), torch.randn(4, 8)

    def call() -> Any:
        return update_all(
            graph, lambda edges: {"m": edges.src["h"]}, lambda nodes: {"h": nodes.mailbox["m"].sum(1)}, ndata={"h": h}
        )

    for _ in range(3):
        expected = call()["h"]
    path = _path_to_kernel(call)
    assert path[0] == "nn/message_passing.py"
    assert len(path) == 7  # and one of the entry point
    torch.testing.assert_close(expected, h.roll(1, 0))
