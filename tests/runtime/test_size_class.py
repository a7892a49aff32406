"""A plan for batches follows from the class of their sizes, whichever batch of it comes first."""

from __future__ import annotations

import pytest
import torch

from graphweft.graph.graph import Graph
from graphweft.nn.gat import GATConv
from graphweft.nn.gcn import GCNConv
from graphweft.nn.module import CompiledModule
from graphweft.nn.sage import SAGEConv
from graphweft.runtime.size_class import class_size

THIN, THICK = (1000, 1030), (520, 2040)  # nodes and edges: of one class, 1 and 4 edges a node


def drawn(nodes: int, edges: int) -> Graph:
    generator = torch.Generator().manual_seed(nodes)
    src, dst = torch.randint(nodes, (2, edges), generator=generator)
    return Graph(src, dst, num_nodes=nodes).as_drawn()


def step(layer: torch.nn.Module, graph: Graph, width: int) -> list[torch.Tensor]:
    x = torch.randn(graph.num_nodes, width, generator=torch.Generator().manual_seed(1)).requires_grad_()
    out = layer(graph, x)
    out.square().sum().backward()
    found = [out.detach(), x.grad, *(p.grad for p in layer.parameters())]
    layer.zero_grad(set_to_none=True)
    return found


@pytest.mark.parametrize(("kind", "widths"), [(GCNConv, (48, 40)), (SAGEConv, (40, 36)), (GATConv, (32, 8))])
def test_bits_do_not_depend_on_the_batch_that_came_before(kind: type[CompiledModule], widths: tuple[int, int]) -> None:
    for first, second in ((THIN, THICK), (THICK, THIN)):
        torch.manual_seed(0)
        begun = kind(*widths)
        torch.manual_seed(0)
        taken_up = kind(*widths)
        step(begun, drawn(*first), widths[0])
        mine, theirs = (step(layer, drawn(*second), widths[0]) for layer in (begun, taken_up))
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_the_program_is_that_of_the_class() -> None:
    for width in range(30, 42):
        found = set()
        for size in (THIN, THICK):
            torch.manual_seed(0)
            layer = GCNConv(width, 32)
            step(layer, drawn(*size), width)
            found.add(str([plan.compiled.program for plan in layer.function.plans()]))
        assert len(found) == 1


def test_a_class_has_one_size() -> None:
    for count in range(1, 3000):
        assert class_size(count).bit_length() == count.bit_length()
        assert class_size(class_size(count)) == class_size(count)
