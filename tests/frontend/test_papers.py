"""Layers of papers against an executor that goes node by node, forward and backward, with inputs that change."""

from __future__ import annotations

import inspect
import warnings

import pytest
import torch
from frontend.functions import CASES, World, papers
from frontend.node_by_node import run_node_by_node
from frontend.test_compiled import run, zoo_graph
from torch import Tensor

import graphweft as gw

NAMES = [name for name, function in CASES.items() if inspect.getmodule(function) is papers]


@pytest.mark.parametrize("graph", ["one_loop", "isolated", "multi_edges", "random"])
@pytest.mark.parametrize("name", NAMES)
def test_layer_of_a_paper_equals_plain_torch_node_by_node(name: str, graph: str) -> None:
    world = World(zoo_graph(graph))
    functions = CASES[name](world)

    def library(functions: tuple[object, ...]) -> dict[str, Tensor]:
        return gw.update_all(world.graph, *functions, **world.fields, params=world.params)

    for _ in range(2):
        expected, wanted = run(lambda f: run_node_by_node(world, f), world, functions)
        with warnings.catch_warnings():
            warnings.simplefilter("error", gw.FallbackWarning)
            got, gradients = run(library, world, functions)
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(gradients, wanted, rtol=1e-9, atol=1e-9)
        with torch.no_grad():
            torch.testing.assert_close(library(functions), expected, rtol=1e-9, atol=1e-9)
            for leaf in world.leaves.values():
                leaf.copy_(torch.randn(leaf.shape, generator=torch.Generator().manual_seed(3), dtype=leaf.dtype))
